//! The swarm: each seed switches some features of a run on, of those that a usual seed does not have or rarely has.
//!
//! Invariants: features are drawn by a generator of their own, so seeds of other setups are what they were, and a further
//! feature at the end of the list changes no other. A run with all features at once would hide what needs only one.

use crate::Setup;
use farindex_sim::{ODDS, SimRng};
use std::fmt;
use std::time::Duration;

/// Something that a seed may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Clients are stalled between two verbs of a batch while others work.
    Stalls,
    /// Hot keys share their hashes in pairs, and buckets and fingerprints all together.
    Twins,
    /// Most gets ask for many keys.
    Many,
    /// Tables are crowded.
    Crowded,
    /// The pool is full, or nearly: freed memory is used again at once.
    Full,
    /// Two or three memory nodes.
    Nodes,
    /// Each client has several coroutines in one session.
    Coroutines,
    /// Tables grow all the time, and have many keys.
    Growing,
    /// Keys are removed as often as they are inserted, in the smallest index.
    Churn,
    /// Every READ and WRITE is torn.
    Torn,
    /// Clients begin in the midst of the run, and open the index again and again.
    Joining,
    /// A client now and then walks the whole index.
    Walking,
    /// Clients stop for as long as several operations take.
    Freezing,
    /// Most changes expect the value that the client has read or written last, and some values are written again.
    Guarded,
    /// Nothing interferes, and operations keep to their budgets. Alone: it replaces all other features.
    Quiet,
    /// Most upserts are several in one call.
    Upserts,
    /// Each client has many coroutines in one session, and fewer intent cells.
    Cells,
    /// A client that lives holds a lock for longer than others wait for it; others also recover the index.
    Holders,
    /// Where clients may crash: all crash in the end, and then all client slots are taken.
    Slots,
    /// Two indexes in one pool, which the same clients use.
    Pair,
    /// In the end the pool is filled with blocks of one size and then with blocks of another.
    Refilling,
    /// Operations are given up before they have completed.
    Cancelling,
    /// Indexes are dropped, most of them while others work on them.
    Dropping,
    /// Where keys are divided among compute nodes: they take ranges, give ranges back, and list who owns what.
    Commanding,
    /// A client audits the whole pool again and again while others come and go.
    Auditing,
    /// Heartbeats are given up, and clients leave in the midst of their operations.
    Hasty,
    /// Walks over the whole index are frequent, and stop between two verbs.
    Pausing,
    /// In the end entries come and go in an index, and its memory is judged. It takes long, so fewer seeds have it.
    Turnover,
    /// Keys and values are so short that an index may keep both in one word.
    Short,
    /// Indexes are dropped in the midst of the run, most often while a client is stalled.
    Sudden,
    /// Batches of clients at work fail: what they have posted may take effect or not, or later.
    Failing,
    /// Clients create, find and drop indexes of a few names at the same time.
    Naming,
    /// Values have up to 8,000 bytes.
    Long,
    /// Coroutines close their sessions, and go on with other ones.
    Sessions,
    /// In the end many entries come and go between two verbs of one batch of a walk.
    Slow,
    /// Where clients may crash: in the midst of batches of many verbs.
    Midst,
    /// Operations are given up, and what they have posted takes effect much later.
    Lagging,
    /// Hot and colliding keys lie around a place in the midst of a table up to which it may have been moved.
    Edges,
}

impl Feature {
    /// Every feature, in the order in which they are drawn.
    pub const ALL: [Feature; 38] = [
        Feature::Stalls,
        Feature::Twins,
        Feature::Many,
        Feature::Crowded,
        Feature::Full,
        Feature::Nodes,
        Feature::Coroutines,
        Feature::Growing,
        Feature::Churn,
        Feature::Torn,
        Feature::Joining,
        Feature::Walking,
        Feature::Freezing,
        Feature::Guarded,
        Feature::Quiet,
        Feature::Upserts,
        Feature::Cells,
        Feature::Holders,
        Feature::Slots,
        Feature::Pair,
        Feature::Refilling,
        Feature::Cancelling,
        Feature::Dropping,
        Feature::Commanding,
        Feature::Auditing,
        Feature::Hasty,
        Feature::Pausing,
        Feature::Turnover,
        Feature::Short,
        Feature::Sudden,
        Feature::Failing,
        Feature::Naming,
        Feature::Long,
        Feature::Sessions,
        Feature::Slow,
        Feature::Midst,
        Feature::Lagging,
        Feature::Edges,
    ];

    /// The odds that a seed has it.
    fn odds(self) -> u32 {
        match self {
            Feature::Quiet => ODDS / 32,
            Feature::Turnover => ODDS / 24,
            Feature::Sudden | Feature::Slow => ODDS / 8,
            _ => ODDS / 3,
        }
    }

    /// Switches it on.
    fn apply(self, setup: &mut Setup, rng: &mut SimRng) {
        match self {
            Feature::Stalls => setup.stalling = true,
            Feature::Twins => setup.twins = true,
            Feature::Edges => setup.edges = true,
            Feature::Many => setup.many = ODDS / 2,
            Feature::Crowded => (setup.hot_keys, setup.colliding_keys, setup.overflowing) = ((4, 10), (30, 60), 0),
            Feature::Full => setup.tight = ODDS,
            Feature::Nodes => setup.nodes = Some(rng.within(2, 3)),
            Feature::Coroutines => (setup.coroutines, setup.one_session) = ((3, 6), true),
            Feature::Growing => {
                setup.perturbing = Some(ODDS / 6);
                setup.cold_keys = (60, 160);
            }
            Feature::Churn => (setup.churn, setup.smallest) = (true, true),
            Feature::Torn => setup.tearing = ODDS,
            Feature::Joining => setup.joining = true,
            Feature::Walking => setup.walking = ODDS / 24,
            Feature::Freezing => setup.freezes = Some((ODDS / 24, 21)),
            Feature::Guarded => setup.guarded = ODDS * 3 / 4,
            Feature::Quiet => *setup = setup.clone().quiet(),
            Feature::Upserts => setup.upserts_together = ODDS * 3 / 4,
            Feature::Cells => {
                (setup.coroutines, setup.one_session) = ((4, 7), true);
                setup.spare_cells = Some(rng.within(1, 2));
                setup.lease = setup.lease.min(Duration::from_secs(1));
            }
            Feature::Holders => {
                setup.holding = true;
                setup.recovering = ODDS / 24;
                setup.lease = setup.lease.min(Duration::from_millis(120));
            }
            Feature::Slots => setup.vanishing = true,
            Feature::Pair => setup.pair = true,
            Feature::Refilling => setup.refilling = true,
            Feature::Dropping => setup.dropping = true,
            Feature::Auditing => setup.auditing = true,
            Feature::Hasty => {
                setup.hasty = true;
                setup.lease = setup.lease.min(Duration::from_millis(120));
            }
            Feature::Pausing => {
                setup.pausing = true;
                setup.lease = setup.lease.min(AFTER_A_LOCK);
                setup.walking = setup.walking.max(ODDS / 8);
                setup.recovering = setup.recovering.max(ODDS / 24);
            }
            Feature::Turnover => setup.turnover = true,
            Feature::Short => setup.short = true,
            Feature::Slow => {
                setup.slow = true;
                setup.lease = setup.lease.min(AFTER_A_LOCK);
            }
            Feature::Midst => setup.crashes_in_the_midst = true,
            Feature::Sudden => (setup.dropping, setup.sudden) = (true, true),
            Feature::Failing => {
                setup.failing = rng.pick(&[ODDS / 1024, ODDS / 256, ODDS / 64]).unwrap_or_default();
                setup.lease = setup.lease.min(Duration::from_millis(120));
            }
            Feature::Long => setup.longest_value = rng.within(2_000, 8_000),
            Feature::Sessions => setup.sessions = ODDS / 12,
            Feature::Naming => setup.naming = rng.pick(&[ODDS / 12, ODDS / 2]).unwrap_or_default(),
            Feature::Commanding => setup.commanding = ODDS / 12,
            Feature::Cancelling => {
                setup.cancelling = ODDS / 12;
                setup.lease = setup.lease.min(Duration::from_millis(120));
            }
            Feature::Lagging => {
                Feature::Cancelling.apply(setup, rng);
                setup.lagging = (ODDS / 2, rng.within(16, 26) as u32);
            }
        }
    }
}

/// The lease where recoveries meet many locks: after each they wait for a part of a lease.
const AFTER_A_LOCK: Duration = Duration::from_secs(1);

/// Stream of the draws, which no other part takes.
const FEATURES: u64 = 3000;

/// The features of a seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features(Vec<Feature>);

impl Features {
    /// Draws the features of a seed, each with odds of one in three, and returns the setup with them. One seed in 32 is quiet.
    pub(crate) fn draw(seed: u64, setup: &Setup) -> (Features, Setup) {
        let mut with_features = setup.clone();
        let mut on = Vec::new();
        for (number, feature) in Feature::ALL.into_iter().take(setup.features).enumerate() {
            let mut rng = SimRng::new(seed, FEATURES + number as u64);
            if feature == Feature::Quiet {
                if rng.chance(feature.odds()) {
                    return (Features(vec![feature]), setup.clone().with(feature));
                }
            } else if rng.chance(feature.odds()) {
                feature.apply(&mut with_features, &mut rng);
                on.push(feature);
            }
        }
        (Features(on), with_features)
    }
    /// The names of those that are on, for marks.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|feature| format!("swarm: {feature:?}"))
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Setup {
    /// The same size with one feature in every seed.
    #[must_use]
    pub fn with(mut self, feature: Feature) -> Self {
        feature.apply(&mut self, &mut SimRng::new(0, FEATURES));
        self
    }
    /// The same size, and each seed draws features.
    #[must_use]
    pub fn with_swarm(self) -> Self {
        Setup { swarm: true, ..self }
    }
    /// The same size, and each seed draws from the first so many features: for a seed that went wrong when there were no
    /// others.
    #[must_use]
    pub fn with_first_features(self, features: usize) -> Self {
        Setup { swarm: true, features, ..self }
    }
}
