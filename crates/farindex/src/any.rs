//! Any index of a pool, whatever its kind.

use farindex_index::shard::{self, Shard};
use farindex_index::{
    Coalesced, Coalescer, HashIndex, IndexAudit, IndexError, Insert, Limits, Remove, Update, Upsert, Value,
};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, PoolError, Session, catalog};
use std::rc::Rc;
use std::sync::Arc;

/// What kind of index to create, and its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum IndexConfig {
    /// [`farindex_index::shard`].
    Shard(shard::Config),
}

impl Default for IndexConfig {
    fn default() -> Self {
        IndexConfig::Shard(shard::Config::default())
    }
}

impl IndexConfig {
    /// Names of all kinds.
    pub const KINDS: [&'static str; 1] = ["shard"];

    /// The default settings of a kind.
    pub fn of_kind(kind: &str) -> Option<Self> {
        (kind == "shard").then(Self::default)
    }
    /// Name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            IndexConfig::Shard(_) => "shard",
        }
    }
}

/// An open index.
#[non_exhaustive]
pub enum AnyIndex {
    /// [`farindex_index::shard`].
    Shard(Shard),
    /// The same behind this process's [lock table](farindex_index::coalesce).
    CoalescedShard(Coalesced<Shard>),
}

/// How to open an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Operations of this process on one key share their verbs: see [`farindex_index::coalesce`].
    ///
    /// It pays for skewed workloads on a network, where a round trip costs far more than what it adds to every operation,
    /// and where the CASes of many threads on one key make each other fail. It is off by default because uniform
    /// workloads, and fabrics as fast as memory, only pay; and because operations of this process then wait for each
    /// other: one that was started and is neither run nor dropped holds up all others on its key.
    pub coalesce: bool,
}

impl AnyIndex {
    /// Creates an index in a session of the pool below, for those who build on the crates underneath.
    pub async fn create(session: &Rc<Session>, name: &str, config: &IndexConfig) -> Result<Self, IndexError> {
        match config {
            IndexConfig::Shard(config) => Ok(AnyIndex::Shard(Shard::create(session, name, config).await?)),
        }
    }

    /// Opens one there, whatever its kind.
    pub async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        let span = session.span(farindex_fabric::OpKind::Other);
        let info = catalog::find(session.pool(), &span, name).await?;
        Self::open_info(session, &info).await
    }

    pub(crate) async fn open_info(session: &Rc<Session>, info: &IndexInfo) -> Result<Self, IndexError> {
        match info.kind {
            shard::KIND => Ok(AnyIndex::Shard(Shard::open_info(session, info).await?)),
            other => {
                let (name, found) = (info.name.clone(), farindex_index::kind_name(other));
                Err(PoolError::WrongKind { name, found, wanted: IndexConfig::KINDS.join(", ") }.into())
            }
        }
    }

    /// The same index behind the process's lock table.
    #[must_use]
    pub fn coalesced(self, table: &Arc<Coalescer>) -> Self {
        match self {
            AnyIndex::Shard(index) => {
                let uid = index.uid();
                AnyIndex::CoalescedShard(Coalesced::new(index, Arc::clone(table), uid))
            }
            already @ AnyIndex::CoalescedShard(_) => already,
        }
    }

    pub(crate) async fn drop_named(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        match Self::open(session, name).await? {
            AnyIndex::Shard(_) | AnyIndex::CoalescedShard(_) => Shard::drop_index(session, name).await,
        }
    }

    /// Walks the whole index for what dead clients have left, and puts it right; returns how many places there were.
    pub async fn mend(&self) -> Result<u64, IndexError> {
        match self {
            AnyIndex::Shard(index) => index.mend().await,
            AnyIndex::CoalescedShard(index) => index.inner().mend().await,
        }
    }

    /// Walks the whole index and checks every entry.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        match self {
            AnyIndex::Shard(index) => index.audit(audit, alone).await,
            AnyIndex::CoalescedShard(index) => index.inner().audit(audit, alone).await,
        }
    }

    /// Calls `each` with every key and value; see [`Shard::for_each`] for the promise.
    pub async fn for_each(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
    ) -> Result<u64, IndexError> {
        match self {
            AnyIndex::Shard(index) => index.for_each(each).await,
            AnyIndex::CoalescedShard(index) => index.inner().for_each(each).await,
        }
    }

    /// Name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            AnyIndex::Shard(_) | AnyIndex::CoalescedShard(_) => "shard",
        }
    }
}

macro_rules! every_kind {
    ($self:ident, $index:ident => $call:expr) => {
        match $self {
            AnyIndex::Shard($index) => $call,
            AnyIndex::CoalescedShard($index) => $call,
        }
    };
}

impl HashIndex for AnyIndex {
    fn limits(&self) -> Limits {
        every_kind!(self, index => index.limits())
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        every_kind!(self, index => index.get(key).await)
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        every_kind!(self, index => index.insert(key, value).await)
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        every_kind!(self, index => index.update(key, value).await)
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        every_kind!(self, index => index.upsert(key, value).await)
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        every_kind!(self, index => index.remove(key).await)
    }
    fn cache_bytes(&self) -> u64 {
        every_kind!(self, index => index.cache_bytes())
    }
}
