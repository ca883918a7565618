//! Slots that stand still although nobody splits their bucket: made live again.
//!
//! The CASes of a split that lost the lock, or that began from a snapshot which mixed two versions, freeze entries and put up
//! barriers. Invariants: they are undone only under the lock, by plain WRITEs to words on which no CAS can succeed (N6);
//! one that cannot be placed, because its block makes no sense, stays as it is.

use super::bucket::{LOCK_SLOT, Level, Snapshot};
use super::geometry::{Geometry, Places};
use super::intents;
use super::lookup::Op;
use super::recovery::lock_of;
use super::slot::{Entry, META, Slot};
use super::split::{Known, write_changes};
use crate::IndexError;
use crate::block::{Header, UNIT};
use crate::marks::mark;
use crate::recovery::acquire;
use farindex_fabric::{Batch, RemotePtr};
use farindex_pool::{Intent, IntentCell};

impl Op<'_> {
    /// This operation has lost a split to another client, but some slots stand still now. If that split was still due,
    /// so be it. But if the bucket had been split before, the CASes met words that look as they did before (a renewed sid
    /// can be the old one): then those slots wait for a split that may never come, and must be freed.
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
            let stands = |slot: Slot| matches!(slot, Slot::Frozen(..) | Slot::Barrier(..));
            if locked {
                self.wait_for(at).await?;
            } else if now.version() == version || !now.slots().any(|(_, slot)| stands(slot)) {
                return Ok(());
            } else {
                mark!("split: thawed what was split already");
                self.repair(level, at).await?;
                let what = || format!("{level}: slots stand still that nothing makes live");
                self.unresolved(at, now.trace(now.version()), what)?;
            }
        }
    }

    /// Under the lock of a bucket that somebody else has begun to split: undoes that, and releases the lock.
    pub(super) async fn undo_split(&self, now: &Snapshot, cell: &IntentCell<'_>) -> Result<(), IndexError> {
        self.restore(Level::One, now, cell, &mut Known::default()).await
    }

    /// Under the lock: makes frozen entries live again and lifts the barrier, then releases the lock.
    pub(super) async fn restore(
        &self,
        level: Level,
        now: &Snapshot,
        cell: &IntentCell<'_>,
        known: &mut Known,
    ) -> Result<(), IndexError> {
        let span = self.pin.span();
        // What was done before this snapshot, and may have landed after it.
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
        Ok(())
    }

    /// The number of the bucket at this address that an entry with this header lies in.
    fn bucket_of(&self, geometry: &Geometry, level: Level, at: RemotePtr, header: &Header) -> Option<u64> {
        let places = Places::of(header.hash);
        let hashes = match level {
            Level::One => [header.hash.bits(); 2],
            Level::Two => places.choices,
        };
        let homes = hashes.into_iter().flat_map(|hash| (0..=geometry.version).map(move |v| geometry.home(hash, v)));
        homes.into_iter().find(|home| geometry.bucket(level, *home) == at)
    }

    /// Takes the lock of a bucket that somebody has begun to split and left, and undoes it.
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
