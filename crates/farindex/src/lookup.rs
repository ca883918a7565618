//! Lookups, as all users of the library see them.
//!
//! Invariant: a key that is longer than an index takes is absent. No client can have written it, so every lookup says so,
//! alone or among others; writes and removals refuse it.

use crate::AnyIndex;
use farindex_index::{IndexError, PointIndex, Value};

/// Lookups that share batches of verbs: `get_many` of an index divides longer lists into parts of as many.
pub(crate) const SHARED: usize = 128;

/// Returns the value of a key.
pub(crate) async fn get(index: &AnyIndex, key: &[u8]) -> Result<Option<Value>, IndexError> {
    if key.len() > index.limits().key { Ok(None) } else { index.get(key).await }
}

/// Returns the values of many keys, in their order.
pub(crate) async fn get_many(index: &AnyIndex, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
    let longest = index.limits().key;
    if keys.iter().all(|key| key.len() <= longest) {
        return index.get_many(keys).await;
    }
    let possible: Vec<&[u8]> = keys.iter().copied().filter(|key| key.len() <= longest).collect();
    let mut values = index.get_many(&possible).await?.into_iter();
    let value = |key: &&[u8]| if key.len() <= longest { values.next().flatten() } else { None };
    Ok(keys.iter().map(value).collect())
}
