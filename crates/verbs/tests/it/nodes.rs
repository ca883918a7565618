//! Memory nodes inside the test's process, reached through a real device.
//!
//! Without an RDMA device a test says so and passes, unless `SOFT_ROCE` is set (scripts/soft-roce/run sets it): then it
//! fails. `ROCE_CLIENT` and `ROCE_NODE` name the devices of either side; unset, the first one serves both.
#![allow(dead_code)]

use farindex_fabric::{Fabric, FabricError, NodeId};
use farindex_remote::client::ControlSettings;
use farindex_remote::plane::{Peer, Refusal};
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Plane, PlaneKind, Tokens};
use farindex_verbs::{Device, DeviceOptions, VerbsFabric, VerbsPlane};
use std::net::SocketAddr;
use std::sync::Arc;

fn options(variable: &str) -> DeviceOptions {
    let environment = DeviceOptions::from_environment().expect("FARINDEX_VERBS_*");
    DeviceOptions { device: std::env::var(variable).ok(), ..environment }
}

pub(crate) fn client_device() -> DeviceOptions {
    options("ROCE_CLIENT")
}

pub(crate) fn node_device() -> DeviceOptions {
    options("ROCE_NODE")
}

/// Is there a device? If not, says what is skipped.
pub(crate) fn device_or_skip() -> bool {
    match Device::open(&client_device()) {
        Ok(_) => true,
        Err(error) if std::env::var_os("SOFT_ROCE").is_none() => {
            eprintln!("SKIPPED: verbs are not tested here: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

struct Unresponsive(Arc<VerbsPlane>);

impl Plane for Unresponsive {
    fn kind(&self) -> PlaneKind {
        self.0.kind()
    }
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let answer = self.0.attach(peer, request)?;
        self.0.detach(peer.link);
        Ok(answer)
    }
    fn detach(&self, link: u64) {
        self.0.detach(link);
    }
}

/// A memory node at work.
pub(crate) struct Served {
    // The control thread ends first, and with it all connections.
    node: Option<Node>,
    pub(crate) plane: Arc<VerbsPlane>,
}

impl Served {
    pub(crate) fn start(memory: NodeMemory, listen: SocketAddr) -> Result<Self, FabricError> {
        let memory = Arc::new(memory);
        let plane = Arc::new(VerbsPlane::new(Arc::clone(&memory), &node_device())?);
        Served::through(memory, Arc::clone(&plane) as _, plane, listen)
    }
    fn through(
        memory: Arc<NodeMemory>,
        shown: Arc<dyn Plane>,
        plane: Arc<VerbsPlane>,
        listen: SocketAddr,
    ) -> Result<Self, FabricError> {
        let node = Node::start(memory, shown, NodeSettings::new(listen, Tokens::open()), Metrics::new())?;
        Ok(Served { node: Some(node), plane })
    }
    /// It lets clients in, and answers no verb.
    pub(crate) fn unresponsive(number: usize, len: u64) -> Result<Self, FabricError> {
        let memory = Arc::new(NodeMemory::anonymous(NodeId::new(number as u16), len)?);
        let plane = Arc::new(VerbsPlane::new(Arc::clone(&memory), &node_device())?);
        Served::through(
            memory,
            Arc::new(Unresponsive(Arc::clone(&plane))),
            plane,
            SocketAddr::from(([127, 0, 0, 1], 0)),
        )
    }
    pub(crate) fn fresh(number: usize, len: u64) -> Result<Self, FabricError> {
        let memory = NodeMemory::anonymous(NodeId::new(number as u16), len)?;
        let memory = memory.with_call_handler(farindex_index::call_table().into_handler());
        Served::start(memory, SocketAddr::from(([127, 0, 0, 1], 0)))
    }
    pub(crate) fn addr(&self) -> String {
        self.node.as_ref().map(|node| node.addr().to_string()).unwrap_or_default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.node.take());
    }
}

/// A fabric whose memory nodes end with it.
pub(crate) struct Local {
    // Dropped first: its connections end before the nodes do.
    pub(crate) fabric: VerbsFabric,
    pub(crate) nodes: Vec<Served>,
}

impl Local {
    pub(crate) fn new(nodes: usize, len: u64) -> Result<Self, FabricError> {
        let nodes = (0..nodes).map(|number| Served::fresh(number, len)).collect::<Result<Vec<_>, _>>()?;
        let fabric = reach(&nodes)?;
        Ok(Local { fabric, nodes })
    }
}

pub(crate) fn reach(nodes: &[Served]) -> Result<VerbsFabric, FabricError> {
    let addrs: Vec<String> = nodes.iter().map(Served::addr).collect();
    let cluster = Cluster::connect(&addrs, ControlSettings::default());
    let cluster = cluster.map_err(|error| FabricError::Settings(error.to_string()))?;
    VerbsFabric::new(cluster, &client_device())
}

impl Fabric for Local {
    fn name(&self) -> &'static str {
        self.fabric.name()
    }
    fn nodes(&self) -> Vec<farindex_fabric::NodeInfo> {
        self.fabric.nodes()
    }
    fn capabilities(&self) -> farindex_fabric::Capabilities {
        self.fabric.capabilities()
    }
    fn new_identity(&self) -> farindex_fabric::Identity {
        self.fabric.new_identity()
    }
    fn connect(&self, identity: &farindex_fabric::Identity) -> Result<farindex_fabric::Endpoint, FabricError> {
        self.fabric.connect(identity)
    }
}
