//! Recovery: finishes or undoes what a crashed client has left under a lock.
//!
//! A client that has waited too long for a bucket claims the bucket's lock ([`farindex_pool::takeover`]), and then
//! finishes or undoes the interrupted split. The buckets alone show what was interrupted; the intent of the crashed
//! client is not needed. The recovering client may crash at each step. Then the next client begins again from the state
//! that it finds (docs/protocols/shard.md, crash recovery).
//!
//! * A split writes the new bucket under the lock of the parent, and releases the new bucket before the parent. So a
//!   client that needs a locked bucket checks the parent first, and a client that claims a bucket also claims the
//!   buckets that the latest split of it has not released.
//! * If all words of the new bucket are written, a reader may have found the bucket complete, and clients may have
//!   changed entries in it. So the split is finished. If a word is not written, no word of the old bucket has been
//!   overwritten and no client relies on the new bucket. So the split is undone.
//! * Dead slots that an interrupted recycling has not reached get its stamp, because the next recycling must have a
//!   later one.

use super::Shard;
use super::bucket::{LOCK_SLOT, Level, Snapshot, lock_of, version_slot};
use super::geometry::{Geometry, Places, ROUND, moves};
use super::intents;
use super::level3::{Chain3, NODE_LEN};
use super::lookup::Op;
use super::slot::{Entry, META, Slot, Stamp};
use super::split::write_changes;
use super::stall::led_from;
use super::table::Table;
use crate::IndexError;
use crate::block::{Header, UNIT};
use crate::maintenance::{read_headers, read_word};
use crate::marks::mark;
use crate::recovery::{HeldLock, acquire, claim_and_recover_all, recover_covered, release_on_error};
use farindex_fabric::{Batch, RemotePtr, Span, cold};
use farindex_pool::{Intent, IntentCell, Pin};
use std::collections::BTreeMap;

/// Headers of the blocks that frozen slots point to.
type Headers = BTreeMap<RemotePtr, Header>;

/// A client that recovers locks of a table, under a pin.
pub(super) struct Recovery<'a> {
    pub(super) index: u64,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

impl Op<'_> {
    /// Recovers the lock that blocks this address, which may be that of a lock or of any slot, if the lock's holder has
    /// crashed.
    pub(super) async fn try_recover_lock(&mut self, at: RemotePtr) -> Result<(), IndexError> {
        let recovery = Recovery { index: self.shard.uid(), table: self.table, pin: &self.pin };
        let held = recovery.try_recover_lock(at).await?;
        self.backoff.check_holder(&self.pin, held).await
    }
}

impl Recovery<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Claims the lock that blocks this address, if the lock's holder has crashed, and recovers the bucket. Returns the
    /// lock if its holder may be alive.
    pub(super) async fn try_recover_lock(&self, at: RemotePtr) -> Result<Option<HeldLock>, IndexError> {
        // The crashed client may have known a newer directory.
        self.table.learn_version(self.span(), self.pin.epoch()).await?;
        let geometry = self.table.geometry();
        let Some((level, mut bucket)) = geometry.locate(at) else { return Ok(None) };
        let mut under = None;
        while let Some(parent) = geometry.parent(bucket) {
            let Some((version, locked)) = self.state_of(geometry.bucket(level, parent)).await? else { return Ok(None) };
            if locked {
                bucket = parent;
            } else if version < geometry.made_at(bucket) {
                return Ok(None);
            } else {
                // The split that made the bucket has released it; but a client that claims the parent may claim it too.
                under = Some(lock_of(geometry.bucket(level, parent)));
                break;
            }
        }
        let lock = lock_of(geometry.bucket(level, bucket));
        let what = [intents::RECOVER, bucket, geometry.version, level as u64 + 1];
        let recover = async |_, cell: &IntentCell<'_>| {
            mark!("recovery: lock claimed");
            self.recover_locked(&geometry, level, bucket, Some(cell)).await
        };
        claim_and_recover_all(self.pin, self.index, (lock, under), what, recover).await
    }

    /// Returns the version of a bucket, and whether the bucket is locked afterwards; `None` while the version changes.
    async fn state_of(&self, at: RemotePtr) -> Result<Option<(u64, bool)>, IndexError> {
        let mut batch = self.span().batch();
        let before = batch.read(at, Level::Two.bytes());
        let lock = batch.read(at, 8);
        let after = batch.read(at, Level::Two.bytes());
        let mut done = batch.post().await?;
        let [before, after] = [before, after].map(|ticket| Snapshot::new(at, done.buf(ticket)).version());
        let locked = done.buf(lock).words().first().is_some_and(|word| word & META != 0);
        Ok((before == after).then_some((before, locked)))
    }

    /// Locks a bucket in which slots are frozen although no client splits it, and recovers it.
    pub(super) async fn repair(&self, level: Level, bucket: u64) -> Result<(), IndexError> {
        let geometry = self.table.geometry();
        let at = geometry.bucket(level, bucket);
        let cell = self.pin.session().intent_cell(at.node()).await?;
        let word = read_word(self.span(), at).await?;
        if word & META != 0 || word == 0 {
            return Ok(());
        }
        let what = [intents::REPAIR, bucket, geometry.version, level as u64 + 1];
        let intent = Intent { index: self.index, lock: lock_of(at), what };
        let read = |batch: &mut Batch<'_>| batch.read(at, level.bytes());
        let Ok((mut done, read)) = acquire(self.span(), &cell, &intent, (word, word | META), read).await? else {
            return Ok(());
        };
        let now = Snapshot::new(at, done.buf(read));
        drop(done);
        let done = self.end_split(&geometry, level, bucket, &now, Some(&cell)).await;
        release_on_error(done, async || Ok(cell.abandon_lock(self.span()).await?)).await
    }

    /// Recovers the bucket that the latest split of this one has made, if that is locked; then finishes or undoes the
    /// interrupted split of this bucket, whose lock is held, and releases the lock. Returns the lock of the new bucket if its
    /// holder may be alive.
    async fn recover_locked(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<Option<HeldLock>, IndexError> {
        let span = self.span();
        let at = geometry.bucket(level, bucket);
        let now = Snapshot::new(at, span.read(at, level.bytes()).await?);
        let split = now.version().checked_sub(1).filter(|split| *split < geometry.version);
        if let Some(split) = split.filter(|split| bucket < geometry.buckets(*split)) {
            // It may still be locked by that split, or by a later client.
            let made = bucket + geometry.buckets(split);
            let held = recover_covered(self.pin, lock_of(geometry.bucket(level, made)), async || {
                mark!("recovery: new bucket released");
                cold(self.recover_locked(geometry, level, made, None)).await
            });
            if let Some(held) = held.await? {
                return Ok(Some(held));
            }
        }
        self.end_split(geometry, level, bucket, &now, cell).await.map(|()| None)
    }

    /// Finishes or undoes the interrupted split of a bucket whose lock is held, and releases the lock. `now` was READ under the
    /// lock.
    async fn end_split(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        now: &Snapshot,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let (span, version) = (self.span(), now.version());
        let chain = match level {
            Level::One => {
                let third = geometry.third(bucket);
                Some(Chain3::read(span, third, read_word(span, third).await?).await?)
            }
            Level::Two => None,
        };
        let headers = self.headers(now, chain.as_ref()).await?;
        let child = (version < geometry.version).then(|| bucket + geometry.buckets(version));
        let child = match child {
            Some(child) => {
                let at = geometry.bucket(level, child);
                Some((child, Snapshot::new(at, span.read(at, level.bytes()).await?)))
            }
            None => None,
        };
        match child {
            Some((_, made)) if made.is_written() => {
                mark!("recovery: split finished");
                self.finish(geometry, level, bucket, now, chain.as_ref(), &headers, &made, cell).await
            }
            child => self.undo(geometry, level, bucket, now, chain.as_ref(), &headers, child, cell).await,
        }
    }

    /// READs the headers of all frozen entries. An invalid one is left out, and its slot stays as it is.
    async fn headers(&self, now: &Snapshot, chain: Option<&Chain3>) -> Result<Headers, IndexError> {
        let slots = now.slots().map(|(_, slot)| slot);
        let thirds = chain.into_iter().flat_map(|chain| chain.slots().map(|(_, slot)| slot));
        let frozen = slots.chain(thirds).filter_map(|slot| match slot {
            Slot::Frozen(_, ptr) => Some(ptr),
            _ => None,
        });
        let blocks: Vec<_> = frozen.collect();
        let headers = read_headers(self.span(), &blocks).await.map_err(|error| led_from(now.at, error))?;
        Ok(blocks.into_iter().zip(headers).filter_map(|(ptr, header)| Some((ptr, header?))).collect())
    }

    /// Finishes a split whose new bucket is completely written: frees the slots of entries that have moved, and makes
    /// the others live again.
    #[allow(clippy::too_many_arguments)]
    async fn finish(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        now: &Snapshot,
        chain: Option<&Chain3>,
        headers: &Headers,
        made: &Snapshot,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let version = now.version();
        let next = version + 1;
        let stamp = Stamp::of_pin(self.pin.epoch());
        let mut old = now.words().to_vec();
        for (i, slot) in now.slots() {
            match slot {
                Slot::Frozen(fp, ptr) => {
                    // No client can change a frozen entry that stays, so its block's header places it. An entry that
                    // has moved may have been replaced in the new bucket since, and its block may hold another key by
                    // now, or none.
                    let stays = headers.get(&ptr).filter(|header| header.hash.fingerprint() == fp).and_then(|header| {
                        let hash = Op::placing_hash(geometry, level, bucket, version, header);
                        let here =
                            geometry.home(hash, version) == bucket && !moves(geometry.sid(hash, version), version);
                        let of = if next.is_multiple_of(ROUND) { next } else { version };
                        here.then(|| live(fp, ptr, geometry.sid(hash, of), header))
                    });
                    if stays.is_none() {
                        mark!("recovery: moved away");
                    }
                    old[i] = stays.unwrap_or(Slot::Dead(next, stamp)).over(old[i]);
                }
                Slot::Fresh(_, recycled) | Slot::Barrier(_, recycled) => {
                    old[i] = Slot::Fresh(next, recycled).over(old[i]);
                }
                _ => {}
            }
        }
        let mut batch = self.span().batch();
        write_changes(&mut batch, now, &old);
        for &(at, word) in chain.into_iter().flat_map(|chain| chain.words()) {
            if let Slot::Frozen(..) = Slot::decode(word) {
                batch.write_words(at, &[Slot::Dead(next, stamp).over(word)]);
            }
        }
        batch.faa(now.slot(version_slot(version)), META);
        if made.locked() {
            batch.faa(made.at, META);
        }
        batch.faa(now.slot(LOCK_SLOT), META);
        if let Some(cell) = cell {
            cell.clear(&mut batch);
        }
        batch.post().await?;
        cell.inspect(|cell| cell.cleared());
        Ok(())
    }

    /// Undoes a split whose new bucket is not completely written: restores the old state.
    #[allow(clippy::too_many_arguments)]
    async fn undo(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        now: &Snapshot,
        chain: Option<&Chain3>,
        headers: &Headers,
        child: Option<(u64, Snapshot)>,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let span = self.span();
        let version = now.version();
        let mut batch = span.batch();
        let mut nodes = Vec::new();
        if let Some((child, made)) = child {
            if made.words().iter().any(|word| *word != 0) {
                mark!("recovery: new bucket taken back");
                batch.write_words(made.at, &vec![0; level.slots()]);
            }
            if level == Level::One {
                let third = geometry.third(child);
                let word = read_word(span, third).await?;
                if word != 0 {
                    nodes = Chain3::read(span, third, word).await?.nodes;
                    batch.write_words(third, &[0]);
                }
            }
        }
        let mut words = now.words().to_vec();
        let recycled = now.slots().find_map(|(_, slot)| match slot {
            Slot::Fresh(_, stamp) | Slot::Barrier(_, stamp) => Some(stamp),
            _ => None,
        });
        for (i, slot) in now.slots() {
            match slot {
                Slot::Frozen(fp, ptr) => {
                    let Some(header) = headers.get(&ptr) else { continue };
                    mark!("recovery: entry unfrozen");
                    let hash = Op::placing_hash(geometry, level, bucket, version, header);
                    words[i] = live(fp, ptr, geometry.sid(hash, version), header).over(words[i]);
                }
                Slot::Barrier(of, stamp) => words[i] = Slot::Fresh(of, stamp).over(words[i]),
                Slot::Dead(of, dead) if level == Level::One => {
                    if let Some(stamp) = recycled.filter(|stamp| *stamp != Stamp::NEVER && stamp.recycles(dead)) {
                        mark!("recovery: recycling cut short");
                        words[i] = Slot::Dead(of, stamp).over(words[i]);
                    }
                }
                _ => {}
            }
        }
        write_changes(&mut batch, now, &words);
        for &(at, word) in chain.into_iter().flat_map(|chain| chain.words()) {
            if let Slot::Frozen(fp, ptr) = Slot::decode(word)
                && let Some(header) = headers.get(&ptr)
            {
                batch.write_words(at, &[live(fp, ptr, 1, header).over(word)]);
            }
        }
        batch.faa(now.slot(LOCK_SLOT), META);
        if let Some(cell) = cell {
            cell.clear(&mut batch);
        }
        batch.post().await?;
        cell.inspect(|cell| cell.cleared());
        for node in nodes {
            self.pin.retire(node, NODE_LEN as u64);
        }
        mark!("recovery: undone");
        Ok(())
    }
}

impl Shard {
    /// Prepares the recovery of locks of a table, for walks.
    pub(super) fn recovery<'a>(&self, table: &'a Table, pin: &'a Pin<'a>) -> Recovery<'a> {
        Recovery { index: self.uid(), table, pin }
    }
}

fn live(fp: u64, ptr: RemotePtr, sid: u64, header: &Header) -> Slot {
    let len = ((header.block_len() / UNIT) as u64).min(super::slot::MAX_UNITS);
    debug_assert_eq!(fp, Places::of(header.hash).hash.fingerprint());
    Slot::Live(Entry { fp, sid, len, ptr })
}
