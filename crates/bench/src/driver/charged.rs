//! An index whose operations cost more than its verbs: time of the client's CPU, and READs of lock words.
//!
//! In the simulator a client's own computation takes no time. An index that answers from its cache would so be infinitely
//! fast.

use farindex::{Insert, PointIndex, Remove, RemoveIf, Replace, Update, Upsert, Value};
use farindex_fabric::{Endpoint, NodeId, OpKind, RemotePtr};
use farindex_index::{Entry, IndexError, KeyBounds, Limits, OrderedIndex, upsert_each};
use std::ops::Bound;
use std::time::Duration;

/// What each operation costs in addition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Time of the client's CPU.
    pub local: Duration,
    /// READs of a word, one after the other: an index as published READs a leaf's lock word before and after the leaf.
    pub lock_reads: u32,
    /// Does a tree forget its copies of nodes after each operation, as one without a cache?
    pub forgets: bool,
}

/// An index, and what its operations cost in addition.
pub struct Charged<I> {
    index: I,
    charge: Charge,
    endpoint: Endpoint,
    nodes: usize,
}

impl<I> Charged<I> {
    /// Wraps an index that lies on so many memory nodes.
    pub fn new(index: I, charge: Charge, endpoint: Endpoint, nodes: usize) -> Self {
        Charged { index, charge, endpoint, nodes }
    }
    /// Returns the index.
    pub fn inner(&self) -> &I {
        &self.index
    }
    async fn pay(&self, kind: OpKind, key: &[u8]) -> Result<(), IndexError> {
        let Charge { local, lock_reads, .. } = self.charge;
        if lock_reads > 0 {
            // Some word that is there: the NIC does not care which one it is.
            let sum = key.iter().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
            let at = RemotePtr::new(NodeId::new((sum % self.nodes.max(1)) as u16), 64);
            for _ in 0..lock_reads {
                self.endpoint.span(kind).read(at, 8).await?;
            }
        }
        if !local.is_zero() {
            self.endpoint.sleep(local).await;
        }
        Ok(())
    }
}

impl<I: PointIndex> PointIndex for Charged<I> {
    fn limits(&self) -> Limits {
        self.index.limits()
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.pay(OpKind::Get, key).await?;
        self.index.get(key).await
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        for key in keys {
            self.pay(OpKind::Get, key).await?;
        }
        self.index.get_many(keys).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        self.pay(OpKind::Insert, key).await?;
        self.index.insert(key, value).await
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        self.pay(OpKind::Update, key).await?;
        self.index.update(key, value).await
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.pay(OpKind::Upsert, key).await?;
        self.index.upsert(key, value).await
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.pay(OpKind::Upsert, key).await?;
        self.index.upsert_with_outcome(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        self.pay(OpKind::Remove, key).await?;
        self.index.remove(key).await
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        self.pay(OpKind::Update, key).await?;
        self.index.replace(key, expected, value).await
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        self.pay(OpKind::Remove, key).await?;
        self.index.remove_if(key, expected).await
    }
    fn cache_bytes(&self) -> u64 {
        self.index.cache_bytes()
    }
}

impl<I: OrderedIndex> OrderedIndex for Charged<I> {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        if limit > 0 {
            let key = match bounds.0 {
                Bound::Included(key) | Bound::Excluded(key) => key,
                Bound::Unbounded => &[],
            };
            self.pay(OpKind::Scan, key).await?;
        }
        self.index.scan(bounds, limit).await
    }
}
