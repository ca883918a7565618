//! Times the check of a long history on few hot keys with all clients active at once.
//!
//! `cargo run --release -p farindex-check --example hot_keys -- [clients] [operations] [keys] [broken]`
//!
//! Each client always has one operation in flight. Operations take effect at random moments of their intervals, so the
//! history is linearizable by construction; `broken` makes one get near the end answer the value of an earlier moment.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use farindex_check::{Call, History, Limits, Operation, Outcome, Response, Verdict, check};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

struct Planned {
    client: u64,
    invoked: u64,
    effect: u64,
    responded: u64,
}

fn plan(random: &mut Random, clients: u64, operations: u64) -> Vec<Planned> {
    let mut planned = Vec::new();
    for client in 0..clients {
        let mut now = random.below(1000);
        for _ in 0..operations {
            let invoked = now + 1 + random.below(10);
            // Some operations are slow, so that intervals do not march in step.
            let length = if random.below(100) == 0 { 20_000 } else { 1000 };
            let effect = invoked + random.below(length);
            let responded = effect + random.below(length);
            planned.push(Planned { client, invoked, effect, responded });
            now = responded;
        }
    }
    planned.sort_by_key(|operation| operation.effect);
    planned
}

fn history(random: &mut Random, planned: &[Planned], keys: u64) -> Vec<Operation> {
    let mut store: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut operations = Vec::new();
    for (number, it) in planned.iter().enumerate() {
        let key_number = random.below(keys);
        let key = format!("hot{key_number}").into_bytes();
        let value = format!("value {number}").into_bytes();
        let held = store.get(&key_number).cloned();
        let present = held.is_some();
        let (call, outcome) = match random.below(100) {
            0..50 => (Call::Get { key }, Outcome::Value(held)),
            50..80 => {
                store.insert(key_number, value.clone());
                let outcome = if present { Outcome::Updated } else { Outcome::Inserted };
                (Call::Upsert { key, value }, outcome)
            }
            80..86 => {
                let outcome = if present { Outcome::Updated } else { Outcome::Absent };
                store.entry(key_number).and_modify(|held| held.clone_from(&value));
                (Call::Update { key, value }, outcome)
            }
            86..93 => {
                let outcome = if present { Outcome::Exists } else { Outcome::Inserted };
                store.entry(key_number).or_insert_with(|| value.clone());
                (Call::Insert { key, value }, outcome)
            }
            _ => {
                store.remove(&key_number);
                let outcome = if present { Outcome::Removed } else { Outcome::Absent };
                (Call::Remove { key }, outcome)
            }
        };
        // One operation in a thousand is never answered.
        let response = (random.below(1000) > 0).then_some(Response { at: it.responded, outcome });
        operations.push(Operation { client: it.client, call, invoked: it.invoked, response, group: None });
    }
    operations
}

/// Makes a late get answer what it would have answered much earlier.
fn break_one(operations: &mut [Operation]) {
    let length = operations.len();
    let stale =
        operations[..length / 2].iter().rev().find_map(|operation| match (&operation.call, &operation.response) {
            (Call::Get { key }, Some(Response { outcome: Outcome::Value(Some(value)), .. })) => {
                Some((key.clone(), value.clone()))
            }
            _ => None,
        });
    let Some((stale_key, stale_value)) = stale else {
        return;
    };
    let late = operations[length * 9 / 10..].iter_mut().find(|operation| {
        matches!(&operation.call, Call::Get { key } if *key == stale_key) && operation.response.is_some()
    });
    if let Some(response) = late.and_then(|operation| operation.response.as_mut()) {
        response.outcome = Outcome::Value(Some(stale_value));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = [50, 10_000, 8];
    let mut broken = false;
    for (position, argument) in std::env::args().skip(1).enumerate() {
        match numbers.get_mut(position) {
            Some(number) => *number = argument.parse()?,
            None => broken = argument == "broken",
        }
    }
    let [clients, operations, keys] = numbers;
    let mut random = Random(1);
    let planned = plan(&mut random, clients, operations);
    let mut operations = history(&mut random, &planned, keys);
    if broken {
        break_one(&mut operations);
    }
    let history = History::new(operations)?;
    let started = Instant::now();
    let report = check(&history, &Limits::default());
    let elapsed = started.elapsed();
    println!("{report}");
    println!("{clients} clients, {keys} keys: checked in {:.3} s", elapsed.as_secs_f64());
    let expected = if broken { Verdict::Violation } else { Verdict::Ok };
    if report.verdict != expected {
        return Err(format!("the verdict is {:?}, not {expected:?}", report.verdict).into());
    }
    Ok(())
}
