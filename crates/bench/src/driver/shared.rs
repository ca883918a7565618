//! What the threads of one run share.

use super::{Plan, Progress};
use crate::oracle::{Oracle, SortedKeys};
use crate::workload::{Chooser, Keys, Values};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Operations that a client takes on at a time, at most.
const STRETCH_MAX: u64 = 512;

/// The parts of a run, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Phase {
    Load,
    Warmup,
    Measured,
    Audit,
}

impl Phase {
    pub(crate) const ALL: [Phase; 4] = [Phase::Load, Phase::Warmup, Phase::Measured, Phase::Audit];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Warmup => "warm-up",
            Phase::Measured => "measured",
            Phase::Audit => "audit",
        }
    }
}

/// One number that clients of all threads add to. On a cache line of its own: everything else here is only read.
#[repr(align(128))]
#[derive(Default)]
struct Claimed(AtomicU64);

pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) oracle: Oracle,
    pub(crate) chooser: Chooser,
    pub(crate) keys: Keys,
    /// For scans, where there are any.
    pub(crate) sorted: Option<SortedKeys>,
    pub(crate) values: Values,
    stop: Arc<AtomicBool>,
    aborted: AtomicBool,
    /// The measured phase has lasted as long as it may.
    expired: AtomicBool,
    phase: AtomicUsize,
    arrived: AtomicUsize,
    failures: AtomicU64,
    claimed: [Claimed; Phase::ALL.len()],
    /// For each part of the keys: how far its load has come.
    loads: Box<[Claimed]>,
}

impl Shared {
    pub(crate) fn new(plan: Plan, stop: Arc<AtomicBool>) -> Self {
        Shared {
            oracle: plan.oracle(),
            chooser: Chooser::new(plan.distribution(), plan.span(), plan.theta),
            keys: plan.key_space(),
            sorted: plan.scans().then(|| SortedKeys::new(plan.key_space(), plan.span())),
            values: Values::new(plan.value_size),
            loads: (0..plan.parts).map(|_| Claimed::default()).collect(),
            plan,
            stop,
            aborted: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            phase: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            claimed: Default::default(),
        }
    }

    /// Ends the run: a thread has failed, or there is no point in going on.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }
    pub(crate) fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.aborted.load(Ordering::Acquire)
    }
    pub(crate) fn expire(&self) {
        self.expired.store(true, Ordering::Relaxed);
    }
    /// One more failed operation.
    pub(crate) fn count_failure(&self) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= self.plan.errors_max {
            self.abort();
        }
    }
    pub(crate) fn too_many_failures(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= self.plan.errors_max
    }
    /// Should clients stop?
    #[inline]
    pub(crate) fn over(&self, phase: Phase) -> bool {
        self.interrupted() || (phase == Phase::Measured && self.expired.load(Ordering::Relaxed))
    }

    /// Operations of a phase; `None` if only time ends it. The audit's is known once the measured phase has ended.
    pub(crate) fn total(&self, phase: Phase) -> Option<u64> {
        match phase {
            Phase::Load if self.plan.load => Some(self.plan.loaded()),
            Phase::Load => Some(0),
            Phase::Warmup => Some(self.plan.warmup),
            Phase::Measured => self.plan.ops(),
            Phase::Audit if self.plan.audit => Some(self.oracle.known()),
            Phase::Audit => Some(0),
        }
    }
    /// Operations before this phase that drew from the workload.
    pub(crate) fn base(&self, phase: Phase) -> u64 {
        if phase == Phase::Measured { self.plan.warmup } else { 0 }
    }
    /// The next operations of this phase that no client has taken. Stretches shrink with the phase, so that clients end
    /// about together.
    pub(crate) fn claim(&self, phase: Phase, part: usize) -> Option<Range<u64>> {
        let total = self.total(phase).unwrap_or(u64::MAX);
        let stretch = (total / (self.plan.clients as u64 * 8)).clamp(1, STRETCH_MAX);
        // The workers of each part go through all keys, and load those of their part.
        let load = self.loads.get(part).filter(|_| phase == Phase::Load && part > 0);
        let claimed = &load.unwrap_or(&self.claimed[phase as usize]).0;
        // Looking first keeps the number from running away once the phase is over.
        if claimed.load(Ordering::Relaxed) >= total {
            return None;
        }
        let from = claimed.fetch_add(stretch, Ordering::Relaxed);
        (from < total).then(|| from..from.saturating_add(stretch).min(total))
    }

    /// Does this key belong to that part?
    #[inline]
    pub(crate) fn in_part(&self, number: u64, part: usize) -> bool {
        let parts = self.plan.parts;
        parts <= 1 || self.keys.part(number, parts, self.plan.loaded()) == part
    }
    /// One more worker has come to its next barrier.
    pub(crate) fn arrive(&self) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
    }
    /// Has every worker come to barrier `number` (1 for the first)?
    pub(crate) fn all_at(&self, number: usize) -> bool {
        self.arrived.load(Ordering::Acquire) >= number * self.plan.threads
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as usize, Ordering::Relaxed);
    }
    pub(crate) fn is_measuring(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == Phase::Measured as usize
    }
    pub(crate) fn progress(&self, elapsed: Duration) -> Progress {
        let phase = Phase::ALL[self.phase.load(Ordering::Relaxed).min(Phase::ALL.len() - 1)];
        let total = self.total(phase);
        let done = self.claimed[phase as usize].0.load(Ordering::Relaxed).min(total.unwrap_or(u64::MAX));
        Progress { phase: phase.name(), done, total, elapsed }
    }
}
