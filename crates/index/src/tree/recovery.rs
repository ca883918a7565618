//! Recovery of a node whose lock a crashed client holds, and the steps of a merge that it has to finish or undo.
//!
//! Invariant: what a crashed client has left is derived from the one word that commits a change (W1), in this order: right
//! sibling, high key, used slots, checksum. See the lemma on crashes in `docs/protocols/tree.md`.

use super::edit::Edit;
use super::fence::Fence;
use super::inner::Inner;
use super::node::{DEAD, HIGH, Head, Header, Node, magic};
use super::skeleton::{CHANGE, HEAD_LEN, Leaves, Locked, Slots, Tree, sorted_keys, unsound};
use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::recovery::{HeldLock, acquire, claim_and_recover};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Intent, Pin};

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
        Ok(self.look_at_lock(leaves, pin, at).await?.ok().flatten())
    }

    /// The same; an error is the word, if it is no lock of this index.
    pub(super) async fn look_at_lock(
        &self,
        leaves: &impl Leaves,
        pin: &Pin<'_>,
        at: RemotePtr,
    ) -> Result<Result<Option<HeldLock>, u64>, IndexError> {
        let word = read_word(pin.span(), at).await?;
        if word != magic(self.tag, at) | 1 {
            return Ok(if word == DEAD || word == magic(self.tag, at) { Ok(None) } else { Err(word) });
        }
        let what = [TAKE_OVER, 0, 0, 0];
        claim_and_recover(pin, self.uid, self.lock_of(at), what, async |_, cell| {
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
            cell.cleared();
            Ok(())
        })
        .await
        .map(Ok)
    }

    /// READs a node under its lock, which says for certain whether it is damaged: all changes of those that held the lock
    /// before have taken effect, and nobody else changes it (W1). Returns whether that explains why a lookup could not use
    /// the node: somebody was changing it.
    pub(super) async fn check_under_lock(
        &self,
        leaves: &impl Leaves,
        pin: &Pin<'_>,
        at: RemotePtr,
    ) -> Result<bool, IndexError> {
        let (span, free) = (pin.span(), magic(self.tag, at));
        let cell = pin.session().intent_cell(at.node()).await?;
        let intent = Intent { index: self.uid, lock: self.lock_of(at), what: [CHANGE, 0, 0, 0] };
        let taken = acquire(span, &cell, &intent, (free, free | 1), |batch| batch.read(at, HEAD_LEN)).await?;
        let node = match taken {
            Ok((mut done, read)) => Head { at, buf: done.buf(read) },
            Err(refused) => return Ok(refused.word == free | 1),
        };
        mark!("tree: node was read under its lock");
        let level = node.level();
        let read = async {
            let words = span.read(at, self.node_len(leaves, level)).await?;
            if level == 0 {
                return Ok(leaves.leaf(span, at, words).is_ok());
            }
            let node = Node { at, layout: self.inner, buf: words };
            Ok(self.is_sound(&node) && Inner::of(span, &node).await?.is_some())
        };
        let read = read.await;
        let (locked, sound) = self.or_release(span, Locked { node, cell }, read).await?;
        self.release(span, locked, Edit::default()).await?;
        // An inner node is in no state for a moment, but its level may be another one than its parent says.
        if sound { Ok(level == 0) } else { Err(unsound(at)) }
    }

    /// Derives a whole node from what a crashed client has left, under its lock: the right sibling is as it was
    /// committed (W1), the high key is the sibling's low key (B1), and entries outside of the range belong to others. A
    /// right sibling that is dead was frozen for a merge that has not been committed, or is new; it is made free.
    pub(super) async fn restore_node(
        &self,
        slots: &impl Slots,
        pin: &Pin<'_>,
        at: RemotePtr,
        level: u8,
    ) -> Result<Edit, IndexError> {
        let span = pin.span();
        let mut node = self.read_once(span, at, slots.layout()).await?;
        let high = match node.sibling() {
            sibling if sibling.is_null() => Fence::INFINITE,
            sibling => {
                let right = self.read_head(span, sibling).await?;
                if right.is_dead() {
                    self.revive(span, sibling).await?;
                }
                right.low()
            }
        };
        node.set_fence(HIGH, high);
        self.keep_own(slots, span, &mut node, level).await?;
        let mut edit = Edit::default();
        edit.put_used(&node);
        edit.put(&node, HIGH, 2);
        if at == self.root {
            self.revive_children(span, &node).await?;
        }
        edit.seal(&mut node, self.tag);
        Ok(edit)
    }

    /// Makes the root's children free if the first one is dead: then the root was growing or shrinking. Otherwise a dead
    /// child was merged with its left sibling. The first child comes last, so that a crash meanwhile changes nothing.
    pub(super) async fn revive_children(&self, span: &Span, root: &Node) -> Result<(), IndexError> {
        let children = sorted_keys(self, span, root).await?;
        let children: Vec<_> = children.into_iter().map(|(slot, _)| root.separator(slot).child()).collect();
        let Some(first) = children.first() else { return Ok(()) };
        if read_word(span, *first).await? == DEAD {
            for child in children.iter().rev() {
                self.revive(span, *child).await?;
            }
        }
        Ok(())
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

    /// Makes a dead node free, under the lock of the left sibling, which has not absorbed it; or of the root, its parent.
    pub(super) async fn revive(&self, span: &Span, at: RemotePtr) -> Result<(), IndexError> {
        mark!("tree: dead node was revived");
        span.cas(at, DEAD, magic(self.tag, at)).await?;
        Ok(())
    }
}
