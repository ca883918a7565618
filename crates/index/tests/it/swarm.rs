//! What `farindex check` runs: each seed draws features. Here the pins are judged as well, and the paths are counted.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it swarm` fails if no seed passes some path.
//! `FARINDEX_KIND=chime` runs one kind alone.

use crate::marks;
use farindex_sim::ODDS;
use farindex_testkit::test_runs::{SHIPPED, shipped};
use farindex_testkit::{Feature, Setup, Totals, run_seeds, seeds_or, test_run};
use std::collections::BTreeSet;

/// Paths of a kind that a long run must pass.
fn paths(kind: &str) -> BTreeSet<String> {
    let (folders, apart): (&[&str], &[&str]) = match kind {
        // See `shard::adversary`; an audit rarely reads a bucket in the midst of its split. A split that finds no memory has a
        // scenario in `crash_recovery`.
        "shard" => (
            &["src/hash/shard"],
            &[
                "lookup: found by the sid of another round",
                "walk: an entry was moved under an audit",
                "split: no memory",
                "lookup: split meanwhile",
            ],
        ),
        "race" => (&["src/hash/race"], &[]),
        // `sephash::landing` has a scenario for this.
        "sephash" => (&["src/hash/sephash"], &["sephash: several crashed clients delay the epoch"]),
        // `linear::room` and `slotted` have scenarios for these.
        "linear" => (
            &["src/hash/linear", "src/slotted", "src/root_sync"],
            &["linear put: no room yet", "linear walk: range cut"],
        ),
        "cuckoo" => (&["src/hash/cuckoo", "src/slotted", "src/root_sync"], &["table recovery: region claimed"]),
        "sherman" => (&["src/tree/sherman"], &[]),
        "chime" => (&["src/tree/chime"], &[]),
        // DEX has long runs of its own; the B-link tree is for tests.
        _ => return BTreeSet::new(),
    };
    let mut all = marks::of(folders);
    assert!(apart.iter().all(|mark| all.remove(*mark)), "{kind}");
    all.retain(|mark| !mark.starts_with("race: published"));
    all
}

#[test]
fn every_kind_survives_the_swarm() {
    let seeds = seeds_or(0..40);
    let only = std::env::var("FARINDEX_KIND").ok();
    let mut kinds = shipped();
    kinds.retain(|index| only.as_ref().is_none_or(|only| index.config().kind() == only));
    assert!(!kinds.is_empty(), "FARINDEX_KIND={only:?} names no kind");
    for index in kinds {
        let kind = index.config().kind();
        let plain = Setup { many: ODDS / 8, ..Setup::default() }.with_swarm();
        let mut both = Totals::default();
        for setup in [plain.clone(), plain.with_crashes()] {
            let totals = run_seeds(seeds.clone(), &setup, &*index);
            println!("{kind}: {totals}");
            totals.assert_sound();
            totals.assert_marks(Feature::ALL.map(|feature| format!("swarm: {feature:?}")));
            totals.assert_marks(["clients: stalled", "operations: walks", "pool: retired objects freed"]);
            totals.assert_marks([
                "clients: heartbeats given up",
                "clients: left in haste",
                "batches: failed",
                "operations: pauses of walks",
            ]);
            both.merge(totals);
        }
        // Rare, and where clients crash many leases are too short for these.
        both.assert_marks(["operations: walks amid bursts of changes", "indexes: whose entries came and went"]);
        marks::assert_passed(&both, &paths(kind), &[]);
    }
}

/// A crashed client holds the lock of an inner node that names a dead child, and another client writes to a leaf below it with
/// several coroutines. Their way leads by other leaves: each gets the turn at the leaf and gives it up unused, and none ended.
#[test]
fn writers_whose_way_leads_by_other_leaves_end() {
    for (kind, seed) in [("sherman", 4657), ("chime", 14024)] {
        let run = test_run(kind, SHIPPED, false).expect("a kind");
        let report = run.run_seed(seed, &run.setup.clone().with_crashes().with_first_features(16));
        assert!(report.is_sound(), "{report}");
    }
}

/// See docs/bugs/155: an audit READ the word of a segment after that of its parent, which had been split off in between.
#[test]
fn audit_among_others_finds_the_parent_of_a_new_segment() {
    let run = test_run("sephash", SHIPPED, false).expect("a kind");
    let report = run.run_seed(17766, &run.setup.clone().with_crashes().with_first_features(16));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/204: a client READ the root of a dropped index in the midst of the WRITE that erased it, and went on.
#[test]
fn root_of_a_dropped_index_is_never_taken_for_that_of_a_living_one() {
    let run = test_run("sephash", SHIPPED, false).expect("a kind");
    let report = run.run_seed(20_003_784, &run.setup.clone().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/156: two compute nodes took a partition from each other, and an operation that found the gate closed each time
/// gave up after two leases.
#[test]
fn operation_waits_while_its_partition_goes_back_and_forth() {
    let run = test_run("dex", "write-back", false).expect("a kind");
    let report = run.run_seed(723, &run.setup.clone().with_crashes().with_first_features(16));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/206: a torn READ mixed the heartbeat of a slot's former owner with the state of the present one.
#[test]
fn client_is_evicted_after_a_lease_only() {
    let run = test_run("linear", SHIPPED, true).expect("a kind");
    let report = run.run_seed(33_004_445, &run.setup.clone().with_crashes().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/205: a drop freed the map that a crashed client had proposed, and not the owner record that it named.
#[test]
fn drop_frees_the_owner_record_of_a_crashed_proposer() {
    let run = test_run("dex", SHIPPED, false).expect("a kind");
    let report = run.run_seed(51_005_107, &run.setup.clone().with_crashes().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/208: a split had lost the lock and left entries frozen, and a drop did not free their blocks.
#[test]
fn drop_frees_entries_that_a_split_without_the_lock_left_frozen() {
    let run = test_run("shard", SHIPPED, true).expect("a kind");
    let report = run.run_seed(52_008_427, &run.setup.clone().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/209: each operation got a leaf, not its parent, and then had to wait for the leaf.
#[test]
fn wait_for_two_locks_in_turn_has_a_limit() {
    let run = test_run("sherman", SHIPPED, false).expect("a kind");
    let report = run.run_seed(50_006_429, &run.setup.clone().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/212: it registered anew with an identity that was about to be revoked.
#[test]
fn a_client_that_closes_while_it_is_evicted_learns_of_it() {
    let run = test_run("linear", SHIPPED, false).expect("a kind");
    let report = run.run_seed(91_001_356, &run.setup.clone().with_crashes().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}

/// See docs/bugs/214: the walk recorded a dead leaf, and then retired it.
#[test]
fn audit_walks_again_where_its_walk_has_repaired_something() {
    let run = test_run("dex", SHIPPED, true).expect("a kind");
    let report = run.run_seed(102_004_975, &run.setup.clone().with_first_features(25));
    assert!(report.is_sound(), "{report}");
}
