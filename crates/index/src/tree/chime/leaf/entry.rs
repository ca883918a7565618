//! Entries: their words, homes, checks and digests.

use super::faults::{Fault, planted};
use super::layout::Layout;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const OCCUPIED: u32 = 16;
const INLINE: u32 = 17;
const BLOCK: u32 = 18;
const TURNING: u32 = 19;
const DIGEST: u32 = 20;
const CHECK: u32 = 36;
/// Bits of a digest.
pub const DIGEST_BITS: u32 = CHECK - DIGEST;
/// Bits of a check.
pub const CHECK_BITS: u32 = 64 - CHECK;
const _: () = assert!(OCCUPIED == 16 && DIGEST_BITS == 16 && CHECK_BITS == 28);

/// Computes the hash of a key: xxh3-64 of its bytes with the index's seed. The home of an entry is a function of it.
pub fn hash_key(key: &[u8], hash_seed: u64) -> u64 {
    xxh3_64_with_seed(key, hash_seed)
}

/// A key as an entry holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The bytes of a key of 8 bytes, or the hash of another key.
    pub word0: u64,
    /// Is `word0` the key itself?
    pub inline: bool,
}

impl Key {
    /// A key of 8 bytes.
    pub const fn inline(key: [u8; 8]) -> Key {
        Key { word0: u64::from_le_bytes(key), inline: true }
    }
    /// Any other key, by its [hash](hash_key): its bytes are in the key-value block.
    pub const fn hashed(hash: u64) -> Key {
        Key { word0: hash, inline: false }
    }
    /// Returns the key's hash: the same, whether the entry is inline or not.
    pub fn hash(self, hash_seed: u64) -> u64 {
        if self.inline { hash_key(&self.word0.to_le_bytes(), hash_seed) } else { self.word0 }
    }
}

/// What an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Item {
    /// The key, or its hash.
    pub key: Key,
    /// The value, or the block: 16 bits of length in units of 64 bytes, 48 bits of address.
    pub word1: u64,
    /// Is `word1` a block? It always is if the key is not inline.
    pub block: bool,
}

impl Item {
    /// A key and a value of 8 bytes each.
    pub const fn inline(key: [u8; 8], value: [u8; 8]) -> Item {
        Item { key: Key::inline(key), word1: u64::from_le_bytes(value), block: false }
    }
    /// A key with its key-value block: the 48 bits of its address
    /// ([`RemotePtr::to_slot`](farindex_fabric::RemotePtr::to_slot)), and its length in units of 64 bytes.
    pub const fn block(key: Key, slot: u64, units: u16) -> Item {
        Item { key, word1: (units as u64) << 48 | slot & ((1 << 48) - 1), block: true }
    }
}

/// The number that binds entries to one state of one leaf. It is a hash of the index tag, the leaf's address, its right
/// sibling, and its low and high key ([`Node::seed`](super::header::Node::seed)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

/// The state word of an entry.
///
/// ```text
/// 63       36 35       20 19        18      17       16         15     0
/// | check 28 | digest 16 | turning 1 | block 1 | inline 1 | occupied 1 | hop 16 |
/// ```
///
/// *inline* says that word0 is the key, *block* that word1 is a block. *turning*: an update is changing word1 from the one
/// form to the other; if the check does not hold, word1 is of the other form already (H2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(u64);

impl State {
    /// Interprets a word.
    pub const fn from_bits(bits: u64) -> State {
        State(bits)
    }
    /// Returns the word.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Does the entry hold a key?
    pub const fn occupied(self) -> bool {
        self.0 >> OCCUPIED & 1 == 1
    }
    /// Does the entry hold the key itself?
    pub const fn inline(self) -> bool {
        self.0 >> INLINE & 1 == 1
    }
    /// Does the entry hold a block?
    pub const fn block(self) -> bool {
        self.0 >> BLOCK & 1 == 1
    }
    /// Is word1 of the other form if the check does not hold?
    pub const fn turning(self) -> bool {
        self.0 >> TURNING & 1 == 1
    }
    /// Returns the bitmap of the neighbourhood from this entry on: bit `d` for the entry `d` behind it.
    pub const fn hop(self) -> u16 {
        self.0 as u16
    }
    /// Returns the digest of the keys in the bitmap.
    pub const fn digest(self) -> u32 {
        (self.0 >> DIGEST) as u32 & ((1 << DIGEST_BITS) - 1)
    }
    /// Returns the check.
    pub const fn check(self) -> u32 {
        (self.0 >> CHECK) as u32
    }
    const fn unchecked(self) -> u64 {
        self.0 & ((1 << CHECK) - 1)
    }
    pub(super) fn with_occupancy(self, holds: Option<Item>) -> State {
        let bits = self.0 & !(1 << OCCUPIED | 1 << INLINE | 1 << BLOCK | 1 << TURNING);
        let of = |item: Item| 1 << OCCUPIED | u64::from(item.key.inline) << INLINE | u64::from(item.block) << BLOCK;
        State(bits | holds.map_or(0, of))
    }
    pub(super) fn with_turning(self) -> State {
        State(self.0 | 1 << TURNING)
    }
    pub(super) fn with_home(self, home: HomeSet) -> State {
        let bits = self.0 & !(0xFFFF | ((1 << DIGEST_BITS) - 1) << DIGEST);
        State(bits | u64::from(home.hop) | u64::from(home.digest) << DIGEST)
    }
    pub(super) const fn home_set(self) -> HomeSet {
        HomeSet { hop: self.hop(), digest: self.digest() }
    }
}

/// The keys of one home: which entries of the neighbourhood hold them, and a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HomeSet {
    /// Bit `d` stands for the entry `d` behind the home.
    pub hop: u16,
    /// The sum of the keys' terms, cut to [`DIGEST_BITS`].
    pub digest: u32,
}

impl HomeSet {
    /// Adds a key that is `distance` entries behind its home.
    pub fn add(&mut self, hash: u64, inline: bool, distance: usize) {
        self.hop |= 1 << distance;
        self.digest = (self.digest + term(hash, inline, distance)) & ((1 << DIGEST_BITS) - 1);
    }
    /// Takes the key out again.
    pub fn remove(&mut self, hash: u64, inline: bool, distance: usize) {
        self.hop &= !(1 << distance);
        self.digest = self.digest.wrapping_sub(term(hash, inline, distance)) & ((1 << DIGEST_BITS) - 1);
    }
}

/// A key's part of the digest: the top bits of a finalizer (MurmurHash3's) over hash, form and distance.
fn term(hash: u64, inline: bool, distance: usize) -> u32 {
    let mut x = hash ^ ((distance as u64) << 1 | u64::from(inline)).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ x >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    (x >> (64 - DIGEST_BITS)) as u32
}

/// The three words of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The key, or its hash.
    pub word0: u64,
    /// The value, or the block.
    pub word1: u64,
    /// Everything else.
    pub state: State,
}

impl Entry {
    /// Returns what the entry holds; `None` if it is vacant.
    pub fn item(&self) -> Option<Item> {
        let key = Key { word0: self.word0, inline: self.state.inline() };
        self.state.occupied().then_some(Item { key, word1: self.word1, block: self.state.block() })
    }
    /// Computes the check. The data words of a vacant entry mean nothing, and are left out.
    fn expected_check(&self, position: usize, seed: Seed) -> u32 {
        let data = if self.state.occupied() { [self.word0, self.word1] } else { [0; 2] };
        let words = [data[0], data[1], self.state.unchecked(), position as u64];
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        (xxh3_64_with_seed(&bytes, seed.0) >> (64 - CHECK_BITS)) as u32
    }
    /// Returns the same entry with the right check.
    #[must_use]
    pub(super) fn checked(self, position: usize, seed: Seed) -> Entry {
        let check = u64::from(self.expected_check(position, seed));
        Entry { state: State(self.state.unchecked() | check << CHECK), ..self }
    }
    /// Compares the entry with its check (H1).
    pub fn check_holds(&self, position: usize, seed: Seed) -> bool {
        let differs = self.expected_check(position, seed) ^ self.state.check();
        if planted(Fault::FourBitVersions) { differs & 0xF == 0 } else { differs == 0 }
    }
}

/// A key with what the leaf computes from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) inline: bool,
    pub(super) hash: u64,
    pub(super) home: usize,
}

impl Placed {
    pub(super) fn of(key: Key, layout: Layout) -> Placed {
        let hash = key.hash(layout.hash_seed());
        Placed { inline: key.inline, hash, home: layout.home_of_hash(hash) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_digests_and_hashes_have_fixed_test_vectors() {
        let key = Key::inline(*b"farindex");
        assert_eq!(key.hash(7), hash_key(b"farindex", 7));
        let mut home = HomeSet::default();
        home.add(key.hash(7), true, 3);
        let item = Item { key, word1: 5, block: false };
        let state = State(0).with_occupancy(Some(item)).with_home(home);
        let entry = Entry { word0: key.word0, word1: 5, state }.checked(9, Seed(11));
        assert!(entry.check_holds(9, Seed(11)));
        assert!(!entry.check_holds(8, Seed(11)) && !entry.check_holds(9, Seed(12)));
        assert!(!Entry { word0: 1, ..entry }.check_holds(9, Seed(11)));
        assert!(!Entry { word1: 4, ..entry }.check_holds(9, Seed(11)));
        assert_eq!((key.hash(7), entry.state.bits()), VECTOR);
    }
    // Far memory holds these, so a new version of a library must not change them.
    const VECTOR: (u64, u64) = (3_519_630_503_013_139_708, 3_000_902_665_934_929_928);

    #[test]
    fn a_vacant_entrys_data_words_do_not_count() {
        let entry = Entry { word0: 1, word1: 2, state: State(0).with_home(HomeSet { hop: 6, digest: 77 }) };
        let entry = entry.checked(3, Seed(1));
        assert!(Entry { word0: 8, word1: 9, ..entry }.check_holds(3, Seed(1)));
        assert_eq!((entry.item(), entry.state.home_set()), (None, HomeSet { hop: 6, digest: 77 }));
    }

    #[test]
    fn home_sets_forget_what_is_removed() {
        let mut home = HomeSet::default();
        (0..16).for_each(|i| home.add(i as u64 * 77, i % 2 == 0, i));
        let full = home;
        (0..16).rev().for_each(|i| home.remove(i as u64 * 77, i % 2 == 0, i));
        assert_eq!((home, full.hop), (HomeSet::default(), 0xFFFF));
    }
}
