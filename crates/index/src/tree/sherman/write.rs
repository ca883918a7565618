//! Writes: what becomes of a leaf under its lock. `change` has the rest.
//!
//! ```text
//! [WRITE intent, CAS lock, READ leaf, WRITE block]                  one round trip
//! [READ blocks that have the key's hash]                            entries with blocks only
//! [WRITE slot, WRITE checksum and bitmap, CAS release, CAS intent]
//! ```
//!
//! A write takes effect when the leaf's checksum is written (W2). One that changes nothing takes effect when it reads the
//! leaf under its lock.

use super::Sherman;
use crate::IndexError;
use crate::marks::mark;
use crate::tree::change::{Change, Done, Present, Puts, Writes, is_time_to_merge};
use crate::tree::descend::Separator;
use crate::tree::edit::{Edit, Steps};
use crate::tree::entries::{place, place_word};
use crate::tree::hand_over::{LeafLocks, TurnOf};
use crate::tree::lookups::LooksUp;
use crate::tree::node::Node;
use crate::tree::retry::Step;
use crate::tree::skeleton::{Locked, Tree};
use crate::write::Wrote;
use farindex_fabric::{Batch, RemotePtr, Span, cold};
use farindex_pool::Pin;

impl Puts for Sherman {
    fn tree(&self) -> &Tree {
        &self.tree
    }
    async fn change(&self, span: Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError> {
        self.change_by_lock(span, key, change).await
    }
}

impl Writes for Sherman {
    type Held = Node;

    fn locks(&self) -> Option<&LeafLocks<Node>> {
        self.locks.as_deref()
    }
    /// All of the leaf.
    fn wish(&self, _: &[u8], _: &Change<'_>) -> usize {
        0
    }
    async fn lock_leaf<'p>(
        &self,
        pin: &Pin<'p>,
        at: RemotePtr,
        _: usize,
        also: impl FnOnce(&mut Batch<'_>),
    ) -> Step<Locked<'p>> {
        self.tree.lock(pin, at, (self.leaf, 0), also).await
    }
    fn take_over(&self, at: RemotePtr, words: Box<[u64]>) -> Node {
        Node { at, layout: self.leaf, buf: self.session.endpoint().buf_from_words(&words) }
    }

    async fn change_locked(
        &self,
        pin: &Pin<'_>,
        locked: Locked<'_>,
        key: &[u8],
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
        turn: TurnOf<'_, Node>,
    ) -> Result<Done, IndexError> {
        let span = pin.span();
        let present = self.find(span, &locked.node, key).await;
        let (locked, present) = self.tree.or_release(span, locked, present).await?;
        if let Some(wrote) = change.refused(present.as_ref()) {
            self.tree.release_to_next(span, locked, Steps::default(), turn).await?;
            return Ok(Done::Wrote { wrote, few: false });
        }
        let mut node = locked;
        let Some(Planned { edit, few }) = self.plan(&mut node.node, key, change, present.as_ref()) else {
            missing.extend(cold(self.tree.split(self, pin, node)).await?);
            return Ok(Done::Split);
        };
        let mut steps = Steps::default();
        steps.write(self.unwritten(key, change));
        steps.edit(node.node.at, edit);
        self.tree.release_to_next(span, node, steps, turn).await?;
        present.iter().for_each(|present| present.retire(pin));
        let wrote = if present.is_some() { Wrote::Updated } else { Wrote::Inserted };
        Ok(Done::Wrote { wrote, few })
    }
}

/// A change of a leaf.
pub(in crate::tree) struct Planned {
    pub(in crate::tree) edit: Edit,
    /// Has the leaf few entries, so that it is [time to merge](is_time_to_merge) it?
    pub(in crate::tree) few: bool,
}

impl Sherman {
    /// Changes a leaf, and returns what is to be written; `None` if it is full.
    pub(in crate::tree) fn plan(
        &self,
        node: &mut Node,
        key: &[u8],
        change: &Change<'_>,
        present: Option<&Present>,
    ) -> Option<Planned> {
        let mut edit = Edit::default();
        match change {
            Change::Remove(_) => {
                if let Some(present) = present {
                    node.set_used(present.slot, false);
                    edit.put_used(node);
                }
            }
            Change::Put { value, block, len, .. } => {
                let inline = *len == 0;
                let words = match (<[u8; 8]>::try_from(key), <[u8; 8]>::try_from(*value)) {
                    (Ok(key), Ok(value)) if inline => (u64::from_le_bytes(key), u64::from_le_bytes(value)),
                    _ => (self.hash(key).bits(), place_word(*block, *len)),
                };
                if let Some(present) = present.filter(|present| node.is_inline(present.slot) == inline) {
                    node.fill(present.slot, words);
                    let (at, len) = node.layout.value_words(present.slot);
                    edit.put(node, at, len);
                } else {
                    let slot = node.vacant().next()?;
                    node.fill(slot, words);
                    edit.put_slot(node, slot);
                    if node.is_inline(slot) != inline {
                        node.set_inline(slot, inline);
                        edit.put_inline(node);
                    }
                    node.set_used(slot, true);
                    if let Some(present) = present {
                        mark!("sherman: entry changed between inline and block");
                        node.set_used(present.slot, false);
                    }
                    edit.put_used(node);
                }
            }
        }
        let few = matches!(change, Change::Remove(_)) && is_time_to_merge(node.count(), self.leaf.span);
        edit.seal(node, self.tree.tag);
        Some(Planned { edit, few })
    }

    /// Finds the entry of a key in a leaf that nobody else changes.
    pub(in crate::tree) async fn find(
        &self,
        span: &Span,
        node: &Node,
        key: &[u8],
    ) -> Result<Option<Present>, IndexError> {
        match self.candidates(node, key) {
            Ok(slot) => Ok(Some(Present::inline(slot, node.slot(slot).1))),
            Err(candidates) => {
                let found = self.block_of(span, &candidates, key).await?;
                Ok(found.map(|(slot, block)| Present::of_block(slot, place(node.slot(slot).1).0, block)))
            }
        }
    }
}
