//! Sherman under test: tiny nodes, so that splits, merges and a root that grows and shrinks are common, and a node cache
//! that is small or forgotten now and then.

use crate::IndexUnderTest;
use crate::workload::Shape;
use farindex_index::sherman::Config;
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::{ODDS, SimRng};

/// A Sherman tree with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct ShermanUnderTest {
    config: Config,
}

/// Nodes that split soonest.
const SMALLEST: Config = Config { leaf_span: 4, inner_span: 5, cache_bytes: 64 << 10 };

impl IndexUnderTest for ShermanUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let config = Config {
            leaf_span: rng.pick(&[4, 4, 5, 8, 16, 70]).unwrap_or(4),
            inner_span: rng.pick(&[5, 5, 6, 8, 66]).unwrap_or(5),
            ..SMALLEST
        };
        Box::new(ShermanUnderTest { config })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Sherman(self.config)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Sherman(SMALLEST)
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
