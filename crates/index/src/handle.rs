//! What an open index holds: a session, its number, its settings, and one table on each memory node.

use crate::IndexError;
use crate::keyhash::KeyHash;
use crate::root_sync::{RootCopy, RootSync};
use crate::traits::Limits;
use farindex_fabric::{OpKind, cold};
use farindex_pool::{Pin, Session};
use std::ops::Deref;
use std::rc::Rc;

/// What an open index holds: settings of its kind, and tables of its kind.
pub struct Handle<C, T> {
    pub(crate) session: Rc<Session>,
    pub(crate) uid: u64,
    /// Seed of the key hash, from the catalog.
    pub(crate) seed: u64,
    pub(crate) config: C,
    /// One for each memory node. A key's hash decides which.
    pub(crate) tables: Vec<T>,
}

impl<C, T> Handle<C, T> {
    /// Returns the session that the index works in.
    pub fn session(&self) -> &Rc<Session> {
        &self.session
    }
    /// Returns the number of the index in the catalog, which no other index of the pool ever has.
    pub fn uid(&self) -> u64 {
        self.uid
    }
    /// Returns the settings.
    pub fn config(&self) -> &C {
        &self.config
    }
    /// Returns the tables, one for each memory node.
    pub fn tables(&self) -> &[T] {
        &self.tables
    }

    /// Returns the hash of a key in this index.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.seed)
    }

    pub(crate) fn table(&self, hash: KeyHash) -> &T {
        &self.tables[hash.part(self.tables.len())]
    }

    /// Begins an operation on one key: returns its hash, its table, and a pin for it.
    pub(crate) fn begin(&self, kind: OpKind, key: &[u8]) -> Result<(KeyHash, &T, Pin<'_>), IndexError> {
        self.check_lengths(key, &[])?;
        let hash = self.hash(key);
        Ok((hash, self.table(hash), self.session.pin(self.session.span(kind))?))
    }

    pub(crate) fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        Limits::BLOCK.check(key, value)
    }

    /// Frees retired memory if that is due. No operation should pay for that under its pin.
    pub(crate) async fn reclaim(&self) -> Result<(), IndexError> {
        if self.session.maintenance_due() {
            // Rare, and its future is larger than that of an operation.
            cold(self.session.maintain()).await?;
        }
        Ok(())
    }
}

impl<C, T: Deref<Target = RootSync<R>>, R: RootCopy> Handle<C, T> {
    /// Returns how often the table that has grown most has grown, as far as this worker knows.
    pub fn resizes(&self) -> u64 {
        self.tables.iter().map(|table| table.geometry().resizes()).max().unwrap_or(0)
    }
}

/// Implements [`Deref`] to the [`Handle`] in a kind's field `handle`.
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
