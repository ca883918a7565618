//! Table 3's other rows and Figure 12 of SHARD: compared with RACE and SepHash on one simulated cluster.

use super::Args;
use super::tables::TABLE_3;
use crate::lab::{Lab, Measured, Run, SCANS, table};
use crate::report::{Error, Report, Watch};
use crate::sephash::paper::Comparison;
use farindex::{IndexConfig, race, sephash, shard};
use farindex_bench::Distribution;
use farindex_sim::Preset;
use serde_json::json;

const FIGURE_12: &str = "H. Zha et al., SHARD, PVLDB 19(4), 2025, Figure 12 and section 4.2 (YCSB)";
const CLAIMS_12: [&str; 2] = [
    "uniform: SHARD up to 14.5 M/s; 1.6x RACE, 1.9x SepHash",
    "Zipfian (0.99), read-intensive: 1.8x RACE, 1.9x SepHash; SepHash is low where updates are many, RACE in workload D",
];
/// SHARD over RACE and over SepHash, uniform and Zipfian.
const RATIOS: [(f64, f64); 2] = [(1.6, 1.9), (1.8, 1.9)];
const WORKLOADS: [&str; 5] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f"];

/// Round trips of search, insert, update and delete in Table 3.
const ROUND_TRIPS: [(&str, [f64; 4]); 3] =
    [("race", [2.03, 12.79, 3.03, 3.03]), ("sephash", [2.20, 11.56, 3.20, 3.20]), ("shard", [1.00, 2.59, 2.00, 2.00])];
const OPERATIONS: [(&str, &str); 4] =
    [("search", "get"), ("insert", "insert"), ("update", "update"), ("delete", "remove")];
const WITH_BLOCKS: &str = "ours counts every wait, maintenance included, and behind the + those for key-value blocks alone; whether the paper counts these for \
     RACE and SepHash, it does not say";

fn lab<'a>(args: &Args, watch: Watch<'a>) -> Lab<'a> {
    let preset = Preset::shard();
    Lab {
        per_node: preset.clients_per_node,
        preset,
        key_size: 8,
        value_size: 8,
        scan_length: SCANS,
        seed: args.seed,
        watch,
    }
}

/// SHARD, RACE, SepHash as shipped; all insert truly.
fn kinds() -> [IndexConfig; 3] {
    [
        IndexConfig::Shard(shard::Config::default()),
        IndexConfig::Race(race::Config { initial_depth: 4, ..race::Config::default() }),
        IndexConfig::SepHash(sephash::Config::default()),
    ]
}

fn clients(args: &Args) -> usize {
    let preset = Preset::shard();
    args.clients.unwrap_or(preset.compute_nodes * preset.clients_per_node)
}

/// Figure 12.
pub(super) fn figure(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let (keys, clients, lab) = (args.one_number("figure 12", 100_000)?, clients(args), lab(args, watch));
    let mut runs: Vec<(&str, &str, Vec<Measured>)> = Vec::new();
    for (distribution, name) in [(Distribution::Uniform, "uniform"), (Distribution::ScrambledZipfian, "Zipfian")] {
        for workload in WORKLOADS {
            // "Latest" is what makes D what it is.
            let distribution = (workload != "ycsb-d" || name == "uniform").then_some(distribution);
            let run = |config| {
                let coalesce = matches!(config, IndexConfig::Shard(_));
                let run = Run::load(config, keys, clients).then(workload, keys);
                // SHARD's last resize is lazy, and the first to come by a bucket moves it.
                Run { distribution, coalesce, blind: false, warmup: keys, ..run }
            };
            let measured = lab.run_all(kinds().map(run))?;
            runs.push((name, workload, measured));
        }
    }
    let over = |measured: &[Measured], i: usize| match (measured.first(), measured.get(i)) {
        (Some(shard), Some(other)) => shard.over(other),
        _ => f64::NAN,
    };
    let mut comparison = Vec::new();
    for (name, (race, sephash)) in ["uniform", "Zipfian"].into_iter().zip(RATIOS) {
        // The best of a distribution, as the paper's figures are.
        let best = |i| runs.iter().filter(|(of, ..)| *of == name).map(|(.., all)| over(all, i)).fold(0.0, f64::max);
        let reads = |i| {
            runs.iter()
                .find(|(of, workload, _)| *of == name && *workload == "ycsb-c")
                .map_or(0.0, |(.., all)| over(all, i))
        };
        comparison.push(Comparison::new(format!("{name}: SHARD over RACE, workload C"), race, reads(1)));
        comparison.push(Comparison::new(format!("{name}: SHARD over SepHash, workload C"), sephash, reads(2)));
        comparison.push(Comparison::new(format!("{name}: SHARD over RACE at most"), race, best(1)));
        comparison.push(Comparison::new(format!("{name}: SHARD over SepHash at most"), sephash, best(2)));
    }
    let lines: Vec<_> = runs
        .iter()
        .map(|(name, workload, all)| json!({ "distribution": name, "workload": workload, "runs": all, "over_race": over(all, 1), "over_sephash": over(all, 2) }))
        .collect();
    let result = json!({ "figure": 12, "source": FIGURE_12, "claims": CLAIMS_12, "keys": keys, "clients": clients, "seed": lab.seed, "lines": lines, "comparison": comparison });
    let text = {
        let mut text = format!(
            "SHARD, Figure 12: {keys} keys loaded, as many operations, {clients} clients of a simulated cluster\n\nthe paper:\n"
        );
        CLAIMS_12.iter().for_each(|claim| text += &format!("  {claim}\n"));
        text += "ours, predicted:\n";
        let named: Vec<_> = runs
            .iter()
            .flat_map(|(name, workload, all)| {
                all.iter().map(move |run| (format!("{workload}, {name}: {}", run.index), run))
            })
            .collect();
        text += &table(&named);
        comparison.iter().for_each(|line| text += &format!("{}\n", line.line()));
        text += "what an operation costs:\n";
        named.iter().for_each(|(name, run)| text += &format!("  {name}: {}\n", run.cost()));
        text + &format!("{FIGURE_12}\n")
    };
    Report::new(&result, text, true)
}

/// The other rows of Table 3: one worker, in the memory of one node of a cluster at rest.
pub(super) fn round_trips(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.one_number("table 3", 100_000)?;
    let (clients, lab) = (args.clients.unwrap_or(1), lab(args, watch));
    let mut rows = Vec::new();
    for config in kinds() {
        let mut row = Vec::new();
        for (_, workload) in OPERATIONS {
            let load = Run { blind: false, ..Run::load(config, keys, clients) };
            // Every key can be removed once.
            let run = if workload == "insert" { load } else { load.then(workload, keys) };
            let measured = lab.run(&run)?;
            row.push(measured);
        }
        rows.push((config.kind(), row));
    }
    let paper = |kind: &str| ROUND_TRIPS.iter().find(|(name, _)| *name == kind).map_or([f64::NAN; 4], |(_, row)| *row);
    let lines: Vec<_> =
        rows.iter().map(|(kind, row)| json!({ "index": kind, "paper": paper(kind), "runs": row })).collect();
    let result = json!({ "table": 3, "source": TABLE_3, "keys": keys, "clients": clients, "seed": lab.seed, "rows": lines, "note": WITH_BLOCKS });
    let text = {
        let mut text = format!(
            "SHARD, Table 3, all rows: {keys} keys, {clients} client(s) of a simulated cluster; round trips, in brackets the paper's\n\n"
        );
        for (kind, row) in &rows {
            text += &format!("  {kind:8}");
            for (((name, _), run), paper) in OPERATIONS.iter().zip(row).zip(paper(kind)) {
                let blocks = run.block_round_trips;
                text += &format!("  {name} {:.2} + {blocks:.2} ({paper:.2})", run.round_trips - blocks);
            }
            text.push('\n');
        }
        text + &format!("{WITH_BLOCKS}\n{TABLE_3}\n")
    };
    Report::new(&result, text, true)
}
