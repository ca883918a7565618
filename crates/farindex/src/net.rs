//! Pools whose memory nodes are reached over a network.

use crate::{Error, PoolUrl};
use farindex_fabric::Fabric;
use std::path::Path;
use std::sync::Arc;

/// Reaches the memory nodes: the control channel says which fabric they serve.
#[cfg(feature = "remote")]
pub(crate) fn connect(addrs: &[String], token_file: Option<&Path>) -> Result<Arc<dyn Fabric>, Error> {
    use farindex_remote::client::ControlSettings;
    use farindex_remote::{Cluster, PlaneKind, Tokens};

    let token = token_file.map(Tokens::read).transpose().map_err(Error::Settings)?.unwrap_or_default().first();
    let settings = ControlSettings { token, ..ControlSettings::default() };
    let cluster = Cluster::connect(addrs, settings).map_err(|error| Error::Remote(error.to_string()))?;
    match cluster.plane() {
        #[cfg(feature = "ucx")]
        PlaneKind::Ucx => Ok(Arc::new(farindex_ucx::UcxFabric::new(cluster)?)),
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        PlaneKind::Verbs => {
            let options = farindex_verbs::DeviceOptions::from_environment()?;
            Ok(Arc::new(farindex_verbs::VerbsFabric::new(cluster, &options)?))
        }
        #[allow(unreachable_patterns)]
        PlaneKind::Ucx | PlaneKind::Verbs => Err(missing(&cluster.plane().to_string())),
        plane => {
            Err(Error::Settings(format!("these memory nodes serve over {plane}, which this version does not know")))
        }
    }
}

#[cfg(not(feature = "remote"))]
pub(crate) fn connect(_: &[String], _: Option<&Path>) -> Result<Arc<dyn Fabric>, Error> {
    Err(missing("ucx"))
}

/// The fabric that a pool behind memory nodes lives on, for those who build on the crates underneath.
pub fn connect_to(url: &PoolUrl) -> Result<Arc<dyn Fabric>, Error> {
    match url {
        PoolUrl::Remote { addrs, token_file } => connect(addrs, token_file.as_deref()),
        _ => Err(Error::Settings("only memory nodes are connected to: connect:HOST:PORT".to_owned())),
    }
}

/// A fabric that this build does not have.
fn missing(fabric: &str) -> Error {
    let needs = match fabric {
        "verbs" => "running needs libibverbs (package libibverbs1), building needs cmake and libclang",
        _ => "running needs UCX (package libucx0)",
    };
    Error::Settings(format!(
        "this farindex was built without the {fabric} fabric: build it with `cargo build --features {fabric}`; {needs}"
    ))
}
