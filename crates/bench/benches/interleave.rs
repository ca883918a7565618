//! Does it pay to let other coroutines run while a cache line comes? Gets of hash indexes on the memory fabric, with an injected
//! latency of each cache line, as memory behind a CXL link has it.
//!
//! `interleave [KEYS] [OPERATIONS] [ROUNDS]`, 1,000,000 keys, 300,000 operations, and the best of 3 rounds by default. A number
//! is the time of the run for each operation, with the driver, of one thread; in each pair, the first one carries each batch out
//! when it is posted, the second one fetches it ahead and lets other coroutines run.

use farindex::{IndexConfig, Pool};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::{Control, Distribution, Plan};
use farindex_fabric::MemoryFabric;
use std::sync::Arc;
use std::time::Duration;

/// Injected latencies of a cache line, in nanoseconds.
const LATENCIES: [u64; 5] = [0, 100, 300, 600, 1000];
/// Coroutines, and keys of a get.
const SHAPES: [(usize, usize); 4] = [(1, 1), (8, 1), (32, 1), (1, 128)];

fn argument(at: usize, default: u64) -> u64 {
    // `cargo bench` adds a flag of its own.
    let mut arguments = std::env::args().skip(1).filter(|text| !text.starts_with("--"));
    arguments.nth(at).map_or(default, |text| text.parse().expect("a whole number"))
}

fn plan(keys: u64, ops: u64, (clients, many): (usize, usize)) -> Plan {
    let workload = "get".parse().expect("a workload");
    let distribution = Some(Distribution::Uniform);
    Plan { keys, ops: Some(ops), clients, many, load: false, distribution, audit: false, ..Plan::new(workload) }
}

fn main() {
    let (keys, ops, rounds) = (argument(0, 1_000_000), argument(1, 300_000), argument(2, 3));
    println!("{keys} keys of 8 + 8 bytes, one thread: ns for each get, at once and interleaved");
    let head: String =
        SHAPES.iter().map(|(clients, many)| format!("{:>18}", format!("{clients} x {many} keys"))).collect();
    println!("  {:22} {head}", "");
    for kind in ["shard", "linear"] {
        let config = IndexConfig::of_kind(kind).expect("a kind");
        let load = Plan { load: true, ..plan(keys, ops.min(1000), SHAPES[0]) };
        let fabric = MemoryFabric::new(1, load.pool_bytes().next_multiple_of(4096)).expect("memory");
        let pool = Pool::builder().unseeded().create_on(Arc::new(fabric.clone())).expect("a pool");
        farindex_bench::run(
            &PoolIndexBench::create(pool, "hash", &config).expect("an index"),
            &load,
            &Control::default(),
        )
        .expect("a load");
        for latency in LATENCIES {
            let slow = fabric.with_line_latency(Duration::from_nanos(latency));
            let pool = Pool::attach(Arc::new(slow)).expect("a pool");
            let mut best = [[f64::INFINITY; 2]; SHAPES.len()];
            for _ in 0..rounds.max(1) {
                for (best, shape) in best.iter_mut().zip(SHAPES) {
                    for (interleaves, best) in [false, true].into_iter().zip(best) {
                        pool.set_interleaving(interleaves);
                        let bench = PoolIndexBench::existing(pool.clone(), "hash");
                        let outcome =
                            farindex_bench::run(&bench, &plan(keys, ops, shape), &Control::default()).expect("a run");
                        assert_eq!(
                            outcome.wrong.total() + outcome.errors.total(),
                            0,
                            "{} {}",
                            outcome.wrong,
                            outcome.errors
                        );
                        *best = best.min(1e9 / outcome.measured.throughput());
                    }
                }
            }
            let row: String =
                best.iter().map(|[at_once, other]| format!("{:>18}", format!("{at_once:.0}, {other:.0}"))).collect();
            println!("  {:22} {row}", format!("{kind}, {latency} ns a line"));
        }
    }
}
