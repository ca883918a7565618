//! What becomes of maps, proposals and owner records when the index is dropped.
//!
//! Invariant: D11 in `docs/protocols/dex.md`. Of an index that was dropped no map follows the one that counts. The drop frees
//! that map, the records that it names, and the maps that are proposed at them; every other map is freed by who has made it,
//! or who has made the one that follows it.

use super::Dex;
use super::acquire::{Pending, TAKE_OVER};
use super::audit::Proposed;
use super::map::{Map, is_later, place_of, word_after};
use super::proposal::{MAP, NONE, PROPOSAL, Proposal, RECORD_LEN, lock_of, lock_words};
use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::recovery::claim_and_recover;
use crate::tree::change::Puts;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::Pin;

/// Seals the map that counts, and returns its word: the anchor's word gets the next version and the same place, so no CAS from
/// the word that was there succeeds. The caller has READ that the index was dropped, and its pin keeps the anchor.
async fn seal(span: &Span, anchor: RemotePtr) -> Result<u64, IndexError> {
    let at = anchor.add(MAP);
    let mut word = read_word(span, at).await?;
    loop {
        let old = span.cas(at, word, word_after(word, place_of(word))).await?;
        if old == word {
            return Ok(word);
        }
        word = old;
    }
}

impl Dex {
    /// Ends the wait for an answer, of an index that was dropped under this pin; `accepted` if the answer is known. Returns
    /// [`IndexError::Dropped`].
    pub(super) async fn settle_dropped(
        &self,
        pin: &Pin<'_>,
        mut pending: Pending<'_>,
        accepted: Option<bool>,
    ) -> Result<(), IndexError> {
        let span = pin.span();
        let Some(&Proposal { to, word, base, len, .. }) = pending.proposal.as_ref() else {
            return Err(IndexError::Dropped);
        };
        mark!("dex: index was dropped while a proposal waited for its answer");
        let counts = seal(span, self.tree().anchor).await?;
        let map = Map::read_sealed(span, self.tree().tag, counts).await?.map(|(map, _)| map).unwrap_or_default();
        let mut accepted = accepted;
        if accepted.is_none() && map.is_member(to) {
            // Otherwise the drop frees what is proposed there.
            let answer = span.cas(to.add(PROPOSAL), word, NONE).await?;
            if answer != word {
                accepted = self.take_answer(pin, &mut pending, (to, answer)).await?;
            }
        }
        let accepted = match accepted {
            None => self.has_counted(span, (counts, map), (word, base.0)).await?,
            known => known,
        };
        match accepted {
            Some(false) => {
                pending.end();
                self.retire_map(pin, (place_of(word), len));
            }
            // The map that counts names the owner record, and this compute node does not look at it any more: so the record is
            // left to the map (D9).
            Some(true) => {
                pending.proposal = None;
                self.retire_map(pin, base);
            }
            // One of the two maps is not in use, and nobody knows which. Its memory is left to an audit.
            None => pending.proposal = None,
        }
        Err(IndexError::Dropped)
    }

    /// Has the map of the word `of`, which follows the one at `base`, ever counted? `map` is the one that counts, `word` its word
    /// before it was sealed, or after. Maps never change, and each names the one that it follows, so this goes back along
    /// them. `None` where the memory of one has another use by now.
    pub(super) async fn has_counted(
        &self,
        span: &Span,
        (word, mut map): (u64, Map),
        (of, base): (u64, RemotePtr),
    ) -> Result<Option<bool>, IndexError> {
        if place_of(word) == place_of(of) || place_of(word) == base {
            return Ok(Some(place_of(word) != base));
        }
        while is_later(map.base, of) {
            match Map::read(span, self.tree().tag, map.base).await? {
                // Otherwise it is damaged, and this might never end.
                Some(before) if is_later(map.base, before.base) => map = before,
                _ => return Ok(None),
            }
        }
        Ok(Some(map.base == of))
    }

    /// Frees the map that counts, the records of its members, and what is proposed at them. Nobody has the index any more.
    pub(super) async fn free_ownership(&self, span: &Span, anchor: RemotePtr) -> Result<(), IndexError> {
        let tag = self.tree().tag;
        let pin = self.session.pin(self.tree().maintenance())?;
        if let Some(proposal) = self.own.take_pending() {
            // Of an operation of this compute node, which was given up.
            match self.settle_dropped(&pin, self.pending(proposal), None).await {
                Ok(()) | Err(IndexError::Dropped) => {}
                Err(error) => return Err(error),
            }
        }
        let word = read_word(span, anchor.add(MAP)).await?;
        let Some((map, len)) = Map::read_sealed(span, tag, word).await? else { return Ok(()) };
        for Proposed { block: (proposed, len), next, .. } in self.proposed(span, (word, &map)).await? {
            mark!("dex: proposed map of an index that was dropped was freed");
            self.session.free(span, proposed, len).await?;
            if place_of(next.base) == place_of(word) {
                for record in next.members().filter(|record| !map.is_member(*record)) {
                    self.free_left_record(&pin, record).await?;
                }
            }
        }
        for record in map.members() {
            self.session.free(span, record, RECORD_LEN).await?;
        }
        Ok(self.session.free(span, place_of(word), len).await?)
    }

    /// Frees the owner record of a proposer, if that has left or crashed. Otherwise it frees its record by itself (D9).
    async fn free_left_record(&self, pin: &Pin<'_>, record: RemotePtr) -> Result<(), IndexError> {
        let span = pin.span();
        let (free, held) = lock_words(self.tree().tag, record);
        if read_word(span, record).await? == held {
            claim_and_recover(pin, self.uid, lock_of(record), [TAKE_OVER, 0, 0, 0], async |_, cell| {
                let mut batch = span.batch();
                batch.cas(record, held, free);
                cell.clear(&mut batch);
                batch.post().await?;
                cell.cleared();
                Ok(())
            })
            .await?;
        }
        if read_word(span, record).await? == free {
            self.session.free(span, record, RECORD_LEN).await?;
        }
        Ok(())
    }
}
