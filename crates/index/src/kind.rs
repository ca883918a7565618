//! What kinds of index there are, and what a pool's catalog, its checks and its tests need of each.
//!
//! Invariants: a kind's number and name never change, and no other kind ever has them; settings are stored with the index
//! and are refused, not guessed, if they make no sense.

use crate::audit::OnDamage;
use crate::registry::kind_name;
use crate::{IndexAudit, IndexError, PointIndex, Value, handle};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, PoolError, Session, catalog};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::future::Future;
use std::rc::Rc;

/// Settings of a kind of index: what its creator chooses, and the catalog keeps.
///
/// The catalog holds them in the [postcard](https://docs.rs/postcard) format, in the order of the struct's fields. A change
/// of the fields is a new [version](Self::VERSION).
pub trait Settings: Clone + Copy + Debug + Default + PartialEq + Serialize + DeserializeOwned + 'static {
    /// Version of the settings, which the catalog keeps with them: raised when a field is added, removed or changed.
    const VERSION: u32;
    /// Checks that they are within bounds.
    fn check(&self) -> Result<(), IndexError>;
}

/// Encodes settings for the catalog.
pub(crate) fn encode<S: Settings>(settings: &S) -> Result<Vec<u8>, IndexError> {
    let bad = |error: postcard::Error| IndexError::BadConfig(format!("settings that cannot be stored: {error}"));
    postcard::to_allocvec(settings).map_err(bad)
}

/// Decodes settings from the catalog; settings that are out of bounds are refused.
pub(crate) fn decode<S: Settings>(bytes: &[u8]) -> Result<S, IndexError> {
    let bad = |what: String| IndexError::BadConfig(format!("the settings in the catalog are not readable: {what}"));
    let (settings, rest) = postcard::take_from_bytes::<S>(bytes).map_err(|error| bad(error.to_string()))?;
    if !rest.is_empty() {
        return Err(bad(format!("{} bytes too many", rest.len())));
    }
    settings.check()?;
    Ok(settings)
}

/// Reads the settings of an index from its entry in the catalog.
pub(crate) fn settings_of<S: Settings>(info: &IndexInfo) -> Result<S, IndexError> {
    decode(info.config_of(S::VERSION)?)
}

/// Figures of an open index that cost no verb.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// How often the index has grown, as far as this handle knows: resizes of a table, splits of the deepest segment or of
    /// a tree's root.
    pub resizes: u64,
}

/// A kind of index: how one is created in a pool, opened, checked, recovered and dropped.
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

    /// Creates an index and opens it.
    fn create(
        session: &Rc<Session>,
        name: &str,
        config: &Self::Config,
    ) -> impl Future<Output = Result<Self, IndexError>>;

    /// Opens an index that was found in the catalog.
    fn open_info(session: &Rc<Session>, info: &IndexInfo) -> impl Future<Output = Result<Self, IndexError>>;

    /// Second half of a drop: waits until no client can still use the index, and frees its memory.
    fn finish_drop(&self, span: &Span, info: &IndexInfo) -> impl Future<Output = Result<(), IndexError>>;

    /// Marks the root as dropped, if it is a root of the index with this tag: every client that has the index open gets an
    /// error from its next operation.
    fn mark_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> impl Future<Output = Result<(), IndexError>>;

    /// Returns the index's number in the catalog, which no other index of the pool ever has.
    fn uid(&self) -> u64;

    /// Returns figures that cost no verb.
    fn statistics(&self) -> Statistics;

    /// Scans the index, recovers every structure that a crashed client left unfinished, and returns the number of repairs.
    fn recover(&self) -> impl Future<Output = Result<u64, IndexError>>;

    /// Walks the whole index, records every object in `audit`, and checks every entry. `alone` states that no other client
    /// is at work: then an unfinished structure is a problem.
    fn audit(&self, audit: &mut Audit, alone: bool) -> impl Future<Output = Result<IndexAudit, IndexError>>;

    /// Calls `each` with keys and values; returns the number of calls. Each key is visited at most once, with a value that
    /// it had during the walk; a key that is present during the whole walk is visited. Nothing is pinned while `each` runs.
    /// An ordered index visits keys in ascending order. What cannot be read is reported to `damaged`, which decides whether
    /// the walk goes on.
    fn visit(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> impl Future<Output = Result<u64, IndexError>>;
}

/// What follows from [`PoolIndex`] for every kind, and what no kind may do otherwise.
pub trait Lifecycle: PoolIndex {
    /// Opens the index of this name.
    fn open(session: &Rc<Session>, name: &str) -> impl Future<Output = Result<Self, IndexError>>;

    /// Drops the index of this name. Nobody can open it any more; a client that has it open gets an error from its next
    /// operation; its memory is freed once all operations that may still use it have ended.
    fn drop_index(session: &Rc<Session>, name: &str) -> impl Future<Output = Result<(), IndexError>>;

    /// Finishes drops of this kind whose clients have crashed: no client finds such an index any more, and its entry in the
    /// catalog becomes free. It is unknown which of its memory was freed already; the rest is left to
    /// [`Audit::reclaim`](farindex_pool::audit::Audit). If a drop is still going on, its client goes on freeing. Returns the
    /// number of drops.
    fn finish_drops(session: &Rc<Session>) -> impl Future<Output = Result<u64, IndexError>>;
}

impl<I: PoolIndex> Lifecycle for I {
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        let span = session.span(OpKind::Other);
        let info = catalog::find(session.pool(), &span, name).await?;
        Self::open_info(session, &info).await
    }

    async fn drop_index(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        let span = session.span(OpKind::Other);
        let index = Self::open(session, name).await?;
        let info = catalog::begin_drop(session, &span, name).await?;
        index.finish_drop(&span, &info).await
    }

    async fn finish_drops(session: &Rc<Session>) -> Result<u64, IndexError> {
        let span = session.span(OpKind::Maintenance);
        let all = catalog::list(session.pool(), &span).await?;
        let mut finished = 0;
        for info in all.iter().filter(|info| info.dropping && info.kind == Self::KIND) {
            // A copy that has taken the place of another index may have two entries: the index is not dropped with the
            // first.
            if !all.iter().any(|other| !other.dropping && other.uid == info.uid) {
                handle::mark_all_dropped::<Self>(session, info).await?;
            }
            catalog::end_drop(session, &span, info).await?;
            finished += 1;
        }
        Ok(finished)
    }
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
    settings_of(info)
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
            fn statistics(&self) -> $crate::kind::Statistics {
                $crate::kind::Statistics { resizes: self.resizes() }
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
            async fn visit(
                &self,
                each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
                damaged: $crate::audit::OnDamage<'_>,
            ) -> Result<u64, IndexError> {
                self.visit(each, damaged).await
            }
        }
    };
}
pub(crate) use pool_index;
