//! Epochs: when unlinked memory can be reused.
//!
//! The pool has one epoch `G`, a word on node 0 that only grows. A client publishes `quiesced = q`: every operation of
//! this client that began before `G` reached `q` has ended. `G` advances from `e` to `e + 1` only when every client has
//! published `q >= e`.
//!
//! Invariants, for an operation that was pinned while its client knew epoch `L`:
//!
//! * **E1** `G <= L + 1` while the operation runs, because its client publishes at most `L`.
//! * **E2** So when the operation unlinks an object, `G <= L + 1 = tag`. Every operation, of any client, that began
//!   before the unlinking was pinned at `tag` or less.
//! * **E3** Once a client knows `G >= tag + 2`, every client has published `tag + 1`, so all operations of E2 have
//!   ended: the grace period has elapsed, and the memory can be reused. This is [`grace_period_elapsed`].
//!
//! A pin ends when no verb of its operation may change memory any more: with the operation, or later if it was given up, and
//! never if such a verb has failed (`Session::unpin_later`).
//!
//! A published value is a fact about the past, so a late WRITE of it (N5) can only delay other clients. A client
//! without running operations publishes through its heartbeat thread, so an idle client delays no other. A crashed
//! client does, until its lease has expired and it is revoked.
//!
//! A pin stores the client's epoch and then reads it again; both accesses are sequentially consistent. A tick raises
//! the client's epoch first and then reads the pins. So either the tick sees the pin, or the operation sees the new
//! epoch and pins again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns the tag of the objects that an operation pinned at `epoch` unlinks (E2).
pub const fn tag(epoch: u64) -> u64 {
    epoch + 1
}

/// Returns whether a client that knows `epoch` can reuse memory with this tag (E3).
pub const fn grace_period_elapsed(tag: u64, epoch: u64) -> bool {
    epoch >= tag + 2
}

/// No operation is running.
const IDLE: u64 = u64::MAX;

/// The oldest pin of one session, as the client's heartbeat sees it.
#[derive(Debug)]
pub(crate) struct OldestPin {
    epoch: AtomicU64,
    /// The session is closed. A pin that is left protects detached verbs.
    closed: AtomicBool,
}

impl Default for OldestPin {
    fn default() -> Self {
        OldestPin { epoch: AtomicU64::new(IDLE), closed: AtomicBool::new(false) }
    }
}

impl OldestPin {
    /// The epoch of the oldest pin; `None` while no operation is running.
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
    /// Epochs with running operations, oldest first, and the number of operations in each.
    counts: RefCell<VecDeque<(u64, u32)>>,
}

impl Pins {
    pub(crate) fn new(oldest: Arc<OldestPin>) -> Self {
        Pins { oldest, counts: RefCell::default() }
    }

    /// Pins an operation at the client's epoch; returns the epoch.
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
        #[cfg(feature = "marks")]
        crate::ledger::pinned(self.id(), epoch);
        epoch
    }

    /// Number of operations that are pinned.
    pub(crate) fn in_progress(&self) -> usize {
        self.counts.borrow().iter().map(|(_, count)| *count as usize).sum()
    }

    /// Marks the session as closed.
    pub(crate) fn close(&self) {
        self.oldest.close();
    }

    /// Adds a pin at an epoch that is pinned already.
    pub(crate) fn pin_again(&self, epoch: u64) {
        if let Some(entry) = self.counts.borrow_mut().iter_mut().find(|(pinned, _)| *pinned == epoch) {
            entry.1 += 1;
            #[cfg(feature = "marks")]
            crate::ledger::pinned(self.id(), epoch);
        }
    }

    /// Tells these pins from those of other sessions of this thread.
    #[cfg(feature = "marks")]
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.oldest).addr()
    }

    /// Removes a pin at `epoch`.
    pub(crate) fn unpin(&self, epoch: u64) {
        let mut counts = self.counts.borrow_mut();
        // Usually there is one epoch.
        let entry = match counts.front() {
            Some((oldest, _)) if *oldest == epoch => counts.front_mut(),
            _ => counts.iter_mut().find(|(pinned, _)| *pinned == epoch),
        };
        if let Some(entry) = entry {
            entry.1 -= 1;
            #[cfg(feature = "marks")]
            crate::ledger::unpinned(self.id(), epoch);
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
    fn oldest_pin_is_the_smallest_pinned_epoch() {
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
