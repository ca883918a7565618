//! Two processes on one pool, one of them killed at a random moment, over and over: the other goes on at once, and
//! whatever was acknowledged is there.
//!
//! `FARINDEX_KILLS=300` kills as often; a few times unless set.

#![cfg(target_os = "linux")]

mod closing;
mod frozen;

use farindex::{Index, IndexConfig, Pool, Session, chime, cuckoo, dex, race, shard, sherman};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(2);
const KEYS: u64 = 3_000;
const CHILD: &str = "FARINDEX_KILLS_CHILD";

struct File(PathBuf);

impl File {
    /// The pool in it.
    fn url(&self) -> String {
        format!("shm:{}", self.0.display())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn key(writer: &str, i: u64) -> String {
    format!("{writer}-{}", i % KEYS)
}

/// The number in a value that may be padded.
fn number(value: &[u8]) -> u64 {
    let digits: String = value.iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a value that a writer wrote")
}

fn draw(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

fn file(name: &str) -> File {
    let dir = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    File(dir.join(format!("farindex-{name}-{}", std::process::id())))
}

/// SHARD that grows from nothing.
fn small_shard() -> IndexConfig {
    IndexConfig::Shard(shard::Config { initial_bits: 0, ..shard::Config::default() })
}

/// RACE that is split hundreds of times.
fn small_race() -> IndexConfig {
    IndexConfig::Race(race::Config { initial_depth: 1, groups: 1, ..race::Config::default() })
}

/// A cuckoo table that is displaced and moved from nothing.
fn small_cuckoo() -> IndexConfig {
    IndexConfig::Cuckoo(cuckoo::Config { slots: 64, associativity: 1, threshold: 0.98, ..cuckoo::Config::default() })
}

/// A tree with tiny nodes, which are split and merged all the time.
fn small_sherman() -> IndexConfig {
    IndexConfig::Sherman(sherman::Config { leaf_span: 4, inner_span: 5, ..sherman::Config::default() })
}

/// The same with leaves that are hash tables, in which keys hop.
fn small_chime() -> IndexConfig {
    IndexConfig::Chime(chime::Config { leaf_span: 8, neighbourhood: 3, inner_span: 5, ..chime::Config::default() })
}

/// The same tree, with owners: each process takes single leaves from the other ones.
fn small_dex() -> IndexConfig {
    let moves = dex::Moves::Leaf;
    IndexConfig::Dex(dex::Config { leaf_span: 4, inner_span: 5, leaf_admission: 100, moves, ..dex::Config::default() })
}

/// A pool with an index.
fn pool(url: &str, size: Option<u64>, lease: Duration, config: &IndexConfig) -> Pool {
    let builder = Pool::builder().lease(lease);
    let builder = if let Some(bytes) = size { builder.node_bytes(bytes) } else { builder };
    let pool = builder.create(url).expect("a pool");
    pool.session().expect("a session").create_index("demo", config).expect("an index");
    pool
}

/// Starts this program again, as the process that is killed or frozen. One that is a `tenant` also makes and drops
/// indexes, and leaves when its standard input ends.
fn start(url: &str, round: u64, tenant: bool) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads", "1"])
        .env(CHILD, format!("{url}|{round}|{}", if tenant { "tenant" } else { "worker" }))
        .stdin(if tenant { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child")
}

/// Its output, from the first line on that tells of a write.
fn first_line(child: &mut Child) -> (String, BufReader<std::process::ChildStdout>) {
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = String::new();
    while !first.starts_with(['+', '-']) {
        first.clear();
        assert!(lines.read_line(&mut first).expect("a line") > 0, "the child has ended");
    }
    (first, lines)
}

/// What the child's keys hold by what was acknowledged; nothing if it was a removal.
#[derive(Default)]
struct Ledger {
    known: BTreeMap<String, Option<u64>>,
    acknowledged: u64,
}

impl Ledger {
    /// Reads the output of a child, and compares it with the index. `ended`: the child left of its own accord, so every
    /// line about what it did is there; else what came behind the last one may have happened or not.
    fn settle(&mut self, index: &Index, round: u64, output: &str, ended: bool) {
        let mut pending = None;
        for line in output.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(what), Some(key), Some(value)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(value) = value.parse::<u64>() else { continue };
            if !matches!(what, "+" | "-") || !output.ends_with('\n') && output.ends_with(line) {
                continue;
            }
            self.acknowledged += 1;
            self.known.insert(key.to_owned(), (what == "+").then_some(value));
            pending = Some(value % 1_000_000 + 1);
        }
        // The operation behind the last acknowledged ones may have taken effect, or the line about it may be lost.
        let open: Vec<_> = pending.into_iter().flat_map(|next| (0..2).map(move |more| next + more)).collect();
        for (name, wanted) in &mut self.known {
            let found = index.get(name).expect("no error").map(|value| number(&value));
            let unsure = !ended && open.iter().any(|i| key("child", i * 7 + round) == *name);
            assert!(unsure || found == *wanted, "round {round}: {name} holds {found:?}, acknowledged was {wanted:?}");
            *wanted = found;
        }
    }
}

/// The pool is sound, and nothing is lost, once what crashed clients left was recovered.
fn assert_sound(session: &Session) -> farindex::Repaired {
    let repaired = session.repair().expect("a repair");
    let report = session.check().expect("a check");
    assert!(report.is_sound(), "{:?}", report.problems().collect::<Vec<_>>());
    assert!(report.pool.alone, "{:?}", report.pool.clients);
    assert_eq!(report.pool.lost, 0, "memory was lost for good");
    repaired
}

/// What the child does until it is killed or asked to leave: writes, removes and prints what was acknowledged, one line
/// each. The first argument of a line is what it is about to do: it may have happened or not.
#[test]
#[ignore = "the process that the other tests start, kill and freeze"]
fn child() {
    let Ok(output) = std::env::var(CHILD) else { return };
    let [url, round, role] = output.split('|').collect::<Vec<_>>().try_into().expect("a pool, a number, a role");
    let (round, tenant): (u64, bool) = (round.parse().expect("a number"), role == "tenant");
    let pool = Pool::open(url).expect("the pool");
    let session = pool.session().expect("a session");
    let index = session.open_index("demo").expect("the index");
    let leave = Arc::new(AtomicBool::new(false));
    if tenant {
        let leave = Arc::clone(&leave);
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            leave.store(true, Ordering::SeqCst);
        });
    }
    let mut out = std::io::stdout().lock();
    for i in 0u64.. {
        let (key, value) = (key("child", i * 7 + round), round * 1_000_000 + i);
        if i % 5 == 4 {
            index.remove(&key).expect("a removal");
            writeln!(out, "\n- {key} {value}").expect("the parent listens");
        } else {
            let padding = " ".repeat((i % 300) as usize);
            index.upsert(&key, format!("{value}{padding}")).expect("an upsert");
            writeln!(out, "\n+ {key} {value}").expect("the parent listens");
        }
        if tenant {
            session.create_index("scratch", IndexConfig::default()).expect("an index");
            session.drop_index("scratch").expect("a drop");
        }
        out.flush().expect("the parent listens");
        if leave.load(Ordering::SeqCst) {
            break;
        }
    }
    writeln!(out, "\nmissed_leases {}", pool.missed_leases()).expect("the parent listens");
}

/// One kind after the other, since how long survivors wait is measured. The repairs at the end all wait for a lease to expire:
/// they do so together.
#[test]
fn a_killed_process_harms_nobody_in_any_kind() {
    let kinds = [small_shard(), small_race(), small_cuckoo(), small_sherman(), small_chime(), small_dex()];
    let turn = &Mutex::new(());
    std::thread::scope(|scope| {
        for config in &kinds {
            let kind = config.kind();
            let run = move || {
                let file = file(&format!("kills-{kind}"));
                kill_over_and_over(&file.url(), Some(64 << 20), LEASE, config, turn);
            };
            std::thread::Builder::new().name(kind.to_owned()).spawn_scoped(scope, run).expect("a thread");
        }
    });
}

/// A memory node over UCX in this process; `None` on a machine without UCX.
#[cfg(feature = "ucx")]
fn served() -> Option<(farindex_remote::Node, farindex_remote::Metrics)> {
    use farindex_fabric::NodeId;
    use farindex_remote::{Metrics, Node, NodeMemory, NodeSettings, Tokens};
    use farindex_ucx::{UcxPlane, UcxSettings};

    if let Err(why) = farindex_ucx::available() {
        assert!(!std::env::var("FARINDEX_REQUIRE").is_ok_and(|what| what.contains("ucx")), "{why}");
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let memory = NodeMemory::anonymous(NodeId::new(0), 64 << 20).expect("memory");
    let memory = Arc::new(memory.with_call_handler(farindex_index::call_table().into_handler()));
    let (metrics, settings) = (Metrics::new(), UcxSettings { loopback: true, ..UcxSettings::default() });
    let plane = UcxPlane::start(Arc::clone(&memory), settings, &metrics).expect("UCX");
    let listen = NodeSettings::new("127.0.0.1:0".parse().expect("an address"), Tokens::open());
    Some((Node::start(memory, plane, listen, metrics.clone()).expect("a memory node"), metrics))
}

/// The same with the pool behind a memory node, which keeps serving while clients crash with verbs in flight.
#[cfg(feature = "ucx")]
#[test]
fn a_killed_process_harms_nobody_over_ucx() {
    let Some((node, metrics)) = served() else { return };
    // Only an expired lease shows that a client of another machine has crashed.
    kill_over_and_over(&format!("connect:{}", node.addr()), None, 2 * LEASE, &small_shard(), &Mutex::new(()));
    println!("{}", metrics.text());
}

/// DEX, whose lookups are calls: one that is killed leaves leaves that it owns, and calls in flight. Others know that it has
/// crashed when its lease has expired, and then take its partitions over one after the other.
#[cfg(feature = "ucx")]
#[test]
fn a_killed_process_harms_nobody_in_dex_over_ucx() {
    let Some((node, metrics)) = served() else { return };
    let IndexConfig::Dex(small) = small_dex() else { return };
    let config = dex::Config { offload: dex::Offload::Always, leaf_admission: 10, ..small };
    kill_over_and_over(&format!("connect:{}", node.addr()), None, 3 * LEASE, &config.into(), &Mutex::new(()));
    let calls = metrics.text().lines().find_map(|line| line.strip_prefix("farindex_ucx_calls_total ")?.parse().ok());
    assert!(calls.is_some_and(|calls: u64| calls > KEYS), "{}", metrics.text());
}

/// `turn` is held while processes are killed.
fn kill_over_and_over(url: &str, size: Option<u64>, patience: Duration, config: &IndexConfig, turn: &Mutex<()>) {
    let rounds: u64 =
        std::env::var("FARINDEX_KILLS").map_or(6, |kills| kills.parse().expect("FARINDEX_KILLS: a number"));
    let killing = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pool(url, size, LEASE, config);
    let session = pool.session().expect("a session");
    let index = session.open_index("demo").expect("the index");
    let mut ledger = Ledger::default();
    let (mut state, mut longest) = (0x9E37_79B9_7F4A_7C15u64, Duration::ZERO);
    let mut mine = 0u64;
    for round in 1..=rounds {
        let mut child = start(url, round, false);
        let (first, mut lines) = first_line(&mut child);
        let killed = AtomicBool::new(false);
        let patience = Duration::from_micros(100 + draw(&mut state, 40_000));
        let output = std::thread::scope(|scope| {
            let listener = scope.spawn(|| {
                let mut rest = String::new();
                let _ = lines.read_to_string(&mut rest);
                rest
            });
            let killer = scope.spawn(|| {
                std::thread::sleep(patience);
                child.kill().expect("SIGKILL");
                child.wait().expect("its end");
                killed.store(true, Ordering::SeqCst);
            });
            // The survivor works on keys of its own and on the child's, before and after the kill.
            let mut after = 0;
            while after < 2 * KEYS {
                after += u64::from(killed.load(Ordering::SeqCst));
                let began = Instant::now();
                mine += 1;
                index.upsert(key("mine", mine), format!("{mine}")).expect("the survivor goes on");
                index.get(key("child", mine)).expect("the survivor goes on");
                longest = longest.max(began.elapsed());
            }
            killer.join().expect("a killer");
            listener.join().expect("a listener")
        });
        ledger.settle(&index, round, &(first + &output), false);
        for i in mine.saturating_sub(KEYS) + 1..=mine {
            assert_eq!(index.get(key("mine", i)).expect("no error").map(|value| number(&value)), Some(i));
        }
        if round.is_multiple_of(50) {
            // Memory that crashed clients had allocated would fill the pool in the end; no other client is registered
            // now.
            assert_sound(&session);
        }
    }
    assert!(longest <= patience, "the survivor waited {longest:?}, longer than {patience:?}");
    drop(killing);
    let repaired = assert_sound(&session);
    let Ledger { acknowledged, .. } = ledger;
    println!(
        "{}: {rounds} kills, {acknowledged} acknowledged writes; the survivor waited {longest:?} at most; {repaired:?}",
        config.kind()
    );
}
