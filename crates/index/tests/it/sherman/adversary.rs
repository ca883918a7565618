//! Sherman under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index --test it sherman::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_testkit::Setup;
use farindex_testkit::sherman::ShermanUnderTest;
use std::collections::BTreeSet;

/// Paths that some of 300 seeds pass.
const COMMON: &[&str] = &[
    "sherman: entry changed between inline and block",
    "sherman: moved right to lock",
    "tree: descended through an old copy",
    "tree: lock is held",
    "tree: lock was handed over",
    "tree: moved right",
    "tree: moved right to lock",
    "tree: node has been split",
    "tree: node read in the middle of a change",
    "tree: node was split",
    "tree: nodes were merged",
    "tree: root has grown",
    "tree: separator of a dead node stays",
    "tree: separator of a dead node was removed",
    "tree: waited for another operation of this compute node",
];

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] = &[
    "tree: lock of a crashed client was taken over",
    "tree: nodes were merged",
    "tree: separator of a dead node stays",
];

/// Every mark of the skeleton and of Sherman. Lookups of many keys are apart (`crate::adversary`); `shape` has the
/// scenarios for a root that shrinks, and for a separator that the pool has no room for; `hand_over` those for operations
/// that are gone.
fn all() -> BTreeSet<String> {
    let mut all = marks::of(&["src/tree"]);
    let others = ["blink: ", "chime: ", "chime many: ", "sherman many: "];
    all.retain(|mark| !others.iter().any(|other| mark.starts_with(other)));
    let apart = [
        "tree: root has shrunk",
        "tree: separator left out",
        "tree: lock was handed over to an operation that is gone",
        "tree: stopped waiting for another operation of this compute node",
        "tree: nobody was there to take the lock over",
    ];
    assert!(apart.iter().all(|mark| all.remove(*mark)));
    all
}

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &ShermanUnderTest::default());
    totals.assert_marks(["operations: scans"]);
    let mut all = all();
    // These take a crash.
    all.retain(|mark| !mark.contains("crashed client"));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &ShermanUnderTest::default());
    marks::assert_passed(&totals, &all(), COMMON_WITH_CRASHES);
}
