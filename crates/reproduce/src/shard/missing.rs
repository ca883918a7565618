//! Figure 6b of SHARD: keys that RACE loses, as published and repaired, on a simulated cluster.

use super::Args;
use crate::report::{Error, Report, Watch};
use farindex::IndexConfig;
use farindex_bench::driver::cluster::Cluster;
use farindex_bench::{Plan, Workload};
use farindex_index::race::{Config, Variant, segment::Shape};
use farindex_sim::Preset;
use serde::Serialize;
use serde_json::json;

const FIGURE_6: &str = "H. Zha et al., SHARD, PVLDB 19(4), 2025, Figure 6b and section 2.4 (missing errors of RACE)";
const CLAIM_6: &str = "16 threads insert; 2.1 % to 5.4 % of the keys are missing, across different segment sizes";
const NOT_MEASURED: &str =
    "not measured: 6a (duplicates; `farindex check --index race --variant published` finds them), 6c, 6d";

/// Threads of the paper's experiment, and coroutines of each: 1 to 4 in the paper. As many clients are in the midst of
/// an insert at once, and only what the others put into the new segment meanwhile can leave an entry without room.
const THREADS: usize = 16;
const COROUTINES: usize = 4;
/// Groups of the segments that are compared.
const GROUPS: [u64; 5] = [8, 16, 32, 64, 128];

/// One size of segments.
#[derive(Debug, Serialize)]
struct Line {
    segment_bytes: usize,
    /// Keys that were inserted, and not found when nobody changed anything any more.
    published: u64,
    repaired: u64,
    published_share: f64,
}

/// How many keys are missing.
fn missing(config: Config, plan: &Plan, watch: Watch<'_>) -> Result<u64, Error> {
    let preset = Preset::shard();
    let (compute_nodes, memory_nodes) = (preset.compute_nodes, preset.memory_nodes);
    let node_len = (plan.pool_bytes() / memory_nodes as u64 + ((plan.threads as u64) << 22)).next_multiple_of(4096);
    let config = IndexConfig::Race(config);
    let (coalesce, blind, series, history) = (false, false, None, None);
    let cluster = Cluster {
        preset,
        compute_nodes,
        memory_nodes,
        node_len,
        config,
        coalesce,
        blind,
        charge: Default::default(),
        series,
        history,
    };
    let simulation = watch.simulate(&cluster, plan)?;
    match simulation.outcome.errors.total() {
        0 => Ok(simulation.outcome.wrong.total()),
        _ => Err(Error::Wrong(format!("{}", simulation.outcome.errors))),
    }
}

pub(super) fn figure(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.one_number("figure 6", 100_000)?;
    let workload: Workload = "ycsb-load".parse().map_err(|why: String| Error::Bug(why))?;
    let clients = args.clients.unwrap_or(THREADS * COROUTINES);
    // Every key is read once at the end, while nothing changes: a wrong answer is a key that is missing.
    let plan =
        Plan { keys, clients, threads: THREADS.min(clients), seed: args.seed, audit: true, ..Plan::new(workload) };
    plan.check()?;
    let mut lines = Vec::new();
    for groups in GROUPS {
        let mut found = [0; 2];
        for (found, variant) in found.iter_mut().zip([Variant::Published, Variant::Repaired]) {
            let config = Config { initial_depth: 1, groups, variant, ..Config::default() };
            let missing = missing(config, &plan, watch)?;
            *found = missing;
        }
        let [published, repaired] = found;
        let published_share = published as f64 / keys as f64;
        lines.push(Line { segment_bytes: Shape { groups }.bytes(), published, repaired, published_share });
    }
    let lossless = lines.iter().all(|line| line.repaired == 0);
    let result = json!({
        "figure": 6,
        "source": FIGURE_6,
        "claim": CLAIM_6,
        "keys": keys,
        "clients": clients,
        "seed": args.seed,
        "lines": lines,
        "not_measured": NOT_MEASURED,
    });
    let text = {
        let mut text = format!(
            "SHARD, Figure 6b: {keys} keys inserted into RACE by {clients} clients, on a simulated cluster\n\n\
             the paper:\n  {CLAIM_6}\nours, predicted:\n  segment (bytes)  missing, as published    missing, repaired\n"
        );
        for line in &lines {
            let share = line.published_share * 100.0;
            text += &format!(
                "  {:>15}  {:>10} ({share:>5.2} %)  {:>19}\n",
                line.segment_bytes, line.published, line.repaired
            );
        }
        text + &format!("  {NOT_MEASURED}\n")
    };
    Report::new(&result, text, lossless)
}
