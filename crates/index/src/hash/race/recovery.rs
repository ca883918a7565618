//! Putting right what a dead client has left under a segment's lock, and ending splits.
//!
//! Who has waited too long for a segment claims its lock ([`farindex_pool::takeover`]), and then finishes or undoes the split. Which of the two,
//! the directory tells: if it names the child, that is whole, and others may have changed entries in it; if not, nobody has seen it,
//! and nothing in the segment has been emptied. Every step may be the last of whoever takes it.

use super::lookup::Op;
use super::segment::{SegmentRef, State, lock_of, slots};
use super::slot::{self, Entry};
use super::split::{Held, PART, endings, steps};
use super::table::Table;
use crate::IndexError;
use crate::extendible::Entry as Word;
use crate::marks::mark;
use crate::recovery::{HeldLock, claim_and_recover};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{IntentCell, Pin};

/// Somebody who looks after others, under a pin.
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

    /// Claims the lock of a segment if its holder has crashed, and recovers the segment. Returns the lock if its holder may be
    /// alive.
    pub(super) async fn try_recover_lock(&self, segment: RemotePtr) -> Result<Option<HeldLock>, IndexError> {
        let what = [steps::RECOVER, 0, 0, 0];
        let recover = async |word, cell: &IntentCell<'_>| {
            mark!("race: recovery: lock claimed");
            self.recover_locked(segment, State(word), Some(cell)).await
        };
        claim_and_recover(self.pin, self.index, lock_of(segment), None, what, recover).await
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
            mark!("race: rescue: undone");
            return self.undo(&segment_ref, state, cell).await;
        }
        mark!("race: rescue: finished");
        let words = self.span().read(segment, self.table.shape().bytes()).await?;
        let held = Held { segment_ref, state: state.unlock(), words: words.words().to_vec() };
        self.finish(&held, None, cell).await
    }

    /// Nobody has seen a child: what is frozen is thawed, and the lock released.
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
                mark!("race: rescue: entry thawed");
                batch.cas(*at, *word, slot::turned(*word, slot::State::Live));
            }
            batch.post().await?;
        }
        self.release(segment_ref.at, state, state.unlock(), Vec::new(), cell).await
    }

    /// The child is whole, and the state is closing: names it in the directory, if that has not been done, empties what has moved, and
    /// releases the lock at the new depth.
    pub(super) async fn finish(
        &self,
        held: &Held,
        word: Option<(RemotePtr, Word)>,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        // The word comes first, and alone tells whether the split has happened.
        let mut writes: Vec<_> = word.iter().map(|(at, word)| (*at, vec![word.to_bits()])).collect();
        writes.extend(endings(held));
        self.release(held.segment_ref.at, held.state.close(), held.state.deeper(), writes, cell).await
    }

    /// WRITEs in this order, then the state, then the intent: one batch, or several one after the other.
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
            if old != from.0 {
                let what = format!("the state of a held segment is {old:#018x} instead of {:#018x}", from.0);
                return Err(IndexError::corrupt(segment, what));
            }
            return Ok(());
        }
    }
}
