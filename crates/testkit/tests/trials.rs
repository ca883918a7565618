//! What `farindex check` runs, for every kind: sound code passes, with and without the lock table, with and without crashes.

use farindex_testkit::seeds_or;
use farindex_testkit::trial;
use farindex_testkit::trials::{SHIPPED, trials};
use std::ops::ControlFlow;

fn every_kind_survives(crashes: bool, coalesces: bool) {
    // Behind the lock table, seed 3000020 of SHARD failed with crashes: a client that took over a slot inherited the table of
    // the client that had crashed in it.
    let seeds = seeds_or(3_000_000..3_000_040);
    for trial in trials().iter().filter(|trial| trial.variant == SHIPPED && trial.coalesces == coalesces) {
        let setup = if crashes { trial.setup.clone().with_deaths() } else { trial.setup.clone() };
        let totals = trial.explore(seeds.clone(), &setup, |_| ControlFlow::Continue(()));
        println!("{}: {totals}", trial.kind);
        totals.assert_sound();
        totals.assert_marks(["operations: gets of many keys"]);
        assert_eq!(totals.crashes > 0, crashes, "{}: {} crashes", trial.kind, totals.crashes);
    }
}

#[test]
fn every_kind_survives_the_adversary() {
    every_kind_survives(false, false);
}

#[test]
fn every_kind_survives_crashes() {
    every_kind_survives(true, false);
}

#[test]
fn every_kind_survives_behind_the_lock_table() {
    every_kind_survives(false, true);
}

#[test]
fn every_kind_survives_crashes_behind_the_lock_table() {
    every_kind_survives(true, true);
}

#[test]
fn seeds_that_once_failed() {
    // docs/bugs/108
    for (seed, coalesces) in [(9242, false), (11_047, true)] {
        let trial = trial("shard", SHIPPED, coalesces).expect("a trial");
        let report = trial.run_seed(seed, &trial.setup.clone().with_deaths());
        assert!(report.is_sound(), "{report}");
    }
}
