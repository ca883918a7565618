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
//!   Clearing leaves the number behind, so the first word of a cell never is what it was before.
//! * **I3** A cell belongs to one operation of its client at a time. An operation that ends without clearing its intent
//!   may hold the lock still, and its verbs may still land; its cell is not used again before somebody has cleared it.
//! * **I4** An operation that cannot go on, and holds its lock, may *give it up* once all its verbs have completed: one CAS of
//!   the intent's first word says so. It does nothing under the lock afterwards, so the intent counts as one of the dead.
//!
//! An intent may name a lock that its client failed to take, or has released; it is never missing for one that is held by
//! an operation in progress. An operation takes at most one cell of a node: two of them that each wait for a second one
//! would wait for each other.
//!
//! ```text
//! first word   63          40 39 38       1 0
//!              | generation  |0 | sequence |1|    an intent stands
//!              | generation  |1 | sequence |1|    the same, and its operation has given its lock up
//!              | generation  |? | sequence |0|    none does, or none ever did
//! ```
//!
//! How the locks of the dead are told and claimed: [`takeover`](crate::takeover).

use crate::faults::{Fault, planted};
use crate::layout::{INTENT_LEN, INTENTS};
use crate::session::Session;
use crate::{ClientInfo, Pool, PoolError};
use farindex_fabric::{Batch, Done, FabricError, NodeId, OpKind, RemotePtr, Span, Ticket};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A lock: a word, and what of it says that somebody holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The word.
    pub at: RemotePtr,
    /// It is held while any of these bits is set.
    pub mask: u64,
}

impl Lock {
    /// Does this word say that the lock is held?
    pub const fn held(&self, word: u64) -> bool {
        word & self.mask != 0
    }
}

/// What the holder of a lock is about to do. The words behind the lock belong to the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// The index that the lock belongs to.
    pub index: u64,
    /// The lock.
    pub lock: Lock,
    /// What it is about to do there, in the index's own terms.
    pub what: [u64; 4],
}

/// An intent found in a client's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeclaredIntent {
    /// The client slot.
    pub slot: u64,
    /// Low 24 bits of the slot's generation when it was written: those of another client if the slot has been taken since.
    pub generation: u64,
    /// What it says.
    pub intent: Intent,
    /// The first word of its cell.
    pub(crate) at: RemotePtr,
    /// What that word holds.
    pub(crate) word: u64,
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
const GIVEN_UP: u64 = 1 << 39;
const SEQUENCE_BITS: u32 = 38;
pub(crate) const GENERATION_MASK: u64 = (1 << 24) - 1;

/// The first word of a cell whose intent has been cleared.
pub(crate) const fn cleared(word: u64) -> u64 {
    word & !1
}
/// Does an intent stand in a cell with this first word?
pub(crate) const fn stands(word: u64) -> bool {
    word & 1 == 1
}
/// Has the operation given its lock up?
pub(crate) const fn given_up(word: u64) -> bool {
    word & GIVEN_UP != 0
}

/// Sequence numbers are unique within the process, so also within the client.
static SEQUENCE: AtomicU64 = AtomicU64::new(1);

fn next_word(generation: u64) -> u64 {
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed) & ((1 << SEQUENCE_BITS) - 1);
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
            if self.client().reclaim_intents(self.endpoint(), node).await? {
                continue;
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
        let Lock { at, mask } = intent.lock;
        if planted(Fault::NoIntent) {
            return;
        }
        batch.write_words(self.at, &[self.word.get(), intent.index, at.to_bits(), mask, a, b, c, d]);
    }
    /// Clears the intent. Goes behind the atomic that releases the lock, in its batch.
    pub fn clear(&self, batch: &mut Batch<'_>) {
        let word = self.word.replace(0);
        if planted(Fault::LateClear) {
            let span = self.session.span(OpKind::Other);
            let mut late = span.batch();
            late.write_words(self.at, &[cleared(word)]);
            return late.post_detached();
        }
        batch.cas(self.at, word, cleared(word));
    }
    /// Lets others claim the lock although this client lives on: for an operation that holds it, cannot finish, and could as well
    /// have died here. All its verbs must have completed. Does nothing if no intent is declared.
    pub async fn abandon_lock(&self, span: &Span) -> Result<(), PoolError> {
        let word = self.word.get();
        if stands(word) && span.cas(self.at, word, word | GIVEN_UP).await? == word {
            self.word.set(word | GIVEN_UP);
        }
        Ok(())
    }
}

impl Drop for IntentCell<'_> {
    fn drop(&mut self) {
        let word = self.word.get();
        self.session.client().give_intent(self.node.index(), self.cell, word != 0, given_up(word));
    }
}

/// Client slots whose cells are fetched by one READ.
const SLOTS_PER_READ: u64 = 64;

/// READs of all cells of a node, in one batch's order.
pub(crate) fn read_cells(batch: &mut Batch<'_>, pool: &Pool, node: NodeId) -> Vec<Ticket> {
    let geometry = pool.geometry(node);
    let firsts = (0..geometry.client_slots).step_by(SLOTS_PER_READ as usize);
    let reads = firsts.map(|first| {
        let slots = SLOTS_PER_READ.min(geometry.client_slots - first);
        batch.read(geometry.intent(node, first, 0), (slots * INTENTS * INTENT_LEN) as usize)
    });
    reads.collect()
}

/// The words of all cells that were read.
pub(crate) fn cell_words(done: &mut Done, tickets: Vec<Ticket>) -> Vec<u64> {
    tickets.into_iter().flat_map(|ticket| done.buf(ticket).words().to_vec()).collect()
}

/// The intents that stand in these cells, in ascending order of slots and cells.
pub(crate) fn standing<'a>(
    pool: &Pool,
    node: NodeId,
    words: &'a [u64],
) -> impl Iterator<Item = DeclaredIntent> + use<'a> {
    let geometry = pool.geometry(node);
    (0..).zip(words.chunks_exact(INTENT_LEN as usize / 8)).filter_map(move |(i, cell)| match *cell {
        [word, index, lock, mask, a, b, c, d] if stands(word) => {
            let lock = Lock { at: RemotePtr::from_bits(lock), mask };
            let intent = Intent { index, lock, what: [a, b, c, d] };
            let at = geometry.intent(node, i / INTENTS, i % INTENTS);
            Some(DeclaredIntent { slot: i / INTENTS, generation: word >> GENERATION_SHIFT, intent, at, word })
        }
        _ => None,
    })
}

/// Every intent on a node, of all clients, that has not been cleared.
pub async fn intents(session: &Session, span: &Span, node: NodeId) -> Result<Vec<DeclaredIntent>, PoolError> {
    let mut batch = span.batch();
    let cells = read_cells(&mut batch, session.pool(), node);
    let mut done = batch.post().await?;
    Ok(standing(session.pool(), node, &cell_words(&mut done, cells)).collect())
}

/// Who may hold a lock, for a message.
pub async fn holders(session: &Session, span: &Span, lock: RemotePtr) -> Result<String, PoolError> {
    let named = intents(session, span, lock.node()).await?;
    let clients = crate::clients(session.pool(), span).await?;
    let names = |found: &&DeclaredIntent| found.intent.lock.at == lock && !given_up(found.word);
    let mut who: Vec<_> = named.iter().filter(names).collect();
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
