//! A client's intent cells: which of them an operation may take.
//!
//! Invariants: a cell belongs to one operation at a time. A cell whose intent was not cleared is not taken again until
//! the intent is cleared (I3 in [`intent`](crate::intent)), because the lock that it names may still be held.

use super::Client;
use crate::intent_record::{Lock, cleared, generation_of, is_declared};
use crate::layout::{INTENT_LEN, INTENTS, first_word};
use crate::lease::GENERATION_MASK;
use crate::{PoolError, mark};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr, Span};
use std::sync::atomic::{AtomicU64, Ordering};

/// The intent cells of this client on one node: a bit for each cell.
#[derive(Default)]
pub(super) struct IntentCells {
    /// An operation has the cell.
    taken: AtomicU64,
    /// The cell has an intent that was not cleared: of a cancelled operation, or of a former owner of the slot.
    uncleared: AtomicU64,
    /// The subset of `uncleared` that operations of this client declared and did not abandon.
    own_uncleared: AtomicU64,
}

impl Client {
    /// Takes a cell on a node; `None` if every cell is taken or has an intent that was not cleared.
    pub(crate) fn take_intent_cell(&self, node: usize) -> Option<u64> {
        let cells = self.intents.get(node)?;
        let uncleared = cells.uncleared.load(Ordering::Acquire);
        let pick = |taken: u64| u64::from((!(taken | uncleared)).trailing_zeros());
        let taken = cells.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            let cell = pick(taken);
            (cell < INTENTS).then(|| taken | 1 << cell)
        });
        Some(pick(taken.ok()?))
    }

    /// Returns a cell when its operation ends.
    pub(crate) fn return_intent_cell(&self, node: usize, cell: u64, uncleared: bool, abandoned: bool) {
        if let Some(cells) = self.intents.get(node) {
            cells.own_uncleared.fetch_or(u64::from(uncleared && !abandoned) << cell, Ordering::AcqRel);
            cells.uncleared.fetch_or(u64::from(uncleared) << cell, Ordering::AcqRel);
            cells.taken.fetch_and(!(1 << cell), Ordering::AcqRel);
        }
    }

    /// Reads the cells of a new slot, and excludes those in which intents of former owners are declared.
    pub(super) async fn adopt_intent_cells(&self, span: &Span) -> Result<(), PoolError> {
        for (node, cells) in self.pool.nodes().zip(&self.intents) {
            cells.uncleared.store((1 << INTENTS) - 1, Ordering::Release);
            self.reclaim_intent_cells(span.endpoint(), node).await?;
        }
        Ok(())
    }

    /// Reads the cells that were left with an intent, and makes those usable whose intent is cleared by now. Clears
    /// intents of former owners of the slot if their locks are free: an evicted client never takes them again. Tells
    /// whether any cell became usable.
    pub(crate) async fn reclaim_intent_cells(&self, endpoint: &Endpoint, node: NodeId) -> Result<bool, PoolError> {
        let Some(cells) = self.intents.get(node.index()) else { return Ok(false) };
        let uncleared = cells.uncleared.load(Ordering::Acquire) & !cells.taken.load(Ordering::Acquire);
        if uncleared == 0 {
            return Ok(false);
        }
        let span = endpoint.span(OpKind::Maintenance);
        let at = self.pool.geometry(node).intent(node, self.slot, 0);
        let words = span.read(at, (INTENTS * INTENT_LEN) as usize).await?;
        let mut usable = 0;
        for (cell, words) in (0..INTENTS).zip(words.words().chunks_exact(INTENT_LEN as usize / 8)) {
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
        cells.uncleared.fetch_and(!usable, Ordering::AcqRel);
        Ok(usable != 0)
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
