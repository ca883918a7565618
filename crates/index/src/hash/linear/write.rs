//! Insert, update and remove: one CAS of a head word each.
//!
//! [`record`](crate::slotted::record) describes how a record is written to its slot.

use super::lookup::{Gap, Hit, LookupResult, Op, Purpose};
use super::migrate::Mover;
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use crate::slotted::geometry::{REGION, Segment};
use crate::slotted::index::Attempt;
use crate::slotted::mover::{Region, RegionMigrator};
use crate::slotted::record::{PiggybackedWrite, Record};
use crate::slotted::slot::{DEAD, EMPTY, Slot, frozen};
use crate::traits::RemoveIf;
use crate::write::{Guard, Mode, Wrote};
use farindex_fabric::cold;

/// Result of an attempt to insert.
enum Put {
    Done,
    /// Another client took the slot: look up again.
    Again,
    /// The next table takes no more inserts before this table has been moved.
    NoRoom,
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
            match self.look(Purpose::Change, piggyback).await? {
                LookupResult::Hit(_) if mode == Mode::Insert => return Ok(Attempt::Wrote(Wrote::Exists)),
                LookupResult::Hit(hit) if frozen(hit.head) => self.help(hit.segment, hit.index).await?,
                LookupResult::Hit(hit) if !check.admits(&hit.value) => return Ok(Attempt::Wrote(Wrote::Differs)),
                LookupResult::Hit(hit) => {
                    if self.replace(&hit, record).await? {
                        return Ok(Attempt::Wrote(Wrote::Updated));
                    }
                }
                LookupResult::Absent(_) | LookupResult::Full if mode.is_update() => {
                    return Ok(Attempt::Wrote(Wrote::Absent));
                }
                LookupResult::Absent(gap) => match self.put(&gap, record).await? {
                    Put::Done => return Ok(Attempt::Inserted(gap.segment.generation)),
                    Put::Again => {}
                    Put::NoRoom => {
                        mark!("linear put: no room yet");
                        return Ok(Attempt::NoRoom);
                    }
                },
                LookupResult::Full => return Ok(Attempt::Full),
            }
        }
    }

    /// Inserts an absent key into the first empty slot.
    async fn put(&mut self, gap: &Gap, record: &Record<'_>) -> Result<Put, IndexError> {
        if !self.has_room(gap).await? {
            return Ok(Put::NoRoom);
        }
        let epoch = self.pin.epoch();
        let inline = record.goes_inline(gap.segment.width, Slot::Empty, epoch);
        let head = record.head(Slot::Empty, inline, epoch);
        if self.span().cas(gap.segment.slot(gap.index), EMPTY, head).await? != EMPTY {
            mark!("linear put: CAS lost");
            return Ok(Put::Again);
        }
        if inline {
            record.settle_inline(&self.pin, gap.segment.slot(gap.index), head, gap.tag).await?;
        }
        Ok(Put::Done)
    }

    /// Returns whether another key may be inserted into this segment. While entries are moved there, inserts must leave
    /// room for the entries that are not moved yet.
    async fn has_room(&mut self, gap: &Gap) -> Result<bool, IndexError> {
        let generation = gap.segment.generation;
        if self.table.geometry().current.generation >= generation || self.reserved == Some(generation) {
            return Ok(true);
        }
        let reserved = self.table.reserve(self.span(), &gap.segment).await?;
        self.reserved = reserved.then_some(generation);
        Ok(reserved)
    }

    /// Replaces the entry of a present key.
    async fn replace(&mut self, hit: &Hit, record: &Record<'_>) -> Result<bool, IndexError> {
        let (old, epoch) = (Slot::decode(hit.head), self.pin.epoch());
        let inline = record.goes_inline(hit.segment.width, old, epoch);
        let head = record.head(old, inline, epoch);
        if !self.swap(hit, head).await? {
            return Ok(false);
        }
        if inline {
            mark!("linear replace: inline again");
            record.settle_inline(&self.pin, hit.segment.slot(hit.index), head, hit.tag).await?;
        }
        Ok(true)
    }

    /// CASes the head of a present key; on success its block is retired.
    async fn swap(&mut self, hit: &Hit, head: u64) -> Result<bool, IndexError> {
        let done = self.span().cas(hit.segment.slot(hit.index), hit.head, head).await? == hit.head;
        if !done {
            mark!("linear replace: CAS lost");
        } else if let Some((ptr, len)) = hit.block {
            self.pin.retire(ptr, len);
        }
        Ok(done)
    }

    /// Removes the key. Its slot stays in use until the table is moved.
    pub(super) async fn remove(&mut self, guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        let mut check = guard.begin();
        loop {
            match self.look(Purpose::Change, &mut None).await? {
                LookupResult::Hit(hit) if frozen(hit.head) => self.help(hit.segment, hit.index).await?,
                LookupResult::Hit(hit) if !check.admits(&hit.value) => return Ok(RemoveIf::Differs),
                LookupResult::Hit(hit) => {
                    let emptied = if planted(Fault::LinearEmptied) { EMPTY } else { DEAD };
                    if self.swap(&hit, emptied).await? {
                        return Ok(RemoveIf::Removed);
                    }
                }
                LookupResult::Absent(_) | LookupResult::Full => return Ok(RemoveIf::Absent),
            }
        }
    }

    /// Moves the region of a frozen entry, which cannot be changed, or waits for the client that moves it.
    async fn help(&mut self, segment: Segment, index: u64) -> Result<(), IndexError> {
        mark!("linear write: helps moving");
        let geometry = self.table.geometry();
        let (Some(next), true) = (geometry.next, geometry.current.generation == segment.generation) else {
            return self.table.sync(self.span(), self.pin.epoch()).await.map(drop);
        };
        let region = index / REGION;
        let mover = Mover { index: self.linear.uid, seed: self.linear.seed, table: self.table, pin: &self.pin };
        // After a while the lock is tried only when it is free. Otherwise the intents of many clients that try would
        // hide that the lock's holder has crashed.
        let held = self.backoff.is_long() && mover.is_held(segment, region).await?;
        if !held && cold(mover.move_region(segment, next, region)).await? == Region::Done {
            return Ok(());
        }
        if !self.backoff.wait(self.pin.session()).await {
            return Ok(());
        }
        let held = cold(mover.try_recover_lock(segment, next, region)).await?;
        self.backoff.check_holder(&self.pin, held).await
    }
}
