//! Splitting one bucket: Algorithm 3 with combined writes (Figure 10b), repaired.
//!
//! The published move locks one slot, and writes back the whole bucket while CASes on the other slots go on. Here the
//! client that splits a bucket first makes every CAS fail that must not succeed any more:
//!
//! 1. *one batch*: write the intent; CAS the lock; CAS the first fresh slot to a barrier (inserts go to the first fresh
//!    slot, so the barrier stops all of them); CAS each entry that moves to its frozen form; READ the bucket again.
//! 2. *one batch*: WRITE the new bucket, locked; WRITE what changes in the old one, which are only frozen, barred and
//!    dead slots; then by FAA advance the version, release the new lock, release the old one; clear the intent.
//!
//! So a move costs two extra round trips, as in the paper. Entries that stay can be updated and removed all the time.
//! Every fourth split renews the sids: then all entries are frozen, and their blocks' headers are read within batch 1.
//!
//! If another client took the lock first, the slots that were frozen and barred stay so. They say only that this split
//! is due, which is true. The next holder of the lock finds them (here, or in `unfreeze`).

use super::bucket::{LOCK_SLOT, Level, Snapshot, fresh_word, lock_of, overflow_slot, version_bit, version_slot};
use super::geometry::{Geometry, Places, ROUND, moves};
use super::intents;
use super::level3::Chain3;
use super::lookup::{Op, Overdue};
use super::slot::{Entry, META, Slot, Stamp, freeze};
use super::stall::{Stall, led_from};
use crate::IndexError;
use crate::block::{HEADER_LEN, Header, UNIT};
use crate::faults::{Fault, planted};
use crate::marks::mark;
use farindex_fabric::{Batch, Done, RemotePtr, Ticket};
use farindex_pool::{Intent, IntentCell, PoolError};
use std::collections::BTreeMap;

/// The two buckets that a split leaves behind.
pub(super) struct Halves {
    pub old: Snapshot,
    pub new: Snapshot,
}

/// What is known of the entries of a bucket that is being split.
#[derive(Default)]
pub(super) struct Known {
    /// By block: the slot as it was before it was frozen.
    pub(super) entries: BTreeMap<RemotePtr, Entry>,
    /// By block: what its header says.
    pub(super) headers: BTreeMap<RemotePtr, Header>,
}

/// A CAS that freezes or bars one slot.
pub(super) struct FreezeCas {
    ticket: Ticket,
    word: u64,
    entry: Option<Entry>,
}

impl Known {
    /// Learns from the CASes that succeeded; returns whether there were any. What a failed CAS expected may be out of
    /// date.
    fn learn(&mut self, done: &mut Done, held: &[FreezeCas]) -> bool {
        let mut any = false;
        for held in held.iter().filter(|held| done.old(held.ticket) == held.word) {
            any = true;
            self.entries.extend(held.entry.map(|entry| (entry.ptr, entry)));
        }
        any
    }
}

/// Adds the CASes of batch 1 that freeze the entries which move, and bar the first fresh slot.
pub(super) fn freeze_slots(batch: &mut Batch<'_>, seen: &Snapshot, level: Level, version: u64) -> Vec<FreezeCas> {
    let mut held = Vec::new();
    let all = version % ROUND == ROUND - 1;
    let mut barred = planted(Fault::AnyBarrier) && seen.slots().any(|(_, slot)| matches!(slot, Slot::Barrier(..)));
    for (i, slot) in seen.slots() {
        let word = seen.word(i) | if i == LOCK_SLOT { META } else { 0 };
        let at = seen.slot(i);
        match slot {
            Slot::Live(entry) if all || moves(entry.sid, version) => {
                held.push(FreezeCas { ticket: batch.cas(at, word, freeze(word)), word, entry: Some(entry) });
            }
            Slot::Fresh(of, stamp) if !barred => {
                barred = true;
                let ticket = batch.cas(at, word, Slot::Barrier(of, stamp).over(word));
                held.push(FreezeCas { ticket, word, entry: None });
            }
            // An existing barrier counts only if no fresh slot lies before it: an insert may know that fresh slot.
            Slot::Barrier(..) => barred = true,
            // In level 2 dead slots are reused by CAS: a CAS that expects the word of the old version must fail.
            Slot::Dead(of, stamp) if level == Level::Two && of <= version => {
                let ticket = batch.cas(at, word, Slot::Dead(version + 1, stamp).over(word));
                held.push(FreezeCas { ticket, word, entry: None });
            }
            _ => {}
        }
    }
    held
}

impl Op<'_> {
    /// Splits `bucket`, whose unlocked snapshot is `seen`, into itself and its child of the next version. Returns
    /// `None` if another client has the lock, or the snapshot was not what it seemed.
    async fn split(
        &mut self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        seen: &Snapshot,
    ) -> Result<Option<Halves>, IndexError> {
        let version = seen.version();
        let span = self.pin.span();
        let cell = self.pin.session().intent_cell(seen.at.node()).await?;
        let mut known = Known::default();
        let mut batch = span.batch();
        let what = [intents::SPLIT, bucket, version, level as u64 + 1];
        cell.declare(&mut batch, &Intent { index: self.shard.uid(), lock: lock_of(seen.at), what });
        let word = seen.word(LOCK_SLOT);
        let lock = batch.cas(seen.at, word, word | META);
        let held = freeze_slots(&mut batch, seen, level, version);
        let read = batch.read(seen.at, level.bytes());
        let third_at = geometry.third(bucket);
        let third = (level == Level::One).then(|| batch.read(third_at, 8));
        let headers: Vec<_> = match version % ROUND == ROUND - 1 {
            true => {
                let entries = held.iter().filter_map(|held| held.entry);
                entries.map(|entry| (entry.ptr, batch.read(entry.ptr, HEADER_LEN))).collect()
            }
            false => Vec::new(),
        };
        let mut done = batch.post().await.map_err(|error| led_from(seen.at, error))?;
        let froze = known.learn(&mut done, &held);
        if done.old(lock) != word {
            mark!("split: lock lost");
            drop(done);
            let mut batch = span.batch();
            cell.clear(&mut batch);
            batch.post().await?;
            cell.cleared();
            drop(cell);
            if froze {
                self.unfreeze(level, seen.at, version).await?;
            }
            return Ok(None);
        }
        let now = Snapshot::new(seen.at, done.buf(read));
        let third = third.map(|ticket| done.buf(ticket).words().first().copied().unwrap_or(0));
        for (ptr, ticket) in headers {
            if let Some(header) = Header::decode(done.buf(ticket).words()) {
                known.headers.insert(ptr, header);
            }
        }
        drop(done);
        if now.version() != version {
            mark!("split: of a mixed snapshot");
            // The snapshot mixed two versions: what was frozen for a split that is not due is made live again.
            self.restore(level, &now, &cell, &mut known).await?;
            return Ok(None);
        }
        match self.split_locked(geometry, level, bucket, now, &cell, &mut known, third).await {
            // An error does not leave the lock held. Only after a failed verb is the state unknown (N7).
            Err(error @ IndexError::Fabric(_)) => Err(error),
            Err(error) => {
                let now = Snapshot::new(seen.at, span.read(seen.at, level.bytes()).await?);
                self.restore(level, &now, &cell, &mut known).await?;
                Err(error)
            }
            Ok(halves) => Ok(Some(halves)),
        }
    }

    /// Splits a bucket whose lock is held, after batch 1.
    #[allow(clippy::too_many_arguments)]
    async fn split_locked(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        mut now: Snapshot,
        cell: &IntentCell<'_>,
        known: &mut Known,
        third: Option<u64>,
    ) -> Result<Halves, IndexError> {
        let span = self.pin.span();
        let version = now.version();
        // An update or an insert may have come in between: repeat until nothing is left to freeze.
        let mut stall = Stall::default();
        loop {
            let mut batch = span.batch();
            let held = freeze_slots(&mut batch, &now, level, version);
            if held.is_empty() {
                break;
            }
            mark!("split: straggler frozen again");
            let read = batch.read(now.at, level.bytes());
            let mut done = batch.post().await?;
            let froze = known.learn(&mut done, &held);
            now = Snapshot::new(now.at, done.buf(read));
            // Updates by other clients change these words. If none does, no locked bucket holds such words.
            if !froze && stall.lasts(self.pin.session(), now.trace(u64::MAX)) {
                let what = format!("{level}: a slot of bucket {bucket} cannot be frozen under the lock");
                return Err(PoolError::Corrupt { at: now.at, what }.into());
            }
        }
        self.learn_headers(&now, version, known, true).await?;
        let chain = match third {
            Some(word) => Some(Chain3::read(span, geometry.third(bucket), word).await?),
            None => None,
        };
        self.finish_split(geometry, level, bucket, &now, cell, known, chain).await
    }

    /// READs the headers of the entries that cannot be placed without them. If they are not `needed`, invalid ones are
    /// left out.
    pub(super) async fn learn_headers(
        &self,
        now: &Snapshot,
        version: u64,
        known: &mut Known,
        needed: bool,
    ) -> Result<(), IndexError> {
        let all = version % ROUND == ROUND - 1;
        let span = self.pin.span();
        let mut batch = span.batch();
        let mut asked = Vec::new();
        for (_, slot) in now.slots() {
            if let Slot::Frozen(_, ptr) = slot
                && (all || !known.entries.contains_key(&ptr))
                && !known.headers.contains_key(&ptr)
            {
                asked.push((ptr, batch.read(ptr, HEADER_LEN)));
            }
        }
        let mut done = batch.post().await.map_err(|error| led_from(now.at, error))?;
        for (ptr, ticket) in asked {
            let what = "a block's header is invalid";
            let corrupt = || IndexError::from(PoolError::Corrupt { at: ptr, what: what.to_owned() });
            match Header::decode(done.buf(ticket).words()) {
                Some(header) => drop(known.headers.insert(ptr, header)),
                None if needed => return Err(corrupt()),
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the hash that places an entry in this bucket: the key's own in level 1, that of its choice in level 2.
    pub(super) fn placing_hash(geometry: &Geometry, level: Level, bucket: u64, version: u64, header: &Header) -> u64 {
        let places = Places::of(header.hash);
        match level {
            Level::One => header.hash.bits(),
            Level::Two => {
                let [first, second] = places.choices();
                if geometry.home(first, version) == bucket { first } else { second }
            }
        }
    }

    /// Returns the entry of a frozen slot with the sid of the next version, and whether the entry moves.
    fn place(
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        version: u64,
        known: &Known,
        (fp, ptr): (u64, RemotePtr),
    ) -> Option<(Entry, bool)> {
        let renew = version % ROUND == ROUND - 1;
        if let Some(entry) = known.entries.get(&ptr)
            && !renew
        {
            return Some((*entry, moves(entry.sid, version)));
        }
        let header = known.headers.get(&ptr)?;
        let hash = Self::placing_hash(geometry, level, bucket, version, header);
        let next = if renew { version + 1 } else { version };
        let len = ((header.block_len() / UNIT) as u64).min(super::slot::MAX_UNITS);
        Some((Entry { fp, sid: geometry.sid(hash, next), len, ptr }, moves(geometry.sid(hash, version), version)))
    }

    #[allow(clippy::too_many_arguments)]
    async fn finish_split(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        now: &Snapshot,
        cell: &IntentCell<'_>,
        known: &Known,
        chain: Option<Chain3>,
    ) -> Result<Halves, IndexError> {
        let version = now.version();
        let next = version + 1;
        let stamp = Stamp::of_pin(self.pin.epoch());
        let child = bucket + geometry.buckets(version);
        let mut new = vec![fresh_word(next); level.slots()];
        for (i, word) in new.iter_mut().enumerate() {
            *word |= version_bit(i, next);
            let overflow = (0..super::bucket::OVERFLOW_CLASSES).any(|class| overflow_slot(class) == i);
            *word |= if overflow { now.word(i) & META } else { 0 };
        }
        new[LOCK_SLOT] |= META;
        let mut old = now.words().to_vec();
        // An entry that moves leaves a fresh slot, if every operation in flight knows the new version and can recognize
        // a READ that overlapped this split; otherwise it leaves a dead slot.
        let at_once = geometry.state.known_by_all(self.pin.epoch()) && geometry.side(bucket, next).is_some();
        let recycled = now.slots().find_map(|(_, slot)| match slot {
            Slot::Fresh(_, stamp) | Slot::Barrier(_, stamp) => Some(stamp),
            _ => None,
        });
        if at_once {
            mark!("split: frees at once what it vacates");
        }
        let vacated = match at_once {
            true => Slot::Fresh(next, recycled.unwrap_or(Stamp::NEVER)),
            false => Slot::Dead(next, stamp),
        };
        let mut filled = 0;
        for (i, slot) in now.slots() {
            match slot {
                Slot::Frozen(fp, ptr) => {
                    let placed = Self::place(geometry, level, bucket, version, known, (fp, ptr));
                    let Some((entry, moved)) = placed else {
                        let what = "a frozen entry cannot be placed".to_owned();
                        return Err(PoolError::Corrupt { at: now.slot(i), what }.into());
                    };
                    if moved {
                        new[filled] = Slot::Live(entry).over(new[filled]);
                        filled += 1;
                        old[i] = vacated.over(old[i]);
                    } else {
                        old[i] = Slot::Live(entry).over(old[i]);
                    }
                }
                Slot::Fresh(_, recycled) | Slot::Barrier(_, recycled) => {
                    old[i] = Slot::Fresh(next, recycled).over(old[i]);
                }
                _ => {}
            }
        }
        let mut moved_third = Vec::new();
        if let Some(chain) = &chain {
            let surplus;
            let made = geometry.third(child);
            (moved_third, surplus) = self.move_third(geometry, version, chain, &mut new, filled).await?;
            if let Err(error) = self.write_third(made, &surplus).await {
                // No room for a node: level 3 becomes what it was, as the caller does with the bucket.
                let word = self.pin.span().read(made, 8).await?.words().first().copied().unwrap_or(0);
                let nodes = Chain3::read(self.pin.span(), made, word).await?.nodes;
                let mut batch = self.pin.span().batch();
                for &(at, word) in &moved_third {
                    batch.write_words(at, &[word]);
                }
                batch.write_words(made, &[0]);
                batch.post().await?;
                for node in nodes {
                    self.pin.retire(node, super::level3::NODE_LEN as u64);
                }
                return Err(error);
            }
        }
        let new_at = geometry.bucket(level, child);
        let span = self.pin.span();
        let mut batch = span.batch();
        batch.write_words(new_at, &new);
        if planted(Fault::WholeBucket) {
            batch.write_words(now.at, &old);
        }
        write_changes(&mut batch, now, &old);
        for &(at, word) in &moved_third {
            batch.write_words(at, &[Slot::Dead(next, stamp).over(word)]);
        }
        let turned = version_slot(version);
        batch.faa(now.slot(turned), META);
        // While this split holds the new bucket's lock, it also holds the old one's, and the intent names the old one.
        batch.faa(new_at, META);
        if planted(Fault::PlainUnlock) {
            batch.write_words(now.at, &[old[LOCK_SLOT] ^ META]);
        } else {
            batch.faa(now.slot(LOCK_SLOT), META);
        }
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        if level == Level::One {
            mark!("split: level 1");
        } else {
            mark!("split: level 2");
        }
        if version % ROUND == ROUND - 1 {
            mark!("split: sids renewed");
        }
        // Entries that moved have left dead slots, which wait for the epoch. A small table needs them soon.
        self.pin.session().want_epoch(u32::try_from(geometry.slots() / 128).unwrap_or(u32::MAX));
        old[turned] ^= META;
        old[LOCK_SLOT] ^= META;
        new[LOCK_SLOT] ^= META;
        let endpoint = span.endpoint();
        let old = Snapshot::new(now.at, endpoint.buf_from_words(&old));
        Ok(Halves { old, new: Snapshot::new(new_at, endpoint.buf_from_words(&new)) })
    }

    /// Freezes the level-3 entries that move, and puts them into the new bucket while it has room. Returns the slots
    /// that they came from with their last words, and the entries that found no room.
    async fn move_third(
        &self,
        geometry: &Geometry,
        version: u64,
        chain: &Chain3,
        new: &mut [u64],
        mut filled: usize,
    ) -> Result<(Vec<(RemotePtr, u64)>, Vec<u64>), IndexError> {
        let span = self.pin.span();
        let mut moved = Vec::new();
        let mut surplus = Vec::new();
        for &(at, word) in chain.words() {
            let mut word = word;
            // Level 3 has few entries, so it is handled entry by entry.
            while let Slot::Live(entry) = Slot::decode(word) {
                let header = span.read(entry.ptr, HEADER_LEN).await.map_err(|error| led_from(at, error))?;
                let Some(header) = Header::decode(header.words()) else { break };
                if !moves(geometry.sid(header.hash.bits(), version), version) {
                    break;
                }
                let old = span.cas(at, word, freeze(word)).await?;
                if old != word {
                    word = old;
                    continue;
                }
                let sid = geometry.sid(header.hash.bits(), version + 1);
                let entry = Slot::Live(Entry { sid, ..entry });
                mark!("level 3: entry moved");
                moved.push((at, word));
                match new.get_mut(filled) {
                    Some(slot) => *slot = entry.over(*slot),
                    None => surplus.push(entry.encode()),
                }
                filled += 1;
                break;
            }
        }
        Ok((moved, surplus))
    }

    /// Writes a level-3 chain for the new bucket. No client can see the chain before the bucket is released.
    async fn write_third(&self, at: RemotePtr, entries: &[u64]) -> Result<(), IndexError> {
        let span = self.pin.span();
        for entry in entries {
            mark!("level 3: entry moved to level 3");
            let word = span.read(at, 8).await?.words().first().copied().unwrap_or(0);
            let chain = Chain3::read(span, at, word).await?;
            chain.add(&self.pin, *entry).await?;
        }
        Ok(())
    }

    /// Splits every bucket that has to be split before `bucket` has the directory's version. `seen` is what was read of
    /// the bucket itself; `parent` is what was read of its parent in the same batch, if it was.
    ///
    /// One batch that READs the first word of all ancestors finds the nearest one that exists (Figure 11). Then each
    /// split brings the bucket one version closer.
    ///
    /// If a split of level 1 finds no memory, `overdue` says so, and the operation goes on without it.
    pub(super) async fn split_towards(
        &mut self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
        seen: Snapshot,
        parent: Option<(u64, Snapshot)>,
    ) -> Result<(), IndexError> {
        let usable = |snapshot: &Snapshot| {
            let version = snapshot.version();
            !snapshot.locked() && snapshot.word(LOCK_SLOT) & !META != 0 && version < geometry.version
        };
        let exists = |snapshot: &Snapshot| snapshot.slots().all(|(_, slot)| slot != Slot::Unwritten);
        let (wanted, trace) = (seen.at, seen.trace(geometry.version));
        let (mut at, mut snapshot) = if exists(&seen) {
            (bucket, seen)
        } else {
            match parent.filter(|(_, snapshot)| exists(snapshot)) {
                Some(parent) => parent,
                None => match self.nearest_ancestor(geometry, level, bucket).await? {
                    Some(found) => found,
                    None => {
                        let what = || format!("{level}: bucket {bucket} and all that it is split from are not written");
                        self.unresolved(wanted, trace, what)?;
                        return self.wait_for(wanted).await;
                    }
                },
            }
        };
        loop {
            let mixed =
                snapshot.slots().any(|(_, slot)| matches!(slot, Slot::Fresh(of, _) if of != snapshot.version()));
            if !usable(&snapshot) || mixed {
                // Another client is splitting the bucket, or has split it: begin again.
                if !snapshot.locked() {
                    let what =
                        || format!("{level}: bucket {bucket} is not written whole, though bucket {at} was split");
                    self.unresolved(wanted, trace ^ snapshot.trace(geometry.version), what)?;
                }
                return self.wait_for(snapshot.at).await;
            }
            let version = snapshot.version();
            let halves = match self.split(geometry, level, at, &snapshot).await {
                Ok(Some(halves)) => halves,
                Ok(None) => return self.wait_for(snapshot.at).await,
                Err(why @ IndexError::Pool(PoolError::Full { .. })) if level == Level::One => {
                    mark!("split: no memory");
                    self.overdue = Some(Box::new(Overdue::new(geometry, version, why)));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            self.backoff = Default::default();
            let child = at + geometry.buckets(version);
            if version + 1 < geometry.version {
                mark!("split: several versions");
            }
            // Go on with the half that the wanted bucket descends from.
            let lower = geometry.buckets(version + 1) - 1;
            (at, snapshot) = if bucket & lower == child { (child, halves.new) } else { (at, halves.old) };
            if version + 1 == geometry.version {
                if level == Level::One && at == bucket {
                    self.ready = Some((geometry.version, bucket, snapshot));
                }
                return Ok(());
            }
        }
    }

    /// READs the nearest ancestor of a bucket that exists.
    async fn nearest_ancestor(
        &self,
        geometry: &Geometry,
        level: Level,
        bucket: u64,
    ) -> Result<Option<(u64, Snapshot)>, IndexError> {
        let span = self.pin.span();
        let line: Vec<_> = std::iter::successors(Some(bucket), |bucket| geometry.parent(*bucket)).skip(1).collect();
        let mut batch = span.batch();
        let tickets: Vec<_> = line.iter().map(|at| batch.read(geometry.bucket(level, *at), 8)).collect();
        let mut done = batch.post().await?;
        let mut written = |ticket| done.buf(ticket).words().first().is_some_and(|word| word & !META != 0);
        let Some((at, _)) = line.into_iter().zip(tickets).find(|(_, ticket)| written(*ticket)) else {
            return Ok(None);
        };
        let place = geometry.bucket(level, at);
        Ok(Some((at, Snapshot::new(place, span.read(place, level.bytes()).await?))))
    }
}

/// WRITEs the words that differ, run by run.
pub(super) fn write_changes(batch: &mut Batch<'_>, before: &Snapshot, after: &[u64]) {
    let mut i = 0;
    while i < after.len() {
        let mut end = i;
        while end < after.len() && before.word(end) != after[end] {
            end += 1;
        }
        if end > i {
            batch.write_words(before.slot(i), &after[i..end]);
        }
        i = end + 1;
    }
}
