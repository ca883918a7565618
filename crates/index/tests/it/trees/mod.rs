//! What every kind of the ordered indexes over the skeleton passes: keys of all shapes, the shape of the tree, damage.
//! Each kind's folder names the tests that it takes from here, and has others of its own.

pub(crate) mod costs;
mod damage;
pub(crate) mod hand_over;
pub(crate) mod keys;
pub(crate) mod shape;
pub(crate) mod waits;

use farindex_fabric::memory::Delivery;
use farindex_index::{AnyIndex, Chime, IndexConfig, OrderedIndex, PoolIndex, Sherman, chime, sherman};
use farindex_pool::PoolOptions;
use farindex_testkit::IndexUnderTest;
use farindex_testkit::chime::ChimeUnderTest;
use farindex_testkit::sherman::ShermanUnderTest;
use farindex_testkit::suite::audit;
use farindex_testkit::world::{Member, World};
use std::collections::BTreeSet;

/// A kind, as far as these tests tell it from the others.
pub(crate) trait Tree: OrderedIndex + PoolIndex<Config: Copy> {
    /// Spans of leaves and of inner nodes between which every leaf and every node changes its form.
    const SPANS: &'static [(usize, usize)];
    /// The smallest leaf.
    const LEAST: usize;

    /// Settings with these spans of leaves and inner nodes, and the smallest buffers.
    fn of_spans(leaf_span: usize, inner_span: usize) -> Self::Config;
    /// Settings outside their limits.
    fn bad() -> Vec<Self::Config>;
    fn any(config: Self::Config) -> IndexConfig;
    /// Default settings, but for whether locks are handed over.
    fn handing_over(hand_over: bool) -> Self::Config;
    /// A tree under test that hands locks over.
    fn under_test() -> impl IndexUnderTest;
    /// Forgets all copies of nodes.
    fn forget(&self);

    fn default_config() -> Self::Config {
        Self::Config::default()
    }
    /// Nodes that split soonest.
    fn smallest() -> Self::Config {
        Self::of_spans(Self::LEAST, 5)
    }
}

impl Tree for Sherman {
    // Bitmaps of one word and of two.
    const SPANS: &'static [(usize, usize)] = &[(4, 5), (5, 5), (63, 64), (64, 65), (70, 66), (128, 129), (256, 256)];
    const LEAST: usize = 4;

    fn of_spans(leaf_span: usize, inner_span: usize) -> sherman::Config {
        sherman::Config { leaf_span, inner_span, cache_bytes: 64 << 10, ..sherman::Config::default() }
    }
    fn bad() -> Vec<sherman::Config> {
        let good = Self::smallest();
        vec![
            sherman::Config { leaf_span: 3, ..good },
            sherman::Config { leaf_span: 257, ..good },
            sherman::Config { inner_span: 4, ..good },
            sherman::Config { inner_span: 257, ..good },
            sherman::Config { cache_bytes: (64 << 10) - 1, ..good },
        ]
    }
    fn any(config: sherman::Config) -> IndexConfig {
        IndexConfig::Sherman(config)
    }
    fn handing_over(hand_over: bool) -> sherman::Config {
        sherman::Config { hand_over, ..sherman::Config::default() }
    }
    fn under_test() -> impl IndexUnderTest {
        ShermanUnderTest::handing_over()
    }
    fn forget(&self) {
        Sherman::forget(self);
    }
}

impl Tree for Chime {
    // Last groups that are whole and that are not, a vacancy bit for each entry and one for several.
    const SPANS: &'static [(usize, usize)] =
        &[(8, 5), (9, 5), (17, 64), (63, 65), (64, 66), (65, 129), (100, 256), (512, 256)];
    const LEAST: usize = 8;

    /// Neighbourhoods of 2 to 16 entries.
    fn of_spans(leaf_span: usize, inner_span: usize) -> chime::Config {
        chime::Config {
            leaf_span,
            neighbourhood: (leaf_span / 4).clamp(2, 16),
            inner_span,
            cache_bytes: 64 << 10,
            hotspot_bytes: 4 << 10,
            speculation: chime::Speculation::On,
            ..chime::Config::default()
        }
    }
    fn bad() -> Vec<chime::Config> {
        let good = Self::smallest();
        vec![
            chime::Config { leaf_span: 7, ..good },
            chime::Config { leaf_span: 513, ..good },
            chime::Config { neighbourhood: 1, ..good },
            chime::Config { neighbourhood: 9, ..good },
            chime::Config { leaf_span: 64, neighbourhood: 17, ..good },
            chime::Config { inner_span: 4, ..good },
            chime::Config { inner_span: 257, ..good },
            chime::Config { cache_bytes: (64 << 10) - 1, ..good },
            chime::Config { hotspot_bytes: (4 << 10) - 1, ..good },
        ]
    }
    fn any(config: chime::Config) -> IndexConfig {
        IndexConfig::Chime(config)
    }
    fn handing_over(hand_over: bool) -> chime::Config {
        chime::Config { hand_over, ..chime::Config::default() }
    }
    fn under_test() -> impl IndexUnderTest {
        ChimeUnderTest::handing_over()
    }
    fn forget(&self) {
        Chime::forget(self);
    }
}

/// Runs `body` on an empty tree, and then asserts that index and pool are sound.
fn with_tree<T: Tree>(len: u64, config: T::Config, body: impl AsyncFnOnce(&Member, &AnyIndex) + 'static) {
    World::memory(1, len, Delivery::Immediate).run(async move |ctx| {
        let member = ctx.join(&ctx.pool(&PoolOptions::default()).await).await;
        let index = AnyIndex::create(&member.session, "tree", &T::any(config)).await.unwrap();
        body(&member, &index).await;
        let (_, report) = audit(&member, &[("tree", &index)]).await;
        assert_eq!(report.lost, 0);
    });
}

/// Every mark of the skeleton and of the kinds whose marks begin like that. Lookups of many keys are apart
/// (`crate::adversary`); `shape` has the scenarios for a root that shrinks, and for a separator that the pool has no room
/// for; `hand_over` has those for operations that are gone.
pub(crate) fn marks(kind: &str) -> BTreeSet<String> {
    let mut all = crate::marks::of(&["src/tree"]);
    all.retain(|mark| mark.split_once(':').is_some_and(|(of, _)| of == "tree" || of == kind));
    let apart = [
        "tree: root has shrunk",
        "tree: the level of a walk is there no more",
        "tree: separator left out",
        "tree: lock was handed over to an operation that is gone",
        "tree: stopped waiting for another operation of this compute node",
        "tree: nobody was there to take the lock over",
    ];
    assert!(apart.iter().all(|mark| all.remove(*mark)));
    assert!(all.iter().any(|mark| mark.starts_with(kind)), "no marks of {kind}");
    all
}

/// Tests of these names for one kind.
macro_rules! tests_of {
    ($kind:ty: $($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => {
        $($(
            #[test]
            fn $test() {
                $crate::trees::$module::$test::<$kind>();
            }
        )*)*
    };
}
pub(crate) use tests_of;
