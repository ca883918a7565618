//! What a child process may not do with what it inherits.
//!
//! `fork` copies the calling thread only. A child has the memory of its parent's sessions and pools, but it is no client of the
//! pool: the parent is, with the same slot. So in a child no operation runs, and nothing that was inherited is closed or joined:
//! it is forgotten, and ends with the process.
//!
//! Operations compare a counter of forks, which a handler of `pthread_atfork` increments in the child: asking the kernel for the
//! process id would cost a good part of a lookup. What is dropped compares the process id as well, which also sees a child that
//! was made without the C library.

#![allow(unsafe_code)]

use crate::threads;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// Counts forks from now on, those of Python and those of C. Called once, when the module is initialised.
pub(crate) fn count_forks() -> PyResult<()> {
    // SAFETY: the handler is a function of this library, which Python never unloads. It runs in the child, after fork, where
    // only async-signal-safe things are allowed: it increments an atomic.
    match unsafe { libc::pthread_atfork(None, None, Some(count_fork)) } {
        0 => Ok(()),
        code => Err(PyOSError::new_err((code, "pthread_atfork"))),
    }
}

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
    /// Is this a child of that process, made by fork?
    pub(crate) fn is_forked(self) -> bool {
        self.forks != FORKS.load(Relaxed)
    }
    /// Is this that process? Asks the kernel.
    pub(crate) fn is_here(self) -> bool {
        !self.is_forked() && self.process == std::process::id()
    }
}

/// Forgets what this thread has inherited, before Python code runs in the child. Registered with `os.register_at_fork`.
#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
pub(crate) fn after_fork_in_child() {
    threads::forget_all();
}
