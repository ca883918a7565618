//! Hash indexes of far memory, on the memory fabric, and a hash map of local memory (`dashmap`): gets, updates, and gets
//! of 128 keys at once, with keys and values of 8 bytes, by one and two threads of 1, 8 and 32 coroutines each.
//!
//! `hash [KEYS] [OPERATIONS] [ROUNDS]`, 1,000,000 keys, 1,000,000 operations, and the best of 3 rounds by default. All
//! take turns in each round, so what else the machine does hits all of them. A number is the time of the run for each
//! operation of a thread, with the driver, which draws keys and verifies answers: the line "nothing" is the driver
//! alone.

use farindex::{IndexConfig, Pool};
use farindex_bench::baseline::{LocalMap, Null};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::{Bench, Control, Distribution, Plan};

/// Keys of one call of `get_many`.
const TOGETHER: usize = 128;

fn argument(at: usize, default: u64) -> u64 {
    // `cargo bench` adds a flag of its own.
    let mut arguments = std::env::args().skip(1).filter(|text| !text.starts_with("--"));
    arguments.nth(at).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Nanoseconds of an operation of one thread in each plan, one after the other on one index.
fn measure<B: Bench>(bench: &B, name: &str, plans: &[Plan]) -> Vec<f64> {
    let one = |plan: &Plan| {
        let outcome = farindex_bench::run(bench, plan, &Control::default()).expect("a run");
        let faults = outcome.wrong.total() + outcome.errors.total();
        assert_eq!(faults, 0, "{name}: {} {}", outcome.wrong, outcome.errors);
        1e9 * plan.threads as f64 / outcome.measured.throughput()
    };
    plans.iter().map(one).collect()
}

fn far(kind: &str, plans: &[Plan]) -> Vec<f64> {
    let config = IndexConfig::of_kind(kind).expect("a kind");
    let bytes = plans.iter().map(Plan::pool_bytes).max().unwrap_or_default().next_multiple_of(4096);
    let pool = Pool::builder().unseeded().node_bytes(bytes).in_memory(1).expect("a pool");
    measure(&PoolIndexBench::create(pool, "hash", &config).expect("an index"), kind, plans)
}

type Run = fn(&str, &[Plan]) -> Vec<f64>;

const SUBJECTS: [(&str, Run); 4] = [
    ("dashmap", |name, plans| measure(&LocalMap::default(), name, plans)),
    ("nothing", |name, plans| measure(&Null, name, plans)),
    ("shard", far),
    ("linear", far),
];

/// Gets with which the index is loaded, and then each column.
fn plans(keys: u64, ops: u64, threads: usize) -> (Vec<String>, Vec<Plan>) {
    let plan = |workload: &str, coroutines: usize, many| Plan {
        keys,
        ops: Some(ops),
        threads,
        clients: threads * coroutines,
        many,
        load: false,
        distribution: Some(Distribution::Uniform),
        audit: false,
        ..Plan::new(workload.parse().expect("a workload"))
    };
    let mut names = Vec::new();
    let mut plans = vec![Plan { load: true, ops: Some(ops.min(1000)), ..plan("get", 1, 1) }];
    for workload in ["get", "update"] {
        for coroutines in [1, 8, 32] {
            names.push(format!("{workload} {coroutines}"));
            plans.push(plan(workload, coroutines, 1));
        }
    }
    names.push(format!("{TOGETHER} keys"));
    plans.push(plan("get", 1, TOGETHER));
    (names, plans)
}

fn main() {
    let (keys, ops, rounds) = (argument(0, 1_000_000), argument(1, 1_000_000), argument(2, 3));
    for threads in [1, 2] {
        let (names, plans) = plans(keys, ops, threads);
        let mut best = vec![vec![f64::INFINITY; names.len()]; SUBJECTS.len()];
        for _ in 0..rounds.max(1) {
            for ((name, run), best) in SUBJECTS.iter().zip(&mut best) {
                for (best, taken) in best.iter_mut().zip(run(name, &plans).into_iter().skip(1)) {
                    *best = best.min(taken);
                }
            }
        }
        println!(
            "{keys} keys of 8 + 8 bytes, {threads} thread(s): ns for each operation of a thread, and times dashmap"
        );
        println!("  {:8} {}", "", names.iter().map(|name| format!("{name:>14}")).collect::<String>());
        for ((name, _), taken) in SUBJECTS.iter().zip(&best) {
            let cell = |(ns, local): (&f64, &f64)| format!("{:>14}", format!("{ns:.0} ({:.2})", ns / local));
            println!("  {name:8} {}", taken.iter().zip(&best[0]).map(cell).collect::<String>());
        }
    }
}
