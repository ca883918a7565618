//! Sherman under the adversary: many seeds, every history checked, every index audited.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index --test it sherman::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_testkit::Setup;
use farindex_testkit::sherman::ShermanUnderTest;
use std::collections::BTreeSet;

/// Paths that some of 300 seeds pass.
const COMMON: &[&str] = &[];

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] = &[];

/// Every mark of the skeleton and of Sherman. Lookups of many keys are apart (`crate::adversary`).
fn all() -> BTreeSet<String> {
    let mut all = marks::of(&["src/tree"]);
    all.retain(|mark| !mark.starts_with("blink: ") && !mark.starts_with("sherman many: "));
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
