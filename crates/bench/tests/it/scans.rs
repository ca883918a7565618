//! Workloads with scans: YCSB E and mixes on an ordered index, refused by an unordered one.

use farindex_bench::baseline::{LocalMap, LocalSkipList};
use farindex_bench::{Bench, BenchError, Control, Identity, KeyOrder, Op, Outcome, Plan, Row, SizeRange, Worker, run};
use farindex_fabric::Executor;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn plan(workload: &str, key_order: KeyOrder) -> Plan {
    Plan { keys: 2000, ops: Some(10_000), clients: 4, key_order, ..Plan::new(workload.parse().unwrap()) }
}

fn go<B: Bench>(bench: &B, plan: &Plan) -> Outcome {
    run(bench, plan, &Control::default()).unwrap()
}

#[test]
fn workload_e_scans_one_to_a_hundred_entries_and_every_answer_is_right() {
    for key_order in KeyOrder::ALL {
        for threads in [1, 3] {
            let outcome = go(&LocalSkipList::new(), &Plan { threads, ..plan("ycsb-e", key_order) });
            assert_eq!((outcome.wrong.total(), outcome.errors.total()), (0, 0), "{}", outcome.wrong);
            let (scans, inserts) = (outcome.measured.count(Op::Scan), outcome.measured.count(Op::Insert));
            assert_eq!(scans + inserts, 10_000);
            assert!((9300..9700).contains(&scans), "{scans}");
            assert_eq!(outcome.entries, 2000 + inserts);
            let row = Row::new(Identity { index: "skiplist".into(), fabric: "none".into() }, &outcome);
            let mean = row.entries_per_scan().unwrap();
            // 50.5, less what the end of the key space cuts off.
            assert!((45.0..51.5).contains(&mean), "{key_order}: {mean}");
            assert_eq!(row.operations["scan"].entries, Some(outcome.measured.entries_scanned));
            assert_eq!((row.scan_length.as_deref(), row.key_order.as_str()), (Some("1..100"), key_order.name()));
            assert!(row.operations["scan"].latency_ns.samples > 0);
        }
    }
}

#[test]
fn scans_of_keys_that_come_and_go_are_judged() {
    for key_order in KeyOrder::ALL {
        let plan = Plan { threads: 3, keys: 300, ..plan("scan=40,insert=20,remove=20,upsert=20", key_order) };
        let outcome = go(&LocalSkipList::new(), &plan);
        assert_eq!((outcome.wrong.total(), outcome.errors.total()), (0, 0), "{}", outcome.wrong);
        assert!(outcome.measured.entries_scanned > 0);
    }
}

#[test]
fn absent_ordered_keys_lie_between_present_ones_and_are_absent() {
    let outcome = go(&LocalSkipList::new(), &plan("get-absent", KeyOrder::Ordered));
    assert_eq!((outcome.wrong.total(), outcome.errors.total()), (0, 0), "{}", outcome.wrong);
}

#[test]
fn the_same_seed_gives_the_same_scans() {
    let scanned = || go(&LocalSkipList::new(), &plan("scan", KeyOrder::Hashed)).measured.entries_scanned;
    assert_eq!(scanned(), scanned());
}

#[test]
fn an_unordered_index_refuses_scans_before_the_load() {
    let map = LocalMap::new();
    let error = run(&map, &plan("ycsb-e", KeyOrder::Hashed), &Control::default()).unwrap_err();
    let BenchError::Worker { message, .. } = &error else { panic!("{error:?}") };
    assert!(message.contains("dashmap has no order of keys"), "{message}");
    assert!(map.is_empty(), "nothing was loaded");
}

/// How a scan goes wrong, about once in a hundred calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ScanFault {
    LoseEntry,
    SwapEntries,
    BeginLate,
    ExceedLimit,
    ForeignValue,
    Fail,
}

#[derive(Clone)]
struct FaultyScans {
    list: LocalSkipList,
    fault: ScanFault,
    calls: Arc<AtomicU64>,
}

impl Bench for FaultyScans {
    type Worker = FaultyScans;
    fn worker(&self, _: usize, _: &Executor) -> Result<FaultyScans, String> {
        Ok(self.clone())
    }
}

impl Worker for FaultyScans {
    type Index = FaultyScans;
    fn index(&self) -> &FaultyScans {
        self
    }
}

impl PointIndex for FaultyScans {
    fn limits(&self) -> Limits {
        self.list.limits()
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.list.get(key).await
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        self.list.get_many(keys).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        self.list.insert(key, value).await
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        self.list.update(key, value).await
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.list.upsert(key, value).await
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.list.upsert_with_outcome(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        self.list.remove(key).await
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        self.list.replace(key, expected, value).await
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        self.list.remove_if(key, expected).await
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl OrderedIndex for FaultyScans {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let faulty = self.calls.fetch_add(1, Ordering::Relaxed) % 100 == 99;
        let more = usize::from(faulty && self.fault == ScanFault::ExceedLimit);
        let mut entries = self.list.scan(bounds, limit + more).await?;
        let long = entries.len() > 2;
        match self.fault {
            ScanFault::LoseEntry if faulty && long => _ = entries.remove(1),
            ScanFault::SwapEntries if faulty && long => entries.swap(0, 1),
            ScanFault::BeginLate if faulty && long => _ = entries.remove(0),
            ScanFault::ForeignValue if faulty && long => entries[0].value = entries[1].value.clone(),
            ScanFault::Fail if faulty => return Err(IndexError::BadConfig("planted".into())),
            _ => {}
        }
        Ok(entries)
    }
}

#[test]
fn every_planted_fault_of_a_scan_is_detected() {
    for (fault, name) in [
        (ScanFault::LoseEntry, "missing"),
        (ScanFault::SwapEntries, "scan out of order"),
        (ScanFault::BeginLate, "missing"),
        (ScanFault::ExceedLimit, "scan beyond its limit"),
        (ScanFault::ForeignValue, "foreign value"),
        (ScanFault::Fail, "BadConfig"),
    ] {
        for key_order in KeyOrder::ALL {
            let bench = FaultyScans { list: LocalSkipList::new(), fault, calls: Arc::default() };
            let plan = Plan { scan_length: SizeRange { min: 5, max: 20 }, ..plan("scan", key_order) };
            let outcome = go(&bench, &plan);
            let faults = if fault == ScanFault::Fail { &outcome.errors } else { &outcome.wrong };
            let kinds: Vec<_> = faults.iter().map(|(kind, ..)| kind).collect();
            assert_eq!(kinds, [name], "{fault:?} {key_order}");
            assert!((50..=100).contains(&faults.total()), "{fault:?}: {} of 100", faults.total());
        }
    }
}
