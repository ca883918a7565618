//! The cases of `farindex check`, one by one. A case is `KIND,FLAGS:SEED`, with the flags of the command (`crashes`,
//! `plain`, `coalesce`), `quiet` for the feature of that name, or the name of a variant: `race,crashes:7` is
//! `farindex check --index race --crashes --replay 7`.
//!
//! `adversary survey KIND,FLAGS N` runs the seeds below N, and prints which of them pass each mutant: bit by bit, as one
//! hexadecimal number. `adversary CASE...` runs these until the first that fails.
use farindex_fabric::switch;
use farindex_testkit::test_runs::SHIPPED;
use farindex_testkit::{Feature, Setup, TestRun, test_run};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A case that takes so many hundredths of a second of the processor never ends: what awaits nothing takes no step of the
/// simulator, whose limit would end it.
const ENDLESS: u64 = 1500;

/// Steps of the simulator after which a case counts as a livelock: fewer than `farindex check` allows, and more than
/// any sound seed of a survey takes.
const STEPS: u64 = 5_000_000;

/// What `farindex check` runs with these flags.
fn command(text: &str) -> (TestRun, Setup) {
    let (kind, flags) = text.split_once(',').unwrap_or((text, ""));
    let flags: Vec<_> = flags.split(',').collect();
    let variant = if flags.contains(&"write-back") { "write-back" } else { SHIPPED };
    let test_run = test_run(kind, variant, flags.contains(&"coalesce")).expect("a kind of index");
    let setup = if flags.contains(&"crashes") { test_run.setup.clone().with_crashes() } else { test_run.setup.clone() };
    let setup = if flags.contains(&"quiet") { setup.with(Feature::Quiet) } else { setup };
    let swarm = !flags.contains(&"quiet") && !flags.contains(&"plain");
    (test_run, Setup { swarm, max_steps: STEPS, ..setup })
}

/// Hundredths of a second that this process has run.
fn processor_time() -> u64 {
    let all = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let behind_name = all.rsplit(')').next().unwrap_or_default();
    behind_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

fn survey(text: &str, seeds: u64) {
    let (test_run, setup) = command(text);
    let mut passed: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut steps = 0;
    for seed in 0..seeds {
        let report = test_run.run_seed(seed, &setup);
        assert!(report.is_sound(), "{text}:{seed} fails without a mutant: {report}");
        steps = steps.max(report.events);
        for mutant in switch::take_reached() {
            let digits = passed.entry(mutant).or_insert_with(|| vec![0; seeds.div_ceil(4) as usize]);
            digits[(seed / 4) as usize] |= 1 << (seed % 4);
        }
    }
    println!("steps {steps}");
    for (mutant, digits) in passed {
        let digits: String = digits.iter().rev().map(|digit| format!("{digit:x}")).collect();
        println!("{mutant} {digits}");
    }
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if let [what, command, seeds] = &asked[..]
        && what == "survey"
    {
        return survey(command, seeds.parse().expect("a number of seeds"));
    }
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    let shown = asked.clone();
    std::thread::spawn(move || {
        let (mut case, mut since) = (0, 0);
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = (BEGUN.load(Relaxed), processor_time());
            if now.0 != case {
                (case, since) = now;
            } else if now.1 > since + ENDLESS {
                println!("{} does not end", shown[case as usize]);
                std::process::exit(1);
            }
        }
    });
    for (number, case) in asked.iter().enumerate() {
        BEGUN.store(number as u64, Relaxed);
        let (text, seed) = case.split_once(':').expect("KIND,FLAGS:SEED");
        let (test_run, setup) = command(text);
        let report = test_run.run_seed(seed.parse().expect("a seed"), &setup);
        if !report.is_sound() {
            let failures = report.failures.iter().filter_map(|failure| failure.lines().next());
            println!("{case} {}", failures.collect::<Vec<_>>().join(" | "));
            std::process::exit(1);
        }
    }
}
