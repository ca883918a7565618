//! Keys that collide: chosen hashes, and the keys that have them.
//!
//! xxh3 maps the strings of 8 bytes one to one to 64 bits, and a key's hash is 54 of these. So each hash has 1,024 keys of
//! 8 bytes, and this module computes them by carrying out the steps of xxh3 backwards. No search finds two keys with one
//! hash in reasonable time, so no other test has them: keys in one bucket with equal fingerprints, equal second
//! fingerprints, and equal bits behind those.

use farindex_index::keyhash::HASH_BITS;
use farindex_sim::SimRng;

/// xxh3's constant for short keys, and the part of its secret that it mixes into keys of 8 bytes.
const PRIME_MX2: u64 = 0x9FB2_1C65_1E98_DF25;
const SECRET: u64 = 0x1CAD_21F7_2C81_017C ^ 0xDB97_9083_E96D_D4DE;
/// Keys of one hash.
pub const KEYS_OF_A_HASH: u64 = 1 << (u64::BITS - HASH_BITS);

/// The inverse of an odd number modulo 2 to 64.
const fn inverse(odd: u64) -> u64 {
    // Newton: each step doubles the number of correct bits, of which there are 3 at first.
    let mut found = odd;
    let mut step = 0;
    while step < 5 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found
}

/// The key of 8 bytes whose unseeded xxh3 is this.
fn key_of(xxh3: u64) -> [u8; 8] {
    let mut word = xxh3;
    word ^= word >> 28;
    word ^= word >> 56;
    word = word.wrapping_mul(inverse(PRIME_MX2));
    // The length was added to the upper bits, and the sum changed the lower ones only.
    word ^= (word >> 35) + 8;
    word = word.wrapping_mul(inverse(PRIME_MX2));
    // As a polynomial over GF(2) modulo x^64 + 1, the sum of three rotations is its own inverse's 64th power.
    for _ in 0..63 {
        word ^= word.rotate_left(49) ^ word.rotate_left(24);
    }
    (word ^ SECRET).rotate_left(32).to_le_bytes()
}

/// The key number `which` (below [`KEYS_OF_A_HASH`]) with these 54 bits as its unseeded hash.
pub fn key_with(hash: u64, which: u64) -> Vec<u8> {
    let high = which % KEYS_OF_A_HASH;
    key_of(hash & ((1 << HASH_BITS) - 1) | high << HASH_BITS).to_vec()
}

/// Draws `count` keys of which each two neighbours share all bits of their hashes, and all share the lower and the upper
/// ones: buckets and fingerprints.
pub fn draw(rng: &mut SimRng, count: u64) -> Vec<Vec<u8>> {
    let base = rng.word();
    // The bits in which the pairs differ: none, a few that some kinds use as a second fingerprint, or those that choose
    // between two halves of what is split.
    let differing = rng.pick(&[0, 0xFF << 16, 0xFFFF << 24, 0xFF << 36, 0x1F << 4]).unwrap_or_default();
    let differing = if count > 2 && differing == 0 { 0xFF << 16 } else { differing };
    let mut keys = Vec::new();
    let mut hash = base;
    for i in 0..count {
        if i % 2 == 0 {
            hash = base & !differing | rng.word() & differing;
        }
        // Two keys of one hash differ in the number alone, so all numbers are different.
        keys.push(key_with(hash, i));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_index::keyhash::KeyHash;
    use std::collections::BTreeSet;

    #[test]
    fn keys_have_the_hashes_that_were_asked_for() {
        let mut rng = SimRng::new(1, 0);
        for _ in 0..1000 {
            let (hash, which) = (rng.word() >> 10, rng.below(KEYS_OF_A_HASH));
            assert_eq!(KeyHash::unseeded(&key_with(hash, which)).bits(), hash);
        }
    }

    #[test]
    fn drawn_keys_come_in_pairs_of_one_hash_and_share_their_fingerprint() {
        for seed in 0..100 {
            let keys = draw(&mut SimRng::new(seed, 0), 6);
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 6);
            let hashes: Vec<_> = keys.iter().map(|key| KeyHash::unseeded(key)).collect();
            assert!(hashes.chunks(2).all(|pair| pair[0] == pair[1]));
            assert!(hashes.iter().all(|hash| hash.fingerprint() == hashes[0].fingerprint()));
        }
    }
}
