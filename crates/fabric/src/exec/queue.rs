//! The queue of woken tasks: one part for the executor's own thread while it drives, and one behind a lock for all others.
//!
//! Invariants: a task that is woken is in one of the two parts until it runs; the thread's own part belongs to the executor
//! that drives on the thread, of several inside each other to the innermost one, and whatever is left in it goes to the
//! locked part when that one stops driving.
//!
//! Nearly all tasks are woken by their own thread, when a completion has come. A lock, and a look for a parked thread, for
//! each of them would cost as much as the wake-up itself.

use super::Shared;
use async_task::Runnable;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

/// A task that can run, and its executor.
pub(super) type Woken = Runnable<Arc<Shared>>;
pub(super) type Queue = VecDeque<Woken>;

/// The part of the thread's own.
struct Own {
    of: *const Shared,
    woken: Queue,
}

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own { of: ptr::null(), woken: Queue::new() }) };
}

/// What `with` makes of the thread's own part, if it is that of this executor. When a thread ends, there is none.
#[inline]
fn own_of<T>(shared: *const Shared, with: impl FnOnce(&mut Queue) -> T) -> Option<T> {
    let with = |own: &RefCell<Own>| {
        let mut own = own.try_borrow_mut().ok()?;
        ptr::eq(own.of, shared).then(|| with(&mut own.woken))
    };
    OWN.try_with(with).ok()?
}

/// Queues a task that was woken. It captures nothing, so that a task's reference need not be counted once more to call it.
#[inline]
pub(super) fn schedule(woken: Woken) {
    let mut woken = Some(woken);
    if let Some(shared) = woken.as_ref().map(|woken| Arc::as_ptr(woken.metadata())) {
        own_of(shared, |own| woken.take().map(|woken| own.push_back(woken)));
    }
    if let Some(woken) = woken {
        schedule_elsewhere(woken);
    }
}

#[inline(never)]
fn schedule_elsewhere(woken: Woken) {
    // The task may have run, and be gone, as soon as it is queued.
    let shared = Arc::clone(woken.metadata());
    shared.lock().push_back(woken);
    shared.rouse();
}

/// While it exists, tasks that this thread wakes are queued without a lock.
pub(super) struct Driving<'e> {
    shared: &'e Shared,
    outer: Option<Own>,
}

impl Shared {
    /// From now on this executor drives on this thread.
    pub(super) fn drive(&self) -> Driving<'_> {
        let own = Own { of: self, woken: Queue::new() };
        Driving { shared: self, outer: OWN.try_with(|outer| outer.replace(own)).ok() }
    }

    /// Takes all tasks that were woken. `into` is empty, and kept for its room.
    pub(super) fn take_woken(&self, into: &mut Queue) {
        // Exchanged: that moves no task, and each queue keeps some room.
        std::mem::swap(&mut *self.lock(), into);
        own_of(self, |own| {
            if into.is_empty() {
                std::mem::swap(own, into);
            } else if !own.is_empty() {
                into.append(own);
            }
            // All of them may be woken together again.
            own.reserve(into.len());
        });
    }

    /// Has a task been woken that has not run since?
    pub(super) fn has_woken(&self) -> bool {
        own_of(self, |own| !own.is_empty()).unwrap_or(false) || !self.lock().is_empty()
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let Some(outer) = self.outer.take() else { return };
        let Ok(mut own) = OWN.try_with(|own| own.replace(outer)) else { return };
        if !own.woken.is_empty() {
            self.shared.lock().append(&mut own.woken);
            // Another future may drive from now on.
            self.shared.rouse();
        }
    }
}
