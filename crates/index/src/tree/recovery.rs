//! Recovery of a node whose lock a crashed client holds, and the steps of a merge that it has to finish or undo.
//!
//! Invariant: what a crashed client has left is derived from the one word that commits a change (W1), in this order: right
//! sibling, high key, used slots, checksum. See the lemma on crashes in `docs/protocols/tree.md`.

use super::fence::Fence;
use super::node::{DEAD, HIGH, Header, Node, SIBLING, magic};
use super::skeleton::{Edit, Leaves, Slots, Tree, sorted_keys};
use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::recovery::{HeldLock, claim_and_recover};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::Pin;

/// First word of the intent of a client that takes a lock over.
const TAKE_OVER: u64 = 2;

impl Tree {
    /// Takes the lock of a node over if its holder has crashed, and finishes what the holder had begun. Returns the lock
    /// if its holder may be alive.
    pub(super) async fn recover_node(
        &self,
        leaves: &impl Leaves,
        pin: &Pin<'_>,
        at: RemotePtr,
    ) -> Result<Option<HeldLock>, IndexError> {
        let word = read_word(pin.span(), at).await?;
        if word != magic(self.tag, at) | 1 {
            return Ok(None);
        }
        let what = [TAKE_OVER, 0, 0, 0];
        claim_and_recover(pin, self.uid, self.lock_of(at), None, what, async |_, cell| {
            mark!("tree: lock of a crashed client was taken over");
            let edit = match self.read_head(pin.span(), at).await?.level() {
                0 => leaves.restore_leaf(pin, at).await?,
                level => self.restore_node(self, pin, at, level).await?,
            };
            let mut batch = pin.span().batch();
            edit.post(&mut batch, at);
            self.add_release(&mut batch, at);
            cell.clear(&mut batch);
            batch.post().await?;
            Ok(())
        })
        .await
    }

    /// Derives a whole node from what a crashed client has left, under its lock: the right sibling is as it was
    /// committed (W1), the high key is the sibling's low key (B1), and entries outside of the range belong to others. If
    /// the right sibling is dead, the merge is finished: the entries fit, as they did for the crashed client.
    pub(super) async fn restore_node(
        &self,
        slots: &impl Slots,
        pin: &Pin<'_>,
        at: RemotePtr,
        level: u8,
    ) -> Result<Edit, IndexError> {
        let span = pin.span();
        let mut node = self.read_once(span, at, slots.layout()).await?;
        let mut dead = None;
        let high = if node.sibling().is_null() {
            Fence::INFINITE
        } else {
            let right = self.read_once(span, node.sibling(), slots.layout()).await?;
            let low = right.low();
            if right.is_dead() {
                dead = Some(right);
            }
            low
        };
        node.set_fence(HIGH, high);
        self.keep_own(slots, span, &mut node, level).await?;
        let mut edit = Edit::default();
        edit.put_used(&node);
        edit.put(&node, HIGH, 2);
        if let Some(right) = dead {
            mark!("tree: merge of a crashed client was finished");
            if !absorb(&mut node, &right, &mut edit) {
                self.revive(span, right.at).await?;
            }
        }
        if !self.shrink_on(span, &mut node, &mut edit).await?
            && at == self.root
            && let Some(child) =
                node.used().next().map(|slot| node.separator(slot).child()).filter(|_| node.count() == 1)
            && read_word(span, child).await? == DEAD
        {
            self.revive(span, child).await?;
        }
        edit.seal(&mut node, self.tag);
        Ok(edit)
    }

    /// Drops the entries of a node that lie outside of its range, have a child of another level, or are there twice.
    async fn keep_own(&self, slots: &impl Slots, span: &Span, node: &mut Node, level: u8) -> Result<(), IndexError> {
        if level > 0 {
            let wrong: Vec<_> = node.used().filter(|slot| node.separator(*slot).child_level() + 1 != level).collect();
            wrong.into_iter().for_each(|slot| node.set_used(slot, false));
        }
        let low = self.fence_key(span, node.low()).await?.unwrap_or_default();
        let high = self.fence_key(span, node.high()).await?;
        let mut last: Option<Vec<u8>> = None;
        for (slot, key) in sorted_keys(slots, span, node).await? {
            let inside = key >= low && high.as_ref().is_none_or(|high| key < *high);
            if !inside || last.as_ref() == Some(&key) {
                node.set_used(slot, false);
            }
            last = Some(key);
        }
        Ok(())
    }

    /// Undoes a freeze, under the lock of the left sibling, which has not absorbed the node.
    pub(super) async fn revive(&self, span: &Span, at: RemotePtr) -> Result<(), IndexError> {
        mark!("tree: merge was given up");
        span.cas(at, DEAD, magic(self.tag, at)).await?;
        Ok(())
    }
}

/// Moves the entries of a dead right sibling into its left sibling, whose lock is held; false if they do not fit. They are
/// copied, then used, and do not count yet, because they lie beyond the high key; the word of the right sibling commits
/// the merge.
pub(super) fn absorb(left: &mut Node, right: &Node, edit: &mut Edit) -> bool {
    let vacant: Vec<_> = left.vacant().collect();
    if vacant.len() < right.count() {
        return false;
    }
    let filled: Vec<_> = right.used().zip(vacant).collect();
    for (from, to) in &filled {
        left.fill(*to, right.slot(*from));
        left.set_inline(*to, right.is_inline(*from));
        edit.put_slot(left, *to);
    }
    edit.put_inline(left);
    filled.iter().for_each(|(_, to)| left.set_used(*to, true));
    edit.put_used(left);
    left.set(SIBLING, right.word(SIBLING));
    left.set_fence(HIGH, right.high());
    edit.put_range(left);
    true
}
