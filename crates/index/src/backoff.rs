//! Waiting for another client: nothing waits for ever.

use crate::IndexError;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{IntentCell, LockTimeout, Session, intent};
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_nanos(500);
const LAST_PAUSE: Duration = Duration::from_millis(1);
/// After so many pauses who is in the way is looked after.
const PATIENT: u32 = 14;

/// Waits longer each time. Who waits long looks after those in the way, and gives up when the same living client has been in
/// the way for two leases.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    rounds: u32,
    looked: Option<Duration>,
    lock_timeout: LockTimeout,
    began: Option<Duration>,
}

impl Backoff {
    /// Has it taken longer than another client's step should take?
    pub(crate) fn is_long(&self) -> bool {
        self.rounds > 12
    }

    /// Waits once. Is it time to look after who is in the way?
    pub(crate) async fn wait(&mut self, session: &Session) -> bool {
        let endpoint = session.endpoint();
        let pause = FIRST_PAUSE.saturating_mul(1 << self.rounds.min(20)).min(LAST_PAUSE);
        self.rounds += 1;
        endpoint.sleep(pause).await;
        let now = endpoint.now();
        self.began.get_or_insert(now);
        let often = (session.pool().lease() / 16).max(LAST_PAUSE);
        let due = self.rounds > PATIENT && self.looked.is_none_or(|looked| now.saturating_sub(looked) >= often);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Somebody who may be alive is in the way, and it is the same as long as `names` does not change.
    pub(crate) async fn wait_for_lock_holder(
        &mut self,
        session: &Session,
        span: &Span,
        lock: RemotePtr,
        names: u64,
    ) -> Result<(), IndexError> {
        let now = session.endpoint().now();
        if self.lock_timeout.held_for(names, now) <= session.pool().lease() * 2 {
            return Ok(());
        }
        let holder = intent::holders(session, span, lock).await?;
        let waited = now.saturating_sub(self.began.unwrap_or(now));
        Err(IndexError::Locked { at: lock, waited_ms: waited.as_millis() as u64, holder })
    }
}

/// Whoever has claimed a lock and cannot put right what is under it lets the next one try: a lock is not left held because
/// something was wrong. Only after a failed verb is it open what holds (N7), and nobody may go on before this client was shut out.
pub(crate) async fn release_after_failed_recovery(
    span: &Span,
    cell: Option<&IntentCell<'_>>,
    done: Result<(), IndexError>,
) -> Result<(), IndexError> {
    if let (Err(error), Some(cell)) = (&done, cell)
        && !matches!(error, IndexError::Fabric(_))
    {
        cell.abandon_lock(span).await?;
    }
    done
}
