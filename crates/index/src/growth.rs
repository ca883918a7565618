//! Cost of growth for a worker: how often it has merged or split a segment, and how long that took.
//!
//! The figures are for comparisons of index kinds; no decision depends on them.

use std::cell::Cell;
use std::time::Duration;

/// Count and duration of steps of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Number of steps.
    pub count: u64,
    /// Total time, each from the request for the lock to its release.
    pub took: Duration,
}

impl std::ops::AddAssign for Steps {
    fn add_assign(&mut self, other: Steps) {
        self.count += other.count;
        self.took += other.took;
    }
}

/// Merges and splits of one worker.
#[derive(Debug, Default)]
pub struct Growth {
    merges: Cell<Steps>,
    splits: Cell<Steps>,
}

impl Growth {
    pub(crate) fn merged(&self, took: Duration) {
        add(&self.merges, took);
    }
    pub(crate) fn split(&self, took: Duration) {
        add(&self.splits, took);
    }
    /// Merges without a split.
    pub fn merges(&self) -> Steps {
        self.merges.get()
    }
    /// Splits.
    pub fn splits(&self) -> Steps {
        self.splits.get()
    }
}

fn add(to: &Cell<Steps>, took: Duration) {
    let mut steps = to.get();
    steps += Steps { count: 1, took };
    to.set(steps);
}
