//! What kinds of index there are, and what a pool's catalog, its checks and its tests need of each.
//!
//! Invariants: a kind's number and name never change, and no other kind ever has them; settings are stored with the index
//! and are refused, not guessed, if they make no sense.

use crate::audit::OnDamage;
use crate::{IndexAudit, IndexError, PointIndex, Value, handle};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::layout::CONFIG_LEN;
use farindex_pool::{IndexInfo, PoolError, Session, catalog};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::future::Future;
use std::rc::Rc;

/// Settings of a kind of index: what its creator chooses, and the catalog keeps.
pub trait Settings: Clone + Copy + Debug + Default + PartialEq + Serialize + DeserializeOwned + 'static {
    /// Are they within bounds?
    fn check(&self) -> Result<(), IndexError>;
    /// For the catalog.
    fn encode(&self) -> [u8; CONFIG_LEN];
    /// From the catalog.
    fn decode(bytes: &[u8; CONFIG_LEN]) -> Result<Self, IndexError>;
}

/// A kind of index: how one comes into a pool, is looked after, and goes.
///
/// ```
/// use farindex_index::{PoolIndex, Shard};
/// assert_eq!(Shard::NAME, "shard");
/// ```
pub trait PoolIndex: PointIndex + Sized + 'static {
    /// Its settings.
    type Config: Settings;
    /// Its number in the catalog.
    const KIND: u32;
    /// Its name.
    const NAME: &'static str;
    /// Version of its format.
    const FORMAT: u32;
    /// Bytes of the root that it has on each memory node.
    const ROOT_LEN: u64;

    /// Makes an index and opens it.
    fn create(
        session: &Rc<Session>,
        name: &str,
        config: &Self::Config,
    ) -> impl Future<Output = Result<Self, IndexError>>;

    /// Opens an index that was found in the catalog.
    fn open_info(session: &Rc<Session>, info: &IndexInfo) -> impl Future<Output = Result<Self, IndexError>>;

    /// Opens the index of this name.
    fn open(session: &Rc<Session>, name: &str) -> impl Future<Output = Result<Self, IndexError>> {
        async {
            let span = session.span(OpKind::Other);
            let info = catalog::find(session.pool(), &span, name).await?;
            Self::open_info(session, &info).await
        }
    }

    /// Drops the index of this name: nobody can open it any more; whoever has it open is told at the next operation; its
    /// memory goes back once all operations that may still use it have ended.
    fn drop_index(session: &Rc<Session>, name: &str) -> impl Future<Output = Result<(), IndexError>> {
        async {
            let span = session.span(OpKind::Other);
            let index = Self::open(session, name).await?;
            let info = catalog::begin_drop(session, &span, name).await?;
            index.finish_drop(&span, &info).await
        }
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    fn finish_drop(&self, span: &Span, info: &IndexInfo) -> impl Future<Output = Result<(), IndexError>>;

    /// Finishes drops of this kind whose clients have died: nobody finds such an index any more, and its entry in the catalog
    /// becomes free. Which of its memory went back already cannot be told; the rest is left to
    /// [`Audit::reclaim`](farindex_pool::audit::Audit). If a drop is still going on, its client goes on freeing. Returns how
    /// many there were.
    fn finish_drops(session: &Rc<Session>) -> impl Future<Output = Result<u64, IndexError>> {
        async {
            let span = session.span(OpKind::Maintenance);
            let all = catalog::list(session.pool(), &span).await?;
            let mut finished = 0;
            for info in all.iter().filter(|info| info.dropping && info.kind == Self::KIND) {
                // A copy that has taken the place of another index may have two entries: the index is not dropped with the first.
                if !all.iter().any(|other| !other.dropping && other.uid == info.uid) {
                    handle::mark_all_dropped::<Self>(session, info).await?;
                }
                catalog::end_drop(session, &span, info).await?;
                finished += 1;
            }
            Ok(finished)
        }
    }

    /// Tells everybody that the index with this seal has been dropped, if this is a root of it.
    fn mark_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> impl Future<Output = Result<(), IndexError>>;

    /// Its number in the catalog, which no other index of the pool ever has.
    fn uid(&self) -> u64;

    /// How often it has grown, as far as this handle knows.
    fn resizes(&self) -> u64;

    /// Walks the whole index for what the dead have left, and puts it right; returns how many places there were.
    fn recover(&self) -> impl Future<Output = Result<u64, IndexError>>;

    /// Walks the whole index, notes every object in `audit`, and checks every entry. `alone` says that no other client is
    /// at work: then nothing may be unfinished.
    fn audit(&self, audit: &mut Audit, alone: bool) -> impl Future<Output = Result<IndexAudit, IndexError>>;

    /// Calls `each` with keys and values; returns how often. Each key is met at most once, with a value that it had during the
    /// walk; a key that is there all the time is met. Nothing is pinned while `each` runs. What cannot be read is reported to
    /// `damaged`, which decides whether the walk goes on.
    fn for_each(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> impl Future<Output = Result<u64, IndexError>>;
}

/// Is this an index of kind `I`, in a format that is known here? Everyone who opens one asks.
pub(crate) fn expect_kind<I: PoolIndex>(info: &IndexInfo) -> Result<I::Config, IndexError> {
    if info.kind != I::KIND {
        let found = kind_name(info.kind);
        return Err(PoolError::WrongKind { name: info.name.clone(), found, wanted: I::NAME.to_owned() }.into());
    }
    if info.version != I::FORMAT {
        let (name, found) = (info.name.clone(), info.version);
        return Err(PoolError::IndexVersion { name, found, expected: I::FORMAT }.into());
    }
    I::Config::decode(&info.config)
}

/// May an index of this name be made? Somebody else may take it meanwhile: the catalog has the last word. Returns the
/// largest uid in the catalog.
pub(crate) async fn expect_new(session: &Session, name: &str) -> Result<u64, IndexError> {
    catalog::check_name(name)?;
    let span = session.span(OpKind::Other);
    let all = catalog::list(session.pool(), &span).await?;
    if all.iter().any(|info| info.name == name && !info.dropping) {
        return Err(PoolError::IndexExists(name.to_owned()).into());
    }
    Ok(all.iter().map(|info| info.uid).max().unwrap_or_default())
}

/// What the roots of an index bear, and nothing else does.
pub(crate) fn index_tag(session: &Session, uid: u64) -> u64 {
    let [a, b] = session.pool().superblock(farindex_pool::layout::HOME).pool_id;
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..16].copy_from_slice(&b.to_le_bytes());
    bytes[16..].copy_from_slice(&uid.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// [`PoolIndex`] for a type whose methods of its own have these names.
macro_rules! pool_index {
    ($index:ty, $config:ty, $kind:expr, $name:literal, $format:expr, root: $root_len:expr, $mark_dropped:path) => {
        impl $crate::kind::PoolIndex for $index {
            type Config = $config;
            const KIND: u32 = $kind;
            const NAME: &'static str = $name;
            const FORMAT: u32 = $format;
            const ROOT_LEN: u64 = $root_len as u64;

            async fn create(session: &Rc<Session>, name: &str, config: &$config) -> Result<Self, IndexError> {
                <$index>::create(session, name, config).await
            }
            async fn open_info(session: &Rc<Session>, info: &IndexInfo) -> Result<Self, IndexError> {
                <$index>::open_info(session, info).await
            }
            async fn finish_drop(&self, span: &farindex_fabric::Span, info: &IndexInfo) -> Result<(), IndexError> {
                self.finish_drop(span, info).await
            }
            async fn mark_dropped(
                span: &farindex_fabric::Span,
                root: farindex_fabric::RemotePtr,
                index_tag: u64,
            ) -> Result<(), IndexError> {
                $mark_dropped(span, root, index_tag).await
            }
            fn uid(&self) -> u64 {
                self.uid
            }
            fn resizes(&self) -> u64 {
                self.resizes()
            }
            async fn recover(&self) -> Result<u64, IndexError> {
                self.recover().await
            }
            async fn audit(
                &self,
                audit: &mut farindex_pool::audit::Audit,
                alone: bool,
            ) -> Result<$crate::IndexAudit, IndexError> {
                self.audit(audit, alone).await
            }
            async fn for_each(
                &self,
                each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
                damaged: $crate::audit::OnDamage<'_>,
            ) -> Result<u64, IndexError> {
                self.for_each(each, damaged).await
            }
        }
    };
}
pub(crate) use pool_index;

/// One kind, for those who list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its number in the catalog.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
}

const fn kind<I: PoolIndex>(about: &'static str) -> Kind {
    Kind { number: I::KIND, name: I::NAME, about }
}

/// Every kind.
pub const KINDS: [Kind; 5] = [
    kind::<crate::Shard>("three-level hash table with ordered CAS and lazy resizing"),
    kind::<crate::Race>("extendible hash table with two choices and shared overflow buckets"),
    kind::<crate::SepHash>("extendible hash table that appends and merges; upserts are blind"),
    kind::<crate::Linear>("linear probing with a variable read size, records in the slots or out of band"),
    kind::<crate::Cuckoo>("cuckoo hashing with three places for each key, and displacement"),
];

/// Name of a kind of index, for people.
pub fn kind_name(number: u32) -> String {
    let known = KINDS.iter().find(|kind| kind.number == number);
    known.map_or_else(|| format!("kind {number} (of a newer farindex release)"), |kind| kind.name.to_owned())
}
