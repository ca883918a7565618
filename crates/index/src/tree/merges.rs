//! Merges, and a root that shrinks.
//!
//! ```text
//! merge(L,R)  under the lock of L, whose right sibling is R:
//!             [CAS R.lock free -> dead, READ R]
//!             [WRITE R's entries into L, WRITE L.used, WRITE L.sibling = R.sibling (commit) and L.high,
//!              WRITE L.checksum, release L]
//!             then, one level up: remove R's separator, and retire R
//! shrink      under the root's lock: freeze the only child, take its entries over, WRITE level (commit)
//! ```
//!
//! Invariant: a merge begins only if the parent names both nodes, so the separator of the right one is there (B4).

use super::descend::Detours;
use super::edit::Edit;
use super::faults::{Fault, planted};
use super::inner::Side;
use super::node::{DEAD, HIGH, Header, Node, SIBLING, sibling_word};
use super::separators::Absorbed;
use super::skeleton::{Leaves, Locked, Merged, Slots, Tree};
use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use farindex_fabric::{OpKind, RemotePtr, Span, cold};
use farindex_pool::Pin;

impl Tree {
    /// Merges the node of this level that the key belongs to with a neighbour of the same parent, if both fit well into
    /// one node; returns whether it did. Troubles are left to the next client.
    pub(super) async fn merge(&self, leaves: &impl Leaves, level: u8, key: &[u8]) -> Result<bool, IndexError> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        let Ok(found) = self.descend(span, (key, Side::At), level, true, &mut Vec::new()).await? else {
            return Ok(false);
        };
        let Some((parent, i)) = &found.parent else { return Ok(false) };
        let i = if i + 1 < parent.len() { Some(*i) } else { i.checked_sub(1) };
        let Some(i) = i else {
            // An only child: its parent first, or the root, which is no node's child.
            let at = parent.at;
            drop(pin);
            if at != self.root {
                return cold(self.merge(leaves, level + 1, key)).await;
            }
            self.shrink().await?;
            return Ok(false);
        };
        let (left, right) = (parent.child(i), parent.child(i + 1));
        let merged = match level {
            0 => leaves.merge_leaves(&pin, left, right).await?,
            _ => self.merge_nodes(self, &pin, (left, right), level).await?,
        };
        match merged {
            Merged::No => Ok(false),
            Merged::NotNeighbours => {
                // A dead node may stand between them whose separator a crashed client has left.
                if read_word(span, right).await? != DEAD {
                    return Ok(false);
                }
                let low = self.fence_key(span, self.low_of(span, right).await?).await?.unwrap_or_default();
                drop(pin);
                Ok(matches!(self.remove_dead(leaves, (right, level, &low), &Detours::default()).await?, Ok(true)))
            }
            Merged::Yes(low) => {
                mark!("tree: nodes were merged");
                if planted(Fault::RetireEarly) {
                    pin.retire(right, self.node_len(leaves, level) as u64);
                }
                self.cache.remove(left);
                self.cache.remove(right);
                let low = self.fence_key(span, low).await?.unwrap_or_default();
                // What stands in the way is left to the next client. This pin is held meanwhile: if another client retires the
                // dead node, its memory does not become another node before that is seen.
                let _ =
                    self.remove_separator(leaves, (right, level, &low), Absorbed::Known, Detours::default()).await?;
                drop(pin);
                Ok(true)
            }
        }
    }

    /// Merges two whole nodes.
    pub(super) async fn merge_nodes(
        &self,
        slots: &impl Slots,
        pin: &Pin<'_>,
        (left, right): (RemotePtr, RemotePtr),
        level: u8,
    ) -> Result<Merged, IndexError> {
        let (span, shape) = (pin.span(), (slots.layout(), level));
        let Ok(locked) = self.lock(pin, left, shape, |_| {}).await? else { return Ok(Merged::No) };
        let frozen = async {
            let (node, span_of) = (&locked.node, locked.node.layout.span);
            // A hint: it may change until it is frozen.
            let count =
                if node.sibling() == right { self.read_once(span, right, node.layout).await?.count() } else { span_of };
            let small = node.count() + count <= span_of - span_of / 4;
            if small { self.freeze(span, right, shape).await } else { Ok(None) }
        };
        let frozen = frozen.await;
        let (Locked { mut node, cell }, dead) = self.or_release(span, locked, frozen).await?;
        let neighbours = node.sibling() == right;
        let mut edit = Edit::default();
        let Some(dead) = dead else {
            self.release(span, Locked { node, cell }, edit).await?;
            return Ok(if neighbours { Merged::No } else { Merged::NotNeighbours });
        };
        if !absorb(&mut node, &dead, &mut edit) {
            self.revive(span, right).await?;
            self.release(span, Locked { node, cell }, Edit::default()).await?;
            return Ok(Merged::No);
        }
        edit.seal(&mut node, self.tag);
        self.release(span, Locked { node, cell }, edit).await?;
        Ok(Merged::Yes(dead.low()))
    }

    /// Merges neighbours on every level as far as they fit, and lowers the root; returns the number of merges. For an
    /// index of which much was removed by clients that had no time for it, or crashed.
    pub(super) async fn compact(&self, leaves: &impl Leaves) -> Result<u64, IndexError> {
        let mut merged = 0;
        loop {
            let (before, mut level) = (merged, 0);
            while level < self.height.get() {
                let mut next = Some(Vec::new());
                while let Some(from) = next {
                    while self.merge(leaves, level, &from).await? {
                        merged += 1;
                    }
                    let visited = self.visit_node(leaves, OpKind::Maintenance, &from, level).await?;
                    next = visited.and_then(|visited| visited.next).filter(|next| *next > from);
                }
                level += 1;
            }
            self.shrink().await?;
            if merged == before {
                return Ok(merged);
            }
        }
    }

    /// Lowers the root while it has a single child that is an inner node and fits.
    pub(super) async fn shrink(&self) -> Result<(), IndexError> {
        while self.shrink_once().await? {}
        Ok(())
    }

    async fn shrink_once(&self) -> Result<bool, IndexError> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        let Ok((root, _)) = self.inner(span, (self.root, None), None, true).await? else { return Ok(false) };
        let level = root.level;
        let Ok(locked) = self.lock(&pin, self.root, (self.inner, level), |_| {}).await? else { return Ok(false) };
        let only = if level > 1 && locked.node.count() == 1 { locked.node.used().next() } else { None };
        let child = only.map(|slot| locked.node.separator(slot).child());
        let mut node = self.copy(&locked.node);
        let mut edit = Edit::default();
        let shrunk = async {
            let Some(child) = child else { return Ok(false) };
            if self.freeze(span, child, (self.inner, level - 1)).await?.is_none() {
                return Ok(false);
            }
            let shrunk = self.shrink_on(span, &mut node, &mut edit).await?;
            if !shrunk {
                self.revive(span, child).await?;
            }
            Ok(shrunk)
        };
        let shrunk = shrunk.await;
        let (Locked { cell, .. }, shrunk) = self.or_release(span, locked, shrunk).await?;
        if !shrunk {
            self.release(span, Locked { node, cell }, Edit::default()).await?;
            return Ok(false);
        }
        mark!("tree: root has shrunk");
        edit.seal(&mut node, self.tag);
        self.release(span, Locked { node, cell }, edit).await?;
        self.cache.remove(self.root);
        if let Some(child) = child {
            self.cache.remove(child);
            pin.retire(child, self.inner.len() as u64);
        }
        Ok(true)
    }

    /// Copies a node, to plan a change of it.
    pub(super) fn copy(&self, node: &Node) -> Node {
        let buf = self.session.endpoint().buf_from_words(node.buf.words());
        Node { at: node.at, layout: node.layout, buf }
    }

    /// Takes over the entries of the root's only child, which is dead; false if they do not fit.
    async fn shrink_on(&self, span: &Span, root: &mut Node, edit: &mut Edit) -> Result<bool, IndexError> {
        let level = root.level();
        let mut used = root.used();
        let (Some(only), None) = (used.next(), used.next()) else { return Ok(false) };
        drop(used);
        if root.at != self.root || level < 2 {
            return Ok(false);
        }
        let child = self.read_once(span, root.separator(only).child(), self.inner).await?;
        let vacant: Vec<_> = root.vacant().collect();
        // The root keeps two vacant slots, to grow again.
        if !child.is_dead() || !child.sibling().is_null() || child.count() + 3 > vacant.len() {
            return Ok(false);
        }
        let filled: Vec<_> = child.used().zip(vacant).collect();
        for (from, to) in &filled {
            root.fill(*to, child.slot(*from));
            edit.put_slot(root, *to);
            root.set_used(*to, true);
        }
        edit.put_used(root);
        root.set(SIBLING, sibling_word(level - 1, RemotePtr::NULL));
        edit.put(root, SIBLING, 1);
        root.set_used(only, false);
        edit.put_used(root);
        Ok(true)
    }
}

/// Moves the entries of a dead right sibling into its left sibling, whose lock is held; false if they do not fit. They are
/// copied, then used, and do not count yet, because they lie beyond the high key; the word of the right sibling commits
/// the merge.
fn absorb(left: &mut Node, right: &Node, edit: &mut Edit) -> bool {
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
