//! Faults of RACE, published and planted, for the [convictions](crate::convictions).

use super::scenes::Scene;
use super::{RaceUnderTest, crowded};
use crate::convictions::Case;
use crate::shard::come_and_go;
use crate::{Setup, run_seed};
use farindex_index::faults::{Fault, plant};
use farindex_index::race::Variant;
use farindex_pool::faults as pool;

/// The first line that tells of something like this.
fn line(seed: u64, setup: &Setup, subject: &RaceUnderTest, of: impl Fn(&str) -> bool) -> Option<String> {
    let report = run_seed(seed, setup, subject);
    let lines = report.failures.iter().flat_map(|failure| failure.lines());
    lines.map(str::trim).find(|line| of(line)).map(str::to_owned)
}

fn variant(guilty: bool) -> Variant {
    if guilty { Variant::Published } else { Variant::Repaired }
}

fn planted(name: &'static str, how: &'static str, fault: Fault) -> Case {
    Case::new(name, how, move |seed, guilty| {
        plant(if guilty { std::slice::from_ref(&fault) } else { &[] });
        let found = line(seed, &crowded(), &RaceUnderTest::repaired(), |_| true);
        plant(&[]);
        found
    })
}

/// RACE on a pool that does not shut out who has expired before it is taken over from.
fn without_revocation(seed: u64, guilty: bool) -> Option<String> {
    pool::plant(if guilty { &[pool::Fault::NoRevocation] } else { &[] });
    let found = line(seed, &Setup::deadly(), &RaceUnderTest::repaired(), |_| true);
    pool::plant(&[]);
    found
}

/// All of RACE's.
pub fn cases() -> Vec<Case> {
    let still = |guilty| RaceUnderTest::still(variant(guilty));
    vec![
        Case::new("RACE: an insert is live before it looks for others", "Variant::Published", move |seed, guilty| {
            line(seed, &come_and_go(), &still(guilty), |line| line.contains("not linearizable"))
        }),
        Case::new("RACE: the same: a key has two entries for good", "Variant::Published", |seed, guilty| {
            Scene::Meet.play(seed, variant(guilty))
        }),
        Case::new("RACE: a split beside inserts: keys are missing", "Variant::Published", |seed, guilty| {
            Scene::Grow.play(seed, variant(guilty))
        }),
        planted(
            "RACE: the directory names a segment that is written later",
            "Fault::EarlySegment",
            Fault::EarlySegment,
        ),
        planted("RACE: an insert into a segment that is being split", "Fault::IntoLocked", Fault::IntoLocked),
        Case::new("RACE: headers prove an absence", "Fault::HeaderProves", |seed, guilty| {
            plant(if guilty { &[Fault::HeaderProves] } else { &[] });
            let found = Scene::GrowAndLook.play(seed, Variant::Repaired);
            plant(&[]);
            found
        }),
        planted("RACE: a slot points to a block that is written later", "Fault::EarlyPointer", Fault::EarlyPointer),
        planted("RACE: a block's WRITE is not awaited", "Fault::UnawaitedBlock", Fault::UnawaitedBlock),
        Case::new("RACE: a takeover that does not revoke first", "pool::Fault::NoRevocation", without_revocation),
        planted("RACE: a block is reused without waiting for readers", "Fault::NoGrace", Fault::NoGrace),
    ]
}
