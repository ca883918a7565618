//! One worker: takes its clients through the phases.
//!
//! Invariants: it is one coroutine, and what it waits for it awaits, so the same code runs on a thread with an executor
//! of its own and on a simulated cluster, where all workers are coroutines of one executor and time is the simulator's.

use super::client::{self, Tally};
use super::faults::error_kind;
use super::shared::{Phase, Shared};
use super::{Faults, Worker};
use crate::oracle::WrongAnswer;
use crate::workload::Op;
use farindex_fabric::Meter;
use farindex_index::{IndexError, OrderedIndex, PointIndex};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Up to an hour, in nanoseconds, to three digits. Of 32 bits, so that less of it competes for the cache.
pub(crate) type Latencies = Histogram<u32>;
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// A coroutine that the caller's executor runs.
pub(crate) type Coroutine = Pin<Box<dyn Future<Output = ()>>>;

/// What the clients of one worker share.
pub(crate) struct Context<W> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: W,
    latencies: RefCell<[Option<Latencies>; Op::COUNT]>,
    wrong: RefCell<Faults>,
    errors: RefCell<Faults>,
    deadline: Cell<Option<Duration>>,
}

impl<W: Worker> Context<W> {
    pub(crate) fn new(shared: &Arc<Shared>, worker: W) -> Self {
        Context {
            shared: Arc::clone(shared),
            worker,
            latencies: RefCell::default(),
            wrong: RefCell::default(),
            errors: RefCell::default(),
            deadline: Cell::new(None),
        }
    }
    #[inline]
    pub(crate) fn timed(&self, op: Op, started: Duration, ok: bool) {
        let now = self.worker.now();
        if ok {
            let mut latencies = self.latencies.borrow_mut();
            let place = &mut latencies[op as usize];
            // The bounds are constants that make a histogram; nothing is recorded if they ever do not.
            if place.is_none() {
                *place = Latencies::new_with_bounds(1, LATENCY_MAX_NS, 3).ok();
            }
            if let Some(latencies) = place {
                latencies.saturating_record(now.saturating_sub(started).as_nanos() as u64);
            }
        }
        if self.deadline.get().is_some_and(|deadline| now >= deadline) {
            self.shared.expire();
        }
    }
    #[cold]
    pub(crate) fn wrong(&self, phase: Phase, op: Op, number: u64, wrong: WrongAnswer) {
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

/// One phase as one worker saw it.
pub(crate) struct PhaseReport {
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) tally: Tally,
    pub(crate) meter: Option<Meter>,
}

/// What one worker has measured.
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

/// Adds up the tallies of the clients of one phase.
#[derive(Default)]
struct Gathering {
    left: Cell<usize>,
    sum: RefCell<Tally>,
    waiting: RefCell<Option<Waker>>,
}

impl Gathering {
    fn arrive(&self, tally: Tally) {
        self.sum.borrow_mut().add(tally);
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waiting.borrow_mut().take()
        {
            waker.wake();
        }
    }
    async fn all(&self) -> Tally {
        poll_fn(|cx| {
            if self.left.get() == 0 {
                return Poll::Ready(*self.sum.borrow());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Waits until every worker has come to barrier `number` (1 for the first). `false` if the run is over instead.
async fn wait_for_all<W: Worker>(context: &Context<W>, number: usize) -> bool {
    let shared = &*context.shared;
    shared.arrive();
    let mut turns = 0u32;
    loop {
        if shared.interrupted() {
            return false;
        }
        if shared.all_at(number) {
            return true;
        }
        context.worker.wait(turns).await;
        turns = turns.saturating_add(1);
    }
}

/// Runs the worker through all phases. `spawn` starts a client's coroutine.
pub(crate) async fn run<W: Worker + 'static>(
    context: Rc<Context<W>>,
    thread: usize,
    spawn: impl Fn(Coroutine),
) -> Result<Report, String> {
    let mut report = Report::default();
    if context.shared.plan.scans() {
        // Asks for nothing: an index that cannot scan reports so before anything is loaded.
        let index = context.worker.index();
        index.scan((Bound::Unbounded, Bound::Unbounded), 0).await.map_err(|error| error.to_string())?;
    }
    phases(&context, thread, spawn, &mut report).await;
    context.worker.close().await?;
    report.latencies = context.latencies.take();
    report.wrong = context.wrong.take();
    report.errors = context.errors.take();
    Ok(report)
}

async fn phases<W: Worker + 'static>(
    context: &Rc<Context<W>>,
    thread: usize,
    spawn: impl Fn(Coroutine),
    report: &mut Report,
) {
    let shared = &*context.shared;
    let plan = &shared.plan;
    let first = thread == 0;
    let clients = plan.clients / plan.threads + usize::from(thread < plan.clients % plan.threads);
    let meter = || context.worker.endpoint().map(|endpoint| endpoint.meter());
    let mut barriers = 0;
    for phase in Phase::ALL {
        if first && phase == Phase::Measured {
            report.far_before = context.worker.far_bytes().await;
        }
        barriers += 1;
        if !wait_for_all(context, barriers).await {
            return;
        }
        if first {
            shared.enter(phase);
        }
        let before = meter();
        let began = context.worker.now();
        if phase == Phase::Measured {
            context.deadline.set(plan.duration.and_then(|duration| began.checked_add(duration)));
        }
        let gathering = Rc::new(Gathering::default());
        gathering.left.set(clients);
        for _ in 0..clients {
            let (context, gathering) = (Rc::clone(context), Rc::clone(&gathering));
            spawn(Box::pin(async move { gathering.arrive(client::run(context, phase).await) }));
        }
        let tally = gathering.all().await;
        let ended = context.worker.now();
        let meter = meter().zip(before).map(|(after, before)| after - before);
        report.phases[phase as usize] = Some(PhaseReport { began, ended, tally, meter });
        if phase == Phase::Measured {
            context.deadline.set(None);
            report.cache_bytes = context.worker.index().cache_bytes();
        }
        barriers += 1;
        if !wait_for_all(context, barriers).await {
            return;
        }
        if first && phase == Phase::Measured {
            report.far_after = context.worker.far_bytes().await;
        }
    }
}
