//! Many seeds, on all cores.

use crate::index_under_test::IndexUnderTest;
use crate::report::{SeedReport, Totals};
use crate::{Setup, TestRun, run_seed};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds as people write them: `0..1000`, the end left out.
pub fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(low, high)| Some(low.parse().ok()?..high.parse().ok()?));
    match range {
        None => Err(format!("{text:?} is no range of seeds: it takes one like 0..1000")),
        Some(range) if range.is_empty() => Err(format!("{text} holds no seed: it takes a range like 0..1000")),
        Some(range) => Ok(range),
    }
}

/// The seeds that `FARINDEX_SEEDS=A..B` asks for, or these.
///
/// # Panics
/// If the variable holds something else.
pub fn seeds_or(usual: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("FARINDEX_SEEDS") else { return usual };
    parse_seeds(&asked).unwrap_or_else(|why| panic!("FARINDEX_SEEDS={asked}: {why}"))
}

/// A quick run has one seed in so many.
const QUICK: u64 = 6;

/// A run has one in so many of the seeds of a test, and of the places of a sweep. `cargo test` is quick, for people who wait
/// for it; `FARINDEX_EFFORT=half` leaves out every other one, as CI does in a stage of its own, and `FARINDEX_EFFORT=full` none.
///
/// # Panics
/// If the variable holds something else.
pub fn one_in() -> u64 {
    match std::env::var("FARINDEX_EFFORT").as_deref() {
        Err(_) => QUICK,
        Ok("half") => 2,
        Ok("full") => 1,
        Ok(other) => panic!("FARINDEX_EFFORT={other}: it is half or full, or not set"),
    }
}

/// Whether this run is a thorough one: not quick.
///
/// # Panics
/// If the variable holds something else.
pub fn is_thorough() -> bool {
    one_in() < QUICK
}

/// The seeds that `FARINDEX_SEEDS=A..B` asks for; or the first ones of these, [so many](one_in) as the run has.
///
/// # Panics
/// If a variable holds something else.
pub fn sampled_seeds(all: Range<u64>) -> Range<u64> {
    let count = (all.end - all.start).div_ceil(one_in());
    seeds_or(all.start..all.start + count)
}

/// The distance of the verbs at which a sweep crashes or stalls a client: what `FARINDEX_EVERY=N` asks for; or this one in a
/// full run; or else [so many](one_in) times as much, and one more. It stays odd, so that verbs of all places of a batch are
/// met.
pub fn sweep_step(full: usize) -> usize {
    let asked = std::env::var("FARINDEX_EVERY").ok().and_then(|every| every.parse().ok());
    let one_in = one_in() as usize;
    asked.unwrap_or(if one_in == 1 { full } else { full * one_in + 1 })
}

/// One for each core.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs these seeds.
pub fn run_seeds(seeds: Range<u64>, setup: &Setup, index_under_test: &dyn IndexUnderTest) -> Totals {
    run_until(seeds, setup, index_under_test, |_| false)
}

/// Runs these seeds until one of them is `enough`; which further ones have run by then is left open. Failures are
/// printed as they come.
pub fn run_until(
    seeds: Range<u64>,
    setup: &Setup,
    index_under_test: &dyn IndexUnderTest,
    enough: impl Fn(&SeedReport) -> bool + Sync,
) -> Totals {
    explore(seeds, setup, index_under_test, printing(enough))
}

/// Runs one seed with each of these setups.
pub fn run_cases(cases: &[(u64, Setup)], index_under_test: &dyn IndexUnderTest) -> Totals {
    let run = |case: u64| {
        let (seed, setup) = &cases[case as usize];
        run_seed(*seed, setup, index_under_test)
    };
    run_on_all_cores(0..cases.len() as u64, run, printing(|_| false))
}

/// Runs these seeds in their order, on all cores. `each` gets every report, on any thread, and may end the run: seeds
/// that other threads have begun by then are still finished and counted.
pub fn explore(
    seeds: Range<u64>,
    setup: &Setup,
    index_under_test: &dyn IndexUnderTest,
    each: impl Fn(&SeedReport) -> ControlFlow<()> + Sync,
) -> Totals {
    run_on_all_cores(seeds, |seed| run_seed(seed, setup, index_under_test), each)
}

impl TestRun {
    /// [`explore`] for this test run.
    pub fn explore(
        &self,
        seeds: Range<u64>,
        setup: &Setup,
        each: impl Fn(&SeedReport) -> ControlFlow<()> + Sync,
    ) -> Totals {
        run_on_all_cores(seeds, |seed| self.run_seed(seed, setup), each)
    }
}

/// Prints failures as they come, and ends the run when there is enough.
fn printing(enough: impl Fn(&SeedReport) -> bool + Sync) -> impl Fn(&SeedReport) -> ControlFlow<()> + Sync {
    move |report| {
        if !report.is_sound() {
            eprintln!("{report}");
        }
        if enough(report) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn run_on_all_cores(
    numbers: Range<u64>,
    run: impl Fn(u64) -> SeedReport + Sync,
    each: impl Fn(&SeedReport) -> ControlFlow<()> + Sync,
) -> Totals {
    let next = AtomicU64::new(numbers.start);
    let threads = threads();
    let work = || {
        let mut totals = Totals::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return totals;
            }
            let report = run(number);
            if each(&report).is_break() {
                next.fetch_max(numbers.end, Ordering::Relaxed);
            }
            totals.add(report);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut totals = Totals::default();
        for worker in workers {
            match worker.join() {
                Ok(part) => totals.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        totals
    })
}

/// Runs one seed and prints everything about it; with `FARINDEX_LOG=N` also the last N steps of the simulator.
pub fn replay(seed: u64, setup: &Setup, index_under_test: &dyn IndexUnderTest) -> SeedReport {
    let log = std::env::var("FARINDEX_LOG").ok().and_then(|log| log.parse().ok()).unwrap_or(setup.log);
    let report = run_seed(seed, &Setup { log, ..setup.clone() }, index_under_test);
    eprintln!("{}\n{report}", report.log);
    report
}
