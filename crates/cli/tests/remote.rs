//! `farindex serve` and its clients, as processes: memory nodes that are killed and come back, clients that freeze,
//! nodes that are cut off, gateways that are killed.
#![cfg(all(feature = "ucx", target_os = "linux"))]

#[path = "it/common/mod.rs"]
mod common;

use farindex::{Index, IndexConfig, Pool, shard};
use farindex_fabric::{FabricError, NodeId};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_farindex");

/// False on a machine without UCX, which is said loudly.
fn have_ucx() -> bool {
    match farindex_ucx::available() {
        Ok(()) => true,
        Err(why) => {
            assert!(!std::env::var("FARINDEX_REQUIRE").is_ok_and(|what| what.contains("ucx")), "{why}");
            eprintln!("SKIPPED: {why}");
            false
        }
    }
}

/// A process that is ended when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill");
        assert!(sent.success());
    }
}

/// A memory node.
struct Serve {
    process: Process,
    addr: String,
}

fn serve(listen: &str, more: &[&str]) -> Serve {
    let mut child = Command::new(PROGRAM)
        .args(["serve", "--fabric", "ucx", "--listen", listen])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .expect("farindex serve");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let addr = line.trim_end().rsplit(' ').next().expect("an address").to_owned();
    assert!(line.contains("serves"), "{line:?}");
    Serve { process: Process(child), addr }
}

fn farindex(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).stdin(Stdio::null()).output().expect("farindex")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A file of the test, removed at the end with the file next to it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = PathBuf::from("/dev/shm");
        let dir = if dir.is_dir() { dir } else { std::env::temp_dir() };
        Scratch(dir.join(format!("farindex-remote-{}-{name}", std::process::id())))
    }
    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for end in ["", ".node"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.path()));
        }
    }
}

fn small(initial_bits: u8) -> IndexConfig {
    IndexConfig::Shard(shard::Config { initial_bits: initial_bits.into(), ..shard::Config::default() })
}

/// Commands take `--connect` in place of PATH, wherever it stands.
#[test]
fn every_command_takes_connect() {
    if !have_ucx() {
        return;
    }
    let tokens = Scratch::new("tokens");
    std::fs::write(&tokens.0, "read-write 0123456789abcdef-rw\nread-only 0123456789abcdef-ro\n").expect("a file");
    let readers = Scratch::new("readers");
    std::fs::write(&readers.0, "read-only 0123456789abcdef-ro\n").expect("a file");
    let node = serve("127.0.0.1:0", &["--size", "64MiB", "--token-file", tokens.path(), "--metrics", "127.0.0.1:0"]);
    let with = |token: &Scratch, args: &[&str]| {
        let mut args = args.to_vec();
        let token = token.path().to_owned();
        args.extend(["--connect", &node.addr, "--token-file", &token]);
        farindex(&args)
    };
    for (code, args) in [
        (3, &["pool", "stat"][..]),
        (0, &["pool", "create", "--lease", "2s"]),
        (3, &["pool", "create"]),
        (0, &["pool", "stat"]),
        (0, &["index", "create", "demo"]),
        (0, &["put", "demo", "key", "value"]),
        (0, &["get", "demo", "key"]),
        (1, &["exists", "demo", "other"]),
        (0, &["index", "stat", "demo"]),
        (0, &["dump", "demo"]),
        (0, &["pool", "check"]),
        (0, &["calibrate", "--dry-run", "--time", "20ms"]),
        (0, &["calibrate", "--time", "20ms", "--threads", "1"]),
    ] {
        let output = with(&tokens, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
    }
    // A token for reading looks, and does not register.
    let looked = with(&readers, &["pool", "stat"]);
    assert_eq!(looked.status.code(), Some(0), "{}", said(&looked));
    let refused = with(&readers, &["get", "demo", "key"]);
    assert!(refused.status.code() == Some(3) && said(&refused).contains("may only be read"), "{}", said(&refused));
    let strangers = farindex(&["pool", "stat", "--connect", &node.addr]);
    assert!(strangers.status.code() == Some(3) && said(&strangers).contains("--token-file"), "{}", said(&strangers));
    // It ends gracefully.
    node.process.signal("-TERM");
    let mut process = node.process;
    assert!(process.0.wait().expect("an end").success());
    let gone = farindex(&["pool", "stat", "--connect", &node.addr, "--token-file", tokens.path()]);
    assert!(gone.status.code() == Some(3) && said(&gone).contains("farindex serve"), "{}", said(&gone));
}

/// Where it can be reached, for programs.
#[test]
fn a_memory_node_describes_itself_as_json() {
    if !have_ucx() {
        return;
    }
    let mut child = Command::new(PROGRAM)
        .args([
            "serve",
            "--fabric",
            "ucx",
            "--listen",
            "127.0.0.1:0",
            "--size",
            "4MiB",
            "--node-id",
            "2",
            "--json",
            "-",
        ])
        .args(["--metrics", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("farindex serve");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let process = Process(child);
    let mut text = String::new();
    for line in lines {
        text += &line.expect("a line");
        if text.ends_with('}') {
            break;
        }
    }
    let output: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((&output["node"], &output["bytes"], &output["fabric"]), (&2.into(), &(4 << 20).into(), &"ucx".into()));
    for name in ["address", "metrics"] {
        let addr: std::net::SocketAddr = output[name].as_str().expect("text").parse().expect("an address");
        assert!(std::net::TcpStream::connect(addr).is_ok(), "{name}");
    }
    // UCX would take SIGHUP for itself. Where the tests run under `nohup`, it is ignored.
    let ignored = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 1 == 1)
    });
    process.signal(if ignored { "-TERM" } else { "-HUP" });
    let mut process = process;
    assert!(process.0.wait().expect("an end").success());
}

/// A file is used through its memory node, or as local memory, but never both ways at once.
#[test]
fn a_file_that_is_served_cannot_be_opened_locally() {
    if !have_ucx() {
        return;
    }
    let file = Scratch::new("served");
    let node = serve("127.0.0.1:0", &["--size", "16MiB", "--file", file.path()]);
    for args in [&["pool", "create"][..], &["index", "create", "demo"]] {
        let output = farindex(&[args, &["--connect", &node.addr]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
    }
    let who = format!("served by process {}: use --connect", node.process.0.id());
    for args in [&["put", file.path(), "demo", "k", "v"][..], &["pool", "check", file.path()]] {
        let refused = farindex(args);
        assert!(refused.status.code() == Some(3) && said(&refused).contains(&who), "{args:?}: {}", said(&refused));
    }
    let looked = farindex(&["pool", "stat", file.path()]);
    assert_eq!(looked.status.code(), Some(0), "{}", said(&looked));
    // The lock ends with the process, however that ends.
    drop(node);
    let pool = Pool::open(&format!("shm:{}", file.path())).expect("no process serves it");
    let me = format!("process {} has it open", std::process::id());
    let refused = farindex(&["serve", "--fabric", "ucx", "--listen", "127.0.0.1:0", "--file", file.path()]);
    assert!(refused.status.code() == Some(3) && said(&refused).contains(&me), "{}", said(&refused));
    drop(pool);
    serve("127.0.0.1:0", &["--file", file.path()]);
}

/// A memory node is killed and restarted from its file: errors within the deadline, reconnection, nothing lost.
#[test]
fn a_killed_memory_node_comes_back() {
    if !have_ucx() {
        return;
    }
    let file = Scratch::new("back");
    let first = serve("127.0.0.1:0", &["--size", "64MiB", "--file", file.path()]);
    let addr = first.addr.clone();
    let pool = Pool::builder().lease(Duration::from_secs(3)).create(&format!("connect:{addr}")).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.create_index("demo", small(0)).expect("an index");
    let mut node = Some(first);
    let mut acknowledged = 0u64;
    for round in 0..5u64 {
        let until = acknowledged + 400 + 37 * round;
        while acknowledged < until {
            index.upsert(acknowledged.to_le_bytes(), acknowledged.to_be_bytes()).expect("an upsert");
            acknowledged += 1;
        }
        drop(node.take());
        let asked = Instant::now();
        let error = index.upsert(u64::MAX.to_le_bytes(), b"lost or not").expect_err("no memory node is there");
        assert!(asked.elapsed() < Duration::from_secs(6), "an error within the deadline");
        assert!(error.to_string().contains("memory node 0"), "{error}");
        node = Some(serve(&addr, &["--file", file.path()]));
        let back = Instant::now();
        while let Err(error) = index.get(0u64.to_le_bytes()) {
            assert!(back.elapsed() < Duration::from_secs(10), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("round {round}: back after {:?}", back.elapsed());
    }
    for i in 0..acknowledged {
        assert_eq!(index.get(i.to_le_bytes()).expect("no error").as_deref(), Some(&i.to_be_bytes()[..]), "key {i}");
    }
    // Blocks that the failed operations had allocated may be linked or not (N7), so only the repair frees them.
    session.repair().expect("a repair");
    let report = session.check().expect("a check");
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(report.pool.lost, 0);
}

fn feed(input: &mut ChildStdin, from: u64, to: u64) -> std::io::Result<()> {
    (from..to).try_for_each(|i| writeln!(input, "key{i}\tvalue{i}"))
}

/// A client that is stopped past its lease gets an error when it continues, and changes nothing.
#[test]
fn a_frozen_client_is_told() {
    if !have_ucx() {
        return;
    }
    let node = serve("127.0.0.1:0", &["--size", "64MiB"]);
    let url = format!("connect:{}", node.addr);
    let pool = Pool::builder().lease(Duration::from_millis(1500)).create(&url).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.create_index("demo", small(0)).expect("an index");
    for round in 0..3 {
        let mut child = Command::new(PROGRAM)
            .args(["load", "--connect", &node.addr, "demo", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a client");
        let mut input = child.stdin.take().expect("a pipe");
        let process = Process(child);
        // It works in batches of lines: enough of them for several.
        feed(&mut input, 0, 20_000).expect("it reads");
        let loaded = Instant::now();
        while index.get("key1000").expect("no error").is_none() {
            assert!(loaded.elapsed() < Duration::from_secs(20), "it loads nothing");
        }
        process.signal("-STOP");
        // A frozen client may have verbs in flight; the repair evicts it.
        session.repair().expect("a repair");
        // By the repair, or before it by a client that needed its lock.
        assert_eq!(session.clients().expect("the clients").len(), 1, "round {round}: the frozen client is evicted");
        for i in 0..500 {
            index.upsert(format!("key{i}"), format!("mine{round}")).expect("the survivor goes on");
        }
        process.signal("-CONT");
        // It may end before it has read all.
        let _ = feed(&mut input, 0, 500);
        drop(input);
        let mut process = process;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut process.0.stderr.take().expect("a pipe"), &mut text).expect("its words");
        assert_eq!(process.0.wait().expect("an end").code(), Some(7), "{text}");
        assert!(text.contains("revoked") || text.contains("lease"), "{text}");
        for i in 0..500 {
            let value = index.get(format!("key{i}")).expect("no error").expect("an entry");
            assert_eq!(&value[..], format!("mine{round}").as_bytes(), "a frozen client's write landed");
        }
    }
    let report = session.check().expect("a check");
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(report.pool.lost, 0);
}

/// Three memory nodes: an index that is larger than any of them, and one of them cut off.
#[test]
fn one_of_three_nodes_is_cut_off() {
    if !have_ucx() {
        return;
    }
    const SIZE: u64 = 24 << 20;
    let nodes: Vec<Serve> = (0..3u64)
        .map(|node| serve("127.0.0.1:0", &["--size", &SIZE.to_string(), "--node-id", &node.to_string()]))
        .collect();
    let addrs: Vec<&str> = nodes.iter().map(|node| node.addr.as_str()).collect();
    let pool = Pool::builder().create(&format!("connect:{}", addrs.join(","))).expect("a pool");
    let session = pool.session().expect("a session");
    let index: Index = session.create_index("demo", small(4)).expect("an index");
    let value = [7u8; 1000];
    let keys = 40_000u64;
    for i in 0..keys {
        index.upsert(i.to_le_bytes(), value).expect("an upsert");
    }
    let usage = session.usage().expect("the account");
    let used: Vec<u64> = usage.iter().map(|node| node.used_bytes).collect();
    println!("bytes in use: {used:?} of {SIZE} each");
    assert!(used.iter().sum::<u64>() > SIZE && used.iter().all(|used| *used > SIZE / 4), "{used:?}");
    // Frozen, not crashed: nothing reports that it is gone, so the deadline must.
    session.raw().endpoint().set_deadline(Duration::from_millis(500));
    nodes[2].process.signal("-STOP");
    let (mut fine, mut cut_off) = (0, 0);
    for i in (0..keys).step_by(997) {
        let asked = Instant::now();
        match index.get(i.to_le_bytes()) {
            Ok(found) => {
                fine += 1;
                assert_eq!(found.as_deref(), Some(&value[..]));
            }
            Err(error) => {
                cut_off += 1;
                assert!(asked.elapsed() < Duration::from_secs(3), "{error}");
                let farindex::Error::Fabric(FabricError::Deadline { node, .. } | FabricError::Unreachable { node, .. }) =
                    &error
                else {
                    panic!("{error}")
                };
                assert_eq!(*node, NodeId::new(2), "{error}");
            }
        }
    }
    println!("{fine} gets went on, {cut_off} needed the node that is cut off");
    assert!(fine > 0 && cut_off > 0);
    nodes[2].process.signal("-CONT");
    session.raw().endpoint().set_deadline(Duration::from_secs(5));
    let back = Instant::now();
    for i in (0..keys).step_by(997) {
        while index.get(i.to_le_bytes()).is_err() {
            assert!(back.elapsed() < Duration::from_secs(15), "it does not come back");
        }
    }
}

/// Two gateways on a memory node over the network: clients of the one that is not killed see no error, and nothing that was
/// acknowledged is lost.
#[test]
fn a_killed_gateway_over_ucx_harms_nobody() {
    if !have_ucx() {
        return;
    }
    let node = serve("127.0.0.1:0", &["--size", "128MiB"]);
    let pool = ["--connect", &node.addr];
    let created = farindex(&[&["pool", "create", "--lease", "2s"], &pool[..]].concat());
    assert!(created.status.success(), "{}", said(&created));
    common::gateways::kill_gateways(&pool);
}
