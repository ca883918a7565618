//! Putting right what a dead client has left under a lock.
//!
//! Who has waited too long for a bucket claims its lock ([`farindex_pool::takeover`]), and then finishes or undoes what was
//! begun. What that is, the buckets say; the dead one's intent is not needed. Every step may be the last one of whoever takes
//! it, and the next one begins again from what it finds (docs/protocols/shard.md, "Crash recovery").
//!
//! * A bucket that a split makes is written under the lock of its parent, and released before it. So who wants a locked
//!   bucket looks at the parent first; and who claims a bucket claims those that its latest split has not released.
//! * All words of the new bucket are written: some reader may have found it so, and have changed entries in it. So the split
//!   is finished. One of them is not: no word of the old bucket has been overwritten, nobody relies on the new one, and the
//!   split is undone.
//! * Dead slots that a recycling had no time for get its stamp: the next recycling must have a later one.

use super::Shard;
use super::bucket::{LOCK_SLOT, Level, Snapshot, version_slot};
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
use crate::recovery::{HeldLock, acquire, claim_and_recover, claim_covered, release_on_error};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Intent, IntentCell, Lock, Pin};
use std::collections::BTreeMap;

/// Headers of the blocks behind frozen slots.
type Headers = BTreeMap<RemotePtr, Header>;

/// The lock of a bucket.
pub(super) fn lock_of(at: RemotePtr) -> Lock {
    Lock { at, mask: META }
}

/// Somebody who looks after others, under a pin.
pub(super) struct Recovery<'a> {
    pub(super) index: u64,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
}

impl Op<'_> {
    /// Recovers the bucket at this address, which may be that of a lock or of any slot, if the client that holds its lock has
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

    /// Claims the lock that blocks this address if its holder has crashed, and recovers what the lock protects. Returns the lock
    /// if its holder may be alive.
    pub(super) async fn try_recover_lock(&self, at: RemotePtr) -> Result<Option<HeldLock>, IndexError> {
        // The dead one may have known a newer directory.
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
                // The split that made the bucket has released it; but who claims the parent may claim it too.
                under = Some(lock_of(geometry.bucket(level, parent)));
                break;
            }
        }
        let lock = lock_of(geometry.bucket(level, bucket));
        let what = [intents::RECOVER, bucket, geometry.version, level as u64 + 1];
        let recover = async |_, cell: &IntentCell<'_>| {
            mark!("rescue: lock claimed");
            self.recover_locked(&geometry, level, bucket, Some(cell)).await
        };
        claim_and_recover(self.pin, self.index, lock, under, what, recover).await
    }

    /// Version of a bucket, and whether it is locked afterwards; `None` while the version changes.
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

    /// Takes the lock of a bucket in which slots stand still although nobody splits it, and puts that right.
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
        if acquire(self.span(), &cell, &intent, (word, word | META), |_| ()).await?.is_err() {
            return Ok(());
        }
        let done = self.recover_locked(&geometry, level, bucket, Some(&cell)).await;
        release_on_error(done, async || Ok(cell.abandon_lock(self.span()).await?)).await
    }

    /// Under the lock: finishes or undoes what was begun, and releases it.
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
                Some(Chain3::read(span, third, read_word(span, third).await?).await?)
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
                mark!("rescue: split finished");
                self.finish(geometry, level, bucket, &now, chain.as_ref(), &headers, &made, cell).await
            }
            child => self.undo(geometry, level, bucket, &now, chain.as_ref(), &headers, child, cell).await,
        }
    }

    /// The bucket that the latest split has made may be locked still, by that split or by somebody who came later.
    async fn release_child(&self, geometry: &Geometry, level: Level, child: u64) -> Result<(), IndexError> {
        if claim_covered(self.pin, lock_of(geometry.bucket(level, child))).await? {
            mark!("rescue: new bucket released");
            Box::pin(self.recover_locked(geometry, level, child, None)).await?;
        }
        Ok(())
    }

    /// Headers of all frozen entries. One that makes no sense is left out, and its slot as it is.
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

    /// The new bucket is all there: what has moved goes, what stays comes back to life.
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
                    // Nobody can change an entry that stays, so its block says where it belongs. One that has moved may have been
                    // replaced in the new bucket since, and its block may hold another key by now, or none.
                    let stays = headers.get(&ptr).filter(|header| header.hash.fingerprint() == fp).and_then(|header| {
                        let hash = Op::placing_hash(geometry, level, bucket, version, header);
                        let here =
                            geometry.home(hash, version) == bucket && !moves(geometry.sid(hash, version), version);
                        let of = if next.is_multiple_of(ROUND) { next } else { version };
                        here.then(|| live(fp, ptr, geometry.sid(hash, of), header))
                    });
                    if stays.is_none() {
                        mark!("rescue: moved away");
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

    /// Nobody relies on the new bucket, if there is one at all: everything becomes as it was before.
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
                mark!("rescue: new bucket taken back");
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
                    mark!("rescue: entry thawed");
                    let hash = Op::placing_hash(geometry, level, bucket, version, header);
                    words[i] = live(fp, ptr, geometry.sid(hash, version), header).over(words[i]);
                }
                Slot::Barrier(of, stamp) => words[i] = Slot::Fresh(of, stamp).over(words[i]),
                Slot::Dead(of, dead) if level == Level::One => {
                    if let Some(stamp) = recycled.filter(|stamp| *stamp != Stamp::NEVER && stamp.recycles(dead)) {
                        mark!("rescue: recycling cut short");
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
        mark!("rescue: undone");
        Ok(())
    }
}

impl Shard {
    /// One look after a lock of one of this index's tables, for walks.
    pub(super) fn recovery<'a>(&self, table: &'a Table, pin: &'a Pin<'a>) -> Recovery<'a> {
        Recovery { index: self.uid(), table, pin }
    }
}

fn live(fp: u64, ptr: RemotePtr, sid: u64, header: &Header) -> Slot {
    let len = ((header.block_len() / UNIT) as u64).min(super::slot::MAX_UNITS);
    debug_assert_eq!(fp, Places::of(header.hash).hash.fingerprint());
    Slot::Live(Entry { fp, sid, len, ptr })
}
