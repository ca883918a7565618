//! SHARD under test: small tables that grow all the time; for the protocol as published, one that does not grow.

use crate::{IndexUnderTest, Setup};
use farindex_index::shard::{Config, Variant};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::SimRng;

/// A few keys that are inserted and removed all the time in a table that does not grow.
pub fn insert_remove_churn() -> Setup {
    let none = (0, 0);
    Setup { hot_keys: (1, 3), colliding_keys: none, cold_keys: (0, 12), overflowing: 0, tight: 0, ..Setup::default() }
}

/// SHARD with settings of the seed.
#[derive(Debug, Clone)]
pub struct ShardUnderTest {
    config: Config,
    /// Does the table grow? Removals as published are not made for being split at the same time.
    grows: bool,
}

impl ShardUnderTest {
    /// As shipped, growing.
    pub fn repaired() -> Self {
        ShardUnderTest { config: Config::default(), grows: true }
    }
    /// A table that is large enough from the beginning.
    pub fn still(variant: Variant) -> Self {
        ShardUnderTest {
            config: Config { initial_bits: 3, threshold: 1.0, variant, ..Config::default() },
            grows: false,
        }
    }
}

impl IndexUnderTest for ShardUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        if !self.grows {
            return Box::new(self.clone());
        }
        let config = Config {
            initial_bits: rng.pick(&[0, 0, 0, 1, 3]).unwrap_or_default(),
            threshold: rng.pick(&[0.05, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0]).unwrap_or(0.8),
            alpha: rng.pick(&[0.0, 0.1, 1.0, 10.0]).unwrap_or(0.1),
            ..self.config
        };
        Box::new(ShardUnderTest { config, ..*self })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Shard(self.config)
    }
    /// It completes a split that is due.
    fn lookups_lock(&self) -> bool {
        true
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Shard(Config { initial_bits: 0, ..Config::default() })
    }
    /// The count of entries is a hint that steers growth: a wrong one must do no harm.
    fn perturb(&self, index: &AnyIndex, rng: &mut SimRng) {
        let AnyIndex::Shard(index) = index else { return };
        let index = index.inner();
        if !self.grows {
            return;
        }
        let Some(table) = rng.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) else { return };
        let geometry = table.geometry();
        if geometry.version + geometry.initial_bits() < 8 {
            let wanted = (self.config.threshold * geometry.slots() as f64) as i64 + 2;
            table.note(wanted.saturating_sub_unsigned(table.count()).max(0));
        }
    }
    fn colliding_bits(&self, rng: &mut SimRng) -> u32 {
        rng.pick(&[0, 2, 4, 5, 7]).unwrap_or_default()
    }
}
