//! Every kind of index that can be put on trial by its name.

use crate::cuckoo::CuckooUnderTest;
use crate::index_under_test::{Access, Coalescing, IndexUnderTest};
use crate::linear::LinearUnderTest;
use crate::race::RaceUnderTest;
use crate::sephash::SepHashUnderTest;
use crate::shard::{ShardUnderTest, insert_remove_churn};
use crate::{SeedReport, Setup, run_seed};
use farindex_index::shard::Variant;
use farindex_index::{PoolIndex, coalesce};
use farindex_sim::ODDS;

/// What is published is there to be convicted; what is shipped must survive.
pub const SHIPPED: &str = "repaired";

type Run = Box<dyn Fn(u64, &Setup) -> SeedReport + Sync + Send>;

/// One kind of index in one variant.
pub struct TestRun {
    /// The kind.
    pub kind: &'static str,
    /// [`SHIPPED`], or the name of a variant.
    pub variant: &'static str,
    /// Do operations of a client on one key share their verbs?
    pub coalesces: bool,
    /// What it is tried with.
    pub setup: Setup,
    run: Run,
}

impl TestRun {
    fn new<A: Access + Sync + Send>(variant: &'static str, coalesces: bool, setup: Setup, access: A) -> Self {
        let kind = <A::IndexUnderTest as IndexUnderTest>::Index::NAME;
        TestRun { kind, variant, coalesces, setup, run: Box::new(move |seed, setup| run_seed(seed, setup, &access)) }
    }
    /// Puts one seed on trial.
    pub fn run_seed(&self, seed: u64, setup: &Setup) -> SeedReport {
        (self.run)(seed, setup)
    }
}

/// A kind as it is shipped, alone and behind the local lock table.
fn shipped<S: IndexUnderTest + Sync + Send>(index_under_test: S) -> [TestRun; 2] {
    let coalescing = Coalescing::new(index_under_test.clone(), coalesce::Fault::None);
    let setup = Setup { many: ODDS / 8, ..Setup::default() };
    [TestRun::new(SHIPPED, false, setup.clone(), index_under_test), TestRun::new(SHIPPED, true, setup, coalescing)]
}

/// All of them.
pub fn test_runs() -> Vec<TestRun> {
    let mut test_runs = Vec::new();
    test_runs.extend(shipped(ShardUnderTest::repaired()));
    // The published removal needs keys that come and go in a table that stands still.
    test_runs.push(TestRun::new("published", false, insert_remove_churn(), ShardUnderTest::still(Variant::Published)));
    test_runs.extend(shipped(RaceUnderTest::repaired()));
    test_runs.push(TestRun::new("published", false, Setup::default(), RaceUnderTest::published()));
    test_runs.extend(shipped(SepHashUnderTest::shipped()));
    test_runs.extend(shipped(LinearUnderTest::default()));
    test_runs.extend(shipped(CuckooUnderTest::default()));
    test_runs
}

/// The one of these names; else why there is none.
pub fn test_run(kind: &str, variant: &str, coalesces: bool) -> Result<TestRun, String> {
    let of_kind: Vec<_> = test_runs().into_iter().filter(|test_run| test_run.kind == kind).collect();
    let mut variants: Vec<_> = of_kind.iter().map(|test_run| test_run.variant).collect();
    variants.dedup();
    let variants = variants.join(", ");
    let has_variant = of_kind.iter().any(|test_run| test_run.variant == variant);
    let found = of_kind.into_iter().find(|test_run| test_run.variant == variant && test_run.coalesces == coalesces);
    found.ok_or_else(|| match has_variant {
        true => format!("the {variant} variant of {kind} is tried without the lock table"),
        false => format!("{kind} is tried in these variants: {variants}"),
    })
}
