//! Stalls that are aimed: a client is stopped between two verbs of a batch until others have completed some operations.
//!
//! Invariants: draws come from a generator of their own, so a seed without stalls is what it was. A stalled client is
//! within its lease unless the leases of the run are short: then it may be evicted, as in runs with crashes.

use farindex_sim::{Client, ODDS, SimRng, Stall, StallAt};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// One stall at a chosen place, for sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetedStall {
    /// The second client stops ahead of this verb, counted from its first, which is 1.
    pub verb: u64,
    /// It goes on when others have completed so many operations.
    pub operations: u64,
    /// It sends no heartbeats meanwhile; otherwise its other coroutines go on, and only the batch is slow.
    pub whole: bool,
}

/// A stall ends after this time at the latest: others may have to wait for the stalled client.
const LIMIT: Duration = Duration::from_millis(60);

/// One client that is stalled.
struct Target {
    /// The client's number in the run.
    number: u64,
    client: Client,
    /// What further stalls are drawn from.
    further: Option<SimRng>,
    /// Operations of others until the stall ends.
    left: u64,
    /// Stalls that were armed.
    armed: u32,
}

/// All clients of a run that are stalled.
#[derive(Default)]
pub(crate) struct Stalling {
    targets: RefCell<Vec<Target>>,
    /// Clients that may be stalled while they drop an index, with their numbers.
    droppers: RefCell<BTreeMap<u64, Client>>,
    /// The lease of the run, if clients may lose theirs.
    lease: Option<Duration>,
}

impl Stalling {
    /// `lease`: that of the run, if clients may lose theirs.
    pub(crate) fn new(lease: Option<Duration>) -> Self {
        Stalling { lease, ..Stalling::default() }
    }

    /// Stalls a client once.
    pub(crate) fn once(&self, number: u64, client: &Client, stall: TargetedStall) {
        let TargetedStall { verb, operations, whole } = stall;
        client.stall(Stall { at: StallAt::Verb(verb), whole, limit: LIMIT });
        self.add(Target { number, client: client.clone(), further: None, left: operations, armed: 1 });
    }

    /// Stalls a client again and again.
    pub(crate) fn repeatedly(&self, number: u64, client: &Client, rng: SimRng) {
        let mut target = Target { number, client: client.clone(), further: Some(rng), left: 0, armed: 0 };
        target.arm(self.lease);
        self.add(target);
    }

    /// Holds a client up once in the midst of a batch that changes something, for this long. It sends heartbeats.
    pub(crate) fn hold(&self, number: u64, client: &Client, mut rng: SimRng, limit: Duration) {
        let order = rng.within(0, 5);
        let at = StallAt::Change { batch: rng.below(1 << order), verb: rng.below(64) };
        client.stall(Stall { at, whole: false, limit });
        self.add(Target { number, client: client.clone(), further: None, left: u64::MAX, armed: 1 });
    }

    /// This client may be stalled while it drops an index.
    pub(crate) fn may_drop(&self, number: u64, client: &Client) {
        self.droppers.borrow_mut().insert(number, client.clone());
    }

    /// A client is about to drop an index, and is stalled once meanwhile: most often early, when it has the index open and has not
    /// marked it yet.
    pub(crate) fn drops(&self, number: u64, rng: &mut SimRng) {
        let Some(client) = self.droppers.borrow().get(&number).cloned() else { return };
        let order = rng.within(0, 6);
        let at = StallAt::Verb(client.verbs() + rng.within(1, 1 << order));
        let whole = rng.chance(ODDS / 2);
        let order = rng.within(0, 5);
        let left = rng.within(1, 1 << order);
        client.stall(Stall { at, whole, limit: Duration::from_nanos(1 << rng.within(17, 26)) });
        let armed = client.stalls() + 1;
        self.add(Target { number, client, further: None, left, armed });
    }

    fn add(&self, target: Target) {
        self.targets.borrow_mut().push(target);
    }

    /// A client has completed an operation: stalls of others may end, and the next ones are drawn.
    pub(crate) fn completed(&self, number: u64) {
        for target in self.targets.borrow_mut().iter_mut() {
            let stalled = target.client.is_stalled();
            if stalled && target.number != number {
                target.left = target.left.saturating_sub(1);
                if target.left == 0 {
                    target.client.end_stall();
                }
            }
            if target.client.stalls() == target.armed && !target.client.is_stalled() {
                target.arm(self.lease);
            }
        }
    }

    /// Is a client stalled now?
    pub(crate) fn is_any_stalled(&self) -> bool {
        self.targets.borrow().iter().any(|target| target.client.is_stalled())
    }

    /// Stalls that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.targets.borrow().iter().map(|target| u64::from(target.client.stalls())).sum()
    }
}

impl Target {
    /// Draws the next stall, if there is to be one.
    fn arm(&mut self, lease: Option<Duration>) {
        let Some(rng) = &mut self.further else { return };
        let order = rng.within(0, 5);
        let at = if rng.chance(ODDS * 2 / 3) {
            StallAt::Change { batch: rng.below(1 << order), verb: rng.below(64) }
        } else {
            StallAt::Verb(self.client.verbs() + rng.within(1, 4 << order))
        };
        let whole = rng.chance(ODDS / 2);
        let order = rng.within(0, 5);
        self.left = rng.within(1, 1 << order);
        let limit = Duration::from_nanos(1 << rng.within(17, 26));
        // In runs in which leases are short, some stalls last longer than a lease.
        let expires = rng.chance(ODDS / 4);
        let limit = match lease {
            Some(lease) if expires && whole => lease.min(Duration::from_millis(200)) * 3 / 2,
            _ => limit,
        };
        self.client.stall(Stall { at, whole, limit });
        self.armed += 1;
    }
}
