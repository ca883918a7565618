//! Cuckoo hashing under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index --test cuckoo adversary` runs more of them;
//! `FARINDEX_SEEDS=17..18 FARINDEX_LOG=5000` with the test `replays_one` shows what one of them did.

use crate::{common, marks};
use farindex_sim::ODDS;
use farindex_testkit::cuckoo::{CuckooUnderTest, packed};
use farindex_testkit::shard::insert_remove_churn;
use farindex_testkit::{Setup, replay, run_cases, run_seeds, seeds_or};

/// Paths that some of 300 seeds pass.
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

/// The same where clients die.
const COMMON_WITH_DEATHS: &[&str] =
    &["table recovery: region claimed", "takeover: client evicted", "takeover: held by a live client"];

/// Is this a path of many lookups at once, or of a walk?
fn is_apart(mark: &str) -> bool {
    mark.starts_with("cuckoo many: ") || mark.starts_with("cuckoo walk: ")
}

#[test]
fn survives_the_adversary() {
    let totals = run_seeds(seeds_or(0..300), &Setup::default(), &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
    let mut all = marks::of(&["src/hash/cuckoo", "src/slotted", "src/root_sync"]);
    // It takes somebody's death, many lookups at once, or a walk beside writers (the test `slotted`).
    all.retain(|mark| !mark.contains("rescue: ") && !mark.contains("recovery: ") && !is_apart(mark));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Tables that are filled up, so that displacements meet each other.
#[test]
fn survives_displacements() {
    let totals = run_seeds(seeds_or(0..200), &packed(), &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
}

/// Clients die between any two verbs, with verbs in flight; the others go on, and take over.
#[test]
fn survives_deaths() {
    let totals = run_seeds(seeds_or(0..300), &Setup::crashing(), &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
    let mut all = marks::of(&["src/hash/cuckoo", "src/slotted", "src/root_sync", "../pool/src"]);
    // No lock of this kind covers another. `held` has the scene for the others, which take a death between two verbs.
    let apart = ["takeover: covered lock claimed", "cuckoo recovery: unfrozen", "cuckoo recovery: displaced"];
    assert!(apart.iter().all(|mark| all.remove(*mark)));
    all.retain(|mark| !is_apart(mark));
    marks::assert_passed(&totals, &all, COMMON_WITH_DEATHS);
}

/// The same where tables are filled up.
#[test]
fn survives_deaths_among_displacements() {
    let totals = run_seeds(seeds_or(0..200), &packed().with_crashes(), &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
}

/// Records that are put in and taken out all the time, under READs that take as long: they come torn. And gets of many keys at
/// once.
#[test]
fn survives_tearing() {
    let setup = Setup { tearing: ODDS, many: ODDS / 3, ..insert_remove_churn() };
    let totals = run_seeds(seeds_or(0..300), &setup, &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
    let common = ["cuckoo lookup: torn record", "cuckoo many: alone"];
    marks::assert_passed(&totals, &common.map(str::to_owned).into(), &common);
}

#[test]
fn survives_gets_of_many_keys() {
    common::survives_gets_of_many_keys(&CuckooUnderTest::default(), "cuckoo many: alone");
}

/// A client dies at each of its verbs, and what it posted lands, is lost, or lands in part.
#[test]
fn survives_a_death_at_every_verb() {
    common::survives_a_death_at_every_verb(&CuckooUnderTest::default());
}

#[test]
#[ignore = "shows one seed: set FARINDEX_SEEDS, FARINDEX_LOG, FARINDEX_DEADLY for one with deaths, FARINDEX_PACKED for a full table"]
fn replays_one() {
    if std::env::var_os("FARINDEX_PACKED").is_none() {
        return common::replays_one(&CuckooUnderTest::default());
    }
    let crashing = std::env::var_os("FARINDEX_DEADLY").is_some();
    let setup = if crashing { packed().with_crashes() } else { packed() };
    for seed in seeds_or(0..1) {
        assert!(replay(seed, &setup, &CuckooUnderTest::default()).is_sound());
    }
}

/// Those of docs/bugs/091 and 092, which went wrong before: the dead held regions that displacements, or a repair, came to.
#[test]
fn survives_the_seeds_that_found_something() {
    let crashing = [4575, 6280, 6529, 8714, 12_489].map(|seed| (seed, Setup::crashing()));
    let among = [7292, 8261, 10_579, 13_058, 17_653, 19_201].map(|seed| (seed, packed().with_crashes()));
    let cases: Vec<_> = crashing.into_iter().chain(among).collect();
    let totals = run_cases(&cases, &CuckooUnderTest::default());
    println!("{totals}");
    totals.assert_sound();
}
