//! One worker thread: takes its clients through the phases.

use super::client::{self, Tally};
use super::faults::error_kind;
use super::shared::{Phase, Shared};
use super::{Bench, Faults, Worker};
use crate::BenchError;
use crate::truth::WrongAnswer;
use crate::workload::Op;
use farindex_fabric::{Driver, Executor, Meter};
use farindex_index::{HashIndex, IndexError};
use hdrhistogram::Histogram;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Up to an hour, in nanoseconds, to three digits. Of 32 bits, so that less of it competes for the cache.
pub(crate) type Latencies = Histogram<u32>;
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// What the clients of one thread share.
pub(crate) struct Context<W> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: W,
    latencies: RefCell<[Option<Latencies>; Op::COUNT]>,
    wrong: RefCell<Faults>,
    errors: RefCell<Faults>,
    deadline: Cell<Option<Instant>>,
}

impl<W> Context<W> {
    #[inline]
    pub(crate) fn timed(&self, op: Op, started: Instant, ok: bool) {
        let now = Instant::now();
        if ok {
            let mut latencies = self.latencies.borrow_mut();
            let place = &mut latencies[op as usize];
            // The bounds are constants that make a histogram; nothing is recorded if they ever do not.
            if place.is_none() {
                *place = Latencies::new_with_bounds(1, LATENCY_MAX_NS, 3).ok();
            }
            if let Some(latencies) = place {
                latencies.saturating_record(now.saturating_duration_since(started).as_nanos() as u64);
            }
        }
        if self.deadline.get().is_some_and(|deadline| now >= deadline) {
            self.shared.expire();
        }
    }
    #[cold]
    pub(crate) fn wrong(&self, phase: Phase, op: Op, number: u64, wrong: WrongAnswer)
    where
        W: Worker,
    {
        if self.worker.answers() {
            let message = || format!("{} of key number {number} ({}): {wrong}", op.name(), phase.name());
            self.wrong.borrow_mut().add(wrong.name(), message);
        }
    }
    #[cold]
    pub(crate) fn failed(&self, phase: Phase, op: Op, number: u64, error: &IndexError) {
        let message = || format!("{} of key number {number} ({}): {error}", op.name(), phase.name());
        self.errors.borrow_mut().add(&error_kind(error), message);
        self.shared.count_failure();
    }
}

/// One phase as one thread saw it.
pub(crate) struct PhaseReport {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) tally: Tally,
    pub(crate) meter: Option<Meter>,
}

/// What one thread brings home.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) phases: [Option<PhaseReport>; Phase::ALL.len()],
    pub(crate) latencies: [Option<Latencies>; Op::COUNT],
    pub(crate) wrong: Faults,
    pub(crate) errors: Faults,
    pub(crate) cache_bytes: u64,
    pub(crate) far_before: Option<u64>,
    pub(crate) far_after: Option<u64>,
}

/// Ends the run for the others when its thread unwinds.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

/// Drives nothing: for what is local.
struct Idle;

impl Driver for Idle {
    fn progress(&self) -> bool {
        false
    }
}

pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

pub(crate) fn run<B: Bench>(bench: &B, thread: usize, shared: &Arc<Shared>) -> Result<Report, BenchError> {
    let _alarm = Alarm(shared);
    let executor = Executor::new();
    let failure = |message| {
        shared.abort();
        BenchError::Worker { thread, message }
    };
    let worker = bench.worker(thread, &executor).map_err(failure)?;
    let context = Rc::new(Context {
        shared: Arc::clone(shared),
        worker,
        latencies: RefCell::default(),
        wrong: RefCell::default(),
        errors: RefCell::default(),
        deadline: Cell::new(None),
    });
    let mut report = Report::default();
    phases(&context, thread, &executor, &mut report);
    executor.block_on(driver(&context), context.worker.close()).map_err(failure)?;
    report.latencies = context.latencies.take();
    report.wrong = context.wrong.take();
    report.errors = context.errors.take();
    Ok(report)
}

fn driver<W: Worker>(context: &Context<W>) -> &dyn Driver {
    match context.worker.endpoint() {
        Some(endpoint) => endpoint,
        None => &Idle,
    }
}

fn phases<W: Worker + 'static>(context: &Rc<Context<W>>, thread: usize, executor: &Executor, report: &mut Report) {
    let shared = &*context.shared;
    let plan = &shared.plan;
    let first = thread == 0;
    let clients = plan.clients / plan.threads + usize::from(thread < plan.clients % plan.threads);
    let driver = driver(context);
    let meter = || context.worker.endpoint().map(|endpoint| endpoint.meter());
    let far_bytes = || executor.block_on(driver, context.worker.far_bytes());
    let mut meetings = 0;
    let mut meet = || {
        meetings += 1;
        shared.meet(meetings, || {
            executor.run_ready();
            driver.progress();
        })
    };
    for phase in Phase::ALL {
        if first && phase == Phase::Measured {
            report.far_before = far_bytes();
        }
        if !meet() {
            return;
        }
        if first {
            shared.enter(phase);
        }
        let before = meter();
        let began = Instant::now();
        if phase == Phase::Measured {
            context.deadline.set(plan.duration.and_then(|duration| began.checked_add(duration)));
        }
        let spawn = |_| executor.spawn(client::run(Rc::clone(context), phase));
        let tasks: Vec<_> = (0..clients).map(spawn).collect();
        let tally = executor.block_on(driver, async {
            let mut sum = Tally::default();
            for task in tasks {
                let tally = task.await;
                sum.counts.iter_mut().zip(tally.counts).for_each(|(sum, count)| *sum += count);
            }
            sum
        });
        let ended = Instant::now();
        let meter = meter().zip(before).map(|(after, before)| after - before);
        report.phases[phase as usize] = Some(PhaseReport { began, ended, tally, meter });
        if phase == Phase::Measured {
            context.deadline.set(None);
            report.cache_bytes = context.worker.index().cache_bytes();
        }
        if !meet() {
            return;
        }
        if first && phase == Phase::Measured {
            report.far_after = far_bytes();
        }
    }
}
