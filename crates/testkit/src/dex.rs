//! DEX under test: tiny nodes, compute nodes that take ranges from each other all the time, and caches that forget now and
//! then.

use crate::IndexUnderTest;
use crate::workload::Shape;
use farindex_index::dex::{Config, Foreign, Moves};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::{ODDS, SimRng};

/// A DEX tree with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct DexUnderTest {
    config: Config,
}

/// Nodes that split soonest, and leaves that are always cached.
const SMALLEST: Config = Config {
    leaf_span: 4,
    inner_span: 5,
    cache_bytes: 256 << 10,
    leaf_admission: 100,
    moves: Moves::Leaf,
    foreign: Foreign::Acquire,
};

impl IndexUnderTest for DexUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let config = Config {
            leaf_span: rng.pick(&[4, 4, 5, 8, 16, 70]).unwrap_or(4),
            inner_span: rng.pick(&[5, 5, 6, 8, 66]).unwrap_or(5),
            leaf_admission: rng.pick(&[0, 10, 50, 100, 100]).unwrap_or(100),
            moves: rng.pick(&[Moves::Partition, Moves::Subtree, Moves::Leaf]).unwrap_or_default(),
            ..SMALLEST
        };
        Box::new(DexUnderTest { config })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Dex(self.config)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::Dex(SMALLEST)
    }
    fn perturb(&self, index: &AnyIndex, dice: &mut SimRng) {
        let AnyIndex::Dex(index) = index else { return };
        if dice.chance(ODDS / 4) {
            index.inner().forget();
        }
    }
    fn shape(&self, rng: &mut SimRng) -> Shape {
        rng.pick(&[Shape::Plain, Shape::Eight, Shape::Eight, Shape::LongPrefix(7), Shape::LongPrefix(300)])
            .unwrap_or_default()
    }
    /// Becoming the owner of a key takes a new map of partitions.
    fn removes_by_writing(&self) -> bool {
        true
    }
    /// Consecutive keys share a leaf as it is.
    fn colliding_bits(&self, _dice: &mut SimRng) -> u32 {
        0
    }
}
