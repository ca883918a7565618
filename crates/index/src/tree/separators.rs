//! Changing the shape of the tree: splits, merges, separators, and a root that grows and shrinks.
//!
//! ```text
//! split(L)    under the lock of L: allocate R
//!             [WRITE R, WRITE L.sibling = R (commit) and L.high, WRITE L.checksum and L.used, release L]
//!             then, one level up: add R's separator
//! merge(L,R)  under the lock of L, whose right sibling is R:
//!             [CAS R.lock free -> dead, READ R]
//!             [WRITE R's entries into L, WRITE L.used, WRITE L.sibling = R.sibling (commit) and L.high,
//!              WRITE L.checksum, release L]
//!             then, one level up: remove R's separator, and retire R
//! grow        under the root's lock: allocate A and B, which take the root's entries
//!             [WRITE A, WRITE B, WRITE two slots, WRITE used, WRITE level (commit), WRITE checksum and used, release]
//! shrink      under the root's lock: freeze the only child, take its entries over, WRITE level (commit)
//! ```
//!
//! Invariants: a separator is added only while its child is alive, under the lock of the node that gets it. It is removed
//! after the child is dead and absorbed, and the client that removes it retires the child (B4). The first separator of a
//! node stays. A separator that is missing costs a step to the right.

use super::descend::{Found, Separator};
use super::faults::{Fault, planted};
use super::fence::{Fence, INLINE, shortest_separator};
use super::inner::Side;
use super::node::{DEAD, HIGH, Header, Layout, MAX_LEVEL, Node, SIBLING, magic, sibling_word};
use super::skeleton::{Edit, Leaves, Locked, Merged, Retry, Slots, Step, Steps, Tree, Trouble, sorted_keys};
use crate::IndexError;
use crate::block;
use crate::keyhash::KeyHash;
use crate::maintenance::read_word;
use crate::marks::mark;
use farindex_fabric::{Buf, NodeId, OpKind, RemotePtr, Span};
use farindex_pool::{Pin, PoolError};

/// Rounds in which an operation waits for memory before it reports that the pool is full.
const FULL_ROUNDS: u32 = 8;
/// Troubles after which a change of the shape is left to the next client that needs it.
const PATIENCE: u32 = 64;

/// Nodes and blocks that are about to be written and linked.
#[derive(Default)]
pub(super) struct Fresh {
    pub(super) writes: Vec<(RemotePtr, Buf)>,
    /// New nodes, which are dead until they are linked. The first one of a level is the last one here.
    pub(super) unborn: Vec<RemotePtr>,
    allocated: Vec<(RemotePtr, u64)>,
}

impl Tree {
    /// Chooses the memory node of a new node or block.
    pub(super) fn place(&self) -> NodeId {
        let nodes = self.session.pool().nodes().len().max(1);
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        NodeId::new((turn as usize % nodes) as u16)
    }

    /// Waits for memory, unless the operation has done so too often; the error is that of an allocation.
    pub(super) async fn wait_for_room(&self, rounds: &mut u32, error: IndexError) -> Result<(), IndexError> {
        match error {
            IndexError::Pool(PoolError::Full { wanted, .. }) if *rounds < FULL_ROUNDS => {
                *rounds += 1;
                let span = self.maintenance();
                let place = self.place();
                let room = self.session.alloc(&span, place, wanted).await?;
                Ok(self.session.free(&span, room, wanted).await?)
            }
            error => Err(error),
        }
    }

    /// Allocates a node of `len` bytes, and what its low key needs if it is long; returns the node's address and the
    /// reference to the key.
    pub(super) async fn allocate_node(
        &self,
        span: &Span,
        len: usize,
        low: &[u8],
        fresh: &mut Fresh,
    ) -> Result<(RemotePtr, Fence), IndexError> {
        let session = &self.session;
        let place = self.place();
        let at = session.alloc_now(span, place, len as u64).await?;
        fresh.allocated.push((at, len as u64));
        let mut key_block = RemotePtr::NULL;
        if low.len() > INLINE {
            let buf = block::encode(session.endpoint(), KeyHash::from_bits(self.tag), low, &[]);
            key_block = session.alloc_now(span, place, buf.len() as u64).await?;
            fresh.allocated.push((key_block, buf.len() as u64));
            fresh.writes.push((key_block, buf));
        }
        Ok((at, Fence::new(low, key_block)))
    }

    /// Allocates a whole node with this low key.
    async fn new_node(
        &self,
        span: &Span,
        (layout, level): (Layout, u8),
        low: &[u8],
        fresh: &mut Fresh,
    ) -> Result<Node, IndexError> {
        let (at, low) = self.allocate_node(span, layout.len(), low, fresh).await?;
        let buf = self.session.endpoint().buf(layout.len());
        let mut node = Node::new(at, layout, buf, (self.tag, level), low);
        // Nobody may lock it before it is linked: an old copy of a parent may name its address, and if this client
        // crashes first, it is never linked.
        if !planted(Fault::BornFree) {
            node.set(0, DEAD);
            fresh.unborn.push(at);
        }
        Ok(node)
    }

    /// Gives back what was allocated for a change that was not made.
    pub(super) fn discard(&self, fresh: &Fresh) {
        fresh.allocated.iter().for_each(|(ptr, len)| self.session.discard(*ptr, *len));
    }

    /// Moves the entries from `from` on, in the order of their keys, to a new node.
    fn take(&self, node: &Node, keys: &[(usize, Vec<u8>)], into: &mut Node) {
        for (to, (slot, _)) in keys.iter().enumerate() {
            into.fill(to, node.slot(*slot));
            into.set_inline(to, node.is_inline(*slot));
            into.set_used(to, true);
        }
    }

    /// Splits a node whose lock is held, releases it, and returns the separator that is missing now. The root grows
    /// instead.
    pub(super) async fn split(
        &self,
        slots: &impl Slots,
        pin: &Pin<'_>,
        locked: Locked<'_>,
    ) -> Result<Option<Separator>, IndexError> {
        let span = pin.span();
        let mut fresh = Fresh::default();
        let planned = self.plan_split(slots, span, &locked.node, &mut fresh).await;
        let (mut node, edit, separator) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                self.discard(&fresh);
                if !matches!(error, IndexError::Fabric(_)) {
                    self.release(span, locked, Edit::default()).await?;
                }
                return Err(error);
            }
        };
        let mut edit = edit;
        edit.seal(&mut node, self.tag);
        let mut steps = Steps::default();
        if planted(Fault::CommitFirst) {
            steps.edit(node.at, std::mem::take(&mut edit));
        }
        steps.write(fresh.writes);
        steps.edit(node.at, edit);
        fresh.unborn.into_iter().for_each(|at| steps.revive(at));
        self.carry_out(span, locked, steps).await?;
        self.cache.remove(node.at);
        Ok(separator)
    }

    async fn plan_split(
        &self,
        slots: &impl Slots,
        span: &Span,
        old: &Node,
        fresh: &mut Fresh,
    ) -> Result<(Node, Edit, Option<Separator>), IndexError> {
        let keys = sorted_keys(slots, span, old).await?;
        let (level, middle) = (old.level(), keys.len() / 2);
        let (left, right) = keys.split_at(middle);
        let (Some((_, last)), Some((_, first))) = (left.last(), right.first()) else {
            return Err(IndexError::corrupt(old.at, "a full node has less than two entries"));
        };
        let key = if level == 0 { shortest_separator(last, first) } else { first };
        let mut node = self.copy(old);
        let mut edit = Edit::default();
        let shape = (slots.layout(), level);
        let mut upper = self.new_node(span, shape, key, fresh).await?;
        self.take(old, right, &mut upper);
        if old.at == self.root {
            if level >= MAX_LEVEL {
                return Err(IndexError::corrupt(old.at, "the tree has too many levels"));
            }
            mark!("tree: root has grown");
            let mut lower = self.new_node(span, shape, &[], fresh).await?;
            self.take(old, left, &mut lower);
            lower.set(SIBLING, sibling_word(level, upper.at));
            lower.set_fence(HIGH, upper.low());
            let vacant: Vec<_> = node.vacant().take(2).collect();
            for (slot, child) in vacant.iter().zip([&lower, &upper]) {
                let separator = child.low().separator(child.at, level);
                node.fill(*slot, (separator.word, separator.tag));
                edit.put_slot(&node, *slot);
                node.set_used(*slot, true);
            }
            edit.put_used(&node);
            node.set(SIBLING, sibling_word(level + 1, RemotePtr::NULL));
            edit.put(&node, SIBLING, 1);
            keys.iter().for_each(|(slot, _)| node.set_used(*slot, false));
            edit.put_used(&node);
            for child in [&mut lower, &mut upper] {
                child.seal(self.tag);
            }
            fresh.writes.extend([(lower.at, lower.buf), (upper.at, upper.buf)]);
            return Ok((node, edit, None));
        }
        mark!("tree: node was split");
        upper.set(SIBLING, old.word(SIBLING));
        upper.set_fence(HIGH, old.high());
        upper.seal(self.tag);
        node.set(SIBLING, sibling_word(level, upper.at));
        node.set_fence(HIGH, upper.low());
        edit.put_range(&node);
        right.iter().for_each(|(slot, _)| node.set_used(*slot, false));
        edit.put_used(&node);
        let separator = Separator { level: level + 1, child: upper.at, key: key.to_vec() };
        fresh.writes.push((upper.at, upper.buf));
        Ok((node, edit, Some(separator)))
    }

    /// Adds separators to inner nodes; returns how many were missing. One that cannot be added is left to the next
    /// writer that misses it: only an error after which nothing else can be done is returned.
    pub(super) async fn add_separators(
        &self,
        leaves: &impl Leaves,
        mut missing: Vec<Separator>,
    ) -> Result<u64, IndexError> {
        let mut added = 0;
        while let Some(separator) = missing.pop() {
            match self.add_separator(leaves, &separator, &mut missing).await {
                Ok(true) => added += 1,
                Ok(false) => {}
                Err(error @ (IndexError::Fabric(_) | IndexError::Dropped | IndexError::Pool(PoolError::LeaseLost))) => {
                    return Err(error);
                }
                Err(_) => {
                    mark!("tree: separator left out");
                }
            }
        }
        Ok(added)
    }

    async fn add_separator(
        &self,
        leaves: &impl Leaves,
        separator: &Separator,
        missing: &mut Vec<Separator>,
    ) -> Result<bool, IndexError> {
        let (mut retry, mut full) = (Retry::default(), 0);
        for _ in 0..PATIENCE {
            let pin = self.session.pin(self.maintenance())?;
            let round = self.add_once(&pin, separator, &retry, missing).await;
            drop(pin);
            match round {
                Ok(Ok(Some(added))) => return Ok(added),
                Ok(Ok(None)) => {}
                Ok(Err(Trouble::NoLevel)) => return Ok(false),
                Ok(Err(trouble)) => self.settle(leaves, &mut retry, trouble).await?,
                Err(error) => self.wait_for_room(&mut full, error).await?,
            }
        }
        Ok(false)
    }

    /// `None`: the node was split, try again.
    async fn add_once(
        &self,
        pin: &Pin<'_>,
        separator: &Separator,
        retry: &Retry,
        missing: &mut Vec<Separator>,
    ) -> Step<Option<bool>> {
        let (span, Separator { level, child, key }) = (pin.span(), separator);
        let locked = match self.lock_at(pin, key, *level, retry, missing).await? {
            Ok(locked) => locked,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let read = async {
            let present = self.keys(span, &locked.node).await?.iter().any(|(_, own)| own == key);
            // Another node may lie there by now: then it has another low key, or is as good as this one.
            Ok((present, self.read_head(span, *child).await?))
        };
        let read = read.await;
        let (locked, (present, head)) = self.or_release(span, locked, read).await?;
        let alive = (head.word(0) | 1) == magic(self.tag, *child) | 1 || planted(Fault::AddDead);
        let alive = alive && head.low().is(key) && head.level() + 1 == *level;
        if present || !alive {
            self.release(span, locked, Edit::default()).await?;
            return Ok(Ok(Some(false)));
        }
        let spare = if locked.node.at == self.root { 2 } else { 0 };
        let slot = locked.node.vacant().next().filter(|_| locked.node.vacant().count() > spare);
        let Some(slot) = slot else {
            missing.extend(self.split(self, pin, locked).await?);
            return Ok(Ok(None));
        };
        let Locked { mut node, cell } = locked;
        let own = head.low().separator(*child, level - 1);
        let mut edit = Edit::default();
        node.fill(slot, (own.word, own.tag));
        edit.put_slot(&node, slot);
        node.set_used(slot, true);
        edit.put_used(&node);
        edit.seal(&mut node, self.tag);
        let at = node.at;
        self.release(span, Locked { node, cell }, edit).await?;
        self.cache.remove(at);
        Ok(Ok(Some(true)))
    }

    /// Locks the inner node of this level that a key belongs to.
    async fn lock_at<'p>(
        &self,
        pin: &Pin<'p>,
        key: &[u8],
        level: u8,
        retry: &Retry,
        missing: &mut Vec<Separator>,
    ) -> Step<Locked<'p>> {
        let span = pin.span();
        let found = match self.descend(span, retry.goal(key), level, retry.fresh, missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut at = found.at;
        loop {
            let locked = match self.lock(pin, at, (self.inner, level), |_| {}).await? {
                Ok(locked) => locked,
                Err(Trouble::Stale(None)) if at == found.at => return Ok(Err(self.gone(&found))),
                Err(trouble) => return Ok(Err(trouble)),
            };
            let range = if at == found.at { found.range() } else { None };
            let (locked, (low, high)) = self.compare_range(span, locked, key, range).await?;
            if low.is_le() && high.is_gt() {
                return Ok(Ok(locked));
            }
            let next = locked.node.sibling();
            self.release(span, locked, Edit::default()).await?;
            if low.is_gt() || next.is_null() {
                return Ok(Err(found.stale()));
            }
            mark!("tree: moved right to lock");
            at = next;
        }
    }

    /// What it means that no node could be locked where a parent points to.
    pub(super) fn gone(&self, found: &Found) -> Trouble {
        match found.range() {
            Some((low, _)) if !found.cached => Trouble::Dead { at: found.at, level: found.level, low: low.to_vec() },
            _ => found.stale(),
        }
    }

    /// Removes the separator of a dead node, and retires the node. False if that cannot be done now: the separator is its
    /// parent's first one, or gone. `Held` is the left neighbour that has not absorbed the node yet.
    pub(super) async fn remove_dead(&self, leaves: &impl Leaves, at: RemotePtr, level: u8, low: &[u8]) -> Step<bool> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        if read_word(span, at).await? != DEAD {
            return Ok(Ok(true));
        }
        let found = match self.descend(span, (low, Side::Below), level, true, &mut Vec::new()).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut left = found.at;
        while let Some((sibling, high)) = self.right_of(leaves, span, left, level).await? {
            if sibling == at {
                return Ok(Err(Trouble::Held(left)));
            }
            if self.compare(span, high, low, None).await?.is_ge() || sibling.is_null() {
                drop(pin);
                return self.remove_separator(leaves, at, level, low).await;
            }
            left = sibling;
        }
        Ok(Err(Trouble::Unsound(left)))
    }

    async fn remove_separator(&self, leaves: &impl Leaves, at: RemotePtr, level: u8, low: &[u8]) -> Step<bool> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        let retry = Retry::fresh();
        let locked = match self.lock_at(&pin, low, level + 1, &retry, &mut Vec::new()).await? {
            Ok(locked) => locked,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let Locked { mut node, cell } = locked;
        let slot = node.used().find(|slot| node.separator(*slot).child() == at);
        let (Some(slot), false) = (slot, node.low().is(low)) else {
            mark!("tree: separator of a dead node stays");
            self.release(span, Locked { node, cell }, Edit::default()).await?;
            return Ok(Ok(slot.is_none()));
        };
        let mut edit = Edit::default();
        node.set_used(slot, false);
        edit.put_used(&node);
        edit.seal(&mut node, self.tag);
        let dead = node.separator(slot);
        let (parent, count, own_low) = (node.at, node.count(), node.low());
        self.release(span, Locked { node, cell }, edit).await?;
        self.cache.remove(parent);
        self.cache.remove(at);
        mark!("tree: separator of a dead node was removed");
        if let Some((block, units)) = dead.block() {
            pin.retire(block, units * block::UNIT as u64);
        }
        if !planted(Fault::RetireEarly) {
            pin.retire(at, self.node_len(leaves, level) as u64);
        }
        let own_low = self.fence_key(span, own_low).await?.unwrap_or_default();
        drop(pin);
        if parent == self.root {
            if count == 1 {
                self.shrink().await?;
            }
        } else if count <= self.inner.span / 4 {
            Box::pin(self.merge(leaves, level + 1, &own_low)).await?;
        }
        Ok(Ok(true))
    }

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
                return Box::pin(self.merge(leaves, level + 1, key)).await;
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
                Ok(matches!(self.remove_dead(leaves, right, level, &low).await?, Ok(true)))
            }
            Merged::Yes(low) => {
                mark!("tree: nodes were merged");
                if planted(Fault::RetireEarly) {
                    pin.retire(right, self.node_len(leaves, level) as u64);
                }
                self.cache.remove(left);
                self.cache.remove(right);
                let low = self.fence_key(span, low).await?.unwrap_or_default();
                drop(pin);
                // What stands in the way is left to the next client.
                let _ = self.remove_separator(leaves, right, level, &low).await?;
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
                    let next_of = self.visit_node(leaves, OpKind::Maintenance, &from, level).await?.next;
                    next = next_of.filter(|next| *next > from);
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
    async fn shrink(&self) -> Result<(), IndexError> {
        while self.shrink_once().await? {}
        Ok(())
    }

    async fn shrink_once(&self) -> Result<bool, IndexError> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        let Ok((root, _)) = self.inner(span, self.root, None, true).await? else { return Ok(false) };
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
    fn copy(&self, node: &Node) -> Node {
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
