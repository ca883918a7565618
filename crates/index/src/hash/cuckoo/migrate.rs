//! Moves a region of a table to the next table, and recovers a region that a crashed client left locked.
//!
//! An entry keeps its place and its number within the bucket. No other client uses a bucket of the next table until all
//! entries of the old bucket have been marked as moved. So the slot of a moved entry is always free, and the entry is
//! written there.
//!
//! A region that was claimed from a crashed client may hold frozen entries, which were being moved or displaced. If
//! such an entry is also at a later place of its key, it was displaced, and recovery clears it here.

use super::lookup::Op;
use super::places::{Spots, first_slots, place_of};
use super::{Cuckoo, Table};
use crate::IndexError;
use crate::audit::Damage;
use crate::backoff::Backoff;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use crate::recovery::{HeldLock, claim_and_recover};
use crate::slotted::geometry::{REGION, Segment, signature};
use crate::slotted::intents;
use crate::slotted::mover::{self, Entry, Form, RegionMigrator, corrupt, release};
use crate::slotted::slot::{self, FROZEN, Slot, frozen, vacant};
use crate::slotted::walk::{VisitedEntry, entries_of, read_region};
use farindex_fabric::{Buf, Span, cold};
use farindex_pool::{IntentCell, Pin};

/// Moves regions, under a pin.
pub(super) struct Mover<'a> {
    pub(super) cuckoo: &'a Cuckoo,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

impl RegionMigrator for Mover<'_> {
    fn pin(&self) -> &Pin<'_> {
        self.pin
    }
    fn index(&self) -> u64 {
        self.cuckoo.uid
    }

    async fn move_under_lock(
        &self,
        from: Segment,
        to: Segment,
        region: u64,
        cell: &IntentCell<'_>,
        seen: Buf,
    ) -> Result<(), IndexError> {
        mark!("cuckoo move");
        let still = mover::freeze(self.span(), &from, region, seen).await?;
        let entries = mover::entries(self.pin, self.cuckoo.seed, &from, region, still).await?;
        self.copy(&from, &to, &entries).await?;
        mover::finish(self.pin, &from, region, cell, &entries).await?;
        self.table.note(0, to.generation, entries.len() as i64);
        Ok(())
    }

    async fn try_recover_lock(&self, from: Segment, _: Segment, region: u64) -> Result<Option<HeldLock>, IndexError> {
        self.recover_locked(from, region).await
    }
}

impl Mover<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Copies frozen entries to their slots in the next table.
    async fn copy(&self, from: &Segment, to: &Segment, entries: &[Entry]) -> Result<(), IndexError> {
        let associativity = self.table.own.associativity;
        let mut batch = self.span().batch();
        for Entry { source, hash, form, .. } in entries {
            let Some(place) = place_of(*hash, from, associativity, *source) else {
                return Err(corrupt(from.slot(*source), "an entry lies where none of its key's places is"));
            };
            let at = to.slot(first_slots(*hash, to, associativity)[place] + source % associativity);
            match form {
                Form::Head(head) => drop(batch.write_words(at, &[*head])),
                Form::Inline { key, value } => {
                    // In this table, only a mover of this very entry can have written these words, and it wrote the
                    // same.
                    let tag = 1;
                    let head = slot::inline(tag, key.len(), value.len(), signature(*hash));
                    let words = slot::words(tag, key, value);
                    if planted(Fault::CuckooCopyAtOnce) {
                        batch.write_words(at, &[&[head], &words[..]].concat());
                        continue;
                    }
                    // The head last: a mover that crashes leaves no head whose words are not there, which nobody would
                    // complete for the readers that meet it.
                    batch.write_words(at.add(8), &words);
                    batch.write_words(at, &[head]);
                }
            }
        }
        batch.post().await?;
        Ok(())
    }

    /// Claims a region's lock if its holder has crashed, and finishes or undoes its change. Returns the lock if its
    /// holder may be alive.
    pub(super) async fn recover_locked(&self, segment: Segment, region: u64) -> Result<Option<HeldLock>, IndexError> {
        let what = [intents::RECOVER, region, segment.generation, 0];
        let recover = async |_, cell: &IntentCell<'_>| {
            mark!("cuckoo recovery: region claimed");
            // An error abandons the lock: were it released, nobody would repair what the crashed client has frozen.
            self.finish_or_undo(segment, region, cell).await
        };
        claim_and_recover(self.pin, self.cuckoo.uid, segment.lock(region), what, recover).await
    }

    /// Waits for a region that another client holds. From time to time, claims the lock if its holder has crashed.
    pub(super) async fn await_region(
        &self,
        backoff: &mut Backoff,
        segment: Segment,
        region: u64,
    ) -> Result<(), IndexError> {
        if !backoff.wait(self.pin.session()).await {
            return Ok(());
        }
        let held = cold(self.recover_locked(segment, region)).await?;
        backoff.check_holder(self.pin, held).await
    }

    /// Like [`await_region`](Self::await_region), for a client that wants the lock. After a while it returns only when
    /// the lock is free: intents of live clients that name the lock would hide that its holder has crashed.
    pub(super) async fn await_lock(
        &self,
        backoff: &mut Backoff,
        segment: Segment,
        region: u64,
    ) -> Result<(), IndexError> {
        loop {
            self.await_region(backoff, segment, region).await?;
            if !backoff.is_long() || !self.is_held(segment, region).await? {
                return Ok(());
            }
        }
    }

    async fn finish_or_undo(&self, segment: Segment, region: u64, cell: &IntentCell<'_>) -> Result<(), IndexError> {
        // Under the lock: a client that began to move the region knew the next table, and the root still names that
        // table.
        let geometry = self.table.sync(self.span(), self.pin.epoch()).await?;
        let next = geometry.next.filter(|_| geometry.current.generation == segment.generation);
        let slots = read_region(self.span(), &segment, region).await?;
        let (visited, wrong) =
            entries_of(self.pin.session(), self.span(), &segment, region * REGION, slots, |_| true).await?;
        if let Some(Damage { at, what }) = wrong.into_iter().next() {
            return Err(corrupt(at, &what));
        }
        for entry in visited.into_iter().filter(|entry| frozen(entry.head)) {
            let head = match self.was_displaced(&segment, &entry).await? {
                true => {
                    mark!("cuckoo recovery: displaced");
                    vacant(Slot::decode(entry.head).stamp_after(self.pin.epoch()))
                }
                false if next.is_some() => continue,
                false => {
                    mark!("cuckoo recovery: unfrozen");
                    entry.head & !FROZEN
                }
            };
            self.span().cas(entry.at, entry.head, head).await?;
        }
        match next {
            Some(next) => {
                let seen = read_region(self.span(), &segment, region).await?;
                self.move_under_lock(segment, next, region, cell, seen).await
            }
            None => release(self.span(), &segment, region, cell).await,
        }
    }

    /// Returns whether a frozen entry is also at a later place of its key.
    async fn was_displaced(&self, segment: &Segment, entry: &VisitedEntry) -> Result<bool, IndexError> {
        let hash = self.cuckoo.hash(&entry.key);
        let slot = segment.index_of(entry.at);
        let Some(place) = place_of(hash, segment, self.table.own.associativity, slot) else {
            return Err(corrupt(entry.at, "an entry lies where none of its key's places is"));
        };
        let mut op = Op::new(self.cuckoo, self.table, self.pin, hash, &entry.key);
        op.counted = true;
        loop {
            let later: Spots = op.spots().into_iter().filter(|spot| spot.place > place).collect();
            if later.is_empty() {
                return Ok(false);
            }
            if let Some(found) = op.find_in(&later, later.len()).await? {
                return Ok(found.is_some());
            }
        }
    }
}
