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
}

/// Nodes that split soonest.
const SMALLEST: Config = Config {
    leaf_span: 8,
    neighbourhood: 2,
    inner_span: 5,
    cache_bytes: 64 << 10,
    hotspot_bytes: 4 << 10,
    speculation: Speculation::On,
    vacancy_bitmap: true,
    replicas: true,
};

impl IndexUnderTest for ChimeUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let (leaf_span, neighbourhood) =
            rng.pick(&[(8, 2), (8, 3), (8, 8), (9, 4), (16, 3), (16, 8), (70, 16)]).unwrap_or((8, 2));
        let config = Config {
            leaf_span,
            neighbourhood,
            inner_span: rng.pick(&[5, 5, 6, 8, 66]).unwrap_or(5),
            speculation: rng.pick(&[Speculation::On, Speculation::On, Speculation::Off]).unwrap_or_default(),
            vacancy_bitmap: !rng.chance(ODDS / 8),
            replicas: !rng.chance(ODDS / 8),
            ..SMALLEST
        };
        Box::new(ChimeUnderTest { config })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Chime(self.config)
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
        rng.pick(&[Shape::Plain, Shape::Eight, Shape::Eight, Shape::LongPrefix(7), Shape::LongPrefix(300)])
            .unwrap_or_default()
    }
    /// Consecutive keys share a leaf as it is.
    fn colliding_bits(&self, _dice: &mut SimRng) -> u32 {
        0
    }
}
