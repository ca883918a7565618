//! What a pool's catalog, its checks and its tests need of a kind of index, and how the catalog stores settings.
//!
//! Invariants: a kind's number and name never change, and no other kind ever has them. Settings are stored with the
//! index. Stored settings that are out of bounds are refused, not corrected.

use crate::audit::OnDamage;
use crate::{IndexAudit, IndexError, PointIndex, Value};
use farindex_fabric::Span;
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Session};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::future::Future;
use std::rc::Rc;

/// Settings of a kind of index: what its creator chooses, and the catalog keeps.
///
/// The catalog holds them in the [postcard](https://docs.rs/postcard) format, in the order of the struct's fields. A
/// change of the fields is a new [version](Self::VERSION).
pub trait Settings: Clone + Copy + Debug + Default + PartialEq + Serialize + DeserializeOwned + 'static {
    /// Version of the settings, which the catalog keeps with them: raised when a field is added, removed or changed.
    const VERSION: u32;
    /// Checks that they are within bounds.
    fn check(&self) -> Result<(), IndexError>;

    /// Do the settings name a published protocol that is known to lose data?
    fn loses_data(&self) -> bool {
        false
    }
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
    /// How often the index has grown, as far as this handle knows: resizes of a table, splits of the deepest segment or
    /// of a tree's root.
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

    /// Marks an index that was found in the catalog as dropped, whose memory may be freed in part already: every client
    /// that has the index open gets an error from its next operation.
    fn mark_dropped(session: &Session, info: &IndexInfo) -> impl Future<Output = Result<(), IndexError>>;

    /// Returns the index's number in the catalog, which no other index of the pool ever has.
    fn uid(&self) -> u64;

    /// Returns figures that cost no verb.
    fn statistics(&self) -> Statistics;

    /// Scans the index, recovers every structure that a crashed client left unfinished, and returns the number of
    /// repairs.
    fn recover(&self) -> impl Future<Output = Result<u64, IndexError>>;

    /// Walks the whole index, records every object in `audit`, and checks every entry. `alone` states that no other
    /// client is at work: then an unfinished structure is a problem.
    fn audit(&self, audit: &mut Audit, alone: bool) -> impl Future<Output = Result<IndexAudit, IndexError>>;

    /// Calls `each` with keys and values; returns the number of calls. Each key is visited at most once, with a value
    /// that it had during the walk; a key that is present during the whole walk is visited. Nothing is pinned while
    /// `each` runs. An ordered index visits keys in ascending order. What cannot be read is reported to `damaged`,
    /// which decides whether the walk goes on.
    fn visit(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> impl Future<Output = Result<u64, IndexError>>;
}
