//! RACE under test: small segments that are split all the time; as published, with the settings that show its errors.

#[cfg(feature = "marks")]
mod faults;
pub mod scenarios;

use crate::{IndexUnderTest, Setup};
use farindex_index::race::{Config, Variant};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::SimRng;

#[cfg(feature = "marks")]
pub use faults::cases;

/// Many clients that insert keys of their own into a small table: other clients come to a segment at every moment of
/// its split.
pub fn many_clients() -> Setup {
    let (hot_keys, colliding_keys, cold_keys) = ((1, 3), (0, 0), (100, 250));
    let (clients, coroutines, operations) = ((3, 5), (3, 6), (10, 30));
    Setup { clients, coroutines, operations, hot_keys, colliding_keys, cold_keys, overflowing: 0, ..Setup::default() }
}

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
    /// A table that is large enough for a few keys from the beginning, and so small that others change what an insert
    /// chooses its slot by: two inserts of a key that see the same choose the same slot.
    pub fn still(variant: Variant) -> Self {
        RaceUnderTest { config: Config { initial_depth: 1, groups: 1, variant, ..Config::default() }, grows: false }
    }
}

impl IndexUnderTest for RaceUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        if !self.grows {
            return Box::new(self.clone());
        }
        let config = Config {
            initial_depth: rng.pick(&[1, 1, 1, 2, 4]).unwrap_or(1),
            groups: rng.pick(&[1, 1, 1, 2, 4]).unwrap_or(1),
            ..self.config
        };
        Box::new(RaceUnderTest { config, ..*self })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Race(self.config)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Race(Config { initial_depth: 1, groups: 1, ..Config::default() })
    }
    /// A copy of the directory may be lost, or have been behind all the time.
    fn perturb(&self, index: &AnyIndex, rng: &mut SimRng) {
        let AnyIndex::Race(index) = index else { return };
        let index = index.inner();
        if let Some(table) = rng.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) {
            table.directory().mirror().forget();
        }
    }
    fn colliding_bits(&self, rng: &mut SimRng) -> u32 {
        rng.pick(&[0, 2, 4, 5, 7]).unwrap_or_default()
    }
}
