//! Adding a key that a lookup has not found.
//!
//! A slot is taken with a *tentative* entry, which no lookup takes for one, and in the same batch the buckets and the segment's state
//! are read again (G4 orders them): so of two inserts of a key at least one sees the other. The one whose slot comes first wins, and
//! makes the other's slot empty; the loser withdraws. What is left then becomes live by a CAS of its own: that is the insert.
//!
//! Invariants R3 and R7 of docs/protocols/race.md.

use super::lookup::{Absence, Hit, Op};
use super::segment::SegmentRef;
use super::slot::{self, EMPTY, Entry};
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use farindex_fabric::RemotePtr;

/// What came of it.
pub(super) enum Put {
    /// The key has been inserted.
    Done,
    /// The key is there (as published; a repaired insert looks again).
    #[cfg(feature = "published")]
    Exists,
    /// Look again.
    Again,
    /// No room in this segment, whose headers show this depth.
    Crowded(SegmentRef, u32),
}

/// What an insert's second READ has shown of others.
enum Others {
    /// Nobody in the way.
    None,
    /// Somebody who must be waited for.
    Ahead,
    /// Something that needs another look, without waiting.
    Look,
}

impl Op<'_> {
    /// Adds the key.
    pub(super) async fn put(&mut self, absence: Absence, ptr: RemotePtr, block_len: usize) -> Result<Put, IndexError> {
        let Absence { segment_ref, view } = absence;
        let Some(slot) = view.vacancy() else {
            return Ok(Put::Crowded(segment_ref, view.depth(segment_ref.suffix)));
        };
        let entry = Entry { state: slot::State::Tentative, fp: self.fp(), len: slot::units(block_len), ptr };
        self.seen = true;
        #[cfg(feature = "published")]
        if self.race.published() {
            return Box::pin(self.put_published(segment_ref, slot, entry)).await;
        }
        let mine = entry.encode();
        let mut batch = self.span().batch();
        let taken = batch.cas(slot, EMPTY, mine);
        let parts = self.read_parts(&mut batch, segment_ref);
        let state = batch.read(segment_ref.at, 8);
        let mut done = batch.post().await?;
        let taken = done.old(taken) == EMPTY;
        let view = self.view(segment_ref, parts, &mut done);
        let word = done.buf(state).words().first().copied().unwrap_or_default();
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
            match self.meet(slot, candidates).await? {
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
        let live = slot::turned(mine, slot::State::Live);
        let done = self.span().cas(slot, mine, live).await? == mine;
        if !done {
            mark!("race: insert: taken out by another");
        }
        Ok(if done { Put::Done } else { Put::Again })
    }

    /// Empties the slot that this operation has taken. If somebody else has done so already, all the better.
    async fn withdraw(&self, slot: RemotePtr, mine: u64) -> Result<(), IndexError> {
        self.span().cas(slot, mine, EMPTY).await?;
        Ok(())
    }

    /// Other entries that may be of the same key.
    async fn meet(
        &mut self,
        slot: RemotePtr,
        candidates: smallvec::SmallVec<[(RemotePtr, u64); 2]>,
    ) -> Result<Others, IndexError> {
        let Some(hits) = Box::pin(self.same_key(candidates)).await? else { return Ok(Others::Look) };
        for Hit { slot: at, word, .. } in hits {
            if Entry::decode(word).is_some_and(|entry| entry.state != slot::State::Tentative) {
                mark!("race: insert: the key has come meanwhile");
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
                // It has been in the way for so long that its client is as good as dead.
                mark!("race: insert: took out one that was ahead");
            } else {
                mark!("race: insert: took out one that was behind");
            }
        }
        Ok(Others::None)
    }
}
