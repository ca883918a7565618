//! The driver against correct indexes and indexes with planted faults.

use farindex_bench::baseline::{LocalMap, LocalSkipList, Null, Raw, RawSettings, Shapes, efficiency};
use farindex_bench::{Bench, BenchError, Control, Distribution, Identity, Op, Outcome, Plan, Row, Worker, run};
use farindex_fabric::{Endpoint, Executor, Fabric, FabricError, MemoryFabric, OpKind, RemotePtr, memory::Delivery};
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn plan(workload: &str) -> Plan {
    Plan { keys: 2000, ops: Some(20_000), clients: 4, ..Plan::new(workload.parse().unwrap()) }
}

fn go<B: Bench>(bench: &B, plan: &Plan) -> Outcome {
    run(bench, plan, &Control::default()).unwrap()
}

/// How an index goes wrong, about once in so many calls.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    No,
    /// A get misses a key that is there.
    Miss,
    /// A get answers with the value of another key.
    Foreign,
    /// A get of a key that is not there finds something.
    Phantom,
    /// An insert is acknowledged and not done.
    LoseInsert,
    /// A removal is acknowledged and not done.
    LoseRemove,
    /// A removal is done and not acknowledged.
    DenyRemove,
    /// An insert overwrites a key that is there, and says it was not.
    InsertTwice,
    /// The operation fails.
    Fail,
    /// The index panics.
    Panic,
}

const EVERY: u64 = 10_000;

#[derive(Clone)]
struct FaultyIndex {
    map: LocalSkipList,
    fault: Fault,
    calls: Arc<AtomicU64>,
    /// Keys that were asked for by `get_many`.
    together: Arc<AtomicU64>,
}

impl FaultyIndex {
    fn new(fault: Fault) -> Self {
        FaultyIndex { map: LocalSkipList::new(), fault, calls: Arc::default(), together: Arc::default() }
    }
    /// Does this call have the fault? Counted over the calls that could have it.
    fn is_due(&self, fault: Fault) -> bool {
        self.fault == fault && (self.calls.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(EVERY)
    }
}

impl Bench for FaultyIndex {
    type Worker = FaultyIndex;
    fn worker(&self, _: usize, _: &Executor) -> Result<FaultyIndex, String> {
        Ok(self.clone())
    }
}

impl Worker for FaultyIndex {
    type Index = FaultyIndex;
    fn index(&self) -> &FaultyIndex {
        self
    }
}

impl PointIndex for FaultyIndex {
    fn limits(&self) -> Limits {
        self.map.limits()
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        if self.is_due(Fault::Fail) {
            return Err(FabricError::Revoked.into());
        }
        assert!(!self.is_due(Fault::Panic), "it went down");
        let value = self.map.get(key).await?;
        Ok(match value {
            Some(_) if self.is_due(Fault::Miss) => None,
            Some(value) if self.is_due(Fault::Foreign) => {
                let bytes: Vec<u8> = value.iter().map(|byte| byte ^ 1).collect();
                Some(Value::from(&*bytes))
            }
            None if self.is_due(Fault::Phantom) => Some(Value::from(&[0; 8][..])),
            value => value,
        })
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        self.together.fetch_add(keys.len() as u64, Ordering::Relaxed);
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        if self.is_due(Fault::LoseInsert) {
            return Ok(Insert::Inserted);
        }
        if self.fault == Fault::InsertTwice && self.map.get(key).await?.is_some() && self.is_due(Fault::InsertTwice) {
            self.map.upsert(key, value).await?;
            return Ok(Insert::Inserted);
        }
        self.map.insert(key, value).await
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        self.map.update(key, value).await
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.map.upsert(key, value).await
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        if self.map.get(key).await?.is_some() {
            if self.is_due(Fault::LoseRemove) {
                return Ok(Remove::Removed);
            }
            if self.is_due(Fault::DenyRemove) {
                self.map.remove(key).await?;
                return Ok(Remove::Absent);
            }
        }
        self.map.remove(key).await
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        self.map.replace(key, expected, value).await
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        self.map.remove_if(key, expected).await
    }
    fn cache_bytes(&self) -> u64 {
        7
    }
}

impl OrderedIndex for FaultyIndex {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        self.map.scan(bounds, limit).await
    }
}

#[test]
fn correct_indexes_pass_every_workload() {
    for (name, _) in farindex_bench::Workload::NAMES {
        for (threads, clients) in [(1, 1), (2, 7)] {
            let plan = Plan { threads, clients, warmup: 500, ..plan(name) };
            let outcome = go(&FaultyIndex::new(Fault::No), &plan);
            assert_eq!(outcome.wrong.total(), 0, "{name}: {}", outcome.wrong);
            assert_eq!(outcome.errors.total(), 0, "{name}: {}", outcome.errors);
            assert_eq!(outcome.measured.ops(), 20_000, "{name}");
            assert_eq!(outcome.cache_bytes, 7);
            assert!(!outcome.interrupted);
        }
    }
}

#[test]
fn planted_faults_are_detected() {
    for (fault, workload, kind) in [
        (Fault::Miss, "get", "missing"),
        (Fault::Miss, "churn", "missing"),
        (Fault::Foreign, "ycsb-c", "foreign value"),
        (Fault::Foreign, "ycsb-f", "foreign value"),
        (Fault::Phantom, "get-absent", "phantom"),
        (Fault::LoseInsert, "ycsb-load", "missing"),
        (Fault::LoseInsert, "insert", "missing"),
        (Fault::LoseInsert, "get=50,insert=50", "missing"),
        (Fault::LoseInsert, "churn", "missing"),
        (Fault::LoseRemove, "churn", "phantom"),
        (Fault::LoseRemove, "remove", "phantom"),
        (Fault::DenyRemove, "churn", "missing"),
        (Fault::InsertTwice, "churn", "missing"),
    ] {
        for (threads, clients) in [(1, 1), (2, 6)] {
            let ops = Some(if workload == "remove" { 30_000 } else { 100_000 });
            let plan = Plan { keys: 20_000, ops, threads, clients, ..plan(workload) };
            let outcome = go(&FaultyIndex::new(fault), &plan);
            let kinds: Vec<_> = outcome.wrong.iter().map(|(kind, ..)| kind).collect();
            assert!(kinds.contains(&kind), "{workload}: {kinds:?} lacks {kind}");
            assert!(outcome.wrong.total() < 100, "{workload}: a few lies, not {}", outcome.wrong.total());
        }
    }
}

#[test]
fn keys_of_one_call_are_counted_and_judged_one_by_one() {
    for (fault, kind) in [(Fault::No, None), (Fault::Miss, Some("missing")), (Fault::Foreign, Some("foreign value"))] {
        for (threads, clients, many) in [(1, 1, 64), (2, 6, 7)] {
            let plan = Plan { ops: Some(100_001), warmup: 13, threads, clients, many, ..plan("get") };
            let index = FaultyIndex::new(fault);
            let outcome = go(&index, &plan);
            assert_eq!((outcome.measured.ops(), outcome.errors.total()), (100_001, 0));
            assert_eq!(index.together.load(Ordering::Relaxed), 100_014, "all of warm-up and measurement");
            assert_eq!(outcome.wrong.iter().map(|(kind, ..)| kind).next(), kind);
            assert!(outcome.wrong.total() < 20, "a few lies, not {}", outcome.wrong.total());
        }
    }
    // A call that fails has failed for each of its keys.
    let plan = Plan { ops: Some(20_000), many: 8, ..plan("get") };
    let outcome = go(&FaultyIndex::new(Fault::Fail), &plan);
    assert!(outcome.errors.total() >= 8, "{}", outcome.errors);
}

#[test]
fn a_fault_in_the_load_is_detected_even_if_no_client_reads_the_key() {
    let plan = Plan { keys: 20_000, ops: Some(1), ..plan("get-absent") };
    let outcome = go(&FaultyIndex::new(Fault::LoseInsert), &plan);
    assert_eq!(outcome.wrong.total(), 2, "{}", outcome.wrong);
    assert!(outcome.wrong.to_string().contains("(audit)"));
    let outcome = go(&FaultyIndex::new(Fault::LoseInsert), &Plan { audit: false, ..plan });
    assert_eq!(outcome.wrong.total(), 0, "without the audit it goes unseen");
}

#[test]
fn operations_are_counted_exactly_and_phases_are_apart() {
    for (keys, ops, warmup, clients, threads) in [(100, 1, 0, 1, 1), (777, 1001, 13, 5, 2), (64, 64, 64, 64, 3)] {
        let plan = Plan { keys, ops: Some(ops), warmup, clients, threads, ..plan("ycsb-a") };
        let outcome = go(&LocalMap::new(), &plan);
        let phases: Vec<_> = outcome.phases.iter().map(|phase| (phase.name, phase.ops)).collect();
        let mut want = vec![("load", keys), ("warm-up", warmup), ("measured", ops), ("audit", keys)];
        want.retain(|(_, ops)| *ops > 0);
        assert_eq!(phases, want);
        assert_eq!(Op::ALL.map(|op| outcome.measured.count(op)).iter().sum::<u64>(), ops);
        assert_eq!(outcome.entries, keys);
    }
}

#[test]
fn the_operations_of_a_run_do_not_depend_on_threads() {
    let counts = |threads| {
        let outcome = go(&LocalMap::new(), &Plan { threads, ..plan("churn") });
        Op::ALL.map(|op| outcome.measured.count(op))
    };
    assert_eq!(counts(1), counts(4));
}

fn raw_shapes() -> Shapes {
    Shapes::parse(&[
        (Op::Get, "read 512; read 64 @block"),
        (Op::Insert, "write 64 @block + read 512; cas"),
        (Op::Update, "write 64 @block + read 512; read 64 @block; cas"),
    ])
    .unwrap()
}

#[test]
fn meters_count_the_measured_phase_alone() {
    for delivery in [Delivery::Immediate, Delivery::Deferred] {
        let fabric = MemoryFabric::new(2, 4 << 20).unwrap().with_delivery(delivery);
        let settings = RawSettings { shapes: raw_shapes(), index_bytes: 2 << 20, block_bytes: 1 << 20 };
        let raw = Raw::new(&fabric, settings).unwrap();
        let plan = Plan { warmup: 3000, threads: 2, clients: 6, ..plan("ycsb-f") };
        let outcome = go(&raw, &plan);
        let (gets, rmws) = (outcome.measured.count(Op::Get), outcome.measured.count(Op::Rmw));
        let meter = outcome.measured.meter.as_ref().unwrap();
        assert_eq!(meter.of(OpKind::Get).ops, gets + rmws);
        assert_eq!(meter.of(OpKind::Get).reads, 2 * (gets + rmws));
        assert_eq!(meter.of(OpKind::Update).cas, rmws);
        assert_eq!(meter.of(OpKind::Insert).ops, 0, "the load is not measured");
        assert_eq!(meter.of(OpKind::Other).ops, 0);
        assert_eq!(meter.total().abandoned, 0);
        let row = Row::new(Identity { index: "raw".into(), fabric: "memory".into() }, &outcome);
        let get = row.kinds["get"];
        assert_eq!((get.round_trips, get.block_round_trips, get.bytes_read), (2.0, 1.0, 576.0));
        let update = row.kinds["update"];
        assert_eq!((update.round_trips, update.writes, update.bytes_written), (3.0, 1.0, 64.0));
        assert_eq!(update.block_round_trips, 1.0);
        assert_eq!(efficiency(&outcome, &outcome), Some(1.0));
    }
}

#[test]
fn a_raw_reference_that_does_not_fit_says_so() {
    let fabric = MemoryFabric::new(1, 1 << 20).unwrap();
    let settings = RawSettings { shapes: raw_shapes(), index_bytes: 1 << 20, block_bytes: 0 };
    let error = Raw::new(&fabric, settings).err().unwrap();
    assert!(error.contains("the smallest has 1048576"), "{error}");
    let settings = RawSettings { shapes: raw_shapes(), index_bytes: 1 << 16, block_bytes: 1 << 16 };
    let outcome = go(&Raw::new(&fabric, settings).unwrap(), &plan("upsert"));
    assert!(outcome.errors.to_string().contains("no shape of upsert"), "{}", outcome.errors);
}

#[test]
fn failed_operations_are_counted_and_too_many_end_the_run() {
    let outcome = go(&FaultyIndex::new(Fault::Fail), &plan("get"));
    assert_eq!((outcome.errors.total(), outcome.wrong.total()), (2, 0));
    let (kind, count, message) = outcome.errors.iter().next().unwrap();
    assert_eq!((kind, count), ("Fabric.Revoked", 2));
    assert!(message.contains("revoked by another one"), "{message}");
    assert_eq!(outcome.measured.ops(), 20_000, "a failed operation is an operation");

    let outcome = go(&FaultyIndex::new(Fault::Fail), &Plan { errors_max: 1, threads: 2, ..plan("get") });
    assert!(outcome.interrupted && outcome.gave_up);
    assert!(outcome.measured.ops() < 20_000);
}

#[test]
fn a_panic_and_a_worker_that_fails_end_the_run_with_their_message() {
    for threads in [1, 2] {
        let error =
            run(&FaultyIndex::new(Fault::Panic), &Plan { threads, ..plan("get") }, &Control::default()).unwrap_err();
        assert!(matches!(&error, BenchError::Panicked { message, .. } if message == "it went down"), "{error}");
    }
    struct Broken;
    impl Bench for Broken {
        type Worker = LocalMap;
        fn worker(&self, thread: usize, _: &Executor) -> Result<LocalMap, String> {
            if thread == 1 { Err("no client slot".into()) } else { Ok(LocalMap::new()) }
        }
    }
    let error = run(&Broken, &Plan { threads: 3, ..plan("get") }, &Control::default()).unwrap_err();
    assert_eq!(error.to_string(), "worker 1: no client slot");
}

#[test]
fn a_run_ends_by_time_or_when_it_is_stopped() {
    let endless = Plan { ops: None, duration: Some(Duration::from_millis(100)), threads: 2, ..plan("ycsb-d") };
    let outcome = go(&LocalMap::new(), &endless);
    assert!(!outcome.interrupted && outcome.measured.ops() > 0);
    assert!(outcome.measured.elapsed < Duration::from_secs(5));
    assert_eq!(outcome.wrong.total(), 0, "{}", outcome.wrong);

    let seen = Cell::new(0u64);
    let control_stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let progress = |progress: farindex_bench::Progress| {
        if progress.phase == "measured" && progress.done > 0 {
            seen.set(progress.done);
            control_stop.store(true, Ordering::Relaxed);
        }
    };
    let control = Control { stop: Arc::clone(&control_stop), progress: Some(&progress) };
    let plan = Plan { duration: Some(Duration::from_secs(60)), ..endless };
    let outcome = run(&LocalMap::new(), &plan, &control).unwrap();
    assert!(outcome.interrupted && !outcome.gave_up && seen.get() > 0 && outcome.measured.ops() > 0);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_run_may_start_from_what_is_there() {
    let map = LocalMap::new();
    go(&map, &plan("ycsb-load"));
    let outcome =
        go(&map, &Plan { load: false, ops: Some(5000), distribution: Some(Distribution::Zipfian), ..plan("remove") });
    assert_eq!((outcome.wrong.total(), outcome.measured.ops()), (0, 5000), "{}", outcome.wrong);
    // Somebody else at work: presence is not judged.
    let shared = Plan { load: false, alone: false, ..plan("get") };
    assert_eq!(go(&map, &shared).wrong.total(), 0);
    assert!(go(&map, &Plan { alone: true, ..shared }).wrong.total() > 0);
}

/// An index of one word of far memory, for the endpoint's side of the driver.
struct Counter(Endpoint);

impl Worker for Counter {
    type Index = Counter;
    fn index(&self) -> &Counter {
        self
    }
    fn endpoint(&self) -> Option<&Endpoint> {
        Some(&self.0)
    }
    fn answers(&self) -> bool {
        false
    }
    async fn far_bytes(&self) -> Option<u64> {
        let span = self.0.span(OpKind::Maintenance);
        span.read(RemotePtr::new(farindex_fabric::NodeId::new(0), 64), 8).await.ok()?.words().first().copied()
    }
    async fn close(&self) -> Result<(), String> {
        Err("cannot close".into())
    }
}

impl PointIndex for Counter {
    fn limits(&self) -> Limits {
        Limits { key: 8, value: 8 }
    }
    async fn get(&self, _: &[u8]) -> Result<Option<Value>, IndexError> {
        self.0.sleep(Duration::from_micros(1)).await;
        Ok(None)
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, _: &[u8], _: &[u8]) -> Result<Insert, IndexError> {
        self.0.span(OpKind::Insert).faa(RemotePtr::new(farindex_fabric::NodeId::new(0), 64), 1).await?;
        Ok(Insert::Inserted)
    }
    async fn update(&self, _: &[u8], _: &[u8]) -> Result<Update, IndexError> {
        Ok(Update::Updated)
    }
    async fn upsert(&self, _: &[u8], _: &[u8]) -> Result<Upsert, IndexError> {
        Ok(Upsert::Updated)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, _: &[u8]) -> Result<Remove, IndexError> {
        Ok(Remove::Removed)
    }
    async fn replace(&self, _: &[u8], _: &[u8], _: &[u8]) -> Result<Replace, IndexError> {
        Ok(Replace::Replaced)
    }
    async fn remove_if(&self, _: &[u8], _: &[u8]) -> Result<RemoveIf, IndexError> {
        Ok(RemoveIf::Removed)
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl OrderedIndex for Counter {
    async fn scan(&self, _: KeyBounds<'_>, _: usize) -> Result<Vec<Entry>, IndexError> {
        Err(IndexError::NotOrdered { kind: "counter" })
    }
}

struct Counters(MemoryFabric);

impl Bench for Counters {
    type Worker = Counter;
    fn worker(&self, _: usize, _: &Executor) -> Result<Counter, String> {
        self.0.connect(&self.0.new_identity()).map(Counter).map_err(|error| error.to_string())
    }
}

#[test]
fn far_memory_is_asked_for_around_the_measured_phase_and_timers_are_driven() {
    let fabric = MemoryFabric::new(1, 4096).unwrap();
    let error =
        run(&Counters(fabric.clone()), &Plan { ops: Some(100), ..plan("get") }, &Control::default()).unwrap_err();
    assert_eq!(error.to_string(), "worker 0: cannot close");
    let endpoint = fabric.connect(&fabric.new_identity()).unwrap();
    let word = Executor::new().block_on(&endpoint, Counter(endpoint.clone()).far_bytes());
    assert_eq!(word, Some(2000), "every key was loaded once");
}

/// CPU time of this process so far, in nanoseconds: other load on the machine does not change it.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks * 1e7
}

/// Prints what the driver costs: `cargo test --release -p farindex-bench --test it driver -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn overhead_of_the_driver() {
    const OPS: u64 = 20_000_000;
    for name in ["get", "get-absent", "ycsb-a", "ycsb-c", "ycsb-d", "update", "insert", "churn"] {
        let plan = Plan {
            keys: 1_000_000,
            ops: Some(OPS),
            clients: 8,
            load: false,
            audit: false,
            ..Plan::new(name.parse().unwrap())
        };
        let before = cpu_ns();
        let outcome = go(&Null, &plan);
        let cpu = (cpu_ns() - before) / OPS as f64;
        let wall = outcome.measured.elapsed.as_nanos() as f64 / OPS as f64;
        println!("{name:10} {cpu:6.1} ns of CPU time, {wall:6.1} ns");
    }
}
