//! Walks, audits and recoveries that stop between two verbs while others work.
//!
//! Invariants: whatever has been READ may be out of date by the time at which it is used, and by more than one change: so what a
//! walk promises must hold however slow it is. The client itself goes on, and keeps its lease; the pauses of one walk last no
//! longer than a small part of the shortest time for which others wait for a lock.

use crate::cancelling::within;
use crate::worker::Worker;
use farindex_sim::ODDS;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// Pauses of one walk, at most, and the longest pause as an exponent of nanoseconds.
const PAUSES: u64 = 8;
const PAUSE: u64 = 22;
/// Polls in which directories and roots are READ: half of the walks stop there first.
const EARLY: u64 = 8;

impl Worker {
    /// Carries out something that takes many verbs, and stops in between, if the run has that.
    pub(crate) async fn with_pauses<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if self.shared.pausing {
            let (order, mut early) = (self.rng.within(0, 6), self.rng.chance(ODDS / 2));
            for _ in 0..self.rng.within(1, PAUSES) {
                let most = if std::mem::take(&mut early) { EARLY } else { 1 << order };
                let polls = self.rng.within(1, most);
                if let Some(done) = within(polls, work.as_mut()).await {
                    return done;
                }
                let pause = 1 << self.rng.within(12, PAUSE);
                self.endpoint.sleep(Duration::from_nanos(pause)).await;
                self.shared.pauses.set(self.shared.pauses.get() + 1);
            }
        }
        work.await
    }
}
