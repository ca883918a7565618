//! Insert, update and remove.
//!
//! An update or a removal is one CAS of a head word. An insert holds the lock of the region that contains the key's
//! first place: so of two inserts of one key, the second READs the entry of the first.
//! [`record`](crate::slotted::record) describes how a record is written to its slot.

use super::lookup::{Free, Hit, Op, Scope, Seen};
use super::places::Spots;
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use crate::recovery::{clear_intent, release_on_error};
use crate::slotted::geometry::{DONE, LOCKED, Segment};
use crate::slotted::index::Attempt;
use crate::slotted::intents;
use crate::slotted::mover::release;
use crate::slotted::record::{PiggybackedWrite, Record};
use crate::slotted::slot::{Slot, unused_tag, vacant};
use crate::traits::RemoveIf;
use crate::write::{Guard, Mode, Wrote};
use farindex_fabric::{Buf, cold};
use farindex_pool::{Intent, IntentCell};

/// Result of an attempt to insert.
enum Put {
    /// Inserted into the segment of this generation.
    Done(u64),
    Exists,
    /// Something has changed: look up again.
    Again,
    /// No slot of the key's places is free.
    Full,
}

impl Op<'_> {
    /// Looks up the key, and changes it as `mode` says.
    pub(super) async fn write(
        &mut self,
        mode: Mode<'_>,
        record: &Record<'_>,
        piggyback: &mut PiggybackedWrite,
    ) -> Result<Attempt, IndexError> {
        let mut check = mode.guard().begin();
        loop {
            if mode != Mode::Insert {
                match self.find_to_change(piggyback).await? {
                    Some(hit) if !check.admits(&hit.value) => return Ok(Attempt::Wrote(Wrote::Differs)),
                    Some(hit) if self.replace(&hit, record).await? => return Ok(Attempt::Wrote(Wrote::Updated)),
                    None if mode.is_update() && self.find().await?.is_none() => {
                        return Ok(Attempt::Wrote(Wrote::Absent));
                    }
                    None if mode == Mode::Upsert => {}
                    _ => continue,
                }
            }
            match self.put(record, piggyback).await? {
                Put::Done(generation) => return Ok(Attempt::Inserted(generation)),
                Put::Exists if mode == Mode::Insert => return Ok(Attempt::Wrote(Wrote::Exists)),
                Put::Full => return Ok(Attempt::Full),
                Put::Exists | Put::Again => {}
            }
        }
    }

    /// Returns the segment and the region whose lock protects inserts of the key: those of the key's first place, in
    /// the oldest table that is newer than generation `moved`, in which that region has been moved already.
    fn lock_of(spots: &Spots, moved: Option<u64>) -> Option<(Segment, u64)> {
        let mut firsts = spots.iter().filter(|spot| spot.place == 0 && Some(spot.segment.generation) > moved);
        firsts.next().map(|spot| (spot.segment, spot.region()))
    }

    /// Inserts the key if it is absent.
    async fn put(&mut self, record: &Record<'_>, piggyback: &mut PiggybackedWrite) -> Result<Put, IndexError> {
        self.sync_if_due().await?;
        let mut moved = None;
        loop {
            let spots = self.spots();
            let Some((segment, region)) = Self::lock_of(&spots, moved) else {
                self.count_attempt()?;
                cold(self.table.sync(self.span(), self.pin.epoch())).await?;
                continue;
            };
            let lock = segment.lock(region);
            let cell = self.pin.session().intent_cell(lock.at.node()).await?;
            let mut batch = self.span().batch();
            if let Some((ptr, buf)) = piggyback.take() {
                batch.write(ptr, buf);
            }
            let what = [intents::PUT, region, segment.generation, 0];
            cell.declare(&mut batch, &Intent { index: self.cuckoo.uid(), lock, what });
            let taken = match planted(Fault::CuckooUnlocked) {
                true => None,
                false => Some(batch.cas(lock.at, 0, LOCKED)),
            };
            let len = self.table.own.bucket_bytes();
            let tickets: Vec<_> = spots.iter().map(|spot| batch.read(spot.at(), len)).collect();
            let mut done = batch.post().await?;
            let held = taken.map_or(0, |taken| done.old(taken));
            let bufs = tickets.into_iter().map(|ticket| done.buf(ticket)).collect();
            drop(done);
            match held {
                0 => {}
                DONE => {
                    mark!("cuckoo put: the next table's lock");
                    clear_intent(self.span(), &cell).await?;
                    moved = Some(segment.generation);
                    continue;
                }
                _ => {
                    mark!("cuckoo put: lock lost");
                    clear_intent(self.span(), &cell).await?;
                    drop(cell);
                    let mover = self.cuckoo.mover(self.table, self.pin);
                    cold(mover.await_lock(&mut self.backoff, segment, region)).await?;
                    continue;
                }
            }
            let put = self.put_under_lock(record, &spots, bufs, (&segment, region), &cell).await;
            return release_on_error(put, async || release(self.span(), &segment, region, &cell).await).await;
        }
    }

    /// READs the root if that is due, before anything is changed.
    async fn sync_if_due(&mut self) -> Result<(), IndexError> {
        let mut batch = self.pin.span().batch();
        if !std::mem::replace(&mut self.counted, true)
            && let Some(sync) = self.table.count_operation(&mut batch, self.pin.epoch())
        {
            let mut done = batch.post().await?;
            self.table.finish_sync(&sync, &mut done)?;
        }
        if !self.table.is_checked(self.pin.epoch()) {
            self.table.sync(self.span(), self.pin.epoch()).await?;
        }
        Ok(())
    }

    /// Inserts the key under the lock. Releases the lock unless it fails.
    async fn put_under_lock(
        &mut self,
        record: &Record<'_>,
        spots: &Spots,
        mut bufs: Vec<Buf>,
        (segment, region): (&Segment, u64),
        cell: &IntentCell<'_>,
    ) -> Result<Put, IndexError> {
        let mut seen = self.scan_buckets(spots, &mut bufs, Scope::Room)?;
        self.verify(&mut seen, Scope::Room).await?;
        let free = match seen.hits.is_empty() {
            false => Err(Put::Exists),
            true if !self.is_consistent(&seen).await? => Err(Put::Again),
            true => self.choose(record, seen),
        };
        let free = match free {
            Ok(free) => free,
            Err(put) => {
                release(self.span(), segment, region, cell).await?;
                return Ok(put);
            }
        };
        let (old, epoch) = (Slot::decode(free.head), self.pin.epoch());
        let inline = record.goes_inline(segment.width, old, epoch);
        let head = record.head(old, inline, epoch);
        let at = free.spot.segment.slot(free.index);
        let mut batch = self.span().batch();
        let put = batch.cas(at, free.head, head);
        batch.cas(segment.lock(region).at, LOCKED, 0);
        cell.clear(&mut batch);
        let old = batch.post().await?.old(put);
        cell.cleared();
        if old != free.head {
            mark!("cuckoo put: CAS lost");
            return Ok(Put::Again);
        }
        if inline {
            record.settle_inline(self.pin, at, head, unused_tag(&free.behind)).await?;
        }
        Ok(Put::Done(free.spot.segment.generation))
    }

    /// Chooses the first free slot in which the record fits inline, or else the first free slot.
    fn choose(&self, record: &Record<'_>, seen: Seen) -> Result<Free, Put> {
        let epoch = self.pin.epoch();
        let suits = |free: &Free| record.goes_inline(free.spot.segment.width, Slot::decode(free.head), epoch);
        let mut free = seen.free;
        if free.is_empty() {
            return Err(Put::Full);
        }
        Ok(free.swap_remove(free.iter().position(suits).unwrap_or_default()))
    }

    /// Replaces the entry of a present key.
    async fn replace(&mut self, hit: &Hit, record: &Record<'_>) -> Result<bool, IndexError> {
        let (old, epoch) = (Slot::decode(hit.head), self.pin.epoch());
        let inline = record.goes_inline(hit.spot.segment.width, old, epoch);
        let head = record.head(old, inline, epoch);
        if !self.swap(hit, head).await? {
            return Ok(false);
        }
        if inline {
            mark!("cuckoo replace: inline again");
            record.settle_inline(self.pin, hit.spot.segment.slot(hit.index), head, unused_tag(&hit.behind)).await?;
        }
        Ok(true)
    }

    /// CASes the head of a present key; on success its block is retired.
    async fn swap(&mut self, hit: &Hit, head: u64) -> Result<bool, IndexError> {
        let done = self.span().cas(hit.spot.segment.slot(hit.index), hit.head, head).await? == hit.head;
        if !done {
            mark!("cuckoo replace: CAS lost");
        } else if let Some((ptr, len)) = hit.block {
            self.pin.retire(ptr, len);
        }
        Ok(done)
    }

    /// Removes the key; also returns the generation of the segment that held it.
    pub(super) async fn remove(&mut self, guard: Guard<'_>) -> Result<(RemoveIf, u64), IndexError> {
        let mut check = guard.begin();
        loop {
            let Some(hit) = self.find_to_change(&mut None).await? else {
                match self.find().await? {
                    None => return Ok((RemoveIf::Absent, 0)),
                    Some(_) => continue,
                }
            };
            if !check.admits(&hit.value) {
                return Ok((RemoveIf::Differs, 0));
            }
            let head = vacant(Slot::decode(hit.head).stamp_after(self.pin.epoch()));
            if self.swap(&hit, head).await? {
                return Ok((RemoveIf::Removed, hit.spot.segment.generation));
            }
        }
    }
}
