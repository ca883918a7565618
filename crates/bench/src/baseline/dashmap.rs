//! The `dashmap` crate as an index: no far memory, no verbs.

use crate::driver::{Bench, Worker};
use ::dashmap::{DashMap, Entry};
use farindex_fabric::Executor;
use farindex_index::join::try_join_all;
use farindex_index::{
    IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert, Value,
    upsert_each,
};
use foldhash::fast::RandomState;
use std::sync::Arc;

type Bytes = Box<[u8]>;

/// A sharded map of boxed bytes, hashed with foldhash (the crate's default, SipHash, would be half of its time).
#[derive(Clone)]
pub struct LocalMap {
    map: Arc<DashMap<Bytes, Bytes, RandomState>>,
}

impl LocalMap {
    /// An empty map.
    pub fn new() -> Self {
        LocalMap { map: Arc::new(DashMap::with_hasher(RandomState::default())) }
    }
    /// Has it no entries?
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

impl Default for LocalMap {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench for LocalMap {
    type Worker = LocalMap;
    fn worker(&self, _: usize, _: &Executor) -> Result<LocalMap, String> {
        Ok(self.clone())
    }
}

impl Worker for LocalMap {
    type Index = LocalMap;
    fn index(&self) -> &LocalMap {
        self
    }
}

impl PointIndex for LocalMap {
    fn limits(&self) -> Limits {
        Limits { key: usize::MAX, value: usize::MAX }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        Ok(self.map.get(key).map(|value| Value::from(&**value)))
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        Ok(match self.map.entry(key.into()) {
            Entry::Occupied(_) => Insert::Exists,
            Entry::Vacant(place) => {
                place.insert(value.into());
                Insert::Inserted
            }
        })
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        Ok(match self.map.get_mut(key) {
            Some(mut old) => {
                *old = value.into();
                Update::Updated
            }
            None => Update::Absent,
        })
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        Ok(match self.map.insert(key.into(), value.into()) {
            Some(_) => Upsert::Updated,
            None => Upsert::Inserted,
        })
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        Ok(match self.map.remove(key) {
            Some(_) => Remove::Removed,
            None => Remove::Absent,
        })
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        Ok(match self.map.get_mut(key) {
            Some(old) if **old != *expected => Replace::Differs,
            Some(mut old) => {
                *old = value.into();
                Replace::Replaced
            }
            None => Replace::Absent,
        })
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        Ok(match self.map.entry(key.into()) {
            Entry::Occupied(place) if **place.get() != *expected => RemoveIf::Differs,
            Entry::Occupied(place) => {
                place.remove();
                RemoveIf::Removed
            }
            Entry::Vacant(_) => RemoveIf::Absent,
        })
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl OrderedIndex for LocalMap {
    async fn scan(&self, _: KeyBounds<'_>, _: usize) -> Result<Vec<farindex_index::Entry>, IndexError> {
        Err(IndexError::NotOrdered { kind: "dashmap" })
    }
}
