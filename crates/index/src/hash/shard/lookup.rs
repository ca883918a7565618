//! Lookup of a key: Algorithm 2, made linearizable.
//!
//! A lookup READs the level-1 bucket, then the blocks behind the slots that match; only where the key's overflow class
//! is marked does it READ the two level-2 buckets and the level-3 slot as well, in one batch. A key that is found was
//! there when its slot was read. A key that is not found was absent at some moment of the lookup, if every bucket was
//! in good [health](super::bucket::Health). Otherwise the lookup recovers the bucket, or waits for the client that is
//! changing it, and begins again.

use super::Shard;
use super::bucket::{Health, Level, Snapshot};
use super::geometry::{Geometry, Places};
use super::level3::Chain3;
use super::slot::{META, Pattern, Slot};
use super::stall::{Stall, led_from};
use super::table::Table;
use crate::IndexError;
use crate::backoff::Backoff;
use crate::block::{Block, CandidateBlocks, KeyMatch, UNIT, check_slot_changed};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use farindex_fabric::{Buf, RemotePtr, Span, cold};
use farindex_pool::{Pin, PoolError};
use smallvec::SmallVec;
use std::rc::Rc;

/// A key that was found.
pub(super) struct Hit {
    /// Its slot.
    pub slot: RemotePtr,
    /// What the slot held.
    pub word: u64,
    /// Address of its block.
    pub ptr: RemotePtr,
    /// Its block.
    pub block: Block,
    /// What was read of its level-1 bucket, if it lies there.
    pub first: Option<Snapshot>,
}

/// A key that was not found, and where it would go.
pub(super) struct Absence {
    /// The directory that was used.
    pub geometry: Rc<Geometry>,
    /// The level-1 bucket.
    pub bucket: u64,
    /// What was read of it.
    pub first: Snapshot,
}

/// What a lookup found.
pub(super) enum LookupResult {
    /// The key.
    Hit(Hit),
    /// Its absence.
    Absent(Absence),
}

/// A slot that may hold the key.
pub(super) struct Candidate {
    slot: RemotePtr,
    pub(super) word: u64,
}

/// Usually one, and no reason to allocate.
pub(super) type Candidates = SmallVec<[Candidate; 2]>;

/// One operation on one key.
pub(super) struct Op<'a> {
    pub(super) shard: &'a Shard,
    pub(super) table: &'a Table,
    pub(super) pin: Pin<'a>,
    pub(super) key: &'a [u8],
    pub(super) places: Places,
    /// Words that point to blocks of other keys. Under the pin they keep pointing to other keys.
    pub(super) rejected: SmallVec<[u64; 4]>,
    pub(super) backoff: Backoff,
    pub(super) stall: Stall,
    /// The bucket as this operation's own split has left it.
    pub(super) ready: Option<(u64, u64, Snapshot)>,
    /// Level-1 slots of this recycling have been seen; a READ since then saw all of it.
    pub(super) trusted: Option<(RemotePtr, super::slot::Stamp)>,
    counted: bool,
}

impl<'a> Op<'a> {
    pub(super) fn new(shard: &'a Shard, table: &'a Table, pin: Pin<'a>, hash: KeyHash, key: &'a [u8]) -> Self {
        Op {
            shard,
            table,
            pin,
            key,
            places: Places::of(hash),
            rejected: SmallVec::new(),
            backoff: Backoff::default(),
            stall: Stall::default(),
            ready: None,
            trusted: None,
            counted: false,
        }
    }

    pub(super) fn span(&self) -> &Span {
        self.pin.span()
    }

    /// READs the root in a batch of its own if that is due, so that the first batch does not have to.
    pub(super) async fn look_at_root(&mut self) -> Result<(), IndexError> {
        self.counted = true;
        if !self.table.is_checked(self.pin.epoch()) {
            self.table.learn_version(self.span(), self.pin.epoch()).await?;
        }
        Ok(())
    }

    /// Waits for another client, longer each time. After several milliseconds it checks whether the lock's holder has
    /// crashed, and takes the lock over in that case.
    pub(super) async fn wait_for(&mut self, lock: RemotePtr) -> Result<(), IndexError> {
        match self.backoff.wait(self.pin.session()).await {
            true => self.try_recover_lock(lock).await,
            false => Ok(()),
        }
    }

    /// Looks up the key. `along` is a block that the lookup's first batch writes as well.
    pub(super) async fn look(&mut self, along: &mut Option<(RemotePtr, Buf)>) -> Result<LookupResult, IndexError> {
        loop {
            if let Some(looked) = self.look_once(along).await? {
                return Ok(looked);
            }
        }
    }

    /// Looks up the key once; returns `None` if the lookup has to begin again. The rare paths are boxed, because their
    /// futures are large and would be moved with each lookup.
    async fn look_once(&mut self, along: &mut Option<(RemotePtr, Buf)>) -> Result<Option<LookupResult>, IndexError> {
        let geometry = self.table.geometry();
        let bucket = geometry.home(self.places.hash.bits(), geometry.version);
        let ready = self.ready.take().filter(|(version, of, _)| (*version, *of) == (geometry.version, bucket));
        let (first, parent) = match ready {
            Some((.., snapshot)) => (snapshot, None),
            None => self.read_first(&geometry, bucket, along).await?,
        };
        let pattern = self.places.first_pattern(&geometry);
        let found = self.candidates(&first, pattern);
        if !found.is_empty() {
            match self.verify(found).await? {
                Verified::Hit(hit) => return Ok(Some(LookupResult::Hit(Hit { first: Some(first), ..hit }))),
                Verified::None => {}
                Verified::Again => return Ok(None),
            }
        }
        let fp = self.places.hash.fingerprint();
        if self.table.geometry().version > geometry.version {
            // The root came with this batch, and has a newer version: nothing is concluded from the older one.
            return Ok(None);
        }
        match first.health(geometry.version, fp, geometry.side(bucket, geometry.version)) {
            Health::Good => {}
            Health::Unwritten | Health::Older(_) => {
                mark!("health: unwritten or older");
                self.table.saw_young(false);
                cold(self.split_towards(&geometry, Level::One, bucket, first, parent)).await?;
                return Ok(None);
            }
            health => return cold(self.recover(&geometry, Level::One, &first, health)).await.map(|()| None),
        }
        let torn = self.torn_candidates(&first, &geometry, self.places.hash.bits());
        if !torn.is_empty() {
            mark!("lookup: sid of another round");
            match self.verify(torn).await? {
                Verified::Hit(hit) => {
                    mark!("lookup: found by the sid of another round");
                    return Ok(Some(LookupResult::Hit(Hit { first: Some(first), ..hit })));
                }
                Verified::None => {}
                Verified::Again => return Ok(None),
            }
        }
        if geometry.parent(bucket).is_some() && self.table.speculates() {
            self.table.saw_young(true);
        }
        if !first.overflowed(self.places.overflow_class()) {
            return Ok(Some(LookupResult::Absent(Absence { geometry, bucket, first })));
        }
        cold(self.look_further(geometry, bucket, first)).await
    }

    async fn read_first(
        &mut self,
        geometry: &Geometry,
        bucket: u64,
        along: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<(Snapshot, Option<(u64, Snapshot)>), IndexError> {
        let span = self.pin.span();
        let mut batch = span.batch();
        let sync = match std::mem::replace(&mut self.counted, true) {
            false => self.table.count_operation(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((ptr, buf)) = along.take() {
            batch.write(ptr, buf);
        }
        let at = geometry.bucket(Level::One, bucket);
        let own = batch.read(at, Level::One.bytes());
        let parent = geometry.parent(bucket).filter(|_| self.table.speculates());
        let parent = parent.map(|parent| {
            let at = geometry.bucket(Level::One, parent);
            (parent, at, batch.read(at, Level::One.bytes()))
        });
        let mut done = batch.post().await?;
        if let Some(sync) = sync {
            self.table.finish_sync(&sync, &mut done)?;
        }
        let first = Snapshot::new(at, done.buf(own));
        let parent = parent.map(|(parent, at, ticket)| (parent, Snapshot::new(at, done.buf(ticket))));
        Ok((first, parent))
    }

    /// Looks up the key in the overflow levels.
    async fn look_further(
        &mut self,
        geometry: Rc<Geometry>,
        bucket: u64,
        first: Snapshot,
    ) -> Result<Option<LookupResult>, IndexError> {
        let version = geometry.version;
        let fp = self.places.hash.fingerprint();
        let homes = self.second_homes(&geometry);
        let span = self.pin.span();
        let mut batch = span.batch();
        let seconds = homes.map(|home| {
            let at = geometry.bucket(Level::Two, home);
            (at, batch.read(at, Level::Two.bytes()))
        });
        let third_at = geometry.third(bucket);
        let third = batch.read(third_at, 8);
        let mut done = batch.post().await?;
        let seconds = seconds.map(|(at, ticket)| Snapshot::new(at, done.buf(ticket)));
        let third = done.buf(third).words().first().copied().unwrap_or(0);
        let chain = Chain3::read(span, third_at, third).await?;
        let mut found = Candidates::new();
        for (snapshot, hash) in seconds.iter().zip(self.places.choices) {
            found.extend(self.candidates(snapshot, Pattern::new(fp, geometry.sid(hash, version))));
            found.extend(self.torn_candidates(snapshot, &geometry, hash));
        }
        found.extend(self.third_candidates(&chain));
        if !found.is_empty() {
            match self.verify(found).await? {
                Verified::Hit(hit) => return Ok(Some(LookupResult::Hit(hit))),
                Verified::None => {}
                Verified::Again => return Ok(None),
            }
        }
        for (snapshot, home) in seconds.into_iter().zip(homes) {
            match snapshot.health(version, fp, geometry.side(home, version)) {
                Health::Good => {}
                Health::Unwritten | Health::Older(_) => {
                    self.split_towards(&geometry, Level::Two, home, snapshot, None).await?;
                    return Ok(None);
                }
                health => return self.recover(&geometry, Level::Two, &snapshot, health).await.map(|()| None),
            }
        }
        if chain.is_moving(fp, version) {
            mark!("level 3: moving");
            return self.recover_third(&geometry, bucket, &chain).await.map(|()| None);
        }
        Ok(Some(LookupResult::Absent(Absence { geometry, bucket, first })))
    }

    /// The key's two level-2 buckets.
    pub(super) fn second_homes(&self, geometry: &Geometry) -> [u64; 2] {
        self.places.choices.map(|hash| geometry.home(hash, geometry.version))
    }

    /// Recovers, or waits for, a bucket that is not in good health for another reason than that it has to be split.
    pub(super) async fn recover(
        &mut self,
        geometry: &Geometry,
        level: Level,
        seen: &Snapshot,
        health: Health,
    ) -> Result<(), IndexError> {
        match health {
            Health::Corrupt(slot) => {
                let what = format!("a slot holds {:#018x}", seen.word(slot));
                Err(PoolError::Corrupt { at: seen.slot(slot), what }.into())
            }
            Health::Newer => {
                mark!("health: newer");
                if self.table.learn_version(self.span(), self.pin.epoch()).await?
                    || self.table.geometry().version > geometry.version
                {
                    return Ok(());
                }
                // No newer version is published: the client that froze these slots is still at work, or has abandoned
                // the split.
                if self.backoff.is_long() && !seen.locked() {
                    self.repair(level, seen.at).await?;
                }
                let what = || format!("{level}: slots stay frozen, or are of a version above {}", geometry.version);
                self.wait_for_words(seen, geometry.version, what).await
            }
            Health::Mixed => {
                mark!("health: mixed");
                let what = || format!("{level}: slots of different versions");
                self.wait_for_words(seen, geometry.version, what).await
            }
            _ => {
                mark!("health: locked");
                self.wait_for(seen.at).await
            }
        }
    }

    /// Recovers, or waits for, a chain of level 3 with frozen entries or of a newer version.
    pub(super) async fn recover_third(
        &mut self,
        geometry: &Geometry,
        bucket: u64,
        chain: &Chain3,
    ) -> Result<(), IndexError> {
        if self.table.learn_version(self.span(), self.pin.epoch()).await?
            || self.table.geometry().version > geometry.version
        {
            return Ok(());
        }
        let at = geometry.bucket(Level::One, bucket);
        if self.backoff.is_long() {
            self.shard.recovery(self.table, &self.pin).repair(Level::One, bucket).await?;
        }
        let what = || format!("level 3 of bucket {bucket}: slots stay frozen, or are of a newer version");
        self.unresolved(geometry.third(bucket), chain.trace(geometry.version), what)?;
        self.wait_for(at).await
    }

    pub(super) fn third_candidates(&self, chain: &Chain3) -> Candidates {
        let matches = chain.matches(Pattern::any_sid(self.places.hash.fingerprint()));
        let unknown = matches.filter(|(_, word)| !self.rejected.contains(&(word & !META)));
        unknown.map(|(slot, word)| Candidate { slot, word }).collect()
    }

    /// Returns slots of a bucket in good health that may hold the key although they do not match its pattern: a READ
    /// that was torn by a renewal of the sids shows a version and a slot of different rounds.
    pub(super) fn torn_candidates(&self, snapshot: &Snapshot, geometry: &Geometry, hash: u64) -> Candidates {
        let patterns = self.places.torn_patterns(geometry, hash);
        patterns.flat_map(|pattern| self.candidates(snapshot, pattern)).collect()
    }

    pub(super) fn candidates(&self, snapshot: &Snapshot, pattern: Pattern) -> Candidates {
        let mut found = Candidates::new();
        let mut slots = snapshot.matches(pattern);
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            let word = snapshot.word(slot);
            if !self.rejected.contains(&(word & !META)) {
                found.push(Candidate { slot: snapshot.slot(slot), word });
            }
        }
        found
    }

    /// READs the candidates' blocks in one batch, and compares the keys.
    pub(super) async fn verify(&mut self, candidates: Candidates) -> Result<Verified, IndexError> {
        let asked: SmallVec<[_; 2]> = candidates
            .into_iter()
            .filter_map(|candidate| match Slot::decode(candidate.word) {
                Slot::Live(entry) => Some((candidate, entry.ptr, entry.len as usize * UNIT)),
                _ => None,
            })
            .collect();
        let first = asked.first().map_or(RemotePtr::NULL, |(candidate, ..)| candidate.slot);
        let blocks = CandidateBlocks::read(self.pin.span(), asked).await;
        let mut blocks = blocks.map_err(|error| led_from(first, error))?;
        while let Some((Candidate { slot, word }, ptr, found)) = blocks.next(self.places.hash, self.key).await? {
            match found {
                KeyMatch::Other => self.rejected.push(word & !META),
                KeyMatch::Own(block) => return Ok(Verified::Hit(Hit { slot, word, ptr, block, first: None })),
                KeyMatch::Unsound => {
                    let still = |now: u64| (now ^ word) & !META == 0;
                    cold(check_slot_changed(self.span(), slot, ptr, still)).await?;
                    cold(self.wait_for(slot)).await?;
                    return Ok(Verified::Again);
                }
            }
        }
        Ok(Verified::None)
    }

    /// Notes a state at `at` that blocks this operation and that no lock explains; `trace` changes when the state does.
    /// Two leases of the same state are an error.
    pub(super) fn unresolved(
        &mut self,
        at: RemotePtr,
        trace: u64,
        what: impl FnOnce() -> String,
    ) -> Result<(), IndexError> {
        match self.stall.lasts(self.pin.session(), trace ^ at.to_bits()) {
            true => Err(PoolError::Corrupt { at, what: what() }.into()),
            false => Ok(()),
        }
    }

    /// Like [`unresolved`](Self::unresolved) for a bucket with words that a settled bucket of this version does not
    /// have; then waits.
    pub(super) async fn wait_for_words(
        &mut self,
        seen: &Snapshot,
        version: u64,
        what: impl FnOnce() -> String,
    ) -> Result<(), IndexError> {
        self.unresolved(seen.at, seen.trace(version), what)?;
        self.wait_for(seen.at).await
    }
}

/// What became of candidates whose blocks were read.
pub(super) enum Verified {
    Hit(Hit),
    None,
    Again,
}
