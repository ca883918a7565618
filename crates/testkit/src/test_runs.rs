//! Every kind of index that can be tested by its name.

use crate::chime::ChimeUnderTest;
use crate::cuckoo::CuckooUnderTest;
use crate::dex::DexUnderTest;
use crate::linear::LinearUnderTest;
use crate::race::RaceUnderTest;
use crate::sephash::SepHashUnderTest;
use crate::shard::{ShardUnderTest, insert_remove_churn};
use crate::sherman::ShermanUnderTest;
use crate::{IndexUnderTest, SeedReport, Setup, run_seed};
use farindex_index::coalesce;
use farindex_index::shard::Variant;
use farindex_sim::ODDS;
use std::sync::Arc;

/// The variant that is shipped, which must pass. Published variants are there to be detected.
pub const SHIPPED: &str = "repaired";
/// The variants that do what the published prototypes do, and are wrong.
pub const PUBLISHED: &str = "published";

/// One kind of index in one variant.
#[derive(Clone)]
pub struct TestRun {
    /// The kind.
    pub kind: &'static str,
    /// [`SHIPPED`], or the name of a variant.
    pub variant: &'static str,
    /// Sizes of a run. With a lock table for each client if [`Setup::coalescing`] says so.
    pub setup: Setup,
    /// The index.
    pub index: Arc<dyn IndexUnderTest>,
}

impl TestRun {
    fn new(variant: &'static str, setup: Setup, index: Arc<dyn IndexUnderTest>) -> Self {
        TestRun { kind: index.config().kind(), variant, setup, index }
    }
    /// Do operations of a client on one key share their verbs?
    pub fn coalesces(&self) -> bool {
        self.setup.coalescing.is_some()
    }
    /// Runs one seed.
    pub fn run_seed(&self, seed: u64, setup: &Setup) -> SeedReport {
        run_seed(seed, setup, &*self.index)
    }
}

/// Every kind as it is shipped.
pub fn shipped() -> Vec<Arc<dyn IndexUnderTest>> {
    vec![
        Arc::new(ShardUnderTest::repaired()),
        Arc::new(RaceUnderTest::repaired()),
        Arc::new(SepHashUnderTest::shipped()),
        Arc::new(LinearUnderTest::default()),
        Arc::new(CuckooUnderTest::default()),
        Arc::new(ShermanUnderTest::default()),
        Arc::new(ChimeUnderTest::default()),
        Arc::new(DexUnderTest::default()),
        #[cfg(feature = "test-kinds")]
        Arc::new(crate::blink::BLinkUnderTest::default()),
    ]
}

/// Every kind and variant; shipped ones with and without the lock table.
pub fn test_runs() -> Vec<TestRun> {
    let mut test_runs = Vec::new();
    for index in shipped() {
        for coalescing in [None, Some(coalesce::Fault::None)] {
            let setup = Setup { many: ODDS / 8, coalescing, ..Setup::default() };
            test_runs.push(TestRun::new(SHIPPED, setup, Arc::clone(&index)));
        }
    }
    // DEX with acknowledged changes that only a cache has.
    let setup = Setup { many: ODDS / 8, ..Setup::default() };
    test_runs.push(TestRun::new("write-back", setup, Arc::new(DexUnderTest::write_back())));
    // The published removal of SHARD takes keys that are inserted and removed all the time in a table that does not
    // grow.
    let shard = Arc::new(ShardUnderTest::still(Variant::Published));
    test_runs.push(TestRun::new(PUBLISHED, insert_remove_churn(), shard));
    test_runs.push(TestRun::new(PUBLISHED, Setup::default(), Arc::new(RaceUnderTest::published())));
    test_runs.push(TestRun::new(PUBLISHED, crate::sherman::torn(), Arc::new(ShermanUnderTest::published())));
    test_runs
}

/// Finds the test run of these names; the error says which there are.
pub fn test_run(kind: &str, variant: &str, coalesces: bool) -> Result<TestRun, String> {
    let of_kind: Vec<_> = test_runs().into_iter().filter(|test_run| test_run.kind == kind).collect();
    let mut variants: Vec<_> = of_kind.iter().map(|test_run| test_run.variant).collect();
    variants.dedup();
    let variants = variants.join(", ");
    let has_variant = of_kind.iter().any(|test_run| test_run.variant == variant);
    let found = of_kind.into_iter().find(|test_run| test_run.variant == variant && test_run.coalesces() == coalesces);
    found.ok_or_else(|| match has_variant {
        true => format!("the {variant} variant of {kind} is tested without the lock table"),
        false => format!("{kind} is tested in these variants: {variants}"),
    })
}

#[cfg(test)]
mod tests {
    use super::shipped;
    use farindex_index::KINDS;

    #[test]
    fn every_registered_kind_is_tested() {
        let tested: Vec<_> = shipped().iter().map(|index| index.config().kind()).collect();
        let registered: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(tested, registered);
    }
}
