//! SepHash under test: the smallest segments, so that merges, splits and rounds of depth information are common.

use crate::{IndexUnderTest, Setup};
use farindex_index::sephash::{Config, TableKind};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::{CrashOutcome, ODDS, SimRng};

/// Seeds that split again and again: more keys, and fewer of them hot.
pub fn deepening() -> Setup {
    Setup { operations: (20, 80), colliding_keys: (0, 120), cold_keys: (40, 160), ..Setup::default() }
}

/// Many clients append to one segment, without a crash; READs of it are torn, and clients stop in the middle of an operation
/// for as long as others need to advance the epoch.
pub fn stopping() -> Setup {
    let (clients, coroutines, operations) = ((2, 4), (1, 4), (40, 100));
    let (hot_keys, colliding_keys, cold_keys) = ((60, 120), (0, 0), (0, 0));
    let setup = Setup { clients, coroutines, operations, hot_keys, colliding_keys, cold_keys, ..Setup::default() };
    Setup { tearing: ODDS, tight: 0, overflowing: 0, freezes: Some((ODDS / 20, 22)), ..setup }
}

/// Two clients that split segments all the time, one of which crashes at this verb; what it had in flight is lost.
pub fn splitting(verb: u64) -> Setup {
    let (clients, coroutines, operations) = ((2, 2), (1, 1), (60, 120));
    // All keys are hot: hardly any entry is superseded, and segments are split rather than cleaned.
    let (hot_keys, colliding_keys, cold_keys) = ((100, 200), (0, 0), (0, 0));
    let setup = Setup { clients, coroutines, operations, hot_keys, colliding_keys, cold_keys, ..Setup::default() };
    Setup { crashes_at: Some((verb, CrashOutcome::Lost)), tight: 0, overflowing: 0, ..setup }
}

/// SepHash with settings of the seed.
#[derive(Debug, Clone, Default)]
pub struct SepHashUnderTest {
    config: Config,
    /// Are all segments as small as can be, so that every second merge splits?
    smallest: bool,
}

impl SepHashUnderTest {
    /// As shipped.
    pub fn shipped() -> Self {
        SepHashUnderTest::default()
    }
    /// As shipped, with one segment to which everybody appends.
    pub fn appending() -> Self {
        let config = Config { cur_bytes: 960, ratio: 2, initial_depth: 0, ..Config::default() };
        SepHashUnderTest { config, smallest: true }
    }
    /// As shipped, with the smallest segments.
    pub fn smallest() -> Self {
        let config = Config { cur_bytes: 64, ratio: 1, initial_depth: 0, ..Config::default() };
        SepHashUnderTest { config, smallest: true }
    }
}

impl IndexUnderTest for SepHashUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        if self.smallest {
            return Box::new(self.clone());
        }
        let config = Config {
            cur_bytes: rng.pick(&[64, 64, 64, 128, 192, 320]).unwrap_or(64),
            ratio: rng.pick(&[1, 1, 1, 2, 8]).unwrap_or(1),
            initial_depth: rng.pick(&[0, 0, 0, 2, 3, 4]).unwrap_or_default(),
            max_depth: rng.pick(&[36, 36, 36, 6, 4]).unwrap_or(36),
            table: rng
                .pick(&[TableKind::Points, TableKind::Points, TableKind::Naive, TableKind::Off])
                .unwrap_or_default(),
            bitmap: rng.pick(&[true, true, true, false]).unwrap_or(true),
            resize_entry: rng.pick(&[true, true, true, false]).unwrap_or(true),
            zero_wait: rng.pick(&[true, true, true, true, false]).unwrap_or(true),
            report_outcome: rng.pick(&[false, false, true]).unwrap_or_default(),
            ..self.config
        };
        Box::new(SepHashUnderTest { config, ..*self })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::SepHash(self.config)
    }
    fn smallest(&self) -> IndexConfig {
        IndexConfig::SepHash(Config { cur_bytes: 128, ratio: 2, initial_depth: 0, ..Config::default() })
    }
    fn removes_by_writing(&self) -> bool {
        true
    }
    /// Caches may be dropped at any time.
    fn perturb(&self, index: &AnyIndex, _dice: &mut SimRng) {
        let AnyIndex::SepHash(index) = index else { return };
        let index = index.inner();
        index.tables().iter().for_each(farindex_index::sephash::Table::forget);
    }
    fn colliding_bits(&self, rng: &mut SimRng) -> u32 {
        rng.pick(&[0, 0, 1, 3, 5, 9]).unwrap_or_default()
    }
}

/// Verbs of a client in [`splitting`], about.
#[cfg(feature = "marks")]
const VERBS: u64 = 600;

/// What the released code does, and what its writers must not do: each planted in the shipped form.
#[cfg(feature = "marks")]
pub fn fault_detection() -> Vec<crate::fault_detection::FaultCase> {
    use crate::fault_detection::{planted_in, verdict};
    use farindex_index::faults::Fault;

    let case = |name, planted, faults: &'static [Fault]| {
        planted_in(name, planted, faults, |seed| verdict(seed, &Setup::default(), &SepHashUnderTest::shipped()))
    };
    vec![
        case("SepHash: nobody waits for a landing", "Fault::LateFp2", &[Fault::LateFp2]),
        case("SepHash: a slot points to a block that is written later", "Fault::EarlyPointer", &[Fault::EarlyPointer]),
        // A reader of such a segment waits until it is valid; but its writer may crash between the two.
        planted_in(
            "SepHash: the directory names a segment that is written later",
            "Fault::EarlyDirectory",
            &[Fault::EarlyDirectory],
            |seed| verdict(seed, &splitting(1 + seed % VERBS), &SepHashUnderTest::smallest()),
        )
        .seen_at(114),
        case("SepHash: MainSegment is searched first", "Fault::MainFirst", &[Fault::MainFirst]),
        case("SepHash: an update changes MainSegment", "Fault::UpdateInMain", &[Fault::UpdateInMain]),
    ]
}
