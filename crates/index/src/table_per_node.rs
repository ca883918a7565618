//! Kinds of index with one table on each memory node. Such a kind implements [`TablePerNode`], and [`PoolIndex`]
//! follows from it.
//!
//! Invariants: the catalog's entry of an index leads to a list of roots, one for each memory node in their order. An
//! index is in the catalog only after all of that has been written.

use crate::audit::OnDamage;
use crate::handle::Handle;
use crate::kind::{self, PoolIndex, Settings, Statistics, encode};
use crate::maintenance::wait_for_grace_period;
use crate::traits::PointIndex;
use crate::visit::Entries;
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, cold};
use farindex_pool::audit::Audit;
use farindex_pool::layout::HOME;
use farindex_pool::{IndexInfo, Pin, PoolError, Session, catalog};
use std::ops::Deref;
use std::rc::Rc;

/// An index that is being created.
pub struct Creation<'a, C> {
    pub(crate) session: &'a Rc<Session>,
    pub(crate) span: &'a Span,
    pub(crate) index_tag: u64,
    pub(crate) config: &'a C,
}

/// An index that is being opened.
pub struct Opening<'a, C, S> {
    pub(crate) pin: &'a Pin<'a>,
    pub(crate) index_tag: u64,
    pub(crate) config: &'a C,
    pub(crate) shared: &'a S,
}

/// A kind of index with one table on each memory node: what is the kind's own when an index is created, opened and
/// dropped.
#[allow(async_fn_in_trait, reason = "no other crate can name it: it is public because a blanket impl needs that")]
pub trait TablePerNode: PointIndex + Deref<Target = Handle<Self::Settings, Self::Table>> + Sized + 'static {
    /// Its settings.
    type Settings: Settings;
    /// A table, as one worker sees it.
    type Table;
    /// What opening a table needs, and what is the same for all tables of an index.
    type Shared;
    /// Its number in the catalog.
    const KIND: u32;
    /// Its name.
    const NAME: &'static str;
    /// Version of its format.
    const FORMAT: u32;
    /// Bytes of a table's root.
    const ROOT_LEN: usize;

    /// Creates a table on a memory node; returns its root. After an error nothing is left of the table, unless a verb has
    /// failed: what was posted may still land, so its memory is left to the next audit that reclaims.
    async fn create_table(new: &Creation<'_, Self::Settings>, node: NodeId) -> Result<RemotePtr, IndexError>;

    /// Frees a table that no client has seen.
    async fn free_new_table(new: &Creation<'_, Self::Settings>, root: RemotePtr) -> Result<(), IndexError>;

    /// Prepares the opening of tables.
    async fn prepare(span: &Span, config: &Self::Settings) -> Result<Self::Shared, IndexError>;

    /// Opens the table with this root.
    async fn open_table(
        of: &Opening<'_, Self::Settings, Self::Shared>,
        root: RemotePtr,
    ) -> Result<Self::Table, IndexError>;

    /// Makes an index of its handle.
    fn from_handle(handle: Handle<Self::Settings, Self::Table>) -> Self;

    /// Returns the root of a table.
    fn root_of(table: &Self::Table) -> RemotePtr;

    /// Marks a root as dropped, if it is a root of the index with this tag.
    async fn mark_root_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError>;

    /// Frees a table that has been marked as dropped, with all of its entries, when no client can use it any more.
    async fn free_table(&self, span: &Span, table: &Self::Table) -> Result<(), IndexError>;

    /// Returns how often the index has grown, as far as this worker knows.
    fn resizes(&self) -> u64;

    /// See [`PoolIndex::recover`].
    async fn recover(&self) -> Result<u64, IndexError>;

    /// See [`PoolIndex::audit`].
    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError>;

    /// See [`PoolIndex::visit`].
    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError>;
}

impl<I: TablePerNode> PoolIndex for I {
    type Config = I::Settings;
    const KIND: u32 = I::KIND;
    const NAME: &'static str = I::NAME;
    const FORMAT: u32 = I::FORMAT;

    async fn create(session: &Rc<Session>, name: &str, config: &I::Settings) -> Result<Self, IndexError> {
        cold(create(session, name, config)).await
    }

    async fn open_info(session: &Rc<Session>, info: &IndexInfo) -> Result<Self, IndexError> {
        cold(open_info(session, info)).await
    }

    async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        cold(finish_drop(self, span, info)).await
    }

    async fn mark_dropped(session: &Session, info: &IndexInfo) -> Result<(), IndexError> {
        cold(mark_dropped::<I>(session, info)).await
    }

    fn uid(&self) -> u64 {
        self.uid
    }

    fn statistics(&self) -> Statistics {
        Statistics { resizes: TablePerNode::resizes(self) }
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        cold(TablePerNode::recover(self)).await
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        cold(TablePerNode::audit(self, audit, alone)).await
    }

    async fn visit(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let entries = Entries::default();
        entries.give_to(cold(self.visit_entries(&entries, damaged)), each).await
    }
}

/// See [`PoolIndex::create`].
async fn create<I: TablePerNode>(session: &Rc<Session>, name: &str, config: &I::Settings) -> Result<I, IndexError> {
    config.check()?;
    let largest = expect_new(session, name).await?;
    let span = session.span(OpKind::Other);
    let uid = catalog::new_uid(&span, largest).await?;
    let new = Creation { session, span: &span, index_tag: index_tag(session, uid), config };
    let nodes = session.pool().nodes();
    let list_len = nodes.len() as u64 * 8;
    let list = session.alloc(&span, HOME, list_len).await?;
    let mut roots = Vec::new();
    let creation = async {
        for node in nodes {
            roots.push(I::create_table(&new, node).await?);
        }
        let words: Vec<_> = roots.iter().map(|root| root.to_bits()).collect();
        span.write(list, session.endpoint().buf_from_words(&words)).await?;
        let kind = catalog::KindTag { kind: I::KIND, version: I::FORMAT, config_version: I::Settings::VERSION };
        Ok::<_, IndexError>(catalog::add(session, &span, name, uid, kind, list, &encode(config)?).await?)
    };
    match creation.await {
        Ok(info) => I::open_info(session, &info).await,
        // After a failed verb the index may be in the catalog all the same (N7), or what was posted may land later (N5).
        Err(error @ IndexError::Fabric(_)) => Err(error),
        Err(error) => {
            // No client has seen the tables: all of them are freed.
            for root in roots {
                I::free_new_table(&new, root).await?;
            }
            session.free(&span, list, list_len).await?;
            Err(error)
        }
    }
}

/// See [`PoolIndex::open_info`].
async fn open_info<I: TablePerNode>(session: &Rc<Session>, info: &IndexInfo) -> Result<I, IndexError> {
    let config = settings_of::<I>(info)?;
    let pin = session.pin(session.span(OpKind::Other))?;
    // From here on a drop that begins waits for this pin.
    catalog::confirm(session, pin.span(), info).await?;
    let shared = I::prepare(pin.span(), &config).await?;
    let of = Opening { pin: &pin, index_tag: index_tag(session, info.uid), config: &config, shared: &shared };
    let mut tables = Vec::new();
    for root in roots(session, pin.span(), info).await? {
        tables.push(I::open_table(&of, root).await?);
    }
    drop(pin);
    Ok(I::from_handle(Handle { session: Rc::clone(session), uid: info.uid, seed: info.seed, config, tables }))
}

/// See [`PoolIndex::finish_drop`].
async fn finish_drop<I: TablePerNode>(index: &I, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
    let session = index.session();
    for table in index.tables() {
        I::mark_root_dropped(span, I::root_of(table), index_tag(session, index.uid)).await?;
    }
    wait_for_grace_period(session, span, &info.name).await?;
    for table in index.tables() {
        index.free_table(span, table).await?;
    }
    session.free(span, info.root, index.tables().len() as u64 * 8).await?;
    Ok(catalog::end_drop(session, span, info).await?)
}

/// See [`PoolIndex::mark_dropped`].
async fn mark_dropped<I: TablePerNode>(session: &Session, info: &IndexInfo) -> Result<(), IndexError> {
    // Under the pin, a root that is not yet marked cannot be freed.
    let pin = session.pin(session.span(OpKind::Maintenance))?;
    let roots = roots(session, pin.span(), info).await?;
    for (root, node) in roots.into_iter().zip(session.pool().nodes()) {
        // The list may have been freed already, and its memory reused.
        let last = root.add(I::ROOT_LEN as u64);
        if root.node() == node && session.pool().geometry(node).chunk_of(last).is_some() {
            I::mark_root_dropped(pin.span(), root, index_tag(session, info.uid)).await?;
        }
    }
    Ok(())
}

/// Returns the index tag: a hash of the pool's and the index's identity that the roots of this index hold, and no other
/// memory does.
pub(crate) fn index_tag(session: &Session, uid: u64) -> u64 {
    let [a, b] = session.pool().superblock(HOME).pool_id;
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..16].copy_from_slice(&b.to_le_bytes());
    bytes[16..].copy_from_slice(&uid.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Frees the root of a dropped index, of `len` bytes, when nobody takes it for one any more. The index tag is word
/// `tag_word`, and the mark of the drop is in another word.
///
/// An operation READs both, in any order (N2), to learn whether the index exists. So the tag goes first, and the word with
/// the mark stays as it is until the operations that have READ the tag before have ended.
pub(crate) async fn retire_root(
    session: &Session,
    span: &Span,
    root: RemotePtr,
    len: usize,
    tag_word: usize,
) -> Result<(), IndexError> {
    span.write(root.add(tag_word as u64 * 8), session.endpoint().buf_from_words(&[0])).await?;
    session.pin(session.span(OpKind::Maintenance))?.retire(root, len as u64);
    Ok(())
}

/// READs the list of an index's roots, one for each memory node.
async fn roots(session: &Session, span: &Span, info: &IndexInfo) -> Result<Vec<RemotePtr>, IndexError> {
    let list = span.read(info.root, session.pool().nodes().len() * 8).await?;
    Ok(list.words().iter().map(|root| RemotePtr::from_bits(*root)).collect())
}

/// Returns the settings of an index, if it is of kind `I` and has a known format.
fn settings_of<I: PoolIndex>(info: &IndexInfo) -> Result<I::Config, IndexError> {
    if info.kind != I::KIND {
        let (name, found) = (info.name.clone(), format!("kind {}", info.kind));
        return Err(PoolError::WrongKind { name, found, wanted: I::NAME.to_owned() }.into());
    }
    if info.version != I::FORMAT {
        let (name, found) = (info.name.clone(), info.version);
        return Err(PoolError::IndexVersion { name, found, expected: I::FORMAT }.into());
    }
    kind::settings_of(info)
}

/// Checks that an index of this name may be created; returns the largest uid in the catalog. Another client may take
/// the name in the meantime: `catalog::add` decides.
async fn expect_new(session: &Session, name: &str) -> Result<u64, IndexError> {
    catalog::check_name(name)?;
    let span = session.span(OpKind::Other);
    let all = catalog::list(session.pool(), &span).await?;
    if all.iter().any(|info| info.name == name && !info.dropping) {
        return Err(PoolError::IndexExists(name.to_owned()).into());
    }
    Ok(all.iter().map(|info| info.uid).max().unwrap_or_default())
}
