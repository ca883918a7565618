//! From the number of a key to its bytes.
//!
//! Invariants: two numbers never have the same bytes, because the first eight are a bijection of the number; the bytes
//! look random, so neither an index nor its hash sees a sequence; they do not depend on the seed, so processes agree.

use super::mix64;

/// Numbers from here on name keys that no workload ever inserts.
pub const ABSENT: u64 = 1 << 62;

/// Keys of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    size: usize,
}

impl Keys {
    /// The shortest key that tells all numbers apart.
    pub const SHORTEST: usize = 8;

    /// Keys of `size` bytes, at least [`SHORTEST`](Self::SHORTEST).
    pub fn new(size: usize) -> Self {
        Keys { size: size.max(Self::SHORTEST) }
    }
    /// Bytes of a key.
    pub fn size(self) -> usize {
        self.size
    }
    /// Writes the key with this number. `out` has [`size`](Self::size) bytes.
    #[inline]
    pub fn write(self, number: u64, out: &mut [u8]) {
        let mut word = mix64(number.wrapping_add(0x9e37_79b9_7f4a_7c15));
        // Whole words first: a copy of known length is a store, not a call.
        let (chunks, tail) = out.as_chunks_mut::<8>();
        for chunk in chunks {
            *chunk = word.to_le_bytes();
            word = word.rotate_left(29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ number;
        }
        let rest = tail.len();
        tail.copy_from_slice(&word.to_le_bytes()[..rest]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_not_a_sequence() {
        let mut seen = std::collections::HashSet::new();
        for size in [8, 11, 32] {
            let keys = Keys::new(size);
            seen.clear();
            for number in (0..20_000).chain(ABSENT..ABSENT + 1000) {
                let mut key = vec![0; size];
                keys.write(number, &mut key);
                assert!(seen.insert(key));
            }
        }
        let word = |number| {
            let mut key = [0; 8];
            Keys::new(8).write(number, &mut key);
            u64::from_le_bytes(key)
        };
        let flips: u32 = (0..1000).map(|n| (word(n) ^ word(n + 1)).count_ones()).sum();
        assert!((31_000..33_000).contains(&flips), "{flips} of 64,000 bits differ between neighbours");
    }
}
