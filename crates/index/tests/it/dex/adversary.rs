//! DEX under the adversary: compute nodes take ranges from each other all the time.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it dex::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_testkit::dex::DexUnderTest;
use farindex_testkit::{Setup, run_cases, test_run};

/// Paths that some of 150 seeds pass.
const COMMON: &[&str] = &[
    "dex: another client's proposal is ahead",
    "dex: leaf was admitted",
    "dex: leaves of two owners are not merged",
    "dex: moved right to write",
    "dex: operations are in progress on what is to be given away",
    "dex: partition was given away",
    "dex: partition without an owner was taken",
    "dex: proposal follows another map",
    "dex: proposal was refused",
    "dex: proposal was withdrawn",
];

/// Paths of the cache that some of 150 seeds pass where it has room for a few nodes.
const COMMON_IN_A_TINY_CACHE: &[&str] = &[
    "path cache: a cooling node was evicted",
    "path cache: a cooling node was given a second chance",
    "path cache: a copy got a new parent",
    "path cache: a copy lost its parent",
    "path cache: a full bucket of the cooling map evicted its oldest node",
    "path cache: a node was being READ",
    "path cache: a node whose parent is not there was not admitted",
    "path cache: a parent handed its cooling on to a child",
    "path cache: an old copy with children waits for a new one",
];

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] =
    &["dex: partition was given away", "dex: partitions of a crashed client were taken over"];

/// Paths of write-back that some of 150 seeds pass.
const COMMON_WITH_WRITE_BACK: &[&str] = &[
    "write-back: change stays in the cache",
    "write-back: dirty leaves were written back",
    "write-back: dirty leaves were written back before their range was given away",
];

/// Who looks for the answer to a proposal for the first time after a lease: `owners` has a scenario.
const APART: &str = "dex: nobody knows whose answer it is";

/// The marks of these folders, but those of write-back.
fn without_write_back(folders: &[&str]) -> std::collections::BTreeSet<String> {
    let mut all = marks::of(folders);
    all.remove(APART);
    all.retain(|mark| !mark.starts_with("write-back"));
    all
}

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &DexUnderTest::default());
    totals.assert_marks(["operations: scans"]);
    let mut all = marks::of(&["src/tree/dex"]);
    // These take a crash, or an operation that is cancelled.
    all.retain(|mark| {
        !mark.starts_with("write-back")
            && !mark.contains("crashed")
            && !mark.contains("in the middle of")
            && !mark.contains("no room")
            && mark != APART
    });
    marks::assert_passed(&totals, &all, COMMON);
}

/// The cache has room for a few nodes: paths cool, are evicted, and are READ again all the time.
#[test]
fn survives_the_adversary_with_a_tiny_cache() {
    let setup = Setup { coroutines: (3, 6), ..Setup::default() };
    let totals = adversary::survives(300, &setup, &DexUnderTest::with_tiny_cache());
    marks::assert_passed(&totals, &without_write_back(&["src/tree/path_cache"]), COMMON_IN_A_TINY_CACHE);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take over what they owned.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &DexUnderTest::default());
    marks::assert_passed(&totals, &without_write_back(&["src/tree/dex"]), COMMON_WITH_CRASHES);
}

/// These seeds of the program, `farindex check --index dex --crashes`, which draws gets of many keys as well.
fn survives_seeds_of_the_program(seeds: &[u64]) {
    let run = test_run("dex", "repaired", false).expect("a test run");
    let setup = run.setup.clone().with_crashes();
    let cases: Vec<_> = seeds.iter().map(|seed| (*seed, setup.clone())).collect();
    run_cases(&cases, &*run.index).assert_sound();
}

/// The owner crashes a moment before it would have removed an answer that nobody has taken (bug 143).
#[test]
fn waits_for_an_owner_that_crashes_after_a_proposer() {
    survives_seeds_of_the_program(&[12684]);
}

/// An owner crashes in the middle of a change of a leaf, which the next one merges (bug 140).
#[test]
fn a_leaf_in_the_middle_of_a_change_is_restored_before_it_is_merged() {
    survives_seeds_of_the_program(&[5580]);
}

/// Several compute nodes want to write to one partition, and passed it on before one of them wrote (bug 146).
#[test]
fn a_partition_that_several_want_is_used_before_it_is_passed_on() {
    survives_seeds_of_the_program(&[11319, 12473]);
}

/// Clients freeze for longer than a lease, are evicted, and go on with what they did.
#[test]
fn survives_evictions() {
    adversary::survives(150, &Setup::default().with_evictions(), &DexUnderTest::default());
}

/// Owners acknowledge what only their caches have: without a crash nothing is lost.
#[test]
fn write_back_survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &DexUnderTest::write_back());
    let mut all = marks::of(&["src/tree/dex", "src/tree/path_cache"]);
    all.retain(|mark| mark.starts_with("write-back"));
    // This takes a client that is late with its heartbeat.
    all.retain(|mark| !mark.contains("waited for a heartbeat"));
    marks::assert_passed(&totals, &all, COMMON_WITH_WRITE_BACK);
}

/// A client that crashes, or is evicted, loses no more than it has acknowledged within the loss window.
#[test]
fn write_back_survives_crashes_and_evictions() {
    adversary::survives(200, &Setup::crashing(), &DexUnderTest::write_back());
    adversary::survives(100, &Setup::default().with_evictions(), &DexUnderTest::write_back());
}

/// Seeds that have failed: scans that moved right past a copy, lookups that were dropped in the middle of an allocation, owner records
/// that a heartbeat gave up (bug 147), losses of crashes.
#[test]
fn write_back_survives_seeds_that_have_failed() {
    let run = test_run("dex", "write-back", false).expect("a test run");
    let calm = [898, 954, 2661, 2878].map(|seed| (seed, run.setup.clone()));
    let crashing = [430, 1247, 1276, 1473, 2637].map(|seed| (seed, Setup::crashing()));
    run_cases(&[&calm[..], &crashing[..]].concat(), &*run.index).assert_sound();
}
