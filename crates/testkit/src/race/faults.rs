//! Faults of RACE, published and planted, for [fault detection](crate::fault_detection).

use super::scenarios::Scenario;
use super::{RaceUnderTest, many_clients};
use crate::fault_detection::FaultCase;
use crate::shard::insert_remove_churn;
use crate::{Setup, run_seed};
use farindex_index::faults::{Fault, plant};
use farindex_index::race::Variant;
use farindex_pool::faults as pool;

/// The first line that tells of something like this.
fn line(seed: u64, setup: &Setup, index_under_test: &RaceUnderTest, of: impl Fn(&str) -> bool) -> Option<String> {
    let report = run_seed(seed, setup, index_under_test);
    let lines = report.failures.iter().flat_map(|failure| failure.lines());
    lines.map(str::trim).find(|line| of(line)).map(str::to_owned)
}

fn variant(detected_by: bool) -> Variant {
    if detected_by { Variant::Published } else { Variant::Repaired }
}

fn planted(name: &'static str, how: &'static str, fault: Fault) -> FaultCase {
    FaultCase::new(name, how, move |seed, detected_by| {
        plant(if detected_by { std::slice::from_ref(&fault) } else { &[] });
        let found = line(seed, &many_clients(), &RaceUnderTest::repaired(), |_| true);
        plant(&[]);
        found
    })
}

/// RACE on a pool that does not revoke an expired client before its locks are taken over.
fn without_revocation(seed: u64, detected_by: bool) -> Option<String> {
    pool::plant(if detected_by { &[pool::Fault::NoRevocation] } else { &[] });
    let found = line(seed, &many_clients().with_evictions(), &RaceUnderTest::repaired(), |_| true);
    pool::plant(&[]);
    found
}

/// All of RACE's.
pub fn cases() -> Vec<FaultCase> {
    let still = |detected_by| RaceUnderTest::still(variant(detected_by));
    vec![
        FaultCase::new(
            "RACE: an insert is live before it looks for others",
            "Variant::Published",
            move |seed, detected_by| {
                line(seed, &insert_remove_churn(), &still(detected_by), |line| line.contains("not linearizable"))
            },
        )
        .seen_at(85),
        FaultCase::new("RACE: the same: a key has two entries for good", "Variant::Published", |seed, detected_by| {
            Scenario::SameKey.play(seed, variant(detected_by))
        })
        .seen_at(941),
        FaultCase::new("RACE: a split during inserts: keys are missing", "Variant::Published", |seed, detected_by| {
            Scenario::Grow.play(seed, variant(detected_by))
        }),
        planted(
            "RACE: the directory names a segment that is written later",
            "Fault::EarlySegment",
            Fault::EarlySegment,
        )
        .seen_at(47),
        planted("RACE: an insert into a segment that is being split", "Fault::IntoLocked", Fault::IntoLocked)
            .seen_at(47),
        FaultCase::new("RACE: headers prove an absence", "Fault::HeaderProves", |seed, detected_by| {
            plant(if detected_by { &[Fault::HeaderProves] } else { &[] });
            let found = Scenario::GrowAndLook.play(seed, Variant::Repaired);
            plant(&[]);
            found
        }),
        planted("RACE: a slot points to a block that is written later", "Fault::EarlyPointer", Fault::EarlyPointer),
        planted("RACE: a block's WRITE is not awaited", "Fault::UnawaitedBlock", Fault::UnawaitedBlock),
        FaultCase::new("RACE: a takeover that does not revoke first", "pool::Fault::NoRevocation", without_revocation),
        planted("RACE: a block is reused without waiting for readers", "Fault::NoGrace", Fault::NoGrace),
    ]
}
