//! How much of everything.

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
    /// Keys that are worked on all the time.
    pub hot_keys: (u64, u64),
    /// Further keys that share the hot keys' place.
    pub colliding_keys: (u64, u64),
    /// Keys anywhere.
    pub cold_keys: (u64, u64),
    /// How long a client may be silent; also bounds waiting for others.
    pub lease: Duration,
    /// Bytes of a memory node.
    pub node_len: u64,
    /// Odds (out of [`farindex_sim::ODDS`]) that the memory nodes are nearly full.
    pub tight: u32,
    /// Odds that the seed is about overflow: the crowd fills its bucket, and the hot keys come last.
    pub overflowing: u32,
    /// Odds that the seed is about tearing: READs take as long as whole operations of others.
    pub tearing: u32,
    /// Odds that a client, other than the first one, dies at some verb. With this, leases are short.
    pub crashes: u32,
    /// Odds that a get asks for many keys at once.
    pub many: u32,
    /// The second client dies at this verb, counted from its first; for tests that try each.
    pub crashes_at: Option<(u64, CrashOutcome)>,
    /// Steps after which a run counts as a livelock.
    pub max_steps: u64,
    /// Virtual time after which it counts as stuck.
    pub max_time: Duration,
    /// Entries of the simulator's log to keep, for replays.
    pub log: usize,
}

impl Setup {
    /// Clients die in these seeds.
    pub fn crashing() -> Self {
        Setup::default().with_crashes()
    }
    /// The same, but clients die.
    #[must_use]
    pub fn with_crashes(self) -> Self {
        Setup { clients: (2, 5), crashes: ODDS * 2 / 3, overflowing: ODDS / 2, ..self }
    }
    pub(crate) fn kills(&self) -> bool {
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
            many: 0,
            crashes_at: None,
            max_steps: 3_000_000,
            max_time: Duration::from_secs(600),
            log: 0,
        }
    }
}

/// What a user may ask for in place of what the seed would draw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Clients.
    pub clients: Option<u64>,
    /// Operations of each coroutine.
    pub operations: Option<u64>,
    /// Keys, at most: a few hot ones, the others crowded or cold in about equal parts.
    pub keys: Option<u64>,
}

impl Size {
    /// Changes a setup accordingly. Seeds mean something else afterwards: a seed belongs to its setup.
    pub fn apply(&self, setup: &mut Setup) {
        if let Some(clients) = self.clients {
            setup.clients = (clients, clients);
        }
        if let Some(operations) = self.operations {
            setup.operations = (operations, operations);
        }
        if let Some(keys) = self.keys {
            let hot = setup.hot_keys.1.min(keys);
            let crowd = if setup.colliding_keys.1 > 0 { (keys - hot) / 2 } else { 0 };
            setup.hot_keys = (setup.hot_keys.0.min(hot), hot);
            setup.colliding_keys = (0, crowd);
            setup.cold_keys = (0, keys - hot - crowd);
            // An overflowing crowd has its own size.
            setup.overflowing = 0;
        }
    }
}
