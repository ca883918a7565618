//! Figures 6, 7, 8, 12, 13 and 17, on a simulated cluster.

use super::Args;
use super::paper::{CACHED, FIGURE_6, OFFLOADED, PARTITIONED, SOURCE, WORKLOADS};
use super::variants::{LEAST_CACHE, Point, Variant, measure, wanted, workloads};
use crate::lab::{Measured, table};
use crate::report::{Error, Report, Watch};
use crate::sephash::paper::Comparison;
use farindex_bench::workload::Zipf;
use serde_json::json;

/// A run, where it belongs in its figure, and what ran.
struct Cell {
    place: String,
    variant: Variant,
    run: Measured,
}

/// What all figures print: every run, then the comparison with the paper, then what an operation costs.
fn report(
    args: &Args,
    (number, title): (u32, &str),
    keys: u64,
    cells: &[Cell],
    (comparison, more): (&[Comparison], &str),
) -> Result<Report, Error> {
    let named: Vec<_> =
        cells.iter().map(|cell| (format!("{}: {}", cell.place, cell.variant.name), &cell.run)).collect();
    let mut text = format!("DEX, Figure {number}: {title}\n{}\n\n{}\n", args.scale(keys), table(&named));
    comparison.iter().for_each(|line| text += &format!("{}\n", line.line()));
    text += more;
    text += "what an operation costs (shares of a NIC: the memory node's part alone, and each NIC serves a compute node too):\n";
    named.iter().for_each(|(name, run)| text += &format!("  {name}: {}\n", run.cost()));
    text += &format!("paper: {SOURCE}, Figure {number}\n");
    let lines: Vec<_> =
        cells.iter().map(|cell| json!({ "at": cell.place, "index": cell.variant.name, "run": cell.run })).collect();
    let result = json!({
        "figure": number, "source": SOURCE, "keys": keys, "local_ns": args.local_ns, "seed": args.seed, "runs": lines,
        "comparison": comparison,
    });
    Report::new(&result, text, true)
}

/// The last of these variants at a place.
fn at<'c>(cells: &'c [Cell], place: &str, is: impl Fn(&Variant) -> bool) -> Option<&'c Measured> {
    cells.iter().rev().find(|cell| cell.place == place && is(&cell.variant)).map(|cell| &cell.run)
}

/// Figures 6 and 7.
pub(super) fn scaling(args: &Args, watch: Watch<'_>, skewed: bool) -> Result<Report, Error> {
    let keys = args.keys.unwrap_or(400_000);
    let clients = if args.clients.is_empty() { vec![36, 144] } else { args.clients.clone() };
    let variants = wanted(args)?;
    let (mut cells, mut comparison, mut more) = (Vec::new(), Vec::new(), String::new());
    for (name, mix) in workloads(args, &WORKLOADS)? {
        for clients in &clients {
            let place = format!("{name}, {clients} clients");
            for variant in &variants {
                let theta = skewed.then_some(Zipf::THETA);
                let run = measure(args, watch, variant, &Point { theta, ..Point::usual(mix, *clients, keys) })?;
                cells.push(Cell { place: place.clone(), variant: variant.clone(), run });
            }
            let dex = at(&cells, &place, |variant| variant.name == "DEX");
            for other in variants.iter().filter(|variant| variant.name != "DEX") {
                let (Some(dex), Some(run)) = (dex, at(&cells, &place, |variant| variant.name == other.name)) else {
                    continue;
                };
                let paper = FIGURE_6.into_iter().find(|(of, ..)| *of == name).and_then(|(_, sherman, p_sherman)| {
                    match other.name.as_str() {
                        "P-Sherman" => p_sherman,
                        _ if other.is_papers_sherman() => sherman,
                        _ => None,
                    }
                });
                let what = format!("{place}: DEX over {}", other.name);
                match paper.filter(|_| skewed && *clients == 144) {
                    Some(paper) => comparison.push(Comparison::new(what, paper, dex.over(run))),
                    None => more += &format!("{what}: {:.2}\n", dex.over(run)),
                }
            }
        }
    }
    more += "the text of the paper has no numbers for what is printed without one\n";
    let title = format!("throughput by clients, {}, {keys} keys loaded", if skewed { "skewed" } else { "uniform" });
    report(args, (if skewed { 6 } else { 7 }, &title), keys, &cells, (&comparison, &more))
}

/// From a tree in far memory without any cache to DEX.
fn ladder() -> Vec<(Variant, Option<(usize, f64)>)> {
    let baseline = Variant::new("baseline", "sherman", json!({ "hand_over": false })).forgetting();
    let partitioned = Variant::p_sherman().forgetting().named("+ partitioning");
    let cached = Variant::new("+ caching", "dex", json!({ "offload": "never" }));
    let offloading = Variant::new("+ offloading", "dex", json!({}));
    vec![
        (baseline, None),
        (partitioned, Some((2, PARTITIONED))),
        (cached, Some((144, CACHED))),
        (offloading, Some((144, OFFLOADED))),
    ]
}

/// Figure 8.
pub(super) fn steps(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let keys = args.keys.unwrap_or(1_600_000);
    let args = &Args { ops: Some(args.ops.unwrap_or(400_000)), ..args.clone() };
    let clients = if args.clients.is_empty() { vec![2, 144] } else { args.clients.clone() };
    let (mut cells, mut comparison, mut more) = (Vec::new(), Vec::new(), String::new());
    for (skew, theta) in [("skewed", Some(Zipf::THETA)), ("uniform", None)] {
        for clients in &clients {
            let place = format!("{skew}, {clients} clients");
            for (variant, paper) in ladder() {
                let point = Point { theta, cache: 1.0, ..Point::usual("get=50,update=50", *clients, keys) };
                let run = measure(args, watch, &variant, &point)?;
                if let Some(before) = cells.last().filter(|cell: &&Cell| cell.place == place) {
                    let what = format!("{place}: {} over the step before", variant.name);
                    match paper.filter(|(at, _)| at == clients && theta.is_some()) {
                        Some((_, paper)) => comparison.push(Comparison::new(what, paper, run.over(&before.run))),
                        None => more += &format!("{what}: {:.2}\n", run.over(&before.run)),
                    }
                }
                cells.push(Cell { place: place.clone(), variant, run });
            }
        }
    }
    more += "the paper's number for caching is the most that it has (\"up to 15\")\n";
    let title = format!("what techniques contribute, write-intensive, cache of 1 % of the data, {keys} keys loaded");
    report(args, (8, &title), keys, &cells, (&comparison, &more))
}

/// Figure 12.
pub(super) fn caches(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys.unwrap_or(400_000), args.one_number_of_clients()?);
    let sizes = if args.cache.is_empty() { vec![2.0, 4.0, 8.0, 16.0, 32.0, 64.0] } else { args.cache.clone() };
    let points = sizes.into_iter().map(|cache| {
        let point = |mix| Point { cache, ..Point::usual(mix, clients, keys) };
        let least = if point("").cache_bytes() < LEAST_CACHE { ", DEX 4 KiB" } else { "" };
        (
            format!("cache {cache} %{least}"),
            [("read-intensive", point("get=95,update=5")), ("write-intensive", point("get=50,update=50"))],
        )
    });
    let cells = sweep(args, watch, points.collect())?;
    let title = format!("throughput by size of the cache, skewed, {keys} keys loaded, {clients} clients");
    let more = "the text of the paper has no numbers: throughput ascends with the cache, but with local contention beyond 8 % in \
                the write-intensive workload; Sherman has nothing of a larger cache\n";
    report(args, (12, &title), keys, &cells, (&[], more))
}

/// Figure 13.
pub(super) fn memory_threads(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys.unwrap_or(1_600_000), args.one_number_of_clients()?);
    let args = &Args { ops: Some(args.ops.unwrap_or(400_000)), ..args.clone() };
    let dex = |name: &str, offload: &str| Variant::new(name, "dex", json!({ "offload": offload }));
    let variants = [dex("no offloading", "never"), dex("DEX", "auto"), dex("all is offloaded", "always")];
    let (mut cells, mut more) = (Vec::new(), String::new());
    for (name, mix) in [("read-intensive", "get=95,update=5"), ("write-intensive", "get=50,update=50")] {
        for threads in 1..=4 {
            let place = format!("{name}, {threads} memory threads");
            for variant in &variants {
                let memory_threads = Some(threads);
                let point = Point { cache: 1.0, memory_threads, ..Point::usual(mix, clients, keys) };
                let run = measure(args, watch, variant, &point)?;
                cells.push(Cell { place: place.clone(), variant: variant.clone(), run });
            }
            let of = |name: &str| at(&cells, &place, |variant| variant.name == name);
            if let (Some(base), Some(dex), Some(all)) = (of("no offloading"), of("DEX"), of("all is offloaded")) {
                let (some, all) = (dex.over(base), all.over(base));
                more += &format!("{place}: over no offloading: DEX {some:.2}, all is offloaded {all:.2}\n");
            }
        }
    }
    more += "the text of the paper has no numbers: more threads answer more calls, which replace READs\n";
    let title =
        format!("threads of a memory node, skewed, cache of 1 % of the data, {keys} keys loaded, {clients} clients");
    report(args, (13, &title), keys, &cells, (&[], &more))
}

/// Figure 17.
pub(super) fn skews(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    let (keys, clients) = (args.keys.unwrap_or(400_000), args.one_number_of_clients()?);
    let thetas = if args.theta.is_empty() { vec![0.6, 0.8, 0.9, 0.99] } else { args.theta.clone() };
    let points = thetas.into_iter().map(|theta| {
        let point = |mix| Point { theta: Some(theta), ..Point::usual(mix, clients, keys) };
        (
            format!("theta {theta}"),
            [("read-intensive", point("get=95,update=5")), ("write-intensive", point("get=50,update=50"))],
        )
    });
    let cells = sweep(args, watch, points.collect())?;
    let title = format!("throughput by skew, {keys} keys loaded, {clients} clients");
    let more = "the text of the paper has no numbers: DEX gets faster with more skew, and Sherman collapses at 0.99 in the \
                write-intensive workload\n";
    report(args, (17, &title), keys, &cells, (&[], more))
}

/// Runs every variant at every point; one workload after the other.
fn sweep(args: &Args, watch: Watch<'_>, points: Vec<(String, [(&str, Point<'_>); 2])>) -> Result<Vec<Cell>, Error> {
    let (variants, mut cells) = (wanted(args)?, Vec::new());
    for workload in 0..2 {
        for (name, both) in &points {
            let Some((mix, point)) = both.get(workload) else { continue };
            for variant in &variants {
                let run = measure(args, watch, variant, point)?;
                cells.push(Cell { place: format!("{mix}, {name}"), variant: variant.clone(), run });
            }
        }
    }
    Ok(cells)
}
