//! One slot: 8 bytes, as in Figure 8 of the paper.
//!
//! ```text
//! live     63 62    56 55  52 51  48 47                 0
//!          |m|   fp   | sid  | len  | block pointer     |    len 1-15, in 64-byte units; 15 means 15 or more
//! frozen   |m|   fp   |  0   |  0   | block pointer     |
//! link     |m|   0    |  1   |  0   | node pointer      |    level 3 only
//! marker   |m|0| ver  | kind |  0   | 0x3FF | stamp 38  |    the pointer names a memory node that cannot exist
//! unwritten: all zeros
//! ```
//!
//! The bit `m` belongs to the bucket, not to the slot (see [`bucket`](super::bucket)). Every change of a slot keeps
//! this bit. The transitions of a slot:
//!
//! | from | to | by |
//! |---|---|---|
//! | fresh | live | an insert, by CAS |
//! | live | live | an update, by CAS |
//! | live | dead | a removal, by CAS |
//! | live | frozen | a split, by CAS |
//! | fresh | barrier | a split, by CAS |
//! | frozen | dead, live | the lock's holder, by WRITE |
//! | barrier | fresh | the lock's holder, by WRITE |
//! | dead | fresh, live | the lock's holder, when the grace period has elapsed |
//!
//! So the only plain WRITEs go to words on which no CAS can succeed (N6).

use farindex_fabric::RemotePtr;

/// The bit that belongs to the bucket.
pub const META: u64 = 1 << 63;

const FP_SHIFT: u32 = 56;
const SID_SHIFT: u32 = 52;
const LEN_SHIFT: u32 = 48;
const LEN_MASK: u64 = 0xF << LEN_SHIFT;
const PTR_MASK: u64 = (1 << 48) - 1;
const MARKER: u64 = 0x3FF << 38;
const STAMP_MASK: u64 = (1 << 38) - 1;

/// Units that a slot's length field can tell apart.
pub const MAX_UNITS: u64 = 15;

/// An entry that a slot points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Fingerprint of the key, 7 bits.
    pub fp: u64,
    /// Bits of the key's hash that decide the next splits, 4 bits.
    pub sid: u64,
    /// Length of the block in units, 1 to 15.
    pub len: u64,
    /// The block.
    pub ptr: RemotePtr,
}

/// A point in the pool's epochs, cut to 38 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of a slot that was never recycled.
    pub const NEVER: Stamp = Stamp(0);

    /// The stamp of something done by an operation that was pinned at `epoch`: the pool's epoch is at most this while
    /// the operation runs (E1).
    pub fn of_pin(epoch: u64) -> Self {
        // Zero means NEVER. Where the 38 bits wrap to zero, one epoch later is safe as well.
        Stamp(((epoch + 1) & STAMP_MASK).max(1))
    }
    /// Have all operations ended that began before the stamp, for a client that knows `epoch` (E3)?
    pub fn grace_period_elapsed(self, epoch: u64) -> bool {
        self.before(epoch, 2)
    }
    /// Did an operation that was pinned at `epoch` begin after it?
    pub fn precedes(self, epoch: u64) -> bool {
        self.before(epoch, 1)
    }
    /// Would a recycling with this stamp have used a slot whose entry was removed at `dead`?
    pub fn recycles(self, dead: Stamp) -> bool {
        dead.grace_period_elapsed((self.0.wrapping_sub(1)) & STAMP_MASK)
    }
    fn before(self, epoch: u64, by: u64) -> bool {
        let ahead = epoch.wrapping_sub(self.0) & STAMP_MASK;
        self == Stamp::NEVER || (by..=STAMP_MASK / 2).contains(&ahead)
    }
}

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Never written: the bucket does not exist yet.
    Unwritten,
    /// Free, in a bucket of this version; last recycled at this stamp.
    Fresh(u64, Stamp),
    /// An entry.
    Live(Entry),
    /// An entry that is being moved, or has been: its pointer, and its fingerprint.
    Frozen(u64, RemotePtr),
    /// Not free yet: the entry was removed or moved at this stamp, from a bucket of this version.
    Dead(u64, Stamp),
    /// Free, but inserts must wait while the bucket is split.
    Barrier(u64, Stamp),
    /// Level 3: the entries go on in this node.
    Link(RemotePtr),
    /// Bits that no client writes.
    Unknown,
}

const FRESH: u64 = 1;
const DEAD: u64 = 2;
const BARRIER: u64 = 3;
const LINK: u64 = 1;

fn marker(kind: u64, version: u64, stamp: Stamp) -> u64 {
    marker_of(kind, version) | stamp.0
}

impl Slot {
    /// Decodes a word; its bucket bit is ignored.
    pub fn decode(word: u64) -> Slot {
        let word = word & !META;
        let sid = word >> SID_SHIFT & 0xF;
        let fp = word >> FP_SHIFT;
        let len = word >> LEN_SHIFT & 0xF;
        let ptr = RemotePtr::from_slot(word & PTR_MASK);
        if word == 0 {
            return Slot::Unwritten;
        }
        if word & MARKER == MARKER {
            let stamp = Stamp(word & STAMP_MASK);
            return match (len, sid) {
                (0, FRESH) => Slot::Fresh(fp, stamp),
                (0, DEAD) => Slot::Dead(fp, stamp),
                (0, BARRIER) => Slot::Barrier(fp, stamp),
                _ => Slot::Unknown,
            };
        }
        match (len, sid) {
            _ if ptr.is_null() => Slot::Unknown,
            (0, 0) => Slot::Frozen(fp, ptr),
            (0, LINK) => Slot::Link(ptr),
            (0, _) => Slot::Unknown,
            _ => Slot::Live(Entry { fp, sid, len, ptr }),
        }
    }

    /// Encodes a slot as a word without the bucket bit.
    pub fn encode(self) -> u64 {
        let slot = |ptr: RemotePtr| ptr.to_slot().unwrap_or(0);
        match self {
            Slot::Unwritten | Slot::Unknown => 0,
            Slot::Fresh(version, stamp) => marker(FRESH, version, stamp),
            Slot::Dead(version, stamp) => marker(DEAD, version, stamp),
            Slot::Barrier(version, stamp) => marker(BARRIER, version, stamp),
            Slot::Live(entry) => {
                entry.fp << FP_SHIFT | entry.sid << SID_SHIFT | entry.len << LEN_SHIFT | slot(entry.ptr)
            }
            Slot::Frozen(fp, ptr) => fp << FP_SHIFT | slot(ptr),
            Slot::Link(ptr) => LINK << SID_SHIFT | slot(ptr),
        }
    }

    /// Encodes a slot as a word with the bucket bit of `old`.
    pub fn over(self, old: u64) -> u64 {
        self.encode() | old & META
    }
}

/// Is this what most slots hold in a settled bucket of this version: an entry on the right `side`, or a fresh slot? Then
/// [`Slot::decode`] says so as well; `false` says nothing. Without a branch, so that several words are judged at once.
#[inline]
pub fn is_usual(word: u64, version: u64, side: Option<(u64, u64)>) -> bool {
    let (high, low) = (upper(word & !META), word as u32);
    let (of_side, side) = side.map_or((0, 0), |(bit, value)| {
        (upper(1 << (SID_SHIFT as u64 + bit)), upper(value << (SID_SHIFT as u64 + bit)))
    });
    let marker = high & upper(MARKER) == upper(MARKER);
    let points = (low | high & upper(PTR_MASK)) != 0;
    let live = !marker & points & (high & upper(LEN_MASK) != 0) & (high & of_side == side);
    live | (high & !upper(STAMP_MASK) == upper(marker_of(FRESH, version)))
}

/// Is this word a fresh slot?
#[inline]
pub fn is_fresh(word: u64) -> bool {
    upper(word) & upper(0xF << SID_SHIFT | LEN_MASK | MARKER) == upper(FRESH << SID_SHIFT | MARKER)
}

const fn marker_of(kind: u64, version: u64) -> u64 {
    (version & 0x3F) << FP_SHIFT | kind << SID_SHIFT | MARKER
}

/// Returns the frozen form of a live word.
pub fn freeze(live: u64) -> u64 {
    live & !(0xF << SID_SHIFT) & !LEN_MASK
}

/// Finds live words of one fingerprint, and optionally of one sid, in a single comparison.
#[derive(Clone, Copy)]
pub struct Pattern {
    bits: u32,
    mask: u32,
}

/// Fingerprint, sid and length lie in a word's upper half: halves are compared twice as many at a time, and without the
/// 64-bit comparisons that baseline x86-64 has no vector instruction for.
const fn upper(word: u64) -> u32 {
    (word >> 32) as u32
}

impl Pattern {
    /// Live words with this fingerprint and sid.
    pub fn new(fp: u64, sid: u64) -> Self {
        Pattern { bits: upper(fp << FP_SHIFT | sid << SID_SHIFT), mask: upper(0x7FF << SID_SHIFT) }
    }
    /// Live words with this fingerprint.
    pub fn any_sid(fp: u64) -> Self {
        Pattern { bits: upper(fp << FP_SHIFT), mask: upper(0x7F << FP_SHIFT) }
    }
    /// May this word match? If not, it does not. A frozen word may, or a link.
    #[inline]
    pub fn resembles(self, word: u64) -> bool {
        upper(word) & self.mask == self.bits
    }
    /// Does this word match?
    #[inline]
    pub fn matches(self, word: u64) -> bool {
        ((upper(word) ^ self.bits) & self.mask == 0) & (upper(word) & upper(LEN_MASK) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn words_decode_to_what_was_encoded() {
        let ptr = RemotePtr::new(NodeId::new(1022), (1 << 44) - 64);
        let stamp = Stamp::of_pin(77);
        let entry = Entry { fp: 0x7F, sid: 0xF, len: 15, ptr };
        let all = [
            Slot::Unwritten,
            Slot::Fresh(63, stamp),
            Slot::Live(entry),
            Slot::Frozen(0x7F, ptr),
            Slot::Dead(0, stamp),
            Slot::Barrier(5, Stamp::NEVER),
            Slot::Link(ptr),
        ];
        for slot in all {
            assert_eq!(Slot::decode(slot.encode()), slot);
            assert_eq!(Slot::decode(slot.over(META)), slot);
            assert_eq!(slot.over(META) & META, META);
        }
        assert_eq!(Slot::decode(freeze(Slot::Live(entry).over(META))), Slot::Frozen(0x7F, ptr));
        assert!(Pattern::new(0x7F, 0xF).matches(Slot::Live(entry).over(META)));
        assert!(!Pattern::new(0x7F, 0).matches(Slot::Live(entry).encode()));
        assert!(!Pattern::any_sid(0x7F).matches(Slot::Frozen(0x7F, ptr).encode()));
    }

    /// What is judged at a glance is what decoding says.
    #[test]
    fn usual_and_fresh_words_decode_as_such() {
        let at = |ptr| Entry { fp: 5, sid: 0b0110, len: 3, ptr };
        let ptr = RemotePtr::new(NodeId::new(0), 1 << 20);
        let high = RemotePtr::new(NodeId::new(512), 0);
        let mut words =
            vec![0, META, 1, u64::MAX, !META, Slot::Link(ptr).encode(), freeze(Slot::Live(at(ptr)).encode())];
        for entry in [at(ptr), at(high), at(RemotePtr::NULL), Entry { len: 0, ..at(ptr) }, Entry { len: 15, ..at(ptr) }]
        {
            words.push(Slot::Live(entry).encode());
        }
        for version in [0, 1, 7, 63] {
            for stamp in [Stamp::NEVER, Stamp::of_pin(77), Stamp(STAMP_MASK)] {
                words.extend([Slot::Fresh(version, stamp), Slot::Dead(version, stamp)].map(Slot::encode));
                words.push(Slot::Barrier(version, stamp).encode());
                words.push(Slot::Fresh(version, stamp).encode() | 1 << (FP_SHIFT + 6));
            }
        }
        let mut bits = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(0xD129_0A9B_5C9F_7A35).rotate_left(29) ^ 0x51;
            words.extend([bits, bits | MARKER, bits & !LEN_MASK | MARKER]);
        }
        let mut seen = [0; 2];
        for word in words.into_iter().flat_map(|word| [word, word ^ META]) {
            let slot = Slot::decode(word);
            assert_eq!(is_fresh(word), matches!(slot, Slot::Fresh(..)), "{word:#x}");
            for (version, side) in [(7, None), (0, Some((1, 1))), (7, Some((1, 0))), (63, Some((3, 1)))] {
                let usual = match slot {
                    Slot::Live(entry) => side.is_none_or(|(bit, value)| entry.sid >> bit & 1 == value),
                    Slot::Fresh(of, _) => of == version,
                    _ => false,
                };
                assert_eq!(is_usual(word, version, side), usual, "{word:#x} {version} {side:?}");
                seen[usize::from(usual)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }

    #[test]
    fn stamps_compare_around_the_wrap() {
        let stamp = Stamp::of_pin((1 << 38) - 1 - 1);
        assert!(!stamp.precedes((1 << 38) - 1));
        assert!(stamp.precedes(1 << 38));
        assert!(!stamp.grace_period_elapsed(1 << 38));
        assert!(stamp.grace_period_elapsed((1 << 38) + 1));
        assert!(Stamp::of_pin(9).recycles(Stamp::of_pin(6)) && !Stamp::of_pin(9).recycles(Stamp::of_pin(7)));
        assert!(!Stamp::of_pin(9).precedes(9));
        assert!(Stamp::NEVER.precedes(0) && Stamp::NEVER.grace_period_elapsed(0));
    }
}
