//! Memory nodes behind RDMA verbs, as a fabric.

use crate::counts::{Ledger, WireCounts};
use crate::device::{Device, DeviceOptions};
use crate::transport::VerbsTransport;
use farindex_fabric::{Capabilities, Endpoint, Fabric, FabricError, Identity, NodeInfo};
use farindex_remote::{Cluster, PlaneKind};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

/// Memory nodes that are reached by RDMA verbs. Cheap to clone; clones share device and control connections.
#[derive(Clone)]
pub struct VerbsFabric {
    cluster: Arc<Cluster>,
    device: Arc<Device>,
    ledger: Arc<Ledger>,
    epoch: Instant,
}

impl VerbsFabric {
    /// Reaches the memory nodes of a cluster through one device of this machine.
    pub fn new(cluster: Cluster, options: &DeviceOptions) -> Result<Self, FabricError> {
        if cluster.plane() != PlaneKind::Verbs {
            let plane = cluster.plane();
            return Err(FabricError::Settings(format!("these memory nodes serve over {plane}, not over verbs")));
        }
        let device = Device::open(options)?;
        Ok(VerbsFabric { cluster: Arc::new(cluster), device, ledger: Arc::default(), epoch: Instant::now() })
    }
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// Returns what its endpoints have posted to the device and polled from it.
    pub fn wire_counts(&self) -> WireCounts {
        self.ledger.sum()
    }
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &'static str {
        "verbs"
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.cluster.node_infos()
    }
    /// Masked CAS is a vendor's extension that the verbs' common interface lacks: the endpoint does it by a loop of
    /// CAS. Calls travel over the control channel. A NIC's atomics are atomic among themselves; nothing is claimed
    /// about the memory node's CPU (N4).
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.call = self.cluster.answers_calls();
        capabilities.zeroed = self.cluster.zeroed();
        capabilities
    }
    fn new_identity(&self) -> Identity {
        self.cluster.new_identity().unwrap_or_else(|_| {
            // The system's random source fails: what the standard library seeds its maps with is as good.
            let token = RandomState::new().hash_one(Instant::now());
            Identity { token: token.max(1), pid: 0, started: 0 }
        })
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        let client = self.cluster.client(identity).map_err(|error| match error {
            farindex_remote::ControlError::Revoked => FabricError::Revoked,
            other => FabricError::Settings(other.to_string()),
        })?;
        let transport =
            VerbsTransport::new(&self.device, &self.cluster, client, &self.ledger, self.capabilities(), self.epoch)?;
        Ok(Endpoint::new(Box::new(transport)))
    }
}
