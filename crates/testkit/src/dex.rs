//! DEX under test: tiny nodes, compute nodes that take ranges from each other all the time, by writing and by command, and
//! caches that forget now and then.

use crate::IndexUnderTest;
use crate::index_under_test::Command;
use crate::workload::Shape;
use farindex_index::dex::{Config, Durability, Foreign, Moves, Offload};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_sim::{ODDS, SimRng};
use std::ops::Bound;
use std::time::Duration;

/// A DEX tree with settings of the seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct DexUnderTest {
    config: Config,
    /// Do memory nodes finish operations with 8-byte keys, in every seed?
    offloads: bool,
    tiny_cache: bool,
    /// Do partitions change their owners by command alone?
    only_by_command: bool,
    /// Are changes acknowledged that only the cache has?
    write_back: bool,
    /// Odds of a command before an operation.
    commands: u32,
}

impl DexUnderTest {
    /// With a cache that has room for a few nodes.
    pub fn with_tiny_cache() -> Self {
        DexUnderTest { tiny_cache: true, ..DexUnderTest::default() }
    }
    /// Partitions change their owners by command alone: a write to a key that another compute node owns is refused.
    pub fn only_by_command() -> Self {
        DexUnderTest { only_by_command: true, ..DexUnderTest::default() }
    }
    /// Changes are acknowledged that only the cache has.
    pub fn write_back() -> Self {
        DexUnderTest { write_back: true, ..DexUnderTest::default() }
    }
}

/// Nodes that split soonest, and leaves that are always cached.
const SMALLEST: Config = Config {
    leaf_span: 4,
    inner_span: 5,
    cache_bytes: 256 << 10,
    leaf_admission: 100,
    moves: Moves::Leaf,
    foreign: Foreign::Acquire,
    offload: Offload::Always,
    subtree_levels: 0,
    durability: Durability::WriteThrough,
    dirty_ms: 100,
};

impl IndexUnderTest for DexUnderTest {
    fn draw(&self, rng: &mut SimRng) -> Box<dyn IndexUnderTest> {
        let tiny = rng.pick(&[12 << 10, 8 << 10, 6 << 10]).filter(|_| self.tiny_cache || rng.chance(ODDS / 2));
        let config = Config {
            leaf_span: rng.pick(&[4, 4, 5, 8, 16, 70]).unwrap_or(4),
            inner_span: rng.pick(&[5, 5, 6, 8, 66]).unwrap_or(5),
            leaf_admission: rng.pick(&[0, 10, 50, 100, 100]).unwrap_or(100),
            moves: rng.pick(&[Moves::Partition, Moves::Subtree, Moves::Leaf]).unwrap_or_default(),
            foreign: match self.only_by_command || rng.chance(ODDS / 8) {
                true => Foreign::Refuse,
                false => Foreign::Acquire,
            },
            cache_bytes: tiny.unwrap_or(SMALLEST.cache_bytes),
            offload: rng.pick(&[Offload::Never, Offload::Auto, Offload::Always]).unwrap_or_default(),
            subtree_levels: rng.pick(&[0, 1, 4]).unwrap_or_default(),
            ..SMALLEST
        };
        let config = if self.write_back {
            let dirty_ms = rng.pick(&[1, 1, 5, 100]).unwrap_or(1);
            let shape = (rng.pick(&[4, 5, 8, 16]).unwrap_or(4), rng.pick(&[50, 100]).unwrap_or(100));
            Config {
                durability: Durability::WriteBack,
                dirty_ms,
                leaf_span: shape.0,
                leaf_admission: shape.1,
                ..config
            }
        } else {
            config
        };
        let config = if self.offloads { Config { offload: Offload::Always, ..config } } else { config };
        let often = if config.foreign == Foreign::Refuse { ODDS / 6 } else { ODDS / 32 };
        let commands = rng.pick(&[0, often / 4, often]).unwrap_or(often);
        let commands = if self.only_by_command { often } else { commands };
        Box::new(DexUnderTest { config, commands, ..*self })
    }
    fn config(&self) -> IndexConfig {
        IndexConfig::Dex(self.config)
    }
    /// Who asks for a partition has declared that, and waits for its owner.
    fn locks(&self) -> Option<u64> {
        None
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
    /// All memory nodes here answer CALLs, and know this version of them.
    fn wrong_with(&self, index: &AnyIndex) -> Option<String> {
        let AnyIndex::Dex(index) = index else { return None };
        let refused = index.inner().offload_counts().refused;
        (refused > 0).then(|| format!("memory nodes have refused {refused} CALLs, or their answers made no sense"))
    }
    fn has_calls(&self) -> bool {
        self.config.offload != Offload::Never
    }
    fn command<'a>(&self, index: &'a AnyIndex, dice: &mut SimRng, key: Vec<u8>) -> Option<Command<'a>> {
        if self.commands == 0 || !dice.chance(self.commands) {
            return None;
        }
        let (what, bounds) = (dice.below(8), dice.below(4));
        let flushes = self.write_back && dice.chance(ODDS / 3);
        Some(Box::pin(async move {
            let bounds = match bounds {
                0 => (Bound::Unbounded, Bound::Unbounded),
                1 => (Bound::Included(&*key), Bound::Included(&*key)),
                2 => (Bound::Unbounded, Bound::Excluded(&*key)),
                _ => (Bound::Excluded(&*key), Bound::Unbounded),
            };
            match what {
                _ if flushes => index.flush().await,
                0 => index.partitions().await.map(drop),
                1 | 2 => index.give_up(bounds).await,
                _ => index.own(bounds).await,
            }
        }))
    }
    fn is_divided(&self) -> bool {
        true
    }
    fn shape(&self, rng: &mut SimRng) -> Shape {
        if self.offloads {
            return Shape::Eight;
        }
        if self.write_back && rng.chance(ODDS / 2) {
            return Shape::Eight;
        }
        rng.pick(&[Shape::Plain, Shape::Eight, Shape::Eight, Shape::LongPrefix(7), Shape::LongPrefix(300)])
            .unwrap_or_default()
    }
    fn may_lose(&self) -> Option<Duration> {
        self.write_back.then(|| Duration::from_millis(self.config.dirty_ms.into()))
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

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod faults {
    use super::DexUnderTest;
    use crate::Setup;
    use crate::fault_detection::{FaultCase, verdict};
    use crate::swarm::Feature;
    use farindex_index::tree::faults::{Fault, plant};
    use farindex_sim::ODDS;

    fn case(name: &'static str, how: &'static str, setup: Setup, fault: Fault) -> FaultCase {
        case_of(name, how, setup, fault, DexUnderTest::default())
    }

    /// A fault of what memory nodes do. (A simulated memory node answers a call in one step, so it takes tests of the handler to
    /// detect that it does not look at checksums, or changes a leaf of two owners.)
    fn offloaded(name: &'static str, how: &'static str, setup: Setup, fault: Fault) -> FaultCase {
        case_of(name, how, setup, fault, DexUnderTest { offloads: true, ..DexUnderTest::default() })
    }

    fn case_of(
        name: &'static str,
        how: &'static str,
        setup: Setup,
        fault: Fault,
        index_under_test: DexUnderTest,
    ) -> FaultCase {
        // Some of these faults end in livelocks.
        let setup = Setup { max_steps: 3_000_000, ..setup };
        FaultCase::new(name, how, move |seed, planted| {
            plant(if planted { std::slice::from_ref(&fault) } else { &[] });
            let found = verdict(seed, &setup, &index_under_test);
            plant(&[]);
            found
        })
    }

    /// Faults of what DEX adds to the tree of Sherman.
    pub fn cases() -> Vec<FaultCase> {
        // Few keys in few leaves, which several compute nodes want.
        let contended = || Setup { clients: (3, 6), hot_keys: (8, 30), overflowing: 0, ..Setup::default() };
        // Many operations on one leaf, of which some are lookups by others than its owner.
        let crowded = || Setup {
            clients: (2, 3),
            coroutines: (3, 5),
            operations: (30, 60),
            hot_keys: (1, 2),
            colliding_keys: (0, 0),
            cold_keys: (0, 2),
            overflowing: 0,
            tearing: 0,
            ..Setup::default()
        };
        // Few keys, and owners that freeze for as long as others need to evict them, to become the owners, and to write: with few
        // crashes, so that many are there to do so.
        let frozen = || Setup {
            clients: (2, 3),
            coroutines: (2, 4),
            operations: (40, 80),
            hot_keys: (1, 2),
            colliding_keys: (0, 0),
            cold_keys: (0, 2),
            overflowing: 0,
            tearing: 0,
            crashes: ODDS / 8,
            crash_leases: &[5],
            freezes: Some((ODDS / 64, 26)),
            ..Setup::default()
        };
        vec![
            case(
                "DEX: an owner answers from its cache after its lease has expired",
                "Fault::StaleLease",
                frozen(),
                Fault::StaleLease,
            )
            .seen_at(95),
            case(
                "DEX: a partition is given away while operations are in progress",
                "Fault::GivenWithoutDrain",
                contended(),
                Fault::GivenWithoutDrain,
            )
            .seen_at(18),
            FaultCase::new(
                "DEX: a partition is given away by command while operations are in progress",
                "Fault::GivenWithoutDrain",
                move |seed, planted| {
                    plant(if planted { &[Fault::GivenWithoutDrain] } else { &[] });
                    let found = verdict(seed, &contended(), &DexUnderTest::only_by_command());
                    plant(&[]);
                    found
                },
            )
            .seen_at(111),
            case(
                "DEX: copies of leaves stay in the cache when their partition is given away",
                "Fault::CopiesKept",
                contended(),
                Fault::CopiesKept,
            )
            .seen_at(6),
            case(
                "DEX: a copy of a leaf is read while the leaf is written",
                "Fault::CopyDuringWrite",
                crowded(),
                Fault::CopyDuringWrite,
            )
            .seen_at(21),
            case(
                "DEX: a copy that was taken out stays swizzled in its parent",
                "Fault::LeftSwizzled",
                contended(),
                Fault::LeftSwizzled,
            ),
            case(
                "DEX: a leaf is admitted to the cache while others write it",
                "Fault::AdmittedWithoutTurn",
                contended(),
                Fault::AdmittedWithoutTurn,
            )
            .seen_at(116),
            case_of(
                "DEX: a bound moves before dirty leaves are written back",
                "Fault::BoundBeforeFlush",
                contended(),
                Fault::BoundBeforeFlush,
                DexUnderTest::write_back(),
            )
            .seen_at(286),
            case_of(
                "DEX: a dirty leaf is evicted without being written back",
                "Fault::DirtyEvicted",
                Setup { hot_keys: (8, 30), overflowing: 0, ..Setup::default() },
                Fault::DirtyEvicted,
                DexUnderTest { tiny_cache: true, ..DexUnderTest::write_back() },
            )
            .seen_at(34),
            case(
                "DEX: a write is acknowledged that only the cache has",
                "Fault::CacheOnly",
                contended(),
                Fault::CacheOnly,
            )
            .seen_at(18),
            case(
                "DEX: a leaf of two owners is written in place",
                "Fault::AcrossBound",
                contended(),
                Fault::AcrossBound,
            )
            .seen_at(35),
            case(
                "DEX: a leaf is written in place while a crashed owner's lock is on it",
                "Fault::OverHeldLock",
                Setup::crashing(),
                Fault::OverHeldLock,
            )
            .seen_at(247),
            case(
                "DEX: a separator is added to a shared parent as it was read before its lock was taken",
                "Fault::OldParent",
                contended(),
                Fault::OldParent,
            )
            .seen_at(214),
            case(
                "DEX: a replacement does not compare the value with the leaf's turn",
                "Fault::Uncompared",
                contended().with(Feature::Guarded),
                Fault::Uncompared,
            ),
            offloaded(
                "DEX: a memory node changes a leaf for an operation that does not have its turn",
                "Fault::CallWithoutTurn",
                crowded(),
                Fault::CallWithoutTurn,
            )
            .seen_at(19),
            offloaded(
                "DEX: a copy of a leaf stays in the cache although a memory node has changed the leaf",
                "Fault::CallKeepsCopy",
                contended(),
                Fault::CallKeepsCopy,
            )
            .seen_at(31),
            case(
                "DEX: a map that others may READ is free for reuse at once",
                "Fault::MapFreed",
                contended(),
                Fault::MapFreed,
            ),
            offloaded(
                "DEX: a call overtakes WRITEs that have completed",
                "Fault::CallOvertakesWrites",
                contended(),
                Fault::CallOvertakesWrites,
            )
            .seen_at(21),
        ]
    }
}
