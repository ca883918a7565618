//! What every index promises.
//!
//! Keys and values are byte strings of any content, up to the limits of [`PointIndex::limits`]; there is no reserved
//! key and no reserved value. Every point operation is linearizable under the fabric's
//! [contract](farindex_fabric::contract), and returns an outcome named for what it did. An index handle belongs to one
//! worker thread; many operations may be in flight on it at once.
//!
//! No trait here has a default method: a type that wraps an index and forgets to forward one does not compile.

use crate::block::{MAX_KEY, MAX_VALUE};
use crate::{IndexError, Value};
use std::future::Future;
use std::ops::Bound;

/// Outcome of an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    /// The key was absent and is present now.
    Inserted,
    /// The key was present; its value is unchanged.
    Exists,
}

/// Outcome of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The key was present and has the new value.
    Updated,
    /// The key was absent and still is.
    Absent,
}

/// Outcome of an upsert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upsert {
    /// The key was absent and is present now.
    Inserted,
    /// The key was present and has the new value.
    Updated,
    /// The key has the new value; the index did not check whether it was present.
    Written,
}

/// Outcome of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remove {
    /// The key was present and is absent now.
    Removed,
    /// The key was absent.
    Absent,
}

/// Outcome of a replacement: a compare-and-swap of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// The key had the expected value and has the new one.
    Replaced,
    /// The key has another value than the expected one; nothing changed.
    Differs,
    /// The key was absent and still is.
    Absent,
}

/// Outcome of a removal that expects a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveIf {
    /// The key had the expected value and is absent now.
    Removed,
    /// The key has another value than the expected one; nothing changed.
    Differs,
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

impl Limits {
    /// Limits of an index whose entries are key-value blocks.
    pub const BLOCK: Limits = Limits { key: MAX_KEY, value: MAX_VALUE };

    /// Refuses a key or a value that is too long.
    pub fn check(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        if key.len() > self.key {
            return Err(IndexError::KeyTooLong { len: key.len(), max: self.key });
        }
        if value.len() > self.value {
            return Err(IndexError::ValueTooLong { len: value.len(), max: self.value });
        }
        Ok(())
    }
}

/// An index with operations on single keys.
pub trait PointIndex {
    /// Returns the longest key and value that the index takes.
    fn limits(&self) -> Limits;
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, IndexError>>;
    /// Returns the values of many keys, in their order. All lookups are in flight together; each is linearizable on its
    /// own, at some moment of the call. An index may post them in fewer batches than lookups.
    fn get_many(&self, keys: &[&[u8]]) -> impl Future<Output = Result<Vec<Option<Value>>, IndexError>>;
    /// Adds a key that is absent.
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Insert, IndexError>>;
    /// Changes the value of a key that is present.
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Update, IndexError>>;
    /// Sets the value of a key, present or not.
    fn upsert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Upsert, IndexError>>;
    /// Like [`upsert`](Self::upsert), but always reports whether the key existed: never [`Upsert::Written`]. An index
    /// with blind writes pays one extra lookup.
    fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<Upsert, IndexError>>;
    /// Sets the values of many keys, present or not, and returns the outcome of each, in their order. An upsert takes effect
    /// when those before it have taken effect or have failed; each is linearizable on its own. An index may post what
    /// prepares them in fewer batches than upserts.
    fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> impl Future<Output = Vec<Result<Upsert, IndexError>>>;
    /// Removes a key.
    fn remove(&self, key: &[u8]) -> impl Future<Output = Result<Remove, IndexError>>;
    /// Changes the value of a key from exactly `expected` to `value`: a compare-and-swap. It takes effect at a moment at which
    /// the key has the value `expected`, so of several clients that replace the same value one succeeds, unless a client
    /// restores that value. `expected` may be longer than the index takes: then no value equals it.
    fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> impl Future<Output = Result<Replace, IndexError>>;
    /// Removes a key if it has exactly the value `expected`.
    fn remove_if(&self, key: &[u8], expected: &[u8]) -> impl Future<Output = Result<RemoveIf, IndexError>>;
    /// Returns the bytes of local memory that this handle, and what it shares with the other handles of its compute
    /// node, use as a cache.
    fn cache_bytes(&self) -> u64;
}

/// The two ends of a scan.
pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// An entry that a scan returns. Key and value may share the buffer of the READ that fetched a whole leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Value,
    /// Its value.
    pub value: Value,
}

/// An index whose keys are ordered, byte by byte.
pub trait OrderedIndex: PointIndex {
    /// Returns the first `limit` entries within `bounds` in ascending order of their keys. Fewer entries mean that the
    /// range has no more. An empty or inverted range, and a limit of 0, give no entries.
    ///
    /// A scan is not atomic. Each entry that it returns was present, with that value, at some moment of the scan; each
    /// key that lies between the first bound and the last returned key (or the second bound, if fewer than `limit`
    /// entries came back) and was present during the whole scan is returned. Keys come once, in strictly ascending
    /// order. This is the model that the checker applies to recorded scans.
    fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> impl Future<Output = Result<Vec<Entry>, IndexError>>;
}
