//! The B-link tree under test: tiny nodes, so that splits are common.

use crate::IndexUnderTest;
use farindex_index::IndexConfig;
use farindex_index::tree::blink::Config;
use farindex_sim::SimRng;

/// A B-link tree with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct BLinkUnderTest {
    config: Config,
}

impl IndexUnderTest for BLinkUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        Box::new(BLinkUnderTest { config: Config { fanout: rng.pick(&[4, 4, 4, 5, 8, 16]).unwrap_or(4) } })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::BLink(self.config)
    }
    /// A merge holds those of two leaves.
    fn locks(&self) -> Option<u64> {
        Some(2)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::BLink(Config { fanout: 4 })
    }
    fn removes_by_writing(&self) -> bool {
        true
    }
    /// Consecutive keys share a leaf as it is.
    fn colliding_bits(&self, _dice: &mut SimRng) -> u32 {
        0
    }
}

/// Faults of the tree.
#[cfg(feature = "marks")]
pub fn cases() -> Vec<crate::fault_detection::FaultCase> {
    use crate::Setup;
    use crate::fault_detection::{FaultCase, verdict};
    use farindex_index::tree::blink::faults::{Fault, plant};

    let case = |name, how, fault: Fault| {
        FaultCase::new(name, how, move |seed, planted| {
            plant(if planted { std::slice::from_ref(&fault) } else { &[] });
            let found = verdict(seed, &Setup::default(), &BLinkUnderTest::default());
            plant(&[]);
            found
        })
    };
    vec![
        case("B-link: a lookup does not move right", "Fault::NoMoveRight", Fault::NoMoveRight),
        case("B-link: a scan skips a leaf that was split", "Fault::ScanByParent", Fault::ScanByParent).seen_at(26),
        case("B-link: a writer changes what it read before it locked", "Fault::StaleWrite", Fault::StaleWrite),
    ]
}
