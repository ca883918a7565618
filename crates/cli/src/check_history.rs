//! `farindex check-history`.

use crate::exit::{self, Failure};
use crate::output::Json;
use farindex_check::{History, Limits, Operation, Report, Verdict, check, format, timeline};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Check a recorded history: are the answers those of a linearizable map?
///
/// A history is a file of JSON lines: client, call, times and answer of each operation (docs/history-format.md); - is
/// standard input. Several files are parts of one history, as several processes recorded it by one clock. Exit code 0
/// if every key is linearizable, 1 if one is not, or if one could not be decided within the limits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The history, or its parts
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Draw the history, or what is wrong with it, as one HTML page
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Steps of the search for one key, at about 100 bytes each, before the key counts as undecided
    #[arg(long, value_name = "N", default_value = "5M", value_parser = farindex_bench::size::parse_count)]
    steps: u64,
    /// Time for the whole check, such as 30s; keys that it does not suffice for are undecided
    #[arg(long, value_name = "TIME", value_parser = farindex_bench::size::parse_duration)]
    limit: Option<Duration>,
    #[command(flatten)]
    json: Json,
}

fn read(path: &Path) -> Result<History, Failure> {
    let read = if path.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            crate::output::note("reading a history from standard input");
        }
        format::read(BufReader::new(io::stdin().lock()))
    } else {
        let file = File::open(path).map_err(|error| Failure::file(path.display(), "cannot be opened", &error))?;
        format::read(BufReader::new(file))
    };
    read.map_err(|error| Failure::new(exit::FILE, format!("{}: {error}", path.display())))
}

/// One history from its parts. The clients of different files are different ones: those of a later file are numbered
/// on.
fn merge(parts: Vec<History>) -> Result<History, Failure> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut next = 0u64;
    for part in parts {
        let first = next;
        for mut operation in part.into_operations() {
            operation.client = operation.client.saturating_add(first);
            next = next.max(operation.client.saturating_add(1));
            operations.push(operation);
        }
    }
    operations.sort_by_key(|operation| (operation.invoked, operation.client));
    History::new(operations).map_err(|error| Failure::new(exit::FILE, error.to_string()))
}

pub(crate) fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Violation => "violation",
        Verdict::Unknown => "unknown",
    }
}

/// A key or an explanation, as text.
fn key(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// What machines get of a report.
pub(crate) fn summary(report: &Report) -> serde_json::Value {
    let violations: Vec<_> = report
        .keys
        .iter()
        .map(|violation| {
            json!({
                "key": key(&violation.key),
                "promise": match violation.promise {
                    farindex_check::Promise::Linearizability => "linearizability",
                    farindex_check::Promise::ScanContent => "scan content",
                },
                "explanation": violation.explanation.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    let scans = report.scans.iter().map(|scan| json!({ "operation": scan.operation, "fault": scan.fault.to_string() }));
    json!({
        "verdict": name(report.verdict),
        "operations": report.stats.operations,
        "keys": report.stats.keys,
        "steps": report.stats.steps,
        "violations": violations,
        "scans": scans.collect::<Vec<_>>(),
        "undecided": report.undecided.iter().map(|undecided| key(undecided)).collect::<Vec<_>>(),
    })
}

/// Writes a history as an HTML page.
pub(crate) fn draw(path: &Path, history: &History, report: &Report, title: String) -> Result<(), Failure> {
    let options = timeline::Options { title, ..timeline::Options::default() };
    let page = timeline::html(history, report, &options);
    std::fs::write(path, page).map_err(|error| Failure::file(path.display(), "cannot be written", &error))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let parts = args.files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let history = match <[History; 1]>::try_from(parts) {
        Ok([history]) => history,
        Err(parts) => merge(parts)?,
    };
    let limits = Limits { steps_per_key: args.steps, time: args.limit, ..Limits::default() };
    let report = check(&history, &limits);
    if let Some(path) = &args.timeline {
        let names: Vec<_> = args.files.iter().map(|path| path.display().to_string()).collect();
        draw(path, &history, &report, format!("{}: {}", names.join(", "), name(report.verdict)))?;
    }
    args.json.give(&summary(&report), || report.to_string())?;
    Ok(if report.verdict == Verdict::Ok { exit::OK } else { exit::NO })
}
