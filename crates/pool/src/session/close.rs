//! Closing a client: returns the memory of its closed sessions, and then frees its slot.

use crate::PoolError;
use crate::client::{CLOSE_TIMEOUT, Client};
use crate::layout::{EVICTING, HOME, registration};
use crate::leaks::Leaks;
use crate::mark;
use farindex_fabric::{Endpoint, OpKind, cold};
use std::sync::Arc;
use std::time::Duration;

impl Client {
    /// Frees the memory that closed sessions left, and then the client's slot. Fails while sessions are open, because
    /// their pins would no longer count. Waits until other clients have quiesced, as long as the epoch advances. If it
    /// does not, the wait ends after [`CLOSE_TIMEOUT`] if a client that has not quiesced has sent no heartbeat for that
    /// time, and after a lease otherwise. The memory that still waits then is leaked until the next audit that
    /// reclaims. What an index has changed in its cache alone is written to far memory before; if that does not succeed within
    /// two leases, it fails, and the client's slot stays taken. It fails with [`PoolError::LeaseLost`] if another client evicts
    /// this one: its identity is of no use any more.
    pub async fn close(self: Arc<Self>, endpoint: &Endpoint) -> Result<(), PoolError> {
        cold(self.close_inner(endpoint)).await
    }

    async fn close_inner(self: Arc<Self>, endpoint: &Endpoint) -> Result<(), PoolError> {
        match self.sessions() {
            0 => {}
            open => return Err(PoolError::SessionsOpen(open)),
        }
        let lease = self.pool().lease();
        let short = lease.min(CLOSE_TIMEOUT);
        let begun = endpoint.now();
        let mut advanced = (self.epoch(), begun);
        let mut written_back = begun;
        let mut pause = Duration::from_micros(50);
        loop {
            self.tick(endpoint).await?;
            if self.drop_done() {
                let now = endpoint.now();
                if now.saturating_sub(begun) > lease * 2 {
                    return Err(PoolError::NotWrittenBack);
                }
                (advanced.1, written_back) = (now, now);
                endpoint.sleep(pause).await;
                continue;
            }
            let session = self.session(endpoint.clone());
            session.adopt_orphans();
            session.flush().await?;
            drop(session);
            let (epoch, now) = (self.epoch(), endpoint.now());
            if epoch != advanced.0 {
                advanced = (epoch, now);
            }
            // Detached verbs wait for a memory node, not for another client.
            let silent = self.has_detached_verbs() || self.has_silent_laggard(short);
            let limit = if silent { short } else { lease };
            // Nothing holds the epoch up where a verb that clears an intent does not complete.
            let since = if self.orphans().is_empty() { written_back } else { advanced.1 };
            if self.orphans().is_empty() && !self.has_detached_verbs() || now.saturating_sub(since) >= limit {
                break;
            }
            endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        let span = endpoint.span(OpKind::Maintenance);
        for node in self.pool().nodes() {
            self.reclaim_intent_cells(endpoint, node).await?;
        }
        // An uncleared intent may name a lock that is held, and verbs may still land. Then the slot is not freed here: another
        // client frees it when the lease has expired, after it has revoked this one.
        if !self.has_uncleared_intents() && !self.has_detached_verbs() {
            let mut state = self.state();
            let mut leaks = !self.orphans().is_empty();
            loop {
                if state & 0xFF == EVICTING {
                    // Another client is about to revoke this one, whatever this one does, and then frees the slot. A client
                    // that registered with this identity meanwhile would be revoked as well.
                    mark!("close: client is being evicted");
                    self.mark_lost();
                    return Err(PoolError::LeaseLost);
                }
                let mut batch = span.batch();
                if std::mem::take(&mut leaks) {
                    Leaks::count(&mut batch);
                }
                let freed = batch.cas(self.pool().geometry(HOME).client(self.slot()), state, state & !0xFF);
                let old = batch.post().await?.old(freed);
                if old == state {
                    break;
                }
                if registration(old) != registration(state) {
                    self.mark_lost();
                    return Err(PoolError::LeaseLost);
                }
                // A client that could not evict this one has left another count of renewals.
                state = old;
            }
        }
        self.mark_lost();
        Ok(())
    }
}
