//! Many seeds, on all cores.

use crate::report::{SeedReport, Totals};
use crate::{Setup, Subject, run_seed};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The seeds that `FARINDEX_SEEDS=A..B` asks for, or these.
///
/// # Panics
/// If the variable holds something else.
pub fn seeds_or(usual: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("FARINDEX_SEEDS") else { return usual };
    let parsed = asked.split_once("..").and_then(|(low, high)| Some(low.parse().ok()?..high.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("FARINDEX_SEEDS={asked}: it takes a range like 0..1000"))
}

/// Runs these seeds.
pub fn run_seeds<S: Subject + Sync>(seeds: Range<u64>, setup: &Setup, subject: &S) -> Totals {
    run_until(seeds, setup, subject, |_| false)
}

/// Runs these seeds until one of them is `enough`; which further ones have run by then is left open.
pub fn run_until<S: Subject + Sync>(
    seeds: Range<u64>,
    setup: &Setup,
    subject: &S,
    enough: impl Fn(&SeedReport) -> bool + Sync,
) -> Totals {
    run_on_all_cores(seeds, |seed| run_seed(seed, setup, subject), enough)
}

/// Runs one seed with each of these setups.
pub fn run_cases<S: Subject + Sync>(cases: &[(u64, Setup)], subject: &S) -> Totals {
    let run = |case: u64| {
        let (seed, setup) = &cases[case as usize];
        run_seed(*seed, setup, subject)
    };
    run_on_all_cores(0..cases.len() as u64, run, |_| false)
}

fn run_on_all_cores(
    numbers: Range<u64>,
    run: impl Fn(u64) -> SeedReport + Sync,
    enough: impl Fn(&SeedReport) -> bool + Sync,
) -> Totals {
    let next = AtomicU64::new(numbers.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut totals = Totals::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return totals;
            }
            let report = run(number);
            if !report.is_sound() {
                eprintln!("{report}");
            }
            if enough(&report) {
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

/// Runs one seed and tells everything about it; with `FARINDEX_LOG=N` also the last N steps of the simulator.
pub fn replay<S: Subject>(seed: u64, setup: &Setup, subject: &S) -> SeedReport {
    let log = std::env::var("FARINDEX_LOG").ok().and_then(|log| log.parse().ok()).unwrap_or(setup.log);
    let report = run_seed(seed, &Setup { log, ..setup.clone() }, subject);
    eprintln!("{}\n{report}", report.log);
    report
}
