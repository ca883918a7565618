//! The slot: 8 bytes.
//!
//! ```text
//! 63    56 55   54 53  48 47                 0
//! |  fp   | state | len  |   block pointer    |    len 1-63, in 64-byte units; 63 means 63 or more; all zeros: empty
//! ```
//!
//! Transitions of a slot:
//!
//! | from | to | by |
//! |---|---|---|
//! | empty | tentative | any insert, by CAS |
//! | tentative | live | the insert that made it tentative, by CAS |
//! | tentative | empty | any client that it blocks, by CAS |
//! | live | live, empty | any update or remove, by CAS |
//! | live | frozen | the split of the segment, by CAS |
//! | frozen | live | the client that undoes a split, by CAS |
//! | frozen | empty | the client that ends a split, by WRITE |
//!
//! So plain WRITEs go only to words on which no CAS can succeed (N6).

use crate::block::UNIT;
use crate::keyhash::{HASH_BITS, KeyHash};
use farindex_fabric::RemotePtr;

/// Bits of a fingerprint.
pub const FINGERPRINT_BITS: u32 = 8;
/// Largest length in units that a slot can state.
pub const MAX_UNITS: u64 = 63;

const FP_SHIFT: u32 = 56;
const STATE_SHIFT: u32 = 54;
const LEN_SHIFT: u32 = 48;
const PTR_MASK: u64 = (1 << LEN_SHIFT) - 1;
const STATE_MASK: u64 = 3 << STATE_SHIFT;
const _: () = assert!(FP_SHIFT + FINGERPRINT_BITS == 64 && STATE_SHIFT + 2 == FP_SHIFT);
const _: () = assert!(LEN_SHIFT + MAX_UNITS.count_ones() == STATE_SHIFT);
const _: () = assert!(HASH_BITS - FINGERPRINT_BITS >= crate::extendible::layout::MAX_DEPTH);

/// A slot that points to nothing.
pub const EMPTY: u64 = 0;

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// In use.
    Live,
    /// Being inserted.
    Tentative,
    /// Being moved.
    Frozen,
}

impl State {
    const fn bits(self) -> u64 {
        let code = match self {
            State::Live => 1,
            State::Tentative => 2,
            State::Frozen => 3,
        };
        code << STATE_SHIFT
    }
}

/// An entry in any state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its state.
    pub state: State,
    /// Fingerprint of the key, 8 bits.
    pub fp: u64,
    /// Length of the block in units, 1 to 63.
    pub len: u64,
    /// The block.
    pub ptr: RemotePtr,
}

impl Entry {
    /// Decodes a word; `None` for an empty slot, and for bits that no client writes ([`is_sound`] distinguishes them).
    pub fn decode(word: u64) -> Option<Self> {
        let state = match word >> STATE_SHIFT & 3 {
            1 => State::Live,
            2 => State::Tentative,
            3 => State::Frozen,
            _ => return None,
        };
        let (len, ptr) = (word >> LEN_SHIFT & MAX_UNITS, RemotePtr::from_slot(word & PTR_MASK));
        (len > 0 && !ptr.is_null()).then_some(Entry { state, fp: word >> FP_SHIFT, len, ptr })
    }
    /// Encodes the entry as a word. An address that no block can have gives an empty slot.
    pub fn encode(self) -> u64 {
        let Some(ptr) = self.ptr.to_slot() else { return EMPTY };
        self.fp << FP_SHIFT | self.state.bits() | self.len << LEN_SHIFT | ptr
    }
    /// Bytes that one READ of the block fetches.
    pub fn block_len(&self) -> usize {
        self.len as usize * UNIT
    }
}

/// Is this a word that clients write?
pub fn is_sound(word: u64) -> bool {
    word == EMPTY || Entry::decode(word).is_some()
}

/// Returns the word of the same entry in another state.
pub const fn with_state(word: u64, state: State) -> u64 {
    word & !STATE_MASK | state.bits()
}

/// Returns the pointer bits of a word, for comparisons.
pub const fn pointer(word: u64) -> u64 {
    word & PTR_MASK
}

/// Returns the fingerprint: the top bits of the hash, which no suffix reaches.
pub const fn fingerprint(hash: KeyHash) -> u64 {
    hash.bits() >> (HASH_BITS - FINGERPRINT_BITS)
}

/// Does a word that is not empty have this fingerprint?
pub const fn matches(word: u64, fp: u64) -> bool {
    word != EMPTY && word >> FP_SHIFT == fp
}

/// Returns the length of a block in units, as a slot states it.
pub fn units(block_len: usize) -> u64 {
    ((block_len / UNIT) as u64).clamp(1, MAX_UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn slot_words_decode_to_the_encoded_entry() {
        let ptr = RemotePtr::new(NodeId::new(1022), (1 << 44) - 64);
        for state in [State::Live, State::Tentative, State::Frozen] {
            let entry = Entry { state, fp: 0xFF, len: 63, ptr };
            assert_eq!(Entry::decode(entry.encode()), Some(entry));
            assert!(matches(entry.encode(), 0xFF) && !matches(entry.encode(), 0x7F));
            let live = with_state(entry.encode(), State::Live);
            assert_eq!(Entry::decode(live), Some(Entry { state: State::Live, ..entry }));
            assert_eq!(pointer(live), pointer(entry.encode()));
        }
        assert_eq!(Entry::decode(EMPTY), None);
        assert!(is_sound(EMPTY) && !is_sound(1) && !is_sound(1 << STATE_SHIFT));
        assert!(!matches(EMPTY, 0));
        assert_eq!((units(64), units(63 * 64), units(64 * 64)), (1, 63, 63));
    }
}
