//! The `crossbeam-skiplist` crate as an ordered index: no far memory, no verbs.
//!
//! Invariant: a key that was inserted once keeps its node for ever, and its slot holds the value, or `None` while the
//! key is absent. All changes of a key take the lock of its slot, so each is linearizable (the crate replaces an entry
//! by a removal and an insert, between which a reader would miss it).

use crate::driver::{Bench, Worker};
use crossbeam_skiplist::SkipMap;
use farindex_fabric::Executor;
use farindex_index::join::try_join_all;
use farindex_index::{
    Entry, IndexError, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
    Value, upsert_each,
};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Bytes = Box<[u8]>;

/// The value of a key. A panic elsewhere cannot leave it half changed, so poison means nothing.
#[derive(Default)]
struct Slot(RwLock<Option<Bytes>>);

impl Slot {
    fn read(&self) -> RwLockReadGuard<'_, Option<Bytes>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
    fn write(&self) -> RwLockWriteGuard<'_, Option<Bytes>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A concurrent skip list of boxed bytes.
#[derive(Clone, Default)]
pub struct LocalSkipList {
    map: Arc<SkipMap<Bytes, Slot>>,
}

impl LocalSkipList {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }
    /// Changes the slot of a key, which is made if there is none.
    fn change<T>(&self, key: &[u8], change: impl FnOnce(&mut Option<Bytes>) -> T) -> T {
        let present = self.map.get(key);
        let entry = present.unwrap_or_else(|| self.map.get_or_insert_with(key.into(), Slot::default));
        change(&mut entry.value().write())
    }
}

impl Bench for LocalSkipList {
    type Worker = LocalSkipList;
    fn worker(&self, _: usize, _: &Executor) -> Result<LocalSkipList, String> {
        Ok(self.clone())
    }
}

impl Worker for LocalSkipList {
    type Index = LocalSkipList;
    fn index(&self) -> &LocalSkipList {
        self
    }
}

impl PointIndex for LocalSkipList {
    fn limits(&self) -> Limits {
        Limits { key: usize::MAX, value: usize::MAX }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        Ok(self.map.get(key).and_then(|entry| entry.value().read().as_deref().map(Value::from)))
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        Ok(self.change(key, |slot| match slot {
            Some(_) => Insert::Exists,
            None => {
                *slot = Some(value.into());
                Insert::Inserted
            }
        }))
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        let Some(entry) = self.map.get(key) else { return Ok(Update::Absent) };
        Ok(match &mut *entry.value().write() {
            Some(old) => {
                *old = value.into();
                Update::Updated
            }
            None => Update::Absent,
        })
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        Ok(match self.change(key, |slot| slot.replace(value.into())) {
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
        let Some(entry) = self.map.get(key) else { return Ok(Remove::Absent) };
        let old = entry.value().write().take();
        Ok(if old.is_some() { Remove::Removed } else { Remove::Absent })
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let Some(entry) = self.map.get(key) else { return Ok(Replace::Absent) };
        Ok(match &mut *entry.value().write() {
            Some(old) if **old != *expected => Replace::Differs,
            Some(old) => {
                *old = value.into();
                Replace::Replaced
            }
            None => Replace::Absent,
        })
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        let Some(entry) = self.map.get(key) else { return Ok(RemoveIf::Absent) };
        let mut slot = entry.value().write();
        Ok(match &*slot {
            Some(old) if **old != *expected => RemoveIf::Differs,
            Some(_) => {
                *slot = None;
                RemoveIf::Removed
            }
            None => RemoveIf::Absent,
        })
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}

impl OrderedIndex for LocalSkipList {
    async fn scan(&self, (from, to): KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let mut entries = Vec::new();
        // The end is compared here: a range that is empty or inverted must give no entries, whatever the map makes of
        // it.
        let ended = |key: &[u8]| match to {
            Bound::Included(to) => key > to,
            Bound::Excluded(to) => key >= to,
            Bound::Unbounded => false,
        };
        for entry in self.map.range::<[u8], _>((from, Bound::Unbounded)) {
            if entries.len() >= limit || ended(entry.key()) {
                break;
            }
            if let Some(value) = entry.value().read().as_deref() {
                entries.push(Entry { key: Value::from(&**entry.key()), value: Value::from(value) });
            }
        }
        Ok(entries)
    }
}
