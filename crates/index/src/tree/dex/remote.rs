//! What a memory node does for DEX: it walks from a node to the leaf of a key in its own region, and looks the key up there,
//! or changes the leaf in place.
//!
//! Invariants (`docs/protocols/dex.md`, section "Offloading"): a node's words are loaded once, and all that follows is
//! decided from that copy, whose checksum is right (W2). A walk goes down a level with every node, so it ends. Nothing is
//! allocated in far memory. A leaf is changed only if its lock is free, and it lies within the bounds of the request; the
//! caller has the leaf's turn, so nobody else changes it meanwhile (D3). Whatever the region and the request hold, the
//! handler replies or refuses; it refuses only what it has not begun to change.

use super::wire::{Ask, HANDLER, MAX_CARRIED, Outcome, Reply, Request, gets};
use crate::block::{self, Decoded, UNIT};
use crate::tree::entries::place;
use crate::tree::faults::{Fault, planted};
use crate::tree::fence::{Fence, Key};
use crate::tree::node::{self, CHECKSUM, Header, Layout, USED, magic};
use crate::write::Mode;
use farindex_fabric::RemotePtr;
use farindex_fabric::call::{CallRefused, CallTable, RegionView};
use std::cmp::Ordering;

/// Loads of a node in the middle of a change, before the caller is told so.
const LOADS: u32 = 4;
/// Longest block that a memory node reads for a caller, in words.
const MAX_BLOCK: u64 = 16 << 10;

/// Adds what memory nodes do for indexes to a table of handlers. Every memory node of a pool has it.
pub(crate) fn add_handlers(table: CallTable) -> CallTable {
    table.with(HANDLER, handle).with(gets::HANDLER, handle_gets)
}

fn handle(view: &RegionView<'_>, request: &[u8]) -> Result<Vec<u8>, CallRefused> {
    let request = Request::decode(request).ok_or("the request makes no sense")?;
    Ok(carry_out(view, &request).encode())
}

/// Looks many keys up, one after the other, as far as one reply has room for what they have.
fn handle_gets(view: &RegionView<'_>, request: &[u8]) -> Result<Vec<u8>, CallRefused> {
    let requests = gets::decode(request).ok_or("the request makes no sense")?;
    let mut answers = gets::Answers::default();
    // The caller READs what the others have.
    let _ = requests.iter().take_while(|request| answers.add(&carry_out(view, request))).count();
    Ok(answers.into_bytes())
}

fn carry_out(view: &RegionView<'_>, request: &Request<'_>) -> Reply {
    let mut walk = Walk { view, request, visited: 0 };
    let mut reply = walk.run().unwrap_or_else(|stop| stop);
    reply.visited = walk.visited;
    reply
}

/// A node's words, loaded once.
struct Loaded {
    at: RemotePtr,
    layout: Layout,
    words: Vec<u64>,
}

impl Header for Loaded {
    fn at(&self) -> RemotePtr {
        self.at
    }
    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or_default()
    }
}

impl Loaded {
    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        node::used(&self.words, self.layout)
    }
    fn slot(&self, slot: usize) -> (u64, u64) {
        let at = self.layout.slot(slot);
        (self.word(at), self.word(at + 1))
    }
    fn is_inline(&self, slot: usize) -> bool {
        self.word(self.layout.inline() + slot / 64) >> (slot % 64) & 1 == 1
    }
    fn set(&mut self, at: usize, to: u64) {
        if let Some(word) = self.words.get_mut(at) {
            *word = to;
        }
    }
    fn set_bit(&mut self, map: usize, slot: usize, to: bool) {
        let (word, bit) = (self.word(map + slot / 64), 1 << (slot % 64));
        self.set(map + slot / 64, if to { word | bit } else { word & !bit });
    }
    fn part(&self, at: usize, len: usize) -> &[u64] {
        self.words.get(at..at + len).unwrap_or_default()
    }
}

/// What a leaf says about a key.
enum Slot {
    Inline(usize),
    /// Slots with blocks that have the key's hash, with their words.
    Blocks(Vec<(usize, u64)>),
}

struct Walk<'v, 'r> {
    view: &'v RegionView<'v>,
    request: &'r Request<'r>,
    visited: u8,
}

/// A step of a walk, or the reply with which it ends.
type Step<T> = Result<T, Reply>;

fn stop<T>(outcome: Outcome, at: RemotePtr) -> Step<T> {
    Err(Reply::new(outcome, at))
}

impl Walk<'_, '_> {
    fn run(&mut self) -> Step<Reply> {
        let Request { start, level, ask, .. } = *self.request;
        let (mut at, mut level) = (start, level);
        while level > 0 {
            at = self.child(at, level)?;
            level -= 1;
        }
        let leaf = self.load(at, 0)?;
        self.check_range(&leaf)?;
        match ask {
            Ask::Get => self.look_up(&leaf),
            Ask::Locate => Ok(Reply::new(Outcome::Leaf, at)),
            Ask::Put(mode, value) => self.change(leaf, Some((mode, value))),
            Ask::Remove => self.change(leaf, None),
            Ask::Leaves(most) => Ok(self.leaves(leaf, most)),
        }
    }

    /// Loads a node of this level until its words are those of one state.
    fn load(&mut self, at: RemotePtr, level: u8) -> Step<Loaded> {
        if at.node() != self.view.node() {
            return stop(Outcome::Crosses, at);
        }
        let (layout, tag) = (if level == 0 { self.request.leaf } else { self.request.inner }, self.request.tag);
        self.visited = self.visited.saturating_add(1);
        for _ in 0..LOADS {
            let Some(words) = self.view.read(at.offset(), layout.len() as u64) else { break };
            let node = Loaded { at, layout, words };
            if node.is_dead() {
                return stop(Outcome::Moved, at);
            }
            if node.word(0) | 1 != magic(tag, at) | 1 {
                break;
            }
            if node::is_sound(&node.words, layout, at, tag) || planted(Fault::CallUnchecked) {
                return if node.level() == level { Ok(node) } else { stop(Outcome::Moved, at) };
            }
            std::hint::spin_loop();
        }
        let known = self.view.word(at.offset()).is_some_and(|word| word | 1 == magic(tag, at) | 1);
        stop(if known { Outcome::Busy } else { Outcome::Foreign }, at)
    }

    /// The child of a node on this level that the key belongs to.
    fn child(&mut self, at: RemotePtr, level: u8) -> Step<RemotePtr> {
        let (node, key) = (self.load(at, level)?, self.request.key);
        self.check_range(&node)?;
        let mut best: Option<(Key, Fence)> = None;
        for slot in node.used() {
            let (word, tag) = node.slot(slot);
            let separator = Fence { word, tag };
            let low = self.key_of(separator)?;
            if low.as_slice() <= key && best.as_ref().is_none_or(|(best, _)| *best < low) {
                best = Some((low, separator));
            }
        }
        match best {
            Some((_, separator)) if separator.child_level() + 1 == level => Ok(separator.child()),
            _ => stop(Outcome::Foreign, at),
        }
    }

    /// Does the key belong to a node?
    fn check_range(&self, node: &Loaded) -> Step<()> {
        let key = self.request.key;
        let low = self.compare(node.low(), key)?;
        if low.is_le() && self.compare(node.high(), key)?.is_gt() { Ok(()) } else { stop(Outcome::Moved, node.at) }
    }

    fn compare(&self, fence: Fence, key: &[u8]) -> Step<Ordering> {
        match fence.compare(key) {
            Some(ordering) => Ok(ordering),
            None => Ok(self.key_of(fence)?.as_slice().cmp(key)),
        }
    }

    /// The key of a fence that is not infinite.
    fn key_of(&self, fence: Fence) -> Step<Key> {
        if let Some(key) = fence.key() {
            return Ok(key);
        }
        let Some((at, _)) = fence.block() else { return stop(Outcome::Foreign, RemotePtr::NULL) };
        match self.block(at)? {
            Some((key, _)) if fence.is(&key) => Ok(Key::from_slice(&key)),
            // Its node is gone, or is about to be.
            _ => stop(Outcome::Busy, at),
        }
    }

    /// Reads a block of this memory node: key and value. `None` if it is not sound, or too long.
    fn block(&self, at: RemotePtr) -> Step<Option<(Vec<u8>, Vec<u8>)>> {
        if at.node() != self.view.node() {
            return stop(Outcome::Crosses, at);
        }
        let Some(head) = self.view.read(at.offset(), UNIT as u64) else { return Ok(None) };
        let Some(len) = block::Header::decode(&head).map(|header| header.block_len() as u64) else { return Ok(None) };
        if len > MAX_BLOCK * 8 {
            return Ok(None);
        }
        let words = if len <= UNIT as u64 { Some(head) } else { self.view.read(at.offset(), len) };
        let Some(words) = words else { return Ok(None) };
        let Decoded::Sound(_, key, value) = block::decode_words(&words) else { return Ok(None) };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let part = |range| bytes.get::<std::ops::Range<usize>>(range).map(<[u8]>::to_vec);
        Ok(part(key).zip(part(value)))
    }

    /// Finds what may be the key's slot.
    fn find(&self, leaf: &Loaded) -> Slot {
        let (key, hash) = (self.request.key, self.request.hash);
        if let Ok(bytes) = <[u8; 8]>::try_from(key) {
            let word = u64::from_le_bytes(bytes);
            if let Some(slot) = leaf.used().find(|slot| leaf.is_inline(*slot) && leaf.slot(*slot).0 == word) {
                return Slot::Inline(slot);
            }
        }
        let block = |slot: usize| !leaf.is_inline(slot) && leaf.slot(slot).0 == hash;
        Slot::Blocks(leaf.used().filter(|slot| block(*slot)).map(|slot| (slot, leaf.slot(slot).1)).collect())
    }

    fn look_up(&self, leaf: &Loaded) -> Step<Reply> {
        let slots = match self.find(leaf) {
            Slot::Inline(slot) => return Ok(Reply::with(Outcome::Found, leaf.at, vec![leaf.slot(slot).1])),
            Slot::Blocks(slots) => slots,
        };
        for (_, word) in &slots {
            match self.block(place(*word).0) {
                Ok(Some((key, value))) if key == self.request.key => {
                    let carried: Vec<u64> = value.chunks(8).map(word_of).collect();
                    if carried.len() > MAX_CARRIED {
                        break;
                    }
                    return Ok(Reply { len: value.len(), carried, ..Reply::new(Outcome::Found, leaf.at) });
                }
                Ok(Some(_)) => {}
                // Elsewhere, too long, or damaged: the caller READs it.
                Ok(None) | Err(_) => break,
            }
        }
        if slots.is_empty() {
            return Ok(Reply::new(Outcome::Absent, leaf.at));
        }
        let words = slots.into_iter().flat_map(|(slot, word)| [slot as u64, word]).collect();
        Ok(Reply::with(Outcome::Blocks, leaf.at, words))
    }

    /// Puts the key with a value, or removes it, in the order in which an owner's WRITEs would: the slot, then checksum and
    /// bitmap.
    fn change(&self, mut leaf: Loaded, put: Option<(Mode<'_>, u64)>) -> Step<Reply> {
        let (at, layout) = (leaf.at, leaf.layout);
        if leaf.is_locked() {
            return stop(Outcome::Busy, at);
        }
        let (from, to) = self.request.bounds;
        let within = self.compare(leaf.low(), from)?.is_ge()
            && to.map_or(Ok(true), |to| self.compare(leaf.high(), to).map(Ordering::is_le))?;
        if !within && !planted(Fault::CallAcrossBound) {
            return stop(Outcome::Beyond, at);
        }
        let present = match self.find(&leaf) {
            Slot::Inline(slot) => Some(slot),
            Slot::Blocks(slots) if slots.is_empty() => None,
            // An entry with a block is the caller's, who retires the block.
            Slot::Blocks(_) => return stop(Outcome::Blocks, at),
        };
        let key = <[u8; 8]>::try_from(self.request.key).map(u64::from_le_bytes);
        let (Ok(key), is_present) = (key, present.is_some()) else { return stop(Outcome::Foreign, at) };
        let (slot, edit) = match (put, present) {
            (Some((Mode::Insert, _)), Some(_)) | (Some((Mode::Update(_), _)) | None, None) => {
                return Ok(Reply::new(Outcome::Nothing { present: is_present }, at));
            }
            (Some((_, value)), Some(slot)) => {
                leaf.set(layout.slot(slot) + 1, value);
                (None, Some((layout.slot(slot) + 1, 1)))
            }
            (Some((_, value)), None) => {
                let taken = |slot: &usize| leaf.word(USED + slot / 64) >> (slot % 64) & 1 == 1;
                let Some(slot) = (0..layout.span).find(|slot| !taken(slot)) else { return stop(Outcome::Full, at) };
                leaf.set(layout.slot(slot), key);
                leaf.set(layout.slot(slot) + 1, value);
                (Some((slot, true)), Some((layout.slot(slot), 2)))
            }
            (None, Some(slot)) => (Some((slot, false)), None),
        };
        let mut stores: Vec<(usize, usize)> = edit.into_iter().collect();
        if let Some((slot, used)) = slot {
            if used && !leaf.is_inline(slot) {
                leaf.set_bit(layout.inline(), slot, true);
                stores.push((layout.inline(), layout.map()));
            }
            leaf.set_bit(USED, slot, used);
        }
        leaf.set(CHECKSUM, node::checksum(&leaf.words, layout, at, self.request.tag));
        // Checksum and bitmap are neighbours.
        stores.push((CHECKSUM, if slot.is_some() { 1 + layout.map() } else { 1 }));
        for (word, len) in stores {
            // It was loaded from there, so it lies within the region.
            let stored = self.view.store(at.offset() + word as u64 * 8, leaf.part(word, len));
            stored.map_or_else(|| stop(Outcome::Foreign, at), Ok)?;
        }
        let entries = leaf.used().count();
        Ok(Reply { entries, ..Reply::new(Outcome::Wrote { present: is_present }, at) })
    }

    /// Collects leaves from this one on, as far as they lie here and follow each other.
    fn leaves(&mut self, first: Loaded, most: u64) -> Reply {
        let (start, per_leaf) = (first.at, 1 + first.words.len());
        let most = most.min((MAX_CARRIED / per_leaf) as u64);
        let (mut carried, mut count, mut last) = (Vec::new(), 0, first);
        loop {
            if count >= most {
                break;
            }
            carried.push(last.at.to_bits());
            carried.extend_from_slice(&last.words);
            count += 1;
            let (next, high) = (last.sibling(), last.high());
            if next.is_null() || count >= most {
                break;
            }
            match self.load(next, 0) {
                Ok(leaf) if leaf.low().identity() == high.identity() => last = leaf,
                _ => break,
            }
        }
        Reply::with(Outcome::Leaves, start, carried)
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests;
