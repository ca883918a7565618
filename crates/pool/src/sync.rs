//! What the threads of a client share memory by. The loom tests give the same names to loom's types.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// A mutex that no code panics under.
#[derive(Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
