//! Cuckoo hashing under test: small tables with full buckets, displaced and moved all the time.

use crate::IndexUnderTest;
use farindex_index::cuckoo::{Config, Lookup};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::SimRng;

/// Cuckoo hashing with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct CuckooUnderTest {
    config: Config,
}

impl IndexUnderTest for CuckooUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let config = Config {
            slots: rng.pick(&[1, 1, 1, 128, 512]).unwrap_or(1),
            width: rng.pick(&[8, 16, 32, 32, 64, 128]).unwrap_or(32),
            associativity: rng.pick(&[1, 1, 2, 4]).unwrap_or(4),
            lookup: rng.pick(&[Lookup::Parallel, Lookup::Sequential]).unwrap_or_default(),
            threshold: rng.pick(&[0.05, 0.1, 0.3, 0.75, 0.98, 0.98]).unwrap_or(0.8),
            alpha: rng.pick(&[0.0, 0.1, 1.0, 10.0]).unwrap_or(0.1),
        };
        Box::new(CuckooUnderTest { config })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Cuckoo(self.config)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Cuckoo(Config { slots: 1, associativity: 1, threshold: 0.98, ..Config::default() })
    }
    /// The counts are hints that steer growth: wrong ones must do no harm.
    fn perturb(&self, index: &AnyIndex, rng: &mut SimRng) {
        let AnyIndex::Cuckoo(index) = index else { return };
        let index = index.inner();
        let Some(table) = rng.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) else { return };
        let segment = table.geometry().current;
        if segment.regions < 32 && rng.chance(farindex_sim::ODDS / 4) {
            let wanted = (self.config.threshold * segment.slots() as f64) as i64 + 2;
            let short = wanted.saturating_sub_unsigned(table.used(segment.generation)).max(0);
            table.note(0, segment.generation, short);
        }
    }
    fn colliding_bits(&self, rng: &mut SimRng) -> u32 {
        rng.pick(&[0, 2, 4, 6, 9]).unwrap_or_default()
    }
}

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod crashed_mover;

#[cfg(feature = "marks")]
mod faults {
    use super::CuckooUnderTest;
    use crate::Setup;
    use crate::fault_detection::{FaultCase, planted_in, violation};
    use crate::shard::insert_remove_churn;
    use farindex_index::faults::Fault;
    use farindex_sim::ODDS;

    /// A case that the check for linearizability must detect.
    fn planted(name: &'static str, how: &'static str, setup: Setup, faults: &'static [Fault]) -> FaultCase {
        planted_in(name, how, faults, move |seed| violation(seed, &setup, &CuckooUnderTest::default()))
    }

    /// All of cuckoo hashing's.
    pub fn cases() -> Vec<FaultCase> {
        vec![
            planted(
                "cuckoo: a displacement clears the source before the target is visible",
                "Fault::CuckooEarlyClear",
                super::packed(),
                &[Fault::CuckooEarlyClear],
            )
            .seen_at(63),
            planted(
                "cuckoo: a torn record behind its head is believed",
                "Fault::CuckooTorn",
                Setup { tearing: ODDS, ..insert_remove_churn() },
                &[Fault::CuckooTorn],
            )
            .seen_at(59),
            planted(
                "cuckoo: a worker's copy of the root misses the growth",
                "Fault::CuckooUnseen",
                Setup::default(),
                &[Fault::CuckooUnseen],
            )
            .seen_at(65),
            planted(
                "cuckoo: a copy is changed before its source is gone",
                "Fault::CuckooCopyChanged",
                Setup::default(),
                &[Fault::CuckooCopyChanged],
            )
            .seen_at(233),
            planted_in(
                "cuckoo: a mover crashes between the head and the words of a copy",
                "Fault::CuckooCopyAtOnce",
                &[Fault::CuckooCopyAtOnce],
                super::crashed_mover::play,
            )
            .seen_at(245),
            planted(
                "cuckoo: two inserts of one key take two slots",
                "Fault::CuckooUnlocked",
                insert_remove_churn(),
                &[Fault::CuckooUnlocked],
            )
            .seen_at(5),
        ]
    }
}

/// Tables that are filled up.
pub fn packed() -> crate::Setup {
    crate::Setup { colliding_keys: (30, 60), hot_keys: (4, 10), ..crate::Setup::default() }
}
