//! CHIME under test: small leaves with small neighbourhoods, so that hops, wraps, splits and merges are common; a node
//! cache and a hotspot buffer that are small or forgotten now and then.

use crate::IndexUnderTest;
use crate::workload::Shape;
use farindex_index::chime::{Config, Speculation};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::{ODDS, SimRng};

/// A CHIME tree with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct ChimeUnderTest {
    config: Config,
    /// Entries of a leaf and of a neighbourhood, where the seed does not draw them; keys then have 8 bytes.
    leaf: Option<(usize, usize)>,
    /// Hand locks over in every seed, not in some.
    hands_over: bool,
    /// The smallest nodes in every seed.
    smallest: bool,
}

/// Nodes that split soonest.
const SMALLEST: Config = Config {
    leaf_span: 8,
    neighbourhood: 2,
    inner_span: 5,
    cache_bytes: 64 << 10,
    hand_over: true,
    hotspot_bytes: 4 << 10,
    speculation: Speculation::On,
    vacancy_bitmap: true,
    replicas: true,
};

impl ChimeUnderTest {
    /// Handing over the locks of leaves.
    pub fn handing_over() -> Self {
        ChimeUnderTest { config: SMALLEST, hands_over: true, ..Self::default() }
    }

    /// With the smallest nodes.
    pub fn smallest_nodes() -> Self {
        ChimeUnderTest { config: SMALLEST, smallest: true, ..Self::default() }
    }
}

impl IndexUnderTest for ChimeUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let (leaf_span, neighbourhood) =
            rng.pick(&[(8, 2), (8, 3), (8, 8), (9, 4), (16, 3), (16, 8), (70, 16)]).unwrap_or((8, 2));
        let (leaf_span, neighbourhood) = self.leaf.unwrap_or((leaf_span, neighbourhood));
        let config = Config {
            leaf_span,
            neighbourhood,
            inner_span: rng.pick(&[5, 5, 6, 8, 66]).unwrap_or(5),
            speculation: rng.pick(&[Speculation::On, Speculation::On, Speculation::Off]).unwrap_or_default(),
            vacancy_bitmap: !rng.chance(ODDS / 8),
            replicas: !rng.chance(ODDS / 8),
            hand_over: rng.chance(ODDS / 2) || self.hands_over,
            ..SMALLEST
        };
        Box::new(ChimeUnderTest { config: if self.smallest { SMALLEST } else { config }, ..self.clone() })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Chime(self.config)
    }
    /// A merge holds those of two leaves.
    fn locks(&self) -> Option<u64> {
        Some(2)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Chime(SMALLEST)
    }
    fn perturb(&self, index: &AnyIndex, dice: &mut SimRng) {
        let AnyIndex::Chime(index) = index else { return };
        if dice.chance(ODDS / 4) {
            index.inner().forget();
        }
    }
    fn shape(&self, rng: &mut SimRng) -> Shape {
        let drawn = rng.pick(&[Shape::Plain, Shape::Eight, Shape::Eight, Shape::LongPrefix(7), Shape::LongPrefix(300)]);
        if self.leaf.is_some() { Shape::Eight } else { drawn.unwrap_or_default() }
    }
    /// Consecutive keys share a leaf as it is.
    fn colliding_bits(&self, _dice: &mut SimRng) -> u32 {
        0
    }
}

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod faults {
    use super::ChimeUnderTest;
    use crate::Setup;
    use crate::fault_detection::{FaultCase, crash_within_a_batch, verdict};
    use crate::shard::insert_remove_churn;
    use crate::swarm::Feature;
    use farindex_index::chime::leaf::faults as leaf;
    use farindex_index::tree::faults as tree;
    use farindex_sim::ODDS;

    /// A fault of the leaf, or of the skeleton.
    #[derive(Clone, Copy)]
    enum Planted {
        Leaf(leaf::Fault),
        Tree(tree::Fault),
    }

    impl Planted {
        fn plant(self, yes: bool) {
            match self {
                Planted::Leaf(fault) => leaf::plant(if yes { std::slice::from_ref(&fault) } else { &[] }),
                Planted::Tree(fault) => tree::plant(if yes { std::slice::from_ref(&fault) } else { &[] }),
            }
        }
    }

    fn case(name: &'static str, how: &'static str, setup: Setup, index: ChimeUnderTest, fault: Planted) -> FaultCase {
        FaultCase::new(name, how, move |seed, planted| {
            fault.plant(planted);
            let found = verdict(seed, &setup, &index);
            fault.plant(false);
            found
        })
    }

    /// Faults of CHIME, and of the skeleton below it. Three faults are left to the unit tests of the leaf, which detect them
    /// (`chime::leaf`): lookups without the digest and inserts that write the home's set last need a READ that lasts for
    /// several operations on neighbouring entries in one order of few; a recovery that leaves the vacancy bitmap costs a
    /// READ, and no more.
    ///
    /// Checks of 4 bits agree by chance, and the pool's identity is part of that: other runs need other numbers of seeds.
    pub fn cases() -> Vec<FaultCase> {
        let drawn = ChimeUnderTest::default;
        let aimed = |leaf| ChimeUnderTest { leaf: Some(leaf), ..drawn() };
        // Leaves are merged and split all the time.
        let merging = || Setup { clients: (3, 6), hot_keys: (8, 30), overflowing: 0, ..Setup::default() };
        // A few keys come and go in small leaves, so that they hop, and READs are slower than several operations.
        let hopping =
            || Setup { tearing: ODDS, clients: (3, 5), hot_keys: (5, 8), cold_keys: (0, 3), ..insert_remove_churn() };
        vec![
            case(
                "CHIME: a lookup does not compare entries with the home's bitmap",
                "leaf::Fault::NoHopComparison",
                hopping(),
                aimed((8, 3)),
                Planted::Leaf(leaf::Fault::NoHopComparison),
            )
            .seen_at(954),
            case(
                "CHIME: an entry's version has 4 bits",
                "leaf::Fault::FourBitVersions",
                Setup { operations: (30, 60), hot_keys: (2, 4), cold_keys: (0, 0), ..hopping() },
                aimed((8, 3)),
                Planted::Leaf(leaf::Fault::FourBitVersions),
            )
            .seen_at(721),
            case(
                "CHIME: an insert looks for its key up to the first vacancy",
                "leaf::Fault::FirstVacancy",
                Setup::default(),
                drawn(),
                Planted::Leaf(leaf::Fault::FirstVacancy),
            ),
            case(
                "CHIME: a lookup takes a miss for one although the leaf was split",
                "Fault::NoMoveRight",
                Setup::default(),
                drawn(),
                Planted::Tree(tree::Fault::NoMoveRight),
            ),
            case(
                "CHIME: a scan skips a leaf that was split",
                "Fault::ScanSkipsSplit",
                Setup::default(),
                drawn(),
                Planted::Tree(tree::Fault::ScanSkipsSplit),
            )
            .seen_at(12),
            case(
                "CHIME: a merge reads the right leaf while others change it",
                "Fault::MergeWithoutFreeze",
                merging(),
                drawn(),
                Planted::Tree(tree::Fault::MergeWithoutFreeze),
            ),
            case(
                "CHIME: a merge leaves the right leaf's entries as they are",
                "Fault::NoRetire",
                merging(),
                drawn(),
                Planted::Tree(tree::Fault::NoRetire),
            )
            .seen_at(30),
            case(
                "CHIME: a leaf is retired while others point to it",
                "Fault::RetireEarly",
                merging(),
                drawn(),
                Planted::Tree(tree::Fault::RetireEarly),
            )
            .seen_at(1247),
            case(
                "CHIME: a separator of a dead leaf is added",
                "Fault::AddDead",
                merging(),
                drawn(),
                Planted::Tree(tree::Fault::AddDead),
            )
            .seen_at(429),
            case(
                "CHIME: a writer does not compare a leaf's range",
                "Fault::NoRangeCheck",
                Setup::default(),
                drawn(),
                Planted::Tree(tree::Fault::NoRangeCheck),
            ),
            FaultCase::new(
                "CHIME: a split links the new leaf before it is written",
                "Fault::CommitFirst",
                |seed, planted| {
                    Planted::Tree(tree::Fault::CommitFirst).plant(planted);
                    let found = verdict(seed, &crash_within_a_batch(seed), &ChimeUnderTest::smallest_nodes());
                    Planted::Tree(tree::Fault::CommitFirst).plant(false);
                    found
                },
            )
            .seen_at(628),
            case(
                "CHIME: a lock is handed over with the leaf as its holder has found it",
                "Fault::HandOverOld",
                Setup { coroutines: (3, 6), ..Setup::default() },
                ChimeUnderTest::handing_over(),
                Planted::Tree(tree::Fault::HandOverOld),
            )
            .seen_at(10),
            case(
                "CHIME: a replacement does not compare the value under the leaf's lock",
                "Fault::Uncompared",
                Setup::default().with(Feature::Guarded),
                drawn(),
                Planted::Tree(tree::Fault::Uncompared),
            ),
        ]
    }
}
