//! Suffixes, words and the root.
//!
//! ```text
//! word     63        48 47                        0
//!          | tag (16)  | pointer in slot form (48) |        zero: no such segment
//! root     word 0  | 0: dropped |
//!          word 1  index tag: a hash of the pool's and the index's identity
//!          word 2  | 15-8 b | 7-0 initial depth |
//!          words 8-  one pointer for each chunk
//! ```

use farindex_fabric::RemotePtr;

/// Bits of the longest suffix: the 54 bits of a hash without two fingerprints of 8 bits and 2 spare bits.
pub const MAX_DEPTH: u32 = 36;
/// Bits of the smallest chunk 0: one unit of memory.
const LEAST_FIRST_BITS: u32 = 3;
/// Largest number of chunks.
pub const MAX_CHUNKS: usize = (MAX_DEPTH - LEAST_FIRST_BITS) as usize + 1;
/// Bytes of a root.
pub const ROOT_LEN: usize = 384;
/// Word of the root that holds the index tag.
pub(super) const ROOT_INDEX_TAG: usize = 1;
/// Word of the root that holds the shape.
pub(super) const ROOT_SHAPE: usize = 2;
/// Word of the first chunk's pointer.
pub(super) const ROOT_CHUNKS: usize = 8;
/// Bit of word 0 that says that the index was dropped.
pub(super) const DROPPED: u64 = 1;
const _: () = assert!((ROOT_CHUNKS + MAX_CHUNKS) * 8 <= ROOT_LEN);

/// The low `depth` bits of a hash.
pub const fn suffix(hash: u64, depth: u32) -> u64 {
    if depth >= 64 { hash } else { hash & ((1 << depth) - 1) }
}

/// Returns the bits that a suffix needs: the depth at which its segment was created, unless it is a first segment.
pub const fn width(suffix: u64) -> u32 {
    64 - suffix.leading_zeros()
}

/// A word of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry(u64);

impl Entry {
    /// The word of no segment.
    pub const NONE: Entry = Entry(0);

    /// Creates the word of a segment at `at`, with 16 bits that belong to the index. `None` unless the address is
    /// 64-byte aligned.
    pub fn new(at: RemotePtr, tag: u16) -> Option<Self> {
        Some(Entry(at.to_slot()? | u64::from(tag) << 48)).filter(|_| !at.is_null())
    }
    /// Converts from a stored word.
    pub const fn from_bits(bits: u64) -> Self {
        Entry(bits)
    }
    /// Returns the stored word.
    pub const fn to_bits(self) -> u64 {
        self.0
    }
    /// Does it name no segment?
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
    /// The address of the segment.
    pub const fn at(self) -> RemotePtr {
        RemotePtr::from_slot(self.0 & ((1 << 48) - 1))
    }
    /// The index's own bits.
    pub const fn tag(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The shape of a directory, fixed when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The first segments are those of all suffixes of this length.
    pub initial_depth: u32,
}

impl Shape {
    /// Bits of chunk 0.
    pub const fn first_bits(self) -> u32 {
        if self.initial_depth < LEAST_FIRST_BITS { LEAST_FIRST_BITS } else { self.initial_depth }
    }
    pub(super) const fn encode(self) -> u64 {
        self.initial_depth as u64 | (self.first_bits() as u64) << 8
    }
    pub(super) fn decode(word: u64) -> Option<Self> {
        let shape = Shape { initial_depth: (word & 0xFF) as u32 };
        (shape.initial_depth <= MAX_DEPTH && word == shape.encode()).then_some(shape)
    }
    /// Returns the chunk of a suffix, and the suffix's place in it.
    pub const fn place(self, suffix: u64) -> (usize, u64) {
        let (width, first) = (width(suffix), self.first_bits());
        if width <= first { (0, suffix) } else { ((width - first) as usize, suffix - (1 << (width - 1))) }
    }
    /// The first suffix of a chunk.
    pub const fn first_of(self, chunk: usize) -> u64 {
        if chunk == 0 { 0 } else { 1 << (self.first_bits() as usize + chunk - 1) }
    }
    /// Words of a chunk.
    pub const fn words_of(self, chunk: usize) -> u64 {
        1 << (self.first_bits() as usize + chunk.saturating_sub(1))
    }
    /// Number of chunks of a directory with suffixes of `MAX_DEPTH` bits.
    pub const fn chunks(self) -> usize {
        (MAX_DEPTH - self.first_bits()) as usize + 1
    }
    /// Returns all suffixes as ranges of one length, shorter ones first. No range contains the parent of one of its
    /// suffixes, and each lies within one chunk.
    pub fn generations(self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let least = self.initial_depth;
        (least..=MAX_DEPTH).map(move |bits| if bits == least { 0..1 << bits } else { 1 << (bits - 1)..1 << bits })
    }
    /// Returns the suffix of the segment from which a segment was split off; `None` for the first segments.
    pub const fn parent(self, suffix: u64) -> Option<u64> {
        let width = width(suffix);
        if width <= self.initial_depth { None } else { Some(suffix & !(1 << (width - 1))) }
    }
    /// Returns the depth at which the segment of a suffix is created.
    pub fn creation_depth(self, suffix: u64) -> u32 {
        width(suffix).max(self.initial_depth)
    }
    /// Returns the suffixes that segments of a hash can have, of more than `above` bits and at most `depth`; longest
    /// first.
    pub fn candidates(self, hash: u64, above: u32, depth: u32) -> impl Iterator<Item = u64> {
        let least = above.max(self.initial_depth);
        let first = (above < self.initial_depth || above == 0).then(|| suffix(hash, self.initial_depth));
        let further = (least + 1..=depth.min(MAX_DEPTH)).rev().filter(move |bits| hash >> (bits - 1) & 1 == 1);
        further.map(move |bits| suffix(hash, bits)).chain(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn every_suffix_has_one_place_and_chunk_sizes_double() {
        for initial_depth in [0, 2, 3, 5] {
            let shape = Shape { initial_depth };
            let mut seen = std::collections::BTreeSet::new();
            for suffix in 0..1 << 10 {
                let (chunk, at) = shape.place(suffix);
                assert!(at < shape.words_of(chunk), "{suffix} in chunk {chunk}");
                assert_eq!(shape.first_of(chunk) + at, suffix);
                assert!(seen.insert((chunk, at)));
            }
            let total: u64 = (0..shape.chunks()).map(|chunk| shape.words_of(chunk)).sum();
            assert_eq!(total, 1 << MAX_DEPTH);
            assert_eq!(Shape::decode(shape.encode()), Some(shape));
            let mut next = 0;
            for range in shape.generations() {
                assert_eq!(range.start, next);
                assert_eq!(shape.place(range.start).0, shape.place(range.end - 1).0, "{range:?} is in one chunk");
                assert!(range.clone().take(1000).filter_map(|of| shape.parent(of)).all(|parent| parent < range.start));
                next = range.end;
            }
            assert_eq!(next, 1 << MAX_DEPTH);
        }
        assert_eq!(Shape::decode(200), None);
        assert_eq!(Shape::decode(4), None, "not the word that this release writes");
    }

    #[test]
    fn candidates_are_each_others_parents_back_to_the_first_segment() {
        let shape = Shape { initial_depth: 2 };
        let hash = 0b1_0110_1011;
        let candidates: Vec<_> = shape.candidates(hash, 0, MAX_DEPTH).collect();
        assert_eq!(candidates, [0b1_0110_1011, 0b0110_1011, 0b010_1011, 0b0_1011, 0b11]);
        for pair in candidates.windows(2) {
            assert_eq!(shape.parent(pair[0]), Some(pair[1]));
        }
        assert_eq!(shape.parent(0b11), None);
        assert_eq!(shape.candidates(hash, 4, 6).collect::<Vec<_>>(), [0b10_1011]);
        assert_eq!(shape.candidates(hash, 6, 6).count(), 0);
        let single = Shape { initial_depth: 0 };
        assert_eq!(single.candidates(hash, 0, 0).collect::<Vec<_>>(), [0]);
        assert_eq!(single.candidates(hash, 0, 2).collect::<Vec<_>>(), [0b11, 0b1, 0]);
        assert_eq!(single.candidates(hash, 1, 2).collect::<Vec<_>>(), [0b11]);
    }

    #[test]
    fn entry_keeps_pointer_and_tag() {
        let at = RemotePtr::new(NodeId::new(3), 64 * 77);
        let entry = Entry::new(at, 0xBEEF).unwrap();
        assert_eq!((entry.at(), entry.tag(), entry.is_none()), (at, 0xBEEF, false));
        assert_eq!(Entry::from_bits(entry.to_bits()), entry);
        assert_eq!(Entry::new(at.add(8), 0), None);
        assert_eq!(Entry::new(RemotePtr::NULL, 1), None);
    }
}
