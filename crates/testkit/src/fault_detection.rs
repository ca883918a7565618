//! Faults, and the seeds that find them.
//!
//! A [`FaultCase`] names a fault that is planted or published, how it is planted, and runs one seed with it or without
//! it.
//! [`FaultCase::search`] counts the seeds until the fault is detected, and runs the shipped form on the same seeds. An
//! adversary that detects all of these within its limit is some evidence when it finds nothing else.
//! [`FaultCase::detect`] begins with a seed that is known to detect it.

use crate::damage::one_bit_flips;
use crate::index_under_test::IndexUnderTest;
use crate::race::RaceUnderTest;
use crate::seeds::threads;
use crate::shard::{ShardUnderTest, insert_remove_churn};
use crate::swarm::Feature;
use crate::test_runs::shipped;
use crate::{Setup, run_seed};
use farindex_index::coalesce;
use farindex_index::faults::{Fault, plant};
use farindex_index::shard::Variant;
use farindex_pool::faults as pool;
use farindex_sim::{CrashOutcome, ODDS};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs one seed, with the fault or without; returns what was found.
type Try = dyn Fn(u64, bool) -> Option<String> + Sync + Send;

/// One fault.
pub struct FaultCase {
    /// Which rule is broken.
    pub name: &'static str,
    /// How it is planted.
    pub planted: &'static str,
    /// A seed that detected it when it was last looked for.
    seen_at: Option<u64>,
    run: Box<Try>,
}

/// Result for one fault.
#[derive(Debug, Clone)]
pub struct FaultDetection {
    /// Which rule is broken.
    pub name: &'static str,
    /// How it is planted.
    pub planted: &'static str,
    /// The first seed that detects it, with the first line of the failure; `None` if none does within the limit.
    pub found: Option<(u64, String)>,
    /// The failure of the shipped form on the same seeds, which must not exist.
    pub shipped: Option<(u64, String)>,
    /// Seeds that were allowed.
    pub limit: u64,
    /// The seed that detected the fault before, and does not any more. Then many others had to be searched.
    pub outdated: Option<u64>,
}

impl FaultDetection {
    /// Was the fault detected, and nothing in the shipped form?
    pub fn holds(&self) -> bool {
        self.found.is_some() && self.shipped.is_none()
    }
}

impl fmt::Display for FaultDetection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultDetection { name, planted, found, shipped, limit, outdated } = self;
        match found {
            Some((seed, what)) => write!(f, "{:>6}  {name} ({planted}): {what}", seed + 1)?,
            None => write!(f, "  NONE  {name} ({planted}): not found by {limit} seeds")?,
        }
        if let Some(seed) = outdated {
            write!(f, "; no longer by seed {seed}, its `seen_at`")?;
        }
        match shipped {
            Some((seed, what)) => write!(f, "; THE SHIPPED FORM FAILS TOO, seed {seed}: {what}"),
            None => Ok(()),
        }
    }
}

/// Clients crash while many keys split nodes; what the second one has posted lands in part.
pub(crate) fn crash_within_a_batch(seed: u64) -> Setup {
    let setup = Setup { clients: (4, 5), hot_keys: (20, 40), cold_keys: (40, 60), ..Setup::crashing() };
    let crashes_at = Some((1 + seed % 200, CrashOutcome::Prefix));
    Setup { crashes_at, crashes: ODDS, tight: 0, overflowing: 0, ..setup }
}

impl FaultCase {
    pub(crate) fn new(
        name: &'static str,
        planted: &'static str,
        run: impl Fn(u64, bool) -> Option<String> + Sync + Send + 'static,
    ) -> Self {
        FaultCase { name, planted, seen_at: None, run: Box::new(run) }
    }
    /// Notes a seed that detects the fault, best one that does so soon: in a livelock many seconds of the simulator pass first.
    pub(crate) fn seen_at(self, seed: u64) -> Self {
        FaultCase { seen_at: Some(seed), ..self }
    }

    /// The smallest of these seeds that finds something, on all cores.
    fn first(&self, seeds: u64, planted: bool) -> Option<(u64, String)> {
        let (next, found) = (AtomicU64::new(0), Mutex::new(None::<(u64, String)>));
        let lock = || found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let work = || {
            loop {
                // Seeds are handed out in order: all smaller seeds have begun by then, and are finished.
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds || lock().is_some() {
                    return;
                }
                if let Some(what) = (self.run)(seed, planted) {
                    let mut found = lock();
                    if found.as_ref().is_none_or(|(first, _)| seed < *first) {
                        *found = Some((seed, what));
                    }
                }
            }
        };
        std::thread::scope(|scope| (0..threads()).for_each(|_| drop(scope.spawn(work))));
        found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs the seed that has detected the fault before, with the fault and with the shipped form; if it does not do so any
    /// more, [searches](Self::search).
    pub fn detect(&self, limit: u64) -> FaultDetection {
        let known = self.seen_at.and_then(|seed| Some((seed, (self.run)(seed, true)?)));
        let Some(found) = known else {
            return FaultDetection { outdated: self.seen_at, ..self.search(limit) };
        };
        let shipped = (self.run)(found.0, false).map(|what| (found.0, what));
        let (name, planted) = (self.name, self.planted);
        FaultDetection { name, planted, found: Some(found), shipped, limit, outdated: None }
    }

    /// Runs up to `limit` seeds with the fault until one detects it, and as many with the shipped form.
    pub fn search(&self, limit: u64) -> FaultDetection {
        let found = self.first(limit, true);
        let same = found.as_ref().map_or(limit, |(seed, _)| seed + 1);
        let shipped = self.first(same, false);
        FaultDetection { name: self.name, planted: self.planted, found, shipped, limit, outdated: None }
    }
}

/// Returns the first line of the first failure of a seed; one of linearizability goes first.
pub(crate) fn verdict(seed: u64, setup: &Setup, index_under_test: &dyn IndexUnderTest) -> Option<String> {
    let report = run_seed(seed, setup, index_under_test);
    let failure = report.failures.iter().find(|failure| failure.contains("not linearizable"));
    let failure = failure.or(report.failures.first())?;
    let line = failure.lines().find(|line| line.contains("not linearizable")).or_else(|| failure.lines().next())?;
    Some(line.trim().to_owned())
}

/// Returns the first line that says that a seed's history is not linearizable.
pub(crate) fn violation(seed: u64, setup: &Setup, index_under_test: &dyn IndexUnderTest) -> Option<String> {
    let report = run_seed(seed, setup, index_under_test);
    let mut lines = report.failures.iter().flat_map(|failure| failure.lines()).map(str::trim);
    lines.find(|line| line.contains("not linearizable")).map(str::to_owned)
}

/// SHARD with these faults planted, or as shipped.
fn in_shard(name: &'static str, planted: &'static str, faults: &'static [Fault]) -> FaultCase {
    planted_in(name, planted, faults, |seed| verdict(seed, &Setup::default(), &ShardUnderTest::repaired()))
}

/// A case with these faults planted while `test_run` runs a seed, or without them.
pub(crate) fn planted_in(
    name: &'static str,
    planted: &'static str,
    faults: &'static [Fault],
    test_run: impl Fn(u64) -> Option<String> + Sync + Send + 'static,
) -> FaultCase {
    FaultCase::new(name, planted, move |seed, detected_by| {
        plant(if detected_by { faults } else { &[] });
        let found = test_run(seed);
        plant(&[]);
        found
    })
}

/// The pool below SHARD with a fault planted, or as shipped.
fn in_pool(name: &'static str, planted: &'static str, setup: Setup, fault: pool::Fault) -> FaultCase {
    FaultCase::new(name, planted, move |seed, detected_by| {
        pool::plant(if detected_by { std::slice::from_ref(&fault) } else { &[] });
        let found = verdict(seed, &setup, &ShardUnderTest::repaired());
        pool::plant(&[]);
        found
    })
}

fn in_table(name: &'static str, planted: &'static str, fault: coalesce::Fault) -> FaultCase {
    FaultCase::new(name, planted, move |seed, detected_by| {
        let fault = if detected_by { fault } else { coalesce::Fault::None };
        // Clients of one coroutine have nothing to coalesce.
        let setup = Setup { coroutines: (2, 4), hot_keys: (1, 2), coalescing: Some(fault), ..Setup::default() };
        verdict(seed, &setup, &ShardUnderTest::repaired())
    })
}

/// One kind as it is shipped, in a setup of its own, with a fault of an index or of the pool.
fn in_kind(
    name: &'static str,
    planted: &'static str,
    setup: Setup,
    kind: &'static str,
    plant_it: impl Fn(bool) + Sync + Send + 'static,
) -> FaultCase {
    FaultCase::new(name, planted, move |seed, detected_by| {
        let index = shipped().into_iter().find(|index| index.config().kind() == kind)?;
        plant_it(detected_by);
        let found = verdict(seed, &setup, &*index);
        plant_it(false);
        found
    })
}

/// Faults that take what the usual setup does not have: keys of one hash, walks among the operations, and judges of leases
/// and pins. `docs/adversary.md` says how many seeds each takes, and that the usual setup misses them.
pub fn aimed_cases() -> Vec<FaultCase> {
    let plant_in_index = |fault: Fault| move |on: bool| plant(if on { std::slice::from_ref(&fault) } else { &[] });
    let plant_in_pool = |fault: pool::Fault| move |on| pool::plant(if on { std::slice::from_ref(&fault) } else { &[] });
    let compared_once = |kind| {
        let name = "a replacement does not compare again when its CAS has failed";
        // Few keys, which all clients change.
        let few = Setup { hot_keys: (1, 2), clients: (3, 4), coroutines: (2, 3), ..Setup::default() };
        let plant_it = plant_in_index(Fault::ComparedOnce);
        in_kind(name, "Fault::ComparedOnce", few.with(Feature::Guarded), kind, plant_it)
    };
    let twins = || Setup::default().with(Feature::Twins);
    let hash_is_key = |kind| {
        let name = "the block of another key with the same hash is taken for that of the key";
        in_kind(name, "Fault::HashIsKey", twins(), kind, plant_in_index(Fault::HashIsKey))
    };
    vec![
        hash_is_key("shard"),
        hash_is_key("race"),
        hash_is_key("sephash"),
        compared_once("shard"),
        compared_once("race"),
        compared_once("sephash"),
        compared_once("linear"),
        compared_once("cuckoo"),
        in_kind(
            "SHARD: an upsert of many counts as done although its CAS has failed",
            "Fault::CasUnchecked",
            Setup::default().with(Feature::Upserts),
            "shard",
            plant_in_index(Fault::CasUnchecked),
        ),
        in_kind(
            "SepHash: a walk visits only the segments that the directory named when it began",
            "Fault::WalkOnce",
            Setup::default().with(Feature::Walking),
            "sephash",
            plant_in_index(Fault::WalkOnce),
        ),
        // No walk among the operations, only those amid bursts.
        in_kind(
            "SepHash: a walk amid bursts visits only the segments that the directory named when it began",
            "Fault::WalkOnce",
            Setup { walking: 0, recovering: 0, ..Setup::default().with(Feature::Pausing) },
            "sephash",
            plant_in_index(Fault::WalkOnce),
        ),
        in_kind(
            "SepHash: a walk does not see that a segment's generation has changed between two READs of its batch",
            "Fault::WalkTorn",
            Setup::default().with(Feature::Slow),
            "sephash",
            plant_in_index(Fault::WalkTorn),
        ),
        in_kind(
            "a client is evicted after half a lease",
            "pool::Fault::EvictsEarly",
            Setup::crashing().with_first_features(16),
            "shard",
            plant_in_pool(pool::Fault::EvictsEarly),
        ),
        in_kind(
            "retired memory is free for reuse one epoch too early",
            "pool::Fault::FreesEarly",
            Setup::default(),
            "shard",
            plant_in_pool(pool::Fault::FreesEarly),
        ),
        in_kind(
            "RACE: the block of an insert that has failed is reused at once, although others have found it",
            "Fault::DiscardsSeen",
            Setup::default(),
            "race",
            plant_in_index(Fault::DiscardsSeen),
        ),
        in_kind(
            "a pin ends although a batch of its operation that was given up may land",
            "pool::Fault::UnpinsEarly",
            Setup::default().with(Feature::Growing).with(Feature::Lagging),
            "linear",
            plant_in_pool(pool::Fault::UnpinsEarly),
        )
        .seen_at(87),
        in_kind(
            "an operation that waits for an intent cell does not join the queue for one",
            "pool::Fault::ForgetsWaiters",
            short().with(Feature::Cells),
            "race",
            plant_in_pool(pool::Fault::ForgetsWaiters),
        ),
        in_kind(
            "who waits for a lock takes those that try to get it for its holders",
            "pool::Fault::TriersHold",
            crowded().with(Feature::Holders),
            "cuckoo",
            plant_in_pool(pool::Fault::TriersHold),
        )
        .seen_at(1168),
        in_kind(
            "a client that finds no vacant slot evicts nobody",
            "pool::Fault::RegistersOnly",
            Setup::crashing().with(Feature::Slots),
            "shard",
            plant_in_pool(pool::Fault::RegistersOnly),
        ),
        in_kind(
            "a search for free chunks finds none that was in use before",
            "pool::Fault::KeepsFreeChunks",
            short().with(Feature::Refilling),
            "race",
            plant_in_pool(pool::Fault::KeepsFreeChunks),
        ),
        in_kind(
            "a session keeps whatever it has freed",
            "pool::Fault::KeepsSurplus",
            short().with(Feature::Refilling),
            "race",
            plant_in_pool(pool::Fault::KeepsSurplus),
        ),
        behind_table(
            "lock table: the group of a leader that was given up is not answered",
            "coalesce::Fault::ForgottenGroup",
            short().with(Feature::Cancelling),
            coalesce::Fault::ForgottenGroup,
        )
        .seen_at(26),
        behind_table(
            "lock table: the group of a leader that was given up after it had posted is carried out again",
            "coalesce::Fault::RepeatedGroup",
            short().with(Feature::Cancelling),
            coalesce::Fault::RepeatedGroup,
        ),
        behind_table(
            "lock table: keys of two indexes that have the same bytes count as one",
            "coalesce::Fault::MixedIndexes",
            short().with(Feature::Pair),
            coalesce::Fault::MixedIndexes,
        ),
    ]
}

/// Runs that end soon if they have no end.
fn short() -> Setup {
    Setup { max_steps: 500_000, ..Setup::default() }
}

/// Many operations on a few keys.
fn crowded() -> Setup {
    let (hot_keys, colliding_keys, cold_keys) = ((1, 2), (0, 3), (0, 3));
    Setup { clients: (4, 6), coroutines: (3, 6), hot_keys, colliding_keys, cold_keys, ..Setup::default() }
}

/// RACE behind a lock table with this fault, or with none.
fn behind_table(name: &'static str, planted: &'static str, setup: Setup, fault: coalesce::Fault) -> FaultCase {
    FaultCase::new(name, planted, move |seed, detected_by| {
        let fault = if detected_by { fault } else { coalesce::Fault::None };
        verdict(seed, &Setup { coalescing: Some(fault), ..setup.clone() }, &RaceUnderTest::repaired())
    })
}

/// Faults of SHARD, the pool and the lock table.
pub fn cases() -> Vec<FaultCase> {
    let crashing = Setup::crashing;
    vec![
        FaultCase::new("SHARD: removal as published", "Variant::Published", |seed, detected_by| {
            let variant = if detected_by { Variant::Published } else { Variant::Repaired };
            verdict(seed, &insert_remove_churn(), &ShardUnderTest::still(variant))
        })
        .seen_at(20),
        in_shard("SHARD: a move writes back the bucket as it was read", "Fault::WholeBucket", &[Fault::WholeBucket]),
        in_shard(
            "SHARD: a version is one bit, and two resizes look like none",
            "Fault::OneBitVersion",
            &[Fault::OneBitVersion],
        )
        .seen_at(51),
        in_shard("SHARD: a moved bucket is unlocked by a plain WRITE", "Fault::PlainUnlock", &[Fault::PlainUnlock])
            .seen_at(43),
        in_shard(
            "SHARD: a slot points to a block that is written later",
            "Fault::EarlyPointer",
            &[Fault::EarlyPointer],
        ),
        in_shard("SHARD: a block's WRITE is not awaited", "Fault::UnawaitedBlock", &[Fault::UnawaitedBlock]),
        in_shard(
            "SHARD: a block is reused without waiting for readers; epochs off, checksums on",
            "Fault::NoGrace",
            &[Fault::NoGrace],
        ),
        in_shard(
            "SHARD: the same, checksums off as well",
            "Fault::NoGrace, Fault::NoChecksum",
            &[Fault::NoGrace, Fault::NoChecksum],
        ),
        planted_in(
            "SHARD: checksums off, epochs on: a bit of a value flips",
            "Fault::NoChecksum",
            &[Fault::NoChecksum],
            one_bit_flips,
        ),
        in_pool(
            "a lock without a lease: no intent names it, and its holder crashes",
            "pool::Fault::NoIntent",
            crashing(),
            pool::Fault::NoIntent,
        ),
        in_pool(
            "an un-awaited WRITE lands in a slot that is in use again",
            "pool::Fault::LateClear",
            crashing(),
            pool::Fault::LateClear,
        )
        .seen_at(26),
        in_pool(
            "a takeover that does not revoke first",
            "pool::Fault::NoRevocation",
            crashing(),
            pool::Fault::NoRevocation,
        ),
        in_table(
            "lock table: a READ answers gets that came after it was posted",
            "coalesce::Fault::LateReaders",
            coalesce::Fault::LateReaders,
        ),
        in_table(
            "lock table: combined writes drop their followers' values",
            "coalesce::Fault::DroppedValues",
            coalesce::Fault::DroppedValues,
        ),
    ]
}
