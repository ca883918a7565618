//! The B-link skeleton: what it needs of a leaf design; reading, locking and releasing nodes.
//!
//! Invariants: see `node` for one node. For the tree:
//!
//! * **B1** Every key belongs to exactly one node of each level: the one whose low key is at most the key and whose high
//!   key is above it. A node's low key never changes, and its high key is its right sibling's low key.
//! * **B2** A writer holds one lock at a time. A merge holds the left node's lock, and *freezes* the right node: a CAS
//!   makes the lock word of a free node `DEAD`, in one step. A new node is dead until it is linked.
//! * **B3** A dead node that is its left sibling's right sibling holds the keys of its range. Nobody changes them, because
//!   the left sibling's lock is held until it has absorbed them, or until the node is free.
//! * **B4** A node is retired after no node points to it: neither its left sibling nor its parent.

use super::cache::Copies;
use super::dropped::Taken;
use super::edit::{Edit, One, Steps};
use super::entries::Slot;
use super::faults::{Fault, planted};
use super::fence::{Fence, Key};
use super::inner::Inner;
use super::node::{DEAD, Head, Header, LOW_END, Layout, Node, magic};
use super::path_cache::{Seen, Wait};
use super::retry::{Retry, Step, Trouble};
use crate::IndexError;
use crate::cycle;
use crate::maintenance::fetch_blocks;
use crate::marks::mark;
use farindex_fabric::{Batch, Buf, OpKind, RemotePtr, Span, cold};
use farindex_pool::{IntentCell, Lock, Pin, Session};
use std::cell::Cell;
use std::cmp::Ordering;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// READs of a node that are in no state between two changes, before the operation waits.
const READS: u32 = 4;
/// Bytes of the words of a [`Header`].
pub(super) const HEAD_LEN: usize = LOW_END * 8;

/// First word of the intent of a client that changes a node.
pub(super) const CHANGE: u64 = 1;

/// A leaf design. Its leaves begin as every node does ([`Header`]); the rest is its own.
pub(super) trait Leaves {
    /// A leaf that was read whole.
    type Leaf: Header;

    /// Bytes of a leaf.
    fn leaf_len(&self) -> usize;
    /// Returns the leaf in these words, which a READ of this span has brought, if they are those of one state.
    fn leaf(&self, span: &Span, at: RemotePtr, words: Buf) -> Result<Self::Leaf, Unread>;
    /// Returns the words of a leaf.
    fn words(leaf: &Self::Leaf) -> &Buf;
    /// Returns the words of a leaf.
    fn into_words(leaf: Self::Leaf) -> Buf;
    /// The copy of a leaf that equals it in far memory, where this compute node has one.
    fn copy(&self, _at: RemotePtr) -> Option<Self::Leaf> {
        None
    }
    /// Returns the used slots of a leaf.
    fn slots(&self, leaf: &Self::Leaf) -> Vec<Slot>;
    /// Returns the hash of a key that a slot may have in its place.
    fn slot_hash(&self, key: &[u8]) -> u64;
    /// Merges the leaf `right` into its left neighbour, if both fit well into one.
    async fn merge_leaves(&self, pin: &Pin<'_>, left: RemotePtr, right: RemotePtr) -> Result<Merged, IndexError>;
    /// Derives a leaf from what a crashed client has left, under its lock, and returns what is to be written with the
    /// release.
    async fn restore_leaf(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Edit, IndexError>;
    /// Returns consecutive leaves, at most so many, from the one of a key on, if a memory node has sent them. `None`: they are
    /// to be READ.
    async fn sent_leaves(
        &self,
        _span: &Span,
        _from: &[u8],
        _most: usize,
        _retry: &Retry,
    ) -> Result<Option<Vec<Self::Leaf>>, IndexError> {
        Ok(None)
    }
    /// Finds out why a node cannot be read for a long time: an error if it is damaged; whether somebody was changing it.
    async fn explain_unread(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<bool, IndexError>;
    /// Returns the client that may be changing a node for that long without a lock, if there is one: then it is not damaged.
    async fn slow_owner(&self, _pin: &Pin<'_>, _at: RemotePtr) -> Result<Option<String>, IndexError> {
        Ok(None)
    }
}

/// Why no node could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// Somebody is changing it, or has left it unfinished.
    Changing,
    /// It is dead and holds nothing: any more, because it was merged into its left neighbour, or yet, because that is being
    /// split.
    Dead,
    /// No node of this index lies there.
    Foreign,
}

/// What came of a merge.
pub(super) enum Merged {
    /// The right node is dead, and absorbed; this is its low key.
    Yes(Fence),
    /// It did not fit, or a lock was held.
    No,
    /// The right node is not the left one's right sibling.
    NotNeighbours,
}

/// Whole nodes of one kind: inner nodes, or leaves in the same format.
pub(super) trait Slots {
    fn layout(&self) -> Layout;
    /// Returns the used slots of a node with their keys.
    async fn keys(&self, span: &Span, node: &Node) -> Result<Vec<(usize, Vec<u8>)>, IndexError>;
}

/// An open tree.
pub(super) struct Tree {
    pub(super) session: Rc<Session>,
    pub(super) uid: u64,
    pub(super) tag: u64,
    /// Holds the index tag and the address of the root.
    pub(super) anchor: RemotePtr,
    /// The root, which never moves.
    pub(super) root: RemotePtr,
    pub(super) inner: Layout,
    pub(super) cache: Copies,
    /// Level of the root as last seen.
    pub(super) height: Cell<u8>,
    /// The latest epoch of which this worker knows that the index was there: see [`check_open`](Tree::check_open).
    pub(super) open_at: Cell<u64>,
    pub(super) dropping: Cell<bool>,
    /// Counts new nodes, for their memory nodes.
    pub(super) turn: Cell<u64>,
    /// If not 0, the subtree of a node up to this level lies on one memory node.
    pub(super) subtree_levels: u8,
}

/// A node under its lock.
pub(super) struct Locked<'p, N = Node> {
    pub(super) node: N,
    pub(super) cell: IntentCell<'p>,
}

impl Tree {
    pub(super) fn lock_of(&self, at: RemotePtr) -> Lock {
        Lock { at, mask: 1 }
    }
    /// Bytes of a node of this level.
    pub(super) fn node_len(&self, leaves: &impl Leaves, level: u8) -> usize {
        if level == 0 { leaves.leaf_len() } else { self.inner.len() }
    }
    pub(super) fn maintenance(&self) -> Span {
        self.session.span(OpKind::Maintenance)
    }

    /// READs a node once. The caller asks whether it is sound.
    pub(super) async fn read_once(&self, span: &Span, at: RemotePtr, layout: Layout) -> Result<Node, IndexError> {
        let buf = span.read(at, layout.len()).await?;
        Ok(Node { at, layout, buf })
    }

    /// READs a node until its words are those of one state; gives up after a few READs.
    pub(super) async fn read_until<N>(
        &self,
        read: impl AsyncFn() -> Result<Result<N, Unread>, IndexError>,
    ) -> Result<Result<N, Unread>, IndexError> {
        let mut why = Unread::Foreign;
        for _ in 0..READS {
            why = match read().await? {
                Ok(node) => return Ok(Ok(node)),
                Err(why) => why,
            };
            mark!("tree: node read in the middle of a change");
        }
        Ok(Err(why))
    }
    /// Why a node with this lock word is in no state.
    pub(super) fn why_unread(&self, at: RemotePtr, lock: u64) -> Unread {
        if lock | 1 == magic(self.tag, at) | 1 { Unread::Changing } else { Unread::Foreign }
    }
    /// READs a whole node of this level until it is sound, as [`read_until`](Self::read_until) does.
    pub(super) async fn read_node(
        &self,
        span: &Span,
        at: RemotePtr,
        (layout, level): (Layout, u8),
    ) -> Result<Result<Node, Unread>, IndexError> {
        let read = async || {
            let node = self.read_once(span, at, layout).await?;
            let sound = self.is_sound(&node) && node.level() == level;
            Ok(if sound { Ok(node) } else { Err(self.why_unread(at, node.word(0))) })
        };
        self.read_until(read).await
    }
    /// READs a leaf until it is sound, as [`read_until`](Self::read_until) does.
    pub(super) async fn read_leaf<L: Leaves>(
        &self,
        leaves: &L,
        span: &Span,
        at: RemotePtr,
    ) -> Result<Result<L::Leaf, Unread>, IndexError> {
        let read = async || Ok(leaves.leaf(span, at, span.read(at, leaves.leaf_len()).await?));
        self.read_until(read).await
    }
    /// READs the first words of a node. They may be torn.
    pub(super) async fn read_head(&self, span: &Span, at: RemotePtr) -> Result<Head, IndexError> {
        Ok(Head { at, buf: span.read(at, HEAD_LEN).await? })
    }
    /// Returns the right sibling and the high key of a node of this level; `None` if it stays unsound.
    pub(super) async fn right_of(
        &self,
        leaves: &impl Leaves,
        span: &Span,
        at: RemotePtr,
        level: u8,
    ) -> Result<Option<(RemotePtr, Fence)>, IndexError> {
        fn right(node: impl Header) -> (RemotePtr, Fence) {
            (node.sibling(), node.high())
        }
        Ok(match level {
            0 => self.read_leaf(leaves, span, at).await?.ok().map(right),
            _ => self.read_node(span, at, (self.inner, level)).await?.ok().map(right),
        })
    }

    pub(super) fn is_sound(&self, node: &Node) -> bool {
        node.is_sound(self.tag)
    }

    /// Returns an inner node, from the cache unless `fresh`, and whether it came from there. The root may have any
    /// level. `led` is the node whose word led here, if it is not the root.
    pub(super) async fn inner(
        &self,
        span: &Span,
        (at, led): (RemotePtr, Option<RemotePtr>),
        level: Option<u8>,
        fresh: bool,
    ) -> Step<(Arc<Inner>, bool)> {
        let (mut _flag, mut waits) = (None, 0);
        while !fresh && waits < READS {
            match self.cache.look(at) {
                Seen::Copy(node) => {
                    return Ok(match level.is_none_or(|level| level == node.level) {
                        true => Ok((node, true)),
                        false => Err(Trouble::UnsoundInner(at)),
                    });
                }
                // It READs the node once, or for a few times if that is changing, and waits for nothing else. Where there is
                // no room for the node, waiting for one operation after the other would take longer than a READ.
                Seen::Busy(wait) => waits = if self.wait_for_read(wait).await { waits + 1 } else { READS },
                Seen::Nothing(flag) => {
                    _flag = flag;
                    break;
                }
            }
        }
        let mut sound = false;
        for _ in 0..READS {
            let node = self.read_once(span, at, self.inner).await?;
            sound = self.is_sound(&node);
            if sound
                && level.is_none_or(|level| level == node.level())
                && let Some(inner) = Inner::of(span, &node).await?
            {
                let inner = Arc::new(inner);
                if !inner.dead {
                    self.cache.insert(&inner, led);
                }
                return Ok(Ok((inner, false)));
            }
        }
        // A sound node that is no inner node of this level is not what its parent says; nobody needs to be changing it.
        Ok(Err(if sound { Trouble::Stale(None) } else { Trouble::UnsoundInner(at) }))
    }

    /// Waits until another operation of this compute node has READ a node; false if that takes too long, because nobody polls
    /// that operation.
    pub(super) async fn wait_for_read(&self, mut wait: Wait<'_>) -> bool {
        let limit = (self.session.pool().lease() / 4).max(Duration::from_millis(1));
        let mut limit_passed = pin!(self.session.endpoint().sleep(limit));
        poll_fn(|cx| match std::pin::Pin::new(&mut wait).poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => limit_passed.as_mut().poll(cx).map(|()| false),
        })
        .await
    }

    /// The key of a fence; `None` if it is infinite.
    pub(super) async fn fence_key(&self, span: &Span, fence: Fence) -> Result<Option<Vec<u8>>, IndexError> {
        if fence.is_infinite() {
            return Ok(None);
        }
        let Some(place) = fence.block() else { return Ok(fence.key().map(|key| key.to_vec())) };
        match fetch_blocks(span, &[place]).await?.pop() {
            Some(Ok(block)) if fence.is(block.key()) => Ok(Some(block.key().to_vec())),
            _ => Err(IndexError::corrupt(place.0, "the block of a fence key has a wrong checksum")),
        }
    }

    /// Compares a fence with a key. `expected` is what the fence probably is, and how that compares.
    pub(super) async fn compare(
        &self,
        span: &Span,
        fence: Fence,
        key: &[u8],
        expected: Option<(&[u8], Ordering)>,
    ) -> Result<Ordering, IndexError> {
        if let Some(ordering) = fence.compare(key) {
            return Ok(ordering);
        }
        if let Some((expected, ordering)) = expected
            && fence.is(expected)
        {
            return Ok(ordering);
        }
        Ok(self.fence_key(span, fence).await?.map_or(Ordering::Greater, |own| own.as_slice().cmp(key)))
    }

    /// Locks a node and READs it, in one batch; `also` adds WRITEs that are to be complete by then.
    pub(super) async fn lock<'p>(
        &self,
        pin: &Pin<'p>,
        at: RemotePtr,
        (layout, level): (Layout, u8),
        also: impl FnOnce(&mut Batch<'_>),
    ) -> Step<Locked<'p>> {
        let span = pin.span();
        let old = match level > 0 && planted(Fault::OldParent) {
            true => Some(span.read(at, layout.len()).await?),
            false => None,
        };
        let taken = self.take_lock(pin, at, |batch| {
            let read = batch.read(at, layout.len());
            also(batch);
            read
        });
        let (node, cell) = match taken.await? {
            Ok(Taken { mut done, reads, cell }) => {
                (Node { at, layout, buf: old.unwrap_or_else(|| done.buf(reads)) }, cell)
            }
            Err(trouble) => return Ok(Err(trouble)),
        };
        let (sound, of_level) = (self.is_sound(&node), node.level() == level);
        let locked = Locked { node, cell };
        if sound && of_level {
            return Ok(Ok(locked));
        }
        self.release(span, locked, Edit::default()).await?;
        if !of_level {
            // The root has grown or shrunk, or another node lies there by now.
            return Ok(Err(Trouble::Stale(None)));
        }
        Err(unsound(at))
    }

    /// Carries out an edit, and releases the lock.
    pub(super) async fn release<N: Header>(
        &self,
        span: &Span,
        locked: Locked<'_, N>,
        edit: Edit,
    ) -> Result<(), IndexError> {
        let at = locked.node.at();
        let mut batch = span.batch();
        edit.post(&mut batch, at);
        self.add_release(&mut batch, at);
        locked.cell.clear(&mut batch);
        batch.post().await?;
        locked.cell.cleared();
        Ok(())
    }

    pub(super) fn add_release(&self, batch: &mut Batch<'_>, at: RemotePtr) {
        let free = magic(self.tag, at);
        batch.cas(at, free | 1, free);
    }

    /// Carries out steps under the lock, and releases it.
    pub(super) async fn carry_out<N: Header>(
        &self,
        span: &Span,
        locked: Locked<'_, N>,
        steps: Steps,
    ) -> Result<(), IndexError> {
        let at = locked.node.at();
        let mut batch = self.begin_steps(span, at, steps).await?;
        self.add_release(&mut batch, at);
        locked.cell.clear(&mut batch);
        batch.post().await?;
        locked.cell.cleared();
        Ok(())
    }

    /// Carries out steps under the lock of the node at `at`, up to those of the last batch, which is on that node.
    pub(super) async fn begin_steps<'s>(
        &self,
        span: &'s Span,
        at: RemotePtr,
        steps: Steps,
    ) -> Result<Batch<'s>, IndexError> {
        let (mut batch, mut on) = (span.batch(), None);
        for (ptr, step) in steps.0 {
            // Order is promised for one node and one batch alone (G4, N1).
            if on.replace(ptr.node()).is_some_and(|on| on != ptr.node()) {
                std::mem::replace(&mut batch, span.batch()).post().await?;
            }
            match step {
                One::Buf(buf) => _ = batch.write(ptr, buf),
                One::Words(words) => _ = batch.write_words(ptr, &words),
                One::Revive => _ = batch.cas(ptr, DEAD, magic(self.tag, ptr)),
            }
        }
        if on.is_some_and(|on| on != at.node()) {
            std::mem::replace(&mut batch, span.batch()).post().await?;
        }
        Ok(batch)
    }

    /// Releases the lock if the work under it has failed, unless a verb has: then nothing is known of the lock (N7).
    pub(super) async fn or_release<'p, N: Header, T>(
        &self,
        span: &Span,
        locked: Locked<'p, N>,
        done: Result<T, IndexError>,
    ) -> Result<(Locked<'p, N>, T), IndexError> {
        match done {
            Ok(value) => Ok((locked, value)),
            Err(error @ IndexError::Fabric(_)) => Err(error),
            Err(error) => {
                cold(self.release(span, locked, Edit::default())).await?;
                Err(error)
            }
        }
    }

    /// Compares the range of a locked node with a key: the low key, and the high key. `range` is what it probably is.
    pub(super) async fn compare_range<'p, N: Header>(
        &self,
        span: &Span,
        locked: Locked<'p, N>,
        key: &[u8],
        range: Option<(Key, Option<Key>)>,
    ) -> Result<(Locked<'p, N>, (Ordering, Ordering)), IndexError> {
        let compared = async {
            let low = range.as_ref().map(|(low, _)| (low.as_slice(), low.as_slice().cmp(key)));
            let high = range.as_ref().and_then(|(_, high)| high.as_ref());
            let high = high.map(|high| (high.as_slice(), high.as_slice().cmp(key)));
            let low = self.compare(span, locked.node.low(), key, low).await?;
            Ok((low, self.compare(span, locked.node.high(), key, high).await?))
        };
        let compared = compared.await;
        self.or_release(span, locked, compared).await
    }

    /// Makes a free node dead, and READs it as it is for ever; `None` if its lock is held, or it is no node.
    pub(super) async fn freeze(
        &self,
        span: &Span,
        at: RemotePtr,
        (layout, level): (Layout, u8),
    ) -> Result<Option<Node>, IndexError> {
        if planted(Fault::MergeWithoutFreeze) && at != self.root {
            return Ok(self.read_node(span, at, (layout, level)).await?.ok());
        }
        let Some(buf) = self.freeze_words(span, at, layout.len()).await? else { return Ok(None) };
        let node = Node { at, layout, buf };
        if self.is_sound(&node) { Ok(Some(node)) } else { Err(unsound(at)) }
    }
    /// Makes a free node dead, and READs its words; `None` if its lock is held, or it is no node.
    pub(super) async fn freeze_words(&self, span: &Span, at: RemotePtr, len: usize) -> Result<Option<Buf>, IndexError> {
        let free = magic(self.tag, at);
        let mut batch = span.batch();
        let frozen = batch.cas(at, free, DEAD);
        let read = batch.read(at, len);
        let mut done = batch.post().await?;
        Ok((done.old(frozen) == free).then(|| done.buf(read)))
    }

    /// READs the low key of a node, which never changes.
    pub(super) async fn low_of(&self, span: &Span, at: RemotePtr) -> Result<Fence, IndexError> {
        Ok(self.read_head(span, at).await?.low())
    }
}

/// Inner nodes.
impl Slots for Tree {
    fn layout(&self) -> Layout {
        self.inner
    }
    async fn keys(&self, span: &Span, node: &Node) -> Result<Vec<(usize, Vec<u8>)>, IndexError> {
        let mut keys = Vec::with_capacity(node.count());
        let mut long = Vec::new();
        for slot in node.used() {
            let separator = node.separator(slot);
            match separator.block() {
                Some(place) => long.push((slot, place)),
                None => keys.push((slot, separator.key().unwrap_or_default().to_vec())),
            }
        }
        let places: Vec<_> = long.iter().map(|(_, place)| *place).collect();
        for ((slot, (at, _)), block) in long.into_iter().zip(fetch_blocks(span, &places).await?) {
            let block = block.map_err(|what| IndexError::corrupt(at, format!("a separator points to {what}")))?;
            keys.push((slot, block.key().to_vec()));
        }
        Ok(keys)
    }
}

/// The error for a node that no crash explains.
pub(super) fn unsound(at: RemotePtr) -> IndexError {
    IndexError::corrupt(at, "the node has a wrong checksum although nobody was changing it")
}

/// A way from a node to its right siblings, under one pin. Low keys grow from each to the next, and an address stays one node's:
/// so a way that leads back is damage.
pub(super) struct WayRight(cycle::Way);

impl WayRight {
    pub(super) fn from(at: RemotePtr) -> Self {
        WayRight(cycle::Way::from(at))
    }
    /// Goes on to the right sibling at `next`, and returns it.
    pub(super) fn to(&mut self, next: RemotePtr) -> Result<RemotePtr, IndexError> {
        match self.0.leads_back_to(next) {
            true => Err(IndexError::corrupt(next, "the right siblings of this node lead back to it")),
            false => Ok(next),
        }
    }
}

/// Returns the used slots of a node with their keys, in the order of the keys.
pub(super) async fn sorted_keys(
    slots: &impl Slots,
    span: &Span,
    node: &Node,
) -> Result<Vec<(usize, Vec<u8>)>, IndexError> {
    let mut keys = slots.keys(span, node).await?;
    keys.sort_unstable_by(|a, b| a.1.cmp(&b.1));
    Ok(keys)
}
