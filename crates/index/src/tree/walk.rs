//! Visiting every node: dumps, audits, recovery, drops. Each node is READ under a pin of its own, by a descent through far
//! memory to its low key.

use super::descend::{Detours, Separator};
use super::fence::Fence;
use super::node::{DEAD, Header, Node, magic};
use super::retry::{Retry, Step, Trouble};
use super::skeleton::{Leaves, Tree, Unread};
use crate::IndexError;
use crate::audit::{Damage, Findings};
use crate::block::UNIT;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::recovery::recover_lock;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use std::collections::HashSet;

/// A node of a level, and where the next one begins.
pub(super) struct Visited<'s, N> {
    pub(super) pin: Pin<'s>,
    /// The node, or why it cannot be read.
    pub(super) node: Result<N, Damage>,
    pub(super) missing: Vec<Separator>,
    /// Low key of the next node; `None` if this one is the last.
    pub(super) next: Option<Vec<u8>>,
}

impl<'s, N> Visited<'s, N> {
    fn map<M>(self, to: impl FnOnce(N) -> M) -> Visited<'s, M> {
        Visited { pin: self.pin, node: self.node.map(to), missing: self.missing, next: self.next }
    }
}

/// A node of any level.
pub(super) enum Any<L> {
    Inner(Node),
    Leaf(L),
}

impl<L: Header> Header for Any<L> {
    fn at(&self) -> RemotePtr {
        match self {
            Any::Inner(node) => node.at(),
            Any::Leaf(leaf) => leaf.at(),
        }
    }
    fn word(&self, index: usize) -> u64 {
        match self {
            Any::Inner(node) => node.word(index),
            Any::Leaf(leaf) => leaf.word(index),
        }
    }
}

impl Tree {
    /// READs the node of this level that a key belongs to. A damaged node is skipped as far as its parent knows it. `None`: the
    /// tree has become lower, and has no such level.
    pub(super) async fn visit_node<L: Leaves>(
        &self,
        leaves: &L,
        kind: OpKind,
        key: &[u8],
        level: u8,
    ) -> Result<Option<Visited<'_, Any<L::Leaf>>>, IndexError> {
        if level == 0 {
            return Ok(Some(self.visit_leaf(leaves, kind, key).await?.map(Any::Leaf)));
        }
        let read = async |span: &Span, at| self.read_node(span, at, (self.inner, level)).await;
        Ok(self.visit(leaves, kind, (key, level), read).await?.map(|visited| visited.map(Any::Inner)))
    }

    /// READs the leaf that a key belongs to, as [`visit_node`](Self::visit_node) does.
    pub(super) async fn visit_leaf<L: Leaves>(
        &self,
        leaves: &L,
        kind: OpKind,
        key: &[u8],
    ) -> Result<Visited<'_, L::Leaf>, IndexError> {
        let read = async |span: &Span, at| self.read_leaf_open(leaves, span, at).await;
        let visited = self.visit(leaves, kind, (key, 0), read).await?;
        visited.ok_or_else(|| IndexError::corrupt(self.root, "a tree has no leaves"))
    }

    async fn visit<N: Header>(
        &self,
        leaves: &impl Leaves,
        kind: OpKind,
        (key, level): (&[u8], u8),
        read: impl AsyncFn(&Span, RemotePtr) -> Result<Result<N, Unread>, IndexError>,
    ) -> Result<Option<Visited<'_, N>>, IndexError> {
        let mut retry = Retry::fresh();
        loop {
            let pin = self.session.pin(self.session.span(kind))?;
            let (mut missing, mut bound, mut at) = (Vec::new(), None, self.root);
            let attempt = async {
                let found = match self.descend(pin.span(), retry.goal(key), level, true, &mut missing).await? {
                    Ok(found) => found,
                    Err(trouble) => return Ok(Err(trouble)),
                };
                bound = found.range().and_then(|(_, high)| high).map(|high| high.to_vec());
                at = found.at;
                let read = async |at| read(pin.span(), at).await;
                let node = match self.node_of(pin.span(), &found, key, None, &mut missing, read).await? {
                    Ok(node) => node,
                    Err(trouble) => return Ok(Err(trouble)),
                };
                let next = self.fence_key(pin.span(), node.high()).await?;
                Ok(Ok((node, next)))
            };
            let attempt: Step<(N, Option<Vec<u8>>)> = attempt.await;
            let trouble = match attempt {
                Ok(Ok((node, next))) => return Ok(Some(Visited { pin, node: Ok(node), missing, next })),
                Ok(Err(Trouble::NoLevel)) => {
                    mark!("tree: the level of a walk is there no more");
                    return Ok(None);
                }
                Ok(Err(trouble)) => Ok(trouble),
                Err(error) => Err(error),
            };
            let settled = match trouble {
                Ok(trouble) => {
                    drop(pin);
                    self.settle(leaves, &mut retry, trouble).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = settled {
                let node = Err(Damage::of(error, at)?);
                let pin = self.session.pin(self.session.span(kind))?;
                return Ok(Some(Visited { pin, node, missing, next: bound }));
            }
        }
    }

    /// Calls `each` for every node, the root first, level by level. Levels that the root takes over meanwhile are left out.
    pub(super) async fn each_node<L: Leaves>(
        &self,
        leaves: &L,
        kind: OpKind,
        mut each: impl AsyncFnMut(u8, Visited<'_, Any<L::Leaf>>) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let root = self.visit_root(leaves, kind).await?.map(Any::Inner);
        let height = match &root.node {
            Ok(root) => root.level(),
            Err(_) => 0,
        };
        let readable = root.node.is_ok();
        each(height, root).await?;
        for level in (0..height).rev().take_while(|_| readable) {
            let mut next = Some(Vec::new());
            while let Some(from) = next {
                let Some(visited) = self.visit_node(leaves, kind, &from, level).await? else { break };
                // Every step goes to a larger key: no walk is endless.
                next = visited.next.clone().filter(|next| *next > from);
                each(level, visited).await?;
            }
        }
        Ok(())
    }

    async fn visit_root(&self, leaves: &impl Leaves, kind: OpKind) -> Result<Visited<'_, Node>, IndexError> {
        let mut retry = Retry::fresh();
        loop {
            let pin = self.session.pin(self.session.span(kind))?;
            let node = self.read_once(pin.span(), self.root, self.inner).await?;
            if self.is_sound(&node) {
                return Ok(Visited { pin, node: Ok(node), missing: Vec::new(), next: None });
            }
            drop(pin);
            if let Err(error) = self.settle(leaves, &mut retry, Trouble::UnsoundInner(self.root)).await {
                let node = Err(Damage::of(error, self.root)?);
                let pin = self.session.pin(self.session.span(kind))?;
                return Ok(Visited { pin, node, missing: Vec::new(), next: None });
            }
        }
    }

    /// Releases the locks that crashed clients hold, adds missing separators, and removes those of dead nodes; returns the
    /// number of repairs, and of the nodes that it could not read.
    pub(super) async fn recover_tree(&self, leaves: &impl Leaves) -> Result<(u64, u64), IndexError> {
        let (mut held, mut missing, mut dead, mut unread) = (Vec::new(), Vec::new(), Vec::new(), 0);
        self.check_dropped().await?;
        self.each_node(leaves, OpKind::Maintenance, async |level, visited| {
            missing.extend(visited.missing);
            let Ok(node) = visited.node else {
                unread += 1;
                return Ok(());
            };
            if node.is_locked() {
                held.push(node.at());
            }
            if let Any::Inner(node) = node {
                for slot in node.used() {
                    let child = node.separator(slot);
                    if read_word(visited.pin.span(), child.child()).await? == DEAD {
                        let low =
                            self.fence_key(visited.pin.span(), self.low_of(visited.pin.span(), child.child()).await?);
                        dead.push((child.child(), level - 1, low.await?.unwrap_or_default()));
                    }
                }
            }
            Ok(())
        })
        .await?;
        let mut recovered = 0;
        for at in held {
            // The node may have been removed since, and its memory have another use.
            let pin = async || {
                let pin = self.pin(self.maintenance()).await?;
                Ok((read_word(pin.span(), at).await? == magic(self.tag, at) | 1).then_some(pin))
            };
            let attempt = async |pin: &Pin<'_>| self.recover_node(leaves, pin, at).await;
            recovered += recover_lock(&self.session, self.lock_of(at), pin, attempt).await?;
        }
        for (at, level, low) in dead {
            recovered +=
                u64::from(matches!(self.remove_dead(leaves, (at, level, &low), &Detours::default()).await?, Ok(true)));
        }
        Ok((recovered + self.add_separators(leaves, missing).await?, unread))
    }

    /// Records every node in an audit; `leaf` does what is to be done with a leaf.
    pub(super) async fn audit_tree<L: Leaves>(
        &self,
        leaves: &L,
        findings: &mut Findings<'_>,
        mut leaf: impl AsyncFnMut(&mut Findings<'_>, &Pin<'_>, (L::Leaf, Option<Vec<u8>>)) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        findings.reach(self.anchor, 64, "an anchor");
        let (mut nodes, mut separators, mut seen) = (0, 0, HashSet::new());
        let mut children: Vec<(RemotePtr, u8, Fence)> = Vec::new();
        self.each_node(leaves, OpKind::Scan, async |level, visited| {
            let node = match visited.node {
                Ok(node) => node,
                Err(damage) => return findings.damage(damage),
            };
            nodes += 1;
            seen.insert(node.at());
            self.reach_node(findings, &node, self.node_len(leaves, level));
            if findings.alone && node.is_locked() {
                findings.problem(format!("the node at {} is locked, and no client is there to release it", node.at()));
            }
            let node = match node {
                Any::Inner(node) => node,
                Any::Leaf(node) => return leaf(findings, &visited.pin, (node, visited.next)).await,
            };
            separators += node.count() as u64;
            children.extend(node.used().map(|slot| {
                let child = node.separator(slot);
                (child.child(), level - 1, child)
            }));
            Ok(())
        })
        .await?;
        let mut dead = 0;
        for (at, level, separator) in children {
            // A dead node that its parent still points to.
            if seen.insert(at) {
                dead += 1;
                findings.reach(at, self.node_len(leaves, level) as u64, "a dead node");
                if let Some((block, units)) = separator.block() {
                    findings.reach(block, units * UNIT as u64, "the low key of a dead node");
                }
            }
        }
        findings.count("nodes", nodes);
        findings.count("dead_nodes", dead);
        // Every node but the root has a separator.
        findings.count("missing_separators", (nodes + dead).saturating_sub(separators + 1));
        Ok(())
    }

    fn reach_node(&self, findings: &mut Findings<'_>, node: &impl Header, len: usize) {
        findings.reach(node.at(), len as u64, "a node");
        if let Some((block, units)) = node.low().block() {
            findings.reach(block, units * UNIT as u64, "the low key of a node");
        }
    }

    /// Frees every node of an index that has been marked as dropped, when no client can use it any more; `leaf` frees what
    /// a leaf points to. What damage hides is left to the pool's reclamation.
    pub(super) async fn free_tree<L: Leaves>(
        &self,
        leaves: &L,
        span: &Span,
        mut leaf: impl AsyncFnMut(&L::Leaf) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        self.dropping.set(true);
        let (mut objects, mut seen, mut children) = (Vec::new(), HashSet::new(), Vec::new());
        self.each_node(leaves, OpKind::Maintenance, async |level, visited| {
            let Ok(node) = visited.node else { return Ok(()) };
            // The walk comes to a node again where it undoes a split that a crashed client has begun.
            if !seen.insert(node.at()) {
                return Ok(());
            }
            objects.push((node.at(), self.node_len(leaves, level) as u64));
            objects.extend(node.low().block().map(|(block, units)| (block, units * UNIT as u64)));
            let node = match node {
                Any::Inner(node) => node,
                Any::Leaf(node) => return leaf(&node).await,
            };
            children.extend(node.used().map(|slot| (node.separator(slot), level - 1)));
            Ok(())
        })
        .await?;
        for (child, level) in children {
            // A dead node that its parent still points to: its entries are those of the left neighbour.
            if seen.insert(child.child()) {
                objects.push((child.child(), self.node_len(leaves, level) as u64));
                objects.extend(child.block().map(|(block, units)| (block, units * UNIT as u64)));
            }
        }
        for (ptr, len) in objects {
            // No checksum is right any more: a client that has the index open finds nothing.
            let mut zeros = self.session.endpoint().buf(len as usize);
            zeros.words_mut().fill(0);
            span.write(ptr, zeros).await?;
            self.session.free(span, ptr, len).await?;
            if self.session.maintenance_due() {
                self.session.maintain().await?;
            }
        }
        self.cache.clear();
        span.write(self.anchor, self.session.endpoint().buf_from_words(&[0; 8])).await?;
        Ok(self.session.free(span, self.anchor, 64).await?)
    }
}
