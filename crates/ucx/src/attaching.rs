//! How a client attaches. Most tests have a memory node whose data plane greets when the test says so, and never answers.

use crate::UcxFabric;
use crate::chain::Greeting;
use crate::hostile::{TIME_LIMIT, is_there, serve};
use crate::ucp::{self, ContextSettings, EpId, Worker};
use farindex_fabric::exec::Driver;
use farindex_fabric::{Endpoint, Fabric, Identity, NodeId, OpKind, RemotePtr};
use farindex_remote::client::ControlSettings;
use farindex_remote::wire::Writer;
use farindex_remote::{
    Cluster, Link, Metrics, Node, NodeMemory, NodeSettings, Peer, Plane, PlaneKind, Refusal, Tokens,
};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// What the plane calls every connection.
const SESSION: u64 = 0x5E55_1011;
const NODE: NodeId = NodeId::new(0);

struct Silent {
    address: Vec<u8>,
    /// Addresses of the workers that have attached.
    attached: Mutex<Vec<Vec<u8>>>,
    /// What was released.
    released: Mutex<Vec<Vec<u8>>>,
}

impl Plane for Silent {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Ucx
    }
    fn attach(&self, _: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.attached.lock().unwrap().push(request.to_vec());
        let mut answer = Vec::new();
        answer.put_u64(SESSION);
        answer.put_counted(&self.address);
        Ok(answer)
    }
    fn release(&self, _: u64, request: &[u8]) {
        self.released.lock().unwrap().push(request.to_vec());
    }
    fn detach(&self, _: u64) {}
}

/// The memory node, and a client of it.
struct Stage {
    worker: Worker,
    plane: Arc<Silent>,
    memory: Arc<NodeMemory>,
    node: Option<Node>,
    fabric: UcxFabric,
    identity: Identity,
    endpoint: Rc<Endpoint>,
}

impl Stage {
    /// `None` on a machine without UCX.
    fn new() -> Option<Self> {
        if !is_there() {
            return None;
        }
        let worker = worker();
        let plane =
            Silent { address: worker.address().unwrap(), attached: Mutex::default(), released: Mutex::default() };
        let plane = Arc::new(plane);
        let memory = Arc::new(NodeMemory::anonymous(NODE, 1 << 16).unwrap());
        let node = start(&memory, &plane, "127.0.0.1:0".parse().unwrap());
        let cluster = Cluster::connect(&[node.addr().to_string()], ControlSettings::default()).unwrap();
        let fabric = UcxFabric::new(cluster).unwrap();
        let identity = fabric.new_identity();
        let endpoint = Rc::new(fabric.connect(&identity).unwrap());
        Some(Stage { worker, plane, memory, node: Some(node), fabric, identity, endpoint })
    }
    fn attached(&self) -> usize {
        self.plane.attached.lock().unwrap().len()
    }
    /// Lets the client and UCX work until something has happened.
    fn until(&mut self, what: &str, mut reached: impl FnMut(&mut Self) -> bool) {
        let since = Instant::now();
        while !reached(self) {
            assert!(since.elapsed() < TIME_LIMIT, "{what} does not happen");
            self.endpoint.progress();
            self.worker.progress();
        }
    }
    /// Long enough for what needs a few rounds.
    fn go_on(&mut self) {
        let since = Instant::now();
        self.until("the end", |_| since.elapsed() > Duration::from_millis(50));
    }
    /// The node's half of a connection to the worker that has attached last.
    fn connect(&mut self) -> EpId {
        let theirs = self.plane.attached.lock().unwrap().last().cloned().unwrap();
        self.worker.connect(&theirs).unwrap()
    }
    fn greet(&mut self, ep: EpId, session: u64) {
        let mut greeting = Vec::new();
        Greeting { session, node: NODE }.encode(&mut greeting);
        self.worker.greet(ep, greeting).unwrap();
    }
}

fn worker() -> Worker {
    let context = ucp::Context::new(ContextSettings { wakeup: false, loopback: true }).unwrap();
    Worker::new(&context).unwrap()
}

fn start(memory: &Arc<NodeMemory>, plane: &Arc<Silent>, addr: SocketAddr) -> Node {
    let plane = Arc::clone(plane) as Arc<dyn Plane>;
    Node::start(Arc::clone(memory), plane, NodeSettings::new(addr, Tokens::open()), Metrics::new()).unwrap()
}

#[test]
fn a_client_sends_nothing_before_the_memory_node_has_greeted() {
    let Some(mut stage) = Stage::new() else { return };
    let endpoint = Rc::clone(&stage.endpoint);
    let span = endpoint.span(OpKind::Other);
    let _read = span.read(RemotePtr::new(NODE, 64), 8);
    stage.until("the attach", |stage| stage.attached() == 1);
    // It has the answer by then, and connects in a few rounds.
    stage.go_on();
    assert_eq!((stage.fabric.messages(), stage.worker.received()), (0, None));
    let ep = stage.connect();
    stage.greet(ep, SESSION + 1);
    stage.go_on();
    assert_eq!(stage.fabric.messages(), 0);
    stage.greet(ep, SESSION);
    stage.until("a message", |stage| stage.worker.received().is_some());
}

/// The greeting of a connection that was given up can be late (docs/bugs/229).
#[test]
fn a_later_greeting_of_another_connection_does_not_hide_its_own() {
    let Some(mut stage) = Stage::new() else { return };
    let endpoint = Rc::clone(&stage.endpoint);
    let span = endpoint.span(OpKind::Other);
    let _read = span.read(RemotePtr::new(NODE, 64), 8);
    stage.until("the attach", |stage| stage.attached() == 1);
    let ep = stage.connect();
    stage.greet(ep, SESSION);
    stage.greet(ep, SESSION + 1);
    // The client does nothing until both have come.
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(50) {
        stage.worker.progress();
    }
    stage.until("a message", |stage| stage.worker.received().is_some());
}

/// The control connection was lost and made anew while the client had nothing to send, and so did not look
/// (docs/bugs/229).
#[test]
fn a_client_attaches_once_after_its_control_connection_was_made_anew() {
    let Some(mut stage) = Stage::new() else { return };
    let client = stage.fabric.cluster().client(&stage.identity).unwrap();
    let control = &client.controls()[0];
    let before = control.generation();
    let node = stage.node.take().unwrap();
    let addr = node.addr();
    drop(node);
    stage.node = Some(start(&stage.memory, &stage.plane, addr));
    let since = Instant::now();
    while control.generation() < before + 2 || control.link() != Link::Up {
        assert!(since.elapsed() < TIME_LIMIT, "it does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    let endpoint = Rc::clone(&stage.endpoint);
    let span = endpoint.span(OpKind::Other);
    let mut read = pin!(span.read(RemotePtr::new(NODE, 64), 8));
    stage.until("the attach", |stage| stage.attached() == 1);
    stage.go_on();
    // It is not given up, and waits for the greeting.
    assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(stage.attached(), 1);
    let ep = stage.connect();
    stage.greet(ep, SESSION);
    stage.until("a message", |stage| stage.worker.received().is_some());
}

/// UCX loses a connection while the control connection stands. The client releases it, and the memory node does not disconnect
/// the client for it.
#[test]
fn a_connection_that_ucx_has_lost_is_released() {
    let Some(mut stage) = Stage::new() else { return };
    let endpoint = Rc::clone(&stage.endpoint);
    let span = endpoint.span(OpKind::Other);
    let _read = span.read(RemotePtr::new(NODE, 64), 8);
    stage.until("the attach", |stage| stage.attached() == 1);
    let ep = stage.connect();
    stage.greet(ep, SESSION);
    stage.until("a message", |stage| stage.worker.received().is_some());
    stage.worker = worker();
    stage.until("the release", |stage| *stage.plane.released.lock().unwrap() == *stage.plane.attached.lock().unwrap());
}

/// An endpoint that is dropped while it attaches does not know the number of its connection yet, and releases it by the
/// address of its worker. Otherwise the memory node would find that the connection is lost, and disconnect the client.
#[test]
fn a_connection_that_is_dropped_while_it_attaches_is_released() {
    let Some(served) = serve(1 << 16) else { return };
    let cluster = Cluster::connect(&[served.node.addr().to_string()], ControlSettings::default()).unwrap();
    let fabric = UcxFabric::new(cluster).unwrap();
    let identity = fabric.new_identity();
    // Its control connection is that of both endpoints, so what the node is told arrives in order.
    let (dropped, endpoint) = (fabric.connect(&identity).unwrap(), fabric.connect(&identity).unwrap());
    drop(dropped.span(OpKind::Other).read(RemotePtr::new(NODE, 64), 8));
    drop(dropped);
    let span = endpoint.span(OpKind::Other);
    let mut read = pin!(span.read(RemotePtr::new(NODE, 64), 8));
    let since = Instant::now();
    while read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        assert!(since.elapsed() < TIME_LIMIT, "no answer");
        endpoint.progress();
    }
    assert!(served.metrics.text().lines().any(|line| line == "farindex_ucx_sessions 1"), "{}", served.metrics.text());
}
