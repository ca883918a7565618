//! The node cache: inner nodes as a compute node has read them, for all of its threads. And what a tree asks of its copies
//! of inner nodes, whether they are in this cache or in the path cache.
//!
//! Invariants: a copy of an inner node may be old. Nothing but the READ of the node that a copy leads to decides whether the copy still
//! holds (see `descend`). The bytes of all copies stay below the limit.

use super::inner::{Inner, Side};
use super::path_cache::{PathCache, Seen, Way};
use farindex_fabric::RemotePtr;
use foldhash::fast::FixedState;
use quick_cache::sync::Cache;
use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::node::MAX_LEVEL;

/// Bytes that the cache itself needs for an entry: key, pointer, reference counts, and its place in the table.
const ENTRY_OVERHEAD: u64 = 48;

#[derive(Clone)]
struct Bytes;

impl Weighter<u64, Arc<Inner>> for Bytes {
    fn weight(&self, _: &u64, node: &Arc<Inner>) -> u64 {
        node.bytes() + ENTRY_OVERHEAD
    }
}

/// Look-ups of one level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Nodes that were found.
    pub hits: u64,
    /// Nodes that were not.
    pub misses: u64,
}

/// Counts of look-ups by level.
#[derive(Default)]
pub(super) struct Counts {
    hits: [AtomicU64; MAX_LEVEL as usize + 1],
    misses: [AtomicU64; MAX_LEVEL as usize + 1],
}

impl Counts {
    pub(super) fn hit(&self, level: u8) {
        if let Some(hits) = self.hits.get(usize::from(level)) {
            hits.fetch_add(1, Ordering::Relaxed);
        }
    }
    pub(super) fn miss(&self, level: u8) {
        if let Some(misses) = self.misses.get(usize::from(level)) {
            misses.fetch_add(1, Ordering::Relaxed);
        }
    }
    /// Hits and misses by level, from level 1 up; `more` are hits of a level that were counted elsewhere.
    pub(super) fn levels(&self, more: impl Fn(u8) -> u64) -> Vec<Lookups> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = (0..=MAX_LEVEL).zip(self.hits.iter().zip(&self.misses)).skip(1);
        let mut all: Vec<_> = all
            .map(|(level, (hits, misses))| Lookups { hits: load(hits) + more(level), misses: load(misses) })
            .collect();
        while all.last().is_some_and(|last| *last == Lookups::default()) {
            all.pop();
        }
        all
    }
}

/// The cache.
pub(super) struct NodeCache {
    nodes: Cache<u64, Arc<Inner>, Bytes, FixedState>,
    counts: Counts,
}

impl NodeCache {
    /// Makes a cache for at most `bytes` bytes of nodes of about `node_len` bytes each.
    pub(super) fn new(bytes: u64, node_len: u64) -> Self {
        let items = usize::try_from(bytes / node_len.max(1)).unwrap_or(usize::MAX).clamp(16, 1 << 24);
        // Few items in few shards: a shard holds its part of the bytes, and a node must fit.
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes)
            .shards(if items < 4096 { 1 } else { 16 })
            .build();
        // The hasher is fixed, so that a simulated run can be repeated.
        let (hasher, lifecycle) = (FixedState::with_seed(0), DefaultLifecycle::default());
        let nodes = match options {
            Ok(options) => Cache::with_options(options, Bytes, hasher, lifecycle),
            Err(_) => Cache::with(items, bytes, Bytes, hasher, lifecycle),
        };
        NodeCache { nodes, counts: Counts::default() }
    }

    fn get(&self, at: RemotePtr) -> Option<Arc<Inner>> {
        let found = self.nodes.get(&at.to_bits());
        if let Some(node) = &found {
            self.counts.hit(node.level);
        }
        found
    }
    /// Keeps a node that was read after a look-up had missed it.
    fn insert(&self, node: &Arc<Inner>) {
        self.counts.miss(node.level);
        self.nodes.insert(node.at.to_bits(), Arc::clone(node));
    }
}

/// Copies of inner nodes, as a tree uses them.
pub(super) enum Copies {
    /// Each on its own.
    Nodes(Arc<NodeCache>),
    /// Paths, with the copies of leaves.
    Paths(Arc<PathCache>),
}

impl Copies {
    /// Descends to the parent of the node of this level that a key belongs to, where copies point to each other.
    pub(super) fn way(&self, (key, side): (&[u8], Side), level: u8) -> Option<Way> {
        match self {
            Copies::Nodes(_) => None,
            Copies::Paths(cache) => cache.way(key, side, level),
        }
    }
    /// Finds the copy of a node. If there is none, the caller READs the node.
    pub(super) fn look(&self, at: RemotePtr) -> Seen<'_, Arc<Inner>> {
        match self {
            Copies::Nodes(cache) => cache.get(at).map_or(Seen::Nothing(None), Seen::Copy),
            Copies::Paths(cache) => cache.look(at),
        }
    }
    /// Returns a node for a hint; no look-up is counted.
    pub(super) fn peek(&self, at: RemotePtr) -> Option<Arc<Inner>> {
        match self {
            Copies::Nodes(cache) => cache.nodes.peek(&at.to_bits()),
            Copies::Paths(_) => None,
        }
    }
    /// Is there a copy of this node? No look-up is counted.
    pub(super) fn has(&self, at: RemotePtr) -> bool {
        match self {
            Copies::Nodes(cache) => cache.nodes.contains_key(&at.to_bits()),
            Copies::Paths(cache) => cache.has(at),
        }
    }
    /// Keeps a node that was read after a look had missed it. `led` is the node whose word led there, if it is not the root.
    pub(super) fn insert(&self, node: &Arc<Inner>, led: Option<RemotePtr>) {
        match self {
            Copies::Nodes(cache) => cache.insert(node),
            Copies::Paths(cache) => cache.insert(node, led),
        }
    }
    /// Forgets a node that has changed.
    pub(super) fn remove(&self, at: RemotePtr) {
        match self {
            Copies::Nodes(cache) => drop(cache.nodes.remove(&at.to_bits())),
            Copies::Paths(cache) => cache.invalidate(at),
        }
    }
    pub(super) fn clear(&self) {
        match self {
            Copies::Nodes(cache) => cache.nodes.clear(),
            Copies::Paths(cache) => cache.clear(),
        }
    }
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Copies::Nodes(cache) => cache.nodes.weight(),
            Copies::Paths(cache) => cache.bytes(),
        }
    }
    /// Hits and misses by level, from level 1 up.
    pub(super) fn lookups(&self) -> Vec<Lookups> {
        match self {
            Copies::Nodes(cache) => cache.counts.levels(|_| 0),
            Copies::Paths(cache) => cache.lookups(),
        }
    }
}
