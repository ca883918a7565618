//! Crashes of clients with verbs in flight, of a memory node, and of one of three; and a client that is stopped past
//! its lease.
//!
//! Memory nodes and clients are processes of their own: this program, started again, which then runs [`actor`].
//! `FARINDEX_KILLS=100` kills as many clients; the default is a few.

use crate::nodes::{Served, client_device, device_or_skip};
use farindex::{Error, IndexConfig, Pool, PoolBuilder, shard};
use farindex_fabric::{Executor, Fabric, FabricError, NodeId, OpKind, RemotePtr};
use farindex_remote::client::ControlSettings;
use farindex_remote::{Cluster, NodeMemory};
use farindex_verbs::VerbsFabric;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROLE: &str = "FARINDEX_TEST_ROLE";
const LEASE: Duration = Duration::from_secs(3);

fn config() -> IndexConfig {
    IndexConfig::Shard(shard::Config { initial_bits: 0, ..shard::Config::default() })
}

fn options() -> PoolBuilder {
    Pool::builder().lease(LEASE)
}

fn reach(addrs: &[String]) -> Result<Arc<dyn Fabric>, FabricError> {
    let cluster = Cluster::connect(addrs, ControlSettings::default());
    let cluster = cluster.map_err(|error| FabricError::Settings(error.to_string()))?;
    Ok(Arc::new(VerbsFabric::new(cluster, &client_device())?))
}

/// A process of this program. Killed when it is dropped.
struct Actor {
    process: Child,
    out: BufReader<ChildStdout>,
}

impl Actor {
    fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "connection_lifecycle::actor", "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let out = BufReader::new(process.stdout.take().expect("a pipe"));
        Actor { process, out }
    }
    /// The next line that begins with this mark; what follows it.
    fn line_after(&mut self, mark: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).expect("a line") > 0, "it ended before it said {mark:?}");
            if let Some(rest) = line.trim_end().strip_prefix(mark) {
                return rest.to_owned();
            }
        }
    }
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a process");
        kill_process(pid, signal).expect("it is ours");
    }
    fn kill(&mut self) {
        self.process.kill().expect("SIGKILL");
        self.process.wait().expect("its end");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays a part in another test of this file, if it was started for that.
#[test]
fn actor() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split('|').collect();
    match words.as_slice() {
        ["node", number, listen, file] => serve(number, listen, Path::new(file)),
        ["writer", addr, round] => write_on(addr, round.parse().expect("a number")),
        ["sleeper", addr] => sleep_on(addr),
        _ => panic!("no such part: {role}"),
    }
}

fn serve(number: &str, listen: &str, file: &Path) {
    let node = NodeId::new(number.parse().expect("a number"));
    let memory = NodeMemory::file(node, file, Some(48 << 20)).expect("a file");
    let listen: SocketAddr = listen.parse().expect("an address");
    let served = Served::start(memory, listen).expect("a memory node");
    println!("\nready {}", served.addr());
    std::thread::sleep(Duration::from_secs(3600));
}

fn key(writer: &str, i: u64) -> String {
    format!("{writer}-{}", i % 500)
}

/// Writes, and says after each operation what has been acknowledged.
fn write_on(addr: &str, round: u64) {
    let pool = Pool::attach(reach(&[addr.to_owned()]).expect("a fabric")).expect("the pool");
    let session = pool.session().expect("a session");
    let index = session.open_index("demo").expect("the index");
    let mut out = std::io::stdout().lock();
    for i in 0.. {
        let value = round * 1_000_000 + i;
        index.upsert(key("child", i * 7 + round), value.to_string()).expect("an upsert");
        writeln!(out, "\n+ {} {value}", key("child", i * 7 + round)).expect("the parent listens");
    }
}

/// Works until it is stopped, and prints the error that it gets when it continues.
fn sleep_on(addr: &str) {
    let pool = Pool::attach(reach(&[addr.to_owned()]).expect("a fabric")).expect("the pool");
    let session = pool.session().expect("a session");
    let index = session.open_index("demo").expect("the index");
    for i in 0u64.. {
        match index.upsert(key("sleeper", i), i.to_string()) {
            Ok(_) if i % 10 == 0 => println!("\nacknowledged {i}"),
            Ok(_) => {}
            Err(error) => {
                println!("\nerror {error:?} / {error}");
                return;
            }
        }
    }
}

/// A memory node of its own process, with a file that goes when this is dropped.
struct NodeProcess {
    actor: Actor,
    number: usize,
    addr: String,
    file: PathBuf,
}

impl NodeProcess {
    fn start(number: usize, name: &str) -> Self {
        let file = PathBuf::from(format!("/dev/shm/farindex-lifecycle-{}-{name}-{number}", std::process::id()));
        let mut actor = Actor::start(&format!("node|{number}|127.0.0.1:0|{}", file.display()));
        let addr = actor.line_after("ready ");
        NodeProcess { actor, number, addr, file }
    }
    fn restart(&mut self) {
        self.actor = Actor::start(&format!("node|{}|{}|{}", self.number, self.addr, self.file.display()));
        assert_eq!(self.actor.line_after("ready "), self.addr);
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(format!("{}.node", self.file.display()));
    }
}

fn draw(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

#[test]
fn a_killed_client_affects_no_other() {
    if !device_or_skip() {
        return;
    }
    let rounds: u64 =
        std::env::var("FARINDEX_KILLS").map_or(4, |kills| kills.parse().expect("FARINDEX_KILLS: a number"));
    let node = NodeProcess::start(0, "kills");
    let pool = options().create_on(reach(std::slice::from_ref(&node.addr)).expect("a fabric")).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.create_index("demo", config()).expect("an index");
    let mut known = BTreeMap::<String, u64>::new();
    let (mut state, mut longest, mut mine, mut acknowledged) = (0x9E37_79B9_7F4A_7C15u64, Duration::ZERO, 0u64, 0);
    for round in 1..=rounds {
        let mut child = Actor::start(&format!("writer|{}|{round}", node.addr));
        let mut output = format!("+{}\n", child.line_after("+"));
        let until = Instant::now() + Duration::from_micros(draw(&mut state, 30_000));
        let mut work = |mine: &mut u64| {
            let began = Instant::now();
            *mine += 1;
            index.upsert(key("mine", *mine), mine.to_string()).expect("the survivor goes on");
            index.get(key("child", *mine)).expect("the survivor goes on");
            longest = longest.max(began.elapsed());
        };
        while Instant::now() < until {
            work(&mut mine);
        }
        child.kill();
        (0..50).for_each(|_| work(&mut mine));
        child.out.read_to_string(&mut output).expect("what it said");
        let mut last = round * 1_000_000;
        let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let mut words = line.split_ascii_whitespace();
            if let (Some("+"), Some(key), Some(value)) = (words.next(), words.next(), words.next()) {
                last = value.parse().expect("a number");
                known.insert(key.to_owned(), last);
                acknowledged += 1;
            }
        }
        // The next one or two may have happened without an acknowledgement.
        let open: Vec<String> = (1..=2).map(|more| key("child", (last % 1_000_000 + more) * 7 + round)).collect();
        for (name, wanted) in &mut known {
            let found = index.get(name).expect("no error").map(|value| String::from_utf8_lossy(&value).into_owned());
            let found: u64 = found.and_then(|text| text.parse().ok()).expect("an acknowledged entry is there");
            assert!(open.contains(name) || found == *wanted, "round {round}: {name} is {found}, acknowledged {wanted}");
            *wanted = found;
        }
    }
    // A lock of a crashed client is waited for until its lease expires, and then taken over.
    assert!(longest <= LEASE + Duration::from_secs(2), "the survivor waited {longest:?}");
    let repaired = session.repair().expect("a repair");
    let report = session.check().expect("a check");
    assert!(report.is_sound(), "{:?}", report.problems().collect::<Vec<_>>());
    assert_eq!(report.pool.lost, 0, "memory was lost for good");
    println!(
        "{rounds} kills, {acknowledged} acknowledged writes; the survivor waited {longest:?} at most; {repaired:?}"
    );
}

#[test]
fn a_memory_node_comes_back_from_its_file() {
    if !device_or_skip() {
        return;
    }
    let mut node = NodeProcess::start(0, "restart");
    let pool = options().create_on(reach(std::slice::from_ref(&node.addr)).expect("a fabric")).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.create_index("demo", config()).expect("an index");
    for round in 0..2 {
        for i in 0..100 {
            index.upsert(key("entry", i), (i + 1000 * round).to_string()).expect("an upsert");
        }
        node.actor.kill();
        let began = Instant::now();
        let error = index.upsert("lost", "perhaps").expect_err("the node is down");
        let took = began.elapsed();
        println!("after the kill: {error}, {took:?}");
        assert!(took < Duration::from_secs(20), "the error took {took:?}");
        assert!(error.to_string().contains("memory node 0"), "{error}");
        node.restart();
        let began = Instant::now();
        while let Err(error) = index.get("anything") {
            assert!(began.elapsed() < Duration::from_secs(20), "not reconnected: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("reconnected after {:?}", began.elapsed());
        for i in 0..100 {
            let found = index.get(key("entry", i)).expect("no error").expect("what was acknowledged is there");
            assert_eq!(&*found, (i + 1000 * round).to_string().as_bytes());
        }
    }
    // What failed left its block alone, since its verbs might still land (N7): a repair knows.
    session.repair().expect("a repair");
    let report = session.check().expect("a check");
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(report.pool.lost, 0);
}

#[test]
fn a_client_stopped_past_its_lease_gets_an_error() {
    if !device_or_skip() {
        return;
    }
    let node = NodeProcess::start(0, "sleeper");
    let pool = options().create_on(reach(std::slice::from_ref(&node.addr)).expect("a fabric")).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.create_index("demo", config()).expect("an index");
    let mut sleeper = Actor::start(&format!("sleeper|{}", node.addr));
    sleeper.line_after("acknowledged ");
    sleeper.signal(Signal::STOP);
    // It is evicted once its lease has run out.
    let repaired = session.repair().expect("a repair");
    let read = || -> Vec<_> {
        (0..500).map(|i| index.get(key("sleeper", i)).expect("no error").map(|value| value.to_vec())).collect()
    };
    let before: Vec<Option<Vec<u8>>> = read();
    sleeper.signal(Signal::CONT);
    let output = sleeper.line_after("error ");
    println!("{repaired:?}; the sleeper got: {output}");
    assert!(output.contains("Revoked") || output.contains("LeaseLost"), "{output}");
    let after: Vec<Option<Vec<u8>>> = read();
    assert!(before == after, "a revoked client changed something");
    let report = session.check().expect("a check");
    assert!(report.is_sound(), "{:?}", report.problems().collect::<Vec<_>>());
    assert_eq!(report.pool.lost, 0);
}

#[test]
fn one_of_three_nodes_is_cut_off() {
    if !device_or_skip() {
        return;
    }
    let mut nodes: Vec<NodeProcess> = (0..3).map(|number| NodeProcess::start(number, "three")).collect();
    let addrs: Vec<String> = nodes.iter().map(|node| node.addr.clone()).collect();
    let fabric = reach(&addrs).expect("a fabric");
    let pool = options().create_on(Arc::clone(&fabric)).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.create_index("demo", config()).expect("an index");
    // More than one memory node holds.
    let value = vec![7u8; 64 << 10];
    let entries = (60 << 20) / value.len() as u64;
    for i in 0..entries {
        index.insert(i.to_le_bytes(), &value).expect("an insert");
    }
    let usage = session.usage().expect("usage");
    println!("{usage:?}");
    nodes[2].actor.kill();
    let (mut found, mut failed) = (0, 0);
    for i in (0..entries).step_by(16) {
        match index.get(i.to_le_bytes()) {
            Ok(Some(_)) => found += 1,
            Ok(None) => panic!("entry {i} is gone"),
            Err(Error::Fabric(FabricError::Unreachable { node, .. } | FabricError::Deadline { node, .. })) => {
                assert_eq!(node, NodeId::new(2), "an error names the wrong node");
                failed += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("memory node 2"), "{error}");
                failed += 1;
            }
        }
    }
    println!("with memory node 2 cut off: {found} found, {failed} failed");
    assert!(found > 0 && failed > 0, "{found} found, {failed} failed");
    let endpoint = fabric.connect(&fabric.new_identity()).expect("the others are there");
    Executor::new().block_on(&endpoint, async {
        let span = endpoint.span(OpKind::Other);
        for node in 0..2 {
            span.read(RemotePtr::new(NodeId::new(node), 4096), 8).await.expect("it is there");
        }
    });
    nodes[2].restart();
    let began = Instant::now();
    for i in (0..entries).step_by(16) {
        while let Err(error) = index.get(i.to_le_bytes()) {
            assert!(began.elapsed() < Duration::from_secs(20), "not reconnected: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
