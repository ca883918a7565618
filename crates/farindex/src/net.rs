//! Pools on memory nodes that are connected to over a network.

use crate::{Error, PoolUrl};
use farindex_fabric::Fabric;
use std::path::Path;
use std::sync::Arc;

/// Connects to the memory nodes: the control channel tells which fabric they serve.
#[cfg(feature = "remote")]
pub(crate) fn connect(addrs: &[String], token_file: Option<&Path>) -> Result<Arc<dyn Fabric>, Error> {
    use farindex_remote::client::ControlSettings;
    use farindex_remote::{Cluster, PlaneKind, Tokens};

    let bad_token = |why| Error::TokenFile { path: token_file.map(Path::to_owned).unwrap_or_default(), why };
    let token = token_file.map(Tokens::read).transpose().map_err(bad_token)?.unwrap_or_default().first();
    let settings = ControlSettings { token, ..ControlSettings::default() };
    let cluster = Cluster::connect(addrs, settings)?;
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
        plane => Err(Error::FabricUnknown { fabric: plane.to_string() }),
    }
}

#[cfg(not(feature = "remote"))]
pub(crate) fn connect(_: &[String], _: Option<&Path>) -> Result<Arc<dyn Fabric>, Error> {
    Err(missing("ucx"))
}

/// Connects to the memory nodes of a pool, and returns their fabric, for those who build on the crates underneath.
pub fn connect_to(url: &PoolUrl) -> Result<Arc<dyn Fabric>, Error> {
    match url {
        PoolUrl::Remote { addrs, token_file } => connect(addrs, token_file.as_deref()),
        PoolUrl::Memory { .. } | PoolUrl::Shm { .. } => Err(Error::NotRemote),
    }
}

/// The error for a fabric that this build lacks.
fn missing(fabric: &str) -> Error {
    let needs = match fabric {
        "verbs" => "running needs libibverbs (package libibverbs1), building needs cmake and libclang",
        _ => "running needs UCX (package libucx0)",
    };
    Error::FabricMissing { fabric: fabric.to_owned(), needs }
}
