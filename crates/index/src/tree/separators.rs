//! Splits, separators, and a root that grows.
//!
//! ```text
//! split(L)    under the lock of L: allocate R
//!             [WRITE R (dead), WRITE L.sibling = R (commit) and L.high, WRITE L.checksum and L.used,
//!              CAS R.lock dead -> free, release L]
//!             then, one level up: add R's separator
//! grow        under the root's lock: allocate A and B, which take the root's entries
//!             [WRITE A, WRITE B (dead), WRITE two slots, WRITE used, WRITE level (commit), WRITE checksum and used,
//!              CAS B.lock dead -> free, CAS A.lock dead -> free, release]
//! ```
//!
//! Invariants: a separator is added only while its child is alive, under the lock of the node that gets it. It is removed
//! after the child is dead and absorbed, and the client that removes it retires the child (B4). The first separator of a
//! node stays. A separator that is missing costs a step to the right.

use super::descend::{Detours, Found, Goal, Separator};
use super::edit::{Edit, Steps};
use super::faults::{Fault, planted};
use super::fence::{Fence, INLINE, shortest_separator};
use super::inner::Side;
use super::node::{DEAD, HIGH, Header, Layout, MAX_LEVEL, Node, SIBLING, magic, sibling_word};
use super::retry::{Retry, Step, Trouble};
use super::skeleton::{Leaves, Locked, Slots, Tree, WayRight, sorted_keys};
use crate::IndexError;
use crate::block;
use crate::keyhash::KeyHash;
use crate::maintenance::{read_word, wait_for_room};
use crate::marks::mark;
use farindex_fabric::{Buf, NodeId, RemotePtr, Span, cold};
use farindex_pool::{Pin, PoolError};
use std::collections::HashSet;

/// Rounds in which an operation waits for memory before it reports that the pool is full.
const FULL_ROUNDS: u32 = 8;
/// Troubles after which a change of the shape is left to the next client that needs it.
const PATIENCE: u32 = 64;

/// Nodes and blocks that are about to be written and linked.
#[derive(Default)]
pub(super) struct Fresh {
    pub(super) writes: Vec<(RemotePtr, Buf)>,
    /// New nodes, which are dead until they are linked. The first one of a level is the last one here.
    pub(super) unlinked: Vec<RemotePtr>,
    allocated: Vec<(RemotePtr, u64)>,
}

/// Is it known that the left neighbour has absorbed a dead node, by a client that has been pinned since before that?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absorbed {
    Known,
    Unknown,
}

/// A node: its address, its level and its low key.
pub(super) type Place<'a> = (RemotePtr, u8, &'a [u8]);

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
            IndexError::Pool(PoolError::Full { .. }) if *rounds < FULL_ROUNDS => {
                *rounds += 1;
                wait_for_room(&self.session, self.place(), error).await
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
        self.allocate_node_on(span, self.place(), (len, low), fresh).await
    }

    async fn allocate_node_on(
        &self,
        span: &Span,
        place: NodeId,
        (len, low): (usize, &[u8]),
        fresh: &mut Fresh,
    ) -> Result<(RemotePtr, Fence), IndexError> {
        let session = &self.session;
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

    /// Allocates a whole node with this low key, which takes entries of the node at `old` over. In a subtree that lies on one
    /// memory node, that is the place of both, as long as there is room.
    async fn new_node(
        &self,
        span: &Span,
        old: RemotePtr,
        (layout, level): (Layout, u8),
        low: &[u8],
        fresh: &mut Fresh,
    ) -> Result<Node, IndexError> {
        let stays = self.subtree_levels > 0 && level <= self.subtree_levels;
        let place = if stays { old.node() } else { self.place() };
        let before = fresh.allocated.len();
        let allocated = match self.allocate_node_on(span, place, (layout.len(), low), fresh).await {
            Err(IndexError::Pool(PoolError::Full { .. })) if stays => {
                fresh.allocated.drain(before..).for_each(|(ptr, len)| self.session.discard(ptr, len));
                self.allocate_node(span, layout.len(), low, fresh).await?
            }
            allocated => allocated?,
        };
        let (at, low) = allocated;
        let buf = self.session.endpoint().buf(layout.len());
        let mut node = Node::new(at, layout, buf, (self.tag, level), low);
        // Nobody may lock it before it is linked: an old copy of a parent may name its address, and if this client
        // crashes first, it is never linked.
        if !planted(Fault::FreeBeforeLinked) {
            node.set(0, DEAD);
            fresh.unlinked.push(at);
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
        self.split_at(slots, pin, locked, None).await
    }

    /// Splits a node as [`split`](Self::split) does, at a key within its range, or in the middle.
    pub(super) async fn split_at(
        &self,
        slots: &impl Slots,
        pin: &Pin<'_>,
        locked: Locked<'_>,
        at: Option<&[u8]>,
    ) -> Result<Option<Separator>, IndexError> {
        let span = pin.span();
        let mut fresh = Fresh::default();
        let planned = self.plan_split(slots, span, (&locked.node, at), &mut fresh).await;
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
        fresh.unlinked.into_iter().for_each(|at| steps.revive(at));
        self.carry_out(span, locked, steps).await?;
        self.cache.remove(node.at);
        Ok(separator)
    }

    async fn plan_split(
        &self,
        slots: &impl Slots,
        span: &Span,
        (old, at): (&Node, Option<&[u8]>),
        fresh: &mut Fresh,
    ) -> Result<(Node, Edit, Option<Separator>), IndexError> {
        let keys = sorted_keys(slots, span, old).await?;
        let level = old.level();
        let middle = at.map_or(keys.len() / 2, |at| keys.partition_point(|(_, key)| &**key < at));
        let (left, right) = keys.split_at(middle);
        let key = match (at, left.last(), right.first()) {
            (Some(at), ..) => at,
            (None, Some((_, last)), Some((_, first))) if level == 0 => shortest_separator(last, first),
            (None, Some(_), Some((_, first))) => first,
            _ => return Err(IndexError::corrupt(old.at, "a full node has less than two entries")),
        };
        let mut node = self.copy(old);
        let mut edit = Edit::default();
        let shape = (slots.layout(), level);
        let mut upper = self.new_node(span, old.at, shape, key, fresh).await?;
        self.take(old, right, &mut upper);
        if old.at == self.root {
            if level >= MAX_LEVEL {
                return Err(IndexError::corrupt(old.at, "the tree has too many levels"));
            }
            mark!("tree: root has grown");
            let mut lower = self.new_node(span, old.at, shape, &[], fresh).await?;
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
        let (mut added, mut tried) = (0, HashSet::new());
        while let Some(separator) = missing.pop() {
            // The way to the parent of one that cannot be added misses the same ones each time.
            if tried.insert((separator.level, separator.child)) {
                added += u64::from(self.add_separator(leaves, &separator, &mut missing).await? == Some(true));
            }
        }
        Ok(added)
    }

    /// Adds the separators that an operation has missed in its last round. After the first one that cannot be added it leaves
    /// all of them to the next writer: it would miss them again in every round, and wait for their parent each time before it
    /// looks again at the lock that it waits for itself.
    pub(super) async fn add_missing(
        &self,
        leaves: &impl Leaves,
        retry: &mut Retry,
        missing: &mut Vec<Separator>,
    ) -> Result<(), IndexError> {
        while let Some(separator) = missing.pop().filter(|_| !retry.leaves_separators) {
            retry.leaves_separators = self.add_separator(leaves, &separator, missing).await?.is_none();
        }
        missing.clear();
        Ok(())
    }

    /// Adds a separator; returns whether it was missing. `None`: it cannot be added now.
    async fn add_separator(
        &self,
        leaves: &impl Leaves,
        separator: &Separator,
        missing: &mut Vec<Separator>,
    ) -> Result<Option<bool>, IndexError> {
        match self.try_to_add(leaves, separator, missing).await {
            Err(error @ (IndexError::Fabric(_) | IndexError::Dropped | IndexError::Pool(PoolError::LeaseLost))) => {
                Err(error)
            }
            Err(_) => {
                mark!("tree: separator left out");
                Ok(None)
            }
            added => added,
        }
    }

    async fn try_to_add(
        &self,
        leaves: &impl Leaves,
        separator: &Separator,
        missing: &mut Vec<Separator>,
    ) -> Result<Option<bool>, IndexError> {
        let (mut retry, mut full) = (Retry::brief(), 0);
        for _ in 0..PATIENCE {
            let pin = self.session.pin(self.maintenance())?;
            let round = self.add_once(&pin, separator, &retry, missing).await;
            drop(pin);
            match round {
                Ok(Ok(Some(added))) => return Ok(Some(added)),
                Ok(Ok(None)) => {}
                Ok(Err(Trouble::NoLevel)) => return Ok(Some(false)),
                Ok(Err(trouble)) => self.settle(leaves, &mut retry, trouble).await?,
                Err(error) => self.wait_for_room(&mut full, error).await?,
            }
        }
        Ok(None)
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
        let mut way = WayRight::from(at);
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
            at = way.to(next)?;
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
    /// parent's first one, or gone. `Held` is the left neighbour that has not absorbed the node yet. The way there goes around
    /// dead nodes of higher levels.
    pub(super) async fn remove_dead(&self, leaves: &impl Leaves, node: Place<'_>, detours: &Detours) -> Step<bool> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        if read_word(span, node.0).await? != DEAD {
            return Ok(Ok(true));
        }
        let detours = detours.above(node.1);
        if let Err(trouble) = self.check_absorbed(leaves, span, node, &detours).await? {
            return Ok(Err(trouble));
        }
        drop(pin);
        self.remove_separator(leaves, node, Absorbed::Unknown, detours).await
    }

    /// Has the left neighbour of a dead node absorbed it?
    async fn check_absorbed(
        &self,
        leaves: &impl Leaves,
        span: &Span,
        (at, level, low): Place<'_>,
        detours: &Detours,
    ) -> Step<()> {
        let goal = Goal::around((low, Side::Below), detours);
        let found = match self.descend(span, goal, level, true, &mut Vec::new()).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut left = found.at;
        while let Some((sibling, high)) = self.right_of(leaves, span, left, level).await? {
            if sibling == at {
                return Ok(Err(Trouble::Held { at: left, seen: 0 }));
            }
            if self.compare(span, high, low, None).await?.is_ge() || sibling.is_null() {
                return Ok(Ok(()));
            }
            left = sibling;
        }
        Ok(Err(Trouble::Unsound(left)))
    }

    /// Removes the separator of a node that was dead, and retires the node. If it is not known that this is still the same
    /// node, that is asked under the parent's lock: as long as its separator is there, nobody retires it. `detours` are around dead
    /// nodes of higher levels.
    pub(super) async fn remove_separator(
        &self,
        leaves: &impl Leaves,
        (at, level, low): Place<'_>,
        absorbed: Absorbed,
        detours: Detours,
    ) -> Step<bool> {
        let pin = self.session.pin(self.maintenance())?;
        let span = pin.span();
        let retry = Retry::around(detours.clone());
        let locked = match self.lock_at(&pin, low, level + 1, &retry, &mut Vec::new()).await? {
            Ok(locked) => locked,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let Locked { mut node, mut cell } = locked;
        let slot = node.used().find(|slot| node.separator(*slot).child() == at);
        let (Some(slot), false) = (slot, node.low().is(low)) else {
            mark!("tree: separator of a dead node stays");
            self.release(span, Locked { node, cell }, Edit::default()).await?;
            return Ok(Ok(slot.is_none()));
        };
        if absorbed == Absorbed::Unknown {
            let still = async {
                match read_word(span, at).await? {
                    DEAD => Ok(Some(self.check_absorbed(leaves, span, (at, level, low), &detours).await?)),
                    _ => Ok(None),
                }
            };
            let (locked, still) = self.or_release(span, Locked { node, cell }, still.await).await?;
            if !matches!(still, Some(Ok(()))) {
                self.release(span, locked, Edit::default()).await?;
                return Ok(still.map_or(Ok(true), |still| still.map(|()| true)));
            }
            Locked { node, cell } = locked;
        }
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
            cold(self.merge(leaves, level + 1, &own_low)).await?;
        }
        Ok(Ok(true))
    }
}
