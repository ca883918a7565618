//! Words and offsets: the entry, CurSegment, MainSegment.
//!
//! Both segments are arrays of *groups*: eight entries of one word each, then a word with their eight second
//! fingerprints. So an entry takes 9 bytes, and one READ of a few groups returns both entries and second fingerprints.
//!
//! ```text
//! entry        63 sign | 62-59 dep | 58-56 len | 55-48 fp | 47-0 block pointer in slot form
//! CurSegMeta   word 0  control  | 39-8 generation | 7-1 local depth | 0 locked |
//!              word 1  main     | 63-48 generation mod 2^16 | 47-0 MainSegment in slot form, or 0 |
//!              word 2  size     | 63-32 generation | 31-26 local depth | 25-0 entries of MainSegment |
//!              words 3-7        filter: | 63-12 bits of the bitmap | 11-8 generation mod 16 | 7-0 entries that have landed |
//! CurSegment   CurSegMeta, then the groups; the last one may be cut short
//! ```
//!
//! The sign: an entry of generation `g` has the sign of `g + 1`, so an entry that is left from generation `g - 1` has
//! that of `g`, and looks free. See docs/layouts/sephash.md.

use crate::block::UNIT;
use crate::keyhash::{HASH_BITS, KeyHash};
use farindex_fabric::RemotePtr;

/// Entries of a group.
pub const GROUP: usize = 8;
/// Words of a group.
pub const GROUP_WORDS: usize = GROUP + 1;
/// Bytes of CurSegMeta.
pub const META_LEN: usize = 64;
/// Words of the filter.
pub const FILTER_WORDS: usize = 5;
/// Bits of the bitmap in each word of the filter; the others are the stamp.
const FILTER_BITS: usize = 52;
const _: () = assert!(FILTER_WORDS * FILTER_BITS >= FINGERPRINTS);
/// Word of the filter in CurSegMeta.
pub const FILTER: usize = 3;
/// Number of fingerprints.
pub const FINGERPRINTS: usize = 256;
/// Number of splits in a round: bits of the depth information.
pub const ROUND: u32 = 4;
/// Largest length that an entry can state: this many units or more.
pub const MAX_UNITS: u64 = 7;
/// Largest number of entries of a MainSegment.
pub const MAX_LEN: u64 = (1 << 26) - 1;
/// Bit of the control word that is set while the segment is locked.
pub const LOCKED: u64 = 1;

const FP_SHIFT: u32 = HASH_BITS - 8;
const FP2_SHIFT: u32 = FP_SHIFT - 8;
const _: () = assert!(FP2_SHIFT >= crate::extendible::layout::MAX_DEPTH + 2);
const _: () = assert!(crate::extendible::layout::MAX_DEPTH < 64);

/// Returns the fingerprint: the top bits of a hash.
pub const fn fp_of(hash: KeyHash) -> u8 {
    (hash.bits() >> FP_SHIFT) as u8
}
/// Returns the second fingerprint: the bits below the fingerprint.
pub const fn fp2_of(hash: KeyHash) -> u8 {
    (hash.bits() >> FP2_SHIFT) as u8
}
/// Returns the depth information of the round that contains `depth`.
pub const fn dep_of(hash: KeyHash, depth: u32) -> u8 {
    (hash.bits() >> (depth / ROUND * ROUND)) as u8 & 0xF
}

/// An entry without its sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Depth information: the bits of the hash that decide the splits of the current round.
    pub dep: u8,
    /// Units of the block. 0 means that the block removes its key; [`MAX_UNITS`] means that its header has the length.
    pub len: u64,
    /// The fingerprint.
    pub fp: u8,
    /// The block.
    pub ptr: RemotePtr,
}

impl Entry {
    /// Creates the entry of a block of `bytes` bytes.
    pub fn new(hash: KeyHash, depth: u32, ptr: RemotePtr, bytes: usize, removes: bool) -> Self {
        let units = ((bytes / UNIT) as u64).clamp(1, MAX_UNITS);
        Entry { dep: dep_of(hash, depth), len: if removes { 0 } else { units }, fp: fp_of(hash), ptr }
    }
    /// Encodes the entry with the sign of `generation`.
    pub fn encode(self, generation: u64) -> u64 {
        let ptr = self.ptr.to_slot().unwrap_or_default();
        sign_of(generation) << 63 | u64::from(self.dep) << 59 | self.len << 56 | u64::from(self.fp) << 48 | ptr
    }
    /// Decodes a word.
    pub const fn decode(word: u64) -> Self {
        Entry {
            dep: (word >> 59) as u8 & 0xF,
            len: word >> 56 & 7,
            fp: (word >> 48) as u8,
            ptr: RemotePtr::from_slot(word & ((1 << 48) - 1)),
        }
    }
    /// Does the block remove its key?
    pub const fn removes(self) -> bool {
        self.len == 0
    }
    /// Number of units to READ first.
    pub const fn units(self) -> usize {
        if self.len == 0 { 1 } else { self.len as usize }
    }
    /// Bytes of the block, if the entry states them.
    pub const fn bytes(self) -> Option<u64> {
        if self.len == 0 || self.len == MAX_UNITS { None } else { Some(self.len * UNIT as u64) }
    }
}

/// Returns the sign of entries of this generation.
const fn sign_of(generation: u64) -> u64 {
    (generation + 1) & 1
}

/// Is this word an entry of `generation`? An entry that is left from the generation before is not.
pub const fn is_taken(word: u64, generation: u64) -> bool {
    word != 0 && word >> 63 == sign_of(generation)
}

/// Memory node number that marks a word as no pointer.
const NOWHERE: u64 = 0x3FF << 38;

/// Returns the word that overwrites a slot when `generation` ends: taken in this generation, free in the next, and
/// different from every other word that a slot ever holds.
pub const fn emptied(generation: u64) -> u64 {
    sign_of(generation) << 63 | NOWHERE | generation & 0xFFFF_FFFF
}

/// Is this such a word?
pub const fn is_emptied(word: u64) -> bool {
    word & NOWHERE == NOWHERE
}

/// Overwrites the slots of a CurSegment's groups when `generation` ends. The second fingerprints stay: a lookup that
/// still reads in this generation may see a slot and its second fingerprint at different moments, and would miss a key
/// whose slot is still there but whose second fingerprint is not.
pub fn empty_slots(geometry: Geometry, words: &mut [u64], generation: u64) {
    for i in 0..geometry.slots {
        if let Some(word) = words.get_mut(geometry.slot(i)) {
            *word = emptied(generation);
        }
    }
}

/// Offsets of the entries of a CurSegment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of entries of a CurSegment.
    pub slots: usize,
    /// Words of its groups.
    pub words: usize,
}

impl Geometry {
    /// Creates the geometry of CurSegments with this many bytes of entries.
    pub const fn of(bytes: u64) -> Self {
        let words = (bytes / 8) as usize;
        let rest = words % GROUP_WORDS;
        let slots = words / GROUP_WORDS * GROUP + if rest >= 2 { rest - 1 } else { 0 };
        Geometry { slots, words }
    }
    /// Bytes of a whole CurSegment.
    pub const fn bytes(self) -> usize {
        META_LEN + self.words * 8
    }
    /// Returns the word of an entry among the words of the groups.
    pub const fn slot(self, i: usize) -> usize {
        i / GROUP * GROUP_WORDS + i % GROUP
    }
    /// Returns the word of an entry's second fingerprint among the words of the groups.
    pub const fn fp2_word(self, i: usize) -> usize {
        let group = i / GROUP;
        let last = (self.slots - 1) / GROUP;
        let entries = if group == last { self.slots - last * GROUP } else { GROUP };
        group * GROUP_WORDS + entries
    }
    /// Returns the byte offset in the CurSegment of a word of the groups.
    pub const fn at(self, word: usize) -> u64 {
        (META_LEN + word * 8) as u64
    }
}

/// Returns the second fingerprint of entry `i` from its word.
pub const fn fp2_in(word: u64, i: usize) -> u8 {
    (word >> (i % GROUP * 8)) as u8
}

/// Returns a word with the second fingerprint of entry `i` and those before it in the word; those behind it are zero.
pub const fn with_fp2(word: u64, i: usize, fp2: u8) -> u64 {
    let shift = i % GROUP * 8;
    word & ((1 << shift) - 1) | (fp2 as u64) << shift
}

/// Returns the words with the second fingerprints of slots in ascending order, with their numbers among the words of
/// the groups. Second fingerprints behind the last slot are zero.
pub fn fp2_words(geometry: Geometry, fp2s: impl Iterator<Item = (usize, u8)>) -> Vec<(usize, u64)> {
    let mut words: Vec<(usize, u64)> = Vec::new();
    for (slot, fp2) in fp2s {
        let at = geometry.fp2_word(slot);
        match words.last_mut().filter(|(last, _)| *last == at) {
            Some((_, word)) => *word = with_fp2(*word, slot, fp2),
            None => words.push((at, with_fp2(0, slot, fp2))),
        }
    }
    words
}

/// Number of words of a MainSegment's groups.
pub const fn main_words(len: usize) -> usize {
    let rest = len % GROUP;
    len / GROUP * GROUP_WORDS + if rest == 0 { 0 } else { rest + 1 }
}

/// Returns the first word of the group of an entry of a MainSegment.
pub const fn main_word(entry: usize) -> usize {
    entry / GROUP * GROUP_WORDS
}

/// The control word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control(pub u64);

impl Control {
    /// Creates a control word.
    pub const fn new(generation: u64, depth: u32, locked: bool) -> Self {
        Control((generation & 0xFFFF_FFFF) << 8 | (depth as u64) << 1 | locked as u64)
    }
    /// The generation: how often the segment has been merged.
    pub const fn generation(self) -> u64 {
        self.0 >> 8 & 0xFFFF_FFFF
    }
    /// Local depth.
    pub const fn depth(self) -> u32 {
        (self.0 >> 1 & 0x7F) as u32
    }
    /// Is the segment locked?
    pub const fn locked(self) -> bool {
        self.0 & LOCKED != 0
    }
    /// Returns the number whose addition turns this word into the other one.
    pub const fn towards(self, other: Control) -> u64 {
        other.0.wrapping_sub(self.0)
    }
}

/// CurSegMeta as a READ has brought it: words of different moments (N2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Word 0.
    pub control: Control,
    main: u64,
    size: u64,
    filter: [u64; FILTER_WORDS],
}

/// CurSegMeta of one generation and one moment, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The generation.
    pub generation: u64,
    /// Local depth.
    pub depth: u32,
    /// MainSegment; null if there is none.
    pub main: RemotePtr,
    /// Number of entries of the MainSegment.
    pub len: usize,
    /// Number of slots that have landed.
    pub count: usize,
    /// Fingerprints of the slots that have landed.
    pub filter: Filter,
}

/// The bitmap of the fingerprints that have landed.
///
/// Each of its words has the stamp of the WRITE that wrote it, so each WRITE changes all of them. A reader that sees
/// one stamp in all five words knows that the whole WRITE has taken effect. A checksum would not prove that: the
/// missing part of a torn WRITE may be words that it does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filter([u64; FILTER_WORDS]);

impl Filter {
    const fn place(fp: u8) -> (usize, u64) {
        (fp as usize / FILTER_BITS, 1 << (fp as usize % FILTER_BITS))
    }
    /// Returns the filter with one more fingerprint.
    pub const fn with(mut self, fp: u8) -> Self {
        let (word, bit) = Self::place(fp);
        self.0[word] |= bit;
        self
    }
    /// Does the filter have this fingerprint?
    pub const fn holds(&self, fp: u8) -> bool {
        let (word, bit) = Self::place(fp);
        self.0[word] & bit != 0
    }
    /// Returns the words of one WRITE, stamped with the generation and the number of slots that have landed.
    pub fn stamped(&self, generation: u64, count: usize) -> [u64; FILTER_WORDS] {
        self.0.map(|bits| bits << 12 | (generation & 0xF) << 8 | count as u64 & 0xFF)
    }
    /// Decodes words that were READ: the filter, the generation mod 16 and the count. `None` if they have different
    /// stamps.
    fn parse(words: &[u64; FILTER_WORDS]) -> Option<(Self, u64, usize)> {
        let stamp = words[0] & 0xFFF;
        let whole = words.iter().all(|word| word & 0xFFF == stamp);
        whole.then(|| (Filter(words.map(|word| word >> 12)), stamp >> 8, stamp as usize & 0xFF))
    }
}

impl Meta {
    /// Decodes the words of a READ; `None` if there are too few.
    pub fn parse(words: &[u64]) -> Option<Self> {
        let &[control, main, size, ref filter @ ..] = words.first_chunk::<{ META_LEN / 8 }>()?;
        Some(Meta { control: Control(control), main, size, filter: *filter })
    }

    /// Returns CurSegMeta of an empty segment, as a merge leaves it.
    pub fn words_of(control: Control, main: RemotePtr, len: usize) -> [u64; META_LEN / 8] {
        let generation = control.generation();
        let size = generation << 32 | u64::from(control.depth()) << 26 | len as u64 & MAX_LEN;
        let main = (generation & 0xFFFF) << 48 | main.to_slot().unwrap_or_default();
        let [a, b, c, d, e] = Filter::default().stamped(generation, 0);
        [control.0, main, size, a, b, c, d, e]
    }

    /// Decodes the state, if all words but the control word are of one generation and one moment.
    pub fn state(&self) -> Option<State> {
        let generation = self.size >> 32;
        let (filter, of, count) = Filter::parse(&self.filter)?;
        let whole = of == generation & 0xF && self.main >> 48 == generation & 0xFFFF;
        whole.then(|| State {
            generation,
            depth: (self.size >> 26 & 0x3F) as u32,
            main: RemotePtr::from_slot(self.main & ((1 << 48) - 1)),
            len: (self.size & MAX_LEN) as usize,
            count,
            filter,
        })
    }

    /// Hashes all words but the control word.
    pub fn digest(&self) -> u64 {
        let words = [self.main, self.size].into_iter().chain(self.filter);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// Is the word main of this generation? The other words are not checked: for the holder of the lock.
    pub const fn main_is_of(&self, generation: u64) -> bool {
        self.main >> 48 == generation & 0xFFFF
    }
    /// The MainSegment, without a check of the other words: for the holder of the lock.
    pub fn main(&self) -> RemotePtr {
        RemotePtr::from_slot(self.main & ((1 << 48) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn geometry_of_the_papers_segment_has_113_entries() {
        let geometry = Geometry::of(1024);
        assert_eq!((geometry.slots, geometry.words, geometry.bytes()), (113, 128, 1088));
        assert_eq!(Geometry::of(128).slots, 14);
        assert_eq!(Geometry::of(2048).slots, 227);
        for bytes in (128..=2048).step_by(64) {
            let geometry = Geometry::of(bytes);
            let mut words = std::collections::BTreeSet::new();
            for i in 0..geometry.slots {
                assert!(geometry.fp2_word(i) < geometry.words);
                assert!(words.insert(geometry.slot(i)));
            }
            assert!((0..geometry.slots).all(|i| !words.contains(&geometry.fp2_word(i))), "{bytes}");
        }
    }

    #[test]
    fn an_entry_is_free_in_the_generation_after() {
        let ptr = RemotePtr::new(NodeId::new(1), 640);
        let hash = KeyHash::unseeded(b"key");
        for generation in 0..4 {
            let entry = Entry::new(hash, 5, ptr, 128, false);
            let word = entry.encode(generation);
            assert_eq!(Entry::decode(word), entry);
            assert!(is_taken(word, generation) && !is_taken(word, generation + 1) && !is_taken(0, generation));
            assert!(!is_emptied(word) && is_emptied(emptied(generation)));
            assert!(is_taken(emptied(generation), generation) && !is_taken(emptied(generation), generation + 1));
        }
        assert!(Entry::new(hash, 0, ptr, 64, true).removes());
        assert_eq!(Entry::new(hash, 0, ptr, 4096, false).bytes(), None);
        assert_eq!(Entry::new(hash, 0, ptr, 6 * 64, false).bytes(), Some(384));
    }

    #[test]
    fn emptied_slots_keep_their_second_fingerprints() {
        for bytes in [64, 128, 512, 1024] {
            let geometry = Geometry::of(bytes);
            let before: Vec<u64> = (1..=geometry.words as u64).collect();
            let mut words = before.clone();
            empty_slots(geometry, &mut words, 6);
            for i in 0..geometry.slots {
                assert_eq!(words[geometry.slot(i)], emptied(6));
                assert_eq!(words[geometry.fp2_word(i)], before[geometry.fp2_word(i)], "{bytes}");
            }
        }
    }

    #[test]
    fn torn_meta_has_no_state() {
        let main = RemotePtr::new(NodeId::new(0), 6400);
        let words = Meta::words_of(Control::new(70_000, 9, true), main, 500);
        let meta = Meta::parse(&words).unwrap();
        let state = meta.state().unwrap();
        assert_eq!((state.generation, state.depth, state.main, state.len, state.count), (70_000, 9, main, 500, 0));
        let mut landed = words;
        landed[FILTER..].copy_from_slice(&state.filter.with(200).stamped(70_000, 1));
        let state = Meta::parse(&landed).unwrap().state().unwrap();
        assert!(state.count == 1 && state.filter.holds(200) && !state.filter.holds(199));
        assert!((FILTER..META_LEN / 8).all(|i| words[i] != landed[i]), "what is missing of a torn WRITE shows");
        // Any mixture of the two but the whole ones.
        for old in 1_u32..1 << 7 {
            let mixed: Vec<u64> =
                (0..8).map(|i| if i > 0 && old >> (i - 1) & 1 == 1 { words[i] } else { landed[i] }).collect();
            let same = mixed[FILTER..] == words[FILTER..] || mixed[FILTER..] == landed[FILTER..];
            assert_eq!(Meta::parse(&mixed).unwrap().state().is_some(), same, "{old:#b}");
        }
    }

    #[test]
    fn the_depth_information_changes_every_fourth_split() {
        let hash = KeyHash::from_bits(0x9_8765_4321);
        let deps: Vec<u8> = (0..12).map(|depth| dep_of(hash, depth)).collect();
        assert_eq!(deps, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
        for depth in 0..36 {
            assert_eq!(u64::from(dep_of(hash, depth) >> (depth % ROUND) & 1), hash.bits() >> depth & 1);
        }
    }

    #[test]
    fn second_fingerprints_fill_their_word_from_the_front() {
        let mut word = u64::MAX;
        for i in 8..16 {
            word = with_fp2(word, i, i as u8);
            assert_eq!(fp2_in(word, i), i as u8);
        }
        assert_eq!(word, 0x0F0E_0D0C_0B0A_0908);
        assert_eq!(with_fp2(word, 16, 7), 7);
    }
}
