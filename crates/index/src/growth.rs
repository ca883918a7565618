//! What growing has cost a worker: how often it has merged or split a segment, and how long that took.
//!
//! Counted for whoever compares kinds of indexes; nothing is decided by it.

use std::cell::Cell;
use std::time::Duration;

/// Steps of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// How many.
    pub count: u64,
    /// How long all of them took, from the lock to its release.
    pub took: Duration,
}

impl std::ops::AddAssign for Steps {
    fn add_assign(&mut self, other: Steps) {
        self.count += other.count;
        self.took += other.took;
    }
}

/// What one worker has done to make a table larger.
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
    /// What was put together without being split.
    pub fn merges(&self) -> Steps {
        self.merges.get()
    }
    /// What was split.
    pub fn splits(&self) -> Steps {
        self.splits.get()
    }
}

fn add(to: &Cell<Steps>, took: Duration) {
    let mut steps = to.get();
    steps += Steps { count: 1, took };
    to.set(steps);
}
