//! The client's side of a pool whose memory nodes are reached over UCX.

use crate::transport::{Connection, Shared};
use crate::ucp::{Context, ContextSettings};
use farindex_fabric::{Capabilities, Endpoint, Fabric, FabricError, Identity, NodeId, NodeInfo};
use farindex_remote::{Cluster, PlaneKind};
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Memory nodes that are reached over UCX.
pub struct UcxFabric {
    cluster: Cluster,
    shared: Arc<Shared>,
}

impl UcxFabric {
    /// On top of the control channel. All nodes must speak UCX.
    pub fn new(cluster: Cluster) -> Result<Self, FabricError> {
        if cluster.plane() != PlaneKind::Ucx {
            let plane = cluster.plane();
            return Err(FabricError::Settings(format!("these memory nodes are served over {plane}, not over ucx")));
        }
        let here = |addr: &String| {
            let places = addr.to_socket_addrs();
            places.is_ok_and(|mut places| places.all(|place| place.ip().is_loopback()))
        };
        let loopback = cluster.addrs().iter().all(here);
        let context = Context::new(ContextSettings { wakeup: false, loopback }).map_err(FabricError::Settings)?;
        let shared = Shared {
            context,
            epoch: Instant::now(),
            capabilities: crate::transport::capabilities(&cluster),
            sent: AtomicU64::new(0),
            transports: Mutex::default(),
        };
        Ok(UcxFabric { cluster, shared: Arc::new(shared) })
    }

    /// Messages that were handed to UCX, by all endpoints of this fabric.
    pub fn messages(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
    /// The control channel.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

impl Fabric for UcxFabric {
    fn name(&self) -> &'static str {
        crate::transport::NAME
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.cluster.node_infos()
    }
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }
    /// What UCX has chosen. A connection is counted in once its second request has been answered.
    fn transports(&self) -> Vec<String> {
        self.shared.transports.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
    fn new_identity(&self) -> Identity {
        // Without random bytes there is no identity: the empty one is refused when it connects.
        self.cluster.new_identity().unwrap_or_default()
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        let client = self.cluster.client(identity).map_err(|error| error.of_node(NodeId::new(0)))?;
        let connection = Connection::new(Arc::clone(&self.shared), client, self.cluster.welcomes())?;
        Ok(Endpoint::new(Box::new(connection)))
    }
}
