//! Moving a region of a table to the next table, under the region's lock.
//!
//! 1. *Freeze*, by CAS: empty slots are sealed, entries frozen. READ again, until nothing changes any more.
//! 2. *Copy*: each frozen entry is put into the next table, where a lookup finds it. Records that lie behind their heads
//!    take two steps: the slot is reserved for the entry, then WRITE of the words and CAS of the head.
//! 3. *Release*: frozen entries are marked as moved; the region is marked as done.
//!
//! Nobody looks for a key in the next table before its entry here is marked as moved, so an entry's copy is nobody else's
//! until then. Whoever takes over from a dead mover begins again, finds the copies that are there already, and makes the
//! others. All of it goes by what is there; the dead one's intent is not asked.

use super::geometry::{DONE, LOCKED, REGION, Segment, signature};
use super::slot::{self, EMPTY, FROZEN, MOVED, SEALED, Slot, Stamp, frozen, gather};
use super::table::{Table, clear};
use crate::IndexError;
use crate::block::{self, Decoded, HEADER_LEN, Header, UNIT};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use farindex_fabric::{Buf, RemotePtr, Span};
use farindex_pool::{Claim, Intent, IntentCell, Pin, PoolError, Taken};
use std::collections::BTreeMap;

/// What an intent's first word says.
pub(super) mod steps {
    /// Making the next table: then the generation, and the regions it will have.
    pub(crate) const GROW: u64 = 1;
    /// Moving a region: then its number and the generation.
    pub(crate) const MOVE: u64 = 2;
    /// Finishing what a dead client has left.
    pub(crate) const RESCUE: u64 = 3;
}

/// How a region is doing after an attempt to move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    /// It has been moved.
    Done,
    /// Somebody else is moving it.
    Busy,
}

/// Somebody who moves regions, under a pin.
pub(super) struct Mover<'a> {
    pub(super) index: u64,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

/// An entry on its way.
struct Entry {
    /// Its slot.
    source: u64,
    hash: KeyHash,
    form: Form,
    /// The block that it leaves behind.
    leaves: Option<(RemotePtr, u64)>,
}

enum Form {
    /// The same key and value in the head, or the same block.
    Head(u64),
    /// Behind the head.
    Inline { key: Vec<u8>, value: Vec<u8> },
}

/// The next table as far as it was read: regions, by number.
type Cache = BTreeMap<u64, Vec<u64>>;

impl Entry {
    /// Is this slot of the next table its copy, or reserved for it?
    fn is_at(&self, head: u64, behind: &[u64]) -> bool {
        match (&self.form, Slot::decode(head)) {
            (_, Slot::Reserved(source)) => source == self.source,
            (Form::Head(mine), Slot::Heap { ptr, .. }) => {
                matches!(Slot::decode(*mine), Slot::Heap { ptr: of, .. } if of == ptr)
            }
            (Form::Head(mine), Slot::Tiny { .. }) => {
                slot::restamped(*mine, Stamp::CLAIMED) == slot::restamped(head, Stamp::CLAIMED)
            }
            (Form::Inline { key, value }, Slot::Inline { tag, key: of, value: len, .. }) => {
                (of, len) == (key.len(), value.len()) && behind.starts_with(&slot::words(tag, key, value))
            }
            _ => false,
        }
    }
}

fn corrupt(at: RemotePtr, what: &str) -> IndexError {
    PoolError::Corrupt { at, what: what.to_owned() }.into()
}

impl Mover<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Moves a region, unless that was done or somebody is at it.
    pub(super) async fn move_region(&self, from: Segment, to: Segment, region: u64) -> Result<Region, IndexError> {
        let lock = from.lock(region);
        let cell = self.pin.session().intent_cell(lock.at.node()).await?;
        let mut batch = self.span().batch();
        let what = [steps::MOVE, region, from.generation, 0];
        cell.declare(&mut batch, &Intent { index: self.index, lock, what });
        let taken = batch.cas(lock.at, 0, LOCKED);
        let read = batch.read(from.slot(region * REGION), REGION as usize * from.width);
        let mut done = batch.post().await?;
        match done.old(taken) {
            0 => {
                let seen = done.buf(read);
                drop(done);
                self.move_locked(from, to, region, &cell, seen).await.map(|()| Region::Done)
            }
            other => {
                clear(self.span(), &cell).await?;
                Ok(if other == DONE { Region::Done } else { Region::Busy })
            }
        }
    }

    /// Claims a region's lock if its holder has died, and moves the region. If it is alive, says what to know it by.
    pub(super) async fn look_after(&self, from: Segment, to: Segment, region: u64) -> Result<Option<u64>, IndexError> {
        let what = [steps::RESCUE, region, from.generation, 0];
        match self.pin.session().claim(self.span(), from.lock(region), None, self.index, what).await? {
            Claim::Free | Claim::Unsteady => Ok(None),
            Claim::Busy { names, .. } => Ok(Some(names)),
            Claim::Taken(Taken { cell: Some(cell), .. }) => {
                mark!("linear rescue: region claimed");
                let seen = self.span().read(from.slot(region * REGION), REGION as usize * from.width).await?;
                self.move_locked(from, to, region, &cell, seen).await.map(|()| None)
            }
            Claim::Taken(_) => Ok(None),
        }
    }

    /// Under the lock. It is not left held because something was wrong; only a failed verb leaves it open what holds (N7).
    async fn move_locked(
        &self,
        from: Segment,
        to: Segment,
        region: u64,
        cell: &IntentCell<'_>,
        seen: Buf,
    ) -> Result<(), IndexError> {
        match self.try_move(from, to, region, cell, seen).await {
            Err(error @ IndexError::Fabric(_)) => Err(error),
            Err(error) => {
                let mut batch = self.span().batch();
                batch.cas(from.lock(region).at, LOCKED, 0);
                cell.clear(&mut batch);
                batch.post().await?;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    async fn try_move(
        &self,
        from: Segment,
        to: Segment,
        region: u64,
        cell: &IntentCell<'_>,
        seen: Buf,
    ) -> Result<(), IndexError> {
        mark!("linear move");
        let still = self.freeze(&from, region, seen).await?;
        let entries = self.entries(&from, region, still).await?;
        self.place(&to, &entries).await?;
        let mut batch = self.span().batch();
        for entry in &entries {
            batch.write_words(from.slot(entry.source), &[MOVED]);
        }
        batch.cas(from.lock(region).at, LOCKED, DONE);
        cell.clear(&mut batch);
        batch.post().await?;
        for (ptr, len) in entries.iter().filter_map(|entry| entry.leaves) {
            self.pin.retire(ptr, len);
        }
        self.table.note(0, to.generation, entries.len() as i64);
        Ok(())
    }

    /// Makes every slot of the region stand still; returns what they hold then.
    async fn freeze(&self, from: &Segment, region: u64, mut seen: Buf) -> Result<Buf, IndexError> {
        let first = region * REGION;
        loop {
            let mut batch = self.span().batch();
            for (index, slot) in (first..).zip(seen.words().chunks_exact(from.width / 8)) {
                let head = slot.first().copied().unwrap_or_default();
                match Slot::decode(head) {
                    Slot::Empty if planted(Fault::LinearUnsealed) => {}
                    Slot::Empty => drop(batch.cas(from.slot(index), head, SEALED)),
                    Slot::Tiny { .. } | Slot::Inline { .. } | Slot::Heap { .. } if !frozen(head) => {
                        batch.cas(from.slot(index), head, head | FROZEN);
                    }
                    Slot::Unknown | Slot::Reserved(_) => {
                        return Err(corrupt(from.slot(index), &format!("a slot of a whole table holds {head:#018x}")));
                    }
                    _ => {}
                }
            }
            if batch.is_empty() {
                return Ok(seen);
            }
            let again = batch.read(from.slot(first), REGION as usize * from.width);
            seen = batch.post().await?.buf(again);
        }
    }

    /// The frozen entries, and what becomes of them. A record that fits behind a head goes there.
    async fn entries(&self, from: &Segment, region: u64, mut still: Buf) -> Result<Vec<Entry>, IndexError> {
        let step = from.width / 8;
        let stamp = Stamp::of_pin(self.pin.epoch());
        let fits = slot::capacity(from.width);
        let (mut entries, mut blocks) = (Vec::new(), Vec::new());
        let mut batch = self.span().block_batch();
        for (i, source) in (region * REGION..(region + 1) * REGION).enumerate() {
            let first = i * step;
            let head = still.words().get(first).copied().unwrap_or_default();
            match Slot::decode(head) {
                Slot::Tiny { key, .. } => {
                    let key = still.bytes().get(first * 8..first * 8 + key).unwrap_or_default();
                    let form = Form::Head(slot::restamped(head, stamp));
                    entries.push(Entry { source, hash: KeyHash::of(key), form, leaves: None });
                }
                Slot::Inline { tag, key, value, .. } => {
                    let words = still.words_mut().get_mut(first + 1..first + step).unwrap_or_default();
                    if !slot::whole(tag, key + value, words) {
                        return Err(corrupt(from.slot(source), "a record's words do not belong together"));
                    }
                    let bytes = still.bytes_mut().get_mut((first + 1) * 8..(first + step) * 8).unwrap_or_default();
                    gather(bytes, key + value);
                    let (key, rest) = bytes.split_at_checked(key).unwrap_or_default();
                    let value = rest.get(..value).unwrap_or_default();
                    let form = Form::Inline { key: key.to_vec(), value: value.to_vec() };
                    entries.push(Entry { source, hash: KeyHash::of(key), form, leaves: None });
                }
                Slot::Heap { ptr, units, .. } => {
                    let len = units as usize * UNIT;
                    // Only a block that may be short enough is worth more than its header.
                    let whole = len < block::block_len(fits, 0) + UNIT && fits > 0;
                    blocks.push((source, head, ptr, batch.read(ptr, if whole { len } else { HEADER_LEN })));
                }
                _ => {}
            }
        }
        let mut done = batch.post().await?;
        for (source, head, ptr, ticket) in blocks {
            let buf = done.buf(ticket);
            let header = Header::decode(buf.words());
            let header = header.ok_or_else(|| corrupt(ptr, "a block's header makes no sense"))?;
            let entry = match block::decode(&buf) {
                Decoded::Sound(_, key, value) if header.key_len + header.value_len <= fits => {
                    let part = |range: std::ops::Range<usize>| buf.bytes().get(range).unwrap_or_default().to_vec();
                    let form = Form::Inline { key: part(key), value: part(value) };
                    let leaves = Some((ptr, header.block_len() as u64));
                    Entry { source, hash: header.hash, form, leaves }
                }
                _ => {
                    let form = Form::Head(slot::restamped(head, stamp));
                    Entry { source, hash: header.hash, form, leaves: None }
                }
            };
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Puts the entries into the next table, those that are not there yet.
    async fn place(&self, to: &Segment, entries: &[Entry]) -> Result<(), IndexError> {
        let mut cache = Cache::new();
        let homes = entries.iter().map(|entry| to.home(entry.hash) / REGION).collect();
        self.fetch(to, homes, &mut cache).await?;
        let mut left: Vec<&Entry> = entries.iter().collect();
        let mut reserved = Vec::new();
        while !left.is_empty() {
            let mut batch = self.span().batch();
            let mut asked = Vec::new();
            for entry in left.drain(..) {
                let (index, head) = self.find_place(to, entry, &mut cache).await?;
                if head == EMPTY {
                    let head = match &entry.form {
                        Form::Head(head) => *head,
                        Form::Inline { .. } => slot::reserved(entry.source),
                    };
                    asked.push((entry, index, batch.cas(to.slot(index), EMPTY, head)));
                    put(&mut cache, to, index, head);
                } else if let Slot::Reserved(_) = Slot::decode(head) {
                    mark!("linear rescue: reserved slot found");
                    reserved.push((entry, index));
                }
            }
            let mut done = batch.post().await?;
            let mut stale = Vec::new();
            for (entry, index, ticket) in asked {
                if done.old(ticket) != EMPTY {
                    mark!("linear move: slot taken");
                    stale.push(index / REGION);
                    left.push(entry);
                } else if let Form::Inline { .. } = entry.form {
                    reserved.push((entry, index));
                }
            }
            drop(done);
            self.fetch(to, stale, &mut cache).await?;
        }
        let mut batch = self.span().batch();
        for (entry, index) in reserved {
            if let Form::Inline { key, value } = &entry.form {
                // Nobody has written there in this table but who moved this very entry, and that was the same.
                let tag = 1;
                let at = to.slot(index);
                batch.write_words(at.add(8), &slot::words(tag, key, value));
                let head = slot::inline(tag, key.len(), value.len(), signature(entry.hash));
                batch.cas(at, slot::reserved(entry.source), head);
            }
        }
        batch.post().await?;
        Ok(())
    }

    /// The first slot from the entry's home on that holds it, or is empty: its number and its head.
    async fn find_place(&self, to: &Segment, entry: &Entry, cache: &mut Cache) -> Result<(u64, u64), IndexError> {
        let home = to.home(entry.hash);
        let step = to.width / 8;
        for walked in 0..to.slots() {
            let index = to.after(home, walked);
            if !cache.contains_key(&(index / REGION)) {
                self.fetch(to, vec![index / REGION], cache).await?;
            }
            let first = (index % REGION) as usize * step;
            let slot = cache.get(&(index / REGION)).and_then(|words| words.get(first..first + step));
            let Some((&head, behind)) = slot.and_then(<[u64]>::split_first) else { break };
            if head == EMPTY || entry.is_at(head, behind) {
                return Ok((index, head));
            }
            if frozen(head) || matches!(Slot::decode(head), Slot::Sealed | Slot::Moved | Slot::Unknown) {
                return Err(corrupt(to.slot(index), &format!("a slot of a table in the making holds {head:#018x}")));
            }
        }
        let (node, wanted) = (to.start.node(), to.slots() * to.width as u64);
        let size = self.pin.session().pool().superblock(node).region_len;
        Err(PoolError::Full { node, wanted, size }.into())
    }

    /// READs regions of the next table, all in one batch.
    async fn fetch(&self, to: &Segment, mut regions: Vec<u64>, cache: &mut Cache) -> Result<(), IndexError> {
        regions.sort_unstable();
        regions.dedup();
        let mut batch = self.span().batch();
        let read = |region: u64| (region, batch.read(to.slot(region * REGION), REGION as usize * to.width));
        let asked: Vec<_> = regions.into_iter().map(read).collect();
        let mut done = batch.post().await?;
        cache.extend(asked.into_iter().map(|(region, ticket)| (region, done.buf(ticket).words().to_vec())));
        Ok(())
    }
}

/// Notes a head in the cache.
fn put(cache: &mut Cache, to: &Segment, index: u64, head: u64) {
    let first = (index % REGION) as usize * (to.width / 8);
    if let Some(word) = cache.get_mut(&(index / REGION)).and_then(|words| words.get_mut(first)) {
        *word = head;
    }
}
