//! Copies of leaves that this compute node owns.
//!
//! Invariant: D4 in `docs/protocols/dex.md`. A copy equals the leaf in far memory as long as it is here.

use farindex_fabric::RemotePtr;
use foldhash::fast::FixedState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use std::sync::Arc;

/// Bytes that the cache itself needs for a leaf.
const ENTRY_OVERHEAD: u64 = 48;

/// The words of a leaf.
pub(super) type Words = Arc<[u64]>;

#[derive(Clone)]
struct Bytes;

impl Weighter<u64, Words> for Bytes {
    fn weight(&self, _: &u64, words: &Words) -> u64 {
        size_of_val(&**words) as u64 + ENTRY_OVERHEAD
    }
}

/// The cache of leaves of a compute node, shared by its threads.
pub(super) struct LeafCache {
    leaves: Cache<u64, Words, Bytes, FixedState>,
}

impl LeafCache {
    /// Makes a cache for at most `bytes` bytes of leaves of `leaf_len` bytes each.
    pub(super) fn new(bytes: u64, leaf_len: u64) -> Self {
        let items = usize::try_from(bytes / leaf_len.max(1)).unwrap_or(usize::MAX).clamp(16, 1 << 26);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes)
            .shards(if items < 4096 { 1 } else { 16 })
            .build();
        // The hasher is fixed, so that a simulated run can be repeated.
        let (hasher, lifecycle) = (FixedState::with_seed(0), DefaultLifecycle::default());
        let leaves = match options {
            Ok(options) => Cache::with_options(options, Bytes, hasher, lifecycle),
            Err(_) => Cache::with(items, bytes, Bytes, hasher, lifecycle),
        };
        LeafCache { leaves }
    }
    pub(super) fn get(&self, at: RemotePtr) -> Option<Words> {
        self.leaves.get(&at.to_bits())
    }
    /// Is there a copy of this leaf?
    pub(super) fn has(&self, at: RemotePtr) -> bool {
        self.leaves.contains_key(&at.to_bits())
    }
    pub(super) fn insert(&self, at: RemotePtr, words: &[u64]) {
        self.leaves.insert(at.to_bits(), words.into());
    }
    /// Takes a copy out; returns whether there was one.
    pub(super) fn remove(&self, at: RemotePtr) -> bool {
        self.leaves.remove(&at.to_bits()).is_some()
    }
    pub(super) fn clear(&self) {
        self.leaves.clear();
    }
    pub(super) fn bytes(&self) -> u64 {
        self.leaves.weight()
    }
}
