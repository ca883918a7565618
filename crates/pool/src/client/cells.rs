//! A client's intent cells: the verbs that find out which of them it may use.
//!
//! Invariant: a cell that was left with an intent is not used again until the intent is cleared (I3 in
//! [`intent`](crate::intent)), because the lock that it names may still be held.

use super::Client;
use super::node_cells::NodeCells;
use crate::intent_record::{Lock, cleared, generation_of, is_declared};
use crate::layout::{INTENT_LEN, first_word};
use crate::lease::GENERATION_MASK;
use crate::{PoolError, mark};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr, Span};

impl Client {
    /// Its cells on a node.
    pub(crate) fn cells(&self, node: NodeId) -> Result<&NodeCells, PoolError> {
        self.intents.get(node.index()).ok_or(PoolError::Fabric(FabricError::NoSuchNode(node)))
    }

    /// Reads the cells of a new slot, and excludes those in which intents of former owners are declared.
    pub(super) async fn adopt_intent_cells(&self, span: &Span) -> Result<(), PoolError> {
        for (node, cells) in self.pool.nodes().zip(&self.intents) {
            cells.exclude_all();
            self.reclaim_intent_cells(span.endpoint(), node).await?;
        }
        Ok(())
    }

    /// Is there a cell on each node that an operation can take?
    pub(super) fn can_declare(&self) -> bool {
        self.intents.iter().all(|cells| cells.left_uncleared() != cells.all())
    }

    /// Reads the cells that were left with an intent, and makes those usable whose intent is cleared by now. Clears
    /// intents of former owners of the slot if their locks are free: an evicted client never takes them again.
    pub(crate) async fn reclaim_intent_cells(&self, endpoint: &Endpoint, node: NodeId) -> Result<(), PoolError> {
        let cells = self.cells(node)?;
        let uncleared = cells.left_uncleared();
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
        cells.clear(usable);
        Ok(())
    }

    /// Returns whether the verbs that clear an intent of an ended operation may still be in flight: no operation waits for
    /// them ([`IntentTransfer::clear_detached`](crate::intent::IntentTransfer::clear_detached)). For a client without
    /// operations: one in progress has a cell as well.
    pub(super) fn has_cells_in_use(&self) -> bool {
        self.intents.iter().any(NodeCells::any_taken)
    }

    /// Returns whether an ended operation of this client left an intent that was neither cleared nor abandoned.
    pub(crate) fn has_uncleared_intents(&self) -> bool {
        self.intents.iter().any(NodeCells::any_own_uncleared)
    }
}
