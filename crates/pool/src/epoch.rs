//! Epochs: when is it safe to use memory again?
//!
//! The pool has one epoch `G`, a word on node 0 that only grows. A client publishes `quiesced = q`: every operation of
//! its that began before `G` reached `q` has ended. `G` moves from `e` to `e + 1` only when every client has published
//! `q >= e`.
//!
//! Invariants, for an operation that was pinned while its client knew epoch `L`:
//!
//! * **E1** `G <= L + 1` while the operation runs, because its client publishes no more than `L`.
//! * **E2** So whatever the operation makes unreachable, it does at `G <= L + 1 = tag`. An operation of anyone that began
//!   before then was pinned at `tag` or less.
//! * **E3** Once a client knows `G >= tag + 2`, every client has published `tag + 1`: all operations of E2 have ended.
//!   The memory may be used again. This is [`grace_period_elapsed`].
//!
//! What a client publishes is a fact about the past, so a late WRITE of it (N5) can only delay others. A client without
//! operations in flight publishes through its keeper, so an idle, reading or finished client holds nobody up; a dead one
//! does until its lease runs out and it is revoked.
//!
//! The pin is a store of the epoch and a second look at the client's epoch, both sequentially consistent; the keeper
//! raises the client's epoch first and then looks at the pins. So either the keeper sees the pin, or the operation sees
//! the new epoch and pins again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The tag of what an operation pinned at `epoch` makes unreachable (E2).
pub const fn tag(epoch: u64) -> u64 {
    epoch + 1
}

/// May memory with this tag be used again by a client that knows `epoch` (E3)?
pub const fn grace_period_elapsed(tag: u64, epoch: u64) -> bool {
    epoch >= tag + 2
}

/// No operation in flight.
const IDLE: u64 = u64::MAX;

/// The oldest pin of one session, as its client's keeper sees it.
#[derive(Debug)]
pub(crate) struct OldestPin {
    epoch: AtomicU64,
    /// The session is gone; what pins still are its verbs that nobody waits for.
    closed: AtomicBool,
}

impl Default for OldestPin {
    fn default() -> Self {
        OldestPin { epoch: AtomicU64::new(IDLE), closed: AtomicBool::new(false) }
    }
}

impl OldestPin {
    /// `None` while no operation is in flight.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::SeqCst)).filter(|epoch| *epoch != IDLE)
    }
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// All pins of one session.
pub(crate) struct Pins {
    oldest: Arc<OldestPin>,
    /// Epochs with operations in flight, oldest first, and how many each.
    counts: RefCell<VecDeque<(u64, u32)>>,
}

impl Pins {
    pub(crate) fn new(oldest: Arc<OldestPin>) -> Self {
        Pins { oldest, counts: RefCell::default() }
    }

    /// Pins at the client's epoch; returns it.
    pub(crate) fn pin(&self, client_epoch: &AtomicU64) -> u64 {
        let mut counts = self.counts.borrow_mut();
        let mut epoch = client_epoch.load(Ordering::SeqCst);
        if counts.is_empty() {
            loop {
                self.oldest.epoch.store(epoch, Ordering::SeqCst);
                let again = client_epoch.load(Ordering::SeqCst);
                if again == epoch {
                    break;
                }
                epoch = again;
            }
        }
        match counts.back_mut() {
            Some((newest, count)) if *newest == epoch => *count += 1,
            _ => counts.push_back((epoch, 1)),
        }
        epoch
    }

    /// The session is gone.
    pub(crate) fn close(&self) {
        self.oldest.close();
    }

    /// One operation more at the epoch of one that is pinned.
    pub(crate) fn again(&self, epoch: u64) {
        if let Some(entry) = self.counts.borrow_mut().iter_mut().find(|(pinned, _)| *pinned == epoch) {
            entry.1 += 1;
        }
    }

    /// Ends an operation that was pinned at `epoch`.
    pub(crate) fn unpin(&self, epoch: u64) {
        let mut counts = self.counts.borrow_mut();
        if let Some(entry) = counts.iter_mut().find(|(pinned, _)| *pinned == epoch) {
            entry.1 -= 1;
        }
        while counts.front().is_some_and(|(_, count)| *count == 0) {
            counts.pop_front();
        }
        let oldest = counts.front().map_or(IDLE, |(epoch, _)| *epoch);
        if self.oldest.epoch.load(Ordering::Relaxed) != oldest {
            self.oldest.epoch.store(oldest, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pin_counts() {
        let oldest = Arc::new(OldestPin::default());
        let pins = Pins::new(Arc::clone(&oldest));
        let epoch = AtomicU64::new(5);
        assert_eq!(pins.pin(&epoch), 5);
        epoch.store(6, Ordering::SeqCst);
        assert_eq!(pins.pin(&epoch), 6);
        assert_eq!(oldest.get(), Some(5));
        pins.unpin(5);
        assert_eq!(oldest.get(), Some(6));
        pins.unpin(6);
        assert_eq!(oldest.get(), None);
    }
}
