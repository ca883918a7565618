//! Where the buckets of one table lie: the directory, and a client's copy of it.
//!
//! A table has one segment for each resize: segment 0 with `2^b` buckets, and segment `k` with as many as all before it
//! together. A segment holds its share of all three levels behind each other. Under version `V` (the number of resizes)
//! a key belongs to bucket `h mod 2^(b + V)` of level 1; the number's highest bit determines the segment.
//!
//! Invariants: a segment's pointer is written before the version that needs it, and never changes; versions only grow.
//! So a client with an old copy computes the right place *for that version*, and the bucket that it finds there shows
//! whether the copy is behind. A client's copy has one pointer for each segment: O(log buckets).
//!
//! ```text
//! root    word 0  | 63-32 stamp of the latest resize | 31 dropped | 24-8 resizer: client slot + 1, or 0 | 7-0 version |
//!         word 1  entries, counted by FAA (two's complement)
//!         word 2  b
//!         word 3  index tag: a hash of the pool's and the index's identity
//!         words 8-  one pointer for each segment
//! segment  n x 512 bytes of level 1 | n x 64 bytes of level 2 | n x 8 bytes of level 3
//! ```

use super::bucket::Level;
use super::intents;
use super::slot::Pattern;
use crate::keyhash::{FINGERPRINT_BITS, HASH_BITS, KeyHash};
pub use crate::root_sync::RootState;
use crate::root_sync::{COUNTERS, Refresh, RootCopy};
use farindex_fabric::{NodeId, RemotePtr};
use std::rc::Rc;

/// Segments of a table at most.
pub const MAX_SEGMENTS: usize = 47;
/// Largest `b`. The paper takes 10 to 20.
pub const MAX_INITIAL_BITS: u64 = 20;
/// Bits of a bucket number at most, so that they never reach those of the fingerprint.
pub const MAX_BUCKET_BITS: u64 = 46;
/// Bytes of a root.
pub const ROOT_LEN: usize = 512;
/// Word that holds the index tag.
pub const ROOT_INDEX_TAG: usize = 3;
/// Offset of the stamp of the latest resize that has renewed the sids; zero if none has.
pub const ROOT_RENEWED: u64 = 32;
/// Offset of the first segment's pointer.
pub const ROOT_SEGMENTS: u64 = 64;
const _: () = assert!(ROOT_SEGMENTS as usize + MAX_SEGMENTS * 8 <= ROOT_LEN);
const _: () = assert!(MAX_BUCKET_BITS as u32 + FINGERPRINT_BITS < HASH_BITS);
const _: () = assert!(MAX_SEGMENTS as u64 - 1 <= super::bucket::MAX_VERSION);

/// Bytes of a segment for each of its buckets.
pub const BYTES_PER_BUCKET: u64 = 512 + 64 + 8;

/// SHARD's fields of the root's first word.
impl RootState {
    /// Returns how often the table has been resized.
    pub const fn version(self) -> u64 {
        self.0 & 0xFF
    }
    /// Returns the state with another version, which an operation that is pinned at `epoch` publishes, without a
    /// resizer.
    #[must_use]
    pub const fn with_version(self, version: u64, epoch: u64) -> Self {
        let stamp = farindex_pool::epoch::tag(epoch) << 32;
        RootState(self.0 & !Self::RESIZER & 0xFFFF_FF00 | version | stamp)
    }
    /// Does every operation in flight know the latest resize, for a client that knows `epoch`? An operation that began
    /// after the resize was published has read the root (see `RootSync::count_operation`); the others have ended (E3).
    pub const fn known_by_all(self, epoch: u64) -> bool {
        let ahead = (epoch as u32).wrapping_sub((self.0 >> 32) as u32);
        self.version() > 0 && 2 <= ahead && ahead <= u32::MAX / 2
    }
}

/// A client's copy of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// How often the table has been resized.
    pub version: u64,
    /// Word 0 of the root.
    pub state: RootState,
    initial_bits: u64,
    segments: Vec<RemotePtr>,
}

impl Geometry {
    /// Decodes a root; `None` if no table has such a root.
    pub fn parse(words: &[u64]) -> Option<Self> {
        let state = RootState(*words.first()?);
        let version = state.version();
        let initial_bits = *words.get(2)?;
        let first = (ROOT_SEGMENTS / 8) as usize;
        let segments = words.get(first..first + version as usize + 1)?;
        let segments: Vec<_> = segments.iter().map(|bits| RemotePtr::from_bits(*bits)).collect();
        let sound = initial_bits <= MAX_INITIAL_BITS
            && initial_bits + version <= MAX_BUCKET_BITS
            && segments.len() <= MAX_SEGMENTS
            && segments.iter().all(|segment| !segment.is_null());
        sound.then_some(Geometry { version, state, initial_bits, segments })
    }
    /// The directory as it was under an older version.
    #[must_use]
    pub fn as_of(&self, version: u64) -> Self {
        Geometry { version: version.min(self.version), ..self.clone() }
    }
    /// Returns the number of level-1 buckets under a version. A damaged bucket may show a version far beyond any
    /// table's.
    pub fn buckets(&self, version: u64) -> u64 {
        1 << (self.initial_bits + version).min(63)
    }
    /// Buckets of one segment.
    pub fn segment_buckets(initial_bits: u64, segment: u64) -> u64 {
        1 << (initial_bits + segment.saturating_sub(1))
    }
    /// Initial number of bits.
    pub fn initial_bits(&self) -> u64 {
        self.initial_bits
    }
    /// Are all segments on this memory node?
    pub fn lies_on(&self, node: NodeId) -> bool {
        self.segments.iter().all(|segment| segment.node() == node)
    }
    /// The segments.
    pub fn segments(&self) -> &[RemotePtr] {
        &self.segments
    }
    /// The segments with their sizes in bytes.
    pub fn spans(&self) -> impl Iterator<Item = (RemotePtr, u64)> + '_ {
        let bytes = |i: u64| Self::segment_buckets(self.initial_bits, i) * BYTES_PER_BUCKET;
        (0..).zip(&self.segments).map(move |(i, segment)| (*segment, bytes(i)))
    }
    /// Slots of level 1.
    pub fn slots(&self) -> u64 {
        self.buckets(self.version) * Level::One.slots() as u64
    }
    /// Bytes that this copy takes.
    pub fn cache_bytes(&self) -> u64 {
        (size_of::<Self>() + self.segments.capacity() * size_of::<RemotePtr>()) as u64
    }

    /// A bucket's segment, its number in there, and the segment's number of buckets.
    fn place(&self, bucket: u64) -> (RemotePtr, u64, u64) {
        let segment = (64 - u64::from(bucket.leading_zeros())).saturating_sub(self.initial_bits);
        let buckets = Self::segment_buckets(self.initial_bits, segment);
        let within = if segment == 0 { bucket } else { bucket - buckets };
        let start = self.segments.get(segment as usize).copied().unwrap_or(RemotePtr::NULL);
        (start, within, buckets)
    }
    /// First byte of a bucket.
    pub fn bucket(&self, level: Level, bucket: u64) -> RemotePtr {
        let (start, within, buckets) = self.place(bucket);
        match level {
            Level::One => start.add(within * 512),
            Level::Two => start.add(buckets * 512 + within * 64),
        }
    }
    /// The level-3 slot that goes with a level-1 bucket.
    pub fn third(&self, bucket: u64) -> RemotePtr {
        let (start, within, buckets) = self.place(bucket);
        start.add(buckets * (512 + 64) + within * 8)
    }
    /// The bucket of level 1 or 2 that an address belongs to; for a level-3 slot, the level-1 bucket that it goes with.
    pub fn locate(&self, at: RemotePtr) -> Option<(Level, u64)> {
        let spans = (0..).zip(self.spans());
        let mut inside = spans.filter_map(|(i, (start, bytes))| {
            let within = at.offset().checked_sub(start.offset()).filter(|_| at.node() == start.node())?;
            (within < bytes).then_some((i, within))
        });
        let (segment, within) = inside.next()?;
        let buckets = Self::segment_buckets(self.initial_bits, segment);
        let first = if segment == 0 { 0 } else { buckets };
        Some(match (within / (buckets * 512), within / (buckets * 576)) {
            (0, _) => (Level::One, first + within / 512),
            (_, 0) => (Level::Two, first + (within - buckets * 512) / 64),
            _ => (Level::One, first + (within - buckets * 576) / 8),
        })
    }
    /// The version whose split makes this bucket; 0 for those that are there from the beginning.
    pub fn made_at(&self, bucket: u64) -> u64 {
        (64 - u64::from(bucket.leading_zeros())).saturating_sub(self.initial_bits)
    }
    /// The bucket of a hash under a version.
    pub fn home(&self, hash: u64, version: u64) -> u64 {
        hash & (self.buckets(version) - 1)
    }
    /// The bucket that `bucket` was split off from; `None` for those of segment 0.
    pub fn parent(&self, bucket: u64) -> Option<u64> {
        let top = 63 - u64::from((bucket | 1).leading_zeros());
        (bucket > 0 && top >= self.initial_bits).then(|| bucket & !(1 << top))
    }
    /// The bit of a bucket's number that its latest split, to this version, has decided; `None` where the sids of its
    /// entries do not tell, because that split has renewed them.
    pub fn side(&self, bucket: u64, version: u64) -> Option<(u64, u64)> {
        let split = version.checked_sub(1).filter(|_| !version.is_multiple_of(ROUND))?;
        Some((split % ROUND, shifted(bucket, self.initial_bits + split) & 1))
    }
    /// The 4 bits of a hash that decide the splits of the round that `version` belongs to.
    pub fn sid(&self, hash: u64, version: u64) -> u64 {
        shifted(hash, self.initial_bits + version / ROUND * ROUND) & 0xF
    }
}

impl RootCopy for Rc<Geometry> {
    const LEN: usize = ROOT_LEN;
    const INDEX_TAG_WORD: usize = ROOT_INDEX_TAG;
    const COUNTER_WORDS: &'static [usize] = &[1];
    const READ_RESTARTS_INTERVAL: bool = false;
    const RECOVER_INTENT: u64 = intents::RECOVER;
    type Shape = ();

    fn parse(words: &[u64], at: RemotePtr, (): ()) -> Option<Self> {
        Geometry::parse(words).filter(|geometry| geometry.lies_on(at.node())).map(Rc::new)
    }
    fn refresh(&mut self, words: &[u64], at: RemotePtr, (): (), _: &mut [i64; COUNTERS]) -> Refresh {
        let state = RootState(words.first().copied().unwrap_or_default());
        if state.version() > self.version {
            let Some(newer) = Self::parse(words, at, ()) else { return Refresh::Torn };
            *self = newer;
        } else if state.version() == self.version && state != self.state {
            // A client has begun to resize, or has abandoned its resize.
            Rc::make_mut(self).state = state;
        }
        Refresh::Current
    }
    fn state(&self) -> RootState {
        self.state
    }
    fn growing(&self) -> bool {
        false
    }
    fn slots(&self) -> u64 {
        Geometry::slots(self)
    }
    fn load_counter(&self) -> usize {
        0
    }
    fn slots_taken(before: u64, now: u64, _: i64) -> u64 {
        now.saturating_sub(before)
    }
    fn resizes(&self) -> u64 {
        self.version
    }
    fn spans(&self, _: u64) -> Vec<(RemotePtr, u64)> {
        Geometry::spans(self).collect()
    }
}

/// Shifts right; a shift by 64 bits or more gives zero.
fn shifted(word: u64, by: u64) -> u64 {
    u32::try_from(by).ok().and_then(|by| word.checked_shr(by)).unwrap_or(0)
}

/// Splits whose outcome a sid tells; after as many, the sids of a bucket are renewed.
pub const ROUND: u64 = 4;

/// Does an entry with this sid move when its bucket is split from `version` to the next?
pub fn moves(sid: u64, version: u64) -> bool {
    sid >> (version % ROUND) & 1 == 1
}

/// The places of one key.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Its hash.
    pub hash: KeyHash,
}

impl Places {
    /// Of a key.
    pub fn of(hash: KeyHash) -> Self {
        Places { hash }
    }
    /// Hashes of its two choices in level 2. Few lookups get there.
    pub fn choices(&self) -> [u64; 2] {
        [self.hash.rehash(0x243F_6A88_85A3_08D3), self.hash.rehash(0x1319_8A2E_0370_7344)]
    }
    /// Its class in the overflow bits.
    pub fn overflow_class(&self) -> u64 {
        ((u128::from(self.hash.rehash(0xA409_3822_299F_31D0)) * u128::from(super::bucket::OVERFLOW_CLASSES)) >> 64)
            as u64
    }
    /// What its live slot looks like in level 1.
    pub fn first_pattern(&self, geometry: &Geometry) -> Pattern {
        Pattern::new(self.hash.fingerprint(), geometry.sid(self.hash.bits(), geometry.version))
    }
    /// What its live slot may look like where `hash` places it, in a READ that a renewal of the sids has torn: with the
    /// sid of an earlier round or of the next one.
    pub fn torn_patterns(&self, geometry: &Geometry, hash: u64) -> impl Iterator<Item = Pattern> + use<> {
        let fp = self.hash.fingerprint();
        let now = geometry.sid(hash, geometry.version);
        let sids = (0..=geometry.version / ROUND + 1).map(|round| geometry.sid(hash, round * ROUND));
        let sids = sids.filter(|sid| *sid != now).fold(0u16, |all, sid| all | 1 << sid);
        (0..16).filter(move |sid| sids >> sid & 1 == 1).map(move |sid| Pattern::new(fp, sid))
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::{Entry, Slot};
    use super::*;

    fn geometry(initial_bits: u64, version: u64) -> Geometry {
        let mut words = vec![0; ROOT_LEN / 8];
        words[0] = version;
        words[2] = initial_bits;
        let mut start = 1 << 20;
        for segment in 0..=version {
            words[8 + segment as usize] = RemotePtr::new(NodeId::new(0), start).to_bits();
            start += Geometry::segment_buckets(initial_bits, segment) * BYTES_PER_BUCKET;
        }
        Geometry::parse(&words).expect("sound")
    }

    #[test]
    fn buckets_do_not_overlap() {
        for bits in [0, 3] {
            let g = geometry(bits, 4);
            let mut ends = std::collections::BTreeMap::new();
            for bucket in 0..g.buckets(4) {
                for (at, len) in
                    [(g.bucket(Level::One, bucket), 512), (g.bucket(Level::Two, bucket), 64), (g.third(bucket), 8)]
                {
                    assert!(ends.insert(at.offset(), len).is_none());
                    let level = if len == 64 { Level::Two } else { Level::One };
                    for at in [at, at.add(len - 8)] {
                        assert_eq!(g.locate(at), Some((level, bucket)));
                    }
                }
            }
            let mut end = 1 << 20;
            for (start, len) in ends {
                assert_eq!(start, end, "a gap or an overlap");
                end = start + len;
            }
            let node = g.segments()[0].node();
            assert_eq!([(1 << 20) - 8, end].map(|at| g.locate(RemotePtr::new(node, at))), [None, None]);
            assert_eq!(g.locate(RemotePtr::new(NodeId::new(1), 1 << 20)), None);
        }
    }

    #[test]
    fn a_root_that_no_table_has() {
        let words = |bits: u64, version: u64| {
            let mut words = vec![0; ROOT_LEN / 8];
            (words[0], words[2]) = (version, bits);
            words[8..=8 + version as usize].fill(RemotePtr::new(NodeId::new(0), 64).to_bits());
            words
        };
        for (bits, version, sound) in [
            (MAX_INITIAL_BITS, MAX_BUCKET_BITS - MAX_INITIAL_BITS, true),
            (MAX_INITIAL_BITS, MAX_BUCKET_BITS - MAX_INITIAL_BITS + 1, false),
            (MAX_INITIAL_BITS + 1, 0, false),
            (0, MAX_SEGMENTS as u64 - 1, true),
            (0, MAX_SEGMENTS as u64, false),
            (60, 10, false),
        ] {
            assert_eq!(Geometry::parse(&words(bits, version)).is_some(), sound, "{bits} bits, version {version}");
        }
        let mut missing = words(4, 3);
        missing[10] = 0;
        assert_eq!(Geometry::parse(&missing), None);
        assert_eq!(Geometry::parse(&words(4, 3)[..11]), None);
    }

    /// A pointer for each segment, and little else: O(log segments) of what the table takes.
    #[test]
    fn a_copy_takes_a_pointer_for_each_segment() {
        let bytes = [3, 40].map(|version| geometry(0, version).cache_bytes());
        assert_eq!(bytes[1] - bytes[0], 37 * 8);
        assert!((4 * 8 + 1..200).contains(&bytes[0]), "{}", bytes[0]);
    }

    #[test]
    fn sides_are_told_between_renewals() {
        let g = geometry(2, 9);
        assert_eq!([0, 4, 8].map(|version| g.side(0, version)), [None; 3], "there from the beginning, or renewed");
        assert_eq!(g.side(0b1_0110, 3), Some((2, 1)));
        assert_eq!(g.side(0b0_1110, 3), Some((2, 0)));
        assert_eq!(g.side(0b100_0000, 5), Some((0, 1)));
        for hash in [0x1234_5678, 0x9876_5432] {
            for version in [1, 2, 3, 5, 6, 7, 9] {
                let (bit, value) = g.side(g.home(hash, version), version).expect("a side");
                assert_eq!(g.sid(hash, version) >> bit & 1, value);
            }
        }
    }

    #[test]
    fn a_child_goes_back_to_its_parent() {
        let g = geometry(2, 5);
        assert_eq!(g.parent(3), None);
        assert_eq!(g.parent(4), Some(0));
        assert_eq!(g.parent(7), Some(3));
        assert_eq!(g.parent(0b10_0110), Some(0b00_0110));
        assert_eq!([3, 4, 7, 8, 0b10_0110].map(|bucket| g.made_at(bucket)), [0, 1, 1, 2, 4]);
        for hash in [0u64, 0x1234_5678, 0xFFFF_FFFF] {
            for version in 0..5 {
                let (before, after) = (g.home(hash, version), g.home(hash, version + 1));
                let moved = moves(g.sid(hash, version), version);
                assert_eq!(after, if moved { before + g.buckets(version) } else { before });
                assert_eq!(g.parent(after), if moved { Some(before) } else { g.parent(before) });
            }
        }
    }

    #[test]
    fn overflow_classes_are_used_evenly() {
        use super::super::bucket::OVERFLOW_CLASSES;
        let mut counts = [0u32; OVERFLOW_CLASSES as usize];
        for i in 0..57_000u32 {
            counts[Places::of(KeyHash::unseeded(&i.to_le_bytes())).overflow_class() as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    /// A lookup also searches for the sids of all rounds up to the next one, and for no others.
    #[test]
    fn torn_patterns_are_those_of_the_rounds_up_to_the_next() {
        let geometry = geometry(2, 5);
        let places = Places::of(KeyHash::unseeded(b"key"));
        // Four bits for each round: 5 now, in round 1.
        let hash = 0x0987_6543 << 2;
        let sids: Vec<_> = places.torn_patterns(&geometry, hash).collect();
        let live = |sid| {
            let entry = Entry { fp: places.hash.fingerprint(), sid, len: 1, ptr: RemotePtr::new(NodeId::new(0), 64) };
            Slot::Live(entry).encode()
        };
        let matching: Vec<_> = (0..16).filter(|sid| sids.iter().any(|pattern| pattern.matches(live(*sid)))).collect();
        assert_eq!(geometry.sid(hash, 5), 4);
        assert_eq!(matching, [3, 5]);
    }
}
