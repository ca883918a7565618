//! Merge and split (4.2.2).
//!
//! Both happen under the segment's lock, when all slots are taken and have landed: so no client writes to the segment
//! meanwhile, and no WRITE of an append is in flight. Lookups continue: until the control word shows the next
//! generation, the segment is unchanged for them.
//!
//! 1. {WRITE intent; CAS lock; READ CurSegment; READ MainSegment}.
//! 2. READ the blocks of entries that share both fingerprints, to distinguish equal keys from different ones. Every
//!    fourth split READs the headers of all blocks, for the next four bits of their hashes.
//! 3. WRITE the new MainSegment; for a split both of them, and a CurSegment that is locked.
//! 4. {split: WRITE the word of the directory; WRITE CurSegMeta; FAA control; split: FAA control of the new CurSegment,
//!    FAA control; CAS intent}.
//!
//! Four round trips, a split every fourth time five; the paper allows five.

use super::layout::{
    Control, Entry, FILTER, Filter, LOCKED, META_LEN, Meta, ROUND, State, dep_of, empty_slots, fp2_words,
};
use super::main_segment::{self, Item};
use super::probe::{Need, Op, Segment, Step, taken};
use super::views::{Occupancy, View};
use super::{SepHash, Table, empty_segment};
use crate::IndexError;
use crate::block::{HEADER_LEN, Header, UNIT};
use crate::extendible::Entry as Word;
use crate::faults::{Fault, planted};
use crate::join::try_join_all;
use crate::maintenance::{read_headers, read_word};
use crate::marks::mark;
use crate::recovery::{acquire, release_on_error};
use farindex_fabric::{Batch, RemotePtr, Span, Ticket};
use farindex_pool::{Intent, IntentCell, Lock, Pin, PoolError};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The first word of an intent: the kind of step that its client is about to take.
pub(super) mod intents {
    pub(in super::super) const MERGE: u64 = 1;
    pub(in super::super) const LAND: u64 = 2;
    pub(in super::super) const RECOVER: u64 = 3;
}

/// Number of headers that one batch READs.
const HEADERS_PER_BATCH: usize = 256;

/// The lock of a segment.
pub(super) fn lock_of(at: RemotePtr) -> Lock {
    Lock { at, mask: LOCKED }
}

/// A segment that this client has locked, with its words as read since.
pub(super) struct Held<'p, 's> {
    pub index: &'p SepHash,
    pub table: &'p Table,
    pub pin: &'p Pin<'s>,
    /// `None` for a lock that another lock covers.
    pub cell: Option<&'p IntentCell<'s>>,
    pub segment: Segment,
    /// The control word, locked.
    pub control: Control,
    /// The words of the CurSegment's groups.
    pub groups: Vec<u64>,
    /// Time at which the lock was requested.
    pub since: Duration,
}

/// Result of a merge.
pub(super) enum Merged {
    /// The merge is done, and the lock is released.
    Done,
    /// The pool had no room for this many bytes. Nothing has changed, and the lock is still held.
    Room(u64, IndexError),
}

/// Entries that a merge keeps, and entries that it drops.
struct Outcome {
    kept: Vec<Item>,
    dropped: Vec<Item>,
}

/// Headers and keys of the blocks that were READ.
type Keys = BTreeMap<RemotePtr, (Header, Vec<u8>)>;

impl Op<'_> {
    /// Merges the key's segment if it is full.
    pub(super) async fn merge_if_full(&mut self) -> Result<Step<()>, IndexError> {
        let probe = match self.probe(Need { main: false, window: true }, &mut None).await? {
            Step::Done(probe) => probe,
            other => return Ok(other.map()),
        };
        if probe.slot < self.index.geometry.slots {
            return Ok(Step::Done(()));
        }
        match self.merge(probe.segment, &probe.state).await? {
            // The next operation that needs a slot tries again, and reports the error.
            Step::Done(()) | Step::Room(_) => Ok(Step::Done(())),
            other => Ok(other),
        }
    }

    /// Merges a segment that was observed full.
    pub(super) async fn merge(&mut self, segment: Segment, state: &State) -> Result<Step<()>, IndexError> {
        let (index, geometry) = (self.index, self.index.geometry);
        let cell = self.pin.session().intent_cell(segment.at.node()).await?;
        let free = Control::new(state.generation, state.depth, false);
        let control = Control::new(state.generation, state.depth, true);
        let since = self.pin.session().endpoint().now();
        let what = [intents::MERGE, segment.suffix, state.generation, u64::from(state.depth)];
        let intent = Intent { index: index.uid, lock: lock_of(segment.at), what };
        let reads = |batch: &mut Batch<'_>| {
            (batch.read(segment.at, geometry.bytes()), self.read_main(batch, state.main, state.len))
        };
        let acquired = acquire(self.pin.span(), &cell, &intent, (free.0, control.0), reads).await?;
        let Ok((mut done, (cur, main))) = acquired else {
            mark!("merge: lock lost");
            drop(cell);
            self.wait_for(segment).await?;
            return Ok(Step::Again);
        };
        let cur = done.buf(cur);
        let main = main.map(|main| done.buf(main));
        drop(done);
        let groups = cur.words().get(META_LEN / 8..).unwrap_or_default().to_vec();
        let cur: Vec<Item> = taken(geometry, &groups, state.generation).map(|(_, item)| item).collect();
        let (table, pin) = (self.table, &self.pin);
        let held = Held { index, table, pin, cell: Some(&cell), segment, control, groups, since };
        let merged = match cur.len() == geometry.slots {
            true => {
                let main = main.map_or_else(Vec::new, |main| main_items(index, main.words(), state.len));
                held.merge((state.main, state.len), main, cur).await
            }
            false => held.release().await.map(|()| Merged::Done),
        };
        match release_on_error(merged, async || held.release().await).await? {
            Merged::Done => Ok(Step::Done(())),
            Merged::Room(bytes, error) => {
                held.release().await?;
                self.full = Some(error);
                Ok(Step::Room(bytes))
            }
        }
    }

    fn read_main(&self, batch: &mut Batch<'_>, main: RemotePtr, len: usize) -> Option<Ticket> {
        (len > 0).then(|| batch.read(main, main_segment::bytes(self.index.config.table, len) as usize))
    }
}

/// The items of a whole MainSegment.
pub(super) fn main_items(index: &SepHash, words: &[u64], len: usize) -> Vec<Item> {
    let head = main_segment::head_len(index.config.table) / 8;
    main_segment::items(words.get(head..).unwrap_or_default(), 0..len).collect()
}

impl Held<'_, '_> {
    pub(super) fn span(&self) -> &Span {
        self.pin.span()
    }
    /// Time since the lock was requested.
    fn took(&self) -> Duration {
        self.span().endpoint().now().saturating_sub(self.since)
    }

    /// Releases the lock of a segment that has not been changed.
    pub(super) async fn release(&self) -> Result<(), IndexError> {
        let mut batch = self.span().batch();
        batch.faa(self.segment.at, LOCKED.wrapping_neg());
        if let Some(cell) = self.cell {
            cell.clear(&mut batch);
        }
        batch.post().await?;
        self.cell.inspect(|cell| cell.cleared());
        Ok(())
    }

    /// Merges the entries of the CurSegment, in the order of their slots, into those of the MainSegment; splits the
    /// segment if the result is too large.
    pub(super) async fn merge(
        &self,
        old: (RemotePtr, usize),
        main: Vec<Item>,
        cur: Vec<Item>,
    ) -> Result<Merged, IndexError> {
        let Outcome { mut kept, dropped } = self.resolve(main, cur).await?;
        let depth = self.control.depth();
        let config = &self.index.config;
        if kept.len() <= self.index.main_cap() || depth >= config.max_depth {
            return self.write_merged(old, kept, dropped).await;
        }
        let child = self.segment.suffix | 1 << depth;
        let place = match self.table.directory.ensure(self.pin, child).await {
            Ok(Some(place)) => place,
            // Without room for a split, the MainSegment grows.
            Ok(None) | Err(IndexError::Pool(PoolError::Full { .. })) => {
                return self.write_merged(old, kept, dropped).await;
            }
            Err(error) => return Err(error),
        };
        let upper = self.halve(&mut kept).await?;
        self.write_split(old, child, place, kept, upper, dropped).await
    }

    /// Determines which entries stay: of each key the newest one, unless it removes the key.
    async fn resolve(&self, main: Vec<Item>, cur: Vec<Item>) -> Result<Outcome, IndexError> {
        let group = |item: &Item| (item.entry.fp, item.fp2);
        let mut sizes: BTreeMap<(u8, u8), (usize, usize)> = BTreeMap::new();
        for item in &cur {
            sizes.entry(group(item)).or_default().0 += 1;
        }
        for item in &main {
            if let Some(size) = sizes.get_mut(&group(item)) {
                size.1 += 1;
            }
        }
        let ambiguous = |item: &Item| sizes.get(&group(item)).is_some_and(|(cur, main)| cur + main > 1);
        let unknown: Vec<Entry> =
            cur.iter().chain(&main).filter(|item| ambiguous(item)).map(|item| item.entry).collect();
        let keys = self.keys(&unknown).await?;
        let mut seen: HashSet<&[u8]> = HashSet::new();
        let (mut kept, mut dropped) = (Vec::with_capacity(main.len() + cur.len()), Vec::new());
        for item in cur.iter().rev().chain(&main) {
            // The MainSegment has no two entries of a key.
            let superseded = match keys.get(&item.entry.ptr) {
                Some((_, key)) if ambiguous(item) => !seen.insert(key),
                _ => false,
            };
            if superseded || item.entry.removes() { dropped.push(*item) } else { kept.push(*item) }
        }
        kept.sort_unstable_by_key(|item| (item.entry.fp, item.fp2, item.entry.ptr));
        // An entry that a crashed client has merged before appears twice, with the same block.
        kept.dedup_by_key(|item| item.entry.ptr);
        let staying: BTreeSet<RemotePtr> = match dropped.is_empty() {
            true => BTreeSet::new(),
            false => kept.iter().map(|item| item.entry.ptr).collect(),
        };
        dropped.retain(|item| !staying.contains(&item.entry.ptr));
        dropped.sort_unstable_by_key(|item| item.entry.ptr);
        dropped.dedup_by_key(|item| item.entry.ptr);
        Ok(Outcome { kept, dropped })
    }

    /// READs the keys of these entries' blocks.
    async fn keys(&self, entries: &[Entry]) -> Result<Keys, IndexError> {
        let mut keys = Keys::new();
        let mut long = Vec::new();
        for part in entries.chunks(HEADERS_PER_BATCH) {
            let mut batch = self.span().block_batch();
            let tickets: Vec<_> = part.iter().map(|entry| batch.read(entry.ptr, UNIT)).collect();
            let mut done = batch.post().await?;
            for (entry, ticket) in part.iter().zip(tickets) {
                let buf = done.buf(ticket);
                let header =
                    Header::decode(buf.words()).ok_or_else(|| IndexError::corrupt(entry.ptr, "no block begins so"))?;
                match buf.bytes().get(HEADER_LEN..HEADER_LEN + header.key_len) {
                    Some(key) => drop(keys.insert(entry.ptr, (header, key.to_vec()))),
                    None => long.push((entry.ptr, header)),
                }
            }
        }
        for (ptr, header) in long {
            let len = HEADER_LEN + header.key_len;
            let mut batch = self.span().block_batch();
            let ticket = batch.read(ptr, len.next_multiple_of(8));
            let buf = batch.post().await?.buf(ticket);
            let key = buf.bytes().get(HEADER_LEN..len).unwrap_or_default();
            keys.insert(ptr, (header, key.to_vec()));
        }
        Ok(keys)
    }

    /// READs the headers of these blocks, in one round trip.
    pub(super) async fn headers(&self, ptrs: &[RemotePtr]) -> Result<Vec<Header>, IndexError> {
        let parts = ptrs.chunks(HEADERS_PER_BATCH).map(async |part: &[RemotePtr]| {
            let headers = read_headers(self.span(), part).await?.into_iter().zip(part);
            let sound = |(header, ptr): (Option<Header>, &RemotePtr)| {
                header.ok_or_else(|| IndexError::corrupt(*ptr, "no block begins so"))
            };
            headers.map(sound).collect::<Result<Vec<_>, IndexError>>()
        });
        Ok(try_join_all(parts).await?.concat())
    }

    /// Removes the entries whose bit of this split is set from sorted ones, and returns them. If a round begins with
    /// this split, renews the depth information of all entries.
    async fn halve(&self, items: &mut Vec<Item>) -> Result<Vec<Item>, IndexError> {
        let depth = self.control.depth();
        let renews = (depth + 1).is_multiple_of(ROUND);
        let mut sides: Vec<bool> = items.iter().map(|item| item.entry.dep >> (depth % ROUND) & 1 == 1).collect();
        if renews || !self.index.config.resize_entry {
            mark!("split: headers read");
            let ptrs: Vec<_> = items.iter().map(|item| item.entry.ptr).collect();
            let headers = self.headers(&ptrs).await?;
            for ((item, side), header) in items.iter_mut().zip(&mut sides).zip(headers) {
                *side = header.hash.bits() >> depth & 1 == 1;
                item.entry.dep = dep_of(header.hash, depth + 1);
            }
        }
        let mut sides = sides.into_iter();
        Ok(items.extract_if(.., |_| sides.next().unwrap_or(false)).collect())
    }

    /// Allocates memory for a MainSegment of `len` entries; null if `len` is 0.
    async fn alloc_main(&self, len: usize) -> Result<RemotePtr, PoolError> {
        match len {
            0 => Ok(RemotePtr::NULL),
            _ => {
                let bytes = main_segment::bytes(self.index.config.table, len);
                self.pin.session().alloc_now(self.span(), self.table.node, bytes).await
            }
        }
    }

    async fn discard(&self, ptr: RemotePtr, bytes: u64) {
        if !ptr.is_null() {
            self.pin.session().discard(ptr, bytes);
        }
    }

    fn main_bytes(&self, len: usize) -> u64 {
        main_segment::bytes(self.index.config.table, len)
    }

    /// Steps 3 and 4 of a merge.
    async fn write_merged(
        &self,
        old: (RemotePtr, usize),
        kept: Vec<Item>,
        dropped: Vec<Item>,
    ) -> Result<Merged, IndexError> {
        let bytes = self.main_bytes(kept.len());
        let main = match self.alloc_main(kept.len()).await {
            Ok(main) => main,
            Err(error @ PoolError::Full { .. }) => return Ok(Merged::Room(bytes, error.into())),
            Err(error) => return Err(error.into()),
        };
        let sizes = self.sizes(&dropped).await?;
        let table = Arc::new(main_segment::table_of(self.index.config.table, &kept));
        let mut batch = self.span().batch();
        if !main.is_null() {
            batch.write(main, main_segment::encode(self.span().endpoint(), self.index.config.table, &table, &kept));
        }
        batch.post().await?;
        mark!("merge");
        let next = Control::new(self.control.generation() + 1, self.control.depth(), false);
        self.publish(self.span().batch(), (main, kept.len()), None, !dropped.is_empty()).await?;
        self.table.growth.merged(self.took());
        self.note(self.segment.suffix, next, main, kept.len(), table);
        self.retire(old, sizes);
        Ok(Merged::Done)
    }

    /// Steps 3 and 4 of a split.
    async fn write_split(
        &self,
        old: (RemotePtr, usize),
        child: u64,
        place: RemotePtr,
        lower: Vec<Item>,
        upper: Vec<Item>,
        dropped: Vec<Item>,
    ) -> Result<Merged, IndexError> {
        let session = self.pin.session();
        let geometry = self.index.geometry;
        let kind = self.index.config.table;
        let wanted = [
            (!lower.is_empty()).then(|| self.main_bytes(lower.len())),
            (!upper.is_empty()).then(|| self.main_bytes(upper.len())),
            Some(geometry.bytes() as u64),
        ];
        let mut got = [RemotePtr::NULL; 3];
        for (i, bytes) in wanted.iter().enumerate() {
            let Some(bytes) = *bytes else { continue };
            match session.alloc_now(self.span(), self.table.node, bytes).await {
                Ok(ptr) => got[i] = ptr,
                Err(error) => {
                    for (ptr, bytes) in got.into_iter().zip(wanted) {
                        self.discard(ptr, bytes.unwrap_or_default()).await;
                    }
                    return match error {
                        PoolError::Full { .. } => Ok(Merged::Room(bytes, error.into())),
                        error => Err(error.into()),
                    };
                }
            }
        }
        let [main, upper_main, at] = got;
        let sizes = self.sizes(&dropped).await?;
        let depth = self.control.depth() + 1;
        let (table, upper_table) = (main_segment::table_of(kind, &lower), main_segment::table_of(kind, &upper));
        let locked = Control::new(0, depth, true);
        let word = Word::new(at, depth as u16).ok_or_else(|| IndexError::corrupt(at, "no segment can lie here"))?;
        let endpoint = self.span().endpoint();
        if planted(Fault::EarlyDirectory) {
            self.span().write(place, endpoint.buf_from_words(&[word.to_bits()])).await?;
        }
        let mut batch = self.span().batch();
        if !main.is_null() {
            batch.write(main, main_segment::encode(endpoint, kind, &table, &lower));
        }
        if !upper_main.is_null() {
            batch.write(upper_main, main_segment::encode(endpoint, kind, &upper_table, &upper));
        }
        let mut child_words = empty_segment(session, geometry, locked, upper_main, upper.len());
        // A client that recovers the split finds the lower half through the child.
        if let Some(word) = child_words.words_mut().get_mut(META_LEN / 8 + geometry.fp2_word(0)) {
            *word = main.to_bits();
        }
        batch.write(at, child_words);
        batch.post().await?;
        mark!("split");
        let mut batch = self.span().batch();
        batch.write_words(place, &[word.to_bits()]);
        // A later merge of the child may drop entries that were in these slots.
        self.publish(batch, (main, lower.len()), Some(at), true).await?;
        self.table.growth.split(self.took());
        let next = Control::new(self.control.generation() + 1, depth, false);
        self.note(self.segment.suffix, next, main, lower.len(), Arc::new(table));
        self.note(child, Control::new(0, depth, false), upper_main, upper.len(), Arc::new(upper_table));
        self.table.directory.published(child, word);
        self.retire(old, sizes);
        Ok(Merged::Done)
    }

    /// Publishes the next generation of a segment, and the next depth after a split; then releases the child, and
    /// behind it the segment: as long as a split holds the child, it holds the parent. `empties`: see
    /// [`renew`](Self::renew).
    pub(super) async fn publish(
        &self,
        mut batch: Batch<'_>,
        (main, len): (RemotePtr, usize),
        child: Option<RemotePtr>,
        empties: bool,
    ) -> Result<(), IndexError> {
        let depth = self.control.depth() + u32::from(child.is_some());
        let next = Control::new(self.control.generation() + 1, depth, false);
        self.renew(&mut batch, next, main, len, empties);
        match child {
            None => drop(batch.faa(self.segment.at, self.control.towards(next))),
            Some(child) => {
                let locked = Control(next.0 | LOCKED);
                batch.faa(self.segment.at, self.control.towards(locked));
                batch.faa(child, LOCKED.wrapping_neg());
                batch.faa(self.segment.at, LOCKED.wrapping_neg());
            }
        }
        if let Some(cell) = self.cell {
            cell.clear(&mut batch);
        }
        batch.post().await?;
        self.cell.inspect(|cell| cell.cleared());
        Ok(())
    }

    /// Restores CurSegMeta of this generation, of which words of the next one may be left, and releases the lock. Every
    /// slot that CurSegMeta counts must have landed: the crashed holder may have been landing the last slot. So the
    /// second fingerprints are written as well. `cur` are the entries of all slots.
    pub(super) async fn restore(&self, (main, len): (RemotePtr, usize), cur: &[Item]) -> Result<(), IndexError> {
        let filter = cur.iter().fold(Filter::default(), |filter, item| filter.with(item.entry.fp));
        let mut words = Meta::words_of(self.control, main, len);
        words[FILTER..].copy_from_slice(&filter.stamped(self.control.generation(), cur.len()));
        let geometry = self.index.geometry;
        let mut batch = self.span().batch();
        for (at, word) in fp2_words(geometry, cur.iter().map(|item| item.fp2).enumerate()) {
            batch.write_words(self.segment.at.add(geometry.at(at)), &[word]);
        }
        batch.write_words(self.segment.at.add(8), &words[1..]);
        batch.post().await?;
        self.release().await
    }

    /// WRITEs CurSegMeta of the next generation, without the control word. `empties` states that blocks of this
    /// generation's entries may be reused before all slots are taken again. Then the slots are emptied as well: an
    /// append CASes a slot from the word that is left in it, and that word must never appear again. Second fingerprints
    /// are written back as they were read under the lock.
    fn renew(&self, batch: &mut Batch<'_>, next: Control, main: RemotePtr, len: usize, empties: bool) {
        batch.write_words(self.segment.at.add(8), &Meta::words_of(next, main, len)[1..]);
        if empties || !self.index.config.resize_entry {
            mark!("merge: slots emptied");
            let mut buf = self.span().endpoint().buf_from_words(&self.groups);
            empty_slots(self.index.geometry, buf.words_mut(), self.control.generation());
            batch.write(self.segment.at.add(META_LEN as u64), buf);
        }
    }

    fn note(&self, suffix: u64, control: Control, main: RemotePtr, len: usize, table: Arc<super::fptable::FpTable>) {
        let occupancy = Occupancy::new(0, self.pin.span().endpoint().now());
        let view = View { generation: control.generation(), main, len, table, fresh: true, occupancy };
        self.table.views.set(suffix, view);
    }

    /// Returns the bytes of blocks that are about to be dropped. Some of their entries do not state them.
    async fn sizes(&self, dropped: &[Item]) -> Result<Vec<(RemotePtr, u64)>, IndexError> {
        let unknown: Vec<_> =
            dropped.iter().filter(|item| item.entry.bytes().is_none()).map(|item| item.entry.ptr).collect();
        let mut headers = self.headers(&unknown).await?.into_iter();
        let size = |item: &Item| {
            let bytes = item.entry.bytes().or_else(|| headers.next().map(|header| header.block_len() as u64));
            (item.entry.ptr, bytes.unwrap_or_default())
        };
        Ok(dropped.iter().map(size).collect())
    }

    /// Retires memory that no entry names any more.
    fn retire(&self, (main, len): (RemotePtr, usize), dropped: Vec<(RemotePtr, u64)>) {
        if !main.is_null() {
            self.pin.retire(main, self.main_bytes(len));
        }
        for (ptr, bytes) in dropped {
            self.pin.retire(ptr, bytes);
        }
        self.pin.session().want_epoch(8);
    }
}

/// READs the control word of a segment.
pub(super) async fn control_of(span: &Span, at: RemotePtr) -> Result<Control, IndexError> {
    Ok(Control(read_word(span, at).await?))
}
