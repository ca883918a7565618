//! Gets of DEX by the owner of the keys, whose nodes are all cached, in the process's own memory: no get takes a verb.
//!
//! `cargo bench -p farindex-bench --bench dex_get -- [KEYS] [GETS] [ROUNDS]`, 100,000 random keys of 8 bytes with values of
//! 8 bytes, 500,000 gets of each thread, and the medians of 5 rounds by default, with one thread and with two. Every value is
//! checked.

use farindex::dex::Config;
use farindex::{IndexConfig, Insert, PointIndex, Pool, Session};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::time::Instant;

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().filter(|text| text != "--bench").nth(at).map_or(default, |text| text.parse().expect("a number"))
}

fn key(i: u64) -> [u8; 8] {
    SplitMix64::seed_from_u64(i).next_u64().to_be_bytes()
}

/// Gets random keys; returns the nanoseconds of each get, and the READs of all.
fn gets(session: &Session, keys: u64, gets: u64) -> (f64, u64) {
    let index = session.open_index("dex").expect("the index").async_handle();
    let endpoint = session.raw().endpoint();
    session.block_on(async {
        // The owner's lease counts from its last heartbeat.
        session.raw().client().tick(endpoint).await.expect("a heartbeat");
        let (mut random, before, start) = (SplitMix64::seed_from_u64(7), endpoint.meter(), Instant::now());
        for _ in 0..gets {
            let i = random.next_u64() % keys;
            let value = index.get(&key(i)).await.expect("a get");
            assert_eq!(value.as_deref(), Some(&i.to_le_bytes()[..]));
        }
        let nanos = start.elapsed().as_nanos() as f64 / gets as f64;
        (nanos, (endpoint.meter() - before).total().reads)
    })
}

fn main() {
    let (keys, count, rounds) = (argument(1, 100_000), argument(2, 500_000), argument(3, 5));
    let pool = Pool::in_memory(keys * 64 + (64 << 20)).expect("a pool");
    let session = pool.session().expect("a session");
    let config = Config { leaf_admission: 100, ..Config::default() };
    session.create_index("dex", IndexConfig::Dex(config)).expect("an index");
    let index = session.open_index("dex").expect("the index").async_handle();
    session.block_on(async {
        for i in 0..keys {
            assert_eq!(index.insert(&key(i), &i.to_le_bytes()).await, Ok(Insert::Inserted));
        }
        for i in 0..keys {
            assert!(index.get(&key(i)).await.expect("a get").is_some());
        }
    });
    for threads in [1, 2] {
        let mut nanos = Vec::new();
        let mut reads = 0;
        for _ in 0..rounds {
            let costs: Vec<_> = std::thread::scope(|scope| {
                let pool = &pool;
                let run = move || gets(&pool.session().expect("a session"), keys, count);
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                all.into_iter().map(|thread| thread.join().expect("gets")).collect()
            });
            nanos.push(costs.iter().map(|(nanos, _)| nanos).sum::<f64>() / threads as f64);
            reads += costs.iter().map(|(_, reads)| reads).sum::<u64>();
        }
        nanos.sort_by(f64::total_cmp);
        println!("{threads} threads: {:.0} ns a get, {reads} READs", nanos[nanos.len() / 2]);
    }
}
