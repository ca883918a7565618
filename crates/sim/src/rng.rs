//! The simulator's random number generator, its only source of randomness.
//!
//! Invariants: xoshiro256++, seeded by SplitMix64, integers only, so that the same seed gives the same draws in every
//! build and on every machine. Independent choices draw from separate streams, so that one more client does not change
//! the swarm.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The denominator of odds: odds of `ODDS / 4` mean one case in four.
pub const ODDS: u32 = 1 << 16;

/// A deterministic stream of random numbers.
#[derive(Debug, Clone)]
pub struct SimRng(Xoshiro256PlusPlus);

impl SimRng {
    /// Creates stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        SimRng(Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }
    /// Draws 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// Draws a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
    /// Draws a number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }
    /// Returns true in `odds` of [`ODDS`] cases. Draws nothing if the answer is certain.
    pub fn chance(&mut self, odds: u32) -> bool {
        match odds {
            0 => false,
            ODDS.. => true,
            _ => (self.word() >> 48) < u64::from(odds),
        }
    }
    /// Draws a duration below `2^exponent`, its order of magnitude first: mostly short, sometimes very long.
    pub fn tail(&mut self, exponent: u32) -> u64 {
        let magnitude = self.below(u64::from(exponent.min(62)));
        let floor = 1u64 << magnitude;
        floor + self.below(floor)
    }
    /// Draws one of these; `None` if there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len() as u64) as usize;
        from.get(at).copied()
    }
}

/// Returns odds (out of [`ODDS`]) that make about one verb in `verbs` the client's last.
pub fn once_in(verbs: u32) -> u32 {
    (ODDS / verbs.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_of_a_seed_never_change() {
        let mut rng = SimRng::new(42, 0);
        assert_eq!([rng.word(), rng.word()], [15021278609987233951, 5881210131331364753]);
    }

    #[test]
    fn draws_keep_their_odds_and_bounds() {
        let mut rng = SimRng::new(1, 1);
        let hits = (0..40_000).filter(|_| rng.chance(ODDS / 4)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| rng.within(3, 5).abs_diff(4) <= 1));
        assert!((0..1000).all(|_| rng.tail(10) < 1 << 10));
        assert!(!rng.chance(0) && rng.chance(ODDS));
    }
}
