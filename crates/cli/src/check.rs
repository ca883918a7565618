//! `farindex check`.

use crate::check_history::draw;
use crate::exit::{self, Failure};
use crate::kind::kinds;
use crate::output::{Json, note};
use crate::{progress, signals};
use clap::builder::PossibleValuesParser;
use farindex::IndexConfig;
use farindex_check::{Limits, check, format};
use farindex_testkit::test_runs::{PUBLISHED, SHIPPED};
use farindex_testkit::{SeedReport, Setup, Size, TestRun, Totals, parse_seeds, test_run};
use serde_json::json;
use std::fs::File;
use std::io::BufWriter;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Look for bugs in an index: seeds of a simulated cluster under an adversary, every history checked
///
/// The adversary delays, reorders and tears verbs wherever the fabric gives no guarantee (N1 to N7 of its contract).
/// Each seed draws a cluster, a workload, the adversary's settings and features (docs/adversary.md), such as stalls, keys
/// that collide, full pools and walks; clients work on a few hot keys while the table grows; the history is checked for linearizability, key by key; at the end the index and the pool's memory are
/// audited. A seed and its flags are a repeatable test case: --replay SEED shows one again, exactly. Exit code 0 only
/// if nothing was found.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which index
    #[arg(long, default_value = IndexConfig::default().kind(), value_parser = PossibleValuesParser::new(kinds()))]
    index: String,
    /// Which protocol: as shipped, or a faulty one that the check must detect, such as published
    #[arg(long, default_value = SHIPPED)]
    variant: String,
    /// Which seeds, the end left out [default: 0..1000]
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
    /// Run one seed, say what is wrong with it, and print its steps if --log asks for them
    #[arg(long, value_name = "SEED", conflicts_with = "seeds")]
    replay: Option<u64>,
    /// With --replay: draw the history as one HTML page
    #[arg(long, value_name = "FILE", requires = "replay")]
    timeline: Option<PathBuf>,
    /// With --replay: write the history (docs/history-format.md), for check-history
    #[arg(long, value_name = "FILE", requires = "replay")]
    history: Option<PathBuf>,
    /// With --replay: print the last N steps of the simulator on standard error
    #[arg(long, value_name = "N", requires = "replay", default_value_t = 0)]
    log: usize,
    /// Clients, each a compute node of its own [default: drawn, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=7))]
    clients: Option<u64>,
    /// Operations of each coroutine; a client has 1 to 3 of them [default: drawn, 10 to 40]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ops: Option<u64>,
    /// Keys, at most: a few hot ones, others in one place of the table or anywhere [default: drawn, up to 160]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keys: Option<u64>,
    /// Put the local lock table before the index: operations of one client on one key share their verbs
    #[arg(long)]
    coalesce: bool,
    /// Crash clients between two verbs, while they have verbs in flight
    #[arg(long)]
    crashes: bool,
    /// Stop clients between two verbs of a batch, until others have completed some operations, in every seed
    #[arg(long)]
    stall: bool,
    /// Draw no features: what a seed was before there were any
    #[arg(long)]
    plain: bool,
    /// Show a progress bar even if standard error is no terminal
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,
    /// Show no progress bar
    #[arg(long)]
    no_progress: bool,
    #[command(flatten)]
    json: Json,
}

impl Args {
    /// The setup, changed as the flags say.
    fn setup(&self, mut setup: Setup) -> Setup {
        if self.crashes {
            setup = setup.with_crashes();
        }
        // Features draw sizes of their own, and published variants are detected by setups of their own.
        let sized = self.clients.or(self.ops).or(self.keys).is_some();
        setup.swarm = !self.plain && !sized && self.variant != PUBLISHED;
        setup.stalling = self.stall;
        Size { clients: self.clients, operations: self.ops, keys: self.keys }.apply(&mut setup);
        setup
    }

    /// The command that shows a seed again.
    fn replay_command(&self, seed: u64) -> String {
        let mut command = format!("farindex check --index {} --replay {seed}", self.index);
        if self.variant != SHIPPED {
            command += &format!(" --variant {}", self.variant);
        }
        for (flag, value) in [("--clients", self.clients), ("--ops", self.ops), ("--keys", self.keys)] {
            if let Some(value) = value {
                command += &format!(" {flag} {value}");
            }
        }
        for (flag, given) in [
            ("--coalesce", self.coalesce),
            ("--crashes", self.crashes),
            ("--stall", self.stall),
            ("--plain", self.plain),
        ] {
            if given {
                command += &format!(" {flag}");
            }
        }
        command
    }
}

/// What machines get of a replayed seed.
fn seed_json(report: &SeedReport) -> serde_json::Value {
    json!({
        "seed": report.seed,
        "settings": report.settings,
        "operations": report.operations,
        "verbs": report.verbs,
        "crashes": report.crashes,
        "violation": report.violation,
        "unknown": report.unknown,
        "failures": report.failures,
    })
}

fn replay(args: &Args, seed: u64, setup: Setup, test_run: &TestRun) -> Result<u8, Failure> {
    let report = test_run.run_seed(seed, &Setup { log: args.log, ..setup });
    if args.log > 0 {
        note(&report.log);
    }
    let history = || {
        let none = || Failure::new(exit::BUG, format!("seed {seed} left no history"));
        report.history.as_ref().ok_or_else(none)
    };
    if let Some(path) = &args.history {
        let history = history()?;
        let written = File::create(path).and_then(|file| format::write(history, BufWriter::new(file)));
        written.map_err(|error| Failure::file(path.display(), "cannot be written", &error))?;
    }
    if let Some(path) = &args.timeline {
        let history = history()?;
        let checked = check(history, &Limits::default());
        let title = format!("{} ({}), seed {seed}", args.index, args.variant);
        draw(path, history, &checked, title)?;
    }
    args.json.give(&seed_json(&report), || report.to_string())?;
    Ok(if report.is_sound() && report.unknown == 0 { exit::OK } else { exit::NO })
}

/// What was found, in words.
fn text(args: &Args, totals: &Totals, seconds: f64) -> String {
    let Totals { seeds, operations, verbs, crashes, violations, deadlocks, livelocks, problems, unknown, .. } = totals;
    let mut text = format!(
        "{} ({}): {seeds} seeds, {operations} operations, {verbs} verbs, {crashes} crashes in {seconds:.1} s\n\
         {violations} violations, {deadlocks} deadlocks, {livelocks} livelocks, {problems} other problems, {unknown} keys undecided\n",
        args.index, args.variant,
    );
    if let Some(seed) = totals.first_failing_seed() {
        let (count, replay) = (totals.failed.len(), args.replay_command(seed));
        text += &format!("{count} seeds failed, the first is {seed}: {replay} --timeline timeline.html\n");
    }
    if let Some(seed) = totals.undecided.first() {
        let (count, replay) = (totals.undecided.len(), args.replay_command(*seed));
        text += &format!(
            "{count} seeds have undecided keys, the first is {seed}. To search for longer: {replay} --history history.jsonl; \
             farindex check-history --steps 100M history.jsonl\n"
        );
    }
    for report in totals.failures.iter().take(1) {
        text += &format!("\n{report}");
    }
    text
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let test_run = test_run(&args.index, &args.variant, args.coalesce).map_err(Failure::usage)?;
    let setup = args.setup(test_run.setup.clone());
    match args.replay {
        Some(seed) => replay(args, seed, setup, &test_run),
        None => search(args, &setup, &test_run),
    }
}

fn search(args: &Args, setup: &Setup, test_run: &TestRun) -> Result<u8, Failure> {
    let stop = signals::stop_flag()?;
    let wanted = match (args.progress, args.no_progress) {
        (_, true) => Some(false),
        (true, false) => Some(true),
        (false, false) => None,
    };
    let seeds = args.seeds.clone().unwrap_or(0..1000);
    let bar = progress::bar(wanted, "[{bar:30}] {human_pos} of {human_len} seeds, {msg}, {elapsed} (ends in {eta})");
    if let Some(bar) = &bar {
        bar.set_length(seeds.end - seeds.start);
        bar.set_message("nothing found");
    }
    let (done, failed, shown) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Instant::now()));
    let each = |report: &SeedReport| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        let failed = failed.fetch_add(u64::from(!report.is_sound()), Ordering::Relaxed) + u64::from(!report.is_sound());
        // A thread that finds the clock taken leaves the progress bar to its holder.
        if let (Some(bar), Ok(mut shown)) = (&bar, shown.try_lock())
            && shown.elapsed().as_millis() >= 100
        {
            *shown = Instant::now();
            bar.set_position(done);
            if failed > 0 {
                bar.set_message(format!("{failed} FAILED"));
            }
        }
        if stop.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let began = Instant::now();
    let totals = test_run.explore(seeds, setup, each);
    let seconds = began.elapsed().as_secs_f64();
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let interrupted = stop.load(Ordering::SeqCst);
    let result = json!({
        "index": args.index,
        "variant": args.variant,
        "coalesce": args.coalesce,
        "seeds_run": totals.seeds,
        "operations": totals.operations,
        "crashes": totals.crashes,
        "violations": totals.violations,
        "deadlocks": totals.deadlocks,
        "livelocks": totals.livelocks,
        "problems": totals.problems,
        "unknown": totals.unknown,
        "seeds_failed": totals.failed.len(),
        "first_failing_seed": totals.first_failing_seed(),
        "first_undecided_seed": totals.undecided.first(),
        "verbs": totals.verbs,
        "seconds": (seconds * 1000.0).round() / 1000.0,
        "verbs_per_second": (totals.verbs as f64 / seconds.max(1e-9)).round(),
        "interrupted": interrupted,
    });
    args.json.give(&result, || text(args, &totals, seconds))?;
    if interrupted {
        return Ok(exit::INTERRUPTED);
    }
    Ok(if totals.failed.is_empty() && totals.unknown == 0 { exit::OK } else { exit::NO })
}
