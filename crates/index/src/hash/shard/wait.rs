//! Waiting for another client: nothing waits for ever.

use crate::IndexError;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Session, intent};
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_nanos(500);
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// Waits longer each time, for two leases altogether.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    rounds: u32,
    since: Option<Duration>,
}

impl Backoff {
    /// Has it taken longer than another client's step should take?
    pub(super) fn is_long(&self) -> bool {
        self.rounds > 12
    }

    /// Waits once for who holds `lock`.
    pub(super) async fn wait(&mut self, session: &Session, span: &Span, lock: RemotePtr) -> Result<(), IndexError> {
        let endpoint = session.endpoint();
        let now = endpoint.now();
        let since = *self.since.get_or_insert(now);
        let waited = now.saturating_sub(since);
        if self.rounds > 32 && waited > session.pool().lease() * 2 {
            let holder = intent::holders(session, span, lock).await?;
            return Err(IndexError::Locked { at: lock, waited_ms: waited.as_millis() as u64, holder });
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.rounds.min(20)).min(LAST_PAUSE);
        self.rounds += 1;
        endpoint.sleep(pause).await;
        Ok(())
    }
}
