//! Unfreezing: makes slots live again that are frozen although no client splits their bucket.
//!
//! The CASes of a split that lost the lock, or that began from a snapshot which mixed two versions, freeze entries and
//! set barriers. Invariants: they are undone only under the lock, by plain WRITEs to words on which no CAS can succeed
//! (N6). An entry that cannot be placed, because its block is invalid, stays frozen.

use super::bucket::{LOCK_SLOT, Level, Snapshot, lock_of};
use super::geometry::{Geometry, Places};
use super::intents;
use super::lookup::Op;
use super::slot::{Entry, META, Slot};
use super::split::{Known, write_changes};
use crate::IndexError;
use crate::block::{Header, UNIT};
use crate::marks::mark;
use crate::recovery::acquire;
use farindex_fabric::{Batch, RemotePtr};
use farindex_pool::{Intent, IntentCell};

impl Op<'_> {
    /// Unfreezes the slots that this operation froze for a split that another client has made first. If the split was
    /// still due, the slots may stay frozen. But if the bucket had been split before, the CASes succeeded on words that
    /// look as they did before (a renewed sid can equal the old one). Then these slots would wait for a split that may
    /// never come.
    pub(super) async fn unfreeze(&mut self, level: Level, at: RemotePtr, version: u64) -> Result<(), IndexError> {
        loop {
            let mut batch = self.pin.span().batch();
            // The lock first: if it is free, the READ behind it sees all that its last holder did.
            let lock = batch.read(at, 8);
            let read = batch.read(at, level.bytes());
            let mut done = batch.post().await?;
            let locked = done.buf(lock).words().first().is_some_and(|word| word & META != 0);
            let now = Snapshot::new(at, done.buf(read));
            drop(done);
            let is_frozen = |slot: Slot| matches!(slot, Slot::Frozen(..) | Slot::Barrier(..));
            if locked {
                self.wait_for(at).await?;
            } else if now.version() == version || !now.slots().any(|(_, slot)| is_frozen(slot)) {
                return Ok(());
            } else {
                mark!("split: unfroze what was split already");
                self.repair(level, at).await?;
                let what = || format!("{level}: slots stay frozen");
                self.unresolved(at, now.trace(now.version()), what)?;
            }
        }
    }

    /// Undoes the split that another client has begun in a bucket whose lock this operation holds; releases the lock.
    pub(super) async fn undo_split(&self, now: &Snapshot, cell: &IntentCell<'_>) -> Result<(), IndexError> {
        self.restore(Level::One, now, cell, &mut Known::default()).await
    }

    /// Makes frozen entries live again and removes the barrier in a bucket whose lock is held; then releases the lock.
    pub(super) async fn restore(
        &self,
        level: Level,
        now: &Snapshot,
        cell: &IntentCell<'_>,
        known: &mut Known,
    ) -> Result<(), IndexError> {
        let span = self.pin.span();
        // A CAS that was posted before this snapshot may have landed after it.
        let now = Snapshot::new(now.at, span.read(now.at, level.bytes()).await?);
        // As in a split that renews no sids; a block whose slot this operation froze needs no header.
        self.learn_headers(&now, 0, known, false).await?;
        mark!("restore");
        let geometry = self.table.geometry();
        let version = now.version();
        let mut words = now.words().to_vec();
        for (i, slot) in now.slots() {
            match slot {
                Slot::Frozen(fp, ptr) => {
                    let entry = known.entries.get(&ptr).copied().or_else(|| {
                        let header = known.headers.get(&ptr)?;
                        let bucket = self.bucket_of(&geometry, level, now.at, header)?;
                        let hash = Self::placing_hash(&geometry, level, bucket, version, header);
                        let len = ((header.block_len() / UNIT) as u64).min(super::slot::MAX_UNITS);
                        Some(Entry { fp, sid: geometry.sid(hash, version), len, ptr })
                    });
                    if let Some(entry) = entry {
                        words[i] = Slot::Live(entry).over(words[i]);
                    }
                }
                Slot::Barrier(of, stamp) => words[i] = Slot::Fresh(of, stamp).over(words[i]),
                _ => {}
            }
        }
        let mut batch = span.batch();
        write_changes(&mut batch, &now, &words);
        batch.faa(now.slot(LOCK_SLOT), META);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        Ok(())
    }

    /// Returns the number of the bucket at this address, if an entry with this header can be in it.
    fn bucket_of(&self, geometry: &Geometry, level: Level, at: RemotePtr, header: &Header) -> Option<u64> {
        let places = Places::of(header.hash);
        let hashes = match level {
            Level::One => [header.hash.bits(); 2],
            Level::Two => places.choices(),
        };
        let homes = hashes.into_iter().flat_map(|hash| (0..=geometry.version).map(move |v| geometry.home(hash, v)));
        homes.into_iter().find(|home| geometry.bucket(level, *home) == at)
    }

    /// Locks a bucket whose split another client has begun and abandoned, and undoes that split.
    pub(super) async fn repair(&mut self, level: Level, at: RemotePtr) -> Result<(), IndexError> {
        let span = self.pin.span();
        let cell = self.pin.session().intent_cell(at.node()).await?;
        let word = span.read(at, 8).await?.words().first().copied().unwrap_or(META);
        if word & META != 0 {
            return Ok(());
        }
        let what = [intents::REPAIR, 0, 0, level as u64 + 1];
        let intent = Intent { index: self.shard.uid(), lock: lock_of(at), what };
        let read = |batch: &mut Batch<'_>| batch.read(at, level.bytes());
        let Ok((mut done, read)) = acquire(span, &cell, &intent, (word, word | META), read).await? else {
            return Ok(());
        };
        mark!("repair");
        let now = Snapshot::new(at, done.buf(read));
        drop(done);
        self.restore(level, &now, &cell, &mut Known::default()).await
    }
}
