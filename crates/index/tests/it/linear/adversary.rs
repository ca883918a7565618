//! Linear probing under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it linear::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_sim::ODDS;
use farindex_testkit::Setup;
use farindex_testkit::linear::LinearUnderTest;
use farindex_testkit::shard::insert_remove_churn;

/// Paths that some of 150 seeds pass.
const COMMON: &[&str] = &[
    "grow",
    "grow: lost",
    "table grow: settled",
    "slot inline: overtaken",
    "linear lookup: next table unknown",
    "linear lookup: on to the next table",
    "linear lookup: sealed an end",
    "linear move",
    "linear move: slot taken",
    "linear put: CAS lost",
    "linear replace: CAS lost",
    "linear replace: inline again",
    "linear write: helps moving",
];

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] = &[
    "table recovery: region claimed",
    "linear recovery: reserved slot found",
    "recovery: resize abandoned",
    "takeover: client evicted",
    "takeover: held by a live client",
];

/// Is this a path of many lookups at once, or of a walk?
fn is_apart(mark: &str) -> bool {
    mark.starts_with("linear many: ") || mark.starts_with("linear walk: ")
}

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &LinearUnderTest::default());
    let mut all = marks::of(&["src/hash/linear", "src/slotted", "src/root_sync"]);
    // `room` has the scenario for the first. The others take a crash, many lookups at once, or a walk while writers
    // work (`slotted`).
    assert!(all.remove("linear put: no room yet"));
    all.retain(|mark| !mark.contains("recovery: ") && !is_apart(mark));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &LinearUnderTest::default());
    let mut all = marks::of(&["src/hash/linear", "src/slotted", "src/root_sync", "../pool/src"]);
    // The second is of kinds in which a lock covers others.
    assert!(all.remove("linear put: no room yet") && all.remove("takeover: covered lock claimed"));
    all.retain(|mark| !is_apart(mark));
    marks::assert_passed(&totals, &all, COMMON_WITH_CRASHES);
}

/// Records that are put in and taken out all the time, under READs that take as long: they come torn. And gets of many
/// keys at once.
#[test]
fn survives_tearing() {
    let setup = Setup { tearing: ODDS, many: ODDS / 3, ..insert_remove_churn() };
    let totals = adversary::survives(300, &setup, &LinearUnderTest::default());
    let common = ["linear lookup: torn record", "linear many: alone"];
    marks::assert_passed(&totals, &common.map(str::to_owned).into(), &common);
}
