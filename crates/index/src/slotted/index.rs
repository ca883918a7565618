//! What an index of such tables does whatever its kind: it comes into a pool, and it is written to.
//!
//! Invariants: an attempt to write is under one pin, and between attempts nothing is pinned or held, so that a table which has no slot
//! for a key can be moved, and memory come back, while writers wait. A record's block is written by one attempt at most, is linked
//! by one at most, and goes back if none links it.

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
use farindex_fabric::OpKind;
use farindex_pool::Pin;

/// What an attempt to write did.
pub(crate) enum Attempt {
    /// Into the segment of this generation.
    Inserted(u64),
    /// Anything else that ends the write.
    Wrote(Wrote),
    /// Nothing: no slot is free.
    Full,
    /// Nothing: no slot may be used before more of the table has been moved.
    NoRoom,
}

/// An index whose tables are tables of slots, which keep [`Own`](Self::Own) besides.
pub(crate) trait SlottedIndex: TablePerNode<Table = Table<<Self as SlottedIndex>::Own>> {
    /// What its kind keeps of a table.
    type Own;
    /// How far a walk through a table has come.
    type Progress: Default;

    /// Who moves its regions.
    fn mover<'a>(&'a self, table: &'a Table<Self::Own>, pin: &'a Pin<'a>) -> impl RegionMigrator;

    /// Makes the next table, unless somebody else is at it. `full` says that a key has no slot.
    async fn grow(&self, table: &Table<Self::Own>, pin: &Pin<'_>, full: bool) -> Result<(), IndexError>;

    /// Looks for the key, and does what `mode` says.
    async fn attempt(
        &self,
        table: &Table<Self::Own>,
        pin: Pin<'_>,
        mode: Mode,
        record: &Record<'_>,
        along: &mut PiggybackedWrite,
    ) -> Result<Attempt, IndexError>;

    /// An attempt to write this key has found the table full, or without room for now: makes room, or waits for who does.
    async fn make_room(
        &self,
        table: &Table<Self::Own>,
        hash: KeyHash,
        full: bool,
        backoff: &mut Backoff,
    ) -> Result<(), IndexError>;

    /// The next step of a walk, under a pin in whose epoch the root was read; `None` at the end. No two steps of a walk return the
    /// same key, and what one returns a key's value was at a moment of the step.
    async fn step(
        &self,
        table: &Table<Self::Own>,
        pin: &Pin<'_>,
        progress: &mut Self::Progress,
    ) -> Result<Option<Step>, IndexError>;

    /// Moves one region of a table that is being moved, if there is one that nobody moves; settles it if none is left. If somebody
    /// who may be alive has been moving the last ones for long: a lock of that client.
    async fn advance(&self, table: &Table<Self::Own>, pin: &Pin<'_>) -> Result<Option<HeldLock>, IndexError> {
        table.advance_by(&self.mover(table, pin)).await
    }

    /// Between operations: growth and reclamation. Whoever inserts moves two regions of a table that is being moved, whoever
    /// changes something else one; so a table is moved before it is full.
    async fn after(&self, table: &Table<Self::Own>, inserted: bool) -> Result<(), IndexError> {
        let pin = || self.session.pin(self.session.span(OpKind::Maintenance));
        if inserted && table.crowded() {
            self.grow(table, &pin()?, false).await?;
        }
        for _ in 0..1 + usize::from(inserted) {
            if table.geometry().state.growing() {
                self.advance(table, &pin()?).await?;
            }
        }
        self.reclaim().await
    }

    /// Inserts, updates or upserts.
    async fn write(&self, mode: Mode, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
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
            if let Err(error) = self.make_room(table, hash, full, &mut backoff).await {
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
