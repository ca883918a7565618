//! The simulator's only source of chance.
//!
//! Invariants: xoshiro256++, seeded by SplitMix64, integers only: the same seed gives the same draws in every build and
//! on every machine. Separate matters draw from separate streams, so that adding a client does not change the swarm.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Odds are given out of this many.
pub const ODDS: u32 = 1 << 16;

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct SimRng(Xoshiro256PlusPlus);

impl SimRng {
    /// Stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        SimRng(Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }
    /// 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
    /// A number from `low` to `high`, both possible.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }
    /// True in `odds` of [`ODDS`] cases. Never draws where the answer is certain.
    pub fn chance(&mut self, odds: u32) -> bool {
        match odds {
            0 => false,
            ODDS.. => true,
            _ => (self.word() >> 48) < u64::from(odds),
        }
    }
    /// A duration whose order of magnitude is drawn first: mostly short, sometimes enormous, below `2^exponent`.
    pub fn tail(&mut self, exponent: u32) -> u64 {
        let magnitude = self.below(u64::from(exponent.min(62)));
        let floor = 1u64 << magnitude;
        floor + self.below(floor)
    }
    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len() as u64) as usize;
        from.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_what_they_always_were() {
        let mut rng = SimRng::new(42, 0);
        assert_eq!([rng.word(), rng.word()], [15021278609987233951, 5881210131331364753]);
    }

    #[test]
    fn odds_are_kept_and_bounds_too() {
        let mut rng = SimRng::new(1, 1);
        let hits = (0..40_000).filter(|_| rng.chance(ODDS / 4)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| rng.within(3, 5).abs_diff(4) <= 1));
        assert!((0..1000).all(|_| rng.tail(10) < 1 << 10));
        assert!(!rng.chance(0) && rng.chance(ODDS));
    }
}
