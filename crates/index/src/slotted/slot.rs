//! Slots: one head word each, and in tables of wide slots further words for a record.
//!
//! Invariants: a slot leaves `EMPTY` once and never comes back to it within one table; whoever reads one head word knows
//! all that it says, because words are whole (G2); the words behind a head carry a tag each, and make up a record only if
//! all of them bear the tag that the head names.
//!
//! ```text
//!           63 62 61-59 58-56 55-48     47-0
//! heap      1  f  stamp units signature block              key and value lie out of band
//!           63 62 61-59 58-56 55-53 52-50 49-48 47-0
//! tiny      0  f  1     key   value stamp 0     bytes      key and value lie in the head word
//!           63 62 61-59 58-56 55-48     47-40 39-32 31-24 23-0
//! inline    0  f  2     0     signature tag   key   value 0    key and value lie in the words behind
//! dead      0  0  3     0                                  was an entry, and is none any more: linear probing
//! sealed    0  0  4     0                                  was empty; the next table goes on here
//! moved     0  0  5     0                                  was an entry; it is in the next table
//! reserved  0  0  6     0     source slot                  an entry that is being moved here
//! vacant    0  0  7     0           stamp 0                was an entry; free for another: cuckoo hashing
//! empty     0
//! further words   | tag 8 | 7 bytes of the record |
//! ```
//!
//! `f`: frozen, because it is being moved. `stamp`: since when nobody writes the words behind, nor reads them as a record: 1 to
//! 7 for an epoch's tag modulo 7, or 0 if somebody has claimed them and may still be writing.

use crate::block::UNIT;
use farindex_fabric::RemotePtr;
use farindex_pool::epoch::tag;

/// A slot that nothing has been put into since the table was made.
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
/// Units that a head can tell; a longer block's own header tells the rest.
const MAX_UNITS: u64 = 7;
const _: () = assert!(TINY * 8 <= 48 && (MAX_WIDTH / 8 - 1) * PER_WORD < 1 << 7);

/// Since when the words behind a head are nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// Somebody writes the words behind the head, or has died or failed while doing so: a WRITE of theirs may land at any time
    /// (N5, N7), so nobody else writes there in this table.
    pub const CLAIMED: Stamp = Stamp(0);

    /// By an operation that is pinned at `epoch`.
    pub const fn of_pin(epoch: u64) -> Self {
        Stamp(tag(epoch) % 7 + 1)
    }
    /// Have all operations ended that were there then, for one that is pinned at `epoch`? The epoch of another may be one
    /// ahead of its own, so a tag may be two ahead; modulo 7 that looks like 5 or 6 behind.
    pub const fn grace_period_elapsed(self, epoch: u64) -> bool {
        self.0 != 0 && matches!((epoch % 7 + 8 - self.0) % 7, 2..=4)
    }
}

/// What a head word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Nothing yet.
    Empty,
    /// Key and value in the low bytes of the word.
    Tiny {
        /// Bytes of the key.
        key: usize,
        /// Bytes of the value.
        value: usize,
        /// Since when the words behind are nobody's.
        stamp: Stamp,
    },
    /// Key and value in the words behind.
    Inline {
        /// What each of those words bears.
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
        /// Since when the words behind are nobody's.
        stamp: Stamp,
    },
    /// Removed, and not to be used again.
    Dead,
    /// Removed or displaced; another entry may come here.
    Vacant {
        /// Since when the words behind are nobody's.
        stamp: Stamp,
    },
    /// Was empty when its region was moved.
    Sealed,
    /// In the next table.
    Moved,
    /// An entry of this slot of the table before is being moved here.
    Reserved(u64),
    /// No slot holds this.
    Unknown,
}

impl Slot {
    /// What a head word says, frozen or not.
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

    /// May the words behind the head be written, by whoever replaces it by an operation pinned at `epoch`? Not while
    /// somebody may still read them as a record, or write them.
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

    /// The stamp of whatever replaces this by an operation that is pinned at `epoch`: whoever has claimed the words, or has not
    /// read them to the end, may still be there.
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

/// Head of a key and value that fit a word; `None` if they do not.
pub fn tiny(key: &[u8], value: &[u8], stamp: Stamp) -> Option<u64> {
    if key.len() + value.len() > TINY {
        return None;
    }
    let bytes = key.iter().chain(value);
    let data = (0..).step_by(8).zip(bytes).fold(0, |all, (shift, byte)| all | u64::from(*byte) << shift);
    Some(1 << KIND | (key.len() as u64) << 56 | (value.len() as u64) << 53 | stamp.0 << 50 | data)
}

/// Head of an entry whose key and value lie in a block.
pub fn heap(ptr: RemotePtr, block_len: usize, signature: u8, stamp: Stamp) -> u64 {
    let units = ((block_len / UNIT) as u64).min(MAX_UNITS);
    let slot = ptr.to_slot().unwrap_or_default();
    HEAP | stamp.0 << 59 | units << 56 | u64::from(signature) << 48 | slot
}

/// The same entry, written at another time: for an entry that is moved.
pub fn restamped(head: u64, stamp: Stamp) -> u64 {
    let head = head & !FROZEN;
    match Slot::decode(head) {
        Slot::Tiny { .. } => head & !(7 << 50) | stamp.0 << 50,
        Slot::Heap { .. } => head & !(7 << 59) | stamp.0 << 59,
        _ => head,
    }
}

/// Head of an entry whose key and value lie in the words behind.
pub fn inline(tag: u8, key: usize, value: usize, signature: u8) -> u64 {
    2 << KIND | u64::from(signature) << 48 | u64::from(tag) << 40 | (key as u64) << 32 | (value as u64) << 24
}

/// Head of a slot that is free for another entry.
pub const fn vacant(stamp: Stamp) -> u64 {
    7 << KIND | stamp.0 << 50
}

/// Head of a slot that an entry of slot `source` of the table before is being moved to.
pub const fn reserved(source: u64) -> u64 {
    6 << KIND | source & POINTER
}

/// Record bytes that a slot of `width` bytes has room for behind its head.
pub const fn capacity(width: usize) -> usize {
    (width / 8).saturating_sub(1) * PER_WORD
}

/// The words behind the head, for this record: as many as it takes, one at least.
pub fn words(tag: u8, key: &[u8], value: &[u8]) -> Vec<u64> {
    let record: Vec<u8> = [key, value].concat();
    let count = record.len().div_ceil(PER_WORD).max(1);
    let word = |i: usize| {
        let part = record.iter().skip(i * PER_WORD).take(PER_WORD);
        (0..).step_by(8).zip(part).fold(u64::from(tag) << 56, |all, (shift, byte)| all | u64::from(*byte) << shift)
    };
    (0..count).map(word).collect()
}

/// A tag that none of the words behind a head bears, and that is not zero.
pub fn unused_tag(words: &[u64]) -> u8 {
    (1..=u8::MAX).find(|tag| words.iter().all(|word| (word >> 56) as u8 != *tag)).unwrap_or(1)
}

/// Do the words behind a head make up the record of `len` bytes that it names? Otherwise some of them were read before they
/// were written (N2).
pub fn whole(tag: u8, len: usize, words: &[u64]) -> bool {
    let count = len.div_ceil(PER_WORD).max(1);
    words.get(..count).is_some_and(|words| words.iter().all(|word| (word >> 56) as u8 == tag))
}

/// The record bytes of the words behind a head, put together at the front of them.
pub fn gather(bytes: &mut [u8], len: usize) {
    for to in 0..len.min(bytes.len()) {
        bytes[to] = bytes[to / PER_WORD * 8 + to % PER_WORD];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn heads_tell_what_was_put_in() {
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
    fn a_stamp_is_graced_two_epochs_later() {
        for epoch in 1..40u64 {
            let stamp = Stamp::of_pin(epoch);
            // One that is pinned an epoch before, at the same, and later.
            for (later, grace_period_elapsed) in
                [(-1, false), (0, false), (1, false), (2, false), (3, true), (4, true), (5, true)]
            {
                assert_eq!(
                    stamp.grace_period_elapsed(epoch.wrapping_add_signed(later)),
                    grace_period_elapsed,
                    "{epoch} {later}"
                );
                assert!(!Stamp::CLAIMED.grace_period_elapsed(epoch.wrapping_add_signed(later)));
            }
        }
    }

    #[test]
    fn a_record_comes_back_only_whole() {
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
