//! The registry of all kinds of index. A new kind is one line of `kinds!`; everything else here follows from that line.
//!
//! Invariant: an operation on an [`AnyIndex`] is dispatched once, to the kind behind the lock table that it may have.

use crate::audit::{Damage, OnDamage};
use crate::coalesce::{Coalesced, Coalescer};
use crate::kind::{self, PoolIndex, Statistics};
use crate::traits::{
    Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
use crate::tree::dex::PartitionInfo;
use crate::visit::Entries;
use crate::{IndexAudit, IndexError, Value, table_per_node};
use farindex_fabric::{Cold, OpKind, Span, apart, cold};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, PoolError, Session, catalog};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::future::Future;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

/// A kind of index, for listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its number in the catalog.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// Are its keys ordered, so that it can be scanned?
    pub ordered: bool,
    /// What it is, in a line.
    pub about: &'static str,
}

/// Is a kind of this class ordered?
macro_rules! ordered {
    (hash) => {
        false
    };
    (tree) => {
        true
    };
}

/// Scans an index of this class.
macro_rules! scan {
    (hash, $kind:expr, $index:ident, $bounds:ident, $limit:ident) => {{
        let _ = ($index, $bounds, $limit);
        Err(IndexError::NotOrdered { kind: $kind })
    }};
    (tree, $kind:expr, $index:ident, $bounds:ident, $limit:ident) => {
        $index.scan($bounds, $limit).await
    };
}

macro_rules! kinds {
    ($($(#[$cfg:meta])* $class:ident $Kind:ident => $Index:ty, $about:literal;)+) => {
        /// Every kind.
        pub const KINDS: &[Kind] = &[$(
            $(#[$cfg])*
            Kind {
                number: <$Index as PoolIndex>::KIND,
                name: <$Index as PoolIndex>::NAME,
                ordered: ordered!($class),
                about: $about,
            },
        )+];

        /// A kind of index to create, with its settings.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum IndexConfig {
            $($(#[$cfg])* #[doc = $about] $Kind(<$Index as PoolIndex>::Config),)+
        }

        impl IndexConfig {
            /// Returns the default settings of a kind, by its name.
            pub fn of_kind(kind: &str) -> Option<Self> {
                match kind {
                    $($(#[$cfg])* <$Index as PoolIndex>::NAME => Some(IndexConfig::$Kind(Default::default())),)+
                    _ => None,
                }
            }
            /// Returns the name of the kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $($(#[$cfg])* IndexConfig::$Kind(_) => <$Index as PoolIndex>::NAME,)+
                }
            }
            /// Refuses settings that name a published protocol which is known to lose data: such an index is for
            /// checkers, simulations and the papers' figures only.
            pub fn check_lossless(&self) -> Result<(), IndexError> {
                let loses_data = match self {
                    $($(#[$cfg])* IndexConfig::$Kind(config) => kind::Settings::loses_data(config),)+
                };
                if loses_data {
                    let what = "the published protocol is known to lose data: it is only for check, sim and reproduce";
                    return Err(IndexError::BadConfig(format!("{}: {what}", self.kind())));
                }
                Ok(())
            }
            /// Returns the settings that the catalog keeps of an index; `None` if its kind or format is unknown here.
            pub fn of_info(info: &IndexInfo) -> Option<Self> {
                match (info.kind, info.version) {
                    $($(#[$cfg])* (<$Index as PoolIndex>::KIND, <$Index as PoolIndex>::FORMAT) => {
                        kind::settings_of(info).ok().map(IndexConfig::$Kind)
                    })+
                    _ => None,
                }
            }
        }

        /// An open index of any kind, with or without a [lock table](crate::coalesce).
        #[non_exhaustive]
        pub enum AnyIndex {
            $($(#[$cfg])* #[doc = $about] $Kind(Coalesced<$Index>),)+
        }

        impl AnyIndex {
            /// Creates an index and opens it.
            pub async fn create(session: &Rc<Session>, name: &str, config: &IndexConfig) -> Result<Self, IndexError> {
                let create = async {
                    match config {
                        $($(#[$cfg])* IndexConfig::$Kind(config) => {
                            <$Index as PoolIndex>::create(session, name, config).await.map(Self::from)
                        })+
                    }
                };
                cold(create).await
            }
            /// Opens an index that was found in the catalog.
            pub async fn open_info(session: &Rc<Session>, info: &IndexInfo) -> Result<Self, IndexError> {
                let open = async {
                    match info.kind {
                        $($(#[$cfg])* <$Index as PoolIndex>::KIND => {
                            <$Index as PoolIndex>::open_info(session, info).await.map(Self::from)
                        })+
                        other => {
                            let (name, found) = (info.name.clone(), kind_name(other));
                            let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
                            Err(PoolError::WrongKind { name, found, wanted: known.join(", ") }.into())
                        }
                    }
                };
                cold(open).await
            }
            async fn drop_info(session: &Rc<Session>, info: &IndexInfo) -> Result<(), IndexError> {
                let end = async {
                    match info.kind {
                        $($(#[$cfg])* <$Index as PoolIndex>::KIND => drop_found::<$Index>(session, info).await,)+
                        // Reports what is wrong with it.
                        _ => Self::open_info(session, info).await.map(drop),
                    }
                };
                cold(end).await
            }
            /// Finishes the drops that crashed clients left unfinished; see [`Lifecycle::finish_drops`].
            pub async fn finish_drops(session: &Rc<Session>) -> Result<u64, IndexError> {
                let finish = async {
                    let span = session.span(OpKind::Maintenance);
                    let all = catalog::list(session.pool(), &span).await?;
                    let mut finished = 0;
                    $($(#[$cfg])* { finished += finish_found::<$Index>(session, &span, &all).await?; })+
                    Ok(finished)
                };
                cold(finish).await
            }
            /// Opens an index of each kind. See [`every_operation`].
            async fn open_each(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
                $($(#[$cfg])* { <$Index>::open(session, name).await?; })+
                Ok(())
            }
            /// Returns the name of its kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $($(#[$cfg])* AnyIndex::$Kind(_) => <$Index as PoolIndex>::NAME,)+
                }
            }
            /// Are its keys ordered?
            pub fn is_ordered(&self) -> bool {
                match self {
                    $($(#[$cfg])* AnyIndex::$Kind(_) => ordered!($class),)+
                }
            }
            /// Puts this process's lock table in front of the index; see [`OpenOptions`](crate::coalesce).
            #[must_use]
            pub fn coalesced(self, table: &Arc<Coalescer>) -> Self {
                match self {
                    $($(#[$cfg])* AnyIndex::$Kind(index) => {
                        let index = index.into_inner();
                        let uid = index.uid();
                        AnyIndex::$Kind(Coalesced::new(index, Arc::clone(table), uid))
                    })+
                }
            }
        }

        $(
            $(#[$cfg])*
            impl From<<$Index as PoolIndex>::Config> for IndexConfig {
                fn from(config: <$Index as PoolIndex>::Config) -> Self {
                    IndexConfig::$Kind(config)
                }
            }
            $(#[$cfg])*
            impl From<$Index> for AnyIndex {
                fn from(index: $Index) -> Self {
                    AnyIndex::$Kind(Coalesced::without_table(index))
                }
            }
        )+

        impl OrderedIndex for AnyIndex {
            /// An index whose keys have no order answers [`IndexError::NotOrdered`].
            async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
                let scan = async {
                    match self {
                        $($(#[$cfg])* AnyIndex::$Kind(index) => {
                            scan!($class, <$Index as PoolIndex>::NAME, index, bounds, limit)
                        })+
                    }
                };
                apart(scan).await
            }
        }

        /// Evaluates an expression on the index of whatever kind.
        macro_rules! dispatch {
            ($self:expr, $index:ident => $call:expr) => {
                match $self {
                    $($(#[$cfg])* AnyIndex::$Kind($index) => $call,)+
                }
            };
        }
    };
}

kinds! {
    hash Shard => crate::Shard, "three-level hash table with ordered CAS and lazy resizing";
    hash Race => crate::Race, "extendible hash table with two choices and shared overflow buckets";
    hash SepHash => crate::SepHash, "extendible hash table that appends and merges; upserts are blind";
    hash Linear => crate::Linear, "linear probing with a variable read size, records in the slots or out of band";
    hash Cuckoo => crate::Cuckoo, "cuckoo hashing with three places for each key, and displacement";
    tree Sherman => crate::Sherman, "B+ tree with cached inner nodes; a leaf is read whole";
    tree Chime => crate::Chime, "B+ tree whose leaves are hopscotch hash tables; a neighbourhood is read";
    tree Dex => crate::Dex, "B+ tree divided among compute nodes; each caches the leaves that it owns, and alone writes them";
    #[cfg(feature = "test-kinds")] tree BLink => crate::tree::blink::BLink, "B-link tree with a lock for each node, for tests alone";
}

/// What only an index can do that is divided among compute nodes; any other kind answers [`IndexError::NotPartitioned`].
impl AnyIndex {
    /// Makes this compute node the owner of all keys within these bounds: see [`Dex::own`](crate::Dex::own).
    pub async fn own(&self, bounds: KeyBounds<'_>) -> Result<(), IndexError> {
        apart(self.divided()?.own(bounds)).await
    }
    /// Gives the keys within these bounds back: see [`Dex::give_up`](crate::Dex::give_up).
    pub async fn give_up(&self, bounds: KeyBounds<'_>) -> Result<(), IndexError> {
        apart(self.divided()?.give_up(bounds)).await
    }
    /// Lists the ranges of keys and their owners: see [`Dex::partition_list`](crate::Dex::partition_list).
    pub async fn partitions(&self) -> Result<Vec<PartitionInfo>, IndexError> {
        apart(self.divided()?.partition_list()).await
    }
    /// Writes to far memory what this compute node has acknowledged and has in its cache alone: see
    /// [`Dex::flush`](crate::Dex::flush). Every other kind acknowledges what is in far memory.
    pub async fn flush(&self) -> Result<(), IndexError> {
        match self {
            AnyIndex::Dex(index) => cold(index.inner().flush()).await,
            _ => Ok(()),
        }
    }
    fn divided(&self) -> Result<&crate::Dex, IndexError> {
        match self {
            AnyIndex::Dex(index) => Ok(index.inner()),
            other => Err(IndexError::NotPartitioned { kind: other.kind() }),
        }
    }
}

impl From<&IndexConfig> for IndexConfig {
    fn from(config: &IndexConfig) -> Self {
        *config
    }
}

/// What follows from [`PoolIndex`] for every kind, and what no kind may do otherwise.
pub trait Lifecycle: PoolIndex {
    /// Opens the index of this name.
    fn open(session: &Rc<Session>, name: &str) -> impl Future<Output = Result<Self, IndexError>>;

    /// Drops the index of this name. No client can open it any more; a client that has it open gets an error from its
    /// next operation. Its memory is freed when all operations that may still use it have ended.
    fn drop_index(session: &Rc<Session>, name: &str) -> impl Future<Output = Result<(), IndexError>>;

    /// Finishes drops of this kind whose clients have crashed: no client finds such an index any more, and its entry in
    /// the catalog becomes free. It is unknown which of its memory was freed already; the rest is left to
    /// [`Audit::reclaim`](farindex_pool::audit::Audit). If a drop is still going on, its client goes on freeing.
    /// Returns the number of drops.
    fn finish_drops(session: &Rc<Session>) -> impl Future<Output = Result<u64, IndexError>>;
}

impl<I: PoolIndex> Lifecycle for I {
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        cold(open(session, name)).await
    }

    async fn drop_index(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        cold(drop_index::<I>(session, name)).await
    }

    async fn finish_drops(session: &Rc<Session>) -> Result<u64, IndexError> {
        let finish = async {
            let span = session.span(OpKind::Maintenance);
            let all = catalog::list(session.pool(), &span).await?;
            finish_found::<I>(session, &span, &all).await
        };
        cold(finish).await
    }
}

/// See [`Lifecycle::open`].
async fn open<I: PoolIndex>(session: &Rc<Session>, name: &str) -> Result<I, IndexError> {
    I::open_info(session, &find_kind::<I>(session, name).await?).await
}

async fn find_kind<I: PoolIndex>(session: &Session, name: &str) -> Result<IndexInfo, IndexError> {
    let info = find(session, name).await?;
    if info.kind != I::KIND {
        let found = kind_name(info.kind);
        return Err(PoolError::WrongKind { name: info.name, found, wanted: I::NAME.to_owned() }.into());
    }
    Ok(info)
}

/// See [`Lifecycle::drop_index`].
async fn drop_index<I: PoolIndex>(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
    drop_found::<I>(session, &find_kind::<I>(session, name).await?).await
}

async fn drop_found<I: PoolIndex>(session: &Rc<Session>, info: &IndexInfo) -> Result<(), IndexError> {
    let span = session.span(OpKind::Other);
    let index = I::open_info(session, info).await?;
    let info = catalog::begin_drop(session, &span, info).await?;
    index.finish_drop(&span, &info).await
}

/// Finishes those drops of a kind that are in this list of the catalog: see [`Lifecycle::finish_drops`]. An entry that has
/// gone or changed since the list was read is left alone, as its number tells.
async fn finish_found<I: PoolIndex>(session: &Rc<Session>, span: &Span, all: &[IndexInfo]) -> Result<u64, IndexError> {
    let mut finished = 0;
    for info in all.iter().filter(|info| info.dropping && info.kind == I::KIND) {
        // A copy that has taken the place of another index may have two entries: the index is not dropped with the
        // first.
        if !all.iter().any(|other| !other.dropping && other.uid == info.uid) {
            I::mark_dropped(session, info).await?;
        }
        catalog::end_drop(session, span, info).await?;
        finished += 1;
    }
    Ok(finished)
}

impl Default for IndexConfig {
    fn default() -> Self {
        IndexConfig::Shard(Default::default())
    }
}

/// Returns the name of a kind of index, for people.
pub fn kind_name(number: u32) -> String {
    let known = KINDS.iter().find(|kind| kind.number == number);
    known.map_or_else(|| format!("kind {number} (of a newer farindex release)"), |kind| kind.name.to_owned())
}

impl AnyIndex {
    /// Opens the index of this name, whatever its kind.
    pub async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        Self::open_info(session, &find(session, name).await?).await
    }

    /// Drops the index of this name; see [`Lifecycle::drop_index`].
    pub async fn drop_named(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        Self::drop_info(session, &find(session, name).await?).await
    }

    /// See [`PoolIndex::uid`].
    pub fn uid(&self) -> u64 {
        dispatch!(self, index => index.inner().uid())
    }
    /// After an operation, which holds no pin any more: a turn for the thread's other coroutines, if that is due.
    async fn let_others_run(&self) {
        dispatch!(self, index => index.inner().session()).endpoint().let_others_run().await;
    }
    /// See [`PoolIndex::statistics`].
    pub fn statistics(&self) -> Statistics {
        dispatch!(self, index => index.inner().statistics())
    }
    /// See [`PoolIndex::recover`].
    pub async fn recover(&self) -> Result<u64, IndexError> {
        cold(async { dispatch!(self, index => index.inner().recover().await) }).await
    }
    /// See [`PoolIndex::audit`].
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        cold(async { dispatch!(self, index => index.inner().audit(audit, alone).await) }).await
    }
    /// See [`PoolIndex::visit`]. Each damaged place is reported once, however often the kind's walk comes across it.
    pub async fn visit(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let entries = Entries::default();
        entries.give_to(cold(self.visit_entries(&entries, damaged)), each).await
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        let mut reported = HashSet::new();
        let mut once = |damage: Damage| if reported.insert(damage.clone()) { damaged(damage) } else { Ok(()) };
        dispatch!(self, index => cold(table_per_node::TablePerNode::visit_entries(index.inner(), entries, &mut once)).await)
    }
}

/// Awaits every operation. Nobody calls it: because of it, this crate compiles what [`apart`] and [`cold`] keep apart, and
/// the crates above need not.
#[doc(hidden)]
pub fn every_operation<'a>(session: &'a Rc<Session>, key: &'a [u8]) -> Cold<'a, Result<(), IndexError>> {
    cold(async move {
        AnyIndex::open_each(session, "").await?;
        let index = AnyIndex::create(session, "", &IndexConfig::default()).await?;
        index.get(key).await?;
        index.get_many(&[key]).await?;
        index.insert(key, key).await?;
        index.update(key, key).await?;
        index.upsert(key, key).await?;
        index.upsert_with_outcome(key, key).await?;
        index.upsert_many(&[(key, key)]).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        index.remove(key).await?;
        index.replace(key, key, key).await?;
        index.remove_if(key, key).await?;
        index.scan((Bound::Unbounded, Bound::Unbounded), 0).await?;
        index.own((Bound::Unbounded, Bound::Unbounded)).await?;
        index.give_up((Bound::Unbounded, Bound::Unbounded)).await?;
        index.partitions().await?;
        index.flush().await?;
        index.visit(async |_, _| Ok(()), &mut Damage::fail).await?;
        index.recover().await?;
        index.audit(&mut Audit::begin(session, &session.span(OpKind::Other)).await?, true).await?;
        AnyIndex::drop_named(session, "").await?;
        AnyIndex::finish_drops(session).await?;
        AnyIndex::open(session, "").await.map(drop)
    })
}

async fn find(session: &Session, name: &str) -> Result<IndexInfo, IndexError> {
    let span = session.span(OpKind::Other);
    Ok(catalog::find(session.pool(), &span, name).await?)
}

/// Carries out an operation. (A macro, because a future that a function is given is in the function's own twice.)
macro_rules! operation {
    ($self:expr, $index:ident => $call:expr) => {
        apart(async {
            let done = dispatch!($self, $index => $call.await);
            $self.let_others_run().await;
            done
        })
        .await
    };
}

impl PointIndex for AnyIndex {
    fn limits(&self) -> Limits {
        dispatch!(self, index => index.limits())
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        operation!(self, index => index.get(key))
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        operation!(self, index => index.get_many(keys))
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        operation!(self, index => index.insert(key, value))
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        operation!(self, index => index.update(key, value))
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        operation!(self, index => index.upsert(key, value))
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        operation!(self, index => index.upsert_with_outcome(key, value))
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        operation!(self, index => index.upsert_many(pairs))
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        operation!(self, index => index.remove(key))
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        operation!(self, index => index.replace(key, expected, value))
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        operation!(self, index => index.remove_if(key, expected))
    }
    fn cache_bytes(&self) -> u64 {
        dispatch!(self, index => index.cache_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{IndexConfig, KINDS};

    #[test]
    fn settings_of_a_published_protocol_are_refused() {
        for kind in ["shard", "race", "sherman"] {
            let tag = serde_json::json!({ "kind": kind, "variant": "published" });
            let config: IndexConfig = serde_json::from_value(tag).expect("settings");
            assert!(config.check_lossless().is_err());
        }
    }

    #[test]
    fn registry_names_each_kind_once() {
        for kind in KINDS {
            let config = IndexConfig::of_kind(kind.name).expect("a kind");
            assert_eq!(config.kind(), kind.name);
            assert_eq!(KINDS.iter().filter(|other| other.number == kind.number || other.name == kind.name).count(), 1);
            let tag = serde_json::to_value(config).expect("JSON");
            assert_eq!(tag["kind"], kind.name);
            assert_eq!(serde_json::from_value::<IndexConfig>(tag).expect("settings"), config);
            assert_eq!(config.check_lossless(), Ok(()));
        }
    }
}
