//! What a child of fork may not do with what it inherits: anything. It has the memory of its parent's handles, but it is no client of
//! the pool: the parent is, with the same slot. So every function refuses such a handle, and closing one forgets it.
//!
//! Functions compare a counter of forks, which a handler of `pthread_atfork` increments in the child: asking the kernel for the
//! process id would cost a good part of a look-up.

use crate::status::{Failure, Status};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// The process in which a handle was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Birthplace(u64);

impl Birthplace {
    pub(crate) fn here() -> Self {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: the handler is a function of this library, and the C library removes it if this one is unloaded. It runs in
            // the child, after fork, where only async-signal-safe things are allowed: it increments an atomic. Without
            // memory for the handler forks are not noticed, as the header's rule allows.
            let _: i32 = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Birthplace(FORKS.load(Relaxed))
    }
    pub(crate) fn is_forked(self) -> bool {
        self.0 != FORKS.load(Relaxed)
    }
    pub(crate) fn check(self) -> Result<(), Failure> {
        if !self.is_forked() {
            return Ok(());
        }
        let what = "this process was forked from the one that opened this, and is no client of the pool: open the pool again here";
        Err(Failure::new(Status::FARINDEX_ERROR_FORKED, what))
    }
}
