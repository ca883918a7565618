//! Where the slots of one table are: its root, and a worker's copy of the root.
//!
//! A key's *place* is its hash with the bits reversed, a fraction of 1; its home in a table of `n` slots is that
//! fraction of `n`. So a larger table has the keys in the same order, and a region of the old table is moved to a
//! region of the new one.
//!
//! Invariants: a table's segment is named before the state that makes it the current or the next one; generations only
//! grow; what a READ of the root shows is believed only if the segments have the generation that the state names.
//!
//! ```text
//! root  word 0   | 63-32 generation | 31 dropped | 30 growing | 24-8 resizer: client slot + 1, or zero | 0 |
//!       word 1   entries, counted by FAA
//!       word 2,3 slots in use, in segments of even and of odd generations, counted by FAA
//!       word 4   index tag: a hash of the pool's and the index's identity
//!       word 8,9   | generation 16 | segment 48 |, | generation 16 | regions 48 | of the segment of an even generation
//!       word 10,11 the same of an odd one
//! segment  regions x 64 slots | one word for each region: 0 not moved, 1 being moved (locked), 2 moved | room
//!       room: keys that may still be put directly into it while the table before is moved here, counted down by FAA;
//!       used by linear probing alone
//! ```

use super::intents;
use crate::keyhash::{HASH_BITS, KeyHash};
pub use crate::root_sync::RootState;
use crate::root_sync::{COUNTERS, Refresh, RootCopy};
use farindex_fabric::RemotePtr;
use farindex_pool::Lock;

/// Slots of a region. A table is moved region by region.
pub const REGION: u64 = 64;
/// Bytes of a root.
pub const ROOT_LEN: usize = 128;
/// Word that holds the index tag.
pub const ROOT_INDEX_TAG: usize = 4;
/// Offset of the counts of slots in use.
pub const ROOT_USED: u64 = 16;
/// Word with the first segment.
pub const ROOT_SEGMENTS: usize = 8;
/// Largest table, in regions.
pub const MAX_REGIONS: u64 = 1 << 34;
const _: () = assert!(ROOT_SEGMENTS * 8 + 4 * 8 <= ROOT_LEN);

/// A region's lock word while it is being moved.
pub const LOCKED: u64 = 1;
/// A region's lock word once it has been moved.
pub const DONE: u64 = 2;

/// The fields of the root's first word that tables of slots have.
impl RootState {
    const GROWING: u64 = 1 << 30;

    /// Returns how many tables there have been before this one.
    pub const fn generation(self) -> u64 {
        self.0 >> 32
    }
    /// Is the table being moved to the next one?
    pub const fn growing(self) -> bool {
        self.0 & Self::GROWING != 0
    }
    /// Returns the state when the next table has been made, without a resizer.
    #[must_use]
    pub const fn grows(self) -> Self {
        RootState(self.without_resizer().0 | Self::GROWING)
    }
    /// Returns the state when the next table has become the current one.
    #[must_use]
    pub const fn settled(self) -> Self {
        RootState((self.0 & !Self::GROWING).wrapping_add(1 << 32))
    }
}

/// One generation of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its generation.
    pub generation: u64,
    /// Its first slot.
    pub start: RemotePtr,
    /// Its regions.
    pub regions: u64,
    /// Bytes of a slot.
    pub width: usize,
}

impl Segment {
    /// Slots.
    pub const fn slots(&self) -> u64 {
        self.regions * REGION
    }
    /// Bytes of a segment of so many regions, in a pool with chunks of this size: spans are whole chunks.
    pub fn bytes_for(regions: u64, width: usize, chunk_size: u64) -> u64 {
        (regions * (REGION * width as u64 + 8) + 8).next_multiple_of(chunk_size)
    }
    /// A slot.
    pub const fn slot(&self, index: u64) -> RemotePtr {
        self.start.add(index * self.width as u64)
    }
    /// The number of the slot at this address.
    pub const fn index_of(&self, at: RemotePtr) -> u64 {
        at.offset().wrapping_sub(self.start.offset()) / self.width as u64
    }
    /// The slot behind, around the end.
    pub const fn after(&self, index: u64, slots: u64) -> u64 {
        (index + slots) % self.slots()
    }
    /// The lock of a region.
    pub const fn lock(&self, region: u64) -> Lock {
        Lock { at: self.start.add(self.slots() * self.width as u64 + region * 8), mask: LOCKED }
    }
    /// Address of the number of keys that may still be put directly into it, while the table before is being moved
    /// here.
    pub const fn room(&self) -> RemotePtr {
        self.start.add(self.slots() * self.width as u64 + self.regions * 8)
    }
    /// Where a key's search begins.
    pub fn home(&self, hash: KeyHash) -> u64 {
        self.home_of(place(hash))
    }
    /// The home of keys with this place.
    pub(crate) fn home_of(&self, place: u64) -> u64 {
        ((u128::from(place) * u128::from(self.slots())) >> 64) as u64
    }
    /// The smallest place whose home is this slot, or a later one if no place has this home; 2^64 for the end of the
    /// table.
    pub(crate) fn first_place(&self, slot: u64) -> u128 {
        (u128::from(slot) << 64).div_ceil(u128::from(self.slots()))
    }
    /// Its two words in the root.
    pub fn words(&self) -> [u64; 2] {
        let generation = self.generation << 48;
        [generation | self.start.to_slot().unwrap_or_default(), generation | self.regions]
    }
    /// Word of the root at which those are.
    pub const fn root_word(generation: u64) -> usize {
        ROOT_SEGMENTS + 2 * (generation % 2) as usize
    }
    fn parse(words: &[u64], generation: u64, width: usize) -> Option<Self> {
        let at = Self::root_word(generation);
        let &[start, regions] = words.get(at..at + 2)? else { return None };
        let low = (1 << 48) - 1;
        let fits = start >> 48 == generation & 0xFFFF && regions >> 48 == generation & 0xFFFF;
        let regions = regions & low;
        let sound = fits && start & low != 0 && (1..=MAX_REGIONS).contains(&regions);
        sound.then(|| Segment { generation, start: RemotePtr::from_slot(start), regions, width })
    }
}

/// A key's place: its hash, most significant bit last, as a fraction of 1.
pub(crate) fn place(hash: KeyHash) -> u64 {
    hash.bits().reverse_bits()
}

/// The one byte of a key that a slot keeps. The hash's top bits, which come last in its place.
pub fn signature(hash: KeyHash) -> u8 {
    (hash.bits() >> (HASH_BITS - 8)) as u8
}

/// A worker's copy of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Word 0 of the root.
    pub state: RootState,
    /// The table.
    pub current: Segment,
    /// The one that it is being moved to.
    pub next: Option<Segment>,
}

impl Geometry {
    /// Decodes a root; `None` if its words are of different moments (N2), or no table has such a root.
    pub fn parse(words: &[u64], width: usize) -> Option<Self> {
        let state = RootState(*words.first()?);
        let current = Segment::parse(words, state.generation(), width)?;
        let next = match state.growing() {
            true => Some(Segment::parse(words, state.generation() + 1, width)?),
            false => None,
        };
        Some(Geometry { state, current, next })
    }
    /// Returns the number of the root's counter of slots in use, of segments of this generation.
    pub(crate) const fn used_counter(generation: u64) -> usize {
        1 + (generation % 2) as usize
    }
    /// Returns the segments that exist.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        [Some(self.current), self.next].into_iter().flatten()
    }
}

impl RootCopy for Geometry {
    const LEN: usize = ROOT_LEN;
    const INDEX_TAG_WORD: usize = ROOT_INDEX_TAG;
    const COUNTER_WORDS: &'static [usize] = &[1, 2, 3];
    const READ_RESTARTS_INTERVAL: bool = true;
    const RECOVER_INTENT: u64 = intents::RECOVER;
    /// Bytes of a slot.
    type Shape = usize;

    fn parse(words: &[u64], _: RemotePtr, width: usize) -> Option<Self> {
        Geometry::parse(words, width)
    }
    fn refresh(&mut self, words: &[u64], _: RemotePtr, width: usize, added: &mut [i64; COUNTERS]) -> Refresh {
        let Some(read) = Geometry::parse(words, width) else { return Refresh::Torn };
        let age = |geometry: &Geometry| (geometry.state.generation(), geometry.state.growing());
        if age(&read) < age(self) {
            return Refresh::Older;
        }
        if read.current.generation > self.current.generation {
            // Slots of the table before, which is gone.
            added[Self::used_counter(self.current.generation)] = 0;
        }
        *self = read;
        Refresh::Current
    }
    fn state(&self) -> RootState {
        self.state
    }
    fn growing(&self) -> bool {
        self.state.growing()
    }
    fn slots(&self) -> u64 {
        self.current.slots()
    }
    fn load_counter(&self) -> usize {
        Self::used_counter(self.current.generation)
    }
    fn slots_taken(before: u64, now: u64, added: i64) -> u64 {
        now.saturating_add_signed(added).saturating_sub(before.saturating_add_signed(added))
    }
    fn resizes(&self) -> u64 {
        self.current.generation
    }
    fn spans(&self, chunk_size: u64) -> Vec<(RemotePtr, u64)> {
        let bytes = |segment: &Segment| Segment::bytes_for(segment.regions, segment.width, chunk_size);
        self.segments().map(|segment| (segment.start, bytes(&segment))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn larger_table_keeps_the_order_of_keys() {
        let segment = |regions| Segment { generation: 0, start: RemotePtr::new(NodeId::new(0), 64), regions, width: 8 };
        let (small, large) = (segment(3), segment(7));
        let mut hashes: Vec<_> = (0..500u64).map(|i| KeyHash::unseeded(&i.to_le_bytes())).collect();
        hashes.sort_by_key(|hash| place(*hash));
        for pair in hashes.windows(2) {
            assert!(small.home(pair[0]) <= small.home(pair[1]) && large.home(pair[0]) <= large.home(pair[1]));
        }
        assert!(hashes.iter().all(|hash| small.home(*hash) < small.slots()));
        for slot in 1..large.slots() {
            let first = u64::try_from(large.first_place(slot)).unwrap();
            assert_eq!((large.home_of(first - 1), large.home_of(first)), (slot - 1, slot));
        }
        assert_eq!((large.first_place(0), large.first_place(large.slots())), (0, 1 << 64));
    }

    #[test]
    fn torn_root_is_refused() {
        let segment = |generation, regions| Segment {
            generation,
            start: RemotePtr::new(NodeId::new(1), 4096),
            regions,
            width: 16,
        };
        let mut words = [0; ROOT_LEN / 8];
        words[0] = 6 << 32;
        words[8..10].copy_from_slice(&segment(6, 4).words());
        assert_eq!(Geometry::parse(&words, 16).map(|g| (g.current, g.next)), Some((segment(6, 4), None)));
        let growing = RootState(words[0]).resized_by(3).grows();
        words[0] = growing.0;
        assert_eq!(Geometry::parse(&words, 16), None, "the next segment is not there yet");
        words[10..12].copy_from_slice(&segment(7, 8).words());
        assert_eq!(Geometry::parse(&words, 16).map(|g| g.next), Some(Some(segment(7, 8))));
        words[0] = growing.settled().0;
        assert_eq!(Geometry::parse(&words, 16).map(|g| (g.current, g.next)), Some((segment(7, 8), None)));
        words[11] = segment(9, 8).words()[1];
        assert_eq!(Geometry::parse(&words, 16), None);
    }
}
