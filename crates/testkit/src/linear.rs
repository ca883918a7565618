//! Linear probing under test: small tables of narrow and wide slots, that are moved all the time.

use crate::IndexUnderTest;
use farindex_index::linear::Config;
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::SimRng;

/// Linear probing with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct LinearUnderTest {
    config: Config,
    /// Is what seems to fill a table always dead, so that it is moved to one as large?
    cleans: bool,
}

impl IndexUnderTest for LinearUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let config = Config {
            slots: rng.pick(&[1, 1, 128, 512]).unwrap_or(1),
            width: rng.pick(&[8, 16, 32, 32, 64, 128]).unwrap_or(32),
            threshold: rng.pick(&[0.05, 0.1, 0.3, 0.5, 0.75, 0.95]).unwrap_or(0.75),
            alpha: rng.pick(&[0.0, 0.1, 1.0, 10.0]).unwrap_or(0.1),
            read_bytes: rng.pick(&[0, 0, 8, 256]).unwrap_or(0),
            clusters: rng.pick(&[0, 3, 1000]).unwrap_or(0),
            hits: rng.pick(&[0.0, 0.5, 1.0]).unwrap_or(0.5),
            ..self.config
        };
        Box::new(LinearUnderTest { config, cleans: rng.chance(farindex_sim::ODDS / 3) })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Linear(self.config)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Linear(Config { slots: 1, ..Config::default() })
    }
    /// The counts are hints that steer growth: wrong ones must do no harm.
    fn perturb(&self, index: &AnyIndex, rng: &mut SimRng) {
        let AnyIndex::Linear(index) = index else { return };
        let index = index.inner();
        let Some(table) = rng.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) else { return };
        let segment = table.geometry().current;
        if segment.regions < 32 {
            let wanted = (self.config.threshold * segment.slots() as f64) as i64 + 2;
            let short = wanted.saturating_sub_unsigned(table.used(segment.generation)).max(0);
            // Entries, or dead slots.
            let entries = if rng.chance(farindex_sim::ODDS / 2) && !self.cleans { short } else { 0 };
            table.note(entries, segment.generation, short);
        }
    }
    fn colliding_bits(&self, rng: &mut SimRng) -> u32 {
        rng.pick(&[0, 2, 4, 6, 9]).unwrap_or_default()
    }
}

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod faults {
    use super::LinearUnderTest;
    use crate::fault_detection::{FaultCase, planted_in, violation};
    use crate::shard::insert_remove_churn;
    use crate::{Feature, Setup};
    use farindex_index::faults::Fault;
    use farindex_sim::ODDS;

    /// A case that the check for linearizability must detect.
    fn planted(name: &'static str, how: &'static str, setup: Setup, faults: &'static [Fault]) -> FaultCase {
        planted_in(name, how, faults, move |seed| violation(seed, &setup, &LinearUnderTest::default()))
    }

    /// All of linear probing's.
    pub fn cases() -> Vec<FaultCase> {
        let removals = || Setup { hot_keys: (2, 6), colliding_keys: (4, 40), ..Setup::default() };
        vec![
            planted(
                "linear: a lookup stops at a slot that a removal has emptied",
                "Fault::LinearEmptied",
                removals(),
                &[Fault::LinearEmptied],
            ),
            planted(
                "linear: a torn record behind its head is believed",
                "Fault::LinearTorn",
                Setup { tearing: ODDS, ..insert_remove_churn() },
                &[Fault::LinearTorn],
            )
            .seen_at(137),
            planted(
                "linear: one of many gets ends in the region behind the one that its key has been moved from",
                "Fault::LinearMovedEnd",
                Setup::default().with(Feature::Many).with(Feature::Growing).with(Feature::Edges),
                &[Fault::LinearMovedEnd],
            ),
            planted(
                "linear: a worker's copy of the root misses the growth",
                "Fault::LinearUnsealed",
                Setup::default(),
                &[Fault::LinearUnsealed],
            ),
        ]
    }
}
