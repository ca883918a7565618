//! Lookup of a key: Algorithm 2, made linearizable.
//!
//! A lookup READs the level-1 bucket, then the blocks behind the slots that match; only where the key's overflow class
//! is marked does it READ the two level-2 buckets and the level-3 slot as well, in one batch. A key that is found was
//! there when its slot was read. A key that is not found was absent at some moment of the lookup, if every bucket was
//! in good [health](super::bucket::Health). Otherwise the lookup recovers the bucket, or waits for the client that is
//! changing it, and begins again.

use super::Shard;
use super::bucket::{Health, Level, Snapshot, ones};
use super::geometry::{Geometry, Places};
use super::level3::Chain3;
use super::slot::{META, Pattern, Slot};
use super::stall::{Stall, led_from};
use super::table::Table;
use crate::IndexError;
use crate::backoff::Backoff;
use crate::block::{self, Block, CandidateBlocks, Compared, KeyMatch, UNIT, check_slot_changed};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::root_sync::Synchronization;
use farindex_fabric::{Buf, Class, Completion, Done, RemotePtr, Span, Ticket, cold};
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
    /// What was read of its bucket, if it lies in level 1 or 2.
    pub bucket: Option<Snapshot>,
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

/// A split of level 1 that is due and finds no memory.
pub(super) struct Overdue {
    /// The directory under the version that the bucket still has.
    geometry: Rc<Geometry>,
    /// Why the split failed.
    pub why: IndexError,
}

impl Overdue {
    /// A bucket still has this version.
    pub(super) fn new(geometry: &Geometry, version: u64, why: IndexError) -> Self {
        Overdue { geometry: Rc::new(geometry.as_of(version)), why }
    }
}

/// A slot that may hold the key.
pub(super) struct Candidate {
    pub(super) slot: RemotePtr,
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
    /// The split that this operation does without: it looks the key up where it lay before the split.
    pub(super) overdue: Option<Box<Overdue>>,
    /// Has it been counted for the synchronization with the root?
    pub(super) counted: bool,
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
            overdue: None,
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

    /// Looks up the key. `along` is a block that the lookup's first batch writes as well. The rare paths are boxed,
    /// because their futures are large. What is usual is done here, and not by futures of its own, since the results of
    /// a future are moved.
    pub(super) async fn look(&mut self, along: &mut Option<(RemotePtr, Buf)>) -> Result<LookupResult, IndexError> {
        loop {
            let geometry = match &self.overdue {
                None => self.table.geometry(),
                Some(overdue) => Rc::clone(&overdue.geometry),
            };
            let bucket = geometry.home(self.places.hash.bits(), geometry.version);
            let ready = self.ready.take().filter(|(version, of, _)| (*version, *of) == (geometry.version, bucket));
            let (first, parent) = match ready {
                Some((.., snapshot)) => (snapshot, None),
                None if let Some(first) = self.read_first_now(&geometry, bucket, along) => (first, None),
                None => {
                    let (asked, completion) = self.ask_first(&geometry, bucket, along);
                    let mut done = completion.await?;
                    asked.take(self.table, &mut done)?
                }
            };
            let slots = self.unknown(&first, self.places.first_pattern(&geometry));
            if slots != 0 && slots & (slots - 1) == 0 {
                // One candidate, as usual.
                let slot = slots.trailing_zeros() as usize;
                let word = first.word(slot);
                if let Slot::Live(entry) = Slot::decode(word) {
                    let at = first.slot(slot);
                    let len = entry.len as usize * UNIT;
                    let buf = match self.span().read_now(Class::Block, entry.ptr, len) {
                        Some(buf) => buf,
                        None => {
                            let mut batch = self.pin.span().block_batch();
                            let ticket = batch.read(entry.ptr, len);
                            batch.post().await.map_err(|error| led_from(at, error))?.buf(ticket)
                        }
                    };
                    match block::compare(buf, self.places.hash, self.key) {
                        Compared::Own(block) => {
                            self.found_split(parent.is_some());
                            let bucket = Some(first);
                            return Ok(LookupResult::Hit(Hit { slot: at, word, ptr: entry.ptr, block, bucket }));
                        }
                        Compared::Other => self.rejected.push(word & !META),
                        Compared::Open(buf) => {
                            match cold(self.verify_open(Candidate { slot: at, word }, entry.ptr, buf)).await? {
                                Verified::Hit(hit) => {
                                    self.found_split(parent.is_some());
                                    return Ok(LookupResult::Hit(Hit { bucket: Some(first), ..hit }));
                                }
                                Verified::None => {}
                                Verified::Again => continue,
                            }
                        }
                    }
                }
            } else if slots != 0 {
                match cold(self.verify(Self::candidates_of(&first, slots))).await? {
                    Verified::Hit(hit) => {
                        self.found_split(parent.is_some());
                        return Ok(LookupResult::Hit(Hit { bucket: Some(first), ..hit }));
                    }
                    Verified::None => {}
                    Verified::Again => continue,
                }
            }
            if self.overdue.is_some() {
                if let Some(looked) = cold(self.conclude_before_split(geometry, bucket, first)).await? {
                    return Ok(looked);
                }
                continue;
            }
            if self.table.version() > geometry.version {
                // The root came with this batch, and has a newer version: nothing is concluded from the older one.
                continue;
            }
            if self.is_absent(&geometry, bucket, &first) {
                return Ok(LookupResult::Absent(Absence { geometry, bucket, first }));
            }
            if let Some(looked) = cold(self.conclude(geometry, bucket, first, parent)).await? {
                return Ok(looked);
            }
        }
    }

    /// An entry of a bucket's present version was found in it. If it is a young bucket whose parent was READ as well, that was
    /// not needed.
    fn found_split(&self, read_parent: bool) {
        if read_parent && self.overdue.is_none() {
            self.table.saw_young(true);
        }
    }

    /// Does it follow from the level-1 bucket alone, without another verb, that a key is absent which it does not show?
    fn is_absent(&self, geometry: &Geometry, bucket: u64, first: &Snapshot) -> bool {
        let fp = self.places.hash.fingerprint();
        let absent = !first.overflowed(self.places.overflow_class())
            && first.health(geometry.version, fp, geometry.side(bucket, geometry.version)) == Health::Good
            && self.torn_candidates(first, geometry, self.places.hash.bits()).is_empty();
        if absent && geometry.parent(bucket).is_some() && self.table.speculates() {
            self.table.saw_young(true);
        }
        absent
    }

    /// Goes on where the level-1 bucket does not show the key, and more has to be done to know whether it is present.
    /// Returns `None` if the lookup has to begin again.
    async fn conclude(
        &mut self,
        geometry: Rc<Geometry>,
        bucket: u64,
        first: Snapshot,
        parent: Option<(u64, Snapshot)>,
    ) -> Result<Option<LookupResult>, IndexError> {
        let fp = self.places.hash.fingerprint();
        match first.health(geometry.version, fp, geometry.side(bucket, geometry.version)) {
            Health::Good => {}
            Health::Unwritten | Health::Older(_) => {
                mark!("health: unwritten or older");
                self.table.saw_young(false);
                cold(self.split_towards(&geometry, Level::One, bucket, first, parent)).await?;
                return Ok(None);
            }
            health => {
                if health == Health::Newer {
                    self.overdue = None;
                }
                return self.recover(&geometry, Level::One, &first, health).await.map(|()| None);
            }
        }
        let torn = self.torn_candidates(&first, &geometry, self.places.hash.bits());
        if !torn.is_empty() {
            mark!("lookup: sid of another round");
            match self.verify(torn).await? {
                Verified::Hit(hit) => {
                    mark!("lookup: found by the sid of another round");
                    return Ok(Some(LookupResult::Hit(Hit { bucket: Some(first), ..hit })));
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

    /// Like [`conclude`](Self::conclude) for a bucket whose split finds no memory. The operation knows the newer version, so
    /// a split may free at once the slots that it vacates, and another key may be there by now. Before that, it gives the
    /// bucket its new version. So a key is absent only if a second READ shows the old version as well.
    async fn conclude_before_split(
        &mut self,
        geometry: Rc<Geometry>,
        bucket: u64,
        first: Snapshot,
    ) -> Result<Option<LookupResult>, IndexError> {
        let fp = self.places.hash.fingerprint();
        let side = geometry.side(bucket, geometry.version);
        let looked = self.conclude(Rc::clone(&geometry), bucket, first, None).await?;
        if let Some(LookupResult::Absent(Absence { first, .. })) = &looked {
            let again = Snapshot::new(first.at, self.span().read(first.at, Level::One.bytes()).await?);
            if again.health(geometry.version, fp, side) != Health::Good {
                mark!("lookup: split meanwhile");
                self.overdue = None;
                return Ok(None);
            }
        }
        Ok(looked)
    }

    /// Posts the READ of the level-1 bucket, and of its parent if this worker speculates.
    #[inline]
    fn ask_first(
        &mut self,
        geometry: &Geometry,
        bucket: u64,
        along: &mut Option<(RemotePtr, Buf)>,
    ) -> (FirstRead, Completion<'_>) {
        let mut batch = self.pin.span().batch();
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
        (FirstRead { sync, at, own, parent }, batch.post())
    }

    /// Looks up the key in the overflow levels.
    async fn look_further(
        &mut self,
        geometry: Rc<Geometry>,
        bucket: u64,
        first: Snapshot,
    ) -> Result<Option<LookupResult>, IndexError> {
        let third_at = geometry.third(bucket);
        // Level 2 has splits of its own, and they need no memory.
        let level1 = geometry;
        let geometry = if self.overdue.is_some() { self.table.geometry() } else { Rc::clone(&level1) };
        let version = geometry.version;
        let fp = self.places.hash.fingerprint();
        let homes = self.second_homes(&geometry);
        let span = self.pin.span();
        let mut batch = span.batch();
        let seconds = homes.map(|home| {
            let at = geometry.bucket(Level::Two, home);
            (at, batch.read(at, Level::Two.bytes()))
        });
        let third = batch.read(third_at, 8);
        let mut done = batch.post().await?;
        let seconds = seconds.map(|(at, ticket)| Snapshot::new(at, done.buf(ticket)));
        let third = done.buf(third).words().first().copied().unwrap_or(0);
        let chain = Chain3::read(span, third_at, third).await?;
        let mut found = Candidates::new();
        for (snapshot, hash) in seconds.iter().zip(self.places.choices()) {
            found.extend(self.candidates(snapshot, Pattern::new(fp, geometry.sid(hash, version))));
            found.extend(self.torn_candidates(snapshot, &geometry, hash));
        }
        found.extend(self.third_candidates(&chain));
        if !found.is_empty() {
            match self.verify(found).await? {
                Verified::Hit(hit) => {
                    let bucket = seconds.into_iter().find(|second| second.holds(hit.slot));
                    return Ok(Some(LookupResult::Hit(Hit { bucket, ..hit })));
                }
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
        if chain.is_moving(fp, level1.version) {
            mark!("level 3: moving");
            self.overdue = None;
            return self.recover_third(&level1, bucket, &chain).await.map(|()| None);
        }
        Ok(Some(LookupResult::Absent(Absence { geometry: level1, bucket, first })))
    }

    /// The key's two level-2 buckets.
    pub(super) fn second_homes(&self, geometry: &Geometry) -> [u64; 2] {
        self.places.choices().map(|hash| geometry.home(hash, geometry.version))
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
        Self::candidates_of(snapshot, self.unknown(snapshot, pattern))
    }

    /// Returns the slots of this pattern whose blocks are not known to be other keys': slot i at bit i.
    #[inline]
    pub(super) fn unknown(&self, snapshot: &Snapshot, pattern: Pattern) -> u64 {
        let mut slots = snapshot.matches(pattern);
        if !self.rejected.is_empty() {
            let known = |slot: &usize| self.rejected.contains(&(snapshot.word(*slot) & !META));
            slots = ones(slots).filter(|slot| !known(slot)).fold(0, |all, slot| all | 1 << slot);
        }
        slots
    }

    /// These slots as candidates.
    fn candidates_of(snapshot: &Snapshot, slots: u64) -> Candidates {
        ones(slots).map(|slot| Candidate { slot: snapshot.slot(slot), word: snapshot.word(slot) }).collect()
    }

    /// Decides about a candidate by another verb: `buf` is what was READ of its block, and does not say whose it is.
    pub(super) async fn verify_open(
        &mut self,
        Candidate { slot, word }: Candidate,
        ptr: RemotePtr,
        buf: Buf,
    ) -> Result<Verified, IndexError> {
        let found = block::match_key(self.span(), ptr, buf, self.places.hash, self.key).await?;
        self.judge_match(Candidate { slot, word }, ptr, found).await
    }

    /// Takes note of the result of a comparison.
    async fn judge_match(
        &mut self,
        Candidate { slot, word }: Candidate,
        ptr: RemotePtr,
        found: KeyMatch,
    ) -> Result<Verified, IndexError> {
        match found {
            KeyMatch::Other => {
                self.rejected.push(word & !META);
                Ok(Verified::None)
            }
            KeyMatch::Own(block) => Ok(Verified::Hit(Hit { slot, word, ptr, block, bucket: None })),
            KeyMatch::Unsound => {
                let still = |now: u64| (now ^ word) & !META == 0;
                cold(check_slot_changed(self.span(), slot, ptr, still)).await?;
                cold(self.wait_for(slot)).await?;
                Ok(Verified::Again)
            }
        }
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
        while let Some((candidate, ptr, found)) = blocks.next(self.places.hash, self.key).await? {
            if let KeyMatch::Other = found {
                self.rejected.push(candidate.word & !META);
                continue;
            }
            drop(blocks);
            return self.judge_match(candidate, ptr, found).await;
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

/// What a lookup's first batch asks for.
struct FirstRead {
    sync: Option<Synchronization>,
    at: RemotePtr,
    own: Ticket,
    parent: Option<(u64, RemotePtr, Ticket)>,
}

impl FirstRead {
    /// Takes what the batch has brought: the bucket, and its parent if that was asked for.
    #[inline]
    fn take(self, table: &Table, done: &mut Done) -> Result<(Snapshot, Option<(u64, Snapshot)>), IndexError> {
        if let Some(sync) = self.sync {
            table.finish_sync(&sync, done)?;
        }
        let first = Snapshot::new(self.at, done.buf(self.own));
        let parent = self.parent.map(|(parent, at, ticket)| (parent, Snapshot::new(at, done.buf(ticket))));
        Ok((first, parent))
    }
}

/// What became of candidates whose blocks were read.
pub(super) enum Verified {
    Hit(Hit),
    None,
    Again,
}
