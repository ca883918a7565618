//! Waiting for another client, with growing pauses and a limit.

use crate::IndexError;
use crate::recovery::{HeldLock, check_timeout, check_timeout_of};
use farindex_pool::{LockTimeout, Pin, Session};
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_nanos(500);
const LAST_PAUSE: Duration = Duration::from_millis(1);
/// Pauses before the first check whether the lock's holder has crashed.
const PAUSES_BEFORE_CHECK: u32 = 14;
/// Pauses, of which the next one takes as long as the holders of a lock in turn: 32 us. With 64 us a lock that changes hands stays
/// with one compute node (bug 200); with 8 us many that wait take a tenth of the throughput.
const SHORT: u32 = 6;
/// Pauses that take longer than any step of a live client should take.
const LONG: u32 = 12;

/// Exponential backoff of one operation: 500 ns at first, 1 ms at most. After 14 pauses it asks its caller to check
/// whether the lock's holder has crashed, and again every sixteenth of a lease.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pauses: u32,
    /// Pauses since the last reason to look sooner: each is twice as long as the one before.
    growing: u32,
    /// Rare, and too large to be moved with every operation.
    checks: Option<Box<Checks>>,
}

#[derive(Debug, Default)]
struct Checks {
    latest: Option<Duration>,
    timeout: LockTimeout,
}

impl Backoff {
    /// Has the wait taken longer than another client's step should take?
    pub(crate) fn is_long(&self) -> bool {
        self.pauses > LONG
    }

    /// Has there been no reason to look sooner for as long as [`is_long`](Self::is_long) says?
    pub(crate) fn is_at_rest(&self) -> bool {
        self.growing > LONG
    }

    /// The wait goes on, but not because of a holder that does nothing: pauses are to be short again.
    pub(crate) fn look_sooner(&mut self) {
        self.growing = self.growing.min(SHORT);
    }

    /// Pauses once. Returns whether the caller should now check whether the lock's holder has crashed.
    pub(crate) async fn wait(&mut self, session: &Session) -> bool {
        let endpoint = session.endpoint();
        let pause = FIRST_PAUSE.saturating_mul(1 << self.growing.min(20)).min(LAST_PAUSE);
        self.pauses += 1;
        self.growing += 1;
        endpoint.sleep(pause).await;
        let now = endpoint.now();
        let interval = (session.pool().lease() / 16).max(LAST_PAUSE);
        if self.pauses <= PAUSES_BEFORE_CHECK {
            return false;
        }
        let latest = &mut self.checks.get_or_insert_default().latest;
        let due = latest.is_none_or(|checked| now.saturating_sub(checked) >= interval);
        if due {
            *latest = Some(now);
        }
        due
    }

    /// Evaluates an attempt to recover a lock. Fails if the lock has had the same live holders for two leases.
    pub(crate) async fn check_holder(&mut self, pin: &Pin<'_>, held: Option<HeldLock>) -> Result<(), IndexError> {
        match held {
            Some(held) => {
                let timeout = &mut self.checks.get_or_insert_default().timeout;
                check_timeout(pin.session(), pin.span(), timeout, held).await
            }
            None => Ok(()),
        }
    }
    /// Evaluates an attempt to recover a lock whose holder answers others. Fails if the lock has had the same live holders for
    /// so many leases, while `state`, what they have answered last, was the same.
    pub(crate) async fn check_answerer(
        &mut self,
        pin: &Pin<'_>,
        held: HeldLock,
        (state, leases): (u64, u32),
    ) -> Result<(), IndexError> {
        let timeout = &mut self.checks.get_or_insert_default().timeout;
        check_timeout_of(pin.session(), pin.span(), timeout, (held, state), leases).await
    }
}
