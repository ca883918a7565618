//! Buckets: 64 slots in level 1, 8 in level 2, and nothing else: the bucket's own state lives in bit 63 of its slots.
//!
//! | Slot | Its bit 63 |
//! |---|---|
//! | 0 | the bucket is locked |
//! | 1 | some key of overflow class 0 may lie in level 2 or 3 |
//! | 2-7 | the bucket's version, in Gray code, so that one more version is one bit flipped |
//! | 8-63 | overflow classes 1 to 56 (level 1) |
//!
//! A snapshot is the result of one READ: words of different moments (N2). [`Snapshot::health`] decides whether the
//! absence of a key follows from it; docs/protocols/shard.md has the proof.

use super::slot::{META, Pattern, Slot, is_fresh, is_usual};
use crate::faults::{Fault, planted};
use farindex_fabric::{Buf, RemotePtr};
use farindex_pool::Lock;

/// Returns the lock of the bucket at this address.
pub(super) fn lock_of(at: RemotePtr) -> Lock {
    Lock { at, mask: META }
}

/// The two levels that are made of buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// 64 slots.
    One,
    /// 8 slots, two choices.
    Two,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "level {}", *self as u8 + 1)
    }
}

impl Level {
    /// Slots of a bucket.
    pub const fn slots(self) -> usize {
        match self {
            Level::One => 64,
            Level::Two => 8,
        }
    }
    /// Bytes of a bucket.
    pub const fn bytes(self) -> usize {
        self.slots() * 8
    }
}

/// Overflow classes of a level-1 bucket.
pub const OVERFLOW_CLASSES: u64 = 57;
/// The slot that carries the lock.
pub const LOCK_SLOT: usize = 0;
const VERSION_SLOTS: std::ops::Range<usize> = 2..8;
/// Versions that a bucket can count.
pub const MAX_VERSION: u64 = (1 << (VERSION_SLOTS.end - VERSION_SLOTS.start)) - 1;

/// The slot whose bit says that a class has overflowed.
pub const fn overflow_slot(class: u64) -> usize {
    if class == 0 { 1 } else { class as usize + 7 }
}

const fn gray(version: u64) -> u64 {
    version ^ version >> 1
}

/// The slot whose bit turns a version into the next one.
pub fn version_slot(version: u64) -> usize {
    VERSION_SLOTS.start + (gray(version) ^ gray(version + 1)).trailing_zeros() as usize
}

/// The bucket bit of a slot in a bucket of this version without lock and overflow.
pub fn version_bit(slot: usize, version: u64) -> u64 {
    match slot.checked_sub(VERSION_SLOTS.start) {
        Some(bit) if slot < VERSION_SLOTS.end => (gray(version) >> bit & 1) * META,
        _ => 0,
    }
}

/// A free slot that never was used, in a bucket of this version.
pub fn fresh_word(version: u64) -> u64 {
    Slot::Fresh(version, super::slot::Stamp::NEVER).encode()
}

/// What can be concluded from a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A key that the snapshot does not show was absent at some moment of the READ.
    Good,
    /// A client holds the lock.
    Locked,
    /// The bucket has not been split off from its parent yet.
    Unwritten,
    /// It has an older version than expected: it has yet to be split.
    Older(u64),
    /// It shows signs of a newer version than expected.
    Newer,
    /// It mixes words of different versions.
    Mixed,
    /// This slot holds bits that no client writes.
    Corrupt(usize),
}

/// The result of one READ of a bucket.
pub struct Snapshot {
    /// First byte of the bucket.
    pub at: RemotePtr,
    words: Buf,
}

impl Snapshot {
    /// Of a buffer that a READ of a bucket filled.
    pub fn new(at: RemotePtr, words: Buf) -> Self {
        Snapshot { at, words }
    }
    /// The words.
    pub fn words(&self) -> &[u64] {
        self.words.words()
    }
    /// The words, to apply changes that are known to have been made since.
    pub fn words_mut(&mut self) -> &mut [u64] {
        self.words.words_mut()
    }
    /// One word.
    pub fn word(&self, slot: usize) -> u64 {
        self.words().get(slot).copied().unwrap_or(0)
    }
    /// Has every slot been written?
    pub fn is_written(&self) -> bool {
        // Without an early exit, so that it is a few vector instructions. One less than no bits borrows from the bit above them.
        self.words().iter().fold(0, |borrows, word| borrows | (word & !META).wrapping_sub(1)) & META == 0
    }
    /// Address of a slot.
    pub fn slot(&self, slot: usize) -> RemotePtr {
        self.at.add(slot as u64 * 8)
    }
    /// Is this one of its slots?
    pub fn holds(&self, slot: RemotePtr) -> bool {
        (self.at..self.at.add(self.words().len() as u64 * 8)).contains(&slot)
    }
    /// Is the lock taken?
    pub fn locked(&self) -> bool {
        self.word(LOCK_SLOT) & META != 0
    }
    /// The bucket's version.
    pub fn version(&self) -> u64 {
        let gray = VERSION_SLOTS.rev().fold(0, |bits, slot| bits << 1 | self.word(slot) >> 63);
        // Gray code back to binary.
        let mut version = gray;
        let mut shift = gray >> 1;
        while shift != 0 {
            version ^= shift;
            shift >>= 1;
        }
        version
    }
    /// May a key of this class lie in level 2 or 3?
    pub fn overflowed(&self, class: u64) -> bool {
        self.word(overflow_slot(class)) & META != 0
    }
    /// Slots with live words of this pattern: slot i at bit i.
    pub fn matches(&self, pattern: Pattern) -> u64 {
        let (parts, _) = self.words().as_chunks();
        let alike = alike(parts.get(..8).unwrap_or(parts), pattern);
        ones(alike).filter(|slot| pattern.matches(self.word(*slot))).fold(0, |slots, slot| slots | 1 << slot)
    }
    /// Every slot, decoded.
    pub fn slots(&self) -> impl Iterator<Item = (usize, Slot)> + '_ {
        self.words().iter().map(|word| Slot::decode(*word)).enumerate()
    }
    /// The first fresh slot.
    pub fn first_fresh(&self) -> Option<(usize, Slot)> {
        let slot = self.words().iter().position(|word| is_fresh(*word))?;
        Some((slot, Slot::decode(self.word(slot))))
    }

    /// Hashes the words that a settled bucket of this version does not have. Inserts, updates and removals do not
    /// change the result; splits do.
    pub fn trace(&self, version: u64) -> u64 {
        let mine = self.version();
        let settled = |slot| match slot {
            Slot::Live(_) => true,
            Slot::Dead(seen, _) => seen <= version,
            Slot::Fresh(seen, _) => seen <= version && seen == mine,
            _ => false,
        };
        let odd = self.words().iter().enumerate().filter(|(_, word)| !settled(Slot::decode(**word)));
        odd.fold(mine, |trace, (i, word)| {
            xxhash_rust::xxh3::xxh3_64_with_seed(&(word & !META).to_le_bytes(), trace.wrapping_add(i as u64))
        })
    }

    /// Is the bucket free of words that an unfinished split leaves, or that a READ shows which overlapped a split?
    /// Words that no client writes do not count.
    pub fn is_settled(&self, version: u64, side: Option<(u64, u64)>) -> bool {
        self.slots().all(|(_, slot)| match slot {
            Slot::Live(entry) => side.is_none_or(|(bit, value)| entry.sid >> bit & 1 == value),
            Slot::Dead(seen, _) => seen <= version,
            Slot::Fresh(seen, _) => seen == version,
            Slot::Unknown | Slot::Link(_) => true,
            Slot::Unwritten | Slot::Frozen(..) | Slot::Barrier(..) => false,
        })
    }

    /// What can be concluded about keys with this fingerprint, by a client that expects this version?
    ///
    /// `side` is the bit of a live slot's sid that the bucket's latest split has decided, and its value in this bucket:
    /// a slot with another value was read before that split ([`Geometry::side`](super::geometry::Geometry::side)).
    pub fn health(&self, version: u64, fp: u64, side: Option<(u64, u64)>) -> Health {
        let one_bit = planted(Fault::OneBitVersion);
        let mine = match self.version() {
            mine if one_bit && (mine ^ version) & 1 == 0 => version,
            mine => mine,
        };
        // Most buckets hold nothing else, and that takes no branch for each slot.
        if mine == version
            && !self.locked()
            && self.words().iter().fold(true, |all, word| all & is_usual(*word, version, side))
        {
            return Health::Good;
        }
        let mut verdict = Health::Good;
        for (i, slot) in self.slots() {
            match slot {
                Slot::Live(entry)
                    if verdict == Health::Good && side.is_some_and(|(bit, value)| entry.sid >> bit & 1 != value) =>
                {
                    verdict = Health::Mixed;
                }
                Slot::Unwritten => return Health::Unwritten,
                Slot::Unknown | Slot::Link(_) => return Health::Corrupt(i),
                Slot::Barrier(..) => verdict = Health::Newer,
                // Where a split may free a slot at once (`side`), a frozen slot of another key shows that this READ
                // overlapped the split, or came before it. By now the slot may be fresh, and an insert must go there.
                Slot::Frozen(frozen, _) if frozen == fp || side.is_some() && !planted(Fault::FrozenOfOthers) => {
                    verdict = Health::Newer;
                }
                Slot::Dead(seen, _) if seen > version && !one_bit => verdict = Health::Newer,
                Slot::Fresh(seen, _) if seen > version && !one_bit => verdict = Health::Newer,
                Slot::Fresh(seen, _) if seen != mine && verdict == Health::Good && !one_bit => verdict = Health::Mixed,
                _ => {}
            }
        }
        if self.locked() {
            return Health::Locked;
        }
        match mine.cmp(&version) {
            std::cmp::Ordering::Less => Health::Older(mine),
            std::cmp::Ordering::Greater => Health::Newer,
            std::cmp::Ordering::Equal => verdict,
        }
    }
}

/// Slots with words that may match, in parts of eight: slot i at bit i. A part takes a few vector instructions; at the
/// end, bit i of lane j stands for slot 8 i + j. By itself, for a number of parts that the compiler does not know: a loop
/// that it unrolls is not vectorized any more.
#[inline(never)]
fn alike(parts: &[[u64; 8]], pattern: Pattern) -> u64 {
    let mut lanes = [0u32; 8];
    for words in parts.iter().rev() {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = *lane << 1 | u32::from(pattern.resembles(*word));
        }
    }
    transposed(lanes.iter().rev().fold(0, |bytes, lane| bytes << 8 | u64::from(*lane)))
}

/// The numbers of the bits that are set, in ascending order.
pub(super) fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        next
    })
}

/// Transposes a matrix of 8 x 8 bits: bit i of byte j becomes bit j of byte i.
const fn transposed(mut bits: u64) -> u64 {
    let odd = (bits ^ bits >> 7) & 0x00AA_00AA_00AA_00AA;
    bits ^= odd ^ odd << 7;
    let odd = (bits ^ bits >> 14) & 0x0000_CCCC_0000_CCCC;
    bits ^= odd ^ odd << 14;
    let odd = (bits ^ bits >> 28) & 0x0000_0000_F0F0_F0F0;
    bits ^ odd ^ odd << 28
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::{Fabric, MemoryFabric, OpKind};

    #[test]
    fn each_version_differs_from_the_next_in_one_bit() {
        let fabric = MemoryFabric::new(1, 1 << 12).expect("memory");
        let endpoint = fabric.connect(&fabric.new_identity()).expect("connection");
        let _ = endpoint.span(OpKind::Other);
        let mut words = [0u64; 64];
        for version in 0..MAX_VERSION {
            for (slot, word) in words.iter().enumerate() {
                assert_eq!(*word, version_bit(slot, version));
            }
            let snapshot = Snapshot::new(RemotePtr::NULL, endpoint.buf_from_words(&words));
            assert_eq!(snapshot.version(), version);
            words[version_slot(version)] ^= META;
        }
    }

    /// What is found eight at a time is what each slot by itself says.
    #[test]
    fn every_slot_that_matches_is_found() {
        let fabric = MemoryFabric::new(1, 1 << 12).expect("memory");
        let endpoint = fabric.connect(&fabric.new_identity()).expect("connection");
        let mut bits = 0x9E37_79B9_7F4A_7C15_u64;
        let mut found = 0;
        for len in [8, 64] {
            for _ in 0..500 {
                let words: Vec<u64> = (0..len)
                    .map(|_| {
                        bits = bits.wrapping_mul(0xD129_0A9B_5C9F_7A35).rotate_left(29) ^ 0x51;
                        // Few fingerprints, sids and lengths.
                        bits & !(0x7CC_C000_0000_0000 << 4)
                    })
                    .collect();
                let pattern = Pattern::new(bits >> 56 & 3, bits >> 52 & 3);
                let snapshot = Snapshot::new(RemotePtr::NULL, endpoint.buf_from_words(&words));
                let each = (0..len).filter(|slot| pattern.matches(words[*slot])).fold(0, |all, slot| all | 1 << slot);
                assert_eq!(snapshot.matches(pattern), each);
                found += each.count_ones();
            }
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn overflow_classes_have_slots_of_their_own() {
        let slots: std::collections::BTreeSet<_> = (0..OVERFLOW_CLASSES).map(overflow_slot).collect();
        assert_eq!(slots.len() as u64, OVERFLOW_CLASSES);
        assert!(slots.iter().all(|slot| *slot == 1 || (8..64).contains(slot)));
    }
}
