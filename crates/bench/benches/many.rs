//! Lookups of 8-byte slots in the process's own memory, by one thread: one after the other, many at a time, and the
//! bare READs of both.
//!
//! `many [SLOTS] [LOOKUPS] [ROUNDS]`, 1,048,576 slots filled to 65 %, 500,000 lookups, and the medians of 5 rounds by
//! default. All four take turns in each round, so what else the machine does hits all of them.

use farindex::linear::Config;
use farindex::{IndexConfig, Insert, PointIndex, Pool};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::time::Instant;

/// Share of the slots that are filled.
const LOAD: f64 = 0.65;
/// Lookups that are asked for at once.
const TOGETHER: usize = 128;

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().nth(at).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Returns a number below `end`.
fn below(random: &mut SplitMix64, end: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(end)) >> 64) as u64
}

/// Four bytes of key and two of value: with its lengths and its kind that is a slot of 8 bytes.
fn record(i: u64) -> ([u8; 4], [u8; 2]) {
    ((i as u32).to_le_bytes(), (i as u16 ^ 0x5A5A).to_le_bytes())
}

/// READs of so many bytes at drawn places, so many behind one doorbell.
async fn bare(endpoint: &Endpoint, len: usize, lookups: u64, together: usize, end: u64) -> Result<u64, FabricError> {
    let span = endpoint.span(OpKind::Other);
    let (mut random, mut sum) = (SplitMix64::seed_from_u64(7), 0u64);
    let mut left = lookups as usize;
    while left > 0 {
        let count = left.min(together);
        let mut batch = span.batch();
        let at = |random: &mut SplitMix64| RemotePtr::new(NodeId::new(0), below(random, (end - len as u64) / 8) * 8);
        let tickets: Vec<_> = (0..count).map(|_| batch.read(at(&mut random), len)).collect();
        let mut done = batch.post().await?;
        for ticket in tickets {
            sum = sum.wrapping_add(done.buf(ticket).words().first().copied().unwrap_or_default());
        }
        left -= count;
    }
    Ok(sum)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let (slots, lookups, rounds) = (argument(1, 1 << 20), argument(2, 500_000), argument(3, 5));
    let size = slots * 16 + (64 << 20);
    let pool = Pool::in_memory(size).expect("a pool");
    let session = pool.session().expect("a session");
    // The paper's network, and lookups that find their keys.
    let config = Config { slots, width: 8, hits: 1.0, ..Config::default() };
    session.create_index("many", IndexConfig::Linear(config)).expect("an index");
    let index = session.open_index("many").expect("the index").async_handle();
    let keys = (slots as f64 * LOAD) as u64;
    session.block_on(async {
        for i in 0..keys {
            let (key, value) = record(i);
            assert_eq!(index.insert(&key, &value).await, Ok(Insert::Inserted));
        }
    });
    let endpoint = session.raw().endpoint().clone();
    let draw = |seed| {
        let mut random = SplitMix64::seed_from_u64(seed);
        (0..lookups).map(|_| record(below(&mut random, keys))).collect::<Vec<_>>()
    };
    let before = endpoint.meter();
    let asked = draw(1);
    let single = |asked: &[([u8; 4], [u8; 2])]| {
        session.block_on(async {
            for (key, value) in asked {
                assert_eq!(index.get(key).await.expect("no error").as_deref(), Some(value.as_slice()));
            }
        });
    };
    let many = |asked: &[([u8; 4], [u8; 2])]| {
        session.block_on(async {
            for part in asked.chunks(TOGETHER) {
                let keys: Vec<_> = part.iter().map(|(key, _)| key.as_slice()).collect();
                let values = index.get_many(&keys).await.expect("no error");
                for ((_, value), found) in part.iter().zip(values) {
                    assert_eq!(found.as_deref(), Some(value.as_slice()));
                }
            }
        });
    };
    single(&asked);
    let total = (endpoint.meter() - before).of(OpKind::Get).total;
    let len = (total.bytes_read as f64 / total.reads as f64 / 8.0).round() as usize * 8;
    println!(
        "{keys} records in {slots} slots; {:.3} READs of {len} bytes for each lookup",
        total.reads as f64 / lookups as f64
    );
    let raw = |together| {
        session.block_on(bare(&endpoint, len, lookups, together, slots * 8)).expect("no error");
    };
    let mut taken = [const { Vec::new() }; 4];
    for round in 0..rounds {
        let asked = draw(round + 2);
        let works: [&dyn Fn(); 4] = [&|| single(&asked), &|| many(&asked), &|| raw(1), &|| raw(TOGETHER)];
        for (work, taken) in works.into_iter().zip(&mut taken) {
            let began = Instant::now();
            work();
            taken.push(began.elapsed().as_secs_f64() * 1e9 / lookups as f64);
        }
    }
    let [one, many, raw_one, raw_many] = taken.map(median);
    println!("get, one after the other     {one:7.1} ns");
    println!("get_many, {TOGETHER} at a time      {many:7.1} ns");
    println!("READ, one after the other    {raw_one:7.1} ns");
    println!("READ, {TOGETHER} behind a doorbell  {raw_many:7.1} ns");
    println!("get_many over get            {:7.2} times as fast", one / many);
    println!("get over its READs           {:7.2} times as long", one / raw_one);
    println!("get_many over its READs      {:7.2} times as long", many / raw_many);
}
