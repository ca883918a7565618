//! A turn: of what several coroutines of a session would do at the same time, one does its part, and then the next.
//!
//! Invariants: one coroutine has the turn at most, and gives it up however its operation ends, also when its future is
//! dropped. Nobody waits for it longer than a limit, in case nobody polls the coroutine that has it.

use farindex_fabric::Endpoint;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The turn, which one coroutine can have.
#[derive(Default)]
pub(super) struct Turn {
    taken: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// The turn is taken, until this is dropped.
pub(super) struct Taken<'t>(&'t Turn);

impl Turn {
    /// Returns whether a coroutine has the turn.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.get()
    }

    /// Takes the turn, if no coroutine has it.
    pub(super) fn try_take(&self) -> Option<Taken<'_>> {
        (!self.taken.replace(true)).then_some(Taken(self))
    }

    /// Waits until no other coroutine has the turn, and takes it. `None`: after this limit another one still has it.
    pub(super) async fn take(&self, endpoint: &Endpoint, limit: Duration) -> Option<Taken<'_>> {
        if self.taken.get() {
            let mut sleep = pin!(endpoint.sleep(limit));
            poll_fn(|cx| {
                if !self.taken.get() {
                    return Poll::Ready(());
                }
                self.waiting.borrow_mut().push(cx.waker().clone());
                sleep.as_mut().poll(cx)
            })
            .await;
        }
        self.try_take()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        // In the order of asking; the first takes the turn, and the others wait again.
        let waiting = self.0.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}
