//! Recovery of segments whose lock a crashed client holds, and of slots that have not landed.
//!
//! *Locks.* A client that has waited too long for a lock claims it ([`crate::recovery`]). The segment's words determine
//! what to recover:
//!
//! * The control word is of the old generation, and the segment is not full: the holder was landing a slot. Release the
//!   lock.
//! * The segment is full, and the word main is of the next generation: that MainSegment has all entries that stay, and
//!   some of the slots may have been emptied. Publish it.
//! * The segment is full, and the directory has no word of the child: no client relies on any change. Merge. If the
//!   pool has no room for that, restore CurSegMeta.
//! * The segment is full, and the directory names the child: a split had written everything but CurSegMeta. The child
//!   holds the upper half, and has the address of the lower one. Publish the lower half, as the split would have done.
//!   That takes no memory.
//! * The control word is of the next generation: release the child of the latest split, if it is locked under this
//!   lock, and then this lock.
//!
//! *Landing.* A slot that is taken and has not landed blocks all appends to the segment. Once every operation has ended
//! that was running when the slot was observed, no operation will land it: then any client may land it, under the lock.

use super::layout::{Control, FILTER, Filter, LOCKED, META_LEN, Meta, fp2_of, fp2_words};
use super::main_segment::{self, Item};
use super::merge::{Held, Merged, control_of, intents, lock_of, main_items};
use super::probe::{Op, Segment, Unsettled, count_taken, taken};
use super::{SepHash, Table};
use crate::IndexError;
use crate::extendible::Entry as Word;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::recovery::{HeldLock, acquire, claim_and_recover_all, recover_covered, release_on_error};
use farindex_fabric::{Batch, RemotePtr, cold};
use farindex_pool::{Intent, IntentCell, Pin};

/// Recovers segments of a table, under a pin.
pub(super) struct Recovery<'p, 's> {
    pub index: &'p SepHash,
    pub table: &'p Table,
    pub pin: &'p Pin<'s>,
}

impl Op<'_> {
    /// Recovers the segment if the client that holds its lock has crashed.
    pub(super) async fn try_recover_lock(&mut self, segment: Segment) -> Result<(), IndexError> {
        let recovery = Recovery { index: self.index, table: self.table, pin: &self.pin };
        let held = recovery.try_recover_lock(segment).await?;
        self.backoff.check_holder(&self.pin, held).await
    }

    /// Lands the slots of crashed clients, under the lock of the segment, if it is still as it was seen: another client may
    /// have landed them meanwhile, and then a slot that is taken belongs to somebody else.
    pub(super) async fn land(&mut self, segment: Segment, control: Control, seen: Unsettled) -> Result<(), IndexError> {
        let geometry = self.index.geometry;
        let cell = self.pin.session().intent_cell(segment.at.node()).await?;
        let locked = Control(control.0 | LOCKED);
        let since = self.pin.session().endpoint().now();
        let what = [intents::LAND, segment.suffix, control.generation(), 0];
        let intent = Intent { index: self.index.uid, lock: lock_of(segment.at), what };
        let read = |batch: &mut Batch<'_>| batch.read(segment.at, geometry.bytes());
        let acquired = acquire(self.pin.span(), &cell, &intent, (control.0, locked.0), read).await?;
        let Ok((mut done, cur)) = acquired else { return Ok(()) };
        let cur = done.buf(cur);
        drop(done);
        let groups = cur.words().get(META_LEN / 8..).unwrap_or_default().to_vec();
        let (index, table, pin) = (self.index, self.table, &self.pin);
        let held = Held { index, table, pin, cell: Some(&cell), segment, control: locked, groups, since };
        let meta = Meta::parse(cur.words());
        if Unsettled::of(meta.as_ref()) != seen {
            mark!("sephash recovery: slot landed meanwhile");
            return held.release().await;
        }
        release_on_error(held.land(meta).await, async || held.release().await).await
    }
}

impl Held<'_, '_> {
    /// WRITEs second fingerprints, filter and count of all taken slots, and releases the lock.
    async fn land(&self, meta: Option<Meta>) -> Result<(), IndexError> {
        let geometry = self.index.geometry;
        let generation = self.control.generation();
        let slots: Vec<(usize, Item)> = taken(geometry, &self.groups, generation).collect();
        let state = meta.and_then(|meta| meta.state());
        if state.is_some_and(|state| state.count == slots.len()) {
            return self.release().await;
        }
        if slots.iter().enumerate().any(|(i, (slot, _))| i != *slot) {
            return Err(IndexError::corrupt(self.segment.at, "the slots of a segment have been taken out of order"));
        }
        mark!("sephash recovery: slot landed");
        let ptrs: Vec<RemotePtr> = slots.iter().map(|(_, item)| item.entry.ptr).collect();
        let headers = self.headers(&ptrs).await?;
        let filter = slots.iter().fold(Filter::default(), |filter, (_, item)| filter.with(item.entry.fp));
        let fp2s = slots.iter().zip(headers).map(|((slot, _), header)| (*slot, fp2_of(header.hash)));
        let mut batch = self.span().batch();
        for (at, word) in fp2_words(geometry, fp2s) {
            batch.write_words(self.segment.at.add(geometry.at(at)), &[word]);
        }
        batch.write_words(self.segment.at.add(FILTER as u64 * 8), &filter.stamped(generation, slots.len()));
        batch.faa(self.segment.at, LOCKED.wrapping_neg());
        if let Some(cell) = self.cell {
            cell.clear(&mut batch);
        }
        batch.post().await?;
        self.cell.inspect(|cell| cell.cleared());
        Ok(())
    }
}

impl Recovery<'_, '_> {
    /// Looks up the directory's word of a suffix.
    async fn word_of(&self, suffix: u64) -> Result<Word, IndexError> {
        let directory = &self.table.directory;
        let depth = directory.shape().creation_depth(suffix);
        let found = directory.look_up(self.pin.span(), suffix, depth.saturating_sub(1), depth).await?;
        Ok(found.filter(|(of, _)| *of == suffix).map_or(Word::NONE, |(_, word)| word))
    }

    /// Claims the lock that blocks a segment if its holder has crashed, and recovers what the lock protects. The lock
    /// is that of the nearest locked ancestor, or the segment's own. Returns the lock if its holder may be alive.
    pub(super) async fn try_recover_lock(&self, segment: Segment) -> Result<Option<HeldLock>, IndexError> {
        let span = self.pin.span();
        let shape = self.table.directory.shape();
        let (mut segment, mut under) = (segment, None);
        while let Some(suffix) = shape.parent(segment.suffix) {
            let word = self.word_of(suffix).await?;
            if word.is_none() {
                break;
            }
            let parent = Segment::new((suffix, word));
            if control_of(span, parent.at).await?.locked() {
                segment = parent;
            } else {
                // The split that created this segment has released it; but a client that claims the parent may claim it
                // too.
                under = Some(lock_of(parent.at));
                break;
            }
        }
        let what = [intents::RECOVER, segment.suffix, 0, 0];
        let recover = async |_, cell: &IntentCell<'_>| {
            mark!("sephash recovery: lock claimed");
            self.recover_locked(segment, Some(cell)).await
        };
        claim_and_recover_all(self.pin, self.index.uid, (lock_of(segment.at), under), what, recover).await
    }

    /// Recovers the child of the latest split, if that is locked; then finishes or undoes an interrupted change of this segment,
    /// under its lock, and releases the lock. Returns the lock of the child if its holder may be alive.
    async fn recover_locked(
        &self,
        segment: Segment,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<Option<HeldLock>, IndexError> {
        let (index, span) = (self.index, self.pin.span());
        let geometry = index.geometry;
        let cur = span.read(segment.at, geometry.bytes()).await?;
        let meta = Meta::parse(cur.words()).ok_or_else(|| IndexError::corrupt(segment.at, "too short"))?;
        let control = meta.control;
        let groups = cur.words().get(META_LEN / 8..).unwrap_or_default().to_vec();
        let since = span.endpoint().now();
        let held = Held { index, table: self.table, pin: self.pin, cell, segment, control, groups, since };
        let created = self.table.directory.shape().creation_depth(segment.suffix);
        if control.depth() > created {
            let child = segment.suffix | 1 << (control.depth() - 1);
            let word = self.word_of(child).await?;
            if !word.is_none() {
                // It may still be locked by that split, or by a later client.
                let child = Segment::new((child, word));
                let held = recover_covered(self.pin, lock_of(child.at), async || {
                    mark!("sephash recovery: child released");
                    cold(self.recover_locked(child, None)).await
                });
                if let Some(held) = held.await? {
                    return Ok(Some(held));
                }
            }
        }
        self.end_change(&held, &meta).await.map(|()| None)
    }

    /// Finishes or undoes an interrupted change, under the lock, and releases the lock.
    async fn end_change(&self, held: &Held<'_, '_>, meta: &Meta) -> Result<(), IndexError> {
        let (index, span, segment, control) = (self.index, self.pin.span(), held.segment, held.control);
        let geometry = index.geometry;
        if count_taken(geometry, &held.groups, control.generation()).0 < geometry.slots {
            return held.release().await;
        }
        let child = segment.suffix | 1 << control.depth();
        let word = match control.depth() < index.config.max_depth {
            true => self.word_of(child).await?,
            false => Word::NONE,
        };
        let child = (!word.is_none()).then(|| word.at());
        let old = self.with_len(meta.main()).await?;
        if meta.main_is_of(control.generation() + 1) {
            mark!("sephash recovery: generation turned");
            return held.publish(span.batch(), old, child, true).await;
        }
        if let Some(child) = child {
            mark!("sephash recovery: split finished");
            // Nothing has landed in the child: it is locked as long as this segment is.
            let at = child.add(geometry.at(geometry.fp2_word(0)));
            let lower = RemotePtr::from_bits(read_word(span, at).await?);
            return held.publish(span.batch(), self.with_len(lower).await?, Some(child), true).await;
        }
        let slots: Vec<Item> = taken(geometry, &held.groups, control.generation()).map(|(_, item)| item).collect();
        // Second fingerprints are computed again: those of slots that have not landed may be missing.
        let ptrs: Vec<_> = slots.iter().map(|item| item.entry.ptr).collect();
        let headers = held.headers(&ptrs).await?;
        let cur: Vec<Item> =
            slots.iter().zip(headers).map(|(item, header)| Item { fp2: fp2_of(header.hash), ..*item }).collect();
        let (main, len) = old;
        let words = match len {
            0 => span.endpoint().buf(0),
            _ => span.read(main, main_segment::bytes(index.config.table, len) as usize).await?,
        };
        let items = main_items(index, words.words(), len);
        match held.merge(old, items, cur.clone()).await? {
            Merged::Done => Ok(()),
            // The pool is full: the next operation that needs a slot tries to merge, or fails.
            Merged::Room(..) => {
                mark!("sephash recovery: no room to merge");
                held.restore(old, &cur).await
            }
        }
    }

    /// Reads the length of a MainSegment. After a crash a MainSegment is complete, but the length in CurSegMeta may be
    /// that of another one.
    async fn with_len(&self, main: RemotePtr) -> Result<(RemotePtr, usize), IndexError> {
        if main.is_null() {
            return Ok((main, 0));
        }
        let kind = self.index.config.table;
        let head = self.pin.span().read(main, main_segment::head_len(kind)).await?;
        Ok((main, main_segment::len_in(kind, head.words())))
    }
}
