//! Moves a region of a table to the next table, under the region's lock.
//!
//! 1. *Freeze*: CASes seal empty slots and freeze entries. The region is READ again until nothing changes any more.
//! 2. *Copy*: each frozen entry is inserted into the next table, where a lookup finds it. A record behind its head
//!    takes two steps: a CAS reserves the slot for the entry, then a batch WRITEs the words and CASes the head.
//! 3. *Release*: frozen entries are marked as moved, and the region as done.
//!
//! No client looks for a key in the next table before its entry here is marked as moved. So no other client changes an
//! entry's copy until then. If a mover crashes, the client that takes over starts again, finds the copies that exist,
//! and makes the others. It derives all of this from the tables; it does not need the crashed client's intent.

use super::Table;
use crate::IndexError;
use crate::marks::mark;
use crate::slotted::geometry::{REGION, Segment, signature};
use crate::slotted::mover::{self, Entry, Form, RegionMigrator, corrupt};
use crate::slotted::slot::{self, EMPTY, Slot, Stamp, frozen};
use farindex_fabric::{Buf, Span};
use farindex_pool::{IntentCell, Pin, PoolError};
use std::collections::BTreeMap;

/// Moves regions, under a pin.
pub(super) struct Mover<'a> {
    pub(super) index: u64,
    /// Seed of the index's key hash.
    pub(super) seed: u64,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

/// The regions of the next table that were read, by number.
type Cache = BTreeMap<u64, Vec<u64>>;

/// Returns whether this slot of the next table holds the entry's copy, or is reserved for it.
fn is_at(entry: &Entry, head: u64, behind: &[u64]) -> bool {
    match (&entry.form, Slot::decode(head)) {
        (_, Slot::Reserved(source)) => source == entry.source,
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

impl RegionMigrator for Mover<'_> {
    fn pin(&self) -> &Pin<'_> {
        self.pin
    }
    fn index(&self) -> u64 {
        self.index
    }

    async fn move_under_lock(
        &self,
        from: Segment,
        to: Segment,
        region: u64,
        cell: &IntentCell<'_>,
        seen: Buf,
    ) -> Result<(), IndexError> {
        mark!("linear move");
        let still = mover::freeze(self.span(), &from, region, seen).await?;
        let entries = mover::entries(self.pin, self.seed, &from, region, still).await?;
        self.place(&to, &entries).await?;
        mover::finish(self.pin, &from, region, cell, &entries).await?;
        self.table.note(0, to.generation, entries.len() as i64);
        Ok(())
    }
}

impl Mover<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Copies the entries to the next table, except those that are there already.
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
                    mark!("linear recovery: reserved slot found");
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
                // In this table, only a mover of this very entry can have written these words, and it wrote the same.
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

    /// Returns number and head of the first slot from the entry's home on that holds the entry or is empty.
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
            if head == EMPTY || is_at(entry, head, behind) {
                return Ok((index, head));
            }
            if frozen(head) || matches!(Slot::decode(head), Slot::Sealed | Slot::Moved | Slot::Unknown) {
                return Err(corrupt(to.slot(index), &format!("a slot of the next table holds {head:#018x}")));
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

/// Records a head in the cache.
fn put(cache: &mut Cache, to: &Segment, index: u64, head: u64) {
    let first = (index % REGION) as usize * (to.width / 8);
    if let Some(word) = cache.get_mut(&(index / REGION)).and_then(|words| words.get_mut(first)) {
        *word = head;
    }
}
