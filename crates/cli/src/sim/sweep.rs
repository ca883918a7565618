//! `farindex sim --sweep`: one run for each value of a number, as a table, a figure and a page.
//!
//! Invariants: runs take place on all cores, but what is written depends on the numbers alone; if it is interrupted,
//! what was complete by then is written.

use super::{Args, Numbers, SimRow, measure, sound};
use crate::exit::{self, Failure};
use crate::{progress, signals};
use farindex_bench::Control;
use farindex_bench::plot::{Curve, Figure, Page, Table};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Clients,
    Threads,
    ComputeNodes,
    MemoryNodes,
}

impl What {
    const ALL: [(&'static str, What); 4] = [
        ("clients", What::Clients),
        ("threads", What::Threads),
        ("compute-nodes", What::ComputeNodes),
        ("memory-nodes", What::MemoryNodes),
    ];
    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, what)| *what == self).map_or("", |(name, _)| name)
    }
    fn numbers(self, value: usize) -> Numbers {
        let mut numbers = Numbers::default();
        let place = match self {
            What::Clients => &mut numbers.clients,
            What::Threads => &mut numbers.threads,
            What::ComputeNodes => &mut numbers.compute_nodes,
            What::MemoryNodes => &mut numbers.memory_nodes,
        };
        *place = Some(value);
        numbers
    }
}

/// Which number, and its values.
#[derive(Debug, Clone)]
pub(super) struct Sweep {
    what: What,
    values: Vec<usize>,
}

impl FromStr for Sweep {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, values) = text.split_once('=').ok_or("it takes something like clients=1,2,4,8")?;
        let found = What::ALL.iter().find(|(known, _)| *known == name);
        let Some(&(_, what)) = found else {
            let names = What::ALL.map(|(name, _)| name).join(", ");
            return Err(format!("{name:?} cannot be swept; there are {names}"));
        };
        let values = values.split(',').map(super::number).collect::<Result<Vec<_>, _>>()?;
        Ok(Sweep { what, values })
    }
}

fn cells(what: What, value: usize, row: &SimRow) -> Vec<String> {
    let latency = &row.row.latency_ns;
    vec![
        what.name().to_owned(),
        value.to_string(),
        row.row.clients.to_string(),
        row.row.threads.to_string(),
        row.compute_nodes.to_string(),
        row.memory_nodes.to_string(),
        row.row.ops.to_string(),
        format!("{:.9}", row.virtual_seconds),
        format!("{:.1}", row.row.throughput_ops_per_s),
        latency.p50.to_string(),
        latency.p99.to_string(),
        latency.p999.to_string(),
        row.row.wrong_answers.to_string(),
        row.row.errors.to_string(),
        row.row.index.clone(),
        row.preset.to_owned(),
    ]
}

fn table(what: What, rows: &[(usize, SimRow)]) -> Table {
    let head = [
        "swept",
        "value",
        "clients",
        "threads",
        "compute_nodes",
        "memory_nodes",
        "ops",
        "virtual_seconds",
        "throughput_ops_per_s",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "wrong_answers",
        "errors",
        "index",
        "preset",
    ];
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(|(value, row)| cells(what, *value, row)).collect(),
    }
}

fn curve(name: &str, rows: &[(usize, SimRow)], y: impl Fn(&SimRow) -> f64) -> Curve {
    let mut points: Vec<_> = rows.iter().map(|(value, row)| (*value as f64, y(row))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Curve { name: name.to_owned(), points, dots: true }
}

/// The figures, the throughput first.
fn figures(what: What, first: &SimRow, rows: &[(usize, SimRow)]) -> [Figure; 2] {
    let micros = |ns: u64| ns as f64 / 1000.0;
    let x = what.name().replace('-', " ");
    let ticks: Vec<f64> = rows.iter().map(|(value, _)| *value as f64).collect();
    let (index, workload) = (&first.row.index, &first.row.workload);
    let title = |what: &str| format!("{index}, {workload}: predicted {what}, preset {:?}", first.preset);
    [
        Figure {
            title: title("throughput"),
            x: x.clone(),
            y: "million operations per virtual second".to_owned(),
            curves: vec![curve(index, rows, |row| row.row.throughput_ops_per_s / 1e6)],
            ticks: ticks.clone(),
            ..Figure::default()
        },
        Figure {
            title: title("latency"),
            x,
            y: "microseconds".to_owned(),
            ticks,
            curves: vec![
                curve("median", rows, |row| micros(row.row.latency_ns.p50)),
                curve("p99", rows, |row| micros(row.row.latency_ns.p99)),
            ],
            ..Figure::default()
        },
    ]
}

fn page(args: &Args, figures: &[Figure], table: &Table, rows: &[(usize, SimRow)]) -> Result<String, String> {
    let preset = &args.preset;
    let mut page = Page::new(&format!("{} on a simulated cluster, preset {:?}", args.index, preset.name));
    if let Some((_, row)) = rows.first() {
        let row = &row.row;
        page.paragraph(&format!(
            "{} ({}; {}), {} keys of {} + {} bytes, {} operations, seed {}. Predicted by farindex sim in virtual time.",
            row.workload, row.mix, row.distribution, row.keys, row.key_size, row.value_size, row.ops, row.seed
        ));
    }
    for figure in figures {
        page.figure(figure)?;
    }
    page.table(table);
    page.paragraph(&format!("Figures of the preset {:?}, and where they come from:", preset.name));
    let rows = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| vec![(*a).to_owned(), (*b).to_owned()]).collect();
    let head = |second: &str| vec!["figure".to_owned(), second.to_owned()];
    page.table(&Table { head: head("source"), rows: rows(preset.sources) });
    page.paragraph("Assumed, because no paper gives it:");
    page.table(&Table { head: head("assumption"), rows: rows(preset.assumptions) });
    Ok(page.finish())
}

/// A row for machines, with the number that was changed for it.
#[derive(serde::Serialize)]
struct Swept<'a> {
    swept: &'static str,
    value: usize,
    #[serde(flatten)]
    row: &'a SimRow,
}

/// Writes `OUT` with this ending.
pub(crate) fn write(out: &Path, ending: &str, text: &str) -> Result<PathBuf, Failure> {
    let mut path = out.to_owned().into_os_string();
    path.push(ending);
    let path = PathBuf::from(path);
    std::fs::write(&path, text).map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
    Ok(path)
}

pub(super) fn run(args: &Args, sweep: &Sweep, wanted: Option<bool>) -> Result<u8, Failure> {
    let runs = sweep.values.iter().map(|&value| args.resolve(sweep.what.numbers(value)));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let stop = signals::stop_flag()?;
    let bar = progress::bar(wanted, "[{bar:30}] {human_pos} of {human_len} runs, {elapsed}");
    if let Some(bar) = &bar {
        bar.set_length(runs.len() as u64);
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<_>, Failure> {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(number).filter(|_| !stop.load(Ordering::SeqCst)) else { return Ok(done) };
            let row = measure(run, &Control { stop: Arc::clone(&stop), progress: None })?.0;
            done.push((number, row));
            if let Some(bar) = &bar {
                bar.inc(1);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut done = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(part) => done.extend(part?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<_, Failure>(done)
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let mut done = done?;
    done.sort_by_key(|(number, _)| *number);
    let values = |number: usize| sweep.values.get(number).copied().unwrap_or_default();
    // A run that was cut short would be a point that means something else.
    let complete = done.into_iter().filter(|(_, row)| !row.row.interrupted);
    let rows: Vec<_> = complete.map(|(number, row)| (values(number), row)).collect();
    let table = table(sweep.what, &rows);
    let mut files = vec![write(&args.out, ".csv", &table.csv())?];
    if let Some((_, first)) = rows.first() {
        let figures = figures(sweep.what, first, &rows);
        let bug = |what: String| Failure::new(exit::BUG, what);
        let svg = figures[0].svg().map_err(bug)?;
        files.push(write(&args.out, ".svg", &svg)?);
        files.push(write(&args.out, ".html", &page(args, &figures, &table, &rows).map_err(bug)?)?);
    }
    let names: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    let what = sweep.what.name();
    let swept: Vec<_> = rows.iter().map(|(value, row)| Swept { swept: what, value: *value, row }).collect();
    args.json.give(&json!({ "files": names, "rows": swept }), || {
        let rows: Vec<_> = rows.iter().map(|(value, row)| (value.to_string(), &row.row)).collect();
        let table = farindex_bench::record::labelled(what, &rows);
        format!("preset {:?}\n\n{table}\nwritten: {}\n", args.preset.name, names.join(", "))
    })?;
    if stop.load(Ordering::SeqCst) {
        return Ok(exit::INTERRUPTED);
    }
    Ok(if rows.iter().all(|(_, row)| sound(row)) { exit::OK } else { exit::NO })
}
