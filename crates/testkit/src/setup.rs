//! Sizes of a run: clients, operations, keys, crashes.

use crate::stalling::TargetedStall;
use crate::swarm::Feature;
use farindex_index::coalesce;
use farindex_sim::{CrashOutcome, ODDS};
use std::time::Duration;

/// The size of a run. Ranges are drawn from, both ends included.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Clients, each a compute node of its own.
    pub clients: (u64, u64),
    /// Coroutines of each.
    pub coroutines: (u64, u64),
    /// Operations of each coroutine.
    pub operations: (u64, u64),
    /// Keys that get most operations.
    pub hot_keys: (u64, u64),
    /// Further keys in the hot keys' bucket.
    pub colliding_keys: (u64, u64),
    /// Keys anywhere.
    pub cold_keys: (u64, u64),
    /// The lease; it also bounds waiting for other clients.
    pub lease: Duration,
    /// Bytes of a memory node.
    pub node_len: u64,
    /// Odds (out of [`farindex_sim::ODDS`]) that the memory nodes are nearly full.
    pub tight: u32,
    /// Odds that the seed is about overflow: colliding keys fill their bucket, and the hot keys come last.
    pub overflowing: u32,
    /// Odds that the seed is about tearing: READs take as long as whole operations of other clients.
    pub tearing: u32,
    /// Odds that a client, other than the first one, crashes at some verb. Then the lease is one of `crash_leases`.
    pub crashes: u32,
    /// Leases to draw from if clients may crash, in milliseconds.
    pub crash_leases: &'static [u64],
    /// How clients freeze: the odds at each batch, and the exponent of the longest pause (2 to that many nanoseconds).
    /// `None`: the seed draws both, and then few pauses are as long as a lease.
    pub freezes: Option<(u32, u32)>,
    /// Odds that a get asks for many keys at once.
    pub many: u32,
    /// Odds that an upsert is one of several keys in one call.
    pub upserts_together: u32,
    /// Each client puts a [lock table](farindex_index::coalesce) in front of the index, with this fault.
    pub coalescing: Option<coalesce::Fault>,
    /// The second client crashes at this verb, counted from its first; for tests that try each.
    pub crashes_at: Option<(u64, CrashOutcome)>,
    /// The second client is stalled once at a chosen place; for tests that try each.
    pub stall: Option<TargetedStall>,
    /// Clients are stalled again and again, at places that the seed draws.
    pub stalling: bool,
    /// The hot keys share their hashes: see [`twins`](crate::twins).
    pub twins: bool,
    /// Hot and colliding keys lie at the end of the first half of a table of slots.
    pub edges: bool,
    /// Memory nodes; `None`: the seed draws one or two.
    pub nodes: Option<u64>,
    /// Do all coroutines of a client share a session? Otherwise the seed draws that.
    pub one_session: bool,
    /// Odds that a client, before an operation, does what [`IndexUnderTest::perturb`](crate::IndexUnderTest::perturb) does;
    /// `None`: the seed draws them.
    pub perturbing: Option<u32>,
    /// As many removals as inserts, and few gets.
    pub churn: bool,
    /// The index has its smallest settings.
    pub smallest: bool,
    /// Clients begin late, and open the index again now and then: they know nothing of it.
    pub joining: bool,
    /// Odds that a get is a walk over the whole index instead.
    pub walking: u32,
    /// Odds that a change expects a value.
    pub guarded: u32,
    /// One client works alone, nothing is late or torn, and the index has its default settings: what operations cost is
    /// judged by the [budget](crate::budget) of the kind.
    pub quiet: bool,
    /// Clients have only a few intent cells more on each memory node than those with which their operations would wait for each
    /// other for ever: so many. `None`: as many cells as the pool has by default.
    pub spare_cells: Option<u64>,
    /// The second client is held up once in the midst of a batch, for longer than others may wait for it; it sends heartbeats.
    pub holding: bool,
    /// Odds that an operation is given up before it has completed: see `cancelling`.
    pub cancelling: u32,
    /// Odds that a get is a recovery of the whole index instead.
    pub recovering: u32,
    /// Where clients may crash: all do in the end, and the pool has no slot for a further client.
    pub vanishing: bool,
    /// Two indexes of one kind, with the same keys.
    pub pair: bool,
    /// In the end the pool is filled, emptied in part, and filled again: see `refilling`.
    pub refilling: bool,
    /// Indexes are dropped: see `dropping`.
    pub dropping: bool,
    /// One of them in the midst of the run.
    pub sudden: bool,
    /// Do clients that may crash do so in the midst of a batch of many verbs, most of them?
    pub crashes_in_the_midst: bool,
    /// Odds that a batch of a client at work fails.
    pub failing: u32,
    /// Odds that a part of a batch takes effect late that has failed or was given up, and the exponent of the delay in nanoseconds.
    pub lagging: (u32, u32),
    /// Odds of a command before an operation, where keys are divided among compute nodes, and the answer is judged: see
    /// `commanding`.
    pub commanding: u32,
    /// A client audits the whole pool again and again while others come and go: see `auditing`.
    pub auditing: bool,
    /// Clients give heartbeats up, and some leave in the midst of their operations: see `hasty`.
    pub hasty: bool,
    /// Walks, audits and recoveries stop between two verbs: see `pausing`.
    pub pausing: bool,
    /// In the end batches of a walk are slow: see `bursts`.
    pub slow: bool,
    /// In the end, the memory of an index is judged whose entries come and go: see `turnover`.
    pub turnover: bool,
    /// Keys and values are so short that an index may keep both in one word.
    pub short: bool,
    /// Values are padded to so many bytes at most, if that is not 0.
    pub longest_value: u64,
    /// Odds that a coroutine goes on with another session before an operation.
    pub sessions: u32,
    /// Odds that a client asks something of the catalog before an operation: see `naming`.
    pub naming: u32,
    /// Each seed draws [features](crate::swarm::Feature) in addition.
    pub swarm: bool,
    /// Seeds draw from so many features, the first ones of all.
    pub features: usize,
    /// Steps after which a run counts as a livelock. Up to four clients crash, perhaps one after the other, and the others wait
    /// for each of them for a lease of up to one second, which takes 1.5 million steps. DEX keeps a partition for a command for
    /// 100 ms, and a run may have a hundred of them.
    pub max_steps: u64,
    /// Virtual time after which it counts as stuck.
    pub max_time: Duration,
    /// Entries of the simulator's log to keep, for replays.
    pub log: usize,
}

impl Setup {
    /// The default size, with crashes.
    pub fn crashing() -> Self {
        Setup::default().with_crashes()
    }
    /// The same size, with crashes.
    #[must_use]
    pub fn with_crashes(self) -> Self {
        Setup { clients: (2, 5), crashes: ODDS * 2 / 3, overflowing: ODDS / 2, ..self }
    }
    /// The same size, with crashes, and with clients that freeze for longer than the lease: they are evicted, and then
    /// continue the operation in which they were stopped.
    #[must_use]
    pub fn with_evictions(self) -> Self {
        Setup { crash_leases: &[5], freezes: Some((ODDS / 256, 30)), ..self.with_crashes() }
    }
    /// Runs in which nothing interferes with an operation: see [`budget`](crate::budget).
    #[must_use]
    pub fn quiet(self) -> Self {
        let one = (1, 1);
        let (hot_keys, colliding_keys, cold_keys) = ((1, 5), (0, 0), (60, 160));
        let setup = Setup { clients: one, coroutines: one, operations: (100, 300), nodes: Some(1), ..self };
        let setup =
            Setup { hot_keys, colliding_keys, cold_keys, overflowing: 0, node_len: 64 << 20, tight: 0, ..setup };
        let setup = Setup { crashes: 0, crashes_at: None, stall: None, stalling: false, tearing: 0, ..setup };
        Setup { freezes: Some((0, 12)), perturbing: Some(0), guarded: ODDS / 4, quiet: true, ..setup }
    }
    /// Do all clients crash in the end?
    pub(crate) fn vanishes(&self) -> bool {
        self.vanishing && self.has_crashes()
    }
    pub(crate) fn has_crashes(&self) -> bool {
        self.crashes > 0 || self.crashes_at.is_some()
    }
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            clients: (2, 4),
            coroutines: (1, 3),
            operations: (10, 40),
            hot_keys: (1, 5),
            colliding_keys: (0, 90),
            cold_keys: (0, 60),
            lease: Duration::from_secs(120),
            node_len: 2 << 20,
            tight: ODDS / 12,
            overflowing: ODDS / 4,
            tearing: ODDS / 3,
            crashes: 0,
            crash_leases: &[5, 40, 200, 1000, 1000, 1000],
            freezes: None,
            many: 0,
            upserts_together: 0,
            coalescing: None,
            crashes_at: None,
            stall: None,
            stalling: false,
            twins: false,
            edges: false,
            nodes: None,
            one_session: false,
            perturbing: None,
            churn: false,
            smallest: false,
            joining: false,
            walking: 0,
            guarded: 0,
            quiet: false,
            spare_cells: None,
            holding: false,
            cancelling: 0,
            recovering: 0,
            vanishing: false,
            pair: false,
            refilling: false,
            dropping: false,
            sudden: false,
            crashes_in_the_midst: false,
            failing: 0,
            lagging: (0, 0),
            commanding: 0,
            auditing: false,
            hasty: false,
            pausing: false,
            slow: false,
            turnover: false,
            short: false,
            naming: 0,
            longest_value: 0,
            sessions: 0,
            swarm: false,
            features: Feature::ALL.len(),
            max_steps: 10_000_000,
            max_time: Duration::from_secs(600),
            log: 0,
        }
    }
}

/// Sizes that a user asks for, in place of drawn ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Clients.
    pub clients: Option<u64>,
    /// Operations of each coroutine.
    pub operations: Option<u64>,
    /// Keys, at most: a few hot ones, the others colliding or cold in about equal parts.
    pub keys: Option<u64>,
}

impl Size {
    /// Changes a setup accordingly. A seed belongs to its setup: it means something else afterwards.
    pub fn apply(&self, setup: &mut Setup) {
        if let Some(clients) = self.clients {
            setup.clients = (clients, clients);
        }
        if let Some(operations) = self.operations {
            setup.operations = (operations, operations);
        }
        if let Some(keys) = self.keys {
            let hot = setup.hot_keys.1.min(keys);
            let colliding = if setup.colliding_keys.1 > 0 { (keys - hot) / 2 } else { 0 };
            setup.hot_keys = (setup.hot_keys.0.min(hot), hot);
            setup.colliding_keys = (0, colliding);
            setup.cold_keys = (0, keys - hot - colliding);
            // Overflowing seeds draw their own number of colliding keys.
            setup.overflowing = 0;
        }
    }
}
