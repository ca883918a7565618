//! SHARD under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it shard::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_index::coalesce;
use farindex_index::shard::Variant;
use farindex_sim::ODDS;
use farindex_testkit::seeds::run_until;
use farindex_testkit::shard::{ShardUnderTest, insert_remove_churn};
use farindex_testkit::{SeedReport, Setup, run_seeds};
use std::collections::BTreeSet;

/// Paths that 150 seeds pass.
const COMMON: &[&str] = &[
    "grow",
    "grow: lost",
    "health: locked",
    "health: newer",
    "health: unwritten or older",
    "level 3: link",
    "level 3: slot filled",
    "lookup: sid of another round",
    "put: CAS lost",
    "put: level 2 not in order",
    "put: lock lost",
    "put: look again for what was recycled",
    "put: look again under the lock",
    "put_second",
    "recycle",
    "replace: CAS lost",
    "restore",
    "split: frees at once what it vacates",
    "split: level 1",
    "split: level 2",
    "split: lock lost",
    "split: of a mixed snapshot",
    "split: several versions",
    "split: sids renewed",
    "split: straggler frozen again",
];

/// Those that take crashes.
const COMMON_WITH_CRASHES: &[&str] = &[
    "recovery: entry unfrozen",
    "recovery: lock claimed",
    "recovery: resize abandoned",
    "recovery: undone",
    "takeover: client evicted",
    "takeover: held by a live client",
    "takeover: lock released meanwhile",
    "takeover: retried after an eviction",
];

/// Paths that no seed has passed yet, and why.
///
/// * A READ that a renewal of the sids has torn, and that is in good health all the same, with the key in it: it takes
///   a whole renewal between two words of one READ, and no fresh slot in the bucket that would tell
///   (docs/protocols/shard.md,
///   "Renewed sids"). `torn_patterns_are_those_of_the_rounds_up_to_the_next` looks at what it rests on.
/// * A split that finds memory after a lookup of the same bucket has found none, and that ends between the two READs of that
///   lookup.
const UNMET: &[&str] = &["lookup: found by the sid of another round", "lookup: split meanwhile"];

/// The marks of these folders, but for those that no seed has passed.
fn marks_of(folders: &[&str]) -> BTreeSet<String> {
    let mut all = marks::of(folders);
    // `every_kind_survives_gets_of_many_keys` is for the first ones, the scenarios of `crash_recovery` for the others.
    all.retain(|mark| !mark.starts_with("many: ") && !mark.starts_with("walk: ") && mark != "split: no memory");
    for unmet in UNMET {
        assert!(all.remove(*unmet), "no such mark: {unmet:?}");
    }
    all
}

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &ShardUnderTest::repaired());
    let mut all = marks_of(&["src/hash/shard", "src/root_sync"]);
    // It takes a crash.
    all.retain(|mark| !mark.starts_with("recovery: "));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &ShardUnderTest::repaired());
    marks::assert_passed(&totals, &marks_of(&["src/hash/shard", "src/root_sync", "../pool/src"]), COMMON_WITH_CRASHES);
}

/// Behind the local lock table, which several coroutines of each client share.
#[test]
fn survives_behind_the_lock_table() {
    let (coroutines, hot_keys, coalescing) = ((2, 4), (1, 2), Some(coalesce::Fault::None));
    let setup = Setup { coroutines, hot_keys, many: ODDS / 4, guarded: ODDS / 3, coalescing, ..Setup::default() };
    let totals = adversary::survives(300, &setup, &ShardUnderTest::repaired());
    let all = marks::of(&["src/coalesce"]);
    let common: Vec<_> = all.iter().map(String::as_str).collect();
    marks::assert_passed(&totals, &all, &common);
}

/// Seeds that once failed, as this workload draws them; a change to what it draws makes them seeds like any others.
///
/// * 1110, 4902, 5663: a lookup read its level-1 bucket, a split took the key out of level 3, the lookup read level 3
///   and
///   found a dead slot: absent, although the key was there all the time.
/// * 1007, 5077, 8633: the loser of a split froze entries that the winner had just given their old sid again. Nobody
///   came
///   back for them, and an insert into that bucket looked again under its lock for ever.
#[test]
fn what_once_failed() {
    for seed in [1007, 1110, 4902, 5077, 5663, 8633] {
        run_seeds(seed..seed + 1, &Setup::default(), &ShardUnderTest::repaired()).assert_sound();
    }
    // docs/bugs/024
    run_seeds(10920..10921, &Setup::crashing(), &ShardUnderTest::repaired()).assert_sound();
}

#[test]
fn the_published_removal_is_detected() {
    let detects = |report: &SeedReport| report.failures.iter().any(|failure| failure.contains("not linearizable"));
    let published = run_until(0..2000, &insert_remove_churn(), &ShardUnderTest::still(Variant::Published), detects);
    assert!(published.failures.iter().any(detects), "not detected: {published}");
    let seeds = 0..published.failed.last().copied().unwrap_or_default() + 1;
    println!("detected by seed {}", seeds.end - 1);
    run_seeds(seeds, &insert_remove_churn(), &ShardUnderTest::still(Variant::Repaired)).assert_sound();
}
