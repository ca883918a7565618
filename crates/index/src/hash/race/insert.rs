//! Insert of a key that a lookup has not found.
//!
//! 1. *One batch*: CAS a *tentative* entry into an empty slot; READ the buckets and the segment's state again. Lookups
//!    ignore tentative entries. G4 orders the verbs, so of two inserts of one key at least one sees the other.
//! 2. If several tentative entries have the key, the one with the lowest address wins. It empties the slots of the
//!    others; an insert that loses withdraws its entry.
//! 3. CAS the entry from tentative to live. This is the linearization point.
//!
//! See the invariants R3 and R7 of docs/protocols/race.md.

use super::lookup::{Absence, Hit, Op};
use super::segment::SegmentRef;
use super::slot::{self, EMPTY, Entry};
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::maintenance::first_word;
use crate::marks::mark;
use farindex_fabric::{RemotePtr, cold};

/// Result of an attempt to insert.
pub(super) enum Put {
    /// The key has been inserted.
    Done,
    /// The key is present (as published; a repaired insert looks up the key again).
    #[cfg(feature = "published")]
    Exists,
    /// The lookup must be repeated.
    Again,
    /// There is no empty slot in this segment, whose headers show this depth.
    Crowded(SegmentRef, u32),
}

/// Other entries of the key, as an insert's second READ has shown them.
enum Others {
    /// There are none, or their slots have been emptied.
    None,
    /// A tentative entry with a lower address: wait.
    Ahead,
    /// An entry that requires another lookup, without waiting.
    Look,
}

impl Op<'_> {
    /// Tries to insert the key.
    pub(super) async fn put(&mut self, absence: Absence, ptr: RemotePtr, block_len: usize) -> Result<Put, IndexError> {
        let Absence { segment_ref, view } = absence;
        let Some(slot) = view.vacancy() else {
            return Ok(Put::Crowded(segment_ref, view.depth(segment_ref.suffix)));
        };
        let entry = Entry { state: slot::State::Tentative, fp: self.fp(), len: slot::units(block_len), ptr };
        self.seen = true;
        #[cfg(feature = "published")]
        if self.race.published() {
            return cold(self.put_published(segment_ref, slot, entry)).await;
        }
        let mine = entry.encode();
        let mut batch = self.span().batch();
        let taken = batch.cas(slot, EMPTY, mine);
        let parts = self.read_parts(&mut batch, segment_ref);
        let state = batch.read(segment_ref.at, 8);
        let mut done = batch.post().await?;
        let taken = done.old(taken) == EMPTY;
        let view = self.view(segment_ref, parts, &mut done);
        let word = first_word(&done.buf(state));
        drop(done);
        if !taken {
            mark!("race: insert: slot lost");
            self.ready = Some((segment_ref, view));
            return Ok(Put::Again);
        }
        let state = match self.expect(segment_ref, word) {
            Ok(state) => state,
            Err(error) => {
                self.withdraw(slot, mine).await?;
                return Err(error);
            }
        };
        if !state.holds(self.hash) || state.locked() && !planted(Fault::IntoLocked) {
            mark!("race: insert: withdrawn from a segment that is split");
            self.withdraw(slot, mine).await?;
            match state.holds(self.hash) {
                true => self.wait_for(segment_ref.at).await?,
                false => self.descend(segment_ref, state.depth()).await?,
            }
            return Ok(Put::Again);
        }
        let mut candidates = self.candidates(&view, |_| true);
        candidates.retain(|(at, _)| *at != slot);
        if !candidates.is_empty() {
            match self.resolve_others(slot, candidates).await? {
                Others::None => {}
                others => {
                    self.withdraw(slot, mine).await?;
                    if let Others::Ahead = others {
                        self.backoff.wait(self.pin.session()).await;
                    }
                    return Ok(Put::Again);
                }
            }
        }
        let live = slot::with_state(mine, slot::State::Live);
        let done = self.span().cas(slot, mine, live).await? == mine;
        if !done {
            mark!("race: insert: emptied by another client");
        }
        Ok(if done { Put::Done } else { Put::Again })
    }

    /// Empties the slot that this operation has taken, unless another client has already done so.
    async fn withdraw(&self, slot: RemotePtr, mine: u64) -> Result<(), IndexError> {
        self.span().cas(slot, mine, EMPTY).await?;
        Ok(())
    }

    /// Checks the other entries that may have the same key.
    async fn resolve_others(
        &mut self,
        slot: RemotePtr,
        candidates: smallvec::SmallVec<[(RemotePtr, u64); 2]>,
    ) -> Result<Others, IndexError> {
        let Some(hits) = cold(self.same_key(candidates)).await? else { return Ok(Others::Look) };
        for Hit { slot: at, word, .. } in hits {
            if Entry::decode(word).is_some_and(|entry| entry.state != slot::State::Tentative) {
                mark!("race: insert: key inserted meanwhile");
                return Ok(Others::Look);
            }
            let ahead = at.to_bits() < slot.to_bits();
            if ahead && !self.backoff.is_long() {
                mark!("race: insert: another is ahead");
                return Ok(Others::Ahead);
            }
            let old = self.span().cas(at, word, EMPTY).await?;
            if old != word && old != EMPTY {
                mark!("race: insert: another has become live");
                return Ok(Others::Look);
            }
            if ahead {
                // After so long a wait, the client has probably crashed. If it has not, its insert begins again.
                mark!("race: insert: emptied a tentative slot ahead");
            } else {
                mark!("race: insert: emptied a tentative slot behind");
            }
        }
        Ok(Others::None)
    }
}
