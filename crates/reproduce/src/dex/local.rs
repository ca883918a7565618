//! Figure 11: a tree whose nodes are all in the cache, compared with an ordered map in local memory, on real cores.

use super::Args;
use super::paper::{OVER_LOCAL, SIZES, SOURCE};
use super::variants::{Variant, workloads};
use crate::report::{Error, Report, Watch};
use crate::sephash::paper::Comparison;
use farindex::Pool;
use farindex_bench::baseline::{LocalWords, Masstree};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::record::Identity;
use farindex_bench::workload::{Distribution, ValueSize};
use farindex_bench::{Outcome, Plan, Row, Workload};
use serde_json::json;

/// Bytes of a pool, and more for each key.
const POOL: u64 = 64 << 20;
const ROOM: u64 = 80;
/// The paper's workload.
const WORKLOAD: (&str, &str) = ("read-intensive", "get=95,update=5");

/// The record of a run, and the nanoseconds of an operation without the driver.
fn checked(outcome: &Outcome, index: &str) -> Result<(Row, f64), Error> {
    match outcome.wrong.total() + outcome.errors.total() {
        0 => {
            let identity = Identity { index: index.to_owned(), fabric: "memory".to_owned() };
            Ok((Row::new(identity, outcome), outcome.measured.latency_of_all().mean_ns()))
        }
        _ => Err(Error::Wrong(format!("{index}: {} {}", outcome.wrong, outcome.errors))),
    }
}

/// The local map and DEX, with a mix of operations: their records, and the nanoseconds of an operation.
fn both(
    args: &Args,
    watch: Watch<'_>,
    (mix, distribution): (&str, Distribution),
    (keys, threads): (u64, usize),
) -> Result<[(Row, f64); 2], Error> {
    let workload: Workload = mix.parse().map_err(|why: String| Error::Bug(why))?;
    let plan = Plan {
        keys,
        threads,
        clients: threads,
        key_size: SIZES.0,
        value_size: ValueSize::fixed(SIZES.1),
        distribution: Some(distribution),
        warmup: keys,
        ops: args.ops,
        seed: args.seed,
        audit: false,
        ..Plan::new(workload)
    };
    let local = checked(&watch.run(&LocalWords::<Masstree>::default(), &plan)?, "masstree in local memory")?;
    let bytes = (POOL + keys * ROOM).next_multiple_of(4096);
    let pool = Pool::builder().unseeded().node_bytes(bytes).in_memory(1)?;
    // Every leaf is admitted, and there is room for all.
    let all = Variant::new("DEX", "dex", json!({ "leaf_admission": 100 })).config(bytes)?;
    let dex = checked(&watch.run(&PoolIndexBench::create(pool, "reproduce", &all)?, &plan)?, "dex")?;
    Ok([local, dex])
}

/// Figure 11.
pub(super) fn figure(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.keys.unwrap_or(1_000_000);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = if args.clients.is_empty() { vec![1, cores] } else { args.clients.clone() };
    threads.dedup();
    let (mut text, mut rows, mut comparison) = (String::new(), Vec::new(), Vec::new());
    for (name, mix) in workloads(args, &[WORKLOAD])? {
        for (skew, distribution) in [("skewed", Distribution::ScrambledZipfian), ("uniform", Distribution::Uniform)] {
            for threads in &threads {
                let place = format!("{name}, {skew}, {threads} threads");
                let [local, dex] = both(args, watch, (mix, distribution), (keys, *threads))?;
                // As many operations in the same time: the driver, which takes as long in both, is left out.
                let ratio = local.1 / dex.1;
                for (row, ns) in [&local, &dex] {
                    let verbs: f64 =
                        row.kinds.values().map(|kind| (kind.reads + kind.writes + kind.cas) * kind.count as f64).sum();
                    text += &format!(
                        "  {:58} {:>9.3} M ops/s {ns:>7.0} ns {:>7.3} verbs\n",
                        format!("{place}: {}", row.index),
                        row.throughput_ops_per_s / 1e6,
                        // A sum of nothing is a negative zero.
                        (verbs + 0.0) / row.ops.max(1) as f64
                    );
                }
                let is_papers = name == WORKLOAD.0 && distribution == Distribution::ScrambledZipfian;
                comparison.push((format!("{place}: DEX over local memory"), ratio, is_papers));
                rows.push(json!({
                    "workload": name, "skew": skew, "threads": threads, "local": local.0, "local_ns": local.1, "dex": dex.0,
                    "dex_ns": dex.1, "ratio": ratio,
                }));
            }
        }
    }
    let mut lines = String::new();
    for (what, ours, is_papers) in comparison {
        lines += &match is_papers {
            true => format!("{}\n", Comparison::new(what, OVER_LOCAL, ours).line()),
            false => format!("{what}: {ours:.2}\n"),
        };
    }
    let text = format!(
        "DEX, Figure 11: {keys} keys, all nodes in the cache of one compute node, on {cores} cores of this machine\nthe paper \
         has 36 threads, and a B+ tree in local memory; here it is a trie of B+ trees (the crate masstree).\nThe memory \
         fabric answers verbs at once: a WRITE costs as much as a store. The ratios are those of the times of an operation; \
         M ops/s have the driver in them.\n\n{text}\n{lines}paper: {SOURCE}, Figure 11, section 8.3\n"
    );
    Report::new(&json!({ "figure": 11, "source": SOURCE, "keys": keys, "seed": args.seed, "rows": rows }), text, true)
}
