//! Segments: their words, the buckets of a key, and what a READ of these buckets shows.
//!
//! ```text
//! segment  word 0  state: | 43-8 suffix | 7 closing | 6 locked | 5-0 local depth |
//!          word 1  index tag: a hash of the pool's and the index's identity
//!          words 8-  groups of 27 words: main bucket, overflow bucket, main bucket
//! bucket   header: | 43-8 suffix | 5-0 local depth |, 8 slots
//! ```
//!
//! Invariants: a state word is changed by CAS alone, and while it is locked by the lock's holder alone. Headers are
//! changed by the lock's holder alone, and are never ahead of the directory (X3).

use super::slot::{self, EMPTY};
use crate::extendible::directory::holds;
use crate::extendible::layout::MAX_DEPTH;
use crate::keyhash::KeyHash;
use farindex_fabric::{Buf, RemotePtr};
use farindex_pool::Lock;
use smallvec::SmallVec;

/// Slots of a bucket.
pub const SLOTS: usize = 8;
/// Words of a bucket: its header and its slots.
pub const BUCKET_WORDS: usize = 1 + SLOTS;
/// Bytes of a bucket.
pub const BUCKET_LEN: usize = BUCKET_WORDS * 8;
/// Buckets of a group.
pub const GROUP: usize = 3;
/// Bytes of a group.
pub const GROUP_LEN: usize = GROUP * BUCKET_LEN;
/// Bytes of a combined bucket: a main bucket and the adjacent overflow bucket.
pub const COMBINED_LEN: usize = 2 * BUCKET_LEN;
/// Bytes before the groups.
pub const HEAD_LEN: usize = 64;
/// Word of a segment that holds the index tag.
pub const INDEX_TAG: usize = 1;
/// First word of the groups.
pub const FIRST: usize = HEAD_LEN / 8;
/// Most groups of a segment.
pub const MAX_GROUPS: u64 = 1 << 10;
const _: () = assert!(GROUP_LEN == 216 && COMBINED_LEN == 144);
const _: () = assert!(HEAD_LEN + 64 * GROUP_LEN == 13_888);

const DEPTH_MASK: u64 = 0x3F;
const SUFFIX_SHIFT: u32 = 8;
const _: () = assert!(MAX_DEPTH < 64 && SUFFIX_SHIFT + MAX_DEPTH <= 64);

/// Seeds of the two further hashes that choose a key's main buckets.
const CHOICES: [u64; 2] = [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344];

/// Word 0 of a segment; a bucket's header is the same without its lock bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// A split is in progress.
    pub const LOCKED: u64 = 1 << 6;
    /// Other clients may already use the child.
    pub const CLOSING: u64 = 1 << 7;

    /// Returns the state of an open segment.
    pub const fn open(suffix: u64, depth: u32) -> Self {
        State(suffix << SUFFIX_SHIFT | depth as u64)
    }
    /// The low bits of the hashes that belong to the segment.
    pub const fn suffix(self) -> u64 {
        self.0 >> SUFFIX_SHIFT
    }
    /// The number of these bits: the local depth.
    pub const fn depth(self) -> u32 {
        (self.0 & DEPTH_MASK) as u32
    }
    /// Is a split in progress?
    pub const fn locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }
    /// May other clients already use the child?
    pub const fn closing(self) -> bool {
        self.0 & Self::CLOSING != 0
    }
    /// Returns the state with the lock bit set.
    #[must_use]
    pub const fn lock(self) -> Self {
        State(self.0 | Self::LOCKED)
    }
    /// Returns the state with the lock and the closing bit set.
    #[must_use]
    pub const fn close(self) -> Self {
        State(self.0 | Self::LOCKED | Self::CLOSING)
    }
    /// Returns the state without lock and closing bits.
    #[must_use]
    pub const fn unlock(self) -> Self {
        State(self.0 & !(Self::LOCKED | Self::CLOSING))
    }
    /// Returns the open state after a split: one bit deeper.
    #[must_use]
    pub const fn deeper(self) -> Self {
        State(self.unlock().0 + 1)
    }
    /// Does a segment in this state hold the hash?
    pub const fn holds(self, hash: KeyHash) -> bool {
        holds(self.suffix(), self.depth(), hash.bits())
    }
    /// The suffix of the segment that the next split creates.
    pub const fn child(self) -> u64 {
        self.suffix() | 1 << self.depth()
    }
}

/// Returns the lock of a segment.
pub fn lock_of(segment: RemotePtr) -> Lock {
    Lock { at: segment, mask: State::LOCKED }
}

/// A segment as the directory names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRef {
    /// The suffix with which it was created.
    pub suffix: u64,
    /// Its address.
    pub at: RemotePtr,
}

/// The shape of all segments of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Groups of a segment.
    pub groups: u64,
}

/// Numbers of the two main buckets of a key.
pub type Mains = [u64; 2];

impl Shape {
    /// Bytes of a segment.
    pub const fn bytes(self) -> usize {
        HEAD_LEN + self.groups as usize * GROUP_LEN
    }
    /// Slots of a segment.
    pub const fn slots(self) -> u64 {
        self.groups * (GROUP * SLOTS) as u64
    }
    /// Returns the two main buckets of a key. They differ: the second is chosen among the others.
    pub fn mains(self, hash: KeyHash) -> Mains {
        let all = self.groups * 2;
        let choose = |i: usize, of: u64| ((u128::from(hash.rehash(CHOICES[i])) * u128::from(of)) >> 64) as u64;
        let first = choose(0, all);
        [first, (first + 1 + choose(1, all - 1)) % all]
    }
    /// Byte offset of a main bucket.
    const fn main(self, main: u64) -> u64 {
        HEAD_LEN as u64 + main / 2 * GROUP_LEN as u64 + main % 2 * 2 * BUCKET_LEN as u64
    }
    /// Returns the parts of a segment to READ for a key, as byte offsets and lengths: two combined buckets, or one
    /// group.
    pub fn parts(self, mains: Mains) -> SmallVec<[(u64, usize); 2]> {
        let group = |main: u64| HEAD_LEN as u64 + main / 2 * GROUP_LEN as u64;
        let [first, second] = mains;
        if first / 2 == second / 2 {
            return SmallVec::from_slice(&[(group(first), GROUP_LEN)]);
        }
        let combined = |main: u64| (group(main) + main % 2 * BUCKET_LEN as u64, COMBINED_LEN);
        SmallVec::from_slice(&[combined(first), combined(second)])
    }
    /// Can this word of a segment hold an entry of this key?
    pub fn fits(self, hash: KeyHash, word: usize) -> bool {
        let at = word as u64 * 8;
        self.parts(self.mains(hash)).iter().any(|(from, len)| (*from..*from + *len as u64).contains(&at))
    }
    /// Returns the words of a segment without entries.
    pub fn empty(self, state: State, index_tag: u64) -> Vec<u64> {
        let mut words = vec![EMPTY; self.bytes() / 8];
        words[0] = state.0;
        words[INDEX_TAG] = index_tag;
        words[FIRST..].iter_mut().step_by(BUCKET_WORDS).for_each(|header| *header = state.unlock().0);
        words
    }
}

/// Is this word of a segment a bucket's header?
pub const fn is_header(word: usize) -> bool {
    word >= FIRST && (word - FIRST).is_multiple_of(BUCKET_WORDS)
}

/// Is this word of a segment in an overflow bucket?
pub const fn is_overflow(word: usize) -> bool {
    word >= FIRST && (word - FIRST) / BUCKET_WORDS % GROUP == 1
}

/// Returns the bucket of a word of a segment, counted over all groups, and the slot's number in the bucket.
pub const fn bucket_of(word: usize) -> (usize, usize) {
    let (bucket, at) = (word.saturating_sub(FIRST) / BUCKET_WORDS, word.saturating_sub(FIRST) % BUCKET_WORDS);
    (bucket, at.saturating_sub(1))
}

/// Returns the slots among the words of a segment, with their word numbers.
pub fn slots(words: &[u64]) -> impl Iterator<Item = (usize, u64)> + '_ {
    words.iter().copied().enumerate().skip(FIRST).filter(|(i, _)| !is_header(*i))
}

/// The buckets of a key, as they were READ.
pub struct View {
    mains: [RemotePtr; 2],
    parts: SmallVec<[(RemotePtr, Buf); 2]>,
}

impl View {
    /// Creates the view of a segment at `at`.
    pub fn new(shape: Shape, at: RemotePtr, mains: Mains, parts: SmallVec<[(RemotePtr, Buf); 2]>) -> Self {
        View { mains: mains.map(|main| at.add(shape.main(main))), parts }
    }

    /// Returns the address and the word of every slot.
    pub fn slots(&self) -> impl Iterator<Item = (RemotePtr, u64)> + '_ {
        let words = self.parts.iter().flat_map(|(at, buf)| {
            buf.words()
                .iter()
                .enumerate()
                .filter(|(i, _)| !i.is_multiple_of(BUCKET_WORDS))
                .map(|(i, word)| (*at, i, *word))
        });
        words.map(|(at, i, word)| (at.add(i as u64 * 8), word))
    }

    /// Returns the largest depth in the headers of this suffix. Headers that were read at different moments may differ.
    pub fn depth(&self, suffix: u64) -> u32 {
        let headers = self.parts.iter().flat_map(|(_, buf)| buf.words().iter().step_by(BUCKET_WORDS));
        headers.map(|word| State(*word)).filter(|header| header.suffix() == suffix).map(State::depth).max().unwrap_or(0)
    }

    /// Returns an empty slot: of the main bucket with more empty slots, or else of the overflow bucket with more.
    pub fn vacancy(&self) -> Option<RemotePtr> {
        let buckets = self.parts.iter().flat_map(|(at, buf)| {
            let buckets = buf.words().chunks_exact(BUCKET_WORDS).enumerate();
            buckets.map(|(i, words)| (at.add((i * BUCKET_LEN) as u64), words))
        });
        let vacancies = buckets.filter_map(|(at, words)| {
            let slots = words.get(1..).unwrap_or_default();
            let first = slots.iter().position(|word| *word == EMPTY)?;
            let count = slots.iter().filter(|word| **word == EMPTY).count();
            Some(((self.mains.contains(&at), count), at.add(8 + first as u64 * 8)))
        });
        // The first one of equal buckets.
        let best = vacancies.reduce(|best, other| if other.0 > best.0 { other } else { best });
        best.map(|(_, at)| at)
    }

    /// Returns the slots with this fingerprint that are not empty.
    pub fn matches(&self, fp: u64) -> impl Iterator<Item = (RemotePtr, u64)> + '_ {
        self.slots().filter(move |(_, word)| slot::matches(*word, fp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn state_fields_decode_as_encoded() {
        let state = State::open(0xF_FFFF_FFFF, 36);
        assert_eq!((state.suffix(), state.depth(), state.locked(), state.closing()), (0xF_FFFF_FFFF, 36, false, false));
        assert!(state.lock().locked() && !state.lock().closing());
        assert!(state.close().locked() && state.close().closing());
        assert_eq!(state.close().unlock(), state);
        assert_eq!(State::open(5, 3).close().deeper(), State::open(5, 4));
        assert_eq!(State::open(5, 3).child(), 0b1101);
    }

    #[test]
    fn parts_to_read_cover_both_main_buckets_of_a_key() {
        for groups in [1, 2, 64] {
            let shape = Shape { groups };
            let mut used = std::collections::BTreeSet::new();
            for i in 0..4000u64 {
                let hash = KeyHash::unseeded(&i.to_le_bytes());
                let mains = shape.mains(hash);
                assert!(mains[0] != mains[1] && mains.iter().all(|main| *main < groups * 2));
                used.extend(mains);
                let words = (0..shape.bytes() / 8).filter(|word| shape.fits(hash, *word)).count();
                let slots =
                    (FIRST..shape.bytes() / 8).filter(|word| shape.fits(hash, *word) && !is_header(*word)).count();
                assert!(matches!((words, slots), (36, 32) | (27, 24)), "{words} words, {slots} slots");
            }
            assert_eq!(used.len() as u64, groups * 2);
        }
    }

    #[test]
    fn vacancy_prefers_the_emptier_main_bucket_to_overflow_buckets() {
        let shape = Shape { groups: 2 };
        let segment_ref = RemotePtr::new(NodeId::new(0), 1 << 16);
        let mut words = shape.empty(State::open(1, 1), 7);
        let take = |words: &[u64]| {
            let mains = [0, 3];
            let parts = shape.parts(mains).into_iter().map(|(from, len)| {
                let endpoint = endpoint();
                let first = from as usize / 8;
                (segment_ref.add(from), endpoint.buf_from_words(&words[first..first + len / 8]))
            });
            View::new(shape, segment_ref, mains, parts.collect())
        };
        let word_of = |at: RemotePtr| ((at.offset() - segment_ref.offset()) / 8) as usize;
        // Main 0 is bucket 0 of group 0, main 3 is bucket 2 of group 1.
        let first = |bucket: usize| FIRST + bucket * BUCKET_WORDS + 1;
        words[first(0)] = 1;
        assert_eq!(take(&words).vacancy().map(word_of), Some(first(5)));
        for bucket in [0, 5] {
            words[first(bucket)..first(bucket) + SLOTS].fill(1);
        }
        assert_eq!(take(&words).vacancy().map(word_of), Some(first(1)));
        words[first(1)..first(1) + SLOTS].fill(1);
        words[first(4)..first(4) + SLOTS - 1].fill(1);
        assert_eq!(take(&words).vacancy().map(word_of), Some(first(4) + SLOTS - 1));
        words[first(4) + SLOTS - 1] = 1;
        assert_eq!(take(&words).vacancy(), None);
        assert_eq!((take(&words).depth(1), take(&words).depth(0)), (1, 0));
        assert_eq!(take(&words).slots().count(), 32);
    }

    fn endpoint() -> farindex_fabric::Endpoint {
        use farindex_fabric::Fabric;
        let fabric = farindex_fabric::MemoryFabric::new(1, 1 << 16).unwrap();
        fabric.connect(&fabric.new_identity()).unwrap()
    }
}
