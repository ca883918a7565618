//! Guards for locks in far memory: take, hold and release a lock together with its intent.
//!
//! Each guard adds its verbs to a batch of the caller, so neither declaring nor clearing an intent costs a round trip.
//!
//! ```text
//! batch 1   WRITE the intent, CAS the lock word, READs of what the lock protects     IntentCell::try_lock
//!             won   -> HeldLock
//!             lost  -> LostLock: one more batch clears the intent                    LostLock::clear
//! batch 2   WRITEs of the change, atomic that releases the lock, CAS that clears     HeldLock::release_by_cas,
//!           the intent                                                               HeldLock::release_by_faa
//! ```
//!
//! Invariants: the intent precedes the CAS of the lock word in one batch (I1), and the atomic that releases the lock
//! precedes the clearing CAS in one batch (I2); see [`intent`](crate::intent). A guard that is dropped without a
//! release leaves its intent in place, and the cell is not used again until the intent is cleared (I3). The same holds
//! for an attempt whose batch failed.

use crate::{Intent, IntentCell, Lock, PoolError};
use farindex_fabric::{Batch, Done, Span, Ticket};

/// An attempt to take a lock. Its verbs are in a batch; [`outcome`](Self::outcome) reads the result.
#[must_use = "the lock may be held: ask for the outcome once the batch has completed"]
pub struct LockAttempt<'s> {
    cell: IntentCell<'s>,
    lock: Lock,
    free: u64,
    held: u64,
    cas: Ticket,
}

/// A lock that this operation holds, and the intent that says so.
#[must_use = "the lock stays held until it is released"]
pub struct HeldLock<'s> {
    /// `None` for a covered lock that was taken over: the intent of the covering lock covers it, too.
    cell: Option<IntentCell<'s>>,
    lock: Lock,
    word: u64,
}

/// A lock that another client took first. The intent for it is still declared.
#[must_use = "clear the intent, or its cell stays unusable"]
pub struct LostLock<'s> {
    cell: IntentCell<'s>,
    word: u64,
}

impl<'s> IntentCell<'s> {
    /// Declares `intent`, and CASes its lock word from `free` to `held`. Adds a WRITE and a CAS to the batch; READs of
    /// what the lock protects follow them in the same batch.
    pub fn try_lock(self, batch: &mut Batch<'_>, intent: &Intent, free: u64, held: u64) -> LockAttempt<'s> {
        self.declare(batch, intent);
        let cas = batch.cas(intent.lock.at, free, held);
        LockAttempt { cell: self, lock: intent.lock, free, held, cas }
    }
}

impl<'s> LockAttempt<'s> {
    /// Returns whether the lock was taken, from the results of the batch.
    pub fn outcome(self, done: &mut Done) -> Result<HeldLock<'s>, LostLock<'s>> {
        let LockAttempt { cell, lock, free, held, cas } = self;
        match done.old(cas) {
            old if old == free => Ok(HeldLock::new(Some(cell), lock, held)),
            word => Err(LostLock { cell, word }),
        }
    }
}

impl<'s> LostLock<'s> {
    /// The lock word that the CAS found.
    pub fn word(&self) -> u64 {
        self.word
    }
    /// Clears the intent, in a batch of its own, and returns the cell for another attempt.
    pub async fn clear(self, span: &Span) -> Result<IntentCell<'s>, PoolError> {
        let mut batch = span.batch();
        self.cell.clear(&mut batch);
        batch.post().await?;
        self.cell.cleared();
        Ok(self.cell)
    }
}

impl<'s> HeldLock<'s> {
    pub(crate) fn new(cell: Option<IntentCell<'s>>, lock: Lock, word: u64) -> Self {
        HeldLock { cell, lock, word }
    }
    /// The lock.
    pub fn lock(&self) -> Lock {
        self.lock
    }
    /// The lock word while the lock is held: as it was set, or as the takeover read it.
    pub fn word(&self) -> u64 {
        self.word
    }

    /// Releases the lock by a CAS from [`word`](Self::word) to `free`, and clears the intent. The caller posts the
    /// batch, and calls [`cleared`](Self::cleared) when it has completed. The ticket is that of the releasing CAS.
    pub fn release_by_cas(&self, batch: &mut Batch<'_>, free: u64) -> Ticket {
        let released = batch.cas(self.lock.at, self.word, free);
        self.clear(batch);
        released
    }
    /// Like [`release_by_cas`](Self::release_by_cas), by a FAA that adds `add` to the lock word.
    pub fn release_by_faa(&self, batch: &mut Batch<'_>, add: u64) -> Ticket {
        let released = batch.faa(self.lock.at, add);
        self.clear(batch);
        released
    }
    /// Clears the intent alone: for a lock that an atomic earlier in the batch releases.
    pub fn clear(&self, batch: &mut Batch<'_>) {
        if let Some(cell) = &self.cell {
            cell.clear(batch);
        }
    }
    /// The batch that releases the lock has completed: see [`IntentCell::cleared`].
    pub fn cleared(&self) {
        if let Some(cell) = &self.cell {
            cell.cleared();
        }
    }
    /// Leaves the lock held, and lets other clients take it over: see [`IntentCell::abandon_lock`]. Does nothing for a
    /// covered lock.
    pub async fn abandon(&self, span: &Span) -> Result<(), PoolError> {
        match &self.cell {
            Some(cell) => cell.abandon_lock(span).await,
            None => Ok(()),
        }
    }
}
