//! Inserting, changing, removing: one CAS of a head word each.
//!
//! A record that fits the head word is in it. Every other one is in a block when its head is CASed in; if it fits the words
//! behind the head, and those are nobody's, whoever put it in moves it there: WRITE of the words, and CAS of the head from
//! *heap* to *inline*, in one batch. So nobody ever waits for the writer of a slot, and a writer that dies leaves an entry.

use super::geometry::{REGION, Segment, signature};
use super::lookup::{Along, Behind, Gap, Hit, Looked, Op, Purpose};
use super::migrate::{Mover, Region};
use super::slot::{self, DEAD, EMPTY, Slot, Stamp, frozen};
use super::{Mode, Wrote};
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use crate::traits::Remove;
use farindex_fabric::RemotePtr;

/// What is to be put in.
pub(super) struct Record<'a> {
    pub(super) value: &'a [u8],
    /// Its block and the block's length, unless it fits a head word.
    pub(super) block: Option<(RemotePtr, usize)>,
}

/// What became of an attempt to insert.
enum Put {
    Done,
    /// The slot was taken: look again.
    Again,
    /// The next table may not take any more before this one has been moved.
    NoRoom,
}

impl Op<'_> {
    /// Looks for the key, and does what `mode` says.
    pub(super) async fn write(
        &mut self,
        mode: Mode,
        record: &Record<'_>,
        along: &mut Along,
    ) -> Result<Wrote, IndexError> {
        loop {
            match self.look(Purpose::Change, along).await? {
                Looked::Hit(_) if mode == Mode::Insert => return Ok(Wrote::Exists),
                Looked::Hit(hit) if frozen(hit.head) => self.help(hit.segment, hit.index).await?,
                Looked::Hit(hit) => {
                    if self.replace(&hit, record).await? {
                        return Ok(Wrote::Updated);
                    }
                }
                Looked::Absent(_) | Looked::Full if mode == Mode::Update => return Ok(Wrote::Absent),
                Looked::Absent(gap) => match self.put(&gap, record).await? {
                    Put::Done => return Ok(Wrote::Inserted(gap.segment.generation)),
                    Put::Again => {}
                    Put::NoRoom => {
                        mark!("linear put: no room yet");
                        return Ok(Wrote::NoRoom);
                    }
                },
                Looked::Full => return Ok(Wrote::Full),
            }
        }
    }

    /// Does the record go behind its head, which replaces `old`?
    fn goes_inline(&self, segment: &Segment, record: &Record<'_>, old: Slot) -> bool {
        record.block.is_some()
            && self.key.len() + record.value.len() <= slot::capacity(segment.width)
            && old.yields_its_words(self.pin.epoch())
    }

    /// The head for a record in place of `old`.
    fn head(&self, record: &Record<'_>, old: Slot, inline: bool) -> u64 {
        let stamp = match old {
            _ if inline => Stamp::CLAIMED,
            // Whoever has claimed the words, or has not read them to the end, may still be there.
            Slot::Tiny { stamp, .. } | Slot::Heap { stamp, .. } => stamp,
            _ => Stamp::of_pin(self.pin.epoch()),
        };
        match record.block {
            Some((ptr, len)) => slot::heap(ptr, len, signature(self.hash), stamp),
            None => slot::tiny(self.key, record.value, stamp).unwrap_or(DEAD),
        }
    }

    /// Puts an absent key into the first empty slot.
    async fn put(&mut self, gap: &Gap, record: &Record<'_>) -> Result<Put, IndexError> {
        if !self.has_room(gap).await? {
            return Ok(Put::NoRoom);
        }
        let inline = self.goes_inline(&gap.segment, record, Slot::Empty);
        let head = self.head(record, Slot::Empty, inline);
        if self.span().cas(gap.segment.slot(gap.index), EMPTY, head).await? != EMPTY {
            mark!("linear put: CAS lost");
            return Ok(Put::Again);
        }
        if inline {
            self.settle_inline(&gap.segment, gap.index, head, &gap.behind, record).await?;
        }
        Ok(Put::Done)
    }

    /// May another key come into this segment? While the table is being moved there, only as many as leave room for what
    /// has yet to be moved.
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
        let old = Slot::decode(hit.head);
        let inline = self.goes_inline(&hit.segment, record, old);
        let head = self.head(record, old, inline);
        if !self.swap(hit, head).await? {
            return Ok(false);
        }
        if inline {
            mark!("linear replace: inline again");
            self.settle_inline(&hit.segment, hit.index, head, &hit.behind, record).await?;
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

    /// Moves a record from its block to the words behind its head. If somebody was faster with the next change, it stays.
    async fn settle_inline(
        &self,
        segment: &Segment,
        index: u64,
        head: u64,
        behind: &Behind,
        record: &Record<'_>,
    ) -> Result<(), IndexError> {
        let tag = slot::unused_tag(behind);
        let at = segment.slot(index);
        let mut batch = self.span().batch();
        batch.write_words(at.add(8), &slot::words(tag, self.key, record.value));
        let inline = slot::inline(tag, self.key.len(), record.value.len(), signature(self.hash));
        let swapped = batch.cas(at, head, inline);
        if batch.post().await?.old(swapped) != head {
            mark!("linear inline: overtaken");
        } else if let Some((ptr, len)) = record.block {
            self.pin.retire(ptr, len as u64);
        }
        Ok(())
    }

    /// Takes the key out. Its slot stays in use until the table is moved.
    pub(super) async fn remove(&mut self) -> Result<Remove, IndexError> {
        loop {
            match self.look(Purpose::Change, &mut None).await? {
                Looked::Hit(hit) if frozen(hit.head) => self.help(hit.segment, hit.index).await?,
                Looked::Hit(hit) => {
                    let emptied = if planted(Fault::LinearEmptied) { EMPTY } else { DEAD };
                    if self.swap(&hit, emptied).await? {
                        return Ok(Remove::Removed);
                    }
                }
                Looked::Absent(_) | Looked::Full => return Ok(Remove::Absent),
            }
        }
    }

    /// An entry that is being moved cannot be changed: moves its region, or waits for who is at it.
    async fn help(&mut self, segment: Segment, index: u64) -> Result<(), IndexError> {
        mark!("linear write: helps moving");
        let geometry = self.table.geometry();
        let (Some(next), true) = (geometry.next, geometry.current.generation == segment.generation) else {
            return self.table.sync(self.span(), self.pin.epoch()).await.map(drop);
        };
        let region = index / REGION;
        let mover = Mover { index: self.linear.uid(), table: self.table, pin: &self.pin };
        if Box::pin(mover.move_region(segment, next, region)).await? == Region::Done {
            return Ok(());
        }
        if !self.backoff.wait(self.pin.session()).await {
            return Ok(());
        }
        match Box::pin(mover.look_after(segment, next, region)).await? {
            Some(names) => {
                let lock = segment.lock(region).at;
                self.backoff.bear(self.pin.session(), self.pin.span(), lock, names).await
            }
            None => Ok(()),
        }
    }
}
