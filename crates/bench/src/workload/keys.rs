//! From the number of a key to its bytes, and back.
//!
//! Invariants: two numbers never have the same bytes, because the first eight are a bijection of the number; the bytes
//! do not depend on the seed, so processes agree; with [`KeyOrder::Hashed`] they look random, so neither an index nor
//! its hash sees a sequence.

use super::{mix64, unmix64};
use std::fmt;
use std::str::FromStr;

/// Numbers from here on name keys that no workload ever inserts.
pub const ABSENT: u64 = 1 << 62;

/// What the order of keys, byte by byte, has to do with the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyOrder {
    /// Nothing: keys are hashes of their numbers (YCSB's `insertorder=hashed`).
    #[default]
    Hashed,
    /// The same order: the number in eight bytes, big-endian, then zeros up to the size of a key. A key that is absent
    /// lies between two that may be present.
    Ordered,
}

impl KeyOrder {
    /// All orders.
    pub const ALL: [KeyOrder; 2] = [KeyOrder::Hashed, KeyOrder::Ordered];
    /// Returns its name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            KeyOrder::Hashed => "hashed",
            KeyOrder::Ordered => "ordered",
        }
    }
}

impl fmt::Display for KeyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KeyOrder {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        KeyOrder::ALL.into_iter().find(|order| order.name() == text).ok_or_else(|| {
            let names = KeyOrder::ALL.map(KeyOrder::name);
            format!("no order of keys {text:?}; there are {}", names.join(", "))
        })
    }
}

/// Keys of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    size: usize,
    order: KeyOrder,
}

impl Keys {
    /// The shortest key that tells all numbers apart.
    pub const SHORTEST: usize = 8;

    /// Hashed keys of `size` bytes, at least [`SHORTEST`](Self::SHORTEST).
    pub fn new(size: usize) -> Self {
        Keys { size: size.max(Self::SHORTEST), order: KeyOrder::Hashed }
    }
    /// Keys of the same size in this order.
    #[must_use]
    pub fn in_order(self, order: KeyOrder) -> Self {
        Keys { order, ..self }
    }
    /// Bytes of a key.
    pub fn size(self) -> usize {
        self.size
    }
    /// Returns the order of the keys.
    pub fn order(self) -> KeyOrder {
        self.order
    }
    /// Writes the key with this number. `out` has [`size`](Self::size) bytes.
    #[inline]
    pub fn write(self, number: u64, out: &mut [u8]) {
        if self.order == KeyOrder::Ordered {
            let word = self.rank(number).to_be_bytes();
            let len = word.len().min(out.len());
            let (first, rest) = out.split_at_mut(len);
            first.copy_from_slice(&word[..len]);
            rest.fill(0);
            return;
        }
        let mut word = hashed(number);
        // Whole words first: a copy of known length is a store, not a call.
        let (chunks, tail) = out.as_chunks_mut::<8>();
        for chunk in chunks {
            *chunk = word.to_le_bytes();
            word = word.rotate_left(29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ number;
        }
        let rest = tail.len();
        tail.copy_from_slice(&word.to_le_bytes()[..rest]);
    }
    /// Returns a word by which keys are ordered as by their bytes: the first eight bytes, big-endian.
    #[inline]
    pub fn rank(self, number: u64) -> u64 {
        match self.order {
            KeyOrder::Hashed => hashed(number).swap_bytes(),
            KeyOrder::Ordered if number >= ABSENT => (number - ABSENT) << 1 | 1,
            KeyOrder::Ordered => number << 1,
        }
    }
    /// Returns the number of the key with this [rank](Self::rank).
    pub fn of_rank(self, rank: u64) -> u64 {
        match self.order {
            KeyOrder::Hashed => unmix64(rank.swap_bytes()).wrapping_sub(OFFSET),
            KeyOrder::Ordered => (rank >> 1) + if rank & 1 == 1 { ABSENT } else { 0 },
        }
    }
    /// Returns which of `parts` ranges of equal size the key with this number lies in. The ranges divide `count` keys.
    #[inline]
    pub fn part(self, number: u64, parts: usize, count: u64) -> usize {
        let parts = parts.max(1) as u128;
        let part = match self.order {
            KeyOrder::Hashed => (u128::from(self.rank(number)) * parts) >> 64,
            KeyOrder::Ordered => u128::from(number & (ABSENT - 1)) * parts / u128::from(count.max(1)),
        };
        part.min(parts - 1) as usize
    }
    /// Returns the bounds of such a range: its lowest key, and the key at which the next one begins, if there is a next one.
    pub fn bounds(self, part: usize, parts: usize, count: u64) -> (Vec<u8>, Option<Vec<u8>>) {
        let parts = parts.max(1);
        let first = |part: usize| {
            let (part, parts) = (part as u128, parts as u128);
            let rank = match self.order {
                KeyOrder::Hashed => (part << 64).div_ceil(parts),
                KeyOrder::Ordered => (part * u128::from(count)).div_ceil(parts) << 1,
            };
            (rank as u64).to_be_bytes().to_vec()
        };
        let low = if part == 0 { Vec::new() } else { first(part) };
        (low, (part + 1 < parts).then(|| first(part + 1)))
    }
    /// Returns the number of a key; `None` if no number has these bytes. `scratch` has [`size`](Self::size) bytes.
    pub fn number(self, key: &[u8], scratch: &mut [u8]) -> Option<u64> {
        let rank = u64::from_be_bytes(*key.first_chunk()?);
        let number = self.of_rank(rank);
        self.write(number, scratch);
        (*scratch == *key).then_some(number)
    }
}

const OFFSET: u64 = 0x9e37_79b9_7f4a_7c15;

fn hashed(number: u64) -> u64 {
    mix64(number.wrapping_add(OFFSET))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(keys: Keys, number: u64) -> Vec<u8> {
        let mut key = vec![0; keys.size()];
        keys.write(number, &mut key);
        key
    }

    #[test]
    fn keys_differ_and_hashed_keys_are_not_a_sequence() {
        let mut seen = std::collections::HashSet::new();
        for order in KeyOrder::ALL {
            for size in [8, 11, 32] {
                let keys = Keys::new(size).in_order(order);
                seen.clear();
                for number in (0..20_000).chain(ABSENT..ABSENT + 1000) {
                    assert!(seen.insert(key(keys, number)));
                }
            }
        }
        let word = |number| u64::from_le_bytes(key(Keys::new(8), number).try_into().unwrap());
        let flips: u32 = (0..1000).map(|n| (word(n) ^ word(n + 1)).count_ones()).sum();
        assert!((31_000..33_000).contains(&flips), "{flips} of 64,000 bits differ between neighbours");
    }

    #[test]
    fn the_number_of_a_key_comes_out_of_its_bytes() {
        for order in KeyOrder::ALL {
            for size in [8, 13, 24] {
                let keys = Keys::new(size).in_order(order);
                let mut scratch = vec![0; size];
                for number in (0..1000).chain(ABSENT..ABSENT + 100) {
                    let mut bytes = key(keys, number);
                    assert_eq!(keys.number(&bytes, &mut scratch), Some(number));
                    if size > 8 {
                        bytes[size - 1] ^= 1;
                        assert_eq!(keys.number(&bytes, &mut scratch), None);
                    }
                    assert_eq!(keys.number(&bytes[..7], &mut scratch), None);
                }
            }
        }
    }

    #[test]
    fn the_bounds_of_a_part_hold_its_keys_and_no_others() {
        for order in KeyOrder::ALL {
            let keys = Keys::new(8).in_order(order);
            for parts in [1, 2, 3, 7] {
                let mut counts = vec![0u32; parts];
                for number in 0..2000 {
                    let (part, key) = (keys.part(number, parts, 2000), key(keys, number));
                    counts[part] += 1;
                    for other in 0..parts {
                        let (low, high) = keys.bounds(other, parts, 2000);
                        let inside = low <= key && high.is_none_or(|high| key < high);
                        assert_eq!(inside, other == part, "key {number} and part {other} of {parts}");
                    }
                }
                let even = 2000 / parts as u32;
                assert!(counts.iter().all(|&count| count.abs_diff(even) < 100), "{counts:?}");
            }
        }
    }

    #[test]
    fn keys_are_ordered_as_their_ranks() {
        for order in KeyOrder::ALL {
            let keys = Keys::new(12).in_order(order);
            let mut numbers: Vec<u64> = (0..500).chain(ABSENT..ABSENT + 100).collect();
            numbers.sort_by_key(|&number| keys.rank(number));
            assert!(numbers.is_sorted_by(|&a, &b| key(keys, a) < key(keys, b)));
        }
        let keys = Keys::new(9).in_order(KeyOrder::Ordered);
        assert!((0..1000).map(|number| key(keys, number)).is_sorted());
        assert!(key(keys, 7) < key(keys, ABSENT + 7) && key(keys, ABSENT + 7) < key(keys, 8));
    }
}
