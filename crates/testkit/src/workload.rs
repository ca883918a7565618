//! Keys and operations of a seed.
//!
//! A few hot keys get most operations; colliding keys lie in the same bucket, so that it overflows; cold keys make the
//! index grow. Values are unique, so that a read names the write that it returns.

use crate::setup::Setup;
use crate::twins;
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
    /// Removes.
    Remove,
    /// Changes an expected value. A workload draws none: see [`Op::guarded`].
    Replace,
    /// Removes an expected value.
    RemoveIf,
}

impl Op {
    /// The operation that does the same under the condition that the key has an expected value.
    #[must_use]
    pub fn guarded(self) -> Op {
        match self {
            Op::Get | Op::Insert => self,
            Op::Update | Op::Upsert | Op::Replace => Op::Replace,
            Op::Remove | Op::RemoveIf => Op::RemoveIf,
        }
    }
    /// Does it need no memory, unless removals write?
    pub(crate) fn removes(self) -> bool {
        matches!(self, Op::Remove | Op::RemoveIf)
    }
}

/// What the keys and values of a run look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shape {
    /// Short keys and values of any length.
    #[default]
    Plain,
    /// Keys of 8 bytes, and many values of 8 bytes: indexes may keep those in place.
    Eight,
    /// Keys that agree in so many first bytes.
    LongPrefix(usize),
    /// Keys of up to 3 bytes, and values of 3 bytes or more: indexes may keep both in one word.
    Short,
}

impl Shape {
    fn key(self, key: &[u8]) -> Vec<u8> {
        match self {
            Shape::Plain | Shape::Short => key.to_vec(),
            Shape::Eight => {
                let mut eight = vec![0; 8usize.saturating_sub(key.len())];
                eight.extend_from_slice(key);
                eight
            }
            Shape::LongPrefix(len) => [&vec![b'p'; len], key].concat(),
        }
    }
}

/// The keys of a run and how they are used.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Keys of most operations.
    pub hot: Vec<Vec<u8>>,
    /// Keys in the bucket of the hot keys.
    pub colliding: Vec<Vec<u8>>,
    /// Keys anywhere.
    pub cold: Vec<Vec<u8>>,
    /// Odds of a hot key, and of a colliding key if it is not hot.
    odds: (u32, u32),
    /// Weights of the operations.
    weights: [u64; 5],
    /// Colliding keys fill their bucket before the hot keys are inserted.
    overflowing: bool,
    /// Bytes that values are padded to, at most.
    padding: u64,
    shape: Shape,
}

/// Numbers of other keys are smaller.
const FIRST_AT_AN_EDGE: u64 = 1 << 20;

/// The key with this number: its bytes alone where keys are to be short.
fn key_of(number: u64, short: bool) -> Vec<u8> {
    if short {
        number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect()
    } else {
        format!("k{number}").into_bytes()
    }
}

/// Returns `count` keys whose hashes have `place` in their low `bits`.
fn keys_at((place, bits): (u64, u32), count: u64, next: &mut u64, short: bool) -> Vec<Vec<u8>> {
    let mask = (1u64 << bits) - 1;
    let mut keys = Vec::new();
    while (keys.len() as u64) < count {
        *next += 1;
        let key = key_of(*next, short);
        if KeyHash::unseeded(&key).bits() & mask == place & mask {
            keys.push(key);
        }
    }
    keys
}

impl Workload {
    /// Draws a workload.
    pub fn draw(rng: &mut SimRng, setup: &Setup, colliding_bits: u32) -> Self {
        let mut count = |(low, high)| rng.within(low, high);
        let (hot, mut colliding, cold) = (count(setup.hot_keys), count(setup.colliding_keys), count(setup.cold_keys));
        if rng.chance(ODDS / 2) && setup.colliding_keys.1 >= 64 {
            // Around what one bucket of the usual size holds.
            colliding = rng.within(56, setup.colliding_keys.1);
        }
        let overflowing = rng.chance(setup.overflowing);
        if overflowing {
            colliding = rng.within(62, 100);
        }
        let place = rng.word();
        let mut next = rng.below(1000);
        let shares: [u64; 5] =
            [rng.within(1, 8), rng.within(0, 6), rng.within(0, 4), rng.within(0, 4), rng.within(0, 6)];
        let shares = if rng.chance(ODDS / 6) { [12, 1, 2, 0, 0] } else { shares };
        Workload {
            hot: keys_at((place, colliding_bits), hot, &mut next, setup.short),
            colliding: keys_at((place, colliding_bits), colliding, &mut next, setup.short),
            cold: keys_at((0, 0), cold, &mut next, setup.short),
            odds: (
                rng.pick(&[ODDS / 4, ODDS / 2, ODDS * 3 / 4, ODDS]).unwrap_or(ODDS),
                rng.pick(&[0, ODDS / 2, ODDS]).unwrap_or(0),
            ),
            weights: shares,
            overflowing,
            padding: rng.pick(&[0, 0, 100, 1500]).unwrap_or(0),
            shape: Shape::Plain,
        }
    }

    /// Hot keys that share their hashes. Only as many: what shares all bits cannot be told apart by any split.
    #[must_use]
    pub(crate) fn with_twins(mut self, rng: &mut SimRng) -> Self {
        self.hot = twins::draw(rng, rng.clone().within(2, 4));
        self
    }

    /// Hot and colliding keys whose hashes have a 0 in the lowest bit and ones in the next. Tables of slots order keys by their
    /// bits from the lowest on: there such keys have their homes in the last slots of the first half, whatever the table's size.
    /// The ends of regions are there, too, so entries spill from a region that may have been moved into one that has not. Half of
    /// the colliding keys have more of these bits, and so fill the gap between the others and the end.
    #[must_use]
    pub(crate) fn at_an_edge(mut self, rng: &mut SimRng, short: bool) -> Self {
        let bits = rng.within(4, 6) as u32;
        let mut next = FIRST_AT_AN_EDGE + rng.below(FIRST_AT_AN_EDGE);
        let half = self.colliding.len() / 2;
        let (wide, narrow) = self.colliding.split_at_mut(half);
        for (keys, bits) in [(&mut self.hot[..], bits), (wide, bits), (narrow, bits + 3)] {
            keys.clone_from_slice(&keys_at((!1, bits), keys.len() as u64, &mut next, short));
        }
        self
    }

    /// As many removals as inserts, and few gets.
    #[must_use]
    pub(crate) fn churning(self) -> Self {
        Workload { weights: [3, 6, 1, 1, 7], ..self }
    }

    /// Values that are padded to so many bytes at most.
    #[must_use]
    pub(crate) fn padded(self, padding: u64) -> Self {
        Workload { padding, ..self }
    }

    /// Keys anywhere, and values that one READ of the usual length covers. Removing a hot key again and again would fill its
    /// place with what only growth removes.
    #[must_use]
    pub(crate) fn quiet(self) -> Self {
        Workload { padding: 0, odds: (0, 0), ..self }
    }

    /// Every key.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.hot.iter().chain(&self.colliding).chain(&self.cold)
    }

    /// Gives the keys and values another shape.
    #[must_use]
    pub fn shaped(mut self, shape: Shape) -> Self {
        for key in self.hot.iter_mut().chain(&mut self.colliding).chain(&mut self.cold) {
            *key = shape.key(key);
        }
        Workload { shape, ..self }
    }

    /// Draws the keys to insert before the clients start: most colliding ones, some cold ones, perhaps hot ones.
    pub fn preload(&self, rng: &mut SimRng) -> Vec<Vec<u8>> {
        let mut share = rng.pick(&[0, ODDS / 2, ODDS * 15 / 16, ODDS]).unwrap_or(0);
        let cold = rng.pick(&[0, ODDS / 2, ODDS]).unwrap_or(0);
        let mut hot = rng.pick(&[0, ODDS / 2, ODDS]).unwrap_or(0);
        // The hot keys come first or last: they lie in front or overflow.
        let hot_first = rng.chance(ODDS / 2) && !self.overflowing;
        if self.overflowing {
            (share, hot) = (ODDS, ODDS);
        }
        let mut keys: Vec<_> = self.colliding.iter().filter(|_| rng.chance(share)).cloned().collect();
        keys.extend(self.cold.iter().filter(|_| rng.chance(cold)).cloned());
        let at = if hot_first { 0 } else { keys.len() };
        for key in self.hot.iter().rev().filter(|_| rng.chance(hot)) {
            keys.insert(at, key.clone());
        }
        keys
    }

    /// Draws the next operation of a coroutine.
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
            (_, true) if !self.colliding.is_empty() => &self.colliding,
            _ if !self.cold.is_empty() => &self.cold,
            _ => &self.hot,
        };
        let key = from.get(rng.below(from.len() as u64) as usize).cloned().unwrap_or_default();
        (op, key)
    }

    /// Draws a value that no other write of the run has: the writer, its count, and padding.
    pub fn value(&self, rng: &mut SimRng, writer: u64, count: u64) -> Vec<u8> {
        let mut value = match (u8::try_from(writer), u16::try_from(count)) {
            (Ok(writer), Ok(count)) if self.shape == Shape::Short => [&[writer][..], &count.to_be_bytes()].concat(),
            _ => format!("{writer}.{count}").into_bytes(),
        };
        let mut padding = rng.below(self.padding + 1) as usize;
        if self.shape == Shape::Short && rng.chance(ODDS / 2) {
            padding = 0;
        }
        value.resize(value.len() + padding, b'.');
        if self.shape == Shape::Eight && padding.is_multiple_of(4) {
            value.resize(value.len().max(8), b'.');
        }
        value
    }

    /// Describes the workload in a line.
    pub fn describe(&self) -> String {
        let Workload { hot, colliding, cold, odds, weights, overflowing, padding, shape } = self;
        format!(
            "{} hot, {} colliding, {} cold keys, odds {odds:?}, get/insert/update/upsert/remove {weights:?}, \
             overflowing {overflowing}, padding {padding}, {shape:?}",
            hot.len(),
            colliding.len(),
            cold.len()
        )
    }
}
