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
use crate::backoff::release_after_failed_recovery;
use crate::block::{HEADER_LEN, Header, UNIT};
use crate::marks::mark;
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Claim, Intent, IntentCell, LockTimeout, Pin, Taken};
use std::collections::BTreeMap;
use std::time::Duration;

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
        match recovery.try_recover_lock(at).await? {
            Some((lock, names)) => {
                self.backoff.wait_for_lock_holder(self.pin.session(), self.pin.span(), lock, names).await
            }
            None => Ok(()),
        }
    }
}

impl Recovery<'_> {
    fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Claims the lock that blocks this address, if the lock's holder has crashed, and recovers the bucket. If the
    /// holder is alive, returns the lock's address and the number that identifies the holder.
    pub(super) async fn try_recover_lock(&self, at: RemotePtr) -> Result<Option<(RemotePtr, u64)>, IndexError> {
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
        match self.pin.session().claim(self.span(), lock, under, self.index, what).await? {
            Claim::Free | Claim::Unsteady => Ok(None),
            Claim::Busy { names, .. } => Ok(Some((lock.at, names))),
            Claim::Taken(Taken { cell, .. }) => {
                mark!("recovery: lock claimed");
                let done = self.recover_locked(&geometry, level, bucket, cell.as_ref()).await;
                release_after_failed_recovery(self.span(), cell.as_ref(), done).await.map(|()| None)
            }
        }
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
        let word = first_word(self.span(), at).await?;
        if word & META != 0 || word == 0 {
            return Ok(());
        }
        let mut batch = self.span().batch();
        let what = [intents::REPAIR, bucket, geometry.version, level as u64 + 1];
        cell.declare(&mut batch, &Intent { index: self.index, lock: lock_of(at), what });
        let lock = batch.cas(at, word, word | META);
        if batch.post().await?.old(lock) != word {
            let mut batch = self.span().batch();
            cell.clear(&mut batch);
            batch.post().await?;
            return Ok(());
        }
        let done = self.recover_locked(&geometry, level, bucket, Some(&cell)).await;
        release_after_failed_recovery(self.span(), Some(&cell), done).await
    }

    /// Finishes or undoes the interrupted split of a bucket whose lock is held, and releases the lock.
    async fn recover_locked(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        cell: Option<&IntentCell<'_>>,
    ) -> Result<(), IndexError> {
        let span = self.span();
        let at = geometry.bucket(level, bucket);
        let now = Snapshot::new(at, span.read(at, level.bytes()).await?);
        let version = now.version();
        let split = version.checked_sub(1).filter(|split| *split < geometry.version);
        if let Some(split) = split.filter(|split| bucket < geometry.buckets(*split)) {
            self.release_child(geometry, level, bucket + geometry.buckets(split)).await?;
        }
        let chain = match level {
            Level::One => {
                let third = geometry.third(bucket);
                Some(Chain3::read(span, third, first_word(span, third).await?).await?)
            }
            Level::Two => None,
        };
        let headers = self.headers(&now, chain.as_ref()).await?;
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
                self.finish(geometry, level, bucket, &now, chain.as_ref(), &headers, &made, cell).await
            }
            child => self.undo(geometry, level, bucket, &now, chain.as_ref(), &headers, child, cell).await,
        }
    }

    /// Releases the bucket that the latest split has made. It may still be locked by that split, or by a later client.
    async fn release_child(&self, geometry: &Geometry, level: Level, child: u64) -> Result<(), IndexError> {
        let at = geometry.bucket(level, child);
        let session = self.pin.session();
        let mut lock_timeout = LockTimeout::default();
        while first_word(self.span(), at).await? & META != 0 {
            let names = match session.claim_covered(self.span(), lock_of(at)).await? {
                Claim::Taken(_) => {
                    mark!("recovery: new bucket released");
                    return Box::pin(self.recover_locked(geometry, level, child, None)).await;
                }
                Claim::Busy { names, .. } => names,
                Claim::Free | Claim::Unsteady => 0,
            };
            if lock_timeout.lasts(names, session.endpoint().now()) > session.pool().lease() * 2 {
                let holder = farindex_pool::intent::holders(session, self.span(), at).await?;
                let waited_ms = (session.pool().lease() * 2).as_millis() as u64;
                return Err(IndexError::Locked { at, waited_ms, holder });
            }
            session.endpoint().sleep(Duration::from_micros(50)).await;
        }
        Ok(())
    }

    /// READs the headers of all frozen entries. An invalid one is left out, and its slot stays as it is.
    async fn headers(&self, now: &Snapshot, chain: Option<&Chain3>) -> Result<Headers, IndexError> {
        let mut batch = self.span().batch();
        let slots = now.slots().map(|(_, slot)| slot);
        let thirds = chain.into_iter().flat_map(|chain| chain.slots().map(|(_, slot)| slot));
        let frozen = slots.chain(thirds).filter_map(|slot| match slot {
            Slot::Frozen(_, ptr) => Some(ptr),
            _ => None,
        });
        let asked: Vec<_> = frozen.map(|ptr| (ptr, batch.read(ptr, HEADER_LEN))).collect();
        let mut done = batch.post().await.map_err(|error| led_from(now.at, error))?;
        let read = asked.into_iter().filter_map(|(ptr, ticket)| Some((ptr, Header::decode(done.buf(ticket).words())?)));
        Ok(read.collect())
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
                let word = first_word(span, third).await?;
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
        for node in nodes {
            self.pin.session().discard(node, NODE_LEN as u64);
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

async fn first_word(span: &Span, at: RemotePtr) -> Result<u64, IndexError> {
    Ok(span.read(at, 8).await?.words().first().copied().unwrap_or_default())
}
