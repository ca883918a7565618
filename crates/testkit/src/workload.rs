//! Which keys and operations a seed brings.
//!
//! A few hot keys, on which most operations meet; a crowd of keys in the same place of the index, so that it overflows;
//! cold keys that make it grow. Values are unique, so that a read names the write it saw.

use crate::setup::Setup;
use farindex_index::keyhash::KeyHash;
use farindex_sim::{ODDS, SimRng};

/// An operation on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Get,
    /// Adds.
    Insert,
    /// Changes.
    Update,
    /// Sets.
    Upsert,
    /// Takes out.
    Remove,
}

/// The keys of a run and how they are used.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Worked on all the time.
    pub hot: Vec<Vec<u8>>,
    /// In the same place.
    pub crowd: Vec<Vec<u8>>,
    /// Anywhere.
    pub cold: Vec<Vec<u8>>,
    /// Odds of a hot key, and of a key of the crowd if not.
    odds: (u32, u32),
    /// Weights of the operations.
    weights: [u64; 5],
    /// The crowd fills its bucket before the hot keys come.
    overflowing: bool,
    /// Bytes that values are padded to, at most.
    padding: u64,
}

/// The `n`-th key whose hash has `place` in its low `bits`.
fn keys_at(place: u64, bits: u32, count: u64, next: &mut u64) -> Vec<Vec<u8>> {
    let mask = (1u64 << bits) - 1;
    let mut keys = Vec::new();
    while (keys.len() as u64) < count {
        *next += 1;
        let key = format!("k{next}").into_bytes();
        if KeyHash::unseeded(&key).bits() & mask == place & mask {
            keys.push(key);
        }
    }
    keys
}

impl Workload {
    /// Draws one.
    pub fn draw(rng: &mut SimRng, setup: &Setup, colliding_bits: u32) -> Self {
        let mut count = |(low, high)| rng.within(low, high);
        let (hot, mut crowd, cold) = (count(setup.hot_keys), count(setup.colliding_keys), count(setup.cold_keys));
        if rng.chance(ODDS / 2) && setup.colliding_keys.1 >= 64 {
            // Around what one bucket of the usual size holds.
            crowd = rng.within(56, setup.colliding_keys.1);
        }
        let overflowing = rng.chance(setup.overflowing);
        if overflowing {
            crowd = rng.within(62, 100);
        }
        let place = rng.word();
        let mut next = rng.below(1000);
        let shares: [u64; 5] =
            [rng.within(1, 8), rng.within(0, 6), rng.within(0, 4), rng.within(0, 4), rng.within(0, 6)];
        let shares = if rng.chance(ODDS / 6) { [12, 1, 2, 0, 0] } else { shares };
        Workload {
            hot: keys_at(place, colliding_bits, hot, &mut next),
            crowd: keys_at(place, colliding_bits, crowd, &mut next),
            cold: keys_at(0, 0, cold, &mut next),
            odds: (
                rng.pick(&[ODDS / 4, ODDS / 2, ODDS * 3 / 4, ODDS]).unwrap_or(ODDS),
                rng.pick(&[0, ODDS / 2, ODDS]).unwrap_or(0),
            ),
            weights: shares,
            overflowing,
            padding: rng.pick(&[0, 0, 100, 1500]).unwrap_or(0),
        }
    }

    /// Keys to put in before the clients come: most of the crowd, some cold ones, perhaps hot ones.
    pub fn preload(&self, rng: &mut SimRng) -> Vec<Vec<u8>> {
        let mut share = rng.pick(&[0, ODDS / 2, ODDS * 15 / 16, ODDS]).unwrap_or(0);
        let cold = rng.pick(&[0, ODDS / 2, ODDS]).unwrap_or(0);
        let mut hot = rng.pick(&[0, ODDS / 2, ODDS]).unwrap_or(0);
        // The hot ones first or last: they lie in front or overflow.
        let hot_first = rng.chance(ODDS / 2) && !self.overflowing;
        if self.overflowing {
            (share, hot) = (ODDS, ODDS);
        }
        let mut keys: Vec<_> = self.crowd.iter().filter(|_| rng.chance(share)).cloned().collect();
        keys.extend(self.cold.iter().filter(|_| rng.chance(cold)).cloned());
        let at = if hot_first { 0 } else { keys.len() };
        for key in self.hot.iter().rev().filter(|_| rng.chance(hot)) {
            keys.insert(at, key.clone());
        }
        keys
    }

    /// The next operation of a coroutine.
    pub fn next(&self, rng: &mut SimRng) -> (Op, Vec<u8>) {
        let total: u64 = self.weights.iter().sum();
        let mut draw = rng.below(total);
        let ops = [Op::Get, Op::Insert, Op::Update, Op::Upsert, Op::Remove];
        let mut op = Op::Get;
        for (candidate, weight) in ops.into_iter().zip(self.weights) {
            op = candidate;
            if draw < weight {
                break;
            }
            draw -= weight;
        }
        let from = match (rng.chance(self.odds.0), rng.chance(self.odds.1)) {
            (true, _) => &self.hot,
            (_, true) if !self.crowd.is_empty() => &self.crowd,
            _ if !self.cold.is_empty() => &self.cold,
            _ => &self.hot,
        };
        let key = from.get(rng.below(from.len() as u64) as usize).cloned().unwrap_or_default();
        (op, key)
    }

    /// A value that no other write of the run has: the writer, its count, and some padding.
    pub fn value(&self, rng: &mut SimRng, writer: u64, count: u64) -> Vec<u8> {
        let mut value = format!("{writer}.{count}").into_bytes();
        let padding = rng.below(self.padding + 1) as usize;
        value.resize(value.len() + padding, b'.');
        value
    }

    /// In words.
    pub fn describe(&self) -> String {
        let Workload { hot, crowd, cold, odds, weights, overflowing, padding } = self;
        format!(
            "{} hot, {} crowded, {} cold keys, odds {odds:?}, get/insert/update/upsert/remove {weights:?}, overflowing {overflowing}, padding {padding}",
            hot.len(),
            crowd.len(),
            cold.len()
        )
    }
}
