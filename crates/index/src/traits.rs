//! What every index promises.
//!
//! Keys and values are byte strings of any content, up to the limits of [`PointIndex::limits`]; there is no reserved key
//! and no reserved value. Every point operation is linearizable under the fabric's
//! [contract](farindex_fabric::contract), and says what it did. An index handle belongs to one worker thread; many
//! operations may be in flight on it at once.

use crate::block::{MAX_KEY, MAX_VALUE};
use crate::{IndexError, Value};
use std::future::Future;

/// What an insert did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    /// The key was absent and is present now.
    Inserted,
    /// The key was present; its value is unchanged.
    Exists,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The key was present and has the new value.
    Updated,
    /// The key was absent and still is.
    Absent,
}

/// What an upsert did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upsert {
    /// The key was absent and is present now.
    Inserted,
    /// The key was present and has the new value.
    Updated,
    /// The key has the new value; the index did not look whether it was present.
    Written,
}

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remove {
    /// The key was present and is absent now.
    Removed,
    /// The key was absent.
    Absent,
}

/// The longest key and value that an index takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest key.
    pub key: usize,
    /// Longest value.
    pub value: usize,
}

/// An unordered index.
pub trait PointIndex {
    /// The longest key and value: those that a block takes, unless the index says otherwise.
    fn limits(&self) -> Limits {
        Limits { key: MAX_KEY, value: MAX_VALUE }
    }
    /// The value of a key.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, IndexError>>;
    /// The values of many keys, in their order, with all lookups in flight together; each is as [`get`](Self::get) finds it
    /// at some moment of the call, independently of the others. An index may post them in fewer batches than lookups: every one
    /// here has the first READs of up to 128 keys in one batch, and the blocks that may be theirs in another.
    fn get_many(&self, keys: &[&[u8]]) -> impl Future<Output = Result<Vec<Option<Value>>, IndexError>> {
        async { crate::join::try_join_all(keys.iter().map(|key| self.get(key))).await }
    }
    /// Adds a key that is absent.
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Insert, IndexError>>;
    /// Changes the value of a key that is present.
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Update, IndexError>>;
    /// Sets the value of a key, present or not.
    fn upsert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Upsert, IndexError>>;
    /// The same, and never [`Upsert::Written`]: what an index that writes blindly pays a lookup for.
    fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Upsert, IndexError>> {
        self.upsert(key, value)
    }
    /// Removes a key.
    fn remove(&self, key: &[u8]) -> impl Future<Output = Result<Remove, IndexError>>;
    /// Bytes that this handle, and what it shares with the other handles of its compute node, cache locally.
    fn cache_bytes(&self) -> u64;
}
