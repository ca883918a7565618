//! Clients of the data plane that violate the protocol: each loses its connection, and no other client is affected.

use crate::chain::{ANSWER_HEADER, Answer, Greeting, MAX_CHAIN, Status, encode, finish};
use crate::node::{Poll, UcxPlane, UcxSettings};
use crate::ucp::{Context, ContextSettings, EpId, Worker};
use farindex_fabric::buf::BufPool;
use farindex_fabric::{Chain, NodeId, RemotePtr, Verb, VerbKind};
use farindex_remote::client::ControlSettings;
use farindex_remote::wire::Reader;
use farindex_remote::{Cluster, ClusterClient, Metrics, Node, NodeMemory, NodeSettings, Tokens};
use rustix::net::{self, AddressFamily, SocketType};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Served {
    pub(crate) node: Node,
    memory: Arc<NodeMemory>,
    pub(crate) metrics: Metrics,
}

/// Is UCX there? A machine without it is treated as by the other tests of this crate.
pub(crate) fn is_there() -> bool {
    let there = crate::available();
    if let Err(why) = &there {
        assert!(!std::env::var("FARINDEX_REQUIRE").is_ok_and(|what| what.contains("ucx")), "{why}");
        eprintln!("SKIPPED: {why}");
    }
    there.is_ok()
}

/// `None` on a machine without UCX.
pub(crate) fn serve(len: u64) -> Option<Served> {
    if !is_there() {
        return None;
    }
    let memory = Arc::new(NodeMemory::anonymous(NodeId::new(0), len).unwrap());
    let metrics = Metrics::new();
    let settings = UcxSettings { poll: Poll::Adaptive, loopback: true, report: None };
    let plane = UcxPlane::start(Arc::clone(&memory), settings, &metrics).unwrap();
    let listen = NodeSettings::new("127.0.0.1:0".parse().unwrap(), Tokens::open());
    let node = Node::start(Arc::clone(&memory), plane, listen, metrics.clone()).unwrap();
    Some(Served { node, memory, metrics })
}

impl Served {
    fn count(&self, name: &str) -> u64 {
        let text = self.metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("farindex_ucx_{name}_total ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
    fn word(&self, i: usize) -> u64 {
        self.memory.region().words()[i].load(Ordering::SeqCst)
    }
    fn client(&self) -> Client {
        Client::of(self.node.addr().to_string())
    }
}

/// Until the memory node's connection is there.
fn wait_for_greeting(worker: &mut Worker, session: u64) {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < TIME_LIMIT, "no greeting");
        worker.progress();
        if let Some(greeting) = worker.received() {
            return assert_eq!(Greeting::decode(&greeting).map(|greeting| greeting.session), Some(session));
        }
    }
}

/// A client that checks nothing.
struct Client {
    client: Arc<ClusterClient>,
    worker: Worker,
    ep: EpId,
    session: u64,
    generation: u64,
    sequence: u64,
}

pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

impl Client {
    /// Of the memory node at this address.
    fn of(addr: String) -> Self {
        let cluster = Cluster::connect(&[addr], ControlSettings::default()).unwrap();
        let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
        let context = Context::new(ContextSettings { wakeup: false, loopback: true }).unwrap();
        let mut worker = Worker::new(&context).unwrap();
        let answer = client.controls()[0].attach_now(worker.address().unwrap()).unwrap();
        let mut fields = Reader::new(&answer);
        let session = fields.u64().unwrap();
        wait_for_greeting(&mut worker, session);
        let ep = worker.connect(fields.counted().unwrap()).unwrap();
        let generation = client.controls()[0].generation();
        Client { client, worker, ep, session, generation, sequence: 0 }
    }
    /// A request of one verb, over a connection of that number.
    fn request(&mut self, session: u64, kind: VerbKind) -> Vec<u8> {
        self.sequence += 1;
        let chain: Chain = vec![Verb { ptr: RemotePtr::new(NodeId::new(0), 64), fence: false, kind }];
        let mut bytes = Vec::new();
        encode(&chain, NodeId::new(0), session, self.sequence, &mut bytes);
        finish(&mut bytes, 1);
        bytes
    }
    fn faa(&mut self, session: u64) -> Vec<u8> {
        self.request(session, VerbKind::Faa { add: 1, old: 0 })
    }
    fn send(&mut self, bytes: Vec<u8>) {
        self.worker.send(self.ep, bytes).unwrap();
    }
    /// What is answered to this; `None` if the control connection ends instead.
    fn ask(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        self.send(bytes);
        self.receive()
    }
    fn receive(&mut self) -> Option<Vec<u8>> {
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < TIME_LIMIT, "neither an answer nor an end");
            self.worker.progress();
            if let Some(reply) = self.worker.received() {
                return Some(reply);
            }
            if self.is_disconnected() {
                return None;
            }
        }
    }
    fn is_disconnected(&self) -> bool {
        self.client.controls()[0].generation() != self.generation
    }
    fn is_fine(&mut self) -> bool {
        let request = self.faa(self.session);
        let reply = self.ask(request);
        reply.is_some_and(|reply| {
            let answer = Answer::take(&mut Reader::new(&reply));
            answer.is_ok_and(|answer| answer.is_some_and(|answer| answer.status == Status::Done))
        })
    }
    /// Until the memory node has counted so much, with this client at work.
    fn until(&mut self, what: &str, mut reached: impl FnMut() -> bool) {
        let since = Instant::now();
        while !reached() {
            assert!(since.elapsed() < TIME_LIMIT, "timed out: {what}");
            self.worker.progress();
        }
    }
}

#[test]
fn requests_of_no_connection_are_dropped() {
    let Some(served) = serve(1 << 16) else { return };
    let (mut other, mut faulty, mut revoked) = (served.client(), served.client(), served.client());
    assert!(other.is_fine() && faulty.is_fine() && revoked.is_fine());
    let before = served.word(8);
    // A guess, none at all, and less than a number.
    for bytes in [faulty.faa(faulty.session ^ 1), faulty.faa(0), vec![7; 3], Vec::new()] {
        let strays = served.count("strays");
        faulty.send(bytes);
        faulty.until("a stray", || served.count("strays") == strays + 1);
    }
    // The connection of a revoked client.
    let identity = *revoked.client.identity();
    other.client.controls()[0].revoke(identity).wait().unwrap();
    let strays = served.count("strays");
    let late = faulty.faa(revoked.session);
    faulty.send(late);
    faulty.until("a stray", || served.count("strays") == strays + 1);
    assert_eq!(served.word(8), before, "a stray has taken effect");
    assert!(!faulty.is_disconnected() && faulty.is_fine() && other.is_fine());
}

#[test]
fn a_malformed_request_ends_its_connection() {
    let Some(served) = serve(1 << 16) else { return };
    let mut other = served.client();
    assert!(other.is_fine());
    let before = served.word(8);
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() - 4);
        bytes
    };
    let longer = |bytes: Vec<u8>| [bytes, vec![0; 8]].concat();
    let unknown_at = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] = 99;
        bytes
    };
    let unknown = |bytes: Vec<u8>| unknown_at(bytes, 32);
    // A batch that makes sense, and one that does not, in one message.
    let second = |bytes: Vec<u8>| {
        let mut both = [&bytes[..], &bytes[16..]].concat();
        finish(&mut both, 2);
        unknown_at(both, 40 + 32)
    };
    let more = |mut bytes: Vec<u8>| {
        finish(&mut bytes, 2);
        bytes
    };
    for (what, twist) in [
        ("cut off", &cut as &dyn Fn(Vec<u8>) -> Vec<u8>),
        ("bytes left over", &longer),
        ("an unknown verb", &unknown),
        ("an unknown verb behind a batch", &second),
        ("fewer batches than it says", &more),
    ] {
        let mut faulty = served.client();
        let malformed = served.count("malformed");
        let request = faulty.faa(faulty.session);
        assert_eq!(faulty.ask(twist(request)), None, "{what}");
        assert_eq!(served.count("malformed"), malformed + 1, "{what}");
    }
    assert_eq!(served.word(8), before, "a request that makes no sense has taken effect");
    assert!(!other.is_disconnected() && other.is_fine());
}

#[test]
fn a_client_that_leaves_replies_unread_is_disconnected() {
    let Some(served) = serve(MAX_CHAIN as u64) else { return };
    let (mut other, mut faulty) = (served.client(), served.client());
    assert!(other.is_fine() && faulty.is_fine());
    let buffers = Rc::new(BufPool::default());
    let read = faulty.request(faulty.session, VerbKind::Read(buffers.take(16 << 20)));
    // Each asks for 16 MiB in a few bytes; from here on this client only sends.
    for _ in 0..40 {
        faulty.send(read.clone());
    }
    let since = Instant::now();
    let replies = served.count("replies");
    while served.count("replies") == replies && since.elapsed() < TIME_LIMIT {
        faulty.worker.progress();
    }
    while !faulty.is_disconnected() {
        assert!(since.elapsed() < TIME_LIMIT, "it may leave {} replies unread", served.count("replies") - replies);
        assert!(other.is_fine(), "others are served meanwhile");
    }
    assert!(served.count("bytes_read") < 40 * (16 << 20), "it was served to the end");
    assert!(!other.is_disconnected() && other.is_fine());
}

#[test]
fn rendezvous_messages_are_dropped() {
    let Some(served) = serve(1 << 20) else { return };
    let (mut other, mut faulty) = (served.client(), served.client());
    assert!(other.is_fine() && faulty.is_fine());
    let (before, requests) = (served.word(8), served.count("requests"));
    let buffers = Rc::new(BufPool::default());
    let mut value = buffers.take(256 << 10);
    value.words_mut().fill(7);
    let write = faulty.request(faulty.session, VerbKind::Write(value));
    assert!(write.len() > ANSWER_HEADER);
    faulty.worker.send_by_rendezvous(faulty.ep, write).unwrap();
    // What is sent behind it is answered, and it is not.
    assert!(faulty.is_fine() && other.is_fine());
    assert_eq!((served.word(8), served.count("requests")), (before + 2, requests + 2));
}

/// A listener that takes no more connections: who connects to it waits for an answer, as where the network loses all.
fn full_listener() -> (OwnedFd, Vec<OwnedFd>, u16) {
    let socket = || net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let listener = socket();
    net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    net::listen(&listener, 0).unwrap();
    let addr = SocketAddr::try_from(net::getsockname(&listener).unwrap()).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let client = socket();
        rustix::io::ioctl_fionbio(&client, true).unwrap();
        let connected = net::connect(&client, &addr);
        assert!(matches!(connected, Ok(()) | Err(rustix::io::Errno::INPROGRESS)), "{connected:?}");
        waiting.push(client);
    }
    (listener, waiting, addr.port())
}

/// The memory node connects to the address that a client sends. It does not wait for that (docs/bugs/188).
#[test]
fn a_client_that_does_not_take_the_connection_delays_nobody() {
    let Some(served) = serve(1 << 16) else { return };
    let mut other = served.client();
    assert!(other.is_fine());
    let cluster = Cluster::connect(&[served.node.addr().to_string()], ControlSettings::default()).unwrap();
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let context = Context::new(ContextSettings { wakeup: false, loopback: true }).unwrap();
    let worker = Worker::new(&context).unwrap();
    let (_listener, _waiting, port) = full_listener();
    let theirs = listening_ports();
    let mut address = worker.address().unwrap();
    let mut named = 0;
    for at in 0..address.len() - 1 {
        if theirs.contains(&u16::from_be_bytes([address[at], address[at + 1]])) {
            address[at..at + 2].copy_from_slice(&port.to_be_bytes());
            named += 1;
        }
    }
    assert!(named > 0, "the address names no port");
    client.controls()[0].attach_now(address).unwrap();
    assert!(!other.is_disconnected() && other.is_fine());
    // Nor when it leaves.
    drop(client);
    assert!(served.client().is_fine() && !other.is_disconnected() && other.is_fine());
}

/// TCP ports of this machine that take connections.
fn listening_ports() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening = fields.filter(|fields| fields.get(3) == Some(&"0A"));
    listening.filter_map(|fields| u16::from_str_radix(fields[1].split_once(':')?.1, 16).ok()).collect()
}

/// Where a child finds the memory node, how many times it lets UCX work before it is gone, and how many milliseconds it
/// does nothing before that.
const LEAVER: &str = "FARINDEX_LEAVER";

/// A client that is gone in the middle of UCX's connection set-up: this is the child of the next test.
#[test]
fn leaver() {
    let Ok(order) = std::env::var(LEAVER) else { return };
    let fields: Vec<&str> = order.split(' ').collect();
    let [addr, rounds, pause] = fields[..] else { panic!("{order}") };
    let cluster = Cluster::connect(&[addr.to_owned()], ControlSettings::default()).unwrap();
    let client = cluster.client(&cluster.new_identity().unwrap()).unwrap();
    let context = Context::new(ContextSettings { wakeup: false, loopback: true }).unwrap();
    let mut worker = Worker::new(&context).unwrap();
    let answer = client.controls()[0].attach_now(worker.address().unwrap()).unwrap();
    let mut fields = Reader::new(&answer);
    let session = fields.u64().unwrap();
    let address = fields.counted().unwrap();
    for _ in 0..rounds.parse().unwrap() {
        worker.progress();
        if worker.received().is_some_and(|message| Greeting::decode(&message).is_some()) {
            let ep = worker.connect(address).unwrap();
            let mut bytes = Vec::new();
            encode(&Vec::new(), NodeId::new(0), session, 1, &mut bytes);
            finish(&mut bytes, 1);
            worker.send(ep, bytes).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(pause.parse().unwrap()));
    // As a kill: nothing is closed.
    std::process::abort();
}

/// UCX 1.13 aborts a process whose peer leaves during the set-up of their connection, if it was built with assertions,
/// as Debian's is, and if it has to answer a request of that peer before its own connection is there: docs/bugs/145
/// and 192. A memory node is not to be aborted by that.
#[test]
fn clients_that_leave_during_connection_set_up_do_no_harm() {
    let Some(served) = serve(1 << 16) else { return };
    let mut other = served.client();
    assert!(other.is_fine());
    let program = std::env::current_exe().unwrap();
    // The node is busy elsewhere when a client leaves.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Done(&done);
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for (rounds, pause) in (0..8).chain([12, 20, 40, 200]).flat_map(|rounds| [(rounds, 0), (rounds, 30)]) {
            let order = format!("{} {rounds} {pause}", served.node.addr());
            let mut child = Command::new(&program);
            child.args(["--exact", "hostile::leaver"]).env(LEAVER, order);
            let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            assert!(!status.success(), "it leaves in the middle");
            assert!(!other.is_disconnected() && other.is_fine(), "after {rounds} rounds");
        }
    });
}

/// Where a child finds the memory node.
const HOARDER: &str = "FARINDEX_HOARDER";
/// Requests that the child sends, and bytes of each answer.
const HOARD: (u64, usize) = (8000, 4 << 10);

/// A client that asks for much and reads nothing: this is the child of the next test.
#[test]
fn hoarder() {
    let Ok(addr) = std::env::var(HOARDER) else { return };
    let Client { client: _client, mut worker, ep, session, .. } = Client::of(addr);
    let pool = Rc::new(BufPool::default());
    for sequence in 1..=HOARD.0 {
        let read = VerbKind::Read(pool.take(HOARD.1));
        let chain: Chain = vec![Verb { ptr: RemotePtr::new(NodeId::new(0), 0), kind: read, fence: false }];
        let mut bytes = Vec::new();
        encode(&chain, NodeId::new(0), session, sequence, &mut bytes);
        finish(&mut bytes, 1);
        worker.send(ep, bytes).unwrap();
        // The first one is answered. From then on UCX reads nothing, and what is sent leaves at once.
        while sequence == 1 && worker.received().is_none() {
            worker.progress();
        }
        // Each answer is to be a message of its own.
        let since = Instant::now();
        while since.elapsed() < Duration::from_micros(20) {
            std::hint::spin_loop();
        }
    }
    std::thread::sleep(TIME_LIMIT);
}

/// What waits for a client in UCX when the client is killed, messages of UCX's own among it, does not end the memory node.
#[test]
fn a_client_that_is_killed_with_unread_replies_does_no_harm() {
    let Some(served) = serve(1 << 16) else { return };
    let mut other = served.client();
    assert!(other.is_fine());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "hostile::hoarder"]).env(HOARDER, served.node.addr().to_string());
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    while served.count("batches") < HOARD.0 {
        assert!(since.elapsed() < TIME_LIMIT, "it asks for {} only", served.count("batches"));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Until the node has noticed, and longer.
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1500) {
        assert!(!other.is_disconnected() && other.is_fine());
    }
}

/// Sets its flag when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
