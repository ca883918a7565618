//! Intents: which operation of which client may hold which lock, readable from the pool.
//!
//! A lock word of a paper's layout has no room for an owner; SHARD's has one bit. So an operation writes what it is
//! about to do into a cell of its client's slot *on the node of the lock*. This WRITE and the CAS that takes the lock
//! are in one batch, in this order, so it costs no round trip (G4).
//!
//! Invariants:
//!
//! * **I1** Before a lock is held, the holder's intent names it: the WRITE precedes the CAS in one batch (G4).
//! * **I2** An intent is cleared by a CAS of its first word. This CAS follows the atomic that releases the lock in the
//!   same batch (G4 orders atomics), so the intent is declared for as long as the lock is held. The word carries the
//!   generation of the client slot and a sequence number that no two declarations share. If a clearing CAS lands late
//!   (N5), it finds another word and does nothing. A cleared cell keeps the number, so no first word ever repeats.
//! * **I3** A cell belongs to one operation of its client at a time. If an operation ends without clearing its intent,
//!   it may still hold the lock, and its verbs may still land. The cell is not used again until its intent is cleared.
//! * **I4** An operation that holds its lock and cannot finish may *abandon the lock* after all its verbs have
//!   completed: one CAS of the intent's first word says so. The operation does nothing under the lock afterwards, so
//!   the intent counts as one of an evicted client.
//! * **I5** An operation that holds its lock may *hand it over* to another operation of its client, with the cell, after
//!   all its verbs under the lock have completed ([`IntentTransfer`]). The intent stays declared meanwhile.
//!
//! An intent may name a lock that its client failed to take, or has released. While an operation in progress holds a
//! lock, an intent always names it. An operation takes at most one cell of a node: two operations that each wait for a
//! second cell would deadlock.
//!
//! The private module `intent_record` has the encoding, [`lock`](crate::lock) the guards that follow these rules, and
//! [`takeover`](crate::takeover) the use of the intents of crashed clients.

pub use crate::intent_record::{DeclaredIntent, Intent, Lock};

use crate::PoolError;
use crate::client::Client;
use crate::client::node_cells::CellWait;
use crate::faults::{Fault, planted};
use crate::intent_record::{
    abandoned, cell_words, cleared, declared, encode, is_abandoned, is_declared, next_word, read_cells,
};
use crate::lease::{clients, describe};
use crate::session::Session;
use crate::waited::Waited;
use farindex_fabric::{Batch, NodeId, OpKind, RemotePtr, Span, cold};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// An intent cell of this client, which belongs to one operation until it is dropped.
pub struct IntentCell<'s> {
    session: &'s Session,
    node: NodeId,
    cell: u64,
    at: RemotePtr,
    /// First word of the declared intent; zero if none is declared.
    word: Cell<u64>,
    /// Has the CAS that clears it been added to a batch, which has not completed?
    clears: Cell<bool>,
}

impl Session {
    /// Takes an intent cell on a node. While other operations of this client have all of them, it waits, for up to a
    /// lease; those that wait get cells in the order in which they came. If it is stopped for longer than a lease
    /// itself, the limit begins again.
    pub async fn intent_cell(&self, node: NodeId) -> Result<IntentCell<'_>, PoolError> {
        match self.client().cells(node)?.take() {
            Some(cell) => Ok(self.taken_cell(node, cell)),
            None => cold(self.wait_for_intent_cell(node)).await,
        }
    }

    fn taken_cell(&self, node: NodeId, cell: u64) -> IntentCell<'_> {
        let at = self.pool().geometry(node).intent(node, self.client().slot(), cell);
        IntentCell { session: self, node, cell, at, word: Cell::new(0), clears: Cell::new(false) }
    }

    async fn wait_for_intent_cell(&self, node: NodeId) -> Result<IntentCell<'_>, PoolError> {
        let mut waited = Waited::default();
        waited.look(self);
        let mut wait = CellWait::new(self.client().cells(node)?);
        let mut pause = Duration::from_micros(5);
        loop {
            // What another client clears, it tells nobody.
            self.client().reclaim_intent_cells(self.endpoint(), node).await?;
            let mut sleep = pin!(self.endpoint().sleep(pause));
            let cell = poll_fn(|cx| match if planted(Fault::ForgetsWaiters) { Poll::Pending } else { wait.poll(cx) } {
                Poll::Ready(cell) => Poll::Ready(Some(cell)),
                Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
            });
            if let Some(cell) = cell.await {
                return Ok(self.taken_cell(node, cell));
            }
            if waited.look(self) >= self.pool().lease() {
                let what = format!("every intent cell of this client on memory node {node}");
                let cells = self.client().cells(node)?;
                let holder = match cells.any_taken() || cells.any_own_uncleared() {
                    true => "its own operations",
                    false => "operations of clients that had its slot before",
                };
                return Err(PoolError::Held { what, holder: holder.to_owned() });
            }
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}

impl IntentCell<'_> {
    /// Adds the WRITE of an intent to a batch. The CAS that takes the lock follows in the same batch (I1);
    /// [`try_lock`](Self::try_lock) adds both.
    pub fn declare(&self, batch: &mut Batch<'_>, intent: &Intent) {
        // A new number for each declaration: the clearing CAS of an earlier intent of this cell may still land (I2).
        self.word.set(next_word(self.session.client().generation()));
        self.clears.set(false);
        if planted(Fault::NoIntent) {
            return;
        }
        batch.write_words(self.at, &encode(self.word.get(), intent));
    }
    /// Adds the CAS that clears the intent to a batch. It follows the atomic that releases the lock (I2). When the batch has
    /// completed, [`cleared`](Self::cleared) says so.
    pub fn clear(&self, batch: &mut Batch<'_>) {
        let word = self.word.get();
        self.clears.set(true);
        if planted(Fault::LateClear) {
            let span = self.session.span(OpKind::Other);
            let mut late = span.batch();
            late.write_words(self.at, &[cleared(word)]);
            return late.post_detached();
        }
        batch.cas(self.at, word, cleared(word));
    }
    /// The batch that clears the intent has completed. An operation that is given up before does not come here: both verbs may
    /// land later, so the cell is not used again until the intent is seen to be cleared (I3).
    pub fn cleared(&self) {
        self.word.set(0);
        self.clears.set(false);
    }
    /// Abandons the lock (I4): lets other operations take it over although this client is alive. For an operation that
    /// holds the lock and cannot finish. All its verbs must have completed. Does nothing if no intent is declared.
    pub async fn abandon_lock(&self, span: &Span) -> Result<(), PoolError> {
        let word = self.word.get();
        if is_declared(word) && !self.clears.get() && span.cas(self.at, word, abandoned(word)).await? == word {
            self.word.set(abandoned(word));
        }
        Ok(())
    }
}

impl<'s> IntentCell<'s> {
    /// Takes the cell from its operation, to hand it over to another one with the lock that its intent names (I5).
    pub fn into_transfer(self) -> IntentTransfer {
        let client = Some(Arc::clone(self.session.client()));
        let transfer = IntentTransfer { client, node: self.node, cell: self.cell, at: self.at, word: self.word.get() };
        std::mem::forget(self);
        transfer
    }
}

/// An intent cell on its way from one operation to another one of the same client, perhaps on another thread. If it is
/// dropped, the lock stays held, and the cell is not used again until its intent is cleared (I3).
pub struct IntentTransfer {
    /// `None` once an operation has the cell again.
    client: Option<Arc<Client>>,
    node: NodeId,
    cell: u64,
    at: RemotePtr,
    word: u64,
}

impl IntentTransfer {
    /// Gives the cell to an operation; `None` if `session` belongs to another client.
    pub fn into_cell(mut self, session: &Session) -> Option<IntentCell<'_>> {
        self.client.take_if(|client| Arc::ptr_eq(client, session.client()))?;
        let (word, clears) = (Cell::new(self.word), Cell::new(false));
        Some(IntentCell { session, node: self.node, cell: self.cell, at: self.at, word, clears })
    }
    /// Clears the intent behind the atomic that releases the lock, which the batch holds already (I2), and waits for
    /// neither. The cell is used again when both have completed.
    pub fn clear_detached(mut self, mut batch: Batch<'_>) {
        let word = std::mem::take(&mut self.word);
        batch.cas(self.at, word, cleared(word));
        batch.post_holding(Box::new(self));
    }
}

impl Drop for IntentTransfer {
    fn drop(&mut self) {
        if let Some(Ok(cells)) = self.client.as_ref().map(|client| client.cells(self.node)) {
            cells.give_back(self.cell, self.word != 0, is_abandoned(self.word));
        }
    }
}

impl Drop for IntentCell<'_> {
    fn drop(&mut self) {
        let word = self.word.get();
        if let Ok(cells) = self.session.client().cells(self.node) {
            cells.give_back(self.cell, word != 0, is_abandoned(word));
        }
    }
}

/// Returns all intents of all clients that are declared on a node.
pub async fn intents(session: &Session, span: &Span, node: NodeId) -> Result<Vec<DeclaredIntent>, PoolError> {
    let mut batch = span.batch();
    let cells = read_cells(&mut batch, session.pool(), node);
    let mut done = batch.post().await?;
    Ok(declared(session.pool(), node, &cell_words(&mut done, cells)).collect())
}

/// Describes the clients that may hold a lock, for a message.
pub async fn holders(session: &Session, span: &Span, lock: RemotePtr) -> Result<String, PoolError> {
    let named = intents(session, span, lock.node()).await?;
    let clients = clients(session.pool(), span).await?;
    let names = |found: &&DeclaredIntent| found.intent.lock.at == lock && !is_abandoned(found.word);
    let mut candidates: Vec<_> = named.iter().filter(names).collect();
    candidates.dedup_by_key(|found| (found.slot, found.generation));
    let words: Vec<_> = candidates.iter().map(|found| describe(&clients, found.slot, Some(found.generation))).collect();
    Ok(if words.is_empty() { "an unknown client".to_owned() } else { words.join(" or ") })
}
