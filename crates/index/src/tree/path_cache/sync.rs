//! What the threads of the path cache share memory by. The loom tests give the same names to loom's types.

use std::sync::Arc;

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A mutex that no code panics under.
pub(super) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A swizzled pointer: a copy of a node, or nothing. Readers take no lock.
pub(super) struct Slot<T>(arc_swap::ArcSwapOption<T>);

/// What a reader has found in a slot; it keeps the copy alive.
pub(super) type Loaded<T> = arc_swap::Guard<Option<Arc<T>>>;

impl<T> Slot<T> {
    pub(super) fn empty() -> Self {
        Slot(arc_swap::ArcSwapOption::const_empty())
    }
    pub(super) fn load(&self) -> Loaded<T> {
        self.0.load()
    }
    pub(super) fn store(&self, value: Option<Arc<T>>) {
        self.0.store(value);
    }
    pub(super) fn take(&self) -> Option<Arc<T>> {
        self.0.swap(None)
    }
}

/// A copy that was found elsewhere, as if it had been loaded.
pub(super) fn loaded<T>(value: Arc<T>) -> Loaded<T> {
    arc_swap::Guard::from_inner(Some(value))
}
