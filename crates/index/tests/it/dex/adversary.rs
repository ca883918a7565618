//! DEX under the adversary: compute nodes take ranges from each other all the time.
//!
//! `FARINDEX_SEEDS=0..20000 cargo test --release -p farindex-index --test it dex::adversary` runs more of them.

use crate::{adversary, marks};
use farindex_testkit::Setup;
use farindex_testkit::dex::DexUnderTest;

/// Paths that some of 300 seeds pass.
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

/// The same where clients crash.
const COMMON_WITH_CRASHES: &[&str] =
    &["dex: partition was given away", "dex: partitions of a crashed client were taken over"];

#[test]
fn survives_the_adversary() {
    let totals = adversary::survives(300, &Setup::default(), &DexUnderTest::default());
    totals.assert_marks(["operations: scans"]);
    let mut all = marks::of(&["src/tree/dex"]);
    // These take a crash, or an operation that is cancelled.
    all.retain(|mark| !mark.contains("crashed") && !mark.contains("in the middle of") && !mark.contains("no room"));
    marks::assert_passed(&totals, &all, COMMON);
}

/// Clients crash between any two verbs, with verbs in flight; other clients take over what they owned.
#[test]
fn survives_crashes() {
    let totals = adversary::survives(300, &Setup::crashing(), &DexUnderTest::default());
    marks::assert_passed(&totals, &marks::of(&["src/tree/dex"]), COMMON_WITH_CRASHES);
}

/// Clients freeze for longer than a lease, are evicted, and go on with what they did.
#[test]
fn survives_evictions() {
    adversary::survives(150, &Setup::default().with_evictions(), &DexUnderTest::default());
}
