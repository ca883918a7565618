//! Every kind of index that can be put on trial by its name.

use crate::cuckoo::CuckooUnderTest;
use crate::linear::LinearUnderTest;
use crate::race::RaceUnderTest;
use crate::sephash::SepHashUnderTest;
use crate::shard::{ShardUnderTest, come_and_go};
use crate::subject::{Access, Coalescing, Subject};
use crate::{SeedReport, Setup, run_seed};
use farindex_index::shard::Variant;
use farindex_index::{PoolIndex, coalesce};
use farindex_sim::ODDS;

/// What is published is there to be convicted; what is shipped must survive.
pub const SHIPPED: &str = "repaired";

type Run = Box<dyn Fn(u64, &Setup) -> SeedReport + Sync + Send>;

/// One kind of index in one variant.
pub struct Trial {
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

impl Trial {
    fn new<A: Access + Sync + Send>(variant: &'static str, coalesces: bool, setup: Setup, access: A) -> Self {
        let kind = <A::Subject as Subject>::Index::NAME;
        Trial { kind, variant, coalesces, setup, run: Box::new(move |seed, setup| run_seed(seed, setup, &access)) }
    }
    /// Puts one seed on trial.
    pub fn run_seed(&self, seed: u64, setup: &Setup) -> SeedReport {
        (self.run)(seed, setup)
    }
}

/// A kind as it is shipped, alone and behind the local lock table.
fn shipped<S: Subject + Sync + Send>(subject: S) -> [Trial; 2] {
    let coalescing = Coalescing::new(subject.clone(), coalesce::Fault::None);
    let setup = Setup { many: ODDS / 8, ..Setup::default() };
    [Trial::new(SHIPPED, false, setup.clone(), subject), Trial::new(SHIPPED, true, setup, coalescing)]
}

/// All of them.
pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    trials.extend(shipped(ShardUnderTest::repaired()));
    // The published removal needs keys that come and go in a table that stands still.
    trials.push(Trial::new("published", false, come_and_go(), ShardUnderTest::still(Variant::Published)));
    trials.extend(shipped(RaceUnderTest::repaired()));
    trials.push(Trial::new("published", false, Setup::default(), RaceUnderTest::published()));
    trials.extend(shipped(SepHashUnderTest::shipped()));
    trials.extend(shipped(LinearUnderTest::default()));
    trials.extend(shipped(CuckooUnderTest::default()));
    trials
}

/// The one of these names; else why there is none.
pub fn trial(kind: &str, variant: &str, coalesces: bool) -> Result<Trial, String> {
    let of_kind: Vec<_> = trials().into_iter().filter(|trial| trial.kind == kind).collect();
    let mut variants: Vec<_> = of_kind.iter().map(|trial| trial.variant).collect();
    variants.dedup();
    let variants = variants.join(", ");
    let has_variant = of_kind.iter().any(|trial| trial.variant == variant);
    let found = of_kind.into_iter().find(|trial| trial.variant == variant && trial.coalesces == coalesces);
    found.ok_or_else(|| match has_variant {
        true => format!("the {variant} variant of {kind} is tried without the lock table"),
        false => format!("{kind} is tried in these variants: {variants}"),
    })
}
