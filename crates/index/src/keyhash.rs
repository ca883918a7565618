//! The one hash of a key that far memory ever sees.
//!
//! Invariants: it is xxh3-64 of the key's bytes, cut to 54 bits, on every client and in every version; everything else
//! (bucket numbers, fingerprints, which memory node) is computed from those 54 bits, so that a block's header is enough to
//! tell where its entry belongs.

/// Bits that are kept.
pub const HASH_BITS: u32 = 54;
/// Bits of a fingerprint.
pub const FINGERPRINT_BITS: u32 = 7;

/// 54 bits of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hash of a key.
    pub fn of(key: &[u8]) -> Self {
        KeyHash(xxhash_rust::xxh3::xxh3_64(key) & ((1 << HASH_BITS) - 1))
    }
    /// From the 54 bits that a block's header keeps.
    pub const fn from_bits(bits: u64) -> Self {
        KeyHash(bits & ((1 << HASH_BITS) - 1))
    }
    /// The 54 bits.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// The fingerprint: the top bits, which bucket numbers never reach.
    pub const fn fingerprint(self) -> u64 {
        self.0 >> (HASH_BITS - FINGERPRINT_BITS)
    }
    /// Another hash of the same key, for a further choice of bucket.
    pub const fn rehash(self, seed: u64) -> u64 {
        // The finalizer of MurmurHash3.
        let mut x = self.0 ^ seed;
        x = (x ^ x >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        x = (x ^ x >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        x ^ x >> 33
    }
    /// One of `parts`, evenly.
    pub const fn part(self, parts: usize) -> usize {
        ((self.rehash(0x9E37_79B9_7F4A_7C15) as u128 * parts as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is stored remotely must not change with a version of a library.
    #[test]
    fn the_hash_is_fixed_for_ever() {
        assert_eq!(KeyHash::of(b"").bits(), 0x2D06_8005_38D3_94C2 & ((1 << 54) - 1));
        assert_eq!(KeyHash::of(b"farindex").bits(), 698_187_009_307_099);
    }
}
