//! Slots: one head word each, and in tables of wide slots further words for a record.
//!
//! Invariants: a slot leaves `EMPTY` once and never returns to it within one table. A head word is read as a whole
//! (G2). Each word behind a head has a tag, and the words are a record only if all of them have the tag that the head
//! names.
//!
//! ```text
//!           63 62 61-59 58-56 55-48     47-0
//! heap      1  f  stamp units signature block              key and value are in a block
//!           63 62 61-59 58-56 55-53 52-50 49-48 47-0
//! tiny      0  f  1     key   value stamp 0     bytes      key and value are in the head word
//!           63 62 61-59 58-56 55-48     47-40 39-32 31-24 23-0
//! inline    0  f  2     0     signature tag   key   value 0    key and value are in the words behind
//! dead      0  0  3     0                                  entry was removed, slot is not reused: linear probing
//! sealed    0  0  4     0                                  was empty; the search continues in the next table
//! moved     0  0  5     0                                  the entry is in the next table
//! reserved  0  0  6     0     source slot                  an entry that is being moved here
//! vacant    0  0  7     0           stamp 0                entry was removed, slot may be reused: cuckoo hashing
//! empty     0
//! further words   | tag 8 | 7 bytes of the record |
//! ```
//!
//! `f`: frozen, because the entry is being moved. `stamp`: since when no client writes the words behind, or reads them
//! as a record: 1 to 7 for an epoch's tag modulo 7, or 0 if a client has claimed them and may still be writing.

use crate::block::UNIT;
use farindex_fabric::RemotePtr;
use farindex_pool::epoch::tag;
use smallvec::SmallVec;

/// A slot that has never been used since the table was made.
pub const EMPTY: u64 = 0;
/// A slot whose entry was removed.
pub const DEAD: u64 = 3 << KIND;
/// A slot that was empty when its region was moved.
pub const SEALED: u64 = 4 << KIND;
/// A slot whose entry is in the next table.
pub const MOVED: u64 = 5 << KIND;

/// Set in the head of an entry that is being moved.
pub const FROZEN: u64 = 1 << 62;
const HEAP: u64 = 1 << 63;
const KIND: u32 = 59;
const POINTER: u64 = (1 << 48) - 1;

/// Key and value bytes that fit a head word.
pub const TINY: usize = 6;
/// Record bytes of a further word.
pub const PER_WORD: usize = 7;
/// Widest slot, in bytes.
pub const MAX_WIDTH: usize = 128;
/// The largest block length in units that a head can hold; the header of a longer block has its length.
const MAX_UNITS: u64 = 7;
const _: () = assert!(TINY * 8 <= 48 && (MAX_WIDTH / 8 - 1) * PER_WORD < 1 << 7);

/// Since when no client uses the words behind a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// A client is writing the words behind the head, or has crashed or failed while doing so. Its WRITE may land at
    /// any time (N5, N7), so no other client writes there in this table.
    pub const CLAIMED: Stamp = Stamp(0);

    /// The stamp of an operation that is pinned at `epoch`.
    pub const fn of_pin(epoch: u64) -> Self {
        Stamp(tag(epoch) % 7 + 1)
    }
    /// Have all operations ended that ran at the time of the stamp, for an operation that is pinned at `epoch`? Another
    /// client's epoch may be one ahead, so a tag may be two ahead; modulo 7 that equals 5 or 6 behind.
    pub const fn grace_period_elapsed(self, epoch: u64) -> bool {
        self.0 != 0 && matches!((epoch % 7 + 8 - self.0) % 7, 2..=4)
    }
}

/// A decoded head word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Never used.
    Empty,
    /// Key and value in the low bytes of the word.
    Tiny {
        /// Bytes of the key.
        key: usize,
        /// Bytes of the value.
        value: usize,
        /// Since when no client uses the words behind.
        stamp: Stamp,
    },
    /// Key and value in the words behind.
    Inline {
        /// The tag of each of those words.
        tag: u8,
        /// Bytes of the key.
        key: usize,
        /// Bytes of the value.
        value: usize,
        /// Of the key.
        signature: u8,
    },
    /// Key and value in a block.
    Heap {
        /// The block.
        ptr: RemotePtr,
        /// Bytes to READ of it.
        units: u64,
        /// Of the key.
        signature: u8,
        /// Since when no client uses the words behind.
        stamp: Stamp,
    },
    /// The entry was removed; the slot is not reused.
    Dead,
    /// The entry was removed or displaced; the slot may be reused.
    Vacant {
        /// Since when no client uses the words behind.
        stamp: Stamp,
    },
    /// Was empty when its region was moved.
    Sealed,
    /// The entry is in the next table.
    Moved,
    /// An entry of this slot of the table before is being moved here.
    Reserved(u64),
    /// Bits that no client writes.
    Unknown,
}

impl Slot {
    /// Decodes a head word, frozen or not.
    pub fn decode(head: u64) -> Self {
        if head == EMPTY {
            return Slot::Empty;
        }
        let stamp3 = |shift: u32| Stamp(head >> shift & 7);
        let byte = |shift: u32| (head >> shift & 0xFF) as u8;
        if head & HEAP != 0 {
            let (ptr, units) = (RemotePtr::from_slot(head & POINTER), head >> 56 & 7);
            return Slot::Heap { ptr, units, signature: byte(48), stamp: stamp3(59) };
        }
        match head >> KIND & 7 {
            1 => {
                let (key, value) = ((head >> 56 & 7) as usize, (head >> 53 & 7) as usize);
                let fits = key + value <= TINY;
                if fits { Slot::Tiny { key, value, stamp: stamp3(50) } } else { Slot::Unknown }
            }
            2 => Slot::Inline {
                tag: byte(40),
                key: usize::from(byte(32)),
                value: usize::from(byte(24)),
                signature: byte(48),
            },
            6 if head & FROZEN == 0 => Slot::Reserved(head & POINTER),
            7 if head & !(7 << 50) == 7 << KIND => Slot::Vacant { stamp: stamp3(50) },
            _ if head == DEAD => Slot::Dead,
            _ if head == SEALED => Slot::Sealed,
            _ if head == MOVED => Slot::Moved,
            _ => Slot::Unknown,
        }
    }

    /// May an operation that is pinned at `epoch` and replaces the head write the words behind it? Not while another
    /// client may still read them as a record, or write them.
    pub fn yields_its_words(self, epoch: u64) -> bool {
        match self {
            Slot::Empty => true,
            Slot::Tiny { stamp, .. } | Slot::Heap { stamp, .. } | Slot::Vacant { stamp } => {
                stamp.grace_period_elapsed(epoch)
            }
            _ => false,
        }
    }

    /// Is this an entry, frozen or not?
    pub fn is_entry(self) -> bool {
        matches!(self, Slot::Tiny { .. } | Slot::Inline { .. } | Slot::Heap { .. })
    }

    /// Returns the stamp of a head that replaces this one, for an operation that is pinned at `epoch`. A client that
    /// has claimed the words, or that is still reading them, may still be at work.
    pub fn stamp_after(self, epoch: u64) -> Stamp {
        match self {
            Slot::Tiny { stamp, .. } | Slot::Heap { stamp, .. } | Slot::Vacant { stamp } => stamp,
            _ => Stamp::of_pin(epoch),
        }
    }
}

/// Is the entry of this head being moved?
pub const fn frozen(head: u64) -> bool {
    head & FROZEN != 0
}

/// Returns the head of a key and value that fit a word; `None` if they do not fit.
pub fn tiny(key: &[u8], value: &[u8], stamp: Stamp) -> Option<u64> {
    if key.len() + value.len() > TINY {
        return None;
    }
    let bytes = key.iter().chain(value);
    let data = (0..).step_by(8).zip(bytes).fold(0, |all, (shift, byte)| all | u64::from(*byte) << shift);
    Some(1 << KIND | (key.len() as u64) << 56 | (value.len() as u64) << 53 | stamp.0 << 50 | data)
}

/// Returns the head of an entry whose key and value are in a block.
pub fn heap(ptr: RemotePtr, block_len: usize, signature: u8, stamp: Stamp) -> u64 {
    let units = ((block_len / UNIT) as u64).min(MAX_UNITS);
    let slot = ptr.to_slot().unwrap_or_default();
    HEAP | stamp.0 << 59 | units << 56 | u64::from(signature) << 48 | slot
}

/// Returns the head of the same entry with another stamp: for an entry that is moved.
pub fn restamped(head: u64, stamp: Stamp) -> u64 {
    let head = head & !FROZEN;
    match Slot::decode(head) {
        Slot::Tiny { .. } => head & !(7 << 50) | stamp.0 << 50,
        Slot::Heap { .. } => head & !(7 << 59) | stamp.0 << 59,
        _ => head,
    }
}

/// Head of an entry whose key and value are in the words behind.
pub fn inline(tag: u8, key: usize, value: usize, signature: u8) -> u64 {
    2 << KIND | u64::from(signature) << 48 | u64::from(tag) << 40 | (key as u64) << 32 | (value as u64) << 24
}

/// Returns the head of a slot that is free for another entry.
pub const fn vacant(stamp: Stamp) -> u64 {
    7 << KIND | stamp.0 << 50
}

/// Returns the head of a slot that an entry of slot `source` of the previous table is being moved to.
pub const fn reserved(source: u64) -> u64 {
    6 << KIND | source & POINTER
}

/// Returns the number of record bytes that fit behind the head of a slot of `width` bytes.
pub const fn capacity(width: usize) -> usize {
    (width / 8).saturating_sub(1) * PER_WORD
}

/// Returns the words behind the head for this record; at least one.
pub fn words(tag: u8, key: &[u8], value: &[u8]) -> SmallVec<[u64; 16]> {
    let len = key.len() + value.len();
    let count = len.div_ceil(PER_WORD).max(1);
    let mut record: SmallVec<[u8; 128]> = SmallVec::with_capacity(count * PER_WORD);
    record.extend_from_slice(key);
    record.extend_from_slice(value);
    record.resize(count * PER_WORD, 0);
    let word = |part: &[u8; PER_WORD]| {
        let mut word = [tag; 8];
        word[..PER_WORD].copy_from_slice(part);
        u64::from_le_bytes(word)
    };
    record.as_chunks().0.iter().map(word).collect()
}

/// Returns a tag that none of the words behind a head has, and that is not zero.
pub fn unused_tag(words: &[u64]) -> u8 {
    (1..=u8::MAX).find(|tag| words.iter().all(|word| (word >> 56) as u8 != *tag)).unwrap_or(1)
}

/// Are the words behind a head the record of `len` bytes that the head names? Otherwise some of them were read before
/// they were written (N2).
pub fn whole(tag: u8, len: usize, words: &[u64]) -> bool {
    let count = len.div_ceil(PER_WORD).max(1);
    words.get(..count).is_some_and(|words| words.iter().all(|word| (word >> 56) as u8 == tag))
}

/// Moves the record bytes of the words behind a head together, to the front of `bytes`.
pub fn gather(bytes: &mut [u8], len: usize) {
    // Those of the first word are there. What comes behind the last one means nothing.
    for word in 1..len.div_ceil(PER_WORD).min(bytes.len() / 8) {
        // With its tag, over which the next word goes: moves of eight bytes are cheaper. The place ends before the next word.
        let Some(moved) = bytes.get(word * 8..).and_then(<[u8]>::first_chunk::<8>).copied() else { break };
        if let Some(place) = bytes.get_mut(word * PER_WORD..).and_then(<[u8]>::first_chunk_mut) {
            *place = moved;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn heads_decode_to_what_was_encoded() {
        let stamp = Stamp::of_pin(12);
        for (key, value) in [(&b""[..], &b""[..]), (b"abc", b"\0\0"), (b"\0\0\0\0\0\0", b""), (b"", b"123456")] {
            let head = tiny(key, value, stamp).unwrap();
            assert_eq!(Slot::decode(head | FROZEN), Slot::Tiny { key: key.len(), value: value.len(), stamp });
            assert_eq!(&head.to_le_bytes()[..key.len() + value.len()], [key, value].concat());
            assert_eq!(restamped(head | FROZEN, Stamp(1)), tiny(key, value, Stamp(1)).unwrap());
        }
        assert_eq!(tiny(b"abcd", b"efg", stamp), None);
        let ptr = RemotePtr::new(NodeId::new(3), 64 * 12345);
        let head = heap(ptr, 128, 0xAB, stamp);
        assert_eq!(Slot::decode(head), Slot::Heap { ptr, units: 2, signature: 0xAB, stamp });
        assert_eq!(Slot::decode(head | FROZEN), Slot::decode(head));
        assert_eq!(restamped(head, Stamp(5)), heap(ptr, 128, 0xAB, Stamp(5)));
        let head = inline(200, 20, 85, 0xCD);
        assert_eq!(Slot::decode(head), Slot::Inline { tag: 200, key: 20, value: 85, signature: 0xCD });
        assert_eq!(Slot::decode(reserved(77)), Slot::Reserved(77));
        assert_eq!(
            [DEAD, SEALED, MOVED, EMPTY, 1, 7 << KIND | 1].map(Slot::decode),
            [Slot::Dead, Slot::Sealed, Slot::Moved, Slot::Empty, Slot::Unknown, Slot::Unknown]
        );
        assert_eq!(Slot::decode(vacant(stamp)), Slot::Vacant { stamp });
    }

    #[test]
    fn grace_period_of_a_stamp_elapses_two_epochs_later() {
        for epoch in 1..40u64 {
            let stamp = Stamp::of_pin(epoch);
            // One that is pinned an epoch before, at the same, and later.
            for (later, elapsed) in [(-1, false), (0, false), (1, false), (2, false), (3, true), (4, true), (5, true)] {
                assert_eq!(stamp.grace_period_elapsed(epoch.wrapping_add_signed(later)), elapsed, "{epoch} {later}");
                assert!(!Stamp::CLAIMED.grace_period_elapsed(epoch.wrapping_add_signed(later)));
            }
        }
    }

    #[test]
    fn torn_record_is_refused() {
        let words = words(9, b"hello, far", b"memory");
        assert_eq!(words.len(), 3);
        assert!(whole(9, 16, &words) && !whole(8, 16, &words) && !whole(9, 30, &words));
        let mut torn = words.clone();
        torn[1] &= (1 << 56) - 1;
        assert!(!whole(9, 16, &torn));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        gather(&mut bytes, 16);
        assert_eq!(&bytes[..16], b"hello, farmemory");
        assert_eq!(unused_tag(&[0, 1 << 56, 2 << 56]), 3);
    }
}
