//! The node cache: inner nodes as a compute node has read them, for all of its threads.
//!
//! Invariants: a copy may be old. Nothing but the READ of the node that a copy leads to decides whether the copy still
//! holds (see `descend`). The bytes of all copies stay below the limit.

use super::inner::Inner;
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

/// The cache.
pub(super) struct NodeCache {
    nodes: Cache<u64, Arc<Inner>, Bytes, FixedState>,
    hits: [AtomicU64; MAX_LEVEL as usize + 1],
    misses: [AtomicU64; MAX_LEVEL as usize + 1],
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
        NodeCache { nodes, hits: Default::default(), misses: Default::default() }
    }

    pub(super) fn get(&self, at: RemotePtr) -> Option<Arc<Inner>> {
        let found = self.nodes.get(&at.to_bits());
        if let Some(hits) = found.as_ref().and_then(|node| self.hits.get(usize::from(node.level))) {
            hits.fetch_add(1, Ordering::Relaxed);
        }
        found
    }
    /// Returns a node for a hint; no look-up is counted.
    pub(super) fn peek(&self, at: RemotePtr) -> Option<Arc<Inner>> {
        self.nodes.peek(&at.to_bits())
    }
    /// Is there a copy of this node? No look-up is counted.
    pub(super) fn has(&self, at: RemotePtr) -> bool {
        self.nodes.contains_key(&at.to_bits())
    }
    /// Keeps a node that was read after a look-up had missed it.
    pub(super) fn insert(&self, node: &Arc<Inner>) {
        if let Some(misses) = self.misses.get(usize::from(node.level)) {
            misses.fetch_add(1, Ordering::Relaxed);
        }
        self.nodes.insert(node.at.to_bits(), Arc::clone(node));
    }
    pub(super) fn remove(&self, at: RemotePtr) {
        self.nodes.remove(&at.to_bits());
    }
    pub(super) fn clear(&self) {
        self.nodes.clear();
    }
    pub(super) fn bytes(&self) -> u64 {
        self.nodes.weight()
    }
    /// Hits and misses by level, from level 1 up.
    pub(super) fn lookups(&self) -> Vec<Lookups> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = self.hits.iter().zip(&self.misses).skip(1);
        let mut all: Vec<_> = all.map(|(hits, misses)| Lookups { hits: load(hits), misses: load(misses) }).collect();
        while all.last().is_some_and(|last| *last == Lookups::default()) {
            all.pop();
        }
        all
    }
}
