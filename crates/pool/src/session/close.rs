//! Closing a client: returns the memory of its closed sessions, and then frees its slot.

use crate::PoolError;
use crate::client::{CLOSE_TIMEOUT, Client};
use crate::layout::HOME;
use crate::leaks::Leaks;
use farindex_fabric::{Endpoint, OpKind};
use std::sync::Arc;
use std::time::Duration;

impl Client {
    /// Frees the memory that closed sessions left, and then the client's slot. Fails while sessions are open, because
    /// their pins would no longer count. Takes at most [`CLOSE_TIMEOUT`], or a lease if that is shorter. If another
    /// client has not quiesced by then, the memory that waits for it is leaked until the next audit that reclaims.
    pub async fn close(self: Arc<Self>, endpoint: &Endpoint) -> Result<(), PoolError> {
        match self.sessions() {
            0 => {}
            open => return Err(PoolError::SessionsOpen(open)),
        }
        let until = endpoint.now() + self.pool().lease().min(CLOSE_TIMEOUT);
        let mut pause = Duration::from_micros(50);
        loop {
            self.tick(endpoint).await?;
            let session = self.session(endpoint.clone());
            session.adopt_orphans();
            session.flush().await?;
            drop(session);
            if self.orphans().is_empty() && !self.has_detached_verbs() || endpoint.now() >= until {
                break;
            }
            endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        let span = endpoint.span(OpKind::Maintenance);
        for node in self.pool().nodes() {
            self.reclaim_intent_cells(endpoint, node).await?;
        }
        // An uncleared intent may name a lock that is held, and detached verbs may still land. Then the slot is not
        // freed here: another client frees it when the lease has expired, after it has revoked this one.
        if !self.has_uncleared_intents() && !self.has_detached_verbs() {
            let mut batch = span.batch();
            if !self.orphans().is_empty() {
                Leaks::count(&mut batch);
            }
            batch.cas(self.pool().geometry(HOME).client(self.slot()), self.state(), self.state() & !0xFF);
            batch.post().await?;
        }
        self.mark_lost();
        Ok(())
    }
}
