//! The three generators of a stretch of operations.
//!
//! Invariants: a stream is a function of the seed, the phase and the stretch's number, not of the thread or client that
//! happens to carry it out, so the set of operations of a run does not depend on scheduling; its three generators are
//! independent; all are xoshiro256++, which is specified and so reproduces elsewhere and later.

use super::mix64;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Generators for operation, key and value.
#[derive(Debug, Clone)]
pub struct Stream {
    op: Xoshiro256PlusPlus,
    key: Xoshiro256PlusPlus,
    value: Xoshiro256PlusPlus,
}

impl Stream {
    /// Stretch `number` of phase `phase`.
    pub fn new(seed: u64, phase: u64, number: u64) -> Self {
        let origin = mix64(mix64(mix64(seed).wrapping_add(phase)).wrapping_add(number));
        let generator = |purpose: u64| Xoshiro256PlusPlus::seed_from_u64(mix64(origin.wrapping_add(purpose)));
        Stream { op: generator(1), key: generator(2), value: generator(3) }
    }
    /// The draw that decides which operation comes next, and whether it is timed.
    pub fn op(&mut self) -> u64 {
        self.op.next_u64()
    }
    /// The draw that decides on which key.
    pub fn key(&mut self) -> u64 {
        self.key.next_u64()
    }
    /// The draw that decides with which value, or how many entries a scan asks for.
    pub fn value(&mut self) -> u64 {
        self.value.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_their_generators_are_apart() {
        let mut first = std::collections::HashSet::new();
        for seed in 0..4 {
            for phase in 0..4 {
                for number in 0..64 {
                    let mut stream = Stream::new(seed, phase, number);
                    for draw in [stream.op(), stream.key(), stream.value()] {
                        assert!(first.insert(draw), "two generators begin alike");
                    }
                }
            }
        }
        assert_eq!(Stream::new(1, 2, 3).op(), Stream::new(1, 2, 3).op());
    }
}
