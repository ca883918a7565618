//! Figures 12 and 15, on a simulated cluster.

use super::paper::{COMPUTE_NODES, OVER_SHERMAN, SIZES, SOURCE, SPAN, STEP_WORKLOADS};
use super::{Args, kinds};
use crate::lab::{Lab, Measured, Run, SCANS, table};
use crate::report::{Error, Report, Watch};
use crate::sephash::paper::Comparison;
use farindex::IndexConfig;
use farindex_sim::Preset;
use serde_json::{Value, json};

/// Printed with what is predicted.
const SCALE: &str = "the paper has 60 M keys, and coroutines; ours is one client a core. The local lock table is in use, \
                     as in the paper";

/// The paper's cluster: its compute nodes share the clients evenly.
fn lab<'a>(args: &Args, clients: usize, watch: Watch<'a>) -> Lab<'a> {
    let per_node = clients.div_ceil(COMPUTE_NODES).max(1);
    let preset = args.nic.apply(Preset::chime());
    let (key_size, value_size) = SIZES;
    Lab { preset, per_node, key_size, value_size, scan_length: SCANS, seed: args.seed, watch }
}

/// A run of a workload; that of the load inserts keys into an index that has as many.
fn trial(args: &Args, config: IndexConfig, workload: &str, keys: u64, clients: usize) -> Run {
    let ops = args.ops.unwrap_or(keys);
    let workload = if workload == "ycsb-load" { "insert" } else { workload };
    Run { coalesce: true, warmup: ops / 4, ..Run::load(config, keys, clients).then(workload, ops) }
}

fn costs(text: &mut String, runs: &[(String, &Measured)]) {
    *text += "what an operation costs:\n";
    runs.iter().for_each(|(name, run)| *text += &format!("  {name}: {}\n", run.cost()));
}

/// The workloads of figure 12, each with the paper's throughput over Sherman if it compares the same two kinds.
fn workloads(args: &Args) -> Vec<(String, Option<f64>)> {
    let paper = |workload: &str| {
        let ratio = OVER_SHERMAN.into_iter().find(|(of, _)| *of == workload).map(|(_, ratio)| ratio);
        ratio.filter(|_| args.kinds == ["sherman", "chime"])
    };
    let usual = || OVER_SHERMAN.map(|(workload, _)| workload.to_owned()).to_vec();
    let wanted = if args.workloads.is_empty() { usual() } else { args.workloads.clone() };
    let with_paper = |workload: String| {
        let ratio = paper(&workload);
        (workload, ratio)
    };
    wanted.into_iter().map(with_paper).collect()
}

/// Figure 12.
pub(super) fn ycsb(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.one_number_of_keys(40_000)?;
    let clients = if args.clients.is_empty() { vec![160, 640] } else { args.clients.clone() };
    let configs = kinds::compared(args)?;
    let (mut runs, mut comparison) = (Vec::new(), Vec::new());
    let (mut named, mut ratios) = (Vec::new(), String::new());
    for (workload, paper) in workloads(args) {
        let workload = workload.as_str();
        let mut best: Vec<Option<Measured>> = vec![None; configs.len()];
        for clients in &clients {
            let lab = lab(args, *clients, watch);
            for ((config, kind), best) in configs.iter().zip(&args.kinds).zip(&mut best) {
                let run = lab.run(&trial(args, *config, workload, keys, *clients))?;
                named.push(format!("{workload}, {clients} clients: {kind}"));
                if best.as_ref().is_none_or(|best| run.ops_per_s > best.ops_per_s) {
                    *best = Some(run.clone());
                }
                runs.push((workload.to_owned(), run));
            }
        }
        if let ([Some(base), Some(other)], [base_kind, kind]) = (best.as_slice(), args.kinds.as_slice()) {
            let what = format!("{workload}: {kind} over {base_kind}, the best of each");
            match paper {
                Some(paper) => comparison.push(Comparison::new(what, paper, other.over(base))),
                None => ratios += &format!("{what}: {:.2}\n", other.over(base)),
            }
        }
    }
    let named: Vec<_> = named.into_iter().zip(runs.iter().map(|(_, run)| run)).collect();
    let lines: Vec<_> = runs.iter().map(|(workload, run)| json!({ "workload": workload, "run": run })).collect();
    let result = json!({ "figure": 12, "source": SOURCE, "keys": keys, "seed": args.seed, "nic": args.nic, "runs": lines, "comparison": comparison });
    let mut text = format!(
        "CHIME, Figure 12: {keys} keys loaded, {} operations, span {SPAN}, {COMPUTE_NODES} compute nodes of a simulated \
         cluster\n{SCALE}\n{}load: inserts into an index that has as many keys\n\n{}\n",
        args.ops.unwrap_or(keys),
        args.nic.line(),
        table(&named)
    );
    comparison.iter().for_each(|line| text += &format!("{}\n", line.line()));
    text += &ratios;
    costs(&mut text, &named);
    text += &format!("paper: {SOURCE}, Figure 12, section 5.2\n");
    Report::new(&result, text, true)
}

/// A technique, added to those before it.
struct Step {
    name: &'static str,
    kind: &'static str,
    /// Settings other than spans and cache.
    changes: Value,
    /// The workload that the paper has a number for, and its throughput over that of the step before (section 5.3).
    paper: Option<(&'static str, f64)>,
}

/// From Sherman to CHIME. Sibling-based validation is no step: a leaf without it would have another format (Figure 16
/// counts what it saves).
fn ladder() -> Vec<Step> {
    let step = |name, kind, changes, paper| Step { name, kind, changes, paper };
    let chime = |vacancy_bitmap: bool, replicas: bool, speculation: &str| json!({ "vacancy_bitmap": vacancy_bitmap, "replicas": replicas, "speculation": speculation });
    vec![
        step("Sherman", "sherman", json!({}), None),
        step("+ hopscotch leaf", "chime", chime(false, false, "off"), Some(("ycsb-c", 2.3))),
        step("+ vacancy bitmap", "chime", chime(true, false, "off"), Some(("ycsb-load", 1.6))),
        step("+ replicated metadata", "chime", chime(true, true, "off"), Some(("ycsb-c", 1.6))),
        step("+ speculative read", "chime", chime(true, true, "auto"), None),
    ]
}

/// Figure 15.
pub(super) fn steps(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.one_number_of_keys(40_000)?, args.one_number_of_clients(320)?);
    let lab = lab(args, clients, watch);
    let mut steps = Vec::new();
    for step in ladder().into_iter().filter(|step| args.kinds.iter().any(|kind| kind == step.kind)) {
        let mut changes = step.changes.clone();
        (changes["leaf_span"], changes["inner_span"]) = (SPAN.into(), SPAN.into());
        let config = kinds::config(step.kind, &changes)?;
        steps.push((step, config));
    }
    let mut runs = Vec::new();
    for workload in STEP_WORKLOADS {
        for (step, config) in &steps {
            runs.push((workload, step, lab.run(&trial(args, *config, workload, keys, clients))?));
        }
    }
    let mut ratios = String::new();
    let mut comparison = Vec::new();
    for pair in runs.chunks(steps.len().max(1)).flat_map(|steps| steps.windows(2)) {
        let [(workload, _, before), (_, step, after)] = pair else { continue };
        let what = format!("{workload}: {} over the step before", step.name);
        match step.paper.filter(|(of, _)| of == workload) {
            Some((_, paper)) => comparison.push(Comparison::new(what, paper, after.over(before))),
            None => ratios += &format!("{what}: {:.2}\n", after.over(before)),
        }
    }
    let named: Vec<_> = runs.iter().map(|(workload, step, run)| (format!("{workload}: {}", step.name), run)).collect();
    let lines: Vec<_> = runs
        .iter()
        .map(|(workload, step, run)| json!({ "workload": workload, "step": step.name, "run": run }))
        .collect();
    let result = json!({ "figure": 15, "source": SOURCE, "keys": keys, "clients": clients, "seed": args.seed, "nic": args.nic, "runs": lines, "comparison": comparison });
    let mut text = format!(
        "CHIME, Figure 15: {keys} keys loaded, {} operations, {clients} clients, span {SPAN}\n{SCALE}\n{}\n{}\n",
        args.ops.unwrap_or(keys),
        args.nic.line(),
        table(&named)
    );
    comparison.iter().for_each(|line| text += &format!("{}\n", line.line()));
    text += &ratios;
    costs(&mut text, &named);
    text += &format!("paper: {SOURCE}, Figure 15, section 5.3\n");
    Report::new(&result, text, true)
}
