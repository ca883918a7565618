//! Figures 1a, 16 and 17 of SHARD, on a simulated cluster.

use super::Args;
use super::course::{CLAIMS_16, Course, FIGURE_16};
use super::reads;
use crate::report::{Error, Report, Watch};
use farindex::IndexConfig;
use farindex::shard::Config;
use farindex_bench::driver::cluster::{Cluster, Simulation};
use farindex_bench::plot::{Curve, Figure, Page, Table};
use farindex_bench::record::Identity;
use farindex_bench::{Plan, Row, Workload};
use farindex_sim::Preset;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// Operations are counted in spans of this length first.
const FINE: Duration = Duration::from_micros(20);
/// Spans of the figure, at most.
const SPANS: usize = 120;

/// The paper's cluster, with one client on each core unless asked otherwise.
fn cluster(config: Config, coalesce: bool, plan: &Plan) -> Cluster {
    let preset = Preset::shard();
    let (compute_nodes, memory_nodes) = (preset.compute_nodes, preset.memory_nodes);
    let node_len = plan.pool_bytes() / memory_nodes as u64 + ((plan.threads as u64) << 20);
    let node_len = node_len.next_multiple_of(4096);
    let config = IndexConfig::Shard(config);
    let (blind, series, history) = (false, Some(FINE), None);
    Cluster {
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
    }
}

fn plan(workload: &str, keys: u64, args: &Args) -> Result<Plan, Error> {
    let workload: Workload = workload.parse().map_err(|why: String| Error::Bug(why))?;
    let preset = Preset::shard();
    let cores = preset.compute_nodes * preset.clients_per_node;
    let clients = args.clients.unwrap_or(cores);
    let threads = cores.min(clients);
    let plan = Plan { keys, clients, threads, seed: args.seed, audit: false, ..Plan::new(workload) };
    plan.check()?;
    Ok(plan)
}

fn measure(cluster: &Cluster, plan: &Plan, watch: Watch<'_>) -> Result<(Row, Simulation), Error> {
    let simulation = watch.simulate(cluster, plan)?;
    let outcome = &simulation.outcome;
    let row = Row::new(Identity { index: "shard".to_owned(), fabric: "sim".to_owned() }, outcome);
    match row.wrong_answers + row.errors {
        0 => Ok((row, simulation)),
        _ => Err(Error::Wrong(format!("{}: {} {}", row.workload, outcome.wrong, outcome.errors))),
    }
}

/// What figure 16 compares, in lines.
fn describe(course: &Course, row: &Row, grown: usize) -> Vec<String> {
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

/// Printed with every figure of ours.
const NOT_MEASURED: &str = "not measured: RACE, SepHash and Outback in this figure, and SHARD without \
                            RDMA-combining, which ours cannot do without";

fn draw(figure: &Figure, runs: &[Measured], lines: &[String]) -> Result<Vec<(&'static str, String)>, Error> {
    let bug = |what: String| Error::Bug(what);
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
    Ok(vec![(".csv", table.csv()), (".svg", figure.svg().map_err(bug)?), (".html", page.finish())])
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

fn one_course(config: Config, plan: &Plan, watch: Watch<'_>) -> Result<Measured, Error> {
    let (row, Simulation { series, .. }) = measure(&cluster(config, false, plan), plan, watch)?;
    let Some(course) = Course::of(&series.counts, series.width, SPANS) else {
        let keys = plan.keys;
        return Err(Error::Usage(format!("{keys} keys are loaded before there is a course of time: it takes more")));
    };
    let grown_ms = series.grown.iter().map(|at| at.as_secs_f64() * 1e3).collect();
    Ok(Measured { alpha: config.alpha, worst_share: course.worst_share(), course, grown_ms, row })
}

pub(super) fn course(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.one_number("figure 16", 100_000)?;
    let plan = plan("ycsb-load", keys, args)?;
    let shipped = Config::default();
    let shared_out = Config { alpha: shipped.alpha / plan.clients as f64, ..shipped };
    let mut runs = Vec::new();
    for config in [shipped, shared_out] {
        let run = one_course(config, &plan, watch)?;
        runs.push(run);
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
        ..Figure::default()
    };
    let mut lines = Vec::new();
    for run in &runs {
        lines.push(format!("{}:", name(run)));
        lines.extend(describe(&run.course, &run.row, run.grown_ms.len()));
    }
    let files = if args.out.is_some() { draw(&figure, &runs, &lines)? } else { Vec::new() };
    let result = json!({
        "figure": 16,
        "source": FIGURE_16,
        "claims": CLAIMS_16,
        "runs": runs,
        "not_measured": NOT_MEASURED,
        "files": [],
    });
    let text = {
        let mut text =
            "SHARD, Figure 16: throughput over time while the table grows, on a simulated cluster\n\n".to_owned();
        text += "the paper:\n";
        CLAIMS_16.iter().for_each(|claim| text += &format!("  {claim}\n"));
        text += "ours, predicted:\n";
        lines.iter().for_each(|line| text += &format!("  {line}\n"));
        text += &format!("  {NOT_MEASURED}\n");
        text
    };
    Ok(Report { files, ..Report::new(&result, text, true)? })
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
    name: String,
    alpha: f64,
    coalesce: bool,
    /// Operations per virtual second.
    read_only: f64,
    write_only: f64,
    /// Of the write-only run, for each insert: how often a worker has read the root (and added its count of inserts to
    /// it), FAAs (which also release locks), round trips.
    synchronizations: f64,
    faas: f64,
    round_trips: f64,
    /// Nanoseconds of one insert, in the middle and for one in a hundred.
    p50_ns: u64,
    p99_ns: u64,
}

impl Step {
    fn of(name: String, config: Config, coalesce: bool, args: &Args, watch: Watch<'_>) -> Result<Step, Error> {
        let keys = keys_17(args)?;
        let run = |workload: &str| {
            let mut plan = plan(workload, keys, args)?;
            if workload == "get" {
                // The last resize is lazy, and the first to come by a bucket moves it: that is growth, not search.
                (plan.warmup, plan.ops) = (keys, Some(keys / 2));
            }
            let cluster = Cluster { series: None, ..cluster(config, coalesce, &plan) };
            measure(&cluster, &plan, watch)
        };
        let (reads, _) = run("get")?;
        let (row, simulation) = run("ycsb-load")?;
        let cost = row.kinds.get("insert").ok_or_else(|| Error::Bug("inserts were not measured".to_owned()))?;
        Ok(Step {
            name,
            alpha: config.alpha,
            coalesce,
            read_only: reads.throughput_ops_per_s,
            write_only: row.throughput_ops_per_s,
            synchronizations: simulation.synchronizations as f64 / keys as f64,
            faas: cost.faa,
            round_trips: cost.round_trips,
            p50_ns: row.latency_ns.p50,
            p99_ns: row.latency_ns.p99,
        })
    }
}

fn keys_17(args: &Args) -> Result<u64, Error> {
    args.one_number("figure 17", 1_000_000)
}

/// What figure 17 compares, in lines.
fn compare(steps: &[Step]) -> Vec<String> {
    let preset = Preset::shard();
    let words = preset.memory_nodes as f64 * 1e6 / preset.atomic_same_ps as f64;
    let mut lines = vec![format!(
        "each synchronization adds to the count word of one of {} tables; the NICs add {words:.1} M times a second to as many \
         words",
        preset.memory_nodes
    )];
    if let [without, .., shipped, _] = steps {
        lines.push(format!(
            "without AFS they add {:.1} M times a second: that is what holds it up",
            without.write_only * without.synchronizations / 1e6,
        ));
        lines.push(format!(
            "AFS: {:.2}x read-only, {:.2}x write-only; {:.2} synchronizations for each insert instead of {:.2}, and {:.1} round \
             trips instead of {:.1}: a client that reads the root rarely learns late of a resize",
            shipped.read_only / without.read_only,
            shipped.write_only / without.write_only,
            shipped.synchronizations,
            without.synchronizations,
            shipped.round_trips,
            without.round_trips,
        ));
        lines.push(
            "less than the paper's 4.1x: without AFS ours pays no round trip (it synchronizes in an operation's own batch)"
                .to_owned(),
        );
    }
    lines
        .push("a table is too small for AFS while 0.1 x its free slots are few for each client: see --keys".to_owned());
    lines
}

pub(super) fn steps(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = keys_17(args)?;
    let shipped = Config::default();
    let with = |alpha| Config { alpha, ..shipped };
    let rarely = shipped.alpha * 10.0;
    let configurations = [
        ("without AFS: every operation synchronizes (alpha 0)".to_owned(), with(0.0), false),
        (format!("AFS ten times as rarely (alpha {rarely})"), with(rarely), false),
        (format!("AFS as shipped (alpha {}, the paper's)", shipped.alpha), shipped, false),
        ("AFS as shipped, and the local lock table".to_owned(), shipped, true),
    ];
    let mut steps = Vec::new();
    for (name, config, coalesce) in configurations {
        let step = Step::of(name, config, coalesce, args, watch)?;
        steps.push(step);
    }
    let lines = compare(&steps);
    let result = json!({
        "figure": 17,
        "source": FIGURE_17,
        "claims": CLAIMS_17,
        "comparison": lines,
        "not_measured": NO_SWITCH,
        "keys": keys,
        "steps": steps,
    });
    let text = {
        let mut text = format!(
            "SHARD, Figure 17: what techniques contribute, uniform keys, {keys} of them, on a simulated cluster\n\nthe paper:\n"
        );
        CLAIMS_17.iter().for_each(|claim| text += &format!("  {claim}\n"));
        text += "ours, predicted, in million operations per virtual second; behind it, for each insert:\n";
        text += &format!("  {:52} {:>9} {:>10}", "", "read-only", "write-only");
        text += &format!(" {:>6} {:>6} {:>6} {:>9} {:>9}\n", "syncs", "FAAs", "trips", "p50", "p99");
        for step in &steps {
            let Step { name, read_only, write_only, synchronizations, faas, round_trips, p50_ns, p99_ns, .. } = step;
            text += &format!("  {name:52} {:>9.2} {:>10.2}", read_only / 1e6, write_only / 1e6);
            text += &format!(" {synchronizations:>6.2} {faas:>6.2} {round_trips:>6.2}");
            text += &format!(" {:>6.1} us {:>6.1} us\n", *p50_ns as f64 / 1e3, *p99_ns as f64 / 1e3);
        }
        lines.iter().for_each(|line| text += &format!("  {line}\n"));
        text + &format!("  {NO_SWITCH}\n")
    };
    Report::new(&result, text, true)
}

pub(super) fn read_sizes(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    if !args.keys.is_empty() || args.clients.is_some() {
        return Err(Error::Usage("figure 1a has no keys, and clients of its own".to_owned()));
    }
    let preset = Preset::shard();
    let points = reads::points(&preset, args.seed, || watch.stopped()).map_err(farindex::Error::from)?;
    let (beats, (least, most)) = (reads::beats_in_turn(&points), reads::against_batch(&points));
    let holds = beats && least > 1.0 - reads::GRAIN;
    let small = reads::SMALL;
    let size = |size: Option<usize>| size.map_or("none".to_owned(), |size| format!("{size} bytes"));
    let mut lines = vec![
        format!("one READ beats two of half the size in turn: {}", if beats { "everywhere" } else { "NOT EVERYWHERE" }),
        format!(
            "against two behind one doorbell it does {least:.3} to {most:.3} times as much; the model forwards a message whole, so \
             two halves may be {:.0} % ahead of a large one",
            reads::GRAIN * 100.0
        ),
    ];
    for threads in reads::THREADS {
        let [batch, in_turn] = reads::largest_that_beats_small(&points, threads).map(size);
        lines.push(format!(
            "{threads} clients on each machine: the largest READ that beats two of {small} bytes in turn: {in_turn}; in one \
             batch: {batch}"
        ));
    }
    let result = json!({
        "figure": "1a",
        "source": reads::FIGURE_1A,
        "claim": reads::CLAIM_1A,
        "points": points,
        "beats_in_turn": beats,
        "against_batch": { "least": least, "most": most },
        "comparison": lines,
    });
    let text = {
        let mut text = format!(
            "SHARD, Figure 1a: READs of one and of two round trips, on a simulated cluster\n\nthe paper:\n  {}\nours, \
             predicted, in million accesses per virtual second:\n",
            reads::CLAIM_1A
        );
        text +=
            &format!("  {:>7} {:>6} {:>10} {:>12} {:>10}\n", "clients", "bytes", "one READ", "two, batched", "in turn");
        for reads::Point { threads, bytes, one, batch, in_turn } in &points {
            let [one, batch, in_turn] = [one, batch, in_turn].map(|rate| rate / 1e6);
            text += &format!("  {threads:>7} {bytes:>6} {one:>10.2} {batch:>12.2} {in_turn:>10.2}\n");
        }
        lines.iter().for_each(|line| text += &format!("  {line}\n"));
        text
    };
    Report::new(&result, text, holds)
}
