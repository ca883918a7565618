//! Ordered maps of local memory, with keys and values of one word each, as the driver measures them.
//!
//! Invariant: keys are read as big-endian words, so their order is that of the bytes. What the comparison does not
//! measure (updates, removals) is refused.

use crossbeam_skiplist::SkipMap;
use farindex_bench::{Bench, Worker};
use farindex_fabric::Executor;
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value,
};
use masstree::{MassTree, RangeBound};
use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;

/// An ordered map of words.
pub(crate) trait Map: Default + Send + Sync + 'static {
    fn get(&self, key: u64) -> Option<u64>;
    /// Inserts a key that is absent; returns whether it was.
    fn insert(&self, key: u64, value: u64) -> bool;
    /// Calls `each` with the entries from a key on, in order, until it returns `false`.
    fn ascend(&self, from: u64, each: impl FnMut(u64, u64) -> bool);
}

/// The B+ tree of the crate `scc`.
#[derive(Default)]
pub(crate) struct TreeIndex(scc::TreeIndex<u64, u64>);

impl Map for TreeIndex {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.peek_with(&key, |_, value| *value)
    }
    fn insert(&self, key: u64, value: u64) -> bool {
        self.0.insert_sync(key, value).is_ok()
    }
    fn ascend(&self, from: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let guard = scc::Guard::new();
        let _ = self.0.range(from.., &guard).all(|(key, value)| each(*key, *value));
    }
}

/// The skip list of the crate `crossbeam-skiplist`.
#[derive(Default)]
pub(crate) struct SkipList(SkipMap<u64, u64>);

impl Map for SkipList {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|entry| *entry.value())
    }
    fn insert(&self, key: u64, value: u64) -> bool {
        let absent = Cell::new(true);
        self.0.compare_insert(key, value, |_| {
            absent.set(false);
            false
        });
        absent.get()
    }
    fn ascend(&self, from: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let _ = self.0.range(from..).all(|entry| each(*entry.key(), *entry.value()));
    }
}

/// The trie of B+ trees of the crate `masstree`. Its insert replaces the value of a key that is present, which no
/// workload here does.
pub(crate) struct Masstree(MassTree<u64>);

impl Default for Masstree {
    fn default() -> Self {
        Masstree(MassTree::new())
    }
}

impl Map for Masstree {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key.to_be_bytes())
    }
    fn insert(&self, key: u64, value: u64) -> bool {
        self.0.insert(&key.to_be_bytes(), value).is_none()
    }
    fn ascend(&self, from: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let (guard, from) = (self.0.guard(), from.to_be_bytes());
        let word = |key: &[u8]| key.try_into().map_or(0, u64::from_be_bytes);
        let visit = |key: &[u8], value| each(word(key), value);
        self.0.scan_intra_leaf_batch(RangeBound::Included(&from), RangeBound::Unbounded, visit, &guard);
    }
}

/// A map as the driver's index.
#[derive(Default)]
pub(crate) struct Local<M>(Arc<M>);

impl<M> Clone for Local<M> {
    fn clone(&self) -> Self {
        Local(Arc::clone(&self.0))
    }
}

impl<M: Map> Bench for Local<M> {
    type Worker = Local<M>;
    fn worker(&self, _: usize, _: &Executor) -> Result<Local<M>, String> {
        Ok(self.clone())
    }
}

impl<M: Map> Worker for Local<M> {
    type Index = Local<M>;
    fn index(&self) -> &Local<M> {
        self
    }
}

fn word(bytes: &[u8]) -> Result<u64, IndexError> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| refuse("keys and values of another size than 8 bytes"))
}

fn refuse(what: &str) -> IndexError {
    IndexError::BadConfig(format!("{what} are not part of this comparison"))
}

impl<M: Map> PointIndex for Local<M> {
    fn limits(&self) -> Limits {
        Limits { key: 8, value: 8 }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        Ok(self.0.get(word(key)?).map(|value| Value::from(&value.to_be_bytes()[..])))
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        Ok(if self.0.insert(word(key)?, word(value)?) { Insert::Inserted } else { Insert::Exists })
    }
    async fn update(&self, _: &[u8], _: &[u8]) -> Result<Update, IndexError> {
        Err(refuse("updates"))
    }
    async fn upsert(&self, _: &[u8], _: &[u8]) -> Result<Upsert, IndexError> {
        Err(refuse("upserts"))
    }
    async fn upsert_with_outcome(&self, _: &[u8], _: &[u8]) -> Result<Upsert, IndexError> {
        Err(refuse("upserts"))
    }
    async fn remove(&self, _: &[u8]) -> Result<Remove, IndexError> {
        Err(refuse("removals"))
    }
    async fn replace(&self, _: &[u8], _: &[u8], _: &[u8]) -> Result<Replace, IndexError> {
        Err(refuse("replacements"))
    }
    async fn remove_if(&self, _: &[u8], _: &[u8]) -> Result<RemoveIf, IndexError> {
        Err(refuse("removals"))
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl<M: Map> OrderedIndex for Local<M> {
    async fn scan(&self, (from, to): KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        // The driver asks for nothing at all when it looks whether an index is ordered.
        let (Bound::Included(from), Bound::Unbounded, 1..) = (from, to, limit) else {
            return if limit == 0 { Ok(Vec::new()) } else { Err(refuse("scans other than upwards from a key")) };
        };
        let mut entries = Vec::with_capacity(limit);
        self.0.ascend(word(from)?, |key, value| {
            let value = Value::from(&value.to_be_bytes()[..]);
            entries.push(Entry { key: Value::from(&key.to_be_bytes()[..]), value });
            entries.len() < limit
        });
        Ok(entries)
    }
}
