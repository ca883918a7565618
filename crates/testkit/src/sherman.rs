//! Sherman under test: tiny nodes, so that splits, merges and a root that grows and shrinks are common, and a node cache
//! that is small or forgotten now and then.

pub mod scenarios;

use crate::shard::insert_remove_churn;
use crate::workload::Shape;
use crate::{IndexUnderTest, Setup};
use farindex_index::sherman::{Config, Variant};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::{ODDS, SimRng};

/// A Sherman tree with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct ShermanUnderTest {
    config: Config,
    /// Hand locks over in every seed, not in some.
    hands_over: bool,
    /// The smallest nodes in every seed.
    smallest: bool,
}

/// Nodes that split soonest.
const SMALLEST: Config =
    Config { leaf_span: 4, inner_span: 5, cache_bytes: 64 << 10, hand_over: true, variant: Variant::Repaired };

impl ShermanUnderTest {
    /// With the published versions in place of a checksum.
    pub fn published() -> Self {
        ShermanUnderTest { config: Config { variant: Variant::Published, ..SMALLEST }, ..Self::default() }
    }
    /// With the smallest nodes.
    pub fn smallest_nodes() -> Self {
        ShermanUnderTest { config: SMALLEST, smallest: true, ..Self::default() }
    }
    /// Handing over the locks of leaves.
    pub fn handing_over() -> Self {
        ShermanUnderTest { config: SMALLEST, hands_over: true, ..Self::default() }
    }
}

impl IndexUnderTest for ShermanUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let config = Config {
            leaf_span: rng.pick(&[4, 4, 5, 8, 16, 70]).unwrap_or(4),
            inner_span: rng.pick(&[5, 5, 6, 8, 66]).unwrap_or(5),
            hand_over: rng.chance(ODDS / 2) || self.hands_over,
            variant: self.config.variant,
            ..SMALLEST
        };
        Box::new(ShermanUnderTest { config: if self.smallest { SMALLEST } else { config }, ..*self })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Sherman(self.config)
    }
    /// A merge holds those of two leaves.
    fn locks(&self) -> Option<u64> {
        Some(2)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Sherman(Config { variant: self.config.variant, ..SMALLEST })
    }
    fn perturb(&self, index: &AnyIndex, dice: &mut SimRng) {
        let AnyIndex::Sherman(index) = index else { return };
        if dice.chance(ODDS / 4) {
            index.inner().forget();
        }
    }
    fn shape(&self, rng: &mut SimRng) -> Shape {
        rng.pick(&[Shape::Plain, Shape::Eight, Shape::Eight, Shape::LongPrefix(7), Shape::LongPrefix(300)])
            .unwrap_or_default()
    }
    /// Consecutive keys share a leaf as it is.
    fn colliding_bits(&self, _dice: &mut SimRng) -> u32 {
        0
    }
}

/// Every READ is torn, and takes as long as whole operations of other clients on the same few keys.
pub fn torn() -> Setup {
    Setup { tearing: ODDS, ..insert_remove_churn() }
}

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod faults {
    use super::ShermanUnderTest;
    use super::scenarios::Scenario;
    use crate::Setup;
    use crate::fault_detection::{FaultCase, crash_within_a_batch, verdict, violation};
    use crate::swarm::Feature;
    use farindex_index::sherman::Variant;
    use farindex_index::tree::faults::{Fault, plant};

    fn case(name: &'static str, how: &'static str, setup: Setup, fault: Fault) -> FaultCase {
        FaultCase::new(name, how, move |seed, planted| {
            plant(if planted { std::slice::from_ref(&fault) } else { &[] });
            let found = verdict(seed, &setup, &ShermanUnderTest::default());
            plant(&[]);
            found
        })
    }

    /// A scenario with the published versions, or with checksums.
    fn scenario(name: &'static str, scenario: Scenario) -> FaultCase {
        FaultCase::new(name, "Variant::Published", move |seed, detected_by| {
            scenario.play(seed, if detected_by { Variant::Published } else { Variant::Repaired })
        })
    }

    /// Faults of Sherman and of the skeleton.
    pub fn cases() -> Vec<FaultCase> {
        // Leaves are merged and split all the time.
        let merging = || Setup { clients: (3, 6), hot_keys: (8, 30), overflowing: 0, ..Setup::default() };
        vec![
            case(
                "Sherman: a lookup does not compare a leaf's checksum",
                "Fault::TornRead",
                super::torn(),
                Fault::TornRead,
            )
            .seen_at(40),
            case("Sherman: a lookup does not move right", "Fault::NoMoveRight", Setup::default(), Fault::NoMoveRight),
            case(
                "Sherman: a scan skips a leaf that was split",
                "Fault::ScanSkipsSplit",
                Setup::default(),
                Fault::ScanSkipsSplit,
            )
            .seen_at(15),
            case(
                "Sherman: a merge reads the right node while others change it",
                "Fault::MergeWithoutFreeze",
                merging(),
                Fault::MergeWithoutFreeze,
            ),
            case(
                "Sherman: a node is retired while others point to it",
                "Fault::RetireEarly",
                merging(),
                Fault::RetireEarly,
            )
            .seen_at(560),
            case("Sherman: a separator of a dead node is added", "Fault::AddDead", merging(), Fault::AddDead)
                .seen_at(31),
            case(
                "Sherman: a writer does not compare a leaf's range",
                "Fault::NoRangeCheck",
                Setup::default(),
                Fault::NoRangeCheck,
            ),
            FaultCase::new(
                "Sherman: a split links the new node before it is written",
                "Fault::CommitFirst",
                |seed, planted| {
                    plant(if planted { &[Fault::CommitFirst] } else { &[] });
                    let found = verdict(seed, &crash_within_a_batch(seed), &ShermanUnderTest::smallest_nodes());
                    plant(&[]);
                    found
                },
            )
            .seen_at(87),
            FaultCase::new(
                "Sherman: a lock is handed over with the leaf as its holder has found it",
                "Fault::HandOverOld",
                |seed, planted| {
                    plant(if planted { &[Fault::HandOverOld] } else { &[] });
                    let setup = Setup { coroutines: (3, 6), ..Setup::default() };
                    let found = verdict(seed, &setup, &ShermanUnderTest::handing_over());
                    plant(&[]);
                    found
                },
            )
            .seen_at(3),
            case(
                "Sherman: a replacement does not compare the value under the leaf's lock",
                "Fault::Uncompared",
                Setup::default().with(Feature::Guarded),
                Fault::Uncompared,
            ),
            scenario("Sherman: versions of an entry: a key is not found that is there", Scenario::ChangedValue),
            scenario("Sherman: versions of an entry: a key has the value of another one", Scenario::SharedSlot),
            scenario("Sherman: versions of a leaf: a split hides a key", Scenario::Split).seen_at(103),
            FaultCase::new("Sherman: versions: histories", "Variant::Published", |seed, detected_by| {
                let index = if detected_by { ShermanUnderTest::published() } else { ShermanUnderTest::default() };
                violation(seed, &super::torn(), &index)
            })
            .seen_at(22),
        ]
    }
}
