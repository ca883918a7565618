//! What the tests share: a small generator and random histories.

#![allow(dead_code, unreachable_pub, reason = "every test binary includes this and uses its own part")]

use std::collections::BTreeMap;
use std::ops::Bound;

use farindex_check::{Call, History, Operation, Outcome, Response};

/// SplitMix64: named, so that a seed means the same for ever.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

pub type Store = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a correct store answers, and what becomes of it.
pub fn apply(store: &mut Store, call: &Call) -> Outcome {
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
pub struct Shape {
    pub keys: u64,
    pub values: u64,
    pub operations: u64,
    /// Stamps are below this, so small spans make ties and overlaps.
    pub span: u64,
    pub pending_percent: u64,
    pub scan_percent: u64,
    /// How many operations of 100 get an answer that was true in another order.
    pub wrong_percent: u64,
}

pub fn text(letter: u8, number: u64) -> Vec<u8> {
    vec![letter, b'0' + number as u8]
}

/// A random call.
pub fn random_call(random: &mut Random, shape: &Shape) -> Call {
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
    match random.below(8) {
        0..3 => Call::Get { key },
        3 => Call::Insert { key, value },
        4 => Call::Update { key, value },
        5 | 6 => Call::Upsert { key, value },
        _ => Call::Remove { key },
    }
}

/// A history of operations that took effect at random moments, some of which lie about it.
pub fn random_history(random: &mut Random, shape: &Shape) -> History {
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
            // Takes no effect: only a pending operation may do that.
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
        operations.push(Operation { client: client as u64 % 3, call, invoked, response });
    }
    History::new(operations).expect("the generator keeps the invariants")
}
