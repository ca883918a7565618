//! Sherman under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index-tests --test it sherman::adversary` runs more of them.

use crate::{adversary, marks, trees};
use farindex_testkit::Setup;
use farindex_testkit::sherman::ShermanUnderTest;

/// Paths that some of 150 seeds pass.
const COMMON: &[&str] = &[
    "sherman: entry changed between inline and block",
    "tree: descended through an old copy",
    "tree: lock is held",
    "tree: moved right",
    "tree: moved right to lock",
    "tree: moved right to lock a leaf",
    "tree: node has been split",
    "tree: node read in the middle of a change",
    "tree: node was split",
    "tree: nodes were merged",
    "tree: root has grown",
    "tree: separator of a dead node stays",
    "tree: separator of a dead node was removed",
];

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] = &[
    "tree: lock of a crashed client was taken over",
    "tree: nodes were merged",
    "tree: separator of a dead node stays",
];

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &ShermanUnderTest::default());
    totals.assert_marks(["operations: scans"]);
    let mut all = trees::marks("sherman");
    // These take a crash.
    all.retain(|mark| !mark.contains("crashed client"));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take their locks over.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &ShermanUnderTest::default());
    marks::assert_passed(&totals, &trees::marks("sherman"), COMMON_WITH_CRASHES);
}
