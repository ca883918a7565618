//! Helpers of the tests: builders of operations, a small generator and random histories.

use std::collections::BTreeMap;
use std::ops::Bound;

use farindex_check::{Call, History, Operation, Outcome, Response};

/// SplitMix64, so that a seed always gives the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

pub(crate) type Store = BTreeMap<Vec<u8>, Vec<u8>>;

/// Applies a call to a correct store. Returns the outcome.
pub(crate) fn apply(store: &mut Store, call: &Call) -> Outcome {
    match call {
        Call::Get { key } => Outcome::Value(store.get(key).cloned()),
        Call::Insert { key, value } => {
            if store.contains_key(key) {
                return Outcome::Exists;
            }
            store.insert(key.clone(), value.clone());
            Outcome::Inserted
        }
        Call::Update { key, value } => match store.get_mut(key) {
            Some(held) => {
                held.clone_from(value);
                Outcome::Updated
            }
            None => Outcome::Absent,
        },
        Call::Upsert { key, value } => match store.insert(key.clone(), value.clone()) {
            Some(_) => Outcome::Updated,
            None => Outcome::Inserted,
        },
        Call::Remove { key } => match store.remove(key) {
            Some(_) => Outcome::Removed,
            None => Outcome::Absent,
        },
        Call::Replace { key, expected, value } => match store.get_mut(key) {
            Some(held) if held == expected => {
                held.clone_from(value);
                Outcome::Replaced
            }
            Some(_) => Outcome::Differs,
            None => Outcome::Absent,
        },
        Call::RemoveIf { key, expected } => match store.get(key) {
            Some(held) if held == expected => {
                store.remove(key);
                Outcome::Removed
            }
            Some(_) => Outcome::Differs,
            None => Outcome::Absent,
        },
        Call::Scan { from, to, limit } => {
            let inside = |key: &[u8]| {
                let above = match from {
                    Bound::Included(bound) => key >= bound.as_slice(),
                    Bound::Excluded(bound) => key > bound.as_slice(),
                    Bound::Unbounded => true,
                };
                let below = match to {
                    Bound::Included(bound) => key <= bound.as_slice(),
                    Bound::Excluded(bound) => key < bound.as_slice(),
                    Bound::Unbounded => true,
                };
                above && below
            };
            let pairs = store.iter().filter(|(key, _)| inside(key));
            let limit = limit.map_or(usize::MAX, |limit| limit as usize);
            Outcome::Pairs(pairs.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
        }
    }
}

/// The shape of random histories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) operations: u64,
    /// Stamps are below this, so small spans make ties and overlaps.
    pub(crate) span: u64,
    pub(crate) pending_percent: u64,
    pub(crate) scan_percent: u64,
    /// How many calls of 100 expect a value.
    pub(crate) guarded_percent: u64,
    /// How many operations of 100 are in a group: of its client, with its number.
    pub(crate) grouped_percent: u64,
    /// How many operations of 100 get the outcome that they would have on another store.
    pub(crate) wrong_percent: u64,
}

pub(crate) fn text(letter: u8, number: u64) -> Vec<u8> {
    vec![letter, b'0' + number as u8]
}

/// A random call.
pub(crate) fn random_call(random: &mut Random, shape: &Shape) -> Call {
    let key = text(b'k', random.below(shape.keys));
    let value = text(b'v', random.below(shape.values));
    if random.chance(shape.scan_percent) {
        let bound = |random: &mut Random| match random.below(3) {
            0 => Bound::Included(text(b'k', random.below(shape.keys))),
            1 => Bound::Excluded(text(b'k', random.below(shape.keys))),
            _ => Bound::Unbounded,
        };
        let limit = random.chance(50).then(|| random.below(3));
        return Call::Scan { from: bound(random), to: bound(random), limit };
    }
    if shape.guarded_percent > 0 && random.chance(shape.guarded_percent) {
        let expected = text(b'v', random.below(shape.values));
        return match random.below(3) {
            0 => Call::RemoveIf { key, expected },
            _ => Call::Replace { key, expected, value },
        };
    }
    match random.below(8) {
        0..3 => Call::Get { key },
        3 => Call::Insert { key, value },
        4 => Call::Update { key, value },
        5 | 6 => Call::Upsert { key, value },
        _ => Call::Remove { key },
    }
}

/// A history of operations that took effect at random moments, some of them with wrong outcomes.
pub(crate) fn random_history(random: &mut Random, shape: &Shape) -> History {
    let count = 1 + random.below(shape.operations);
    // (moment of effect, invoked, responded, call)
    let mut planned: Vec<(u64, u64, u64, Call)> = (0..count)
        .map(|_| {
            let mut stamps = [0; 3].map(|_| random.below(shape.span));
            stamps.sort_unstable();
            (stamps[1], stamps[0], stamps[2], random_call(random, shape))
        })
        .collect();
    planned.sort_by_key(|plan| plan.0);
    let mut store = Store::new();
    let mut operations: Vec<Operation> = Vec::new();
    for (client, (_, invoked, responded, call)) in planned.into_iter().enumerate() {
        let mut outcome = if random.chance(10) {
            // Without an effect, which only a pending operation may have.
            apply(&mut store.clone(), &call)
        } else {
            apply(&mut store, &call)
        };
        if random.chance(shape.wrong_percent) {
            let mut other = Store::new();
            for _ in 0..random.below(3) {
                apply(&mut other, &random_call(random, shape));
            }
            outcome = apply(&mut other, &call);
        } else if matches!(call, Call::Upsert { .. }) && random.chance(30) {
            outcome = Outcome::Written;
        }
        let pending = random.chance(shape.pending_percent);
        let response = (!pending).then_some(Response { at: responded, outcome });
        let grouped = shape.grouped_percent > 0 && random.chance(shape.grouped_percent);
        let group = grouped.then(|| random.below(2));
        operations.push(Operation { client: client as u64 % 3, call, invoked, response, group });
    }
    // Mostly the operations are listed in the order in which they took effect.
    if shape.grouped_percent > 0 && random.chance(shape.grouped_percent / 2) {
        operations.reverse();
    }
    History::new(operations).expect("the generator keeps the invariants")
}

/// An operation; `response` is its stamp and outcome.
pub(crate) fn operation(client: u64, call: Call, invoked: u64, response: Option<(u64, Outcome)>) -> Operation {
    let response = response.map(|(at, outcome)| Response { at, outcome });
    Operation { client, call, invoked, response, group: None }
}
