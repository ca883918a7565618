//! Judges how long operations wait for others: nobody waits for a client for ever, even if that client lives and holds a
//! lock.
//!
//! Invariants: an operation that waits for a lock fails when the lock has had the same holder for two leases. One that waits for
//! a partition lets each other compute node that has priority go first, for a lease (D13 of DEX). One client of a run may be held
//! up, with a lock, for longer than any chain of such waits takes. Then each operation of another client ends before that
//! client goes on, or it would have waited for ever. Operations of the client that is held up wait for their own verbs, and
//! count no more than those of clients that may crash. A recovery READs the whole index, so the time of its own verbs does not
//! count. Nor do operations that insert the first keys: nobody else is there, but a table may grow until the pool is full.

use crate::setup::Setup;
use crate::worker::{PRELOADING, Worker};
use farindex_fabric::Endpoint;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

/// Leases for which an operation may wait, in addition to those for each operation that may be in front of it in a local queue.
const LEAST: u64 = 7;

/// A batch that takes longer fails, because its memory node counts as silent.
const MOST: Duration = Duration::from_secs(4);

/// How long operations may take.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The longest time that an operation may take, if that is judged.
    limit: Option<Duration>,
    /// The number of the client that is held up.
    holder: Option<u64>,
}

/// Local queues, in which operations of one client wait for each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queues {
    /// The most coroutines that a client of the run has.
    coroutines: u64,
    /// Is there a lock table in front of the index?
    coalesces: bool,
    /// Compute nodes that may have their turn ahead of each operation: where keys are divided among compute nodes, all others.
    rivals: u64,
}

impl Queues {
    /// `is_divided`: are keys divided among compute nodes?
    pub(crate) fn of(setup: &Setup, is_divided: bool) -> Self {
        let rivals = if is_divided { setup.clients.1.saturating_sub(1) } else { 0 };
        Queues { coroutines: setup.coroutines.1, coalesces: setup.coalescing.is_some(), rivals }
    }

    /// Leases until the last operation has failed: a lock has had the same holder for two, or an operation of each rival has gone
    /// first for one.
    fn leases(self) -> u64 {
        (2 + self.rivals) * self.most_in_front()
    }

    /// Operations that fail one after the other until an operation fails that waits with them.
    ///
    /// Behind a lock table there are two queues: of the `m` operations in front of it in its lane, and then itself, each begins
    /// at the end of the queue for the lock, and only the coroutines that are not in the lane can be ahead of it there.
    fn most_in_front(self) -> u64 {
        let lanes = 0..if self.coalesces { self.coroutines } else { 1 };
        lanes.map(|m| (m + 1) * (self.coroutines - m)).max().unwrap_or(self.coroutines)
    }
}

impl Waits {
    /// `queues`: where operations wait for others of their client. `holder`: the client that is held up.
    pub(crate) fn new(lease: Duration, queues: Queues, is_judged: bool, holder: Option<u64>) -> Self {
        let leases = u32::try_from(LEAST + queues.leases()).unwrap_or(u32::MAX / 4);
        Waits { limit: is_judged.then(|| lease * leases), holder }
    }
    /// Is a client held up?
    pub(crate) fn has_holder(&self) -> bool {
        self.holder.is_some()
    }
    /// For how long it is held up: until others that wait for it have failed, or would be judged.
    pub(crate) fn hold(lease: Duration, queues: Queues, crashes: bool) -> Duration {
        let limit = Waits::new(lease, queues, !crashes, None).limit;
        limit.map_or(lease * 4, |limit| limit + lease).min(MOST)
    }
}

impl Worker {
    /// Judges an operation that has ended, and began at this time.
    pub(crate) fn waited(&self, began: Duration, doing: impl FnOnce() -> String) {
        self.waited_for(self.endpoint.now().saturating_sub(began), doing);
    }

    /// Judges an operation that has waited for others for as long as `took`.
    pub(crate) fn waited_for(&self, took: Duration, doing: impl FnOnce() -> String) {
        let Waits { limit: Some(limit), holder } = &self.shared.waits else { return };
        if took > *limit && *holder != Some(self.name / 10) && self.name != PRELOADING {
            self.shared.fail(format!("{} has taken {took:?}, which is longer than it may wait for others", doing()));
        }
    }
}

/// Runs an operation; returns also for how long it has waited for anything but its own verbs: the time between two polls counts
/// if it posted nothing in the first.
pub(crate) async fn without_own_verbs<T>(endpoint: &Endpoint, operation: impl Future<Output = T>) -> (T, Duration) {
    let mut operation = pin!(operation);
    let (mut waited, mut since) = (Duration::ZERO, None);
    let result = poll_fn(|cx| {
        let before = endpoint.posted();
        waited += since.map_or(Duration::ZERO, |since| endpoint.now().saturating_sub(since));
        let polled = operation.as_mut().poll(cx);
        since = (endpoint.posted() == before).then(|| endpoint.now());
        polled
    })
    .await;
    (result, waited)
}

#[cfg(test)]
mod tests {
    use super::{Queues, without_own_verbs};
    use crate::Setup;
    use farindex_fabric::{NodeId, OpKind, RemotePtr};
    use farindex_sim::{Config, Sim};
    use std::time::Duration;

    #[test]
    fn sleeps_are_waits_and_verbs_are_none() {
        let sim = Sim::new(1, Config::default()).expect("the settings are sound");
        let harness = sim.harness();
        let done = sim.block_on(async move {
            let endpoint = harness.connect();
            let (began, pause) = (endpoint.now(), Duration::from_micros(7));
            let operation = async {
                let span = endpoint.span(OpKind::Other);
                for _ in 0..3 {
                    span.read(RemotePtr::new(NodeId::new(0), 64), 8).await?;
                    endpoint.sleep(pause).await;
                }
                span.read(RemotePtr::new(NodeId::new(0), 64), 8).await.map(drop)
            };
            let (done, waited) = without_own_verbs(&endpoint, operation).await;
            done.map(|()| (waited, endpoint.now() - began))
        });
        let (waited, took) = done.expect("ends").expect("succeeds");
        assert_eq!(waited, Duration::from_micros(21));
        assert!(took > waited);
    }

    #[test]
    fn two_queues_are_longer_than_one() {
        let most = |coroutines, coalesces| Queues { coroutines, coalesces, rivals: 0 }.most_in_front();
        assert_eq!([1, 3, 7].map(|coroutines| most(coroutines, false)), [1, 3, 7]);
        assert_eq!([1, 3, 7].map(|coroutines| most(coroutines, true)), [1, 4, 16]);
    }

    #[test]
    fn operations_of_other_compute_nodes_go_first_only_where_keys_are_divided_among_them() {
        let setup = Setup { clients: (2, 4), coroutines: (1, 3), ..Setup::default() };
        assert_eq!([false, true].map(|is_divided| Queues::of(&setup, is_divided).leases()), [2 * 3, (2 + 3) * 3]);
    }
}
