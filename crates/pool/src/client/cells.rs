//! A client's intent cells: which of them an operation may take.
//!
//! Invariants: a cell belongs to one operation at a time. A cell whose intent was not cleared is not taken again until
//! the intent is cleared (I3 in [`intent`](crate::intent)), because the lock that it names may still be held. While an
//! operation waits for a cell, no later one takes one; and if there is a cell that can be taken, none waits.

mod wait;

pub(crate) use wait::CellWait;

use super::Client;
use crate::intent_record::{Lock, cleared, generation_of, is_declared};
use crate::layout::{INTENT_LEN, first_word};
use crate::lease::GENERATION_MASK;
use crate::{PoolError, mark};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr, Span};
use std::sync::atomic::{AtomicU64, Ordering};
use wait::Queue;

/// The intent cells of this client on one node: a bit for each cell.
#[derive(Default)]
pub(super) struct IntentCells {
    /// An operation has the cell.
    taken: AtomicU64,
    /// The cell has an intent that was not cleared: of a cancelled operation, or of a former owner of the slot.
    uncleared: AtomicU64,
    /// The subset of `uncleared` that operations of this client declared and did not abandon.
    own_uncleared: AtomicU64,
    /// Operations that wait for a cell.
    queue: Queue,
}

impl IntentCells {
    /// Takes one of so many cells; `None` if each is taken or has an intent that was not cleared.
    fn take(&self, number: u64) -> Option<u64> {
        let uncleared = self.uncleared.load(Ordering::SeqCst);
        let pick = |taken: u64| u64::from((!(taken | uncleared)).trailing_zeros());
        let taken = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
            let cell = pick(taken);
            (cell < number).then(|| taken | 1 << cell)
        });
        let cell = pick(taken.ok()?);
        if self.uncleared.load(Ordering::SeqCst) >> cell & 1 == 0 {
            return Some(cell);
        }
        // Another thread returned it, with an intent that was not cleared, since this one has looked.
        self.taken.fetch_and(!(1 << cell), Ordering::SeqCst);
        self.take(number)
    }
}

impl Client {
    /// Takes a cell on a node; `None` if there is none, or if other operations wait for one.
    pub(crate) fn take_intent_cell(&self, node: NodeId) -> Option<u64> {
        let cells = self.intents.get(node.index())?;
        if cells.queue.is_empty() { cells.take(self.pool.geometry(node).intent_cells) } else { None }
    }

    /// Returns a cell when its operation ends.
    pub(crate) fn return_intent_cell(&self, node: NodeId, cell: u64, uncleared: bool, abandoned: bool) {
        if let Some(cells) = self.intents.get(node.index()) {
            cells.own_uncleared.fetch_or(u64::from(uncleared && !abandoned) << cell, Ordering::AcqRel);
            cells.uncleared.fetch_or(u64::from(uncleared) << cell, Ordering::AcqRel);
            cells.taken.fetch_and(!(1 << cell), Ordering::SeqCst);
            self.serve_cells(node);
        }
    }

    /// Gives the cells that can be taken to the operations that wait for one.
    fn serve_cells(&self, node: NodeId) {
        if let Some(cells) = self.intents.get(node.index()) {
            let number = self.pool.geometry(node).intent_cells;
            cells.queue.serve(|| cells.take(number));
        }
    }

    /// Reads the cells of a new slot, and excludes those in which intents of former owners are declared.
    pub(super) async fn adopt_intent_cells(&self, span: &Span) -> Result<(), PoolError> {
        for (node, cells) in self.pool.nodes().zip(&self.intents) {
            let number = self.pool.geometry(node).intent_cells;
            cells.uncleared.store(u64::MAX >> (64 - number.clamp(1, 64)), Ordering::Release);
            self.reclaim_intent_cells(span.endpoint(), node).await?;
        }
        Ok(())
    }

    /// Reads the cells that were left with an intent, and makes those usable whose intent is cleared by now. Clears
    /// intents of former owners of the slot if their locks are free: an evicted client never takes them again.
    pub(crate) async fn reclaim_intent_cells(&self, endpoint: &Endpoint, node: NodeId) -> Result<(), PoolError> {
        let Some(cells) = self.intents.get(node.index()) else { return Ok(()) };
        let uncleared = cells.uncleared.load(Ordering::Acquire) & !cells.taken.load(Ordering::Acquire);
        if uncleared == 0 {
            return Ok(());
        }
        let span = endpoint.span(OpKind::Maintenance);
        let at = self.pool.geometry(node).intent(node, self.slot, 0);
        let number = self.pool.geometry(node).intent_cells;
        let words = span.read(at, (number * INTENT_LEN) as usize).await?;
        let mut usable = 0;
        for (cell, words) in (0..number).zip(words.words().chunks_exact(INTENT_LEN as usize / 8)) {
            let &[word, _, lock, mask, ..] = words else { continue };
            if uncleared >> cell & 1 == 0 {
                continue;
            }
            let of_former_owner = generation_of(word) != self.generation() & GENERATION_MASK;
            if !is_declared(word) {
                usable |= 1 << cell;
            } else if of_former_owner {
                let lock = Lock { at: RemotePtr::from_bits(lock), mask };
                let held = match span.read(lock.at, 8).await {
                    Ok(now) => lock.held(first_word(&now)),
                    Err(FabricError::NoSuchNode(_) | FabricError::OutOfBounds { .. }) => true,
                    Err(error) => return Err(error.into()),
                };
                if !held && span.cas(at.add(cell * INTENT_LEN), word, cleared(word)).await? == word {
                    mark!("takeover: intent of a former owner cleared");
                    usable |= 1 << cell;
                }
            }
        }
        cells.own_uncleared.fetch_and(!usable, Ordering::AcqRel);
        cells.uncleared.fetch_and(!usable, Ordering::SeqCst);
        self.serve_cells(node);
        Ok(())
    }

    /// Returns whether the verbs that clear an intent of an ended operation may still be in flight: no operation waits for
    /// them ([`IntentTransfer::clear_detached`](crate::intent::IntentTransfer::clear_detached)). For a client without
    /// operations: one in progress has a cell as well.
    pub(super) fn has_cells_in_use(&self) -> bool {
        self.intents.iter().any(|cells| cells.taken.load(Ordering::Acquire) != 0)
    }

    /// Returns whether an ended operation of this client left an intent that was neither cleared nor abandoned.
    pub(crate) fn has_uncleared_intents(&self) -> bool {
        self.intents.iter().any(|cells| cells.own_uncleared.load(Ordering::Acquire) != 0)
    }
}
