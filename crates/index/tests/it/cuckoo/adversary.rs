//! Cuckoo hashing under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it cuckoo::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_sim::ODDS;
use farindex_testkit::cuckoo::{CuckooUnderTest, packed};
use farindex_testkit::shard::insert_remove_churn;
use farindex_testkit::{Setup, run_cases};

/// Paths that some of 150 seeds pass.
const COMMON: &[&str] = &[
    "cuckoo change: waits for a move",
    "cuckoo displace",
    "cuckoo lookup: a newer table",
    "cuckoo move",
    "cuckoo put: lock lost",
    "cuckoo put: the next table's lock",
    "cuckoo replace: CAS lost",
    "cuckoo replace: inline again",
    "slot inline: overtaken",
    "grow",
    "table grow: settled",
];

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] =
    &["cuckoo recovery: region claimed", "takeover: client evicted", "takeover: held by a live client"];

/// Is this a path of many lookups at once, or of a walk?
fn is_apart(mark: &str) -> bool {
    mark.starts_with("cuckoo many: ") || mark.starts_with("cuckoo walk: ")
}

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &CuckooUnderTest::default());
    let mut all = marks::of(&["src/hash/cuckoo", "src/slotted", "src/root_sync"]);
    // The others take a crash, many lookups at once, or a walk while writers work (`slotted`).
    all.retain(|mark| !mark.contains("recovery: ") && !is_apart(mark));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Tables that are filled up, so that displacements are interleaved.
#[test]
fn survives_displacements() {
    adversary::survives(200, &packed(), &CuckooUnderTest::default());
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &CuckooUnderTest::default());
    let mut all = marks::of(&["src/hash/cuckoo", "src/slotted", "src/root_sync", "../pool/src"]);
    // No lock of this kind covers another. `held` has the scenario for the others, which take a crash between two
    // verbs.
    let apart = ["takeover: covered lock claimed", "cuckoo recovery: unfrozen", "cuckoo recovery: displaced"];
    assert!(apart.iter().all(|mark| all.remove(*mark)));
    all.retain(|mark| !is_apart(mark));
    marks::assert_passed(&totals, &all, COMMON_WITH_CRASHES);
}

/// The same where tables are filled up.
#[test]
fn survives_crashes_among_displacements() {
    adversary::survives(200, &packed().with_crashes(), &CuckooUnderTest::default());
}

/// Records that are put in and taken out all the time, under READs that take as long: they come torn. And gets of many
/// keys at once.
#[test]
fn survives_tearing() {
    let setup = Setup { tearing: ODDS, many: ODDS / 3, ..insert_remove_churn() };
    let totals = adversary::survives(300, &setup, &CuckooUnderTest::default());
    let common = ["cuckoo lookup: torn record", "cuckoo many: alone"];
    marks::assert_passed(&totals, &common.map(str::to_owned).into(), &common);
}

/// Those of docs/bugs/091 and 092, which went wrong before: crashed clients held regions that displacements, or a
/// repair, needed.
#[test]
fn survives_the_seeds_that_found_something() {
    let crashing = [4575, 6280, 6529, 8714, 12_489].map(|seed| (seed, Setup::crashing()));
    let among = [7292, 8261, 10_579, 13_058, 17_653, 19_201].map(|seed| (seed, packed().with_crashes()));
    let cases: Vec<_> = crashing.into_iter().chain(among).collect();
    let totals = run_cases(&cases, &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
}
