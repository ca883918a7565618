//! What a child process may not do with what it inherits.
//!
//! `fork` copies the calling thread only. A child has the memory of its parent's sessions and pools, but it is no client of the
//! pool: the parent is, with the same slot. So in a child no operation runs, and nothing that was inherited is closed or joined:
//! it is forgotten, and ends with the process.
//!
//! Operations compare a counter of forks, which Python's hook for the child increments: asking the kernel for the process id
//! would cost a good part of a lookup. What is dropped compares the process id as well, so that a fork that Python
//! does not know of (from C) closes nothing either.

use crate::threads;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process in which something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Birthplace {
    forks: u64,
    process: u32,
}

impl Birthplace {
    pub(crate) fn here() -> Self {
        Birthplace { forks: FORKS.load(Relaxed), process: std::process::id() }
    }
    /// Is this a child of that process, as far as Python knows?
    pub(crate) fn is_forked(self) -> bool {
        self.forks != FORKS.load(Relaxed)
    }
    /// Is this that process? Asks the kernel.
    pub(crate) fn is_here(self) -> bool {
        !self.is_forked() && self.process == std::process::id()
    }
}

/// Forgets what this thread has inherited. Registered with `os.register_at_fork`.
#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
pub(crate) fn after_fork_in_child() {
    FORKS.fetch_add(1, Relaxed);
    threads::forget_all();
}
