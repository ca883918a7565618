//! The local lock table: histories on the simulator and of real threads, cancellations, cost; and its published faults,
//! which the checker must detect.

mod table;
mod threads;
mod toy;

use self::toy::Toy;
use farindex_check::{Call, ClientLog, History, Limits, Outcome, Recorder, Stamps, Verdict, check};
use farindex_index::coalesce::{Coalesced, Coalescer, Fault};
use farindex_index::{
    IndexError, Insert, Lifecycle, PointIndex, PoolIndex, Remove, RemoveIf, Replace, Shard, Update, Upsert, shard,
};
use farindex_pool::{Client, Pool, PoolOptions};
use farindex_sim::{Config, ODDS, Sim, SimRng};
use farindex_testkit::until_in_flight;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

async fn answer(index: &impl PointIndex, call: &Call) -> Result<Outcome, IndexError> {
    Ok(match call {
        Call::Get { key } => Outcome::Value(index.get(key).await?.map(|value| value.to_vec())),
        Call::Insert { key, value } => match index.insert(key, value).await? {
            Insert::Inserted => Outcome::Inserted,
            Insert::Exists => Outcome::Exists,
        },
        Call::Update { key, value } => match index.update(key, value).await? {
            Update::Updated => Outcome::Updated,
            Update::Absent => Outcome::Absent,
        },
        Call::Upsert { key, value } => match index.upsert(key, value).await? {
            Upsert::Inserted => Outcome::Inserted,
            Upsert::Written => Outcome::Written,
            Upsert::Updated => Outcome::Updated,
        },
        Call::Remove { key } => match index.remove(key).await? {
            Remove::Removed => Outcome::Removed,
            Remove::Absent => Outcome::Absent,
        },
        Call::Replace { key, expected, value } => match index.replace(key, expected, value).await? {
            Replace::Replaced => Outcome::Replaced,
            Replace::Differs => Outcome::Differs,
            Replace::Absent => Outcome::Absent,
        },
        Call::RemoveIf { key, expected } => match index.remove_if(key, expected).await? {
            RemoveIf::Removed => Outcome::Removed,
            RemoveIf::Differs => Outcome::Differs,
            RemoveIf::Absent => Outcome::Absent,
        },
        Call::Scan { .. } => unreachable!("no scans are asked for"),
    })
}

/// How one coroutine works: operations, keys, and one in how many of them is dropped before its end (0: none).
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) ops: u64,
    pub(crate) keys: u64,
    pub(crate) cancel: u64,
}

/// A get of three keys, of which some may be the same: each is an operation of its own.
async fn work_on_many(index: &impl PointIndex, rng: &mut SimRng, keys: u64, log: &RefCell<ClientLog>, stamps: &Stamps) {
    let keys: Vec<_> = (0..3).map(|_| vec![b'a' + rng.below(keys) as u8]).collect();
    let now = stamps.tick();
    let tickets: Vec<_> = keys.iter().map(|key| log.borrow_mut().invoke(Call::Get { key: key.clone() }, now)).collect();
    let asked: Vec<_> = keys.iter().map(Vec::as_slice).collect();
    let Ok(values) = index.get_many(&asked).await else { return };
    let now = stamps.tick();
    for (ticket, value) in tickets.into_iter().zip(values) {
        log.borrow_mut().complete(ticket, now, Outcome::Value(value.map(|value| value.to_vec())));
    }
}

/// One coroutine: random operations on few keys, with values that no other operation has. What it expects is what it has
/// seen last.
pub(crate) async fn work(
    index: &impl PointIndex,
    mut rng: SimRng,
    work: Work,
    number: u64,
    log: &RefCell<ClientLog>,
    stamps: &Stamps,
) {
    let mut seen = BTreeMap::new();
    for i in 0..work.ops {
        let patience = if work.cancel > 0 && rng.below(work.cancel) == 0 { rng.below(4) } else { u64::MAX };
        if rng.below(6) == 0 {
            until_in_flight(patience, work_on_many(index, &mut rng, work.keys, log, stamps)).await;
            continue;
        }
        let key = vec![b'a' + rng.below(work.keys) as u8];
        let value = ((number << 20 | i) as u32).to_le_bytes().to_vec();
        let expected = seen.get(&key).cloned().unwrap_or_default();
        let call = match rng.below(13) {
            10 | 11 => Call::Replace { key: key.clone(), expected, value },
            12 => Call::RemoveIf { key: key.clone(), expected },
            0..=3 => Call::Get { key: key.clone() },
            4 => Call::Insert { key: key.clone(), value },
            5 => Call::Update { key: key.clone(), value },
            6..=8 => Call::Upsert { key: key.clone(), value },
            _ => Call::Remove { key: key.clone() },
        };
        let ticket = log.borrow_mut().invoke(call.clone(), stamps.tick());
        // What failed, and what was cancelled, may have taken effect.
        if let Some(Ok(outcome)) = until_in_flight(patience, answer(index, &call)).await {
            match (&outcome, call.value()) {
                (Outcome::Value(Some(value)), _) => _ = seen.insert(key, value.clone()),
                (Outcome::Inserted | Outcome::Updated | Outcome::Written | Outcome::Replaced, Some(value)) => {
                    seen.insert(key, value.to_vec());
                }
                _ => {}
            }
            log.borrow_mut().complete(ticket, stamps.tick(), outcome);
        }
    }
}

/// What one seed's run is made of.
#[derive(Clone, Copy)]
struct Run {
    fault: Fault,
    cancel: u64,
    errors: u32,
}

/// Two compute nodes, each with a table, two threads and three coroutines on each.
fn toy_history(seed: u64, run: Run) -> History {
    let sim = Sim::new(seed, Config { errors: run.errors, ..Config::default() }).unwrap();
    let (recorder, stamps) = (Recorder::new(), Rc::new(Stamps::new()));
    let mut tables = Vec::new();
    for node in 0..2 {
        let client = sim.client();
        let table = Arc::new(Coalescer::new(run.fault));
        tables.push(Arc::clone(&table));
        for thread in 0..2 {
            let index = Rc::new(Coalesced::new(Toy(client.connect()), Arc::clone(&table), 1));
            for coroutine in 0..3 {
                let number = node * 6 + thread * 3 + coroutine;
                let (index, stamps) = (Rc::clone(&index), Rc::clone(&stamps));
                let log = RefCell::new(recorder.client(number));
                let todo = Work { ops: 6, keys: 2, cancel: run.cancel };
                sim.spawn(&client, async move {
                    work(&*index, SimRng::new(seed, 100 + number), todo, number, &log, &stamps).await;
                });
            }
        }
    }
    sim.run().assert_done();
    for table in &tables {
        assert_eq!(table.busy_keys(), 0, "seed {seed}: entries of idle keys");
    }
    drop(sim);
    recorder.finish().unwrap()
}

fn verdict(history: &History) -> Verdict {
    check(history, &Limits::default()).verdict
}

#[test]
fn linearizable_on_the_simulator() {
    for seed in 0..2000 {
        let cancel = if seed % 3 == 0 { 5 } else { 0 };
        let errors = if seed % 4 == 1 { ODDS / 32 } else { 0 };
        let history = toy_history(seed, Run { fault: Fault::None, cancel, errors });
        let report = check(&history, &Limits::default());
        assert_eq!(report.verdict, Verdict::Ok, "seed {seed}\n{report}");
    }
}

fn is_detected(fault: Fault) -> u64 {
    let detected_by =
        |seed: &u64| verdict(&toy_history(*seed, Run { fault, cancel: 0, errors: 0 })) == Verdict::Violation;
    let seed = (0..2000).find(detected_by).expect("detected within 2000 seeds");
    println!("{fault:?} is detected by seed {seed}");
    seed
}

#[test]
fn late_readers_are_detected() {
    is_detected(Fault::LateReaders);
}

#[test]
fn dropped_values_are_detected() {
    is_detected(Fault::DroppedValues);
}

/// The same over SHARD.
#[test]
fn linearizable_over_shard() {
    for seed in 0..60 {
        let sim = Sim::new(seed, Config::default()).unwrap();
        let (recorder, stamps) = (Recorder::new(), Rc::new(Stamps::new()));
        let fabric = sim.fabric();
        let endpoint = sim.harness().connect();
        let options = PoolOptions { client_slots: 4, ..PoolOptions::unseeded() };
        let pool = sim.block_on(async move { Pool::create(fabric, &endpoint, &options).await.unwrap() }).unwrap();
        for node in 0..2 {
            let process = sim.client();
            let (endpoint, identity) = (process.connect(), process.identity());
            let (pool, stamps, recorder) = (pool.clone(), Rc::clone(&stamps), recorder.clone());
            let other = process.connect();
            sim.spawn(&process, async move {
                let client = Client::register(&pool, identity, &endpoint).await.unwrap();
                let table = Arc::new(Coalescer::default());
                let mut indexes = Vec::new();
                for endpoint in [endpoint, other] {
                    let session = Rc::new(client.session(endpoint.clone()));
                    let opened = loop {
                        let made = match node {
                            0 if indexes.is_empty() => {
                                let config = shard::Config { initial_bits: 0, ..shard::Config::default() };
                                Shard::create(&session, "a", &config).await
                            }
                            _ => Shard::open(&session, "a").await,
                        };
                        match made {
                            Ok(index) => break index,
                            Err(_) => endpoint.sleep(std::time::Duration::from_micros(50)).await,
                        }
                    };
                    let uid = opened.uid();
                    indexes.push(Coalesced::new(opened, Arc::clone(&table), uid));
                }
                let all = (0..6).map(async |coroutine| {
                    let number = node * 6 + coroutine;
                    let log = RefCell::new(recorder.client(number));
                    let todo = Work { ops: 8, keys: 2, cancel: 0 };
                    let index = &indexes[coroutine as usize % 2];
                    work(index, SimRng::new(seed, 100 + number), todo, number, &log, &stamps).await;
                });
                farindex_testkit::world::join_all(all).await;
            });
        }
        sim.run().assert_done();
        drop(sim);
        let report = check(&recorder.finish().unwrap(), &Limits::default());
        assert_eq!(report.verdict, Verdict::Ok, "seed {seed}\n{report}");
    }
}
