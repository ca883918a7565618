//! A bijection of `0..n`, to spread the hot ranks over the key space.
//!
//! YCSB scrambles with a hash modulo n. That sends some ranks to one key and leaves about a third of the keys
//! untouched, so the distribution is no longer the one that was asked for. Here a permutation of the next power of two
//! is walked until it lands below n, which takes two steps at most on average; every key has exactly one rank. The
//! permutation is the same for every seed, so that processes with different seeds agree on which keys are hot.

/// The bijection.
#[derive(Debug, Clone, Copy)]
pub struct Scramble {
    n: u64,
    mask: u64,
    shift: u32,
}

impl Scramble {
    /// A bijection of `0..n`.
    pub fn new(n: u64) -> Self {
        let n = n.max(1);
        let bits = 64 - (n - 1).leading_zeros();
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        Scramble { n, mask, shift: (bits / 2).max(1) }
    }

    /// Each step is invertible modulo the power of two: adding, multiplying by an odd number, and xor with the word
    /// shifted right.
    fn permute(&self, word: u64) -> u64 {
        let word = word.wrapping_add(0x632b_e59b_d9b4_e019) & self.mask;
        let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask;
        let word = word ^ (word >> self.shift);
        let word = word.wrapping_mul(0xbf58_476d_1ce4_e5b9) & self.mask;
        let word = word ^ (word >> self.shift);
        let word = word.wrapping_mul(0x94d0_49bb_1331_11eb) & self.mask;
        word ^ (word >> self.shift)
    }

    /// Where `rank`, which is below n, goes.
    #[inline]
    pub fn apply(&self, rank: u64) -> u64 {
        let mut at = self.permute(rank & self.mask);
        // The cycle of a rank below n comes back to that rank at the latest, so this ends.
        while at >= self.n {
            at = self.permute(at);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_exactly_one_rank() {
        for n in (1..300).chain([1 << 12, (1 << 12) + 1, 65_535, 100_000]) {
            let scramble = Scramble::new(n);
            let mut hit = vec![false; n as usize];
            for rank in 0..n {
                let key = scramble.apply(rank);
                assert!(!std::mem::replace(&mut hit[key as usize], true), "{n}: key {key} twice");
            }
        }
        assert!(Scramble::new(u64::MAX).apply(5) < u64::MAX);
    }

    #[test]
    fn neighbouring_ranks_do_not_stay_neighbours() {
        let scramble = Scramble::new(1_000_000);
        let near = (0..1000).filter(|&r| scramble.apply(r).abs_diff(scramble.apply(r + 1)) < 1000).count();
        assert!(near < 20, "{near} of 1000 neighbours are still near each other");
    }
}
