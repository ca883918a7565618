//! Makes room for a key by displacing entries to later places of their keys.
//!
//! A breadth-first search starts at the key's buckets. It goes from each bucket to the later places of the keys in it,
//! until a bucket has a free slot. Then the entries on that path move, the last one first. Each entry is frozen, copied
//! to its new slot, and then cleared in its old slot, under the lock of the region that it leaves.

use super::places::{WAYS, first_slots, place_of};
use super::{Cuckoo, Table};
use crate::IndexError;
use crate::block::{HEADER_LEN, Header};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::recovery::clear_intent;
use crate::slotted::geometry::{LOCKED, REGION, Segment};
use crate::slotted::intents;
use crate::slotted::mover::release;
use crate::slotted::record::{InlineWords, Record};
use crate::slotted::slot::{self, FROZEN, Slot, frozen, gather, unused_tag, vacant, whole};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Intent, Pin};
use std::collections::BTreeSet;

/// Maximum number of buckets that a search READs.
const MAX_BUCKETS: usize = 256;

/// Result of an attempt to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Made,
    /// Another client has changed an entry on the path.
    Changed,
    /// Another client holds this region of the table, which an entry on the path would leave.
    Held(Segment, u64),
    /// Every path is too long, or there is none.
    None,
}

/// Result of an attempt to move one entry.
enum Moved {
    /// Its slot is free.
    Freed(At),
    /// The entry, or its new slot, has changed.
    Changed,
    /// Another client holds the entry's region.
    Held,
}

/// A bucket that the search has reached.
struct Node {
    segment: Segment,
    first: u64,
    words: Vec<u64>,
    /// The bucket from which it was reached, and the slot there whose entry may move here.
    from: Option<(usize, u64)>,
}

/// A slot, and the words that were read of it.
#[derive(Clone)]
struct At {
    segment: Segment,
    index: u64,
    head: u64,
    behind: InlineWords,
}

impl At {
    fn ptr(&self) -> RemotePtr {
        self.segment.slot(self.index)
    }
}

/// A bucket to look into: the key's place in the table, and in the next one if there is.
struct Wanted {
    from: Option<(usize, u64)>,
    older: (Segment, u64),
    newer: Option<(Segment, u64)>,
}

/// Makes room for keys, under a pin.
pub(super) struct Displacer<'a> {
    pub(super) cuckoo: &'a Cuckoo,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

impl Displacer<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Makes room at one of the key's places.
    pub(super) async fn make_room(&self, hash: KeyHash) -> Result<Room, IndexError> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut wanted = self.wanted(hash, 0, None);
        let mut done = 0;
        while !wanted.is_empty() && nodes.len() < MAX_BUCKETS {
            wanted.retain(|want| seen.insert((want.older.0.generation, want.older.1)));
            wanted.truncate(MAX_BUCKETS - nodes.len());
            nodes.extend(self.look_into(wanted).await?);
            if let Some((node, free)) = (done..nodes.len()).find_map(|i| Some((i, self.free_in(&nodes[i])?))) {
                return self.shift(&nodes, node, free).await;
            }
            wanted = self.onward(&nodes, done).await?;
            done = nodes.len();
        }
        mark!("cuckoo displace: no path");
        Ok(Room::None)
    }

    /// Returns the buckets of a key's places, from this place on.
    fn wanted(&self, hash: KeyHash, place: usize, from: Option<(usize, u64)>) -> Vec<Wanted> {
        let geometry = self.table.geometry();
        let associativity = self.table.own.associativity;
        let firsts = first_slots(hash, &geometry.current, associativity);
        let newer = geometry.next.map(|next| (next, first_slots(hash, &next, associativity)));
        let want = |place: usize| Wanted {
            from,
            older: (geometry.current, firsts[place]),
            newer: newer.map(|(next, firsts)| (next, firsts[place])),
        };
        (place..WAYS).map(want).collect()
    }

    /// READs buckets. For each place it chooses the bucket of the next table if all entries were moved there.
    async fn look_into(&self, wanted: Vec<Wanted>) -> Result<Vec<Node>, IndexError> {
        let len = self.table.own.bucket_bytes();
        let mut batch = self.span().batch();
        let mut asked = Vec::new();
        for want in wanted {
            let read = |(segment, first): (Segment, u64)| batch.read(segment.slot(first), len);
            let tickets: Vec<_> = [Some(want.older), want.newer].into_iter().flatten().map(read).collect();
            asked.push((want, tickets));
        }
        let mut done = batch.post().await?;
        let mut nodes = Vec::new();
        for (want, tickets) in asked {
            let mut read = tickets.into_iter().map(|ticket| done.buf(ticket).words().to_vec());
            let Some(words) = read.next() else { continue };
            let is_moved = |head: &u64| matches!(Slot::decode(*head), Slot::Sealed | Slot::Moved);
            let closed = words.iter().step_by(self.table.own.width / 8).all(is_moved);
            let node = |(segment, first), words| Node { segment, first, words, from: want.from };
            match (want.newer, read.next()) {
                (Some(newer), Some(words)) if closed => nodes.push(node(newer, words)),
                _ => nodes.push(node(want.older, words)),
            }
        }
        Ok(nodes)
    }

    /// Returns the slots of a bucket as they were read.
    fn slots<'n>(&self, node: &'n Node) -> impl Iterator<Item = At> + use<'n> {
        let segment = node.segment;
        let slots = (node.first..).zip(node.words.chunks_exact(segment.width / 8));
        slots.filter_map(move |(index, words)| {
            let (head, behind) = words.split_first()?;
            Some(At { segment, index, head: *head, behind: behind.iter().copied().collect() })
        })
    }

    fn free_in(&self, node: &Node) -> Option<At> {
        self.slots(node).find(|at| matches!(Slot::decode(at.head), Slot::Empty | Slot::Vacant { .. }))
    }

    /// Returns the buckets to which the entries of the latest buckets may move.
    async fn onward(&self, nodes: &[Node], from: usize) -> Result<Vec<Wanted>, IndexError> {
        let mut wanted = Vec::new();
        let mut batch = self.span().block_batch();
        let mut blocks = Vec::new();
        let mut add = |node: usize, at: &At, hash: KeyHash| {
            let place = place_of(hash, &at.segment, self.table.own.associativity, at.index);
            wanted.extend(self.wanted(hash, place.map_or(WAYS, |place| place + 1), Some((node, at.index))));
        };
        for (i, node) in nodes.iter().enumerate().skip(from) {
            for at in self.slots(node).filter(|at| !frozen(at.head)) {
                match Slot::decode(at.head) {
                    Slot::Heap { ptr, .. } => blocks.push((i, at, batch.read(ptr, HEADER_LEN))),
                    slot => {
                        if let Some((key, _)) = in_slot(slot, &at) {
                            add(i, &at, self.cuckoo.hash(&key));
                        }
                    }
                }
            }
        }
        let mut done = batch.post().await?;
        for (i, at, ticket) in blocks {
            if let Some(header) = Header::decode(done.buf(ticket).words()) {
                add(i, &at, header.hash);
            }
        }
        Ok(wanted)
    }

    /// Moves the entries of the path to this bucket, the last one first.
    async fn shift(&self, nodes: &[Node], mut node: usize, mut free: At) -> Result<Room, IndexError> {
        while let Some((before, index)) = nodes[node].from {
            let Some(at) = self.slots(&nodes[before]).find(|at| at.index == index) else { return Ok(Room::Changed) };
            free = match self.move_one(&at, &free).await? {
                Moved::Freed(freed) => freed,
                Moved::Changed => {
                    mark!("cuckoo displace: changed meanwhile");
                    return Ok(Room::Changed);
                }
                Moved::Held => return Ok(Room::Held(at.segment, at.index / REGION)),
            };
            node = before;
        }
        Ok(Room::Made)
    }

    /// Moves one entry to a free slot of a later place of its key.
    async fn move_one(&self, from: &At, to: &At) -> Result<Moved, IndexError> {
        let (session, epoch) = (self.pin.session(), self.pin.epoch());
        let region = from.index / REGION;
        let lock = from.segment.lock(region);
        let old = Slot::decode(from.head);
        // A record behind its head is first written to a block, like every record that is inserted.
        let inline = in_slot(old, from).filter(|_| matches!(old, Slot::Inline { .. }));
        let (record, mut piggyback) = match &inline {
            Some((key, value)) => {
                let parts = (self.cuckoo.hash(key), key.as_slice(), value.as_slice());
                let (record, piggyback) = Record::new_now(session, self.span(), lock.at.node(), parts).await?;
                (Some(record), piggyback)
            }
            None => (None, None),
        };
        let discard = || record.iter().for_each(|record| record.discard(session));
        let goes_inline =
            record.as_ref().is_some_and(|record| record.goes_inline(to.segment.width, Slot::decode(to.head), epoch));
        let copy = match &record {
            Some(record) => record.head(Slot::decode(to.head), goes_inline, epoch),
            None => slot::restamped(from.head, Slot::decode(to.head).stamp_after(epoch)),
        };
        let cell = session.intent_cell(lock.at.node()).await?;
        let mut batch = self.span().batch();
        if let Some((ptr, buf)) = piggyback.take() {
            batch.write(ptr, buf);
        }
        let what = [intents::DISPLACE, from.index, from.segment.generation, to.ptr().to_bits()];
        cell.declare(&mut batch, &Intent { index: self.cuckoo.uid, lock, what });
        let taken = batch.cas(lock.at, 0, LOCKED);
        let held = batch.post().await?.old(taken);
        if held != 0 {
            clear_intent(self.span(), &cell).await?;
            discard();
            return Ok(if held == LOCKED { Moved::Held } else { Moved::Changed });
        }
        mark!("cuckoo displace");
        let still = from.head | FROZEN;
        let left = vacant(old.stamp_after(epoch));
        if planted(Fault::CuckooEarlyClear) {
            self.span().cas(from.ptr(), from.head, left).await?;
            self.span().cas(to.ptr(), to.head, copy).await?;
            release(self.span(), &from.segment, region, &cell).await?;
            return Ok(Moved::Freed(At { head: left, ..from.clone() }));
        }
        if self.span().cas(from.ptr(), from.head, still).await? != from.head {
            release(self.span(), &from.segment, region, &cell).await?;
            discard();
            return Ok(Moved::Changed);
        }
        let put = self.span().cas(to.ptr(), to.head, copy).await? == to.head;
        let mut batch = self.span().batch();
        batch.cas(from.ptr(), still, if put { left } else { from.head });
        batch.cas(lock.at, LOCKED, 0);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        if !put {
            mark!("cuckoo displace: undone");
            discard();
            return Ok(Moved::Changed);
        }
        if let Some(record) = record.filter(|_| goes_inline) {
            record.settle_inline(self.pin, to.ptr(), copy, unused_tag(&to.behind)).await?;
        }
        Ok(Moved::Freed(At { head: left, ..from.clone() }))
    }
}

/// Returns key and value of an entry that is stored in its slot; `None` if it is not, or if the record is torn.
fn in_slot(slot: Slot, at: &At) -> Option<(Vec<u8>, Vec<u8>)> {
    let (bytes, key, value) = match slot {
        Slot::Tiny { key, value, .. } => (at.head.to_le_bytes().to_vec(), key, value),
        Slot::Inline { tag, key, value, .. } if whole(tag, key + value, &at.behind) => {
            let mut bytes: Vec<u8> = at.behind.iter().flat_map(|word| word.to_le_bytes()).collect();
            gather(&mut bytes, key + value);
            (bytes, key, value)
        }
        _ => return None,
    };
    Some((bytes.get(..key)?.to_vec(), bytes.get(key..key + value)?.to_vec()))
}
