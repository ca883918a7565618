//! Ordered maps of local memory, with keys and values of one word each.
//!
//! Invariant: keys are read as big-endian words, so their order is that of the bytes.

use crate::driver::{Bench, Worker};
use farindex_fabric::Executor;
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};
use masstree::{MassTree, RangeBound};
use std::ops::Bound;
use std::sync::Arc;

/// An ordered map of words.
pub trait WordMap: Default + Send + Sync + 'static {
    /// Returns the value of a key.
    fn get(&self, key: u64) -> Option<u64>;
    /// Inserts a key that is absent; returns whether it was.
    fn insert(&self, key: u64, value: u64) -> bool;
    /// Changes the value of a key that is present; returns whether it was.
    fn update(&self, key: u64, value: u64) -> bool;
    /// Calls `each` with the entries from a key on, in order, until it returns `false`.
    fn ascend(&self, from: u64, each: impl FnMut(u64, u64) -> bool);
}

/// The trie of B+ trees of the crate `masstree`, the fastest of those that were compared (docs/ordered.md). Its insert
/// replaces the value of a key that is present, so it serves workloads whose inserts are of new keys and whose updates
/// are of keys that are there.
pub struct Masstree(MassTree<u64>);

impl Default for Masstree {
    fn default() -> Self {
        Masstree(MassTree::new())
    }
}

impl WordMap for Masstree {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key.to_be_bytes())
    }
    fn insert(&self, key: u64, value: u64) -> bool {
        self.0.insert(&key.to_be_bytes(), value).is_none()
    }
    fn update(&self, key: u64, value: u64) -> bool {
        self.0.insert(&key.to_be_bytes(), value).is_some()
    }
    fn ascend(&self, from: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let (guard, from) = (self.0.guard(), from.to_be_bytes());
        let word = |key: &[u8]| key.try_into().map_or(0, u64::from_be_bytes);
        let visit = |key: &[u8], value| each(word(key), value);
        self.0.scan_intra_leaf_batch(RangeBound::Included(&from), RangeBound::Unbounded, visit, &guard);
    }
}

/// A map as the driver's index. A key or a value of another size than 8 bytes is refused, and so is what the map has no method
/// for.
#[derive(Default)]
pub struct LocalWords<M>(Arc<M>);

impl<M> Clone for LocalWords<M> {
    fn clone(&self) -> Self {
        LocalWords(Arc::clone(&self.0))
    }
}

impl<M: WordMap> Bench for LocalWords<M> {
    type Worker = LocalWords<M>;
    fn worker(&self, _: usize, _: &Executor) -> Result<LocalWords<M>, String> {
        Ok(self.clone())
    }
}

impl<M: WordMap> Worker for LocalWords<M> {
    type Index = LocalWords<M>;
    fn index(&self) -> &LocalWords<M> {
        self
    }
}

fn word(bytes: &[u8]) -> Result<u64, IndexError> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| refuse("keys and values of another size than 8 bytes"))
}

fn refuse(what: &str) -> IndexError {
    IndexError::BadConfig(format!("{what} are not part of this comparison"))
}

impl<M: WordMap> PointIndex for LocalWords<M> {
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
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        Ok(if self.0.update(word(key)?, word(value)?) { Update::Updated } else { Update::Absent })
    }
    async fn upsert(&self, _: &[u8], _: &[u8]) -> Result<Upsert, IndexError> {
        Err(refuse("upserts"))
    }
    async fn upsert_with_outcome(&self, _: &[u8], _: &[u8]) -> Result<Upsert, IndexError> {
        Err(refuse("upserts"))
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
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

impl<M: WordMap> OrderedIndex for LocalWords<M> {
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
