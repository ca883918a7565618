//! An index that does nothing: what is left is the driver's own cost.

use crate::driver::{Bench, Worker};
use farindex_fabric::Executor;
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};

/// An index that does nothing. Its answers mean nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Null;

impl Bench for Null {
    type Worker = Null;
    fn worker(&self, _: usize, _: &Executor) -> Result<Null, String> {
        Ok(Null)
    }
}

impl Worker for Null {
    type Index = Null;
    fn index(&self) -> &Null {
        self
    }
    fn answers(&self) -> bool {
        false
    }
}

impl PointIndex for Null {
    fn limits(&self) -> Limits {
        Limits { key: usize::MAX, value: usize::MAX }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        std::hint::black_box(key);
        Ok(None)
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        std::hint::black_box((key, value));
        Ok(Insert::Inserted)
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        std::hint::black_box((key, value));
        Ok(Update::Updated)
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        std::hint::black_box((key, value));
        Ok(Upsert::Updated)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        std::hint::black_box(key);
        Ok(Remove::Removed)
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        std::hint::black_box((key, expected, value));
        Ok(Replace::Replaced)
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        std::hint::black_box((key, expected));
        Ok(RemoveIf::Removed)
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl OrderedIndex for Null {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        std::hint::black_box((bounds, limit));
        Ok(Vec::new())
    }
}
