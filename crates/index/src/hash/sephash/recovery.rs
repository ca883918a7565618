//! Putting right what the dead and the slow leave.
//!
//! *A lock.* Whoever has waited too long claims it ([`farindex_pool::takeover`]). What lies under it, the segment says:
//!
//! * The control word is still of the old generation and the segment is not full: whoever held the lock was landing a slot;
//!   release it.
//! * It is full, and the word main is of the next generation: that MainSegment has everything that is to stay, and some of the
//!   slots may have been emptied. Publish it.
//! * It is full, and the directory has no word of the child: nothing that anyone relies on was changed: merge. If there is no
//!   room for that, make CurSegMeta whole again.
//! * It is full, and the directory names the child: a split had written everything but CurSegMeta. The child holds the
//!   upper half, and says where the lower one lies. Publish that, as the split would have. That takes no memory.
//! * The control word has turned: release the child of the latest split, if that is locked under this lock, and then this.
//!
//! *A landing.* A slot that is taken and does not land holds up everyone who wants the next one. Once every operation has
//! ended that was at work when that was seen, nobody is left to land it: under the lock, everyone may.

use super::layout::{Control, FILTER, Filter, LOCKED, META_LEN, Meta, fp2_of, fp2_words};
use super::lookup::first_word;
use super::main_segment::{self, Item};
use super::merge::{Held, Merged, control_of, lock_of, main_items, steps};
use super::probe::{Op, Segment, count_taken, damaged, taken};
use super::{SepHash, Table};
use crate::IndexError;
use crate::backoff::release_after_failed_recovery;
use crate::extendible::Entry as Word;
use crate::marks::mark;
use farindex_fabric::RemotePtr;
use farindex_pool::{Claim, Intent, IntentCell, LockTimeout, Pin, Taken, intent};
use std::time::Duration;

/// Somebody who looks after others, under a pin.
pub(super) struct Recovery<'p, 's> {
    pub index: &'p SepHash,
    pub table: &'p Table,
    pub pin: &'p Pin<'s>,
}

impl Op<'_> {
    /// Looks after whoever holds a segment.
    pub(super) async fn try_recover_lock(&mut self, segment: Segment) -> Result<(), IndexError> {
        let recovery = Recovery { index: self.index, table: self.table, pin: &self.pin };
        match recovery.try_recover_lock(segment).await? {
            Some((lock, names)) => {
                self.backoff.wait_for_lock_holder(self.pin.session(), self.pin.span(), lock, names).await
            }
            None => Ok(()),
        }
    }

    /// Lands what nobody else will, under the lock of the segment.
    pub(super) async fn land(&mut self, segment: Segment, seen: Control) -> Result<(), IndexError> {
        let geometry = self.index.geometry;
        let cell = self.pin.session().intent_cell(segment.at.node()).await?;
        let locked = Control(seen.0 | LOCKED);
        let since = self.pin.session().endpoint().now();
        let mut batch = self.pin.span().batch();
        let what = [steps::LAND, segment.suffix, seen.generation(), 0];
        cell.declare(&mut batch, &Intent { index: self.index.uid, lock: lock_of(segment.at), what });
        let won = batch.cas(segment.at, seen.0, locked.0);
        let cur = batch.read(segment.at, geometry.bytes());
        let mut done = batch.post().await?;
        if done.old(won) != seen.0 {
            drop(done);
            let mut batch = self.pin.span().batch();
            cell.clear(&mut batch);
            batch.post().await?;
            return Ok(());
        }
        let cur = done.buf(cur);
        drop(done);
        let groups = cur.words().get(META_LEN / 8..).unwrap_or_default().to_vec();
        let (index, table, pin) = (self.index, self.table, &self.pin);
        let held = Held { index, table, pin, cell: Some(&cell), segment, control: locked, groups, since };
        match held.land(Meta::parse(cur.words())).await {
            Err(error @ IndexError::Fabric(_)) => Err(error),
            Err(error) => {
                held.release().await?;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Held<'_, '_> {
    /// Writes second fingerprints, filter and count of all slots that are taken, and releases the lock.
    async fn land(&self, meta: Option<Meta>) -> Result<(), IndexError> {
        let geometry = self.index.geometry;
        let generation = self.control.generation();
        let slots: Vec<(usize, Item)> = taken(geometry, &self.groups, generation).collect();
        let state = meta.and_then(|meta| meta.state());
        if state.is_some_and(|state| state.count == slots.len()) {
            return self.release().await;
        }
        if slots.iter().enumerate().any(|(i, (slot, _))| i != *slot) {
            return Err(damaged(self.segment.at, "the slots of a segment have been taken out of order"));
        }
        mark!("land: for somebody who is gone");
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
        Ok(())
    }
}

impl Recovery<'_, '_> {
    /// The word of a segment, by its suffix.
    async fn word_of(&self, suffix: u64) -> Result<Word, IndexError> {
        let directory = &self.table.directory;
        let depth = crate::extendible::layout::width(suffix).max(directory.shape().initial_depth);
        let found = directory.look_up(self.pin.span(), suffix, depth.saturating_sub(1), depth).await?;
        Ok(found.filter(|(of, _)| *of == suffix).map_or(Word::NONE, |(_, word)| word))
    }

    /// Claims the lock that is in the way of a segment, if its holder has died, and puts right what it left. If it is
    /// alive, says which lock it is and what to know the holder by.
    pub(super) async fn try_recover_lock(&self, segment: Segment) -> Result<Option<(RemotePtr, u64)>, IndexError> {
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
                // The split that made this one has released it; but who claims the parent may claim it too.
                under = Some(lock_of(parent.at));
                break;
            }
        }
        let lock = lock_of(segment.at);
        let what = [steps::RESCUE, segment.suffix, 0, 0];
        match self.pin.session().claim(span, lock, under, self.index.uid, what).await? {
            Claim::Free | Claim::Unsteady => Ok(None),
            Claim::Busy { names, .. } => Ok(Some((lock.at, names))),
            Claim::Taken(Taken { cell, .. }) => {
                mark!("rescue: lock claimed");
                let done = self.recover_locked(segment, cell.as_ref()).await;
                release_after_failed_recovery(span, cell.as_ref(), done).await.map(|()| None)
            }
        }
    }

    /// Under the lock: finishes or undoes what was begun, and releases it.
    async fn recover_locked(&self, segment: Segment, cell: Option<&IntentCell<'_>>) -> Result<(), IndexError> {
        let (index, span) = (self.index, self.pin.span());
        let geometry = index.geometry;
        let cur = span.read(segment.at, geometry.bytes()).await?;
        let meta = Meta::parse(cur.words()).ok_or_else(|| damaged(segment.at, "too short"))?;
        let control = meta.control;
        let groups = cur.words().get(META_LEN / 8..).unwrap_or_default().to_vec();
        let since = span.endpoint().now();
        let held = Held { index, table: self.table, pin: self.pin, cell, segment, control, groups, since };
        // The child of the latest split may be locked still, by that split or by somebody who came later.
        let born = crate::extendible::layout::width(segment.suffix).max(index.config.initial_depth);
        if control.depth() > born {
            let child = segment.suffix | 1 << (control.depth() - 1);
            let word = self.word_of(child).await?;
            if !word.is_none() {
                self.release_child(Segment::new((child, word))).await?;
            }
        }
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
            mark!("rescue: generation turned");
            return held.publish(span.batch(), old, child, true).await;
        }
        if let Some(child) = child {
            mark!("rescue: split finished");
            // Nothing has landed in the child: it is locked as long as this segment is.
            let at = child.add(geometry.at(geometry.fp2_word(0)));
            let lower = RemotePtr::from_bits(first_word(&span.read(at, 8).await?));
            return held.publish(span.batch(), self.with_len(lower).await?, Some(child), true).await;
        }
        let slots: Vec<Item> = taken(geometry, &held.groups, control.generation()).map(|(_, item)| item).collect();
        // Second fingerprints are computed anew: whose landing is missing may have died.
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
            // The pool is full: whoever needs a slot begins again, or is told.
            Merged::Room(..) => {
                mark!("rescue: no room to merge");
                held.restore(old, &cur).await
            }
        }
    }

    /// A MainSegment with its length. Whichever a death has left, it is whole; but the length beside a word that names it may
    /// be another one's.
    async fn with_len(&self, main: RemotePtr) -> Result<(RemotePtr, usize), IndexError> {
        if main.is_null() {
            return Ok((main, 0));
        }
        let kind = self.index.config.table;
        let head = self.pin.span().read(main, main_segment::head_len(kind)).await?;
        Ok((main, main_segment::len_in(kind, head.words())))
    }

    /// Waits for the lock of a child that this lock may cover, or claims it and puts the child right.
    async fn release_child(&self, child: Segment) -> Result<(), IndexError> {
        let (session, span) = (self.pin.session(), self.pin.span());
        let mut lock_timeout = LockTimeout::default();
        while control_of(span, child.at).await?.locked() {
            match session.claim_covered(span, lock_of(child.at)).await? {
                Claim::Taken(_) => {
                    mark!("rescue: child released");
                    return Box::pin(self.recover_locked(child, None)).await;
                }
                Claim::Busy { names, .. }
                    if lock_timeout.held_for(names, session.endpoint().now()) > session.pool().lease() * 2 =>
                {
                    let holder = intent::holders(session, span, child.at).await?;
                    let waited_ms = (session.pool().lease() * 2).as_millis() as u64;
                    return Err(IndexError::Locked { at: child.at, waited_ms, holder });
                }
                _ => session.endpoint().sleep(Duration::from_micros(50)).await,
            }
        }
        Ok(())
    }
}
