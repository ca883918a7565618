//! SHARD under the adversary, case by case: `adversary survey` runs all cases, and prints those that pass each mutant;
//! `adversary CASE...` runs these, until the first that fails.
use farindex_fabric::switch;
use farindex_sim::{CrashOutcome, ODDS};
use farindex_testkit::shard::ShardUnderTest;
use farindex_testkit::{Setup, run_seed};
use std::collections::BTreeMap;

/// So many cases are kept for each mutant.
const KEPT: usize = 1000;

/// Cases without crashes, with crashes, of gets of many keys, and with a crash at a certain verb alternate.
fn cases() -> Vec<(u64, Setup)> {
    let mut cases = Vec::new();
    for round in 0..1200 {
        cases.push((round, Setup::default()));
        cases.extend((0..3).map(|i| (round * 3 + i, Setup::crashing())));
        if round % 2 == 0 {
            let crash_outcome = [CrashOutcome::Lost, CrashOutcome::Landed, CrashOutcome::Prefix][round as usize / 2 % 3];
            let setup = Setup { crashes_at: Some((1 + round / 2, crash_outcome)), tight: 0, ..Setup::crashing() };
            cases.push((round % 12, Setup { crashes: 0, clients: (2, 3), coroutines: (1, 2), ..setup }));
        }
        if round % 10 == 0 {
            cases.push((round, Setup { many: ODDS * 2 / 3, ..Setup::default() }));
        }
    }
    cases
}

fn main() {
    let (cases, access) = (cases(), ShardUnderTest::repaired());
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if asked == ["survey"] {
        let mut passed: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (case, (seed, setup)) in cases.iter().enumerate() {
            assert!(run_seed(*seed, setup, &access).is_sound(), "case {case} fails without a mutant");
            for mutant in switch::take_reached() {
                passed.entry(mutant).or_default().push(case);
            }
        }
        for (mutant, mut cases) in passed {
            cases.truncate(KEPT);
            println!("{mutant} {}", cases.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        }
        return;
    }
    for case in asked.iter().filter_map(|case| case.parse::<usize>().ok()) {
        let (seed, setup) = &cases[case];
        let report = run_seed(*seed, setup, &access);
        if !report.is_sound() {
            println!("{case} {} {}", report.seed, report.failures[0].lines().next().unwrap_or(""));
            std::process::exit(1);
        }
    }
}
