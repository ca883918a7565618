//! Memory nodes of this process, for tests.
#![allow(unreachable_pub, missing_docs, dead_code)]

use farindex_fabric::{
    Capabilities, Endpoint, Executor, Fabric, FabricError, Identity, NodeId, NodeInfo, OpKind, RemotePtr,
};
use farindex_remote::client::ControlSettings;
use farindex_remote::{Cluster, Metrics, Node, NodeMemory, NodeSettings, Peer, Plane, PlaneKind, Refusal, Tokens};
use farindex_testkit::seeds::is_thorough;
use farindex_ucx::{Poll, UcxFabric, UcxPlane, UcxSettings};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Held by the test that runs.
static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// The turn of the test on this thread: released when the thread ends.
    static MY_TURN: MutexGuard<'static, ()> = TURN.lock().unwrap_or_else(PoisonError::into_inner);
}

/// Returns false on a machine without UCX and prints that, or panics if FARINDEX_REQUIRE contains `ucx`. Waits until
/// the test of no other thread runs: memory nodes and clients poll, so tests that run at once on few processors take
/// turns of whole time slices, and verbs miss their deadlines.
pub fn have_ucx() -> bool {
    MY_TURN.with(|_| ());
    match farindex_ucx::available() {
        Ok(()) => true,
        Err(why) => {
            let required = std::env::var("FARINDEX_REQUIRE").is_ok_and(|what| what.contains("ucx"));
            assert!(!required, "FARINDEX_REQUIRE asks for ucx: {why}");
            eprintln!("SKIPPED: {why}");
            false
        }
    }
}

/// What UCX picks by itself for a memory node of this machine, or what UCX_TLS leaves it.
pub fn picked() -> Vec<String> {
    let served = serve(1, 1 << 16, Poll::Busy);
    let endpoint = served.fabric.connect(&served.fabric.new_identity()).unwrap();
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        for _ in 0..4 {
            span.faa(RemotePtr::new(NodeId::new(0), 8), 1).await.unwrap();
        }
    });
    check_transports(&served.fabric);
    served.fabric.transports()
}

/// Runs one test of this program again, with UCX_TLS as given: UCX reads it when it is loaded. What UCX picks by itself has
/// that test without UCX_TLS, so only a thorough run does the same once more.
pub fn again_over(tls: &str, test: &str) {
    if !have_ucx() {
        return;
    }
    let picked = picked();
    if !is_thorough() && !picked.is_empty() && picked.iter().all(|name| name.starts_with(&format!("{tls}/"))) {
        println!("UCX picks {picked:?} by itself");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--exact", test, "--nocapture"]).env("UCX_TLS", tls).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "over {tls}");
}

/// Checks that UCX took what UCX_TLS asked for, if it was set.
pub fn check_transports(fabric: &UcxFabric) {
    let found = fabric.transports();
    println!("transports: {found:?}");
    let wanted: &[&str] = match std::env::var("UCX_TLS").as_deref() {
        Ok("tcp") => &["tcp/"],
        Ok("shm") => &["posix/", "sysv/", "cma/", "xpmem/", "knem/"],
        _ => return,
    };
    assert!(!found.is_empty(), "no transport is known");
    for name in &found {
        assert!(wanted.iter().any(|wanted| name.starts_with(wanted)), "{name} was taken");
    }
}

/// Memory nodes, and a fabric on them.
pub struct Served {
    pub metrics: Vec<Metrics>,
    pub addrs: Vec<String>,
    // Dropped in this order: the fabric goes first.
    pub fabric: Arc<UcxFabric>,
    pub nodes: Vec<Node>,
}

/// Attaches to a connection that does not exist, so that nothing is ever answered.
struct Silent(Arc<UcxPlane>);

impl Plane for Silent {
    fn kind(&self) -> PlaneKind {
        self.0.kind()
    }
    fn attach(&self, peer: &Peer, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut answer = self.0.attach(peer, request)?;
        answer[0] ^= 1;
        Ok(answer)
    }
    fn detach(&self, link: u64) {
        self.0.detach(link);
    }
}

pub fn serve(nodes: usize, len: u64, poll: Poll) -> Served {
    serve_with_silent(nodes, len, poll, None).unwrap()
}

pub fn serve_with_silent(nodes: usize, len: u64, poll: Poll, silent: Option<usize>) -> Result<Served, FabricError> {
    let (mut metrics, mut addrs, mut running) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..nodes {
        let memory = NodeMemory::anonymous(NodeId::new(number as u16), len)?;
        let memory = Arc::new(memory.with_call_handler(farindex_index::call_table().into_handler()));
        let counts = Metrics::new();
        let settings = UcxSettings { poll, loopback: true, report: None };
        let plane = UcxPlane::start(Arc::clone(&memory), settings, &counts)?;
        let plane: Arc<dyn Plane> = if silent == Some(number) { Arc::new(Silent(plane)) } else { plane };
        let listen = NodeSettings::new("127.0.0.1:0".parse().unwrap(), Tokens::open());
        let node = Node::start(memory, plane, listen, counts.clone())?;
        addrs.push(node.addr().to_string());
        running.push(node);
        metrics.push(counts);
    }
    let fabric = Arc::new(connect(&addrs)?);
    Ok(Served { metrics, addrs, fabric, nodes: running })
}

pub fn connect(addrs: &[String]) -> Result<UcxFabric, FabricError> {
    let settings = ControlSettings { deadline: Duration::from_secs(10), ..ControlSettings::default() };
    let cluster = Cluster::connect(addrs, settings).map_err(|error| FabricError::Settings(error.to_string()))?;
    UcxFabric::new(cluster)
}

/// The sum of a counter over all nodes.
pub fn count(metrics: &[Metrics], name: &str) -> u64 {
    let of = |metrics: &Metrics| {
        let text = metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("farindex_ucx_{name}_total ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<u64>().unwrap()
    };
    metrics.iter().map(of).sum()
}

/// A fabric whose memory nodes live as long as it does.
pub struct Whole(pub Served);

impl Fabric for Whole {
    fn name(&self) -> &'static str {
        self.0.fabric.name()
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        self.0.fabric.nodes()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.fabric.capabilities()
    }
    fn transports(&self) -> Vec<String> {
        self.0.fabric.transports()
    }
    fn new_identity(&self) -> Identity {
        self.0.fabric.new_identity()
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        self.0.fabric.connect(identity)
    }
}
