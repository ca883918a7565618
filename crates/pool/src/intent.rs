//! Intents: who holds what, readable from the pool.
//!
//! A lock word of a paper's layout has no room for an owner (SHARD's is one bit). So the owner writes what it is about to
//! do into a cell of its own slot *on the node of the lock*, in the same batch and ahead of the CAS that takes the lock:
//! G4 makes that free of round trips.
//!
//! Invariants:
//!
//! * **I1** Before a lock is held, its holder's intent names it: the WRITE precedes the CAS in one batch (G4).
//! * **I2** An intent is cleared by a CAS of its first word, behind the atomic that releases the lock in the same batch
//!   (G4 orders atomics), so it outlives the lock. The word carries a sequence number: a clearing CAS that lands late
//!   (N5) finds another number and does nothing.
//! * **I3** A cell belongs to one operation of its client at a time.
//!
//! An intent may name a lock that its client failed to take, or has released; it never is missing for one that is held.

use crate::PoolError;
use crate::layout::{INTENT_LEN, INTENTS};
use crate::session::Session;
use farindex_fabric::{Batch, NodeId, RemotePtr, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the holder of a lock is about to do. The words behind the lock belong to the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// The index that the lock belongs to.
    pub index: u64,
    /// The lock word.
    pub lock: RemotePtr,
    /// What it is about to do there, in the index's own terms.
    pub what: [u64; 4],
}

/// An intent found in a client's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The client slot.
    pub slot: u64,
    /// What it says.
    pub intent: Intent,
}

/// A cell of this client's slot, held by one operation.
pub struct IntentCell<'s> {
    session: &'s Session,
    node: NodeId,
    cell: u64,
    at: RemotePtr,
    word: u64,
}

/// Sequence numbers are unique within the process, so also within the client.
static SEQUENCE: AtomicU64 = AtomicU64::new(1);

impl Session {
    /// Takes a cell on a node; waits while all are taken by other operations of this client.
    pub async fn intent_cell(&self, node: NodeId) -> Result<IntentCell<'_>, PoolError> {
        loop {
            if let Some(cell) = self.client().take_intent(node.index()) {
                let at = self.pool().geometry(node).intent(node, self.client().slot(), cell);
                let word = SEQUENCE.fetch_add(1, Ordering::Relaxed) << 1 | 1;
                return Ok(IntentCell { session: self, node, cell, at, word });
            }
            self.endpoint().sleep(Duration::from_micros(5)).await;
        }
    }
}

impl IntentCell<'_> {
    /// Writes the intent. Goes ahead of the CAS that takes the lock, in its batch.
    pub fn declare(&self, batch: &mut Batch<'_>, intent: &Intent) {
        let [a, b, c, d] = intent.what;
        batch.write_words(self.at, &[self.word, intent.index, intent.lock.to_bits(), a, b, c, d]);
    }
    /// Clears the intent. Goes behind the atomic that releases the lock, in its batch.
    pub fn clear(&self, batch: &mut Batch<'_>) {
        batch.cas(self.at, self.word, 0);
    }
}

impl Drop for IntentCell<'_> {
    fn drop(&mut self) {
        self.session.client().give_intent(self.node.index(), self.cell);
    }
}

/// Every intent on a node, of all clients, that has not been cleared.
pub async fn intents(session: &Session, span: &Span, node: NodeId) -> Result<Vec<Found>, PoolError> {
    let geometry = session.pool().geometry(node);
    let mut found = Vec::new();
    for slot in 0..geometry.client_slots {
        let cells = span.read(geometry.intent(node, slot, 0), (INTENTS * INTENT_LEN) as usize).await?;
        for cell in cells.words().chunks_exact(INTENT_LEN as usize / 8) {
            if let &[word, index, lock, a, b, c, d, _] = cell
                && word & 1 == 1
            {
                let intent = Intent { index, lock: RemotePtr::from_bits(lock), what: [a, b, c, d] };
                found.push(Found { slot, intent });
            }
        }
    }
    Ok(found)
}

/// Who may hold a lock, for a message.
pub async fn holders(session: &Session, span: &Span, lock: RemotePtr) -> Result<String, PoolError> {
    let named = intents(session, span, lock.node()).await?;
    let clients = crate::clients(session.pool(), span).await?;
    let who: Vec<_> = named.iter().filter(|found| found.intent.lock == lock).map(|found| found.slot).collect();
    let describe = |slot: &u64| match clients.iter().find(|client| client.slot == *slot) {
        Some(client) => {
            let state = if client.gone == Some(true) { ", which is gone" } else { "" };
            format!("client {slot} (process {}{state})", client.identity.pid)
        }
        None => format!("client {slot}, which has left"),
    };
    let who: Vec<_> = who.iter().map(describe).collect();
    Ok(if who.is_empty() { "an unknown client".to_owned() } else { who.join(" or ") })
}
