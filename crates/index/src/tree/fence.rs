//! Fence keys and separators as a node holds them: two words each.
//!
//! Invariants: a key of up to 8 bytes lies in the node itself. A longer key lies in a block of its own, which belongs to
//! the node whose *low* key it is: the block is written before the node is linked, and freed with the node. The left
//! sibling's high key and the parent's separator refer to the same block, and both are gone before the node is retired.
//!
//! ```text
//! word 0   the key's bytes, padded with zeros                                     up to 8 bytes
//!          63     48 47                                  0
//!          | units  | key block, as a 48-bit pointer     |                        longer
//! word 1   63        52 51     48 47                                  0
//!          | own      | length   | in a fence: hash of the key        |           0 to 8, 14 infinite, 15 longer
//!          |          |          | in a separator: the child          |
//! ```
//!
//! `own` belongs to the word's owner: a separator has the child's level there.

use crate::block::UNIT;
use farindex_fabric::RemotePtr;
use smallvec::SmallVec;
use std::cmp::Ordering;

/// Longest key that lies in the node itself.
pub(super) const INLINE: usize = 8;
const LEN_SHIFT: u32 = 48;
const LEN_MASK: u64 = 0xF;
const INFINITE: u64 = 14;
const LONG: u64 = 15;
const LOW_BITS: u64 = (1 << LEN_SHIFT) - 1;
const UNITS_SHIFT: u32 = 48;

/// A key as it is copied out of a node.
pub(super) type Key = SmallVec<[u8; 16]>;

/// The two words of a fence key or a separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence {
    pub(super) word: u64,
    pub(super) tag: u64,
}

/// Returns the first eight bytes of a key as a number whose order is that of the bytes.
pub(super) fn prefix(key: &[u8]) -> u64 {
    if let Some(whole) = key.first_chunk() {
        return u64::from_be_bytes(*whole);
    }
    let mut bytes = [0; INLINE];
    let len = key.len().min(INLINE);
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key) & LOW_BITS
}

impl Fence {
    /// The high key of the last node of a level.
    pub(super) const INFINITE: Fence = Fence { word: 0, tag: INFINITE << LEN_SHIFT };

    /// Encodes a key of a node's header; a long one lies in `block`.
    pub(super) fn new(key: &[u8], block: RemotePtr) -> Self {
        if key.len() <= INLINE {
            return Fence { word: prefix(key).swap_bytes(), tag: (key.len() as u64) << LEN_SHIFT | hash(key) };
        }
        let units = (crate::block::block_len(key.len(), 0) / UNIT) as u64;
        let word = units << UNITS_SHIFT | block.to_slot().unwrap_or_default();
        Fence { word, tag: LONG << LEN_SHIFT | hash(key) }
    }
    /// Encodes the separator of a child, given the child's low key.
    pub(super) fn separator(self, child: RemotePtr, level: u8) -> Self {
        let tag = u64::from(level) << 52 | self.len_code() << LEN_SHIFT | child.to_slot().unwrap_or_default();
        Fence { word: self.word, tag }
    }
    /// The child of a separator.
    pub(super) fn child(self) -> RemotePtr {
        RemotePtr::from_slot(self.tag)
    }
    /// The level of a separator's child.
    pub(super) fn child_level(self) -> u8 {
        (self.tag >> 52 & 0xF) as u8
    }
    fn len_code(self) -> u64 {
        self.tag >> LEN_SHIFT & LEN_MASK
    }
    pub(super) fn is_infinite(self) -> bool {
        self.len_code() == INFINITE
    }
    /// Address and units of the block of a long key.
    pub(super) fn block(self) -> Option<(RemotePtr, u64)> {
        (self.len_code() == LONG).then(|| (RemotePtr::from_slot(self.word), (self.word >> UNITS_SHIFT).max(1)))
    }
    /// The key, if it lies here.
    pub(super) fn key(self) -> Option<Key> {
        let len = self.len_code() as usize;
        (len <= INLINE).then(|| Key::from_slice(&self.word.to_le_bytes()[..len]))
    }
    /// Is this fence the given key? For a long key its length code and 48 bits of its hash decide.
    pub(super) fn is(self, key: &[u8]) -> bool {
        match self.key() {
            Some(own) => own.as_slice() == key,
            None => !self.is_infinite() && key.len() > INLINE && self.tag & LOW_BITS == hash(key),
        }
    }
    /// What identifies the fence: equal for equal keys, wherever the block of a long one lies.
    pub(super) fn identity(self) -> [u64; 2] {
        if self.len_code() == LONG { [0, self.tag] } else { [self.word, self.tag] }
    }
    /// Compares the fence with a key; `None` if that takes the fence's block.
    pub(super) fn compare(self, key: &[u8]) -> Option<Ordering> {
        match self.len_code() as usize {
            // Both are zero behind the shorter one, as far as the prefix goes.
            len if len <= INLINE => Some(self.word.swap_bytes().cmp(&prefix(key)).then_with(|| len.cmp(&key.len()))),
            _ if self.is_infinite() => Some(Ordering::Greater),
            _ => None,
        }
    }
}

/// Returns the shortest key that is greater than `left` and at most `right`, given `left < right`.
pub(super) fn shortest_separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right.get(..common + 1).unwrap_or(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn fence_keeps_every_short_key() {
        for key in [&b""[..], b"\0", b"a", b"a\0", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", b"01234567"] {
            let fence = Fence::new(key, RemotePtr::NULL);
            assert_eq!(fence.key().as_deref(), Some(key));
            assert!(fence.is(key) && !fence.is(b"other") && !fence.is_infinite());
            let child = RemotePtr::new(NodeId::new(3), 64 * 99);
            let separator = fence.separator(child, 5);
            assert_eq!((separator.child(), separator.child_level(), separator.key()), (child, 5, fence.key()));
        }
    }

    #[test]
    fn fence_compares_as_its_key_does() {
        let keys: [&[u8]; 9] = [b"", b"\0", b"\0\0", b"a", b"a\0", b"ab", b"01234567", b"01234567\0", b"\xFF\xFF"];
        for own in keys.into_iter().filter(|own| own.len() <= INLINE) {
            for key in keys {
                assert_eq!(Fence::new(own, RemotePtr::NULL).compare(key), Some(own.cmp(key)), "{own:?} {key:?}");
            }
        }
        assert_eq!(Fence::INFINITE.compare(b"\xFF\xFF"), Some(Ordering::Greater));
    }

    #[test]
    fn separator_is_above_the_left_key_and_not_above_the_right_one() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"ab", b"b"];
        for pair in keys.windows(2) {
            let separator = shortest_separator(pair[0], pair[1]);
            assert!(pair[0] < separator && separator <= pair[1], "{pair:?}: {separator:?}");
        }
    }

    #[test]
    fn long_fence_is_known_by_its_hash() {
        let fence = Fence::new(b"longer than eight bytes", RemotePtr::new(NodeId::new(0), 640));
        assert_eq!(fence.block(), Some((RemotePtr::new(NodeId::new(0), 640), 1)));
        assert!(fence.is(b"longer than eight bytes") && !fence.is(b"longer than eight byteS"));
        assert_eq!(fence.compare(b"a"), None);
    }
}
