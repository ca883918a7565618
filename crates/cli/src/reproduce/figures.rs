//! Figures 16 and 17 of SHARD, on a simulated cluster.

use super::Shard;
use crate::bench::{Watch, pool_size};
use crate::exit::{self, Failure};
use crate::sim::subject::{self, Cluster, Simulation};
use crate::sim::sweep::write;
use farindex::IndexConfig;
use farindex::shard::Config;
use farindex_bench::plot::{Curve, Figure, Page, Table};
use farindex_bench::record::Identity;
use farindex_bench::reproduce::course::{CLAIMS_16, Course, FIGURE_16};
use farindex_bench::{Plan, Row, Workload};
use farindex_sim::Preset;
use serde::Serialize;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Operations are counted in spans of this length first.
const FINE: Duration = Duration::from_micros(20);
/// Spans of the figure, at most.
const SPANS: usize = 120;

/// The paper's cluster, with one client on each core unless asked otherwise.
fn cluster(config: Config, coalesce: bool, plan: &Plan) -> Cluster {
    let preset = Preset::shard();
    let (compute_nodes, memory_nodes) = (preset.compute_nodes, preset.memory_nodes);
    let node_len = pool_size(plan) / memory_nodes as u64 + ((plan.threads as u64) << 20);
    let node_len = node_len.next_multiple_of(4096);
    let config = IndexConfig::Shard(config);
    Cluster { preset, compute_nodes, memory_nodes, node_len, config, coalesce, series: Some(FINE) }
}

fn plan(workload: &str, keys: u64, args: &Shard) -> Result<Plan, Failure> {
    let workload: Workload = workload.parse().map_err(|why: String| Failure::new(exit::BUG, why))?;
    let preset = Preset::shard();
    let cores = preset.compute_nodes * preset.clients_per_node;
    let clients = args.clients.unwrap_or(cores);
    let threads = cores.min(clients);
    let plan = Plan { keys, clients, threads, seed: args.seed, audit: false, ..Plan::new(workload) };
    plan.check()?;
    Ok(plan)
}

/// `None` once it was interrupted.
fn measure(cluster: &Cluster, plan: &Plan, watch: &Watch) -> Result<Option<(Row, Simulation)>, Failure> {
    let simulation = watch.show(|control| subject::run(cluster, plan, control))?;
    if watch.stopped() {
        return Ok(None);
    }
    let outcome = &simulation.outcome;
    let row = Row::new(Identity { index: "shard".to_owned(), fabric: "sim".to_owned() }, outcome);
    match row.wrong_answers + row.errors {
        0 => Ok(Some((row, simulation))),
        _ => Err(Failure::new(exit::NO, format!("{}: {} {}", row.workload, outcome.wrong, outcome.errors))),
    }
}

/// What figure 16 compares, in lines.
fn beside(course: &Course, row: &Row, grown: usize) -> Vec<String> {
    let mean =
        format!("{:.2} M inserts per virtual second in the mean over {:.2} ms", course.mean / 1e6, row.seconds * 1e3);
    vec![
        format!("{mean}; {grown} times a table was seen to have grown"),
        format!(
            "longest time below half of the mean: {:.2} ms, with {} keys (the paper's runs are of seconds)",
            course.longest_dip * 1e3,
            row.keys
        ),
        format!("slowest {:.2} ms: {:.0} % of the mean", course.span_seconds * 1e3, course.worst_share() * 100.0),
    ]
}

/// Said beside every figure of ours.
const NOT_MEASURED: &str = "not measured: RACE, SepHash and Outback in this figure, and SHARD without \
                            RDMA-combining, which ours cannot do without";

fn draw(out: &Path, figure: &Figure, runs: &[Measured], lines: &[String]) -> Result<Vec<String>, Failure> {
    let bug = |what: String| Failure::new(exit::BUG, what);
    let line =
        |run: &Measured, ms: f64, mops: f64| vec![run.alpha.to_string(), format!("{ms:.4}"), format!("{mops:.6}")];
    let rows = runs.iter().flat_map(|run| run.course.points().into_iter().map(move |(ms, mops)| line(run, ms, mops)));
    let head = ["alpha", "virtual_ms", "million_inserts_per_second"].map(str::to_owned).to_vec();
    let table = Table { head, rows: rows.collect() };
    let mut page = Page::new("SHARD, Figure 16: throughput over time while the table grows");
    page.paragraph(FIGURE_16);
    page.figure(figure).map_err(bug)?;
    page.paragraph("The paper's claims:");
    CLAIMS_16.iter().for_each(|claim| page.paragraph(claim));
    page.paragraph("Ours, predicted on a simulated cluster:");
    lines.iter().for_each(|line| page.paragraph(line));
    page.paragraph(NOT_MEASURED);
    page.table(&table);
    let files = [
        write(out, ".csv", &table.csv())?,
        write(out, ".svg", &figure.svg().map_err(bug)?)?,
        write(out, ".html", &page.finish())?,
    ];
    Ok(files.iter().map(|path| path.display().to_string()).collect())
}

/// One way to run it.
#[derive(Serialize)]
struct Measured {
    alpha: f64,
    course: Course,
    worst_share: f64,
    /// When a table was first seen to have grown.
    grown_ms: Vec<f64>,
    row: Row,
}

fn one_course(config: Config, plan: &Plan, watch: &Watch) -> Result<Option<Measured>, Failure> {
    let Some((row, Simulation { series, .. })) = measure(&cluster(config, false, plan), plan, watch)? else {
        return Ok(None);
    };
    let Some(course) = Course::of(&series.counts, series.width, SPANS) else {
        let keys = plan.keys;
        return Err(Failure::usage(format!("{keys} keys are loaded before there is a course of time: it takes more")));
    };
    let grown_ms = series.grown.iter().map(|at| at.as_secs_f64() * 1e3).collect();
    Ok(Some(Measured { alpha: config.alpha, worst_share: course.worst_share(), course, grown_ms, row }))
}

pub(super) fn course(args: &Shard, watch: &Watch) -> Result<u8, Failure> {
    let keys = args.one_number("figure 16", 100_000)?;
    let plan = plan("ycsb-load", keys, args)?;
    let shipped = Config::default();
    let shared_out = Config { alpha: shipped.alpha / plan.clients as f64, ..shipped };
    let mut runs = Vec::new();
    for config in [shipped, shared_out] {
        match one_course(config, &plan, watch)? {
            Some(run) => runs.push(run),
            None => return Ok(exit::INTERRUPTED),
        }
    }
    let name = |run: &Measured| match run.alpha == shipped.alpha {
        true => format!("as shipped and in the paper (alpha {})", run.alpha),
        false => format!("alpha shared out: {} / {} clients", shipped.alpha, plan.clients),
    };
    let curve = |run| Curve { name: name(run), points: run.course.points(), dots: false };
    let figure = Figure {
        title: format!("SHARD: {keys} inserts by {} clients", plan.clients),
        x: "virtual milliseconds".to_owned(),
        y: "million inserts per second".to_owned(),
        curves: runs.iter().map(curve).collect(),
        marks: runs.first().map(|run| run.grown_ms.clone()).unwrap_or_default(),
        marks_name: "a table has grown (as shipped)".to_owned(),
    };
    let mut lines = Vec::new();
    for run in &runs {
        lines.push(format!("{}:", name(run)));
        lines.extend(beside(&run.course, &run.row, run.grown_ms.len()));
    }
    let files = match &args.out {
        Some(out) => draw(out, &figure, &runs, &lines)?,
        None => Vec::new(),
    };
    let result = json!({
        "figure": 16,
        "source": FIGURE_16,
        "claims": CLAIMS_16,
        "runs": runs,
        "not_measured": NOT_MEASURED,
        "files": files,
    });
    args.json.give(&result, || {
        let mut text =
            "SHARD, Figure 16: throughput over time while the table grows, on a simulated cluster\n\n".to_owned();
        text += "the paper:\n";
        CLAIMS_16.iter().for_each(|claim| text += &format!("  {claim}\n"));
        text += "ours, predicted:\n";
        lines.iter().for_each(|line| text += &format!("  {line}\n"));
        text += &format!("  {NOT_MEASURED}\n");
        if !files.is_empty() {
            text += &format!("written: {}\n", files.join(", "));
        }
        text
    })?;
    Ok(exit::OK)
}

const FIGURE_17: &str = "H. Zha et al., SHARD, PVLDB 19(4), 2025, Figure 17 and section 4.6 (techniques step by step)";
const CLAIMS_17: [&str; 4] = [
    "+Ordered (ordered CAS): 1.4x, read-only",
    "+Lazy (lazy resizing): 1.5x, write-only",
    "+AFS (adaptive frequency synchronization): 4.1x, write-only",
    "+Combining: 1.5x in the worst case of a write-only run",
];
const NO_SWITCH: &str = "without a switch in ours, so not measured: ordered CAS, lazy resizing, RDMA-combining";

/// One configuration of ours.
#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    /// Operations per virtual second.
    read_only: f64,
    write_only: f64,
}

pub(super) fn steps(args: &Shard, watch: &Watch) -> Result<u8, Failure> {
    let keys = args.one_number("figure 17", 100_000)?;
    let with = |alpha| Config { alpha, ..Config::default() };
    let shipped = Config::default();
    let clients = plan("get", keys, args)?.clients as f64;
    let configurations = [
        ("without AFS: every insert synchronizes (alpha 0)", with(0.0), false),
        ("AFS as shipped and in the paper (alpha 0.1)", shipped, false),
        ("AFS with alpha shared out: 0.1 / clients", with(shipped.alpha / clients), false),
        ("AFS as shipped, and the local lock table", shipped, true),
    ];
    let mut steps = Vec::new();
    for (name, config, coalesce) in configurations {
        let mut rates = [0.0; 2];
        for (rate, workload) in rates.iter_mut().zip(["get", "ycsb-load"]) {
            let mut plan = plan(workload, keys, args)?;
            if workload == "get" {
                // The last resize is lazy, and the first to come by a bucket moves it: that is growth, not search.
                (plan.warmup, plan.ops) = (keys, Some(keys / 2));
            }
            let cluster = Cluster { series: None, ..cluster(config, coalesce, &plan) };
            let Some((row, _)) = measure(&cluster, &plan, watch)? else { return Ok(exit::INTERRUPTED) };
            *rate = row.throughput_ops_per_s;
        }
        let [read_only, write_only] = rates;
        steps.push(Step { name, read_only, write_only });
    }
    let result = json!({ "figure": 17, "source": FIGURE_17, "claims": CLAIMS_17, "not_measured": NO_SWITCH, "keys": keys, "steps": steps });
    args.json.give(&result, || {
        let mut text = format!(
            "SHARD, Figure 17: what techniques contribute, uniform keys, {keys} of them, on a simulated cluster\n\nthe paper:\n"
        );
        CLAIMS_17.iter().for_each(|claim| text += &format!("  {claim}\n"));
        text += "ours, predicted, in million operations per virtual second:\n";
        text += &format!("  {:50} {:>9} {:>10}\n", "", "read-only", "write-only");
        for Step { name, read_only, write_only } in &steps {
            text += &format!("  {name:50} {:>9.2} {:>10.2}\n", read_only / 1e6, write_only / 1e6);
        }
        if let [without, shipped, shared, ..] = steps.as_slice() {
            for (name, with) in [("as shipped", shipped), ("shared out", shared)] {
                text += &format!(
                    "  AFS {name}: {:.2}x read-only, {:.2}x write-only\n",
                    with.read_only / without.read_only,
                    with.write_only / without.write_only
                );
            }
        }
        text + &format!("  {NO_SWITCH}\n")
    })?;
    Ok(exit::OK)
}
