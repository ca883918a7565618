//! Intents as they lie in far memory: the 64 bytes of a cell, and how they are read.
//!
//! ```text
//! first word   63          40 39 38       1 0
//!              | generation  |0 | sequence |1|    declared
//!              | generation  |1 | sequence |1|    declared, and its operation has abandoned the lock (I4)
//!              | generation  |? | sequence |0|    cleared, or never declared
//! ```
//!
//! [`intent`](crate::intent) has the protocol, with the invariants I1 to I4.

use crate::Pool;
use crate::layout::INTENT_LEN;
use farindex_fabric::{Batch, Done, NodeId, RemotePtr, Ticket};
use std::sync::atomic::{AtomicU64, Ordering};

/// A lock: a word in far memory, and the bits of it that mean "held".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// Address of the word.
    pub at: RemotePtr,
    /// The lock is held while any of these bits is set.
    pub mask: u64,
}

impl Lock {
    /// Returns whether this lock word means "held".
    pub const fn held(&self, word: u64) -> bool {
        word & self.mask != 0
    }
}

/// A declaration of a client that it is about to take a lock, and for which change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// Uid of the index that the lock belongs to.
    pub index: u64,
    /// The lock.
    pub lock: Lock,
    /// The intended change, in the index's own encoding.
    pub what: [u64; 4],
}

/// An intent that was found in a client's slot: declared, and not cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeclaredIntent {
    /// The client slot.
    pub slot: u64,
    /// Low 24 bits of the slot's generation when the intent was declared. They differ from those of the slot if another
    /// client has taken the slot since.
    pub generation: u64,
    /// The intent.
    pub intent: Intent,
    /// Address of its first word.
    pub(crate) at: RemotePtr,
    /// Its first word.
    pub(crate) word: u64,
}

const GENERATION_SHIFT: u32 = 40;
const ABANDONED: u64 = 1 << 39;
const SEQUENCE_BITS: u32 = 38;

/// The first word of a declared intent.
pub(crate) fn next_word(generation: u64) -> u64 {
    /// Sequence numbers are unique within the process, and so within the client.
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed) & ((1 << SEQUENCE_BITS) - 1);
    generation << GENERATION_SHIFT | sequence << 1 | 1
}
/// The first word after the intent is cleared.
pub(crate) const fn cleared(word: u64) -> u64 {
    word & !1
}
/// The first word after the operation has abandoned its lock.
pub(crate) const fn abandoned(word: u64) -> u64 {
    word | ABANDONED
}
/// Returns whether an intent is declared in a cell with this first word.
pub(crate) const fn is_declared(word: u64) -> bool {
    word & 1 == 1
}
/// Returns whether the operation that declared the intent has abandoned its lock.
pub(crate) const fn is_abandoned(word: u64) -> bool {
    word & ABANDONED != 0
}
/// Low 24 bits of the generation of the slot that a first word was written by.
pub(crate) const fn generation_of(word: u64) -> u64 {
    word >> GENERATION_SHIFT
}

/// The eight words of an intent.
pub(crate) fn encode(word: u64, intent: &Intent) -> [u64; 8] {
    let [a, b, c, d] = intent.what;
    let Lock { at, mask } = intent.lock;
    [word, intent.index, at.to_bits(), mask, a, b, c, d]
}

/// Most cells that one READ returns: 64 KiB.
const CELLS_PER_READ: u64 = 1024;

/// Adds READs of all cells of a node to a batch.
pub(crate) fn read_cells(batch: &mut Batch<'_>, pool: &Pool, node: NodeId) -> Vec<Ticket> {
    let geometry = pool.geometry(node);
    let cells = geometry.client_slots * geometry.intent_cells;
    let reads = (0..cells).step_by(CELLS_PER_READ as usize).map(|first| {
        let count = CELLS_PER_READ.min(cells - first);
        batch.read(geometry.intent(node, 0, first), (count * INTENT_LEN) as usize)
    });
    reads.collect()
}

/// The words of all cells, from the READs of [`read_cells`].
pub(crate) fn cell_words(done: &mut Done, tickets: Vec<Ticket>) -> Vec<u64> {
    let mut words = Vec::new();
    for ticket in tickets {
        words.extend_from_slice(done.buf(ticket).words());
    }
    words
}

/// The declared intents among these cells, in ascending order of slots and cells.
pub(crate) fn declared<'a>(
    pool: &Pool,
    node: NodeId,
    words: &'a [u64],
) -> impl Iterator<Item = DeclaredIntent> + use<'a> {
    let geometry = pool.geometry(node);
    (0..).zip(words.chunks_exact(INTENT_LEN as usize / 8)).filter_map(move |(i, cell)| match *cell {
        [word, index, lock, mask, a, b, c, d] if is_declared(word) => {
            let lock = Lock { at: RemotePtr::from_bits(lock), mask };
            let intent = Intent { index, lock, what: [a, b, c, d] };
            let slot = i / geometry.intent_cells.max(1);
            let at = geometry.intent(node, 0, i);
            Some(DeclaredIntent { slot, generation: generation_of(word), intent, at, word })
        }
        _ => None,
    })
}
