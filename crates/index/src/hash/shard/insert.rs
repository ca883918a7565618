//! Inserting: Algorithm 1, with the rules that keep a key from being in two slots.
//!
//! *The usual case*: CAS the first fresh slot of the level-1 bucket. Fresh slots are used front to back and a used slot
//! is not fresh again until the whole bucket is [recycled](Op::recycle), so two inserts of one key CAS the same slot,
//! and one of them fails. This takes no verb more than the published protocol, and no READ behind the CAS either; the
//! argument is in docs/protocols/shard.md.
//!
//! *No fresh slot*: take the bucket's lock. Then either recycle the dead slots of the bucket, or put the entry into
//! level 2 or 3. While the bucket has no fresh slot, a key of this level-1 bucket is added to any level only under its
//! lock.

use super::bucket::{Health, LOCK_SLOT, Level, Snapshot, lock_of, overflow_slot};
use super::geometry::Geometry;
use super::intents;
use super::level3::Chain3;
use super::lookup::{Absence, Op, Verified};
use super::slot::{Entry, META, Pattern, Slot, Stamp};
use crate::IndexError;
use crate::block::UNIT;
use crate::marks::mark;
use crate::recovery::{acquire, release_on_error};
use farindex_fabric::{Batch, RemotePtr, cold};
use farindex_pool::{Intent, IntentCell};

/// What became of an attempt to insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// The entry is there.
    Done,
    /// Something has changed: look again.
    Again,
}

/// A held lock: released by FAA, with the intent cleared behind it.
struct Held<'s> {
    cell: IntentCell<'s>,
    at: RemotePtr,
}

impl Held<'_> {
    fn release(&self, batch: &mut Batch<'_>) {
        batch.faa(self.at, META);
        self.cell.clear(batch);
    }
}

/// What was read under the lock.
struct Under {
    first: Snapshot,
    seconds: [Snapshot; 2],
    chain: Chain3,
}

impl Op<'_> {
    /// Returns the slot that points to a block of this operation's key, without its sid.
    fn entry(&self, ptr: RemotePtr, block_len: usize) -> Entry {
        let len = ((block_len / UNIT) as u64).min(super::slot::MAX_UNITS);
        Entry { fp: self.places.hash.fingerprint(), sid: 0, len, ptr }
    }

    /// Puts a block where the key was found to be absent.
    pub(super) async fn put(&mut self, absence: &Absence, ptr: RemotePtr, block_len: usize) -> Result<Put, IndexError> {
        let Absence { geometry, bucket, first } = absence;
        let entry = self.entry(ptr, block_len);
        let sid = geometry.sid(self.places.hash.bits(), geometry.version);
        let live = Slot::Live(Entry { sid, ..entry });
        let Some((slot, Slot::Fresh(_, stamp))) = first.first_fresh() else {
            return cold(self.put_locked(geometry, *bucket, first, entry, live)).await;
        };
        // A READ that overlapped the recycling may have missed an earlier slot that is fresh by now.
        if !stamp.precedes(self.pin.epoch()) && self.trusted != Some((first.at, stamp)) {
            mark!("put: look again for what was recycled");
            self.trusted = Some((first.at, stamp));
            return Ok(Put::Again);
        }
        let word = first.word(slot);
        let old = self.span().cas(first.slot(slot), word, live.over(word)).await?;
        if old != word {
            mark!("put: CAS lost");
        }
        Ok(if old == word { Put::Done } else { Put::Again })
    }

    /// Should an insert wait for the epoch? Yes if the bucket has no fresh slot, but dead ones whose grace period has
    /// not elapsed. Otherwise the entry goes to level 2 or 3, and stays there.
    pub(super) fn should_await_epoch(&self, first: &Snapshot) -> bool {
        let epoch = self.pin.epoch();
        let mut dead = first.slots().filter_map(|(_, slot)| match slot {
            Slot::Dead(_, stamp) => Some(stamp.grace_period_elapsed(epoch)),
            _ => None,
        });
        let waits = first.first_fresh().is_none()
            && dead.next().is_some_and(|elapsed| !elapsed)
            && dead.all(|elapsed| !elapsed);
        waits && self.table.may_await_epoch(self.pin.session())
    }

    async fn put_locked(
        &mut self,
        geometry: &Geometry,
        bucket: u64,
        seen: &Snapshot,
        entry: Entry,
        live: Slot,
    ) -> Result<Put, IndexError> {
        let span = self.pin.span();
        let homes = self.second_homes(geometry);
        let cell = self.pin.session().intent_cell(seen.at.node()).await?;
        let held = Held { cell, at: seen.at };
        let what = [intents::INSERT, bucket, geometry.version, 1];
        let intent = Intent { index: self.shard.uid(), lock: lock_of(seen.at), what };
        let word = seen.word(LOCK_SLOT);
        let third_at = geometry.third(bucket);
        let reads = |batch: &mut Batch<'_>| {
            let first = batch.read(seen.at, Level::One.bytes());
            let seconds = homes.map(|home| {
                let at = geometry.bucket(Level::Two, home);
                (at, batch.read(at, Level::Two.bytes()))
            });
            (first, seconds, batch.read(third_at, 8))
        };
        let acquired = acquire(span, &held.cell, &intent, (word, word | META), reads).await?;
        let Ok((mut done, (first, seconds, third))) = acquired else {
            mark!("put: lock lost");
            drop(held);
            self.wait_for(seen.at).await?;
            return Ok(Put::Again);
        };
        let first = Snapshot::new(seen.at, done.buf(first));
        let seconds = seconds.map(|(at, ticket)| Snapshot::new(at, done.buf(ticket)));
        let third = done.buf(third).words().first().copied().unwrap_or(0);
        drop(done);
        let chain = Chain3::read(span, third_at, third).await;
        let chain = release_on_error(chain, async || self.release(&held).await).await?;
        let under = Under { first, seconds, chain };
        let outcome = self.put_under_lock(geometry, &under, entry, live, &held).await;
        match outcome {
            Ok(Step::Released(put)) => Ok(put),
            Ok(Step::Second(choice)) => {
                mark!("put: level 2 not in order");
                self.release(&held).await?;
                drop(held);
                self.recover_second(geometry, homes[choice], &under.seconds[choice]).await?;
                Ok(Put::Again)
            }
            Ok(Step::Frozen) => {
                mark!("put: frozen slots under the lock");
                self.undo_split(&under.first, &held.cell).await?;
                let what = || format!("level 1: slots of bucket {bucket} stay frozen");
                self.unresolved(seen.at, under.first.trace(geometry.version), what)?;
                Ok(Put::Again)
            }
            Ok(Step::Moving) => {
                self.release(&held).await?;
                drop(held);
                self.recover_third(geometry, bucket, &under.chain).await?;
                Ok(Put::Again)
            }
            Ok(Step::Unmarked) => {
                self.release(&held).await?;
                drop(held);
                let what = || format!("the key lies in level 2 or 3, but bucket {bucket} of level 1 does not say so");
                self.unresolved(seen.slot(overflow_slot(self.places.overflow_class())), 0, what)?;
                self.wait_for(seen.at).await?;
                Ok(Put::Again)
            }
            Ok(Step::Again) => {
                mark!("put: look again under the lock");
                self.release(&held).await?;
                Ok(Put::Again)
            }
            Err(error @ IndexError::Fabric(_)) => Err(error),
            Err(error) => {
                self.release(&held).await?;
                Err(error)
            }
        }
    }

    async fn release(&self, held: &Held<'_>) -> Result<(), IndexError> {
        let mut batch = self.span().batch();
        held.release(&mut batch);
        batch.post().await?;
        held.cell.cleared();
        Ok(())
    }

    /// Splits a level-2 bucket, or waits for it, before the key can go there.
    async fn recover_second(&mut self, geometry: &Geometry, home: u64, seen: &Snapshot) -> Result<(), IndexError> {
        let side = geometry.side(home, geometry.version);
        match seen.health(geometry.version, self.places.hash.fingerprint(), side) {
            Health::Good => Ok(()),
            Health::Unwritten | Health::Older(_) => {
                let at = geometry.bucket(Level::Two, home);
                let again = Snapshot::new(at, self.span().read(at, Level::Two.bytes()).await?);
                self.split_towards(geometry, Level::Two, home, again, None).await
            }
            health => self.recover(geometry, Level::Two, seen, health).await,
        }
    }

    async fn put_under_lock(
        &mut self,
        geometry: &Geometry,
        under: &Under,
        entry: Entry,
        live: Slot,
        held: &Held<'_>,
    ) -> Result<Step, IndexError> {
        let fp = self.places.hash.fingerprint();
        let version = geometry.version;
        let homes = self.second_homes(geometry);
        let Under { first, seconds, chain } = under;

        // The bucket may have been split, recycled or filled in between, or the key may have come.
        if first.version() != version || first.slots().any(|(_, slot)| matches!(slot, Slot::Fresh(..))) {
            return Ok(Step::Again);
        }
        if first.slots().any(|(_, slot)| !matches!(slot, Slot::Live(_) | Slot::Dead(..))) {
            return Ok(Step::Frozen);
        }
        let mut unknown = self.candidates(first, self.places.first_pattern(geometry));
        for (choice, second) in seconds.iter().enumerate() {
            let side = geometry.side(homes[choice], version);
            if second.health(version, fp, side) != Health::Good {
                return Ok(Step::Second(choice));
            }
            let pattern = Pattern::new(fp, geometry.sid(self.places.choices()[choice], version));
            unknown.extend(self.candidates(second, pattern));
            unknown.extend(self.torn_candidates(second, geometry, self.places.choices()[choice]));
        }
        unknown.extend(self.third_candidates(chain));
        if chain.is_moving(fp, version) {
            return Ok(Step::Moving);
        }
        // Usually the lookup has already rejected them. It has not READ levels 2 and 3 if the overflow bit is not set.
        if !unknown.is_empty() {
            match self.verify(unknown).await? {
                Verified::None => {}
                Verified::Hit(hit) if !first.holds(hit.slot) && !first.overflowed(self.places.overflow_class()) => {
                    return Ok(Step::Unmarked);
                }
                _ => return Ok(Step::Again),
            }
        }
        if let Some(step) = self.recycle(geometry, first, live, held).await? {
            return Ok(step);
        }
        self.put_second(geometry, under, entry, held).await
    }

    /// Recycles the bucket's dead slots: the first one takes the entry, the others become fresh, with the stamp of this
    /// recycling. One WRITE for each, front to back (G4): if a client sees one of them fresh, all slots before it are
    /// settled.
    async fn recycle(
        &mut self,
        geometry: &Geometry,
        first: &Snapshot,
        live: Slot,
        held: &Held<'_>,
    ) -> Result<Option<Step>, IndexError> {
        let epoch = self.pin.epoch();
        let dead =
            first.slots().filter(|(_, slot)| matches!(slot, Slot::Dead(_, stamp) if stamp.grace_period_elapsed(epoch)));
        let dead: Vec<usize> = dead.map(|(slot, _)| slot).collect();
        if dead.is_empty() {
            self.pin.session().want_epoch(1);
            return Ok(None);
        }
        mark!("recycle");
        let fresh = Slot::Fresh(geometry.version, Stamp::of_pin(epoch));
        let mut batch = self.span().batch();
        for (i, slot) in dead.into_iter().enumerate() {
            // The lock bit is set in slot 0 by now. The other bits do not change while the lock is held.
            let word = first.word(slot);
            let becomes = if i == 0 { live } else { fresh };
            batch.write_words(first.slot(slot), &[becomes.over(word)]);
        }
        held.release(&mut batch);
        batch.post().await?;
        held.cell.cleared();
        Ok(Some(Step::Released(Put::Done)))
    }

    /// Puts the entry into level 2, into the emptier of its two choices, or else into level 3.
    async fn put_second(
        &mut self,
        geometry: &Geometry,
        under: &Under,
        entry: Entry,
        held: &Held<'_>,
    ) -> Result<Step, IndexError> {
        mark!("put_second");
        let Under { first, seconds, chain } = under;
        let epoch = self.pin.epoch();
        let free = |snapshot: &Snapshot| {
            let free = |slot: &Slot| match slot {
                Slot::Fresh(..) => true,
                Slot::Dead(_, stamp) => stamp.grace_period_elapsed(epoch),
                _ => false,
            };
            let all: Vec<usize> = snapshot.slots().filter(|(_, slot)| free(slot)).map(|(i, _)| i).collect();
            let fresh = all.iter().copied().find(|i| matches!(Slot::decode(snapshot.word(*i)), Slot::Fresh(..)));
            (all.len(), fresh.or(all.first().copied()))
        };
        let marked = overflow_slot(self.places.overflow_class());
        let mut batch = self.span().batch();
        if first.word(marked) & META == 0 {
            batch.faa(first.slot(marked), META);
        }
        let [(one, _), (two, _)] = [free(&seconds[0]), free(&seconds[1])];
        let choice = usize::from(two > one);
        if let (_, Some(slot)) = free(&seconds[choice]) {
            let snapshot = &seconds[choice];
            // Where both choices are one bucket, the first one counts (see `Op::placing_hash`).
            let choice = if seconds[0].at == seconds[1].at { 0 } else { choice };
            let sid = geometry.sid(self.places.choices()[choice], geometry.version);
            let word = snapshot.word(slot);
            let put = batch.cas(snapshot.slot(slot), word, Slot::Live(Entry { sid, ..entry }).over(word));
            held.release(&mut batch);
            let mut done = batch.post().await?;
            held.cell.cleared();
            let put = if done.old(put) == word { Put::Done } else { Put::Again };
            return Ok(Step::Released(put));
        }
        batch.post().await?;
        match chain.add(&self.pin, Slot::Live(Entry { sid: 1, ..entry }).encode()).await? {
            true => {
                self.release(held).await?;
                Ok(Step::Released(Put::Done))
            }
            false => Ok(Step::Again),
        }
    }
}

/// How a step under the lock ended.
enum Step {
    /// The lock is released already.
    Released(Put),
    /// The lock is still held; look again.
    Again,
    /// The lock is still held. Another client has begun to split the bucket, and has not got the lock. It may never
    /// come back for that split, whether the split is due or was a mistake.
    Frozen,
    /// The lock is still held; entries of level 3 are frozen, or are of a newer version.
    Moving,
    /// The lock is still held; the key is in level 2 or 3, which no lookup READs because the overflow bit is not set.
    Unmarked,
    /// The lock is still held; this level-2 choice has to be split or waited for.
    Second(usize),
}
