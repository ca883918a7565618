//! The hash of a key, which is the only hash that far memory holds.
//!
//! Invariants: every client and every version computes xxh3-64 of the key's bytes with the index's seed, cut to 54
//! bits. Bucket numbers, fingerprints and the memory node are computed from those 54 bits, so a block's header
//! determines where its entry belongs.
//!
//! The seed is drawn when an index is created, and the catalog keeps it. So the order of the keys in one index (the
//! order of its dump) does not predict their places in another index, and keys that were computed in advance to collide
//! do not collide. xxh3 is no cryptographic hash: an attacker who knows the seed, or learns from response times which
//! keys collide, can still find colliding keys.

/// Number of bits of a hash.
pub const HASH_BITS: u32 = 54;
/// Number of bits of a fingerprint.
pub const FINGERPRINT_BITS: u32 = 7;

/// The 54-bit hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Computes the hash of a key in an index with this seed.
    pub fn of(key: &[u8], seed: u64) -> Self {
        KeyHash(xxhash_rust::xxh3::xxh3_64_with_seed(key, seed) & ((1 << HASH_BITS) - 1))
    }
    /// Computes the hash of a key with the seed 0. Every index of a pool made with
    /// [`PoolOptions::unseeded`](farindex_pool::PoolOptions::unseeded) has this seed.
    pub fn unseeded(key: &[u8]) -> Self {
        Self::of(key, 0)
    }
    /// Makes the hash from the 54 bits in a block's header.
    pub const fn from_bits(bits: u64) -> Self {
        KeyHash(bits & ((1 << HASH_BITS) - 1))
    }
    /// Returns the 54 bits.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Returns the fingerprint: the top bits, which bucket numbers do not use.
    pub const fn fingerprint(self) -> u64 {
        self.0 >> (HASH_BITS - FINGERPRINT_BITS)
    }
    /// Computes another hash of the same key, for a further choice of bucket.
    pub const fn rehash(self, seed: u64) -> u64 {
        // The finalizer of MurmurHash3.
        let mut x = self.0 ^ seed;
        x = (x ^ x >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        x = (x ^ x >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        x ^ x >> 33
    }
    /// Chooses one of `parts`, with equal probability.
    pub const fn part(self, parts: usize) -> usize {
        ((self.rehash(0x9E37_79B9_7F4A_7C15) as u128 * parts as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far memory holds hashes, so a new version of a library must not change them.
    #[test]
    fn hash_has_fixed_test_vectors() {
        assert_eq!(KeyHash::unseeded(b"").bits(), 0x2D06_8005_38D3_94C2 & ((1 << 54) - 1));
        assert_eq!(KeyHash::unseeded(b"farindex").bits(), 698_187_009_307_099);
        // From xxHash's own test vectors.
        assert_eq!(KeyHash::of(b"", 0x9E37_79B1_85EB_CA8D).bits(), 0xA8A6_B918_B2F0_364A & ((1 << 54) - 1));
        assert_eq!(KeyHash::of(b"farindex", 0x0123_4567_89AB_CDEF).bits(), 7_812_968_982_294_306);
    }
}
