//! RACE on trial: small segments that are split all the time; as published, with the settings that bring its errors about.

use crate::{Setup, Subject};
use farindex_index::Race;
use farindex_index::race::{Config, Variant};
use farindex_sim::Dice;

/// RACE with settings of the seed.
#[derive(Debug, Clone)]
pub struct RaceUnderTest {
    config: Config,
    /// Is the table so small that it grows?
    grows: bool,
}

impl RaceUnderTest {
    /// As shipped, growing.
    pub fn repaired() -> Self {
        RaceUnderTest { config: Config::default(), grows: true }
    }
    /// As published, growing.
    pub fn published() -> Self {
        RaceUnderTest { config: Config { variant: Variant::Published, ..Config::default() }, grows: true }
    }
    /// A table that is large enough from the beginning.
    pub fn still(variant: Variant) -> Self {
        RaceUnderTest { config: Config { initial_depth: 3, groups: 8, variant, ..Config::default() }, grows: false }
    }
}

/// Keys that are only ever added and read: whatever has been added must be found.
pub fn added_only() -> Setup {
    Setup { hot_keys: (1, 4), tight: 0, ..Setup::default() }
}

impl Subject for RaceUnderTest {
    type Index = Race;

    fn draw(&self, dice: &mut Dice) -> Self {
        if !self.grows {
            return self.clone();
        }
        let config = Config {
            initial_depth: dice.pick(&[1, 1, 1, 2, 4]).unwrap_or(1),
            groups: dice.pick(&[1, 1, 1, 2, 4]).unwrap_or(1),
            ..self.config
        };
        RaceUnderTest { config, ..*self }
    }
    fn config(&self) -> Config {
        self.config
    }
    /// A copy of the directory may be lost, or have been behind all the time.
    fn shake(&self, index: &Race, dice: &mut Dice) {
        if let Some(table) = dice.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) {
            table.directory().mirror().forget();
        }
    }
    fn crowd_bits(&self, dice: &mut Dice) -> u32 {
        dice.pick(&[0, 2, 4, 5, 7]).unwrap_or_default()
    }
}

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod faults {
    use super::{RaceUnderTest, added_only};
    use crate::convictions::Case;
    use crate::shard::come_and_go;
    use crate::{Setup, run_seed};
    use farindex_index::faults::{Fault, plant};
    use farindex_index::race::Variant;

    /// The first line that tells of something like this.
    fn line(seed: u64, setup: &Setup, subject: &RaceUnderTest, of: impl Fn(&str) -> bool) -> Option<String> {
        let report = run_seed(seed, setup, subject);
        let lines = report.failures.iter().flat_map(|failure| failure.lines());
        lines.map(str::trim).find(|line| of(line)).map(str::to_owned)
    }

    fn planted(name: &'static str, how: &'static str, fault: Fault) -> Case {
        Case::new(name, how, move |seed, guilty| {
            plant(guilty.then_some(fault));
            let found = line(seed, &Setup::default(), &RaceUnderTest::repaired(), |_| true);
            plant(None);
            found
        })
    }

    /// All of RACE's.
    pub fn cases() -> Vec<Case> {
        vec![
            Case::new("RACE: an insert is live before it looks for others: not linearizable", "Variant::Published", |seed, guilty| {
                let variant = if guilty { Variant::Published } else { Variant::Repaired };
                line(seed, &come_and_go(), &RaceUnderTest::still(variant), |line| line.contains("not linearizable"))
            }),
            Case::new("RACE: the same: two entries of a key stay", "Variant::Published", |seed, guilty| {
                let variant = if guilty { Variant::Published } else { Variant::Repaired };
                line(seed, &come_and_go(), &RaceUnderTest::still(variant), |line| line.contains("have the same key"))
            }),
            Case::new("RACE: a split beside inserts: a present key is not found", "Variant::Published", |seed, guilty| {
                let subject = if guilty { RaceUnderTest::published() } else { RaceUnderTest::repaired() };
                line(seed, &added_only(), &subject, |line| line.contains("not linearizable"))
            }),
            Case::new("RACE: the same: a block that no entry points to", "Variant::Published", |seed, guilty| {
                let subject = if guilty { RaceUnderTest::published() } else { RaceUnderTest::repaired() };
                line(seed, &added_only(), &subject, |line| line.starts_with("pool:") && line.contains("lost"))
            }),
            planted(
                "RACE: the directory names a segment that is written later",
                "Fault::EarlySegment",
                Fault::EarlySegment,
            ),
            planted("RACE: a slot points to a block that is written later", "Fault::EarlyPointer", Fault::EarlyPointer),
            planted("RACE: a block's WRITE is not awaited", "Fault::UnawaitedBlock", Fault::UnawaitedBlock),
            planted("RACE: a block is reused without waiting for readers", "Fault::NoGrace", Fault::NoGrace),
        ]
    }
}
