//! Memory nodes of this process, for tests.

use farindex_fabric::NodeId;
use farindex_remote::client::ControlSettings;
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Tokens};
use farindex_ucx::{Poll, UcxFabric, UcxPlane, UcxSettings};
use std::sync::Arc;
use std::time::Duration;

/// Memory nodes, and a fabric on them.
pub struct Served {
    pub metrics: Vec<Metrics>,
    pub addrs: Vec<String>,
    // Dropped in this order: the fabric goes first.
    pub fabric: Arc<UcxFabric>,
    pub nodes: Vec<Node>,
}

pub fn serve(nodes: usize, len: u64, poll: Poll) -> Served {
    let (mut metrics, mut addrs, mut running) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..nodes {
        let memory = Arc::new(NodeMemory::anonymous(NodeId::new(number as u16), len).unwrap());
        let counts = Metrics::new();
        let settings = UcxSettings { poll, loopback: true, report: None };
        let plane = UcxPlane::start(Arc::clone(&memory), settings, &counts).unwrap();
        let listen = NodeSettings::new("127.0.0.1:0".parse().unwrap(), Tokens::open());
        let node = Node::start(memory, plane, listen, counts.clone()).unwrap();
        addrs.push(node.addr().to_string());
        running.push(node);
        metrics.push(counts);
    }
    let fabric = Arc::new(connect(&addrs));
    Served { metrics, addrs, fabric, nodes: running }
}

pub fn connect(addrs: &[String]) -> UcxFabric {
    let settings = ControlSettings { deadline: Duration::from_secs(5), ..ControlSettings::default() };
    UcxFabric::new(Cluster::connect(addrs, settings).unwrap()).unwrap()
}
