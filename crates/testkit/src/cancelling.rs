//! Operations that a client gives up: their futures are dropped before they have completed, as by `select!` or a limit of
//! time, or are set aside for a while.
//!
//! Invariants: an operation whose future was dropped stays open in the history: it may have taken effect, may still do, or
//! never does. A lookup may be dropped at any time, and leaves nothing, but for lookups of SHARD, which count as writes
//! here. A write that is dropped may leave a lock, which nobody takes over while its client lives, and memory
//! (`docs/async.md`): so others may fail to get the lock, and what is left is recovered when the client has gone. A lookup
//! that is set aside goes on or is dropped later; nobody waits for it for ever. None is set aside where others do wait for
//! it (see `sets_aside`).

use crate::worker::Worker;
use crate::workload::Op;
use farindex_check::{Outcome, Ticket};
use farindex_index::{IndexError, PointIndex, Value};
use farindex_sim::ODDS;
use std::collections::btree_map::Entry;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

/// Operations that each coroutine of a client still carries out after one of them has given a write up. Then the client goes,
/// so that others can recover what it has left.
const AFTER_A_WRITE: u64 = 4;
/// It goes after so many leases in any case. Who meets a lock that was left waits for two, and the coroutines one after the other.
const LEASES_AFTER_A_WRITE: u32 = 4;

/// Polls a future so many times at most, and drops it when it is woken again: most often its last batch has completed by then.
/// `None`: it has not completed.
pub(crate) async fn within<F: Future + ?Sized>(polls: u64, mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Polls a future so many times at most, and drops it at once after the last of them: its last batch is in flight. `None`: it has
/// not completed.
pub async fn until_in_flight<F: Future>(polls: u64, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

type Got = Pin<Box<dyn Future<Output = Result<Option<Value>, IndexError>>>>;

/// A get that was set aside.
pub(crate) struct Aside {
    get: Got,
    key: Vec<u8>,
    ticket: Ticket,
    /// Operations until it goes on or is dropped.
    left: u64,
}

/// What a worker has given up.
#[derive(Default)]
pub(crate) struct Given {
    aside: Vec<Aside>,
    /// Has its client given a write up? Then: how many operations it still carries out.
    left: Option<u64>,
}

impl Worker {
    /// Draws after how many polls an operation is given up, if it is.
    pub(crate) fn patience(&mut self, op: Op) -> u64 {
        let odds = self.shared.cancelling;
        if odds == 0 || self.session.is_none() || !self.rng.chance(odds) {
            return u64::MAX;
        }
        if (op != Op::Get || self.shared.lookups_lock) && !self.gives_a_write_up() {
            return u64::MAX;
        }
        self.shared.cancelled.set(self.shared.cancelled.get() + 1);
        self.shared.commanding.leave_open(self.which, self.client());
        self.rng.below(8)
    }

    /// Notes that its client gives a write up, unless it has done so before.
    pub(crate) fn gives_a_write_up(&self) -> bool {
        match self.shared.gave_up.borrow_mut().entry(self.name / 10) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(self.endpoint.now());
                true
            }
        }
    }

    /// May a get be set aside? Behind a lock table others on its key wait for it. Where lookups need ownership or take locks,
    /// others wait until it has ended for what it reads.
    pub(crate) fn sets_aside(&self) -> bool {
        self.shared.coalescing.is_none() && !self.shared.lookups_own && !self.shared.lookups_lock
    }

    /// Waits for an operation, and drops it after so many polls; `in_flight`: while its batch is. `None`: it was dropped.
    pub(crate) async fn with_patience<T>(polls: u64, in_flight: bool, operation: impl Future<Output = T>) -> Option<T> {
        match (polls, in_flight) {
            (u64::MAX, _) => Some(operation.await),
            (polls, true) => until_in_flight(polls, operation).await,
            (polls, false) => within(polls, pin!(operation)).await,
        }
    }

    /// Gets a key, and sets the get aside after so many polls; `false` if the client has lost its lease.
    pub(crate) async fn get_aside(&mut self, key: &[u8], ticket: Ticket, polls: u64) -> bool {
        let (index, wanted) = (Rc::clone(&self.index), key.to_vec());
        let mut get: Got = Box::pin(async move { index.get(&wanted).await });
        let got = within(polls, get.as_mut()).await;
        let key = key.to_vec();
        match got {
            Some(got) => self.end_get(&key, ticket, got),
            None => {
                let left = self.rng.within(1, 6);
                self.given.aside.push(Aside { get, key, ticket, left });
                true
            }
        }
    }

    fn end_get(&mut self, key: &[u8], ticket: Ticket, got: Result<Option<Value>, IndexError>) -> bool {
        let outcome = got.map(|value| Outcome::Value(value.map(|value| self.shared.bytes_of(&value))));
        self.finish(Op::Get, key, b"", ticket, outcome)
    }

    /// After an operation: some gets that were set aside go on to their ends, or are dropped. `false` if the client has lost its
    /// lease, or has nothing more to do.
    pub(crate) async fn take_up(&mut self) -> bool {
        let mut aside = std::mem::take(&mut self.given.aside);
        let mut goes_on = true;
        for at in (0..aside.len()).rev() {
            aside[at].left -= 1;
            if aside[at].left == 0 {
                let Aside { get, key, ticket, .. } = aside.swap_remove(at);
                if self.rng.chance(ODDS / 2) {
                    let got = get.await;
                    goes_on &= self.end_get(&key, ticket, got);
                }
            }
        }
        self.given.aside = aside;
        if let Some(began) = self.shared.gave_up.borrow().get(&(self.name / 10)) {
            let limit = *began + self.shared.lease * LEASES_AFTER_A_WRITE;
            let left = self.given.left.get_or_insert(AFTER_A_WRITE);
            *left = left.saturating_sub(1);
            goes_on &= *left > 0 && self.endpoint.now() < limit;
        }
        goes_on
    }
}
