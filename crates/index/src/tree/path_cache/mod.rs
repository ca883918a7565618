//! The path cache: copies of inner nodes and of leaves under one limit of bytes, which point to each other (section 5 of the
//! paper of DEX). A descent through copies takes no lock and no look-up.
//!
//! | Module | What it holds |
//! |---|---|
//! | `frame` | a copy of a node, with swizzled pointers to its children; bytes |
//! | `table` | the mapping table; I/O flags; swizzling |
//! | `cooling` | the cooling map |
//! | `dirty` | what of a leaf far memory does not have yet |
//! | `evict` | sampling, delegation, room |
//! | `sync` | what threads share memory by |
//!
//! Invariants (`docs/protocols/dex.md`, "The cache"):
//!
//! * **C1** The node in a frame never changes. The mapping table names one frame for an address at most. A frame that it
//!   names no more never comes back.
//! * **C2** At most one slot holds a frame, and the frame's entry says which one. So a frame that was taken out of the mapping
//!   table is in no slot: nobody who begins to look afterwards finds it.
//! * **C3** A frame is evicted from the cooling state, in which no slot holds it, and no child of it is swizzled. A dirty frame is
//!   evicted when it has been written to far memory.
//! * **C4** At most one operation has raised the I/O flag of a node. The flag is lowered when that operation ends, however it
//!   ends.
//! * **C5** The bytes of all frames, with their slots and entries, also of those that readers still hold, and of the tables
//!   never exceed the limit.

#[cfg(test)]
mod check;
mod cooling;
mod dirty;
mod evict;
mod frame;
mod hooks;
mod sync;
mod table;
#[cfg(test)]
mod tests;

use super::cache::{Counts, Lookups};
use super::fence::{Fence, Key};
use super::inner::{Inner, Side};
use super::node::{HIGH, LOW, MAX_LEVEL};
use crate::spread::Spread;
pub(super) use dirty::Dirty;
use farindex_fabric::RemotePtr;
use frame::{Content, Frame};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use sync::Loaded;
use table::{Look, Table};

/// Nodes of a bucket of the mapping table, when the cache is full.
const PER_BUCKET: usize = 8;
/// Of the nodes, one of so many is cooling.
const COOLING: usize = 10;

/// A copy of a node.
pub(super) enum Cached {
    Inner(Arc<Inner>),
    Leaf(Leaf),
}

/// The words of a leaf.
pub(super) struct Leaf {
    words: Box<[u64]>,
    long: Option<Arc<LongFences>>,
    dirty: Option<Box<Dirty>>,
}

/// Fence keys of a leaf that lie in blocks, because they are long.
#[derive(Debug, Default)]
pub(super) struct LongFences {
    pub(super) low: Option<Box<[u8]>>,
    pub(super) high: Option<Box<[u8]>>,
}

impl Leaf {
    pub(super) fn new(words: &[u64], long: Option<Arc<LongFences>>) -> Self {
        Leaf { words: words.into(), long, dirty: None }
    }
    /// A leaf of which far memory does not have all.
    pub(super) fn changed(words: &[u64], long: Option<Arc<LongFences>>, dirty: Dirty) -> Self {
        Leaf { words: words.into(), long, dirty: Some(Box::new(dirty)) }
    }
    /// What far memory does not have of the leaf; `None` if it has all.
    pub(super) fn dirty(&self) -> Option<&Dirty> {
        self.dirty.as_deref().filter(|dirty| !dirty.is_written())
    }
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }
    pub(super) fn long(&self) -> Option<&Arc<LongFences>> {
        self.long.as_ref()
    }
    fn fence(&self, at: usize) -> Fence {
        let word = |at| self.words.get(at).copied().unwrap_or_default();
        Fence { word: word(at), tag: word(at + 1) }
    }
    /// Does a key lie in the leaf's own range?
    pub(super) fn holds(&self, key: &[u8]) -> bool {
        let (low, high) = (self.fence(LOW).compare(key), self.fence(HIGH).compare(key));
        let long = self.long.as_deref();
        let low = low.or_else(|| Some((**long?.low.as_ref()?).cmp(key)));
        let high = high.or_else(|| Some((**long?.high.as_ref()?).cmp(key)));
        low.is_some_and(|low| low.is_le()) && high.is_some_and(|high| high.is_gt())
    }
    /// The leaf's range; `None` if it is not known. Without a high key it ends nowhere.
    pub(super) fn range(&self) -> Option<(Key, Option<Key>)> {
        let (low, high, long) = (self.fence(LOW), self.fence(HIGH), self.long.as_deref());
        let key = |fence: Fence, long: Option<&Box<[u8]>>| fence.key().or_else(|| long.map(|key| Key::from_slice(key)));
        let low = key(low, long.and_then(|long| long.low.as_ref()))?;
        let high = match high.is_infinite() {
            true => None,
            false => Some(key(high, long.and_then(|long| long.high.as_ref()))?),
        };
        Some((low, high))
    }
}

impl Content for Cached {
    fn heap_bytes(&self) -> u64 {
        match self {
            // With two reference counts.
            Cached::Inner(inner) => inner.bytes() + 16,
            Cached::Leaf(leaf) => {
                let long = leaf.long.as_ref().map_or(0, |long| {
                    let len = |key: &Option<Box<[u8]>>| key.as_ref().map_or(0, |key| key.len());
                    size_of::<LongFences>() + 16 + len(&long.low) + len(&long.high)
                });
                let dirty = if leaf.dirty.is_some() { size_of::<Dirty>() } else { 0 };
                (size_of_val(&*leaf.words) + long + dirty) as u64
            }
        }
    }
    fn level(&self) -> u8 {
        match self {
            Cached::Inner(inner) => inner.level,
            Cached::Leaf(_) => 0,
        }
    }
    fn children(&self) -> usize {
        match self {
            Cached::Inner(inner) => inner.len(),
            Cached::Leaf(_) => 0,
        }
    }
    fn child(&self, i: usize) -> u64 {
        match self {
            Cached::Inner(inner) => inner.child(i).to_bits(),
            Cached::Leaf(_) => RemotePtr::NULL.to_bits(),
        }
    }
    fn is_dirty(&self) -> bool {
        matches!(self, Cached::Leaf(leaf) if leaf.dirty().is_some())
    }
}

/// The copy of a leaf.
pub(super) struct LeafCopy(Arc<Frame<Cached>>);

impl LeafCopy {
    pub(super) fn leaf(&self) -> Option<&Leaf> {
        match &self.0.node {
            Cached::Leaf(leaf) => Some(leaf),
            Cached::Inner(_) => None,
        }
    }
}

/// The I/O flag of a node.
pub(super) struct Flag<'c>(#[allow(dead_code, reason = "kept until it is dropped")] table::Flag<'c, Cached>);

/// Waits until an I/O flag is lowered.
pub(super) struct Wait<'c>(table::Wait<'c, Cached>);

impl Future for Wait<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// What a look at a node has found.
pub(super) enum Seen<'c, T> {
    Copy(T),
    /// Another operation READs the node now: wait, and descend again.
    Busy(Wait<'c>),
    /// Nothing. The caller has raised the I/O flag, if there was room.
    Nothing(Option<Flag<'c>>),
}

/// Where a descent through copies has ended: at the parent of the wanted node, and the position in it.
pub(super) struct Way {
    pub(super) parent: Arc<Inner>,
    pub(super) position: usize,
    pub(super) root_level: u8,
}

/// Nodes for which there must be room so that operations wait for each other's READs.
const FLAGS_FROM: usize = 8;

/// The cache of a compute node, shared by its threads.
pub(super) struct PathCache {
    table: Table<Cached>,
    /// Are I/O flags raised?
    flags: bool,
    counts: Counts,
    /// Descents from a root of this level down to level 1 in which all copies were there.
    paths: Spread<[AtomicU64; MAX_LEVEL as usize + 1]>,
}

impl PathCache {
    /// Makes a cache of at most `bytes` bytes for a tree with this root, whose nodes take about `node_bytes`.
    pub(super) fn new(root: RemotePtr, bytes: u64, node_bytes: usize) -> Self {
        let nodes = usize::try_from(bytes / node_bytes.max(64) as u64).unwrap_or(usize::MAX);
        // The tables have an eighth of the bytes at most.
        let most = usize::try_from(bytes / 16).unwrap_or(usize::MAX) / Table::<Cached>::bucket_bytes();
        let buckets = (nodes / PER_BUCKET).min(most).clamp(1, 1 << 24);
        let cooling = (nodes / COOLING).clamp(1, 1 << 26);
        let table = Table::new(root.to_bits(), bytes, (buckets, cooling));
        PathCache { table, flags: nodes >= FLAGS_FROM, counts: Counts::default(), paths: Spread::default() }
    }
    /// Looks for a copy, and raises the I/O flag of a node without one. In a cache that has room for a few nodes alone, what one
    /// operation READs is gone before the others find it: there it raises none.
    fn look_up(&self, at: RemotePtr) -> Look<'_, Cached> {
        match self.flags {
            true => self.table.look(at.to_bits()),
            false => self.table.get(at.to_bits()).map_or(Look::Free(None), Look::Found),
        }
    }

    /// Descends through copies to the node of level `lowest` that a key belongs to; returns the root's level as well. Without
    /// `checks` the ranges of old copies may lead astray: then the node behind the last one decides.
    fn walk(&self, key: &[u8], side: Side, lowest: u8, checks: bool) -> Option<(Loaded<Frame<Cached>>, usize, u8)> {
        let (mut here, mut root_level) = (self.table.root()?, None);
        loop {
            let frame = here.as_ref()?;
            let Cached::Inner(inner) = &frame.node else { return None };
            let outside = checks && (inner.is_above(key, side) || inner.is_below(key, side));
            if frame.is_stale() || inner.dead || outside || inner.level < lowest {
                return None;
            }
            let root_level = *root_level.get_or_insert(inner.level);
            let i = inner.find(key, side);
            if inner.level == lowest {
                return Some((here, i, root_level));
            }
            let child = self.table.child(frame, i)?;
            if child.as_ref().is_none_or(|child| child.node.level() + 1 != inner.level) {
                return None;
            }
            here = child;
        }
    }
    fn count_path(&self, root_level: u8, lowest: u8) {
        if lowest > 1 {
            (lowest..=root_level).for_each(|level| self.counts.hit(level));
        } else if let Some(paths) = self.paths.own().get(usize::from(root_level)) {
            paths.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Descends through copies to the parent of the node of this level that a key belongs to.
    pub(super) fn way(&self, key: &[u8], side: Side, level: u8) -> Option<Way> {
        let (here, position, root_level) = self.walk(key, side, level + 1, true)?;
        let Cached::Inner(parent) = &here.as_ref()?.node else { return None };
        self.count_path(root_level, level + 1);
        Some(Way { parent: Arc::clone(parent), position, root_level })
    }
    /// Descends through copies to the copy of the leaf that a key belongs to, and looks at it: at its address, and the leaf.
    pub(super) fn find<T>(&self, key: &[u8], look: impl FnOnce(RemotePtr, &Leaf) -> T) -> Option<T> {
        // The leaf's own range decides; the keys of the ranges above it are scattered in memory.
        let (here, i, root_level) = self.walk(key, Side::At, 1, false)?;
        let child = self.table.child(here.as_ref()?, i)?;
        let frame = child.as_ref()?;
        let Cached::Leaf(leaf) = &frame.node else { return None };
        let found = leaf.holds(key).then(|| look(RemotePtr::from_bits(frame.at), leaf));
        if found.is_some() {
            self.count_path(root_level, 1);
        }
        found
    }

    /// Finds the copy of an inner node, or raises the node's I/O flag.
    pub(super) fn look(&self, at: RemotePtr) -> Seen<'_, Arc<Inner>> {
        match self.look_up(at) {
            Look::Found(frame) => match &frame.node {
                Cached::Inner(inner) => {
                    self.counts.hit(inner.level);
                    Seen::Copy(Arc::clone(inner))
                }
                Cached::Leaf(_) => Seen::Nothing(None),
            },
            Look::Busy(wait) => Seen::Busy(Wait(wait)),
            Look::Free(flag) => Seen::Nothing(flag.map(Flag)),
        }
    }
    /// Keeps an inner node that was read after a look had missed it. `led` is the node whose word led there, if it is not the
    /// root.
    pub(super) fn insert(&self, node: &Arc<Inner>, led: Option<RemotePtr>) {
        self.counts.miss(node.level);
        self.table.put(node.at.to_bits(), Cached::Inner(Arc::clone(node)), led.map(RemotePtr::to_bits));
    }
    /// Notes that an inner node has changed in far memory; takes a leaf out.
    pub(super) fn invalidate(&self, at: RemotePtr) {
        self.table.invalidate(at.to_bits());
    }

    /// Is there a copy of this node? It stays as cold as it is.
    pub(super) fn has(&self, at: RemotePtr) -> bool {
        self.table.has(at.to_bits())
    }
    /// Finds the copy of a leaf.
    pub(super) fn leaf(&self, at: RemotePtr) -> Option<LeafCopy> {
        let frame = self.table.get(at.to_bits())?;
        matches!(frame.node, Cached::Leaf(_)).then_some(LeafCopy(frame))
    }
    /// Finds the copy of a leaf, or raises the leaf's I/O flag.
    pub(super) fn look_at_leaf(&self, at: RemotePtr) -> Seen<'_, LeafCopy> {
        match self.look_up(at) {
            Look::Found(frame) if matches!(frame.node, Cached::Leaf(_)) => Seen::Copy(LeafCopy(frame)),
            Look::Found(_) => Seen::Nothing(None),
            Look::Busy(wait) => Seen::Busy(Wait(wait)),
            Look::Free(flag) => Seen::Nothing(flag.map(Flag)),
        }
    }
    /// What to wait for while the I/O flag of a node is raised.
    pub(super) fn busy(&self, at: RemotePtr) -> Option<Wait<'_>> {
        self.table.busy(at.to_bits()).map(Wait)
    }
    /// Puts the copy of a leaf in, if that of its parent is there.
    pub(super) fn put_leaf(&self, at: RemotePtr, leaf: Leaf, parent: RemotePtr) -> bool {
        self.table.put(at.to_bits(), Cached::Leaf(leaf), Some(parent.to_bits()))
    }
    /// Takes a copy out; returns whether there was one.
    pub(super) fn remove(&self, at: RemotePtr) -> bool {
        self.table.remove(at.to_bits())
    }
    /// Takes out the copies of leaves whose ranges are not to be kept, or not known. Dirty ones stay.
    pub(super) fn retain_leaves(&self, keep: impl Fn(&[u8], Option<&[u8]>) -> bool) {
        self.table.retain(|copy| match copy {
            Cached::Inner(_) => true,
            Cached::Leaf(leaf) if leaf.dirty().is_some() => true,
            Cached::Leaf(leaf) => leaf.range().is_some_and(|(low, high)| keep(&low, high.as_deref())),
        });
    }
    /// Takes a dirty leaf that was to be evicted, and is to be written back first.
    pub(super) fn take_due(&self) -> Option<RemotePtr> {
        self.table.take_due().map(RemotePtr::from_bits)
    }
    /// Takes all copies out but those of dirty leaves.
    pub(super) fn clear(&self) {
        self.table.retain(Content::is_dirty);
    }
    pub(super) fn bytes(&self) -> u64 {
        self.table.budget.used()
    }
    /// Hits and misses by level, from level 1 up.
    pub(super) fn lookups(&self) -> Vec<Lookups> {
        let paths = |level: u8| self.paths.all().flat_map(move |paths| paths.iter().skip(level.into()));
        self.counts.levels(|level| paths(level).map(|paths| paths.load(Ordering::Relaxed)).sum())
    }
}
