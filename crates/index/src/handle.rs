//! What an open index is, whatever its kind: a session, a number, its settings, and a table on each memory node; and how one comes
//! into the catalog and is found there.
//!
//! Invariants: the catalog's entry of an index leads to a list of roots, one for each memory node in their order; an index is in
//! the catalog only after all of that has been written.

use crate::IndexError;
use crate::keyhash::KeyHash;
use crate::kind::{PoolIndex, Settings, encode, expect_new, index_tag};
use crate::traits::Limits;
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span};
use farindex_pool::layout::HOME;
use farindex_pool::{IndexInfo, Pin, Session, catalog};
use std::rc::Rc;

/// What every open index holds: settings of its kind, and tables of its kind.
pub struct Handle<C, T> {
    pub(crate) session: Rc<Session>,
    pub(crate) uid: u64,
    /// Of the key hash, from the catalog.
    pub(crate) seed: u64,
    pub(crate) config: C,
    /// One for each memory node: a key's hash tells which.
    pub(crate) tables: Vec<T>,
}

impl<C, T> Handle<C, T> {
    /// Its number in the catalog, which no other index of the pool ever has.
    pub fn uid(&self) -> u64 {
        self.uid
    }
    /// The session that it works in.
    pub fn session(&self) -> &Rc<Session> {
        &self.session
    }
    /// Its settings.
    pub fn config(&self) -> &C {
        &self.config
    }
    /// Its tables, one for each memory node.
    pub fn tables(&self) -> &[T] {
        &self.tables
    }

    /// Hash of a key in this index.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.seed)
    }

    pub(crate) fn table(&self, hash: KeyHash) -> &T {
        &self.tables[hash.part(self.tables.len())]
    }

    /// Begins an operation on one key: its hash, its table, and a pin for it.
    pub(crate) fn begin(&self, kind: OpKind, key: &[u8]) -> Result<(KeyHash, &T, Pin<'_>), IndexError> {
        self.check_lengths(key, &[])?;
        let hash = self.hash(key);
        Ok((hash, self.table(hash), self.session.pin(self.session.span(kind))?))
    }

    pub(crate) fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        Limits::BLOCK.check(key, value)
    }

    /// Reclamation, which no operation should pay for under its pin.
    pub(crate) async fn reclaim(&self) -> Result<(), IndexError> {
        if self.session.maintenance_due() {
            // Rare, and larger than what an operation takes by itself.
            Box::pin(self.session.maintain()).await?;
        }
        Ok(())
    }

    /// End of a drop, when the tables are gone: the list of roots, and the entry in the catalog.
    pub(crate) async fn forget(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        self.session.free(span, info.root, self.tables.len() as u64 * 8).await?;
        Ok(catalog::end_drop(&self.session, span, info).await?)
    }
}

/// Makes an index and opens it. `make` makes the table of one memory node, with roots that bear this seal; if anything fails,
/// `undo` gives back those that were made.
pub(crate) async fn create<I: PoolIndex>(
    session: &Rc<Session>,
    name: &str,
    config: &I::Config,
    mut make: impl AsyncFnMut(&Span, NodeId, u64) -> Result<RemotePtr, IndexError>,
    undo: impl AsyncFnOnce(&Span, &[RemotePtr], u64) -> Result<(), IndexError>,
) -> Result<I, IndexError> {
    config.check()?;
    let largest = expect_new(session, name).await?;
    let span = session.span(OpKind::Other);
    let uid = catalog::new_uid(&span, largest).await?;
    let index_tag = index_tag(session, uid);
    let nodes = session.pool().nodes();
    let list_len = nodes.len() as u64 * 8;
    let list = session.alloc(&span, HOME, list_len).await?;
    let mut roots = Vec::new();
    let making = async {
        for node in nodes {
            roots.push(make(&span, node, index_tag).await?);
        }
        let words: Vec<_> = roots.iter().map(|root| root.to_bits()).collect();
        span.write(list, session.endpoint().buf_from_words(&words)).await?;
        let kind = catalog::KindTag { kind: I::KIND, version: I::FORMAT, config_version: I::Config::VERSION };
        Ok::<_, IndexError>(catalog::add(session, &span, name, uid, kind, list, &encode(config)?).await?)
    };
    match making.await {
        Ok(info) => I::open_info(session, &info).await,
        Err(error) => {
            // Nobody has seen it: everything goes back.
            undo(&span, &roots, index_tag).await?;
            session.free(&span, list, list_len).await?;
            Err(error)
        }
    }
}

/// The roots of an index, one for each memory node.
pub(crate) async fn roots(session: &Session, span: &Span, info: &IndexInfo) -> Result<Vec<RemotePtr>, IndexError> {
    let list = span.read(info.root, session.pool().nodes().len() * 8).await?;
    Ok(list.words().iter().map(|root| RemotePtr::from_bits(*root)).collect())
}

/// Tells everybody that a kind's index which was found in the catalog, and may be gone by now, has been dropped.
pub(crate) async fn mark_all_dropped<I: PoolIndex>(session: &Session, info: &IndexInfo) -> Result<(), IndexError> {
    // Under the pin, a root that is not marked yet cannot be freed.
    let pin = session.pin(session.span(OpKind::Maintenance))?;
    let roots = roots(session, pin.span(), info).await?;
    for (root, node) in roots.into_iter().zip(session.pool().nodes()) {
        // What lies there may be another's by now.
        if root.node() == node && session.pool().geometry(node).chunk_of(root.add(I::ROOT_LEN)).is_some() {
            I::mark_dropped(pin.span(), root, index_tag(session, info.uid)).await?;
        }
    }
    Ok(())
}

/// An index is its [`Handle`], and whatever its kind adds to it.
macro_rules! has_handle {
    ($index:ty, $handle:ty) => {
        impl std::ops::Deref for $index {
            type Target = $handle;

            fn deref(&self) -> &$handle {
                &self.handle
            }
        }
    };
}
pub(crate) use has_handle;
