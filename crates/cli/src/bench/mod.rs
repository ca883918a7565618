//! `farindex bench`.

mod daemon;
pub(crate) mod history;
mod options;
pub(crate) mod reference;

use crate::exit::{self, Failure};
use crate::output::{Json, note};
use crate::{progress, signals};
use daemon::Daemon;
use farindex::{Error, Pool, PoolError, PoolUrl};
use farindex_bench::baseline::{LocalMap, LocalSkipList, Raw, RawSettings, efficiency, in_full_messages};
use farindex_bench::driver::pool_index::PoolIndexBench;
use farindex_bench::record::{Identity, table};
use farindex_bench::scenario::Finding;
use farindex_bench::{Bench, Control, Outcome, Plan, Progress, Row};
use farindex_fabric::{Fabric, MemoryFabric, ShmFabric};
use indicatif::ProgressBar;
pub(crate) use options::{FabricKind, Work, check_limits};
use options::{Options, Run};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Measure an index
///
/// Without arguments: 100,000 keys of 8 + 8 bytes on the memory fabric, 100,000 operations to warm up and 1 M measured
/// by 8 clients of one thread, half get, half update (YCSB A), within seconds. Every answer is verified while running.
/// Throughput, latencies, and for each kind of operation its cost in verbs: READ, WRITE, compare-and-swap (CAS),
/// fetch-and-add (FAA), round trips (sequential waits). `efficiency` is throughput as a share of the raw reference's,
/// which posts the same verbs and does nothing else. On a fabric of messages, the messages that were sent for each
/// operation, and what the reference reaches with so many clients that its messages are full.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// Operations of this process on one key share their verbs: the local lock table
    #[arg(long)]
    coalesce: bool,
    #[command(flatten)]
    history: history::History,
    /// Do not run the raw reference afterwards: no efficiency
    #[arg(long)]
    no_efficiency: bool,
    /// Show a progress bar even if standard error is no terminal
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,
    /// Show no progress bar
    #[arg(long)]
    no_progress: bool,
    #[command(flatten)]
    json: Json,
}

/// How runs are watched and ended.
pub(crate) struct Watch {
    pub(crate) stop: Arc<AtomicBool>,
    bar: Option<ProgressBar>,
}

impl Watch {
    pub(crate) fn new(wanted: Option<bool>) -> Result<Self, Failure> {
        let bar = progress::bar(wanted, "{msg:>10} [{bar:30}] {human_pos} of {human_len} operations, {elapsed}");
        Ok(Watch { stop: signals::stop_flag()?, bar })
    }
    pub(crate) fn run<B: Bench>(&self, bench: &B, plan: &Plan) -> Result<Outcome, Failure> {
        Ok(self.show(|control| farindex_bench::run(bench, plan, control))?)
    }
    /// Runs something under the bar.
    pub(crate) fn show<T>(&self, run: impl FnOnce(&Control<'_>) -> T) -> T {
        let show = |progress: Progress| {
            if let Some(bar) = &self.bar {
                bar.set_message(progress.phase);
                bar.set_length(progress.total.unwrap_or(progress.done));
                bar.set_position(progress.done);
            }
        };
        let progress: Option<&dyn Fn(Progress)> = if self.bar.is_some() { Some(&show) } else { None };
        let result = run(&Control { stop: Arc::clone(&self.stop), progress });
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        result
    }
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// A name in `directory` that no file has.
fn fresh_path(directory: &Path) -> PathBuf {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    directory.join(format!("farindex-bench-{}-{}", std::process::id(), now.as_nanos()))
}

/// Creates mapped files that do not stay, however this process ends: a file that is removed exists for as long as a
/// process has it mapped.
fn nameless<T>(directory: &Path, make: impl FnOnce(PathBuf) -> Result<T, Failure>) -> Result<T, Failure> {
    let path = fresh_path(directory);
    let made = make(path.clone());
    // If it was not made there is nothing to remove.
    let _ = std::fs::remove_file(&path);
    made
}

const SHM: &str = "/dev/shm";

pub(crate) fn make_pool(fabric: FabricKind, path: Option<&Path>, size: u64) -> Result<Pool, Failure> {
    let builder = Pool::builder().unseeded();
    let shm = |path: PathBuf| {
        let url = PoolUrl::Shm { paths: vec![path] };
        Ok(builder.node_bytes(size).create(&url)?)
    };
    match (fabric, path) {
        (FabricKind::Ucx | FabricKind::Verbs, _) => Err(Failure::new(exit::BUG, "a memory node is made by itself")),
        (FabricKind::Memory, _) => Ok(builder.create(&PoolUrl::Memory { len: size, nodes: 1 })?),
        (FabricKind::Shm, Some(path)) => shm(path.to_owned()),
        (FabricKind::Shm, None) => nameless(Path::new(SHM), shm),
    }
}

/// The pool behind memory nodes: the one that is there, or a new one.
fn open_or_create(url: &PoolUrl) -> Result<Pool, Failure> {
    match Pool::builder().unseeded().create(url) {
        Err(Error::Pool(PoolError::Exists(_))) => Ok(Pool::open(url)?),
        made => Ok(made?),
    }
}

/// The raw reference, on a fabric of its own: it scribbles over all of its memory.
fn run_raw(run: &Run, settings: RawSettings, plan: &Plan, watch: &Watch) -> Result<Outcome, Failure> {
    let size = (settings.index_bytes + settings.block_bytes + (1 << 20)).next_multiple_of(2 << 20);
    let mut daemon = None;
    let fabric: Arc<dyn Fabric> = match run.fabric {
        FabricKind::Ucx | FabricKind::Verbs => {
            let started = daemon.insert(Daemon::start(run.fabric.name(), size, run.poll)?);
            farindex::connect(&started.url()?)?
        }
        FabricKind::Memory => Arc::new(MemoryFabric::new(1, size).map_err(farindex::Error::from)?),
        FabricKind::Shm => {
            let directory = run.path.as_deref().and_then(Path::parent).filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.filter(|parent| !parent.starts_with("/dev") || parent.starts_with(SHM));
            Arc::new(nameless(directory.unwrap_or(Path::new(SHM)), |path| {
                Ok(ShmFabric::create(&[path], size).map_err(farindex::Error::from)?)
            })?)
        }
    };
    // Its answers mean nothing: there is nothing to load and nothing to look through afterwards.
    let plan = Plan { load: false, audit: false, ..plan.clone() };
    let raw = Raw::new(&*fabric, settings).map_err(|message| Failure::new(exit::FULL, message))?;
    watch.run(&raw, &plan)
}

/// What was measured, and what was expected of it.
struct Findings {
    row: Row,
    history: Option<history::HistoryReport>,
    findings: Vec<Finding>,
}

fn measure(args: &Args, run: &Run, watch: &Watch) -> Result<Findings, Failure> {
    let identity = |fabric: &str| Identity { index: run.index.name().to_owned(), fabric: fabric.to_owned() };
    let plan = &run.plan;
    let fabric = run.connect.as_ref().map_or(run.fabric.name(), |_| "remote");
    let (mut report_of_history, mut daemon) = (None, None);
    let row = match run.index {
        options::IndexKind::Dashmap => {
            Row::new(identity("none"), &args.history.run(&LocalMap::new(), plan, watch, &mut report_of_history)?)
        }
        options::IndexKind::Skiplist => {
            Row::new(identity("none"), &args.history.run(&LocalSkipList::new(), plan, watch, &mut report_of_history)?)
        }
        options::IndexKind::Raw => {
            let shapes = reference::budget(plan).map_err(|message| Failure::new(exit::BUG, message))?;
            let settings = reference::settings(shapes, plan.keys, None, plan);
            Row::new(identity(fabric), &run_raw(run, settings, plan, watch)?)
        }
        options::IndexKind::Pool(config) => {
            let common = run.connect.clone();
            let common = common.or_else(|| Some(PoolUrl::Shm { paths: vec![run.path.clone()?] }));
            let measured = match common.filter(|_| args.history.joins()) {
                // An index that does not appear is found out before the run.
                Some(url) => PoolIndexBench::existing(args.history.join_pool(&url, watch)?, "bench"),
                None => {
                    let pool = match (&run.connect, run.fabric) {
                        (Some(url), _) => open_or_create(url)?,
                        (None, FabricKind::Ucx | FabricKind::Verbs) => {
                            let started = daemon.insert(Daemon::start(run.fabric.name(), run.size, run.poll)?);
                            Pool::builder().unseeded().create(&started.url()?)?
                        }
                        (None, fabric) => make_pool(fabric, run.path.as_deref(), run.size)?,
                    };
                    PoolIndexBench::create(pool, "bench", &config)?
                }
            };
            let measured = measured.coalesce(args.coalesce);
            let outcome = args.history.run(&measured, plan, watch, &mut report_of_history)?;
            let under = measured.pool.fabric();
            let transports = under.transports();
            let name = under.name();
            if !transports.is_empty() {
                note(format!("{name} has chosen {}", transports.join(", ")));
            }
            if run.connect.is_some() && !args.history.shared() {
                measured.pool.session()?.drop_index("bench")?;
            }
            let mut row = Row::new(identity(name), &outcome);
            // Its memory is the reference's now.
            drop(measured);
            drop(daemon.take());
            // A run whose history is kept is as slow as the keeping.
            let undisturbed = !args.history.wanted() && !args.history.shared();
            let complete = !row.interrupted && row.ops > 0 && row.errors == 0;
            let worth_it = !args.no_efficiency && undisturbed && complete && run.connect.is_none();
            if worth_it {
                let settings = reference::settings(reference::measured(&row, plan), row.entries, row.far_bytes, plan);
                let raw = run_raw(run, settings.clone(), plan, watch)?;
                if row.messages_per_op.is_some() && !raw.interrupted {
                    let full = run_raw(run, settings, &in_full_messages(plan), watch)?;
                    let ceiling = full.measured.throughput();
                    row.ceiling_ops_per_s = (!full.interrupted).then(|| (ceiling * 10.0).round() / 10.0);
                }
                if !raw.interrupted {
                    row.efficiency = efficiency(&outcome, &raw).map(|share| (share * 1e4).round() / 1e4);
                }
            }
            row
        }
    };
    let findings = match &run.expect {
        Some(expect) => expect.check(&row),
        None => Vec::new(),
    };
    Ok(Findings { row, history: report_of_history, findings })
}

/// What machines get.
#[derive(serde::Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    row: &'a Row,
    coalesce: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<&'a history::HistoryReport>,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let mut run = args.options.resolve()?;
    args.history.change(&mut run)?;
    if args.coalesce && !matches!(run.index, options::IndexKind::Pool(_)) {
        return Err(Failure::usage("--coalesce puts a lock table before an index: it takes an index of a pool"));
    }
    if run.connect.is_some() && !matches!(run.index, options::IndexKind::Pool(_)) {
        return Err(Failure::usage(
            "--connect measures an index of a pool; the raw reference would overwrite all of it",
        ));
    }
    let wanted = match (args.progress, args.no_progress) {
        (_, true) => Some(false),
        (true, false) => Some(true),
        (false, false) => None,
    };
    let watch = Watch::new(wanted)?;
    let Findings { row, history, findings } = measure(args, &run, &watch)?;
    // Bounds on an interrupted run, and on what was not measured at one's own wish, say nothing.
    let judged = |finding: &&Finding| {
        !watch.stopped() && finding.what != "interrupted" && !(finding.got.is_none() && finding.what == "efficiency")
    };
    let failed: Vec<_> = findings.iter().filter(judged).filter(|finding| !finding.holds()).collect();
    let shown = Shown { row: &row, coalesce: args.coalesce, history: history.as_ref() };
    args.json.give(&shown, || {
        let mut text = table(std::slice::from_ref(&row));
        if let Some(history) = &history {
            text += &format!("\n{history}");
        }
        if !run.about.is_empty() {
            text = format!("{}\n\n{text}", run.about);
        }
        text
    })?;
    for finding in &failed {
        note(finding);
    }
    if full(&row) {
        note("error: the pool was too small for this run: give it more by --size, or fewer keys");
    }
    if watch.stopped() {
        return Ok(exit::INTERRUPTED);
    }
    let sound = history.is_none_or(|history| history.holds());
    let sound = sound && row.wrong_answers == 0 && row.errors == 0 && failed.is_empty();
    Ok(if sound { exit::OK } else { exit::NO })
}

fn full(row: &Row) -> bool {
    row.error_kinds.iter().any(|fault| fault.kind.contains("Full"))
}
