//! What looking up many keys at once takes, whatever the kind of index (linear probing's Algorithm 1): one batch for the first
//! READs of all of them, so that one doorbell posts them and one completion tells of all; one batch for the blocks that may be
//! theirs; and those that need more go on beside each other.

use crate::block::{self, Decoded};
use crate::join::try_join_all;
use crate::{IndexError, Value};
use farindex_fabric::{RemotePtr, Span};
use std::future::Future;

/// Lookups that share a batch, at most.
const TOGETHER: usize = 128;

/// What is known of one key.
pub(crate) enum Known<O> {
    /// Its value, or that it is absent.
    Is(Option<Value>),
    /// Nothing yet: the lookup goes on alone.
    Open(O),
}

/// A block that may be that of the `key`-th key.
pub(crate) struct Wanted {
    /// Number of the key.
    pub(crate) key: usize,
    /// The block.
    pub(crate) ptr: RemotePtr,
    /// Bytes to READ of it.
    pub(crate) len: usize,
}

/// Looks up so many keys at once as may share a batch; the answers come in the order of the keys.
pub(crate) async fn in_order(
    keys: &[&[u8]],
    mut look_up: impl AsyncFnMut(&[&[u8]], &mut Vec<Option<Value>>) -> Result<(), IndexError>,
) -> Result<Vec<Option<Value>>, IndexError> {
    let mut values = Vec::with_capacity(keys.len());
    for keys in keys.chunks(TOGETHER) {
        look_up(keys, &mut values).await?;
    }
    Ok(values)
}

/// READs blocks, and returns the values of those that hold their key.
pub(crate) async fn read_wanted(
    span: &Span,
    wanted: Vec<Wanted>,
    keys: &[&[u8]],
) -> Result<Vec<(usize, Value)>, IndexError> {
    let mut batch = span.block_batch();
    let asked: Vec<_> = wanted.into_iter().map(|want| (want.key, batch.read(want.ptr, want.len))).collect();
    let mut done = batch.post().await?;
    let mut found = Vec::with_capacity(asked.len());
    for (i, ticket) in asked {
        let buf = done.buf(ticket);
        if let Decoded::Sound(_, key, value) = block::decode(&buf)
            && buf.bytes().get(key) == keys.get(i).copied()
        {
            found.push((i, Value::fetched(buf, value)));
        }
    }
    Ok(found)
}

/// Answers in the order of the keys; what is still open goes on, all at the same time.
pub(crate) async fn finish<O, F: Future<Output = Result<Option<Value>, IndexError>>>(
    known: Vec<Known<O>>,
    go_on: impl Fn(O) -> F,
    values: &mut Vec<Option<Value>>,
) -> Result<(), IndexError> {
    let first = values.len();
    let mut open = Vec::new();
    for (i, known) in known.into_iter().enumerate() {
        let value = match known {
            Known::Is(value) => value,
            Known::Open(lookup) => {
                open.push((first + i, lookup));
                None
            }
        };
        values.push(value);
    }
    let (places, lookups): (Vec<_>, Vec<_>) = open.into_iter().unzip();
    for (place, value) in places.into_iter().zip(try_join_all(lookups.into_iter().map(go_on)).await?) {
        values[place] = value;
    }
    Ok(())
}
