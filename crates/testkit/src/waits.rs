//! Judges how long operations wait for others: nobody waits for a client for ever, even if that client lives and holds a
//! lock.
//!
//! Invariants: an operation that waits for a lock fails when the lock has had the same holder for two leases. One client of a
//! run may be held up, with a lock, for longer than any chain of such waits takes. Then each operation of another
//! client ends before that client goes on, or it would have waited for ever. Operations of the client that is held up wait
//! for their own verbs, and count no more than those of clients that may crash.

use crate::worker::Worker;
use std::time::Duration;

/// Leases for which an operation may wait, in addition to two for each coroutine that may be in front of it in a local queue.
const LEAST: u32 = 7;

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

impl Waits {
    /// `coroutines`: the most that a client of the run has. `holder`: the client that is held up.
    pub(crate) fn new(lease: Duration, coroutines: u64, is_judged: bool, holder: Option<u64>) -> Self {
        let leases = LEAST + 2 * u32::try_from(coroutines).unwrap_or(u32::MAX / 4);
        Waits { limit: is_judged.then(|| lease * leases), holder }
    }
    /// Is a client held up?
    pub(crate) fn has_holder(&self) -> bool {
        self.holder.is_some()
    }
    /// For how long it is held up: until others that wait for it have failed, or would be judged.
    pub(crate) fn hold(lease: Duration, coroutines: u64, crashes: bool) -> Duration {
        let limit = Waits::new(lease, coroutines, !crashes, None).limit;
        limit.map_or(lease * 4, |limit| limit + lease).min(MOST)
    }
}

impl Worker {
    /// Judges an operation that has ended, and began at this time.
    pub(crate) fn waited(&self, began: Duration, doing: impl FnOnce() -> String) {
        let Waits { limit: Some(limit), holder } = &self.shared.waits else { return };
        let took = self.endpoint.now().saturating_sub(began);
        if took > *limit && *holder != Some(self.name / 10) {
            self.shared.fail(format!("{} has taken {took:?}, which is longer than it may wait for others", doing()));
        }
    }
}
