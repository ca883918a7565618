//! RACE under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it race::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_index::race::Variant;
use farindex_testkit::race::{RaceUnderTest, many_clients, scenarios::Scenario};
use farindex_testkit::{Setup, sampled_seeds};
use std::collections::BTreeSet;

/// Paths that some of 150 seeds pass.
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
/// Those that some of 300 seeds with crashes pass.
const COMMON_WITH_CRASHES: &[&str] = &["race: recovery: lock claimed", "race: recovery: undone"];

/// Marks of RACE as shipped.
fn shipped() -> BTreeSet<String> {
    let mut all = marks::of(&["src/hash/race"]);
    all.retain(|mark| !mark.starts_with("race: published"));
    all
}

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &RaceUnderTest::repaired());
    let mut all = shipped();
    // The first take a crash, the others many lookups at once.
    all.retain(|mark| !mark.starts_with("race: recovery") && !mark.starts_with("race many: "));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Many clients in a small table: other clients come to most segments while they are split.
#[test]
fn survives_splits_with_many_clients() {
    adversary::survives(100, &many_clients(), &RaceUnderTest::repaired());
}

/// All clients in one table that grows, and all clients at one key.
#[test]
fn survives_its_scenarios() {
    let mut wrong = Vec::new();
    for scenario in Scenario::ALL {
        let seeds = sampled_seeds(0..200).map(|seed| (seed, scenario.play(seed, Variant::Repaired)));
        wrong.extend(seeds.filter_map(|(seed, what)| Some(format!("{scenario:?}, seed {seed}: {}", what?))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same with crashes.
#[test]
fn survives_crashes_with_many_clients() {
    let setup = Setup { overflowing: 0, ..many_clients().with_crashes() };
    adversary::survives(100, &setup, &RaceUnderTest::repaired());
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    // Recoveries are rare here, and half of these seeds pass them.
    let totals = adversary::survives(600, &Setup::crashing(), &RaceUnderTest::repaired());
    let mut all = shipped();
    all.retain(|mark| !mark.starts_with("race many: "));
    marks::assert_passed(&totals, &all, COMMON_WITH_CRASHES);
}
