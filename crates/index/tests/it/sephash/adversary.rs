//! SepHash under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it sephash::adversary` runs more of them.

use crate::adversary;
use farindex_testkit::sephash::{SepHashUnderTest, deepening, stopping};
use farindex_testkit::{Setup, run_cases, seeds_or};

/// Rare paths that a few hundred seeds take.
const PATHS: [&str; 10] = [
    "merge",
    "split",
    "split: headers read",
    "append: CAS lost",
    "append: full",
    "window: not landed",
    "lookup: CurSegment",
    "directory: behind",
    "view: stale",
    "probe: locked or merged",
];

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &SepHashUnderTest::shipped());
    totals.assert_marks(PATHS);
}

/// More keys: splits through several rounds of depth information.
#[test]
fn survives_the_adversary_while_it_deepens() {
    adversary::survives(150, &deepening(), &SepHashUnderTest::shipped());
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    adversary::survives(300, &Setup::crashing(), &SepHashUnderTest::shipped());
}

/// Without a crash, each slot is landed by the operation that has taken it. In these seeds others landed some, because they
/// took one torn READ of CurSegMeta for an earlier one (docs/bugs/138).
#[test]
fn no_slot_of_a_live_client_is_landed() {
    let seeds = [108, 222, 267, 311, 888].into_iter().chain(seeds_or(0..20));
    let cases: Vec<_> = seeds.map(|seed| (seed, stopping())).collect();
    let totals = run_cases(&cases, &SepHashUnderTest::appending());
    totals.assert_sound();
    totals.assert_marks(["probe: torn stamp", "sephash: waits for an epoch"]);
    assert!(!totals.marks.contains_key("sephash recovery: slot landed"), "{totals}");
}

/// Those of docs/bugs/047 to 049, 080, 081 and 090, which went wrong before.
#[test]
fn survives_the_seeds_that_found_something() {
    let crashing = [1911, 2757, 4377, 6065, 8770, 12_199].map(|seed| (seed, Setup::crashing()));
    let cases: Vec<_> = crashing.into_iter().chain([232, 3147].map(|seed| (seed, Setup::default()))).collect();
    let totals = run_cases(&cases, &SepHashUnderTest::shipped());
    totals.assert_sound();
}
