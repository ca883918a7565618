//! What indexes of such tables have in common: the course of a write, and growth between operations.
//!
//! Invariants: each attempt to write has one pin. Between attempts nothing is pinned or locked, so that a table without
//! a slot for a key can be moved, and memory can be freed, while writers wait. A record's block is written by at most
//! one attempt, is linked by at most one attempt, and is freed if no attempt links it.

use super::mover::RegionMigrator;
use super::record::{PiggybackedWrite, Record};
use super::table::Table;
use super::walk::Step;
use crate::IndexError;
use crate::backoff::Backoff;
use crate::keyhash::KeyHash;
use crate::recovery::HeldLock;
use crate::table_per_node::TablePerNode;
use crate::write::{Mode, Wrote};
use farindex_fabric::{OpKind, cold};
use farindex_pool::Pin;

/// The outcome of an attempt to write.
pub(crate) enum Attempt {
    /// The key was inserted into the segment of this generation.
    Inserted(u64),
    /// Another outcome that ends the write.
    Wrote(Wrote),
    /// Nothing was written: no slot is free.
    Full,
    /// Nothing was written: no slot may be used before more of the table has been moved.
    NoRoom,
}

/// An index whose tables are tables of slots.
pub(crate) trait SlottedIndex: TablePerNode<Table = Table<<Self as SlottedIndex>::Own>> {
    /// What its kind keeps of a table in addition.
    type Own;
    /// How far a walk through a table has come.
    type Progress: Default;

    /// Returns the migrator that moves its regions.
    fn mover<'a>(&'a self, table: &'a Table<Self::Own>, pin: &'a Pin<'a>) -> impl RegionMigrator;

    /// Makes the next table, unless another client is doing that; see [`Table::grow_as`]. `full` says that a key has no
    /// slot.
    async fn grow(&self, table: &Table<Self::Own>, pin: &Pin<'_>, full: bool) -> Result<Option<HeldLock>, IndexError>;

    /// Looks up the key, and inserts or replaces its entry as `mode` says.
    async fn attempt(
        &self,
        table: &Table<Self::Own>,
        pin: Pin<'_>,
        mode: Mode<'_>,
        record: &Record<'_>,
        along: &mut PiggybackedWrite,
    ) -> Result<Attempt, IndexError>;

    /// Makes room, or waits for the client that makes room, after an attempt to write this key has found the table
    /// full, or without room for now.
    async fn make_room(
        &self,
        table: &Table<Self::Own>,
        hash: KeyHash,
        full: bool,
        backoff: &mut Backoff,
    ) -> Result<(), IndexError>;

    /// The next step of a walk, under a pin in whose epoch the root was read; `None` at the end. No two steps of a walk
    /// return the same key, and what one returns a key's value was at a moment of the step.
    async fn step(
        &self,
        table: &Table<Self::Own>,
        pin: &Pin<'_>,
        progress: &mut Self::Progress,
    ) -> Result<Option<Step>, IndexError>;

    /// Moves one region of a table that is being moved; see [`Table::advance_by`].
    async fn advance(&self, table: &Table<Self::Own>, pin: &Pin<'_>) -> Result<Option<HeldLock>, IndexError> {
        table.advance_by(&self.mover(table, pin)).await
    }

    /// Grows the table and frees memory between operations. An insert moves two regions of a table that is being moved,
    /// and another change moves one. So the whole table has been moved before the next one is full.
    async fn after(&self, table: &Table<Self::Own>, inserted: bool) -> Result<(), IndexError> {
        let pin = || self.session.pin(self.session.span(OpKind::Maintenance));
        if inserted && table.crowded() {
            cold(self.grow(table, &pin()?, false)).await?;
        }
        for _ in 0..1 + usize::from(inserted) {
            if table.geometry().state.growing() {
                cold(self.advance(table, &pin()?)).await?;
            }
        }
        self.reclaim().await
    }

    /// Inserts, updates, upserts or replaces.
    async fn write(&self, mode: Mode<'_>, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let hash = self.hash(key);
        let table = self.table(hash);
        let span = self.session.span(mode.kind());
        let (record, mut along) = Record::new(&self.session, &span, table.root().node(), (hash, key, value)).await?;
        let (mut span, mut backoff) = (Some(span), Backoff::default());
        let wrote = loop {
            let span = span.take().unwrap_or_else(|| self.session.span(OpKind::Maintenance));
            let attempt = match self.session.pin(span) {
                Ok(pin) => self.attempt(table, pin, mode, &record, &mut along).await,
                Err(error) => Err(error.into()),
            };
            let full = match attempt {
                Ok(Attempt::Full) => true,
                Ok(Attempt::NoRoom) => false,
                Ok(Attempt::Wrote(wrote)) => break Ok(wrote),
                Ok(Attempt::Inserted(generation)) => {
                    table.note(1, generation, 1);
                    break Ok(Wrote::Inserted);
                }
                Err(error) => break Err(error),
            };
            if let Err(error) = cold(self.make_room(table, hash, full, &mut backoff)).await {
                break Err(error);
            }
        };
        match &wrote {
            Ok(Wrote::Inserted | Wrote::Updated) => {}
            // After a failed verb it may be linked all the same (N7), or its WRITE may land later (N5).
            Err(IndexError::Fabric(_)) => {}
            // The block was written, but nothing points to it.
            _ => record.discard(&self.session),
        }
        self.after(table, matches!(wrote, Ok(Wrote::Inserted))).await?;
        wrote
    }
}
