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
//!   (G4 orders atomics), so it outlives the lock. The word carries the generation of the client slot and a sequence
//!   number that no two declarations share: a clearing CAS that lands late (N5) finds another word and does nothing.
//! * **I3** A cell belongs to one operation of its client at a time. An operation that ends without clearing its intent
//!   may hold the lock still; its cell is used again only when the client has no other left.
//!
//! An intent may name a lock that its client failed to take, or has released; it is never missing for one that is held by
//! an operation in progress. An operation takes at most one cell of a node: two of them that each wait for a second one
//! would wait for each other.
//!
//! ```text
//! first word   63          40 39        1 0
//!              | generation  | sequence  |1|    zero: no intent
//! ```

use crate::layout::{INTENT_LEN, INTENTS};
use crate::session::Session;
use crate::{ClientInfo, PoolError};
use farindex_fabric::{Batch, FabricError, NodeId, RemotePtr, Span};
use std::cell::Cell;
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
    /// Low 24 bits of the slot's generation when it was written: those of another client if the slot has been taken since.
    pub generation: u64,
    /// What it says.
    pub intent: Intent,
}

/// A cell of this client's slot, held by one operation.
pub struct IntentCell<'s> {
    session: &'s Session,
    node: NodeId,
    cell: u64,
    at: RemotePtr,
    /// First word of the intent that is declared; zero if none is.
    word: Cell<u64>,
}

const GENERATION_SHIFT: u32 = 40;
const GENERATION_MASK: u64 = (1 << 24) - 1;

/// Sequence numbers are unique within the process, so also within the client.
static SEQUENCE: AtomicU64 = AtomicU64::new(1);

fn next_word(generation: u64) -> u64 {
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed) & ((1 << (GENERATION_SHIFT - 1)) - 1);
    generation << GENERATION_SHIFT | sequence << 1 | 1
}

impl Session {
    /// Takes a cell on a node; waits, for up to a lease, while all are taken by other operations of this client.
    pub async fn intent_cell(&self, node: NodeId) -> Result<IntentCell<'_>, PoolError> {
        if node.index() >= self.pool().nodes().len() {
            return Err(PoolError::Fabric(FabricError::NoSuchNode(node)));
        }
        let until = self.endpoint().now() + self.pool().lease();
        loop {
            if let Some(cell) = self.client().take_intent(node.index()) {
                let at = self.pool().geometry(node).intent(node, self.client().slot(), cell);
                return Ok(IntentCell { session: self, node, cell, at, word: Cell::new(0) });
            }
            if self.endpoint().now() >= until {
                let what = format!("every intent cell of this client on memory node {node}");
                return Err(PoolError::Held { what, holder: "its own operations".to_owned() });
            }
            self.endpoint().sleep(Duration::from_micros(5)).await;
        }
    }
}

impl IntentCell<'_> {
    /// Writes the intent. Goes ahead of the CAS that takes the lock, in its batch.
    pub fn declare(&self, batch: &mut Batch<'_>, intent: &Intent) {
        // A new number each time: the clearing of an earlier intent of this very cell may be on its way still.
        self.word.set(next_word(self.session.client().generation()));
        let [a, b, c, d] = intent.what;
        batch.write_words(self.at, &[self.word.get(), intent.index, intent.lock.to_bits(), a, b, c, d]);
    }
    /// Clears the intent. Goes behind the atomic that releases the lock, in its batch.
    pub fn clear(&self, batch: &mut Batch<'_>) {
        batch.cas(self.at, self.word.replace(0), 0);
    }
}

impl Drop for IntentCell<'_> {
    fn drop(&mut self) {
        self.session.client().give_intent(self.node.index(), self.cell, self.word.get() != 0);
    }
}

/// Client slots whose cells are fetched by one READ.
const SLOTS_PER_READ: u64 = 64;

/// Every intent on a node, of all clients, that has not been cleared.
pub async fn intents(session: &Session, span: &Span, node: NodeId) -> Result<Vec<Found>, PoolError> {
    let geometry = session.pool().geometry(node);
    let mut found = Vec::new();
    let mut first = 0;
    while first < geometry.client_slots {
        let slots = SLOTS_PER_READ.min(geometry.client_slots - first);
        let cells = span.read(geometry.intent(node, first, 0), (slots * INTENTS * INTENT_LEN) as usize).await?;
        for (i, cell) in (0..).zip(cells.words().chunks_exact(INTENT_LEN as usize / 8)) {
            if let &[word, index, lock, a, b, c, d, _] = cell
                && word & 1 == 1
            {
                let intent = Intent { index, lock: RemotePtr::from_bits(lock), what: [a, b, c, d] };
                found.push(Found { slot: first + i / INTENTS, generation: word >> GENERATION_SHIFT, intent });
            }
        }
        first += slots;
    }
    Ok(found)
}

/// Who may hold a lock, for a message.
pub async fn holders(session: &Session, span: &Span, lock: RemotePtr) -> Result<String, PoolError> {
    let named = intents(session, span, lock.node()).await?;
    let clients = crate::clients(session.pool(), span).await?;
    let mut who: Vec<_> = named.iter().filter(|found| found.intent.lock == lock).collect();
    who.dedup_by_key(|found| (found.slot, found.generation));
    let who: Vec<_> = who.iter().map(|found| describe(&clients, found.slot, Some(found.generation))).collect();
    Ok(if who.is_empty() { "an unknown client".to_owned() } else { who.join(" or ") })
}

/// A client in words: the one of this generation, or whoever holds the slot now.
pub(crate) fn describe(clients: &[ClientInfo], slot: u64, generation: Option<u64>) -> String {
    let same = |client: &&ClientInfo| {
        let now = client.record.generation() & GENERATION_MASK;
        client.slot == slot && generation.is_none_or(|generation| generation == now)
    };
    match clients.iter().find(same) {
        Some(client) => {
            let state = if client.gone == Some(true) { ", which is gone" } else { "" };
            format!("client {slot} (process {}{state})", client.identity.pid)
        }
        None => format!("client {slot}, which has left"),
    }
}
