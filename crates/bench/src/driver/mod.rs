//! The driver: runs a plan against any index ([`OrderedIndex`]; only workloads with scans call its scan).
//!
//! Invariants: each thread has one executor and one handle of the index, and its clients are coroutines on them; a
//! phase begins when every thread is ready for it and ends when every client has finished, and meters are read as
//! differences between its two ends; no thread waits for one that has failed; a thread that waits keeps driving its
//! endpoint.
//!
//! | Phase | What happens |
//! |---|---|
//! | load | every key of the key space is inserted once |
//! | warm-up | the workload, not measured |
//! | measured | the workload |
//! | audit | every key is read once, nothing changes |
//!
//! An operation's latency is measured from just before the index is called until it has answered, for one operation in
//! eight, drawn at random: reading the clock twice costs as much as a good part of a get from local memory.
//!
//! The same worker code runs on a thread with an executor of its own ([`run`]) and, in virtual time, on a
//! simulated cluster ([`simulate`]).
//!
//! On a fabric that completes verbs at once an operation never waits, so one client would run to its end before the
//! next begins. Clients therefore yield to the others every few operations; that is also when timers are driven.

pub mod blind;
pub mod charged;
mod client;
pub mod cluster;
mod faults;
mod many;
mod outcome;
mod plan;
pub mod pool_index;
mod shared;
mod simulated;
mod thread;
mod worker;

pub use faults::Faults;
pub use outcome::{FarBytes, Latency, Measured, Outcome, PhaseSummary};
pub use plan::Plan;
pub use simulated::{Simulated, simulate};

use crate::BenchError;
use farindex_fabric::{Endpoint, Executor};
use farindex_index::OrderedIndex;
use shared::Shared;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Something that can be measured.
pub trait Bench: Sync {
    /// What one thread holds.
    type Worker: Worker + 'static;
    /// Sets up thread `thread`, on that thread. Opening an index takes verbs: run them on the executor, and spawn there
    /// what the handle has to do in the background.
    fn worker(&self, thread: usize, executor: &Executor) -> Result<Self::Worker, String>;
}

/// What one thread holds: a handle of the index, used by all its clients at once.
pub trait Worker {
    /// The index. One whose keys have no order answers a scan with
    /// [`NotOrdered`](farindex_index::IndexError::NotOrdered).
    type Index: OrderedIndex;
    /// The handle.
    fn index(&self) -> &Self::Index;
    /// The endpoint it works through: driven while clients wait, and metered. `None` for what is local.
    fn endpoint(&self) -> Option<&Endpoint> {
        None
    }
    /// Time, on the clock by which this worker's operations are measured.
    #[inline]
    fn now(&self) -> Duration {
        crate::clock::local()
    }
    /// Does reading the clock cost nothing? Then every operation is timed, and not one in eight.
    fn clock_is_free(&self) -> bool {
        false
    }
    /// Waits a little for other workers, for the `turns`-th time in a row, while its endpoint is driven.
    fn wait(&self, turns: u32) -> impl Future<Output = ()> {
        async move {
            match turns {
                0..10_000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            farindex_fabric::yield_now().await;
        }
    }
    /// The part of the key space that this worker works on, if the plan divides it.
    fn part(&self) -> usize {
        0
    }
    /// Called after every operation, when the client that calls holds nothing.
    fn between(&self) {}
    /// Do the answers mean anything? If not, they are not judged.
    fn answers(&self) -> bool {
        true
    }
    /// Bytes of far memory in use by the index. Asked of the first thread, outside the measured phase.
    fn far_bytes(&self) -> impl Future<Output = Option<u64>> {
        async { None }
    }
    /// Gives back what the worker holds, after the last phase.
    fn close(&self) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// `load`, `warm-up`, `measured` or `audit`.
    pub phase: &'static str,
    /// Operations begun in this phase.
    pub done: u64,
    /// Of how many, if their number ends the phase.
    pub total: Option<u64>,
    /// Since the run began.
    pub elapsed: Duration,
}

/// How to watch a run and how to end it.
#[derive(Default)]
pub struct Control<'a> {
    /// When this becomes true, the run ends early, and what was measured until then counts as interrupted.
    pub stop: Arc<AtomicBool>,
    /// Called about ten times a second, on the thread that called [`run`].
    pub progress: Option<&'a dyn Fn(Progress)>,
}

/// Signals the caller when a thread is done, however it ends. (The system reports the thread as finished later, and
/// without a signal.)
struct Leaving<'a>(std::thread::Thread, &'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Release);
        self.0.unpark();
    }
}

/// Runs a plan on threads of this process. Wrong answers and failed operations are part of the outcome; it is for the
/// caller to fail on them.
pub fn run<B: Bench>(bench: &B, plan: &Plan, control: &Control<'_>) -> Result<Outcome, BenchError> {
    plan.check()?;
    let began = Instant::now();
    let shared = Arc::new(Shared::new(plan.clone(), Arc::clone(&control.stop)));
    let at_work = AtomicUsize::new(plan.threads);
    let reports = std::thread::scope(|scope| {
        let caller = std::thread::current();
        let spawn = |thread| {
            let (shared, leaving) = (&shared, Leaving(caller.clone(), &at_work));
            let body = move || {
                let _leaving = leaving;
                thread::run(bench, thread, shared)
            };
            let spawned = std::thread::Builder::new().name(format!("worker-{thread}")).spawn_scoped(scope, body);
            spawned.map_err(|error| {
                shared.abort();
                BenchError::Worker { thread, message: format!("no thread could be started: {error}") }
            })
        };
        let threads: Vec<_> = (0..plan.threads).map(spawn).collect();
        while at_work.load(Ordering::Acquire) > 0 {
            if let Some(progress) = control.progress {
                progress(shared.progress(began.elapsed()));
                std::thread::park_timeout(Duration::from_millis(100));
            } else {
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
        let join = |(thread, spawned): (usize, Result<std::thread::ScopedJoinHandle<'_, _>, _>)| {
            let panicked = |payload| BenchError::Panicked { thread, message: thread::panic_message(payload) };
            spawned?.join().map_err(panicked)?
        };
        threads.into_iter().enumerate().map(join).collect::<Vec<_>>()
    });
    let mut done = Vec::with_capacity(reports.len());
    let mut failure = None;
    for report in reports {
        match report {
            Ok(report) => done.push(report),
            // A panic explains the others, and comes first.
            Err(error @ BenchError::Panicked { .. }) => failure = Some(error),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(Outcome::merge(&shared, done)),
    }
}
