//! Any index of a pool, whatever its kind.
//!
//! A kind is a line of `kinds!`; everything else here follows from it.

use farindex_fabric::OpKind;
use farindex_index::audit::{Damage, OnDamage};
use farindex_index::kind::{PoolIndex, Settings};
use farindex_index::{
    Coalesced, Coalescer, IndexAudit, IndexError, Insert, Limits, PointIndex, Remove, Update, Upsert, Value, kind_name,
};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, PoolError, Session, catalog};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident => $Index:ty,)+) => {
        /// What kind of index to create, and its settings.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum IndexConfig {
            $($(#[$doc])* $Kind(<$Index as PoolIndex>::Config),)+
        }

        impl IndexConfig {
            /// Names of all kinds.
            pub const KINDS: &[&str] = &[$(<$Index as PoolIndex>::NAME,)+];

            /// The default settings of a kind.
            pub fn of_kind(kind: &str) -> Option<Self> {
                match kind {
                    $(<$Index as PoolIndex>::NAME => Some(IndexConfig::$Kind(Default::default())),)+
                    _ => None,
                }
            }
            /// Name of the kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(IndexConfig::$Kind(_) => <$Index as PoolIndex>::NAME,)+
                }
            }
            /// The settings that the catalog keeps of an index; `None` if it is of no kind or format that is known here.
            pub fn of_info(info: &IndexInfo) -> Option<Self> {
                match (info.kind, info.version) {
                    $((<$Index as PoolIndex>::KIND, <$Index as PoolIndex>::FORMAT) => {
                        <$Index as PoolIndex>::Config::decode(&info.config).ok().map(IndexConfig::$Kind)
                    })+
                    _ => None,
                }
            }
        }

        /// An open index as its kind made it.
        #[non_exhaustive]
        pub enum Plain {
            $($(#[$doc])* $Kind($Index),)+
        }

        impl Plain {
            async fn create(session: &Rc<Session>, name: &str, config: &IndexConfig) -> Result<Self, IndexError> {
                match config {
                    $(IndexConfig::$Kind(config) => {
                        <$Index as PoolIndex>::create(session, name, config).await.map(Plain::$Kind)
                    })+
                }
            }
            async fn open_info(session: &Rc<Session>, info: &IndexInfo) -> Result<Self, IndexError> {
                match info.kind {
                    $(<$Index as PoolIndex>::KIND => {
                        <$Index as PoolIndex>::open_info(session, info).await.map(Plain::$Kind)
                    })+
                    other => {
                        let (name, found) = (info.name.clone(), kind_name(other));
                        Err(PoolError::WrongKind { name, found, wanted: IndexConfig::KINDS.join(", ") }.into())
                    }
                }
            }
            async fn drop_info(session: &Rc<Session>, info: &IndexInfo) -> Result<(), IndexError> {
                match info.kind {
                    $(<$Index as PoolIndex>::KIND => <$Index as PoolIndex>::drop_index(session, &info.name).await,)+
                    // Says what is wrong with it.
                    _ => Self::open_info(session, info).await.map(drop),
                }
            }
            async fn finish_drops(session: &Rc<Session>) -> Result<u64, IndexError> {
                let mut finished = 0;
                $(finished += <$Index as PoolIndex>::finish_drops(session).await?;)+
                Ok(finished)
            }
            /// Name of its kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Plain::$Kind(_) => <$Index as PoolIndex>::NAME,)+
                }
            }
        }

        /// Does something with an index of any kind.
        macro_rules! whatever {
            ($self:expr, $index:ident => $call:expr) => {
                match $self {
                    $(Plain::$Kind($index) => $call,)+
                }
            };
        }
    };
}

kinds! {
    /// [`farindex_index::shard`].
    Shard => farindex_index::Shard,
    /// [`farindex_index::race`].
    Race => farindex_index::Race,
    /// [`farindex_index::sephash`].
    SepHash => farindex_index::SepHash,
    /// [`farindex_index::linear`].
    Linear => farindex_index::Linear,
    /// [`farindex_index::cuckoo`].
    Cuckoo => farindex_index::Cuckoo,
}

impl Default for IndexConfig {
    fn default() -> Self {
        IndexConfig::Shard(Default::default())
    }
}

impl PointIndex for Plain {
    fn limits(&self) -> Limits {
        whatever!(self, index => index.limits())
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        whatever!(self, index => index.get(key).await)
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        whatever!(self, index => index.get_many(keys).await)
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        whatever!(self, index => index.insert(key, value).await)
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        whatever!(self, index => index.update(key, value).await)
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        whatever!(self, index => index.upsert(key, value).await)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        whatever!(self, index => index.upsert_with_outcome(key, value).await)
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        whatever!(self, index => index.remove(key).await)
    }
    fn cache_bytes(&self) -> u64 {
        whatever!(self, index => index.cache_bytes())
    }
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

/// An open index.
#[non_exhaustive]
pub enum AnyIndex {
    /// As its kind made it.
    Plain(Plain),
    /// The same behind this process's [lock table](farindex_index::coalesce).
    Coalesced(Coalesced<Plain>),
}

impl AnyIndex {
    /// Creates an index in a session of the pool below, for those who build on the crates underneath.
    pub async fn create(session: &Rc<Session>, name: &str, config: &IndexConfig) -> Result<Self, IndexError> {
        Plain::create(session, name, config).await.map(AnyIndex::Plain)
    }

    /// Opens one there, whatever its kind.
    pub async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        Self::open_info(session, &find(session, name).await?).await
    }

    pub(crate) async fn open_info(session: &Rc<Session>, info: &IndexInfo) -> Result<Self, IndexError> {
        Plain::open_info(session, info).await.map(AnyIndex::Plain)
    }

    pub(crate) async fn drop_named(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        Plain::drop_info(session, &find(session, name).await?).await
    }

    pub(crate) async fn finish_drops(session: &Rc<Session>) -> Result<u64, IndexError> {
        Plain::finish_drops(session).await
    }

    /// The same index behind the process's lock table.
    #[must_use]
    pub fn coalesced(self, table: &Arc<Coalescer>) -> Self {
        match self {
            AnyIndex::Plain(index) => {
                let uid = whatever!(&index, index => index.uid());
                AnyIndex::Coalesced(Coalesced::new(index, Arc::clone(table), uid))
            }
            already @ AnyIndex::Coalesced(_) => already,
        }
    }

    /// The index as its kind made it.
    pub fn plain(&self) -> &Plain {
        match self {
            AnyIndex::Plain(index) => index,
            AnyIndex::Coalesced(index) => index.inner(),
        }
    }

    /// Walks the whole index for what dead clients have left, and puts it right; returns how many places there were.
    pub async fn recover(&self) -> Result<u64, IndexError> {
        whatever!(self.plain(), index => index.recover().await)
    }

    /// Walks the whole index and checks every entry.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        whatever!(self.plain(), index => index.audit(audit, alone).await)
    }

    /// Calls `each` with every key and value; see [`PoolIndex::for_each`] for the promise. `damaged` is told of each place once,
    /// however often the index's kind comes by it.
    pub async fn for_each(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut told = HashSet::new();
        let mut once = |damage: Damage| if told.insert(damage.clone()) { damaged(damage) } else { Ok(()) };
        whatever!(self.plain(), index => index.for_each(each, &mut once).await)
    }

    /// How often it has grown, as far as this handle knows.
    pub fn resizes(&self) -> u64 {
        whatever!(self.plain(), index => index.resizes())
    }

    /// Name of its kind.
    pub fn kind(&self) -> &'static str {
        self.plain().kind()
    }
}

async fn find(session: &Session, name: &str) -> Result<IndexInfo, IndexError> {
    let span = session.span(OpKind::Other);
    Ok(catalog::find(session.pool(), &span, name).await?)
}

macro_rules! either {
    ($self:ident, $index:ident => $call:expr) => {
        match $self {
            AnyIndex::Plain($index) => $call,
            AnyIndex::Coalesced($index) => $call,
        }
    };
}

impl PointIndex for AnyIndex {
    fn limits(&self) -> Limits {
        either!(self, index => index.limits())
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        either!(self, index => index.get(key).await)
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        either!(self, index => index.get_many(keys).await)
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        either!(self, index => index.insert(key, value).await)
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        either!(self, index => index.update(key, value).await)
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        either!(self, index => index.upsert(key, value).await)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        either!(self, index => index.upsert_with_outcome(key, value).await)
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        either!(self, index => index.remove(key).await)
    }
    fn cache_bytes(&self) -> u64 {
        either!(self, index => index.cache_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::IndexConfig;

    #[test]
    fn kinds_have_one_name_everywhere() {
        let listed: Vec<_> = farindex_index::kind::KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(listed, IndexConfig::KINDS);
        for name in listed {
            let config = IndexConfig::of_kind(name).expect("a kind");
            assert_eq!(config.kind(), name);
            let tag = serde_json::to_value(config).expect("JSON");
            assert_eq!(tag["kind"], name);
            assert_eq!(serde_json::from_value::<IndexConfig>(tag).expect("settings"), config);
        }
    }
}
