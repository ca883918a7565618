//! What an audit reaches of maps, proposals and owner records.
//!
//! Invariant: what an owner that is alive, or this compute node, may still use is never taken for lost memory. A map that is
//! proposed at a record may come to count long after its proposer has left (D10 in `docs/protocols/dex.md`).

use super::Dex;
use super::map::{Map, place_of};
use super::proposal::{NONE, PROPOSAL, RECORD_LEN, REFUSED};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::tree::change::Puts;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use std::collections::BTreeSet;

/// A map that is proposed. The operation that proposes it waits for the answer or was given up, or its client has crashed.
pub(super) struct Proposed {
    /// Of the owner that is to answer.
    record: RemotePtr,
    proposal: u64,
    pub(super) block: (RemotePtr, u64),
    pub(super) next: Map,
}

impl Dex {
    /// Ends what operations that were given up have left of changes of ownership. `alone`: no other client was at work when the
    /// audit began.
    pub(super) async fn end_ownership_changes(&self, audit: &Audit, alone: bool) -> Result<(), IndexError> {
        let _turn = self.turn_to_acquire().await;
        if alone {
            // Otherwise its owner may take its time.
            let pin = self.tree().pin(self.tree().maintenance()).await?;
            match self.settle_pending(&pin, &mut Backoff::default()).await {
                Ok(()) | Err(IndexError::Locked { .. }) => {}
                Err(error) => return Err(error),
            }
            self.remove_outdated(&pin, audit).await?;
        }
        // One that no map has come to name, for want of memory.
        if let Some(record) = self.own.take_unknown() {
            self.own.give_up_record(&self.session, &self.tree().maintenance(), (record, false));
        }
        Ok(())
    }

    /// Refuses proposals at the records of other compute nodes that follow another map than the one that counts, and frees them if
    /// nobody waits for the answers: no other client was at work. While the maps in between are there, they tell that such a
    /// proposal never counted; later nobody could tell. A client that has come meanwhile frees what it has proposed itself, as
    /// it does when the owner refuses it (bug 222).
    async fn remove_outdated(&self, pin: &Pin<'_>, audit: &Audit) -> Result<(), IndexError> {
        let (span, pending) = (pin.span(), self.own.is_pending());
        let (word, map) = self.latest_map(span).await?;
        for Proposed { record, proposal, block: (at, len), next } in self.proposed(span, (word, &map)).await? {
            if pending || next.base == word || Some(record) == self.own.record() {
                continue;
            }
            let answer = record.add(PROPOSAL);
            if span.cas(answer, proposal, REFUSED).await? != proposal {
                continue;
            }
            // After the CAS: who comes later has not made this proposal.
            if audit.undisturbed(&self.session, span).await? {
                mark!("dex: audit freed a proposed map that nobody waits for");
                span.cas(answer, REFUSED, NONE).await?;
                self.session.free(span, at, len).await?;
            } else {
                mark!("dex: audit refused a proposal of a client that has come meanwhile");
            }
        }
        Ok(())
    }

    /// Records the map that counts, those that are proposed, and the owner records.
    pub(super) async fn reach_ownership(&self, audit: &mut Audit) -> Result<(), IndexError> {
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        let (word, map) = self.latest_map(pin.span()).await?;
        if !place_of(word).is_null() {
            audit.reach(place_of(word), Map::block_len(&map.encode()?), "a map of partitions");
        }
        let mut records: BTreeSet<_> = map.members().chain(self.own.record()).collect();
        for Proposed { block: (at, len), next, .. } in self.proposed(pin.span(), (word, &map)).await? {
            audit.reach(at, len, "a proposed map of partitions");
            if next.base == word {
                // Its owner may accept it.
                records.extend(next.members());
            }
        }
        records.into_iter().for_each(|record| audit.reach(record, RECORD_LEN, "an owner record"));
        if self.own.is_pending() {
            // This compute node will free one of two maps, and does not know yet which.
            audit.expect_missed_objects();
        }
        Ok(())
    }

    /// The maps that are proposed at the records of the map that counts, and have never counted.
    pub(super) async fn proposed(&self, span: &Span, (word, map): (u64, &Map)) -> Result<Vec<Proposed>, IndexError> {
        let mut maps = Vec::new();
        for record in map.members() {
            let proposal = read_word(span, record.add(PROPOSAL)).await?;
            if proposal > REFUSED
                && let Some((proposed, len)) = Map::read_sealed(span, self.tree().tag, proposal).await?
                && let of = (proposal, place_of(proposed.base))
                && self.has_counted(span, (word, map.clone()), of).await? == Some(false)
            {
                maps.push(Proposed { record, proposal, block: (place_of(proposal), len), next: proposed });
            }
        }
        Ok(maps)
    }
}
