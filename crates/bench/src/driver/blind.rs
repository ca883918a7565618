//! An index with blind inserts: SepHash's paper appends without checking whether the key exists, and calls that an
//! insert.

use farindex::{Insert, PointIndex, Remove, RemoveIf, Replace, Update, Upsert, Value};
use farindex_index::{Entry, IndexError, KeyBounds, Limits, OrderedIndex, upsert_each};

/// An index whose inserts may be blind upserts.
pub struct Blind<I> {
    index: I,
    blind: bool,
}

impl<I> Blind<I> {
    /// Wraps an index.
    pub fn new(index: I, blind: bool) -> Self {
        Blind { index, blind }
    }
    /// Returns the index.
    pub fn inner(&self) -> &I {
        &self.index
    }
}

impl<I: PointIndex> PointIndex for Blind<I> {
    fn limits(&self) -> Limits {
        self.index.limits()
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.index.get(key).await
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        self.index.get_many(keys).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        if !self.blind {
            return self.index.insert(key, value).await;
        }
        Ok(match self.index.upsert(key, value).await? {
            // A blind insert reports that the key was absent.
            Upsert::Inserted | Upsert::Written => Insert::Inserted,
            Upsert::Updated => Insert::Exists,
        })
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        self.index.update(key, value).await
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.index.upsert(key, value).await
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.index.upsert_with_outcome(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        self.index.remove(key).await
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        self.index.replace(key, expected, value).await
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        self.index.remove_if(key, expected).await
    }
    fn cache_bytes(&self) -> u64 {
        self.index.cache_bytes()
    }
}

impl<I: OrderedIndex> OrderedIndex for Blind<I> {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        self.index.scan(bounds, limit).await
    }
}
