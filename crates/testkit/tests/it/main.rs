//! What `farindex check` runs, for every kind: sound code passes, with and without the lock table, with and without
//! crashes.

use farindex_testkit::seeds_or;
use farindex_testkit::test_run;
use farindex_testkit::test_runs::{SHIPPED, test_runs};
use std::ops::ControlFlow;

fn every_kind_survives(crashes: bool, coalesces: bool) {
    // Behind the lock table, seed 3000020 of SHARD failed with crashes: a client that took over a slot inherited the
    // table of the client that had crashed in it.
    let seeds = seeds_or(3_000_000..3_000_040);
    for test_run in
        test_runs().iter().filter(|test_run| test_run.variant == SHIPPED && test_run.coalesces() == coalesces)
    {
        let setup = if crashes { test_run.setup.clone().with_crashes() } else { test_run.setup.clone() };
        let totals = test_run.explore(seeds.clone(), &setup, |_| ControlFlow::Continue(()));
        println!("{}: {totals}", test_run.kind);
        totals.assert_sound();
        totals.assert_marks(["operations: gets of many keys"]);
        assert_eq!(totals.crashes > 0, crashes, "{}: {} crashes", test_run.kind, totals.crashes);
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
        let test_run = test_run("shard", SHIPPED, coalesces).expect("a test run");
        let report = test_run.run_seed(seed, &test_run.setup.clone().with_crashes());
        assert!(report.is_sound(), "{report}");
    }
}
