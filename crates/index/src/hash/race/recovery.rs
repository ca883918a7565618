//! Recovery of a segment whose lock a crashed client holds, and the end of splits.
//!
//! A client that has waited too long for a segment claims its lock ([`crate::recovery`]), and then finishes or undoes
//! the split. The directory determines which: if it names the child, the child is complete, and other clients may have
//! changed entries in it. If not, no client has read the child, and no slot of the segment has been emptied. The
//! recovering client may crash after any step as well.

use super::lookup::Op;
use super::segment::{SegmentRef, State, lock_of, slots};
use super::slot::{self, Entry};
use super::split::{Held, PART, final_writes, intents};
use super::table::Table;
use crate::IndexError;
use crate::extendible::Entry as Word;
use crate::marks::mark;
use crate::recovery::{HeldLock, claim_and_recover};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{IntentCell, Pin};

/// Recovers segments of a table, under a pin.
pub(super) struct Recovery<'a> {
    pub(super) index: u64,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

impl Op<'_> {
    /// Recovers the segment if the client that holds its lock has crashed.
    pub(super) async fn try_recover_lock(&mut self, segment: RemotePtr) -> Result<(), IndexError> {
        let held = self.recovery().try_recover_lock(segment).await?;
        self.backoff.check_holder(&self.pin, held).await
    }
}

impl Recovery<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Claims the lock of a segment if its holder has crashed, and recovers the segment. Returns the lock if its holder
    /// may be alive.
    pub(super) async fn try_recover_lock(&self, segment: RemotePtr) -> Result<Option<HeldLock>, IndexError> {
        let what = [intents::RECOVER, 0, 0, 0];
        let recover = async |word, cell: &IntentCell<'_>| {
            mark!("race: recovery: lock claimed");
            self.recover_locked(segment, State(word), Some(cell)).await
        };
        claim_and_recover(self.pin, self.index, lock_of(segment), what, recover).await
    }

    async fn recover_locked(
        &self,
        segment: RemotePtr,
        state: State,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let segment_ref = SegmentRef { suffix: state.suffix(), at: segment };
        let child = match state.closing() {
            true => self.table.child(self.span(), state).await?,
            false => None,
        };
        if child.is_none() {
            mark!("race: recovery: undone");
            return self.undo(&segment_ref, state, cell).await;
        }
        mark!("race: recovery: finished");
        let words = self.span().read(segment, self.table.shape().bytes()).await?;
        let held = Held { segment_ref, state: state.unlock(), words: words.words().to_vec() };
        self.finish(&held, None, cell).await
    }

    /// Undoes a split whose child no client has read: unfreezes the entries, and releases the lock.
    pub(super) async fn undo(
        &self,
        segment_ref: &SegmentRef,
        state: State,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let words = self.span().read(segment_ref.at, self.table.shape().bytes()).await?;
        let frozen: Vec<_> = slots(words.words())
            .filter(|(_, word)| Entry::decode(*word).is_some_and(|entry| entry.state == slot::State::Frozen))
            .map(|(i, word)| (segment_ref.at.add(i as u64 * 8), word))
            .collect();
        for part in frozen.chunks(PART) {
            let mut batch = self.span().batch();
            for (at, word) in part {
                mark!("race: recovery: entry unfrozen");
                batch.cas(*at, *word, slot::with_state(*word, slot::State::Live));
            }
            batch.post().await?;
        }
        self.release(segment_ref.at, state, state.unlock(), Vec::new(), cell).await
    }

    /// Finishes a split whose child is complete and whose state is closing: WRITEs the directory's `word`, if that has
    /// not been done, empties the entries that have moved, and releases the lock at the new depth.
    pub(super) async fn finish(
        &self,
        held: &Held,
        word: Option<(RemotePtr, Word)>,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        // The word comes first, and it alone determines whether the split has happened.
        let mut writes: Vec<_> = word.iter().map(|(at, word)| (*at, vec![word.to_bits()])).collect();
        writes.extend(final_writes(held));
        self.release(held.segment_ref.at, held.state.close(), held.state.deeper(), writes, cell).await
    }

    /// Posts the WRITEs in this order, then the CAS of the state, then the clearing of the intent, in one batch or in
    /// consecutive ones.
    async fn release(
        &self,
        segment: RemotePtr,
        from: State,
        to: State,
        mut writes: Vec<(RemotePtr, Vec<u64>)>,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let mut rest = writes.drain(..).peekable();
        loop {
            let mut batch = self.span().batch();
            for (at, words) in rest.by_ref().take(PART) {
                batch.write_words(at, &words);
            }
            if rest.peek().is_some() {
                batch.post().await?;
                continue;
            }
            let turned = batch.cas(segment, from.0, to.0);
            if let Some(cell) = cell {
                cell.clear(&mut batch);
            }
            let old = batch.post().await?.old(turned);
            cell.inspect(|cell| cell.cleared());
            if old != from.0 {
                let what = format!("the state of a held segment is {old:#018x} instead of {:#018x}", from.0);
                return Err(IndexError::corrupt(segment, what));
            }
            return Ok(());
        }
    }
}
