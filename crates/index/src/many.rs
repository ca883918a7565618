//! Lookups of many keys at once, for every kind of index (Algorithm 1 of the linear-probing paper).
//!
//! One batch carries the first READs of all lookups. A second batch READs the blocks that may be the keys'. The lookups
//! that are still undecided then continue concurrently, each under its own pin.
//!
//! Invariants: each key's answer is what [`PointIndex::get`](crate::PointIndex::get) would return at some moment of the
//! call. The lookups do not depend on each other.

use crate::block::Block;
use crate::extendible::directory::Guards;
use crate::join::try_join_all;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Done, RemotePtr, Span};

/// Maximum number of lookups that share a batch.
pub(crate) const MAX_SHARED: usize = 128;

/// What the first READs say about a key.
pub(crate) enum Judged {
    /// The key's value, or that the key is absent.
    Answer(Option<Value>),
    /// The block at this address, of this many bytes, may be the key's. If it is another key's, the lookup continues.
    Block(RemotePtr, usize),
    /// Nothing: the lookup continues.
    Open,
}

/// One lookup of many. Each kind of index states what its lookup READs first and what that says.
pub(crate) trait BatchedLookup<'a>: Sized {
    /// The kind of index.
    type Index: 'a;
    /// The posted first READs.
    type Reads;

    /// Begins the lookup: hash, table, pin, and a READ of the root where that is due.
    async fn begin(index: &'a Self::Index, key: &'a [u8]) -> Result<Self, IndexError>;
    /// Prepares the lookup after all of them have begun.
    async fn prepare(&mut self) -> Result<(), IndexError> {
        Ok(())
    }
    /// Returns the span of the lookup's pin.
    fn span(&self) -> &Span;
    /// Adds the first READs to the shared batch, behind the look at a directory's root that they need.
    fn ask(&self, batch: &mut Batch<'_>, guards: &mut Guards<'a>) -> Self::Reads;
    /// Evaluates the first READs.
    fn judge(&mut self, reads: Self::Reads, done: &mut Done) -> Result<Judged, IndexError>;
    /// Continues the lookup by itself, from what has been read for it.
    async fn finish(self) -> Result<Option<Value>, IndexError>;
}

/// Returns the values of keys, in the order of the keys.
pub(crate) async fn get_many<'a, L: BatchedLookup<'a>>(
    index: &'a L::Index,
    keys: &[&'a [u8]],
) -> Result<Vec<Option<Value>>, IndexError> {
    let mut values = Vec::with_capacity(keys.len());
    for keys in keys.chunks(MAX_SHARED) {
        get_together::<L>(index, keys, &mut values).await?;
    }
    Ok(values)
}

/// Looks up keys that share a batch, and appends their values.
async fn get_together<'a, L: BatchedLookup<'a>>(
    index: &'a L::Index,
    keys: &[&'a [u8]],
    values: &mut Vec<Option<Value>>,
) -> Result<(), IndexError> {
    let mut lookups = Vec::with_capacity(keys.len());
    for key in keys {
        lookups.push(L::begin(index, key).await?);
    }
    for lookup in &mut lookups {
        lookup.prepare().await?;
    }
    // The meter counts shared batches for the first lookup.
    let Some(first) = lookups.first() else { return Ok(()) };
    let (mut batch, mut guards) = (first.span().batch(), Guards::default());
    let reads: Vec<_> = lookups.iter().map(|lookup| lookup.ask(&mut batch, &mut guards)).collect();
    let mut done = batch.post().await?;
    guards.finish(&mut done)?;
    let (mut answers, mut blocks) = (Vec::with_capacity(keys.len()), Vec::new());
    for (i, (lookup, reads)) in lookups.iter_mut().zip(reads).enumerate() {
        answers.push(match lookup.judge(reads, &mut done)? {
            Judged::Answer(value) => Some(value),
            Judged::Block(ptr, len) => {
                blocks.push((i, ptr, len));
                None
            }
            Judged::Open => None,
        });
    }
    drop(done);
    if let Some(first) = lookups.first() {
        let mut batch = first.span().block_batch();
        let tickets: Vec<_> = blocks.into_iter().map(|(i, ptr, len)| (i, batch.read(ptr, len))).collect();
        let mut done = batch.post().await?;
        for (i, ticket) in tickets {
            let block = Block::decode(done.buf(ticket));
            answers[i] = block.filter(|block| block.key() == keys[i]).map(|block| Some(block.into_value()));
        }
    }
    let (mut places, mut open) = (Vec::new(), Vec::new());
    for (lookup, answer) in lookups.into_iter().zip(answers) {
        if answer.is_none() {
            places.push(values.len());
            open.push(lookup);
        }
        values.push(answer.flatten());
    }
    for (place, value) in places.into_iter().zip(try_join_all(open.into_iter().map(L::finish)).await?) {
        values[place] = value;
    }
    Ok(())
}
