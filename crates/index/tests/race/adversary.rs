//! RACE under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index --test race adversary` runs more of them;
//! `FARINDEX_EVERY=1` with the test `survives_a_death_at_every_verb` leaves no verb out.

use crate::{common, marks};
use farindex_index::race::Variant;
use farindex_testkit::race::{RaceUnderTest, crowded, scenarios::Scene};
use farindex_testkit::{Setup, run_seeds, seeds_or};
use std::collections::BTreeSet;

/// Paths that some of 300 seeds pass.
const COMMON: &[&str] = &[
    "race: split",
    "race: split: lock lost",
    "race: split: slot changed meanwhile",
    "race: insert: another is ahead",
    "race: insert: emptied a tentative slot behind",
    "race: insert: key inserted meanwhile",
    "race: insert: withdrawn from a segment that is split",
    "race: lookup: split seen in a header",
    "race: lookup: split seen in the state",
    "race: lookup: waits for a split",
    "race: lookup: nothing cached",
];
/// The same where clients die.
const COMMON_WITH_DEATHS: &[&str] = &["race: recovery: lock claimed", "race: recovery: undone"];

/// Marks of RACE as shipped.
fn shipped() -> BTreeSet<String> {
    let mut all = marks::of(&["src/hash/race"]);
    all.retain(|mark| !mark.starts_with("race: published"));
    all
}

#[test]
fn survives_the_adversary() {
    let totals = run_seeds(seeds_or(0..300), &Setup::default(), &RaceUnderTest::repaired());
    println!("{totals}");
    totals.assert_sound();
    let mut all = shipped();
    // The first take somebody's death, the others many lookups at once.
    all.retain(|mark| !mark.starts_with("race: recovery") && !mark.starts_with("race many: "));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Many in a small table: hardly a split that nobody meets in the midst of it.
#[test]
fn survives_splits_in_a_crowd() {
    let totals = run_seeds(seeds_or(0..100), &crowded(), &RaceUnderTest::repaired());
    println!("{totals}");
    totals.assert_sound();
}

/// Everybody at one table that grows, and everybody at one key.
#[test]
fn survives_its_scenes() {
    let mut wrong = Vec::new();
    for scene in Scene::ALL {
        let seeds = seeds_or(0..200).map(|seed| (seed, scene.play(seed, Variant::Repaired)));
        wrong.extend(seeds.filter_map(|(seed, what)| Some(format!("{scene:?}, seed {seed}: {}", what?))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A crowd, and clients die.
#[test]
fn survives_deaths_in_a_crowd() {
    let setup = Setup { overflowing: 0, ..crowded().with_crashes() };
    let totals = run_seeds(seeds_or(0..100), &setup, &RaceUnderTest::repaired());
    println!("{totals}");
    totals.assert_sound();
}

/// Clients die between any two verbs, with verbs in flight; the others go on, and take over.
#[test]
fn survives_deaths() {
    let totals = run_seeds(seeds_or(0..300), &Setup::crashing(), &RaceUnderTest::repaired());
    println!("{totals}");
    totals.assert_sound();
    let mut all = shipped();
    all.retain(|mark| !mark.starts_with("race many: "));
    marks::assert_passed(&totals, &all, COMMON_WITH_DEATHS);
}

#[test]
fn survives_gets_of_many_keys() {
    common::survives_gets_of_many_keys(&RaceUnderTest::repaired(), "race many: alone");
}

/// A client dies at each of its verbs, and what it posted lands, is lost, or lands in part.
#[test]
fn survives_a_death_at_every_verb() {
    common::survives_a_death_at_every_verb(&RaceUnderTest::repaired());
}

#[test]
#[ignore = "shows one seed: set FARINDEX_SEEDS, FARINDEX_LOG, and FARINDEX_DEADLY for one with deaths"]
fn replays_one() {
    common::replays_one(&RaceUnderTest::repaired());
}
