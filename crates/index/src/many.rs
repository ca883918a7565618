//! Lookups of many keys at once, for every kind of index (Algorithm 1 of the linear-probing paper).
//!
//! One batch carries the first READs of all lookups. A second batch READs all blocks that may be the keys'. The lookups
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

/// Takes the blocks that may be keys'. A key has one as a rule. Where fingerprints are short, several may have its
/// fingerprint, and one batch READs them all, as a lookup of a single key does.
pub(crate) struct Candidates {
    /// The place of the key whose lookup is judged.
    of: usize,
    /// Places of keys, and the addresses and bytes of blocks.
    all: Vec<(usize, RemotePtr, usize)>,
}

impl Candidates {
    /// Adds the block at this address, of this many bytes.
    #[inline]
    pub(crate) fn add(&mut self, ptr: RemotePtr, len: usize) {
        self.all.push((self.of, ptr, len));
    }
}

/// What the first READs say about a key.
pub(crate) enum Judged {
    /// The key's value, or that the key is absent.
    Answer(Option<Value>),
    /// Nothing: if none of the candidates is the key's, the lookup continues.
    Open,
}

/// One lookup of many. Each kind of index states what its lookup READs first and what that says.
pub(crate) trait BatchedLookup<'a>: Sized {
    /// The kind of index.
    type Index: 'a;
    /// The posted first READs.
    type Reads;

    /// Begins the lookup: hash, table, pin.
    fn begin(index: &'a Self::Index, key: &'a [u8]) -> Result<Self, IndexError>;
    /// READs the root where that is due, before the next lookup begins.
    async fn look_at_root(&mut self) -> Result<(), IndexError> {
        Ok(())
    }
    /// Prepares the lookup after all of them have begun.
    async fn prepare(&mut self) -> Result<(), IndexError> {
        Ok(())
    }
    /// Returns the span of the lookup's pin.
    fn span(&self) -> &Span;
    /// Adds the first READs to the shared batch, behind the look at a directory's root that they need.
    fn ask(&self, batch: &mut Batch<'_>, guards: &mut Guards<'a>) -> Self::Reads;
    /// Evaluates the first READs, and adds the candidates.
    fn judge(&mut self, reads: Self::Reads, done: &mut Done, candidates: &mut Candidates)
    -> Result<Judged, IndexError>;
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
    let mut lookups: Vec<L> = Vec::with_capacity(keys.len());
    for key in keys {
        // Results of futures are moved, and lookups are large: so beginning one is no future.
        lookups.push(L::begin(index, key)?);
        if let Some(lookup) = lookups.last_mut() {
            lookup.look_at_root().await?;
        }
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
    let (base, mut open) = (values.len(), vec![true; keys.len()]);
    let mut candidates = Candidates { of: 0, all: Vec::with_capacity(keys.len()) };
    for (i, (lookup, reads)) in lookups.iter_mut().zip(reads).enumerate() {
        candidates.of = i;
        values.push(match lookup.judge(reads, &mut done, &mut candidates)? {
            Judged::Answer(value) => {
                open[i] = false;
                value
            }
            Judged::Open => None,
        });
    }
    drop(done);
    if let Some(first) = lookups.first() {
        let mut batch = first.span().block_batch();
        let tickets: Vec<_> = candidates.all.into_iter().map(|(i, ptr, len)| (i, batch.read(ptr, len))).collect();
        let mut done = batch.post().await?;
        for (i, ticket) in tickets {
            let buf = done.buf(ticket);
            if !open[i] {
                continue;
            }
            if let Some(block) = Block::decode(buf).filter(|block| block.key() == keys[i]) {
                values[base + i] = Some(block.into_value());
                open[i] = false;
            }
        }
    }
    if !open.contains(&true) {
        return Ok(());
    }
    let places: Vec<_> = (base..).zip(&open).filter_map(|(place, open)| open.then_some(place)).collect();
    // All others end before the first of these goes on.
    let rest: Vec<_> = lookups.into_iter().zip(open).filter_map(|(lookup, open)| open.then_some(lookup)).collect();
    for (place, value) in places.into_iter().zip(try_join_all(rest.into_iter().map(L::finish)).await?) {
        values[place] = value;
    }
    Ok(())
}
