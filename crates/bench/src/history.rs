//! Records the clients' operations and their answers, so that the checker can judge them.
//!
//! [`Recording`] is a [`Bench`] around another one, or a [`Simulated`] around one that runs on a simulated cluster: its
//! workers stamp every call of the index before it begins and after it has answered, whatever phase it belongs to. The
//! driver does not know.
//!
//! Invariants:
//!
//! 1. nothing that another operation may have seen is missing. Memory is bounded by ending the history early: it is the
//!    run up to one moment; what had not been answered by then is pending, what had not been asked is not in it;
//! 2. stamps are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine read alike, or of virtual time: what
//!    ends when something else begins is concurrent with it;
//! 3. an operation that failed is pending, since it may have taken effect, unless its error says that it did not.
//!
//! An operation takes about 250 bytes until it is written, and its key and value; a value of more than 32 bytes is
//! recorded as a hash of 16 bytes, which is equal where the values are.

use crate::driver::{Bench, Simulated, Worker};
use farindex_check::{Call, ClientLog, History, HistoryError, Operation, Outcome, Recorder};
use farindex_fabric::{Endpoint, Executor};
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Values up to this long are recorded as they are.
const WHOLE: usize = 32;

/// The end of a history that has not come to it.
const OPEN: u64 = u64::MAX;

/// What all workers share.
struct Book {
    recorder: Recorder,
    begun: AtomicU64,
    most: u64,
    /// The moment at which it was full: nothing that was asked later is recorded.
    end: AtomicU64,
}

impl Book {
    /// May one more operation begin? `now` is asked only if this one is one too many.
    fn admits(&self, now: impl FnOnce() -> u64) -> bool {
        if self.end.load(Ordering::Acquire) != OPEN {
            return false;
        }
        if self.begun.fetch_add(1, Ordering::Relaxed) < self.most {
            return true;
        }
        // The first to come too late closes it, at a moment before its own invocation. An operation that finds it
        // closed is invoked later than that moment; any other is recorded, and is pending if it ended later than that.
        let _ = self.end.compare_exchange(OPEN, now(), Ordering::AcqRel, Ordering::Acquire);
        false
    }
}

/// A bench whose history is recorded: `&B` for a [`Bench`], `Rc<B>` for a [`Simulated`].
pub struct Recording<B> {
    bench: B,
    book: Arc<Book>,
}

/// What was recorded.
pub struct Recorded {
    /// The history.
    pub history: History,
    /// Did it end before the run?
    pub cut: bool,
}

impl<B> Recording<B> {
    /// Records up to `most` operations.
    pub fn new(bench: B, most: u64) -> Self {
        let book = Book { recorder: Recorder::new(), begun: AtomicU64::new(0), most, end: AtomicU64::new(OPEN) };
        Recording { bench, book: Arc::new(book) }
    }
    /// The history, once the run is over.
    pub fn finish(&self) -> Result<Recorded, HistoryError> {
        let history = self.book.recorder.finish()?;
        let end = self.book.end.load(Ordering::Acquire);
        if end == OPEN {
            return Ok(Recorded { history, cut: false });
        }
        let mut operations = history.into_operations();
        cut(&mut operations, end);
        Ok(Recorded { history: History::new(operations)?, cut: true })
    }
}

/// Keeps what was known at a moment.
fn cut(operations: &mut Vec<Operation>, end: u64) {
    operations.retain(|operation| operation.invoked <= end);
    for operation in operations {
        if operation.response.as_ref().is_some_and(|response| response.at > end) {
            operation.response = None;
        }
    }
}

impl<B: Bench> Bench for Recording<&B> {
    type Worker = RecordingWorker<B::Worker>;
    fn worker(&self, thread: usize, executor: &Executor) -> Result<Self::Worker, String> {
        let inner = self.bench.worker(thread, executor)?;
        Ok(RecordingWorker::new(inner, thread, &self.book, Clock::Monotonic))
    }
}

impl<B: Simulated> Simulated for Recording<Rc<B>> {
    type Worker = RecordingWorker<B::Worker>;
    async fn worker(&self, thread: usize, client: &farindex_sim::Client) -> Result<Self::Worker, String> {
        let inner = self.bench.worker(thread, client).await?;
        Ok(RecordingWorker::new(inner, thread, &self.book, Clock::Virtual))
    }
}

/// Where stamps come from.
#[derive(Debug, Clone, Copy)]
enum Clock {
    Monotonic,
    Virtual,
}

/// A worker whose calls are recorded; it is its own index.
pub struct RecordingWorker<W> {
    inner: W,
    log: RefCell<ClientLog>,
    book: Arc<Book>,
    clock: Clock,
}

fn shortened(value: &[u8]) -> Vec<u8> {
    match value.len() {
        0..=WHOLE => value.to_vec(),
        _ => xxhash_rust::xxh3::xxh3_128(value).to_be_bytes().to_vec(),
    }
}

/// Did the operation certainly change nothing?
fn was_refused(error: &IndexError) -> bool {
    matches!(error, IndexError::KeyTooLong { .. } | IndexError::ValueTooLong { .. } | IndexError::NotOrdered { .. })
}

impl<W: Worker> RecordingWorker<W> {
    fn new(inner: W, thread: usize, book: &Arc<Book>, clock: Clock) -> Self {
        let log = RefCell::new(book.recorder.client(thread as u64));
        RecordingWorker { inner, log, book: Arc::clone(book), clock }
    }

    fn stamp(&self) -> u64 {
        let now = match self.clock {
            Clock::Monotonic => crate::clock::monotonic(),
            Clock::Virtual => self.inner.now(),
        };
        now.as_nanos() as u64
    }

    async fn record<T>(
        &self,
        call: impl FnOnce() -> Call,
        carry_out: impl Future<Output = Result<T, IndexError>>,
        outcome: impl FnOnce(&T) -> Outcome,
    ) -> Result<T, IndexError> {
        if !self.book.admits(|| self.stamp()) {
            return carry_out.await;
        }
        let call = call();
        let invoked = self.stamp();
        let ticket = self.log.borrow_mut().invoke(call, invoked);
        let answer = carry_out.await;
        let responded = self.stamp();
        match &answer {
            Ok(answer) => self.log.borrow_mut().complete(ticket, responded, outcome(answer)),
            Err(error) if was_refused(error) => self.log.borrow_mut().cancel(ticket),
            // It stays pending.
            Err(_) => {}
        }
        answer
    }
}

impl<W: Worker> Worker for RecordingWorker<W> {
    type Index = Self;
    fn index(&self) -> &Self {
        self
    }
    fn endpoint(&self) -> Option<&Endpoint> {
        self.inner.endpoint()
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
    fn clock_is_free(&self) -> bool {
        self.inner.clock_is_free()
    }
    async fn wait(&self, turns: u32) {
        self.inner.wait(turns).await;
    }
    fn between(&self) {
        self.inner.between();
    }
    fn answers(&self) -> bool {
        self.inner.answers()
    }
    async fn far_bytes(&self) -> Option<u64> {
        self.inner.far_bytes().await
    }
    async fn close(&self) -> Result<(), String> {
        self.inner.close().await
    }
}

impl<W: Worker> PointIndex for RecordingWorker<W> {
    fn limits(&self) -> Limits {
        self.inner.index().limits()
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let call = || Call::Get { key: key.to_vec() };
        self.record(call, self.inner.index().get(key), |found| {
            Outcome::Value(found.as_ref().map(|value| shortened(value)))
        })
        .await
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        let call = || Call::Insert { key: key.to_vec(), value: shortened(value) };
        self.record(call, self.inner.index().insert(key, value), |done| match done {
            Insert::Inserted => Outcome::Inserted,
            Insert::Exists => Outcome::Exists,
        })
        .await
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        let call = || Call::Update { key: key.to_vec(), value: shortened(value) };
        self.record(call, self.inner.index().update(key, value), |done| match done {
            Update::Updated => Outcome::Updated,
            Update::Absent => Outcome::Absent,
        })
        .await
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        let call = || Call::Upsert { key: key.to_vec(), value: shortened(value) };
        self.record(call, self.inner.index().upsert(key, value), |done| match done {
            Upsert::Inserted => Outcome::Inserted,
            Upsert::Updated => Outcome::Updated,
            Upsert::Written => Outcome::Written,
        })
        .await
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        let call = || Call::Remove { key: key.to_vec() };
        self.record(call, self.inner.index().remove(key), |done| match done {
            Remove::Removed => Outcome::Removed,
            Remove::Absent => Outcome::Absent,
        })
        .await
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let call = || Call::Replace { key: key.to_vec(), expected: shortened(expected), value: shortened(value) };
        self.record(call, self.inner.index().replace(key, expected, value), |done| match done {
            Replace::Replaced => Outcome::Replaced,
            Replace::Differs => Outcome::Differs,
            Replace::Absent => Outcome::Absent,
        })
        .await
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        let call = || Call::RemoveIf { key: key.to_vec(), expected: shortened(expected) };
        self.record(call, self.inner.index().remove_if(key, expected), |done| match done {
            RemoveIf::Removed => Outcome::Removed,
            RemoveIf::Differs => Outcome::Differs,
            RemoveIf::Absent => Outcome::Absent,
        })
        .await
    }
    fn cache_bytes(&self) -> u64 {
        self.inner.index().cache_bytes()
    }
}

impl<W: Worker> OrderedIndex for RecordingWorker<W> {
    async fn scan(&self, (from, to): KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let call =
            || Call::Scan { from: from.map(<[u8]>::to_vec), to: to.map(<[u8]>::to_vec), limit: Some(limit as u64) };
        self.record(call, self.inner.index().scan((from, to), limit), |entries| {
            Outcome::Pairs(entries.iter().map(|entry| (entry.key.to_vec(), shortened(&entry.value))).collect())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::{LocalMap, LocalSkipList};
    use crate::workload::SizeRange;
    use crate::{Control, Plan, run};
    use farindex_check::{Verdict, check};

    fn recorded(most: u64, plan: &Plan) -> Recorded {
        let map = LocalMap::new();
        let recording = Recording::new(&map, most);
        let outcome = run(&recording, plan, &Control::default()).unwrap();
        assert_eq!(outcome.wrong.total() + outcome.errors.total(), 0);
        recording.finish().unwrap()
    }
    fn plan(workload: &str) -> Plan {
        Plan { keys: 40, ops: Some(3000), clients: 6, threads: 2, ..Plan::new(workload.parse().unwrap()) }
    }

    #[test]
    fn a_run_is_recorded_whole_and_is_linearizable() {
        for workload in ["churn", "ycsb-f"] {
            let Recorded { history, cut } = recorded(u64::MAX, &plan(workload));
            assert!(!cut);
            let rmws = if workload == "ycsb-f" { 1000 } else { 0 };
            // Load, measurement, audit; a read-modify-write is two.
            assert!(history.operations().len() >= 3000 + 40 + rmws, "{}", history.operations().len());
            assert_eq!(check(&history, &farindex_check::Limits::default()).verdict, Verdict::Ok, "{workload}");
        }
    }

    #[test]
    fn scans_are_recorded_and_hold() {
        let list = LocalSkipList::new();
        let recording = Recording::new(&list, u64::MAX);
        let mix = "scan=40,insert=20,remove=20,update=20";
        let plan = Plan { scan_length: SizeRange { min: 1, max: 10 }, ..plan(mix) };
        let outcome = run(&recording, &plan, &Control::default()).unwrap();
        assert_eq!(outcome.wrong.total() + outcome.errors.total(), 0, "{}", outcome.wrong);
        let history = recording.finish().unwrap().history;
        let scans = |operation: &&Operation| matches!(operation.call, Call::Scan { limit: Some(1..), .. });
        let recorded = history.operations().iter().filter(scans).count() as u64;
        assert_eq!(recorded, outcome.measured.count(crate::Op::Scan));
        assert_eq!(check(&history, &farindex_check::Limits::default()).verdict, Verdict::Ok);
    }

    #[test]
    fn a_history_that_was_ended_early_is_still_one() {
        for most in [1, 10, 500, 2000] {
            let Recorded { history, cut } = recorded(most, &plan("churn"));
            assert!(cut && history.operations().len() as u64 <= most);
            assert_eq!(check(&history, &farindex_check::Limits::default()).verdict, Verdict::Ok, "{most}");
        }
    }

    #[test]
    fn what_ends_after_the_cut_is_pending_and_what_begins_after_it_is_gone() {
        let write = |invoked, at| Operation {
            client: 0,
            call: Call::Remove { key: vec![] },
            invoked,
            response: Some(farindex_check::Response { at, outcome: Outcome::Absent }),
            group: None,
        };
        let mut operations = vec![write(1, 5), write(5, 6), write(6, 7)];
        cut(&mut operations, 5);
        let ends: Vec<_> = operations.iter().map(|operation| operation.response.is_some()).collect();
        assert_eq!(ends, [true, false]);
    }

    #[test]
    fn long_values_are_equal_where_they_were() {
        let (a, b) = (vec![7; 100], vec![8; 100]);
        assert_eq!((shortened(&a).len(), shortened(&[1; WHOLE]).len()), (16, WHOLE));
        assert!(shortened(&a) == shortened(&a.clone()) && shortened(&a) != shortened(&b));
    }
}
