//! The format of whole nodes: inner nodes, and leaves that are read whole.
//!
//! ```text
//! word 0      lock       free: the node's magic, even and not zero; held: magic + 1; dead: 0, for ever
//! word 1      63   56 55  52 51  48 47                                 0
//!             | 0    | level | 0   | right sibling, as a 48-bit pointer |   null at the end of the level
//! word 2, 3   high key, see `fence`
//! word 4, 5   low key
//! word 6      checksum of words 1 to 5, the bitmaps, and the used slots
//! then        used: one bit for each slot, in whole words
//!             inline: the same; in a leaf, a slot whose key and value have 8 bytes each
//!             slots of two words
//! ```
//!
//! Slots are in no order. A slot of an inner node is a separator: a child under its low key. A slot of a leaf is an
//! 8-byte key and its 8-byte value, or the 64-bit hash of a key and its key-value block (units in the top 16 bits).
//!
//! Invariants:
//!
//! * **W1** Only the holder of a node's lock writes to it. Each change is a list of WRITEs in one batch, so they take
//!   effect in their order (G4), with the release behind them. A slot is filled before it is used, and one word commits
//!   the change: the bitmap, or, where the node's range changes, the right sibling. What else changes follows from that
//!   word, and recovery derives it.
//! * **W2** The checksum is part of the last WRITE of a change. A node whose checksum is right is a state between two
//!   changes, however the READ was torn (N2).
//! * **W3** The magic is a hash of the index tag and the node's address. A CAS of the lock word through a pointer from an
//!   old copy of a parent so finds a node of this index, or fails.
//! * **W4** A dead node never changes, and its lock can never be taken.

use super::fence::Fence;
use farindex_fabric::{Buf, RemotePtr};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

pub(super) const SIBLING: usize = 1;
pub(super) const HIGH: usize = 2;
pub(super) const LOW: usize = 4;
pub(super) const CHECKSUM: usize = 6;
pub(super) const USED: usize = 7;
/// Words up to and including the low key.
pub(super) const LOW_END: usize = LOW + 2;
/// Lock word of a dead node.
pub(super) const DEAD: u64 = 0;
/// Highest level of a node.
pub(super) const MAX_LEVEL: u8 = 15;
/// Most slots of a node.
pub(super) const MAX_SPAN: usize = 256;

const LEVEL_SHIFT: u32 = 52;
const POINTER: u64 = (1 << 48) - 1;

/// Where the parts of a node with so many slots lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) span: usize,
    /// Do readers rely on versions, see `versions`?
    pub(super) versions: bool,
}

impl Layout {
    /// A layout whose readers rely on the checksum.
    pub(super) const fn new(span: usize) -> Self {
        Layout { span, versions: false }
    }
    /// Do readers rely on versions? In leaves of a published variant alone.
    pub(super) const fn has_versions(self) -> bool {
        cfg!(feature = "published") && self.versions
    }
    /// Words of one bitmap.
    pub(super) const fn map(self) -> usize {
        self.span.div_ceil(64)
    }
    pub(super) const fn inline(self) -> usize {
        USED + self.map()
    }
    /// The word behind the bitmaps.
    pub(super) const fn slots(self) -> usize {
        USED + 2 * self.map()
    }
    /// Word of a slot.
    pub(super) const fn slot(self, slot: usize) -> usize {
        match self.has_versions() {
            true => self.versioned_slot(slot),
            false => self.slots() + 2 * slot,
        }
    }
    /// The words that a WRITE of a slot covers: the first one, and how many.
    pub(super) const fn slot_words(self, slot: usize) -> (usize, usize) {
        match self.has_versions() {
            true => (self.slot(slot) - 1, 4),
            false => (self.slot(slot), 2),
        }
    }
    /// The words that a WRITE of a slot's second word covers.
    pub(super) const fn value_words(self, slot: usize) -> (usize, usize) {
        match self.has_versions() {
            true => self.slot_words(slot),
            false => (self.slot(slot) + 1, 1),
        }
    }
    /// Bytes of a node.
    pub(super) const fn len(self) -> usize {
        (self.slot(self.span) * 8).next_multiple_of(64)
    }
}

/// The used slots of a node with these words.
pub(super) fn used(words: &[u64], layout: Layout) -> impl Iterator<Item = usize> + '_ {
    let maps = words.get(USED..layout.inline()).unwrap_or_default().iter().enumerate();
    maps.flat_map(|(i, word)| {
        let mut word = *word;
        std::iter::from_fn(move || {
            let bit = word.checked_ilog2().map(|_| word.trailing_zeros() as usize)?;
            word &= word - 1;
            Some(i * 64 + bit)
        })
    })
}

/// Computes the checksum of a node with these words. It binds the node's address and the index.
pub(super) fn checksum(words: &[u64], layout: Layout, at: RemotePtr, tag: u64) -> u64 {
    let mut of = SmallVec::<[u64; 160]>::new();
    for part in [SIBLING..CHECKSUM, USED..layout.slots()] {
        of.extend_from_slice(words.get(part).unwrap_or_default());
    }
    for slot in used(words, layout) {
        let slot = layout.slot(slot);
        of.extend([slot, slot + 1].map(|at| words.get(at).copied().unwrap_or_default()));
    }
    xxhash_rust::xxh3::xxh3_64_with_seed(of.as_bytes(), tag ^ at.to_bits().rotate_left(32))
}

/// Are these words a state between two changes (W2), and a node at all?
pub(super) fn is_sound(words: &[u64], layout: Layout, at: RemotePtr, tag: u64) -> bool {
    let beyond = layout.span % 64;
    let last = words.get(layout.inline() - 1).copied().unwrap_or_default();
    (beyond == 0 || last >> beyond == 0) && words.get(CHECKSUM) == Some(&checksum(words, layout, at, tag))
}

/// Returns the lock word of a free node.
pub(super) fn magic(tag: u64, at: RemotePtr) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&at.to_bits().to_le_bytes(), tag) & !1 | 2
}

/// Returns the word of level and right sibling.
pub(super) fn sibling_word(level: u8, sibling: RemotePtr) -> u64 {
    u64::from(level) << LEVEL_SHIFT | sibling.to_slot().unwrap_or_default()
}

/// What every node begins with, whatever its leaf design: lock, right sibling, fence keys.
pub(super) trait Header {
    fn at(&self) -> RemotePtr;
    /// A word of the node; 0 if it was not read.
    fn word(&self, index: usize) -> u64;

    fn is_dead(&self) -> bool {
        self.word(0) == DEAD
    }
    fn is_locked(&self) -> bool {
        self.word(0) & 1 == 1
    }
    fn level(&self) -> u8 {
        (self.word(SIBLING) >> LEVEL_SHIFT & 0xF) as u8
    }
    fn sibling(&self) -> RemotePtr {
        RemotePtr::from_slot(self.word(SIBLING) & POINTER)
    }
    fn low(&self) -> Fence {
        Fence { word: self.word(LOW), tag: self.word(LOW + 1) }
    }
    fn high(&self) -> Fence {
        Fence { word: self.word(HIGH), tag: self.word(HIGH + 1) }
    }
}

/// The first words of a node, as they were read.
pub(super) struct Head {
    pub(super) at: RemotePtr,
    pub(super) buf: Buf,
}

impl Header for Head {
    fn at(&self) -> RemotePtr {
        self.at
    }
    fn word(&self, index: usize) -> u64 {
        self.buf.words().get(index).copied().unwrap_or_default()
    }
}

/// The words of a node.
pub(super) trait Words {
    fn words(&self) -> &[u64];
}

impl Words for Buf {
    fn words(&self) -> &[u64] {
        Buf::words(self)
    }
}

impl Words for &[u64] {
    fn words(&self) -> &[u64] {
        self
    }
}

/// A whole node as it was read, or is about to be written; or a view of its words.
pub(super) struct Node<B = Buf> {
    pub(super) at: RemotePtr,
    pub(super) layout: Layout,
    pub(super) buf: B,
}

impl<B: Words> Header for Node<B> {
    fn at(&self) -> RemotePtr {
        self.at
    }
    fn word(&self, index: usize) -> u64 {
        self.buf.words().get(index).copied().unwrap_or_default()
    }
}

impl<B: Words> Node<B> {
    fn bit(&self, map: usize, slot: usize) -> bool {
        self.word(map + slot / 64) >> (slot % 64) & 1 == 1
    }
    pub(super) fn is_inline(&self, slot: usize) -> bool {
        self.bit(self.layout.inline(), slot)
    }
    /// Is the slot used, by an entry that is inline?
    pub(super) fn holds(&self, slot: usize) -> bool {
        self.bit(USED, slot) && self.is_inline(slot)
    }
    /// The used slots.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> + '_ {
        used(self.buf.words(), self.layout)
    }
    /// The two words of a slot.
    pub(super) fn slot(&self, slot: usize) -> (u64, u64) {
        let at = self.layout.slot(slot);
        (self.word(at), self.word(at + 1))
    }
}

impl Node {
    /// Makes a new node: free, without entries.
    pub(super) fn new(at: RemotePtr, layout: Layout, mut buf: Buf, (tag, level): (u64, u8), low: Fence) -> Self {
        let words = buf.words_mut();
        words.fill(0);
        words[0] = magic(tag, at);
        words[SIBLING] = sibling_word(level, RemotePtr::NULL);
        let mut node = Node { at, layout, buf };
        node.set_fence(LOW, low);
        node.set_fence(HIGH, Fence::INFINITE);
        node
    }

    pub(super) fn set(&mut self, at: usize, to: u64) {
        if let Some(word) = self.buf.words_mut().get_mut(at) {
            *word = to;
        }
    }
    pub(super) fn set_fence(&mut self, at: usize, fence: Fence) {
        self.set(at, fence.word);
        self.set(at + 1, fence.tag);
    }

    fn set_bit(&mut self, map: usize, slot: usize, to: bool) {
        let word = self.word(map + slot / 64);
        let bit = 1 << (slot % 64);
        self.set(map + slot / 64, if to { word | bit } else { word & !bit });
    }
    pub(super) fn is_used(&self, slot: usize) -> bool {
        self.bit(USED, slot)
    }
    pub(super) fn set_used(&mut self, slot: usize, to: bool) {
        self.set_bit(USED, slot, to);
    }
    pub(super) fn set_inline(&mut self, slot: usize, to: bool) {
        self.set_bit(self.layout.inline(), slot, to);
    }
    pub(super) fn count(&self) -> usize {
        (0..self.layout.map()).map(|i| self.word(USED + i).count_ones() as usize).sum()
    }
    /// The first slots that are not used.
    pub(super) fn vacant(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.layout.span).filter(|slot| !self.is_used(*slot))
    }
    /// The separator in a slot of an inner node.
    pub(super) fn separator(&self, slot: usize) -> Fence {
        let (word, tag) = self.slot(slot);
        Fence { word, tag }
    }
    pub(super) fn fill(&mut self, slot: usize, (a, b): (u64, u64)) {
        let at = self.layout.slot(slot);
        self.set(at, a);
        self.set(at + 1, b);
        self.renew_slot_versions(slot);
    }

    /// Computes the checksum. It binds the node's address and the index.
    pub(super) fn checksum(&self, tag: u64) -> u64 {
        checksum(self.buf.words(), self.layout, self.at, tag)
    }
    pub(super) fn seal(&mut self, tag: u64) {
        let checksum = self.checksum(tag);
        self.set(CHECKSUM, checksum);
    }
    /// Is this a state between two changes (W2), and a node at all?
    pub(super) fn is_sound(&self, tag: u64) -> bool {
        is_sound(self.buf.words(), self.layout, self.at, tag)
    }
}
