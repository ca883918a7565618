//! Sorted sets: a record in the hash index names a *generation*, whose entries lie in the ordered index.
//!
//! ```text
//! record       generation (16 bytes), 0                    the set takes members
//!              generation (16 bytes), 1, nonce (8 bytes)   an empty set that is about to be removed
//! generation   milliseconds since 1970 (6 bytes, big-endian), random (10 bytes)
//!
//! entries      generation 'k'                      -> key                        owner entry
//!              generation 'm' member               -> score, nonce (8 + 8 bytes)  member entry
//!              generation 's' order member         -> nonce (8 bytes)             score entry
//! order        the score's bits, mapped so that their order as bytes is the order of scores
//! ```
//!
//! Invariants:
//!
//! * **Z1** A member entry is the truth: the member has that score. It changes by compare-and-swap; its nonce is drawn
//!   anew with every change, so its bytes never come back.
//! * **Z2** Whenever a member entry says score `s`, a score entry of `s` and the member exists. It is written, with the
//!   nonce, after the member entry's former state was read and before the member entry changes. It is removed (a) by the
//!   client whose change took the member away from `s`, if it still has the nonce of that state; (b) by a sweep that has
//!   seen the same nonce for [`Periods::settle`], while the member had another score at the end. In case (a) a later state with
//!   score `s` has written the entry with its own nonce after the change that (a) follows. In case (b) the change that the
//!   nonce announced has ended, was given up ([`Periods::patience`]), or is *late*: an operation may wait for locks of
//!   others. A command whose change is late writes the entry again, and does not acknowledge the change.
//! * **Z3** A score entry whose member has another score, or none, says nothing. Readers skip it. Commands that lose a race
//!   leave some, and crashes; sweeps remove them.
//! * **Z4** A generation is named by one record, which is written within that patience of drawing it (a late one is removed
//!   again), and never again after it was once removed or replaced. Its owner entry is written before the record. So entries
//!   of a generation that is older than [`Periods::orphan_age`], and that the record of its owner does not name, are garbage
//!   for ever.
//! * **Z5** The record of an empty set is removed by a sweep only: it marks the record, waits until it has settled, sees that
//!   the set still is empty, and removes the record if it still has the mark. A command that adds a member first takes a
//!   mark away, and gives up that patience after it has read the record; if its write is late, it is not acknowledged. So
//!   no acknowledged member is added to a set that is being removed for its emptiness.
//!
//! A write is late if it has ended when [`Periods::settle`], less that patience, has passed since its command has read the
//! record. A sweep needs the whole of that time from something that it has seen after that moment.

use super::Store;
use super::record::{self, Kind, Record, now_ms};
use crate::Fail;
use farindex::{Entry, Insert, OrderedIndex, PointIndex, RemoveIf, Replace, yield_now};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// The times on which Z2, Z4 and Z5 rest. All gateways of a pool have the same ones. Tests have shorter ones, so that what
/// happens at their ends is tested as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Periods {
    /// How long a command may take from what it has read to what it writes.
    pub(crate) patience: Duration,
    /// How long a sweep watches something before it removes it: at least twice as long.
    pub(crate) settle: Duration,
    /// A generation without a record is garbage at this age. The clocks of gateways differ by less.
    pub(crate) orphan_age: Duration,
    /// Tests let commands wait up to so long between what they have read and what they write.
    #[cfg(test)]
    pub(crate) stall: Duration,
    /// And that the write itself takes up to so long.
    #[cfg(test)]
    pub(crate) late: Duration,
}

impl Periods {
    /// Those of every gateway.
    pub(crate) const REAL: Periods = Periods {
        patience: Duration::from_secs(10),
        settle: Duration::from_secs(30),
        orphan_age: Duration::from_secs(600),
        #[cfg(test)]
        stall: Duration::ZERO,
        #[cfg(test)]
        late: Duration::ZERO,
    };
    /// Has a generation that no record names become garbage?
    pub(crate) fn is_garbage(&self, generation: Generation) -> bool {
        u128::from(now_ms()) >= u128::from(drawn_at(generation)) + self.orphan_age.as_millis()
    }
}

const _: () = assert!(Periods::REAL.settle.as_secs() >= 2 * Periods::REAL.patience.as_secs());
const _: () = assert!(Periods::REAL.orphan_age.as_secs() > Periods::REAL.patience.as_secs());

/// What the entries of one sorted set have in common.
pub(crate) type Generation = [u8; 16];

const OWNER: u8 = b'k';
const MEMBER: u8 = b'm';
const SCORE: u8 = b's';
/// Entries that one scan reads at most.
pub(crate) const PAGE: usize = 256;
/// And at least, although fewer members are wanted: some entries may say nothing.
const SMALL_PAGE: usize = 16;

/// A sorted set, as its record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) generation: Generation,
    /// The mark of a sweep that is about to remove the set.
    pub(crate) mark: Option<u64>,
}

/// The generation that a record names.
pub(crate) fn generation_of(bytes: &[u8]) -> Option<Generation> {
    let record = Record::parse(bytes).ok().filter(|record| record.kind == Kind::SortedSet)?;
    Some(Set::parse(record.payload).ok()?.generation)
}

impl Set {
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Fail> {
        let damaged =
            || Fail::text("the record of this sorted set is damaged; run `farindex pool check`, or DEL the key");
        let (generation, rest) = payload.split_first_chunk::<16>().ok_or_else(damaged)?;
        let mark = match rest.split_first() {
            Some((0, [])) => None,
            Some((1, nonce)) => Some(u64::from_le_bytes(nonce.try_into().map_err(|_| damaged())?)),
            _ => return Err(damaged()),
        };
        Ok(Set { generation: *generation, mark })
    }
    pub(crate) fn record(&self, expires: Option<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(record::HEADER + 25);
        record::begin(&mut bytes, Kind::SortedSet, expires);
        bytes.extend_from_slice(&self.generation);
        bytes.push(u8::from(self.mark.is_some()));
        if let Some(nonce) = self.mark {
            bytes.extend_from_slice(&nonce.to_le_bytes());
        }
        bytes
    }
    /// A set that nobody has seen.
    fn draw(store: &Store) -> Self {
        let mut generation = [0; 16];
        let (time, random) = generation.split_at_mut(6);
        time.copy_from_slice(now_ms().to_be_bytes().get(2..).unwrap_or_default());
        if getrandom::fill(random).is_err() {
            let nonces = [store.nonce().to_le_bytes(), store.nonce().to_le_bytes()].concat();
            random.copy_from_slice(nonces.get(..10).unwrap_or_default());
        }
        Set { generation, mark: None }
    }

    /// Has it no member?
    pub(crate) async fn is_empty(&self, store: &Store) -> Result<bool, Fail> {
        let (from, to) = (key(self.generation, MEMBER, &[]), key(self.generation, MEMBER + 1, &[]));
        let found = store.ordered().scan((Bound::Included(&from), Bound::Excluded(&to)), 1).await?;
        Ok(found.is_empty())
    }
    /// The score of a member.
    pub(crate) async fn score(&self, store: &Store, member: &[u8]) -> Result<Option<f64>, Fail> {
        let found = store.ordered().get(&key(self.generation, MEMBER, member)).await?;
        found.map(|bytes| Ok(State::parse(&bytes)?.score)).transpose()
    }
    /// The scores of several members, each at a moment of its own.
    pub(crate) async fn scores(&self, store: &Store, members: &[&[u8]]) -> Result<Vec<Option<f64>>, Fail> {
        let mut scores = Vec::with_capacity(members.len());
        for members in members.chunks(store.chunk()) {
            let keys: Vec<Vec<u8>> = members.iter().map(|member| key(self.generation, MEMBER, member)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for found in store.ordered().get_many(&keys).await? {
                scores.push(found.map(|bytes| Ok::<_, Fail>(State::parse(&bytes)?.score)).transpose()?);
            }
        }
        Ok(scores)
    }

    /// Gives a member the score that `wanted` computes from its present one, `None` if it is no member; if that returns
    /// `None`, nothing changes. Returns the score before and after.
    pub(crate) async fn put(
        &self,
        store: &Store,
        member: &[u8],
        since: Instant,
        mut wanted: impl FnMut(Option<f64>) -> Result<Option<f64>, Fail>,
    ) -> Result<(Option<f64>, Option<f64>), Fail> {
        let at = key(self.generation, MEMBER, member);
        loop {
            let before = store.ordered().get(&at).await?;
            let state = before.as_deref().map(State::parse).transpose()?;
            let old = state.map(|state| state.score);
            let Some(new) = wanted(old)? else { return Ok((old, old)) };
            if old.is_some_and(|old| old.to_bits() == new.to_bits()) {
                return Ok((old, old));
            }
            let after = State { score: new, nonce: store.nonce() };
            store.ordered().upsert(&score_key(self.generation, new, member), &after.nonce.to_le_bytes()).await?;
            store.patient(since)?;
            let changed = match &before {
                None => store.ordered().insert(&at, &after.encode()).await? == Insert::Inserted,
                Some(before) => store.ordered().replace(&at, before, &after.encode()).await? == Replace::Replaced,
            };
            if changed {
                if store.is_late(since) {
                    // Z2: the score entry may be gone. Under a nonce that no sweep has seen it stays.
                    let again = store.nonce().to_le_bytes();
                    store.ordered().upsert(&score_key(self.generation, new, member), &again).await?;
                    return Err(store.late());
                }
                if let Some(state) = state {
                    self.remove_score(store, member, state).await?;
                }
                return Ok((old, Some(new)));
            }
            // Its score entry stays: it may be another client's by now (Z3).
            store.retries.set(store.retries.get() + 1);
            yield_now().await;
        }
    }
    /// Removes a member; returns its score, if it was one.
    pub(crate) async fn remove(&self, store: &Store, member: &[u8]) -> Result<Option<f64>, Fail> {
        let at = key(self.generation, MEMBER, member);
        loop {
            let Some(before) = store.ordered().get(&at).await? else { return Ok(None) };
            let state = State::parse(&before)?;
            match store.ordered().remove_if(&at, &before).await? {
                RemoveIf::Removed => {
                    self.remove_score(store, member, state).await?;
                    return Ok(Some(state.score));
                }
                RemoveIf::Absent => return Ok(None),
                RemoveIf::Differs => store.retries.set(store.retries.get() + 1),
            }
            yield_now().await;
        }
    }
    /// Removes the score entry of a state that has ended.
    async fn remove_score(&self, store: &Store, member: &[u8], state: State) -> Result<(), Fail> {
        let at = score_key(self.generation, state.score, member);
        store.ordered().remove_if(&at, &state.nonce.to_le_bytes()).await?;
        Ok(())
    }

    /// The first members with scores within `bounds`, in order: at most a page, and no larger one than `wanted` members
    /// need; and where the next page begins, if there may be one.
    pub(crate) async fn page_by_score(
        &self,
        store: &Store,
        bounds: &Bounds,
        wanted: usize,
    ) -> Result<(Vec<Member>, Option<Bounds>), Fail> {
        let (found, next) = scan(store, bounds, wanted).await?;
        let mut members = Vec::with_capacity(found.len());
        for entry in &found {
            members.push(Member::of_score_entry(&entry.key)?);
        }
        let names: Vec<&[u8]> = members.iter().map(|member| &member.name[..]).collect();
        let scores = self.scores(store, &names).await?;
        let mut scores = scores.into_iter();
        members.retain(|member| scores.next().flatten().is_some_and(|score| score.to_bits() == member.score.to_bits()));
        Ok((members, next))
    }
    /// The same in the order of their names.
    pub(crate) async fn page_by_name(
        &self,
        store: &Store,
        bounds: &Bounds,
        wanted: usize,
    ) -> Result<(Vec<Member>, Option<Bounds>), Fail> {
        let (found, next) = scan(store, bounds, wanted).await?;
        let member = |entry: &Entry| {
            let name = entry.key.get(17..).unwrap_or_default().to_vec();
            Ok::<_, Fail>(Member { name, score: State::parse(&entry.value)?.score })
        };
        Ok((found.iter().map(member).collect::<Result<_, _>>()?, next))
    }
    /// The bounds of all members with scores within these.
    pub(crate) fn score_bounds(&self, min: Bound<f64>, max: Bound<f64>) -> Bounds {
        let at = |score: f64| score_key(self.generation, score, &[]);
        // Behind all members of a score: the next larger order.
        let behind = |score: f64| match order(score).checked_add(1) {
            Some(next) => key(self.generation, SCORE, &next.to_be_bytes()),
            None => key(self.generation, SCORE + 1, &[]),
        };
        let from = match min {
            Bound::Included(score) => at(score),
            Bound::Excluded(score) => behind(score),
            Bound::Unbounded => key(self.generation, SCORE, &[]),
        };
        let to = match max {
            Bound::Included(score) => behind(score),
            Bound::Excluded(score) => at(score),
            Bound::Unbounded => key(self.generation, SCORE + 1, &[]),
        };
        (Bound::Included(from), Bound::Excluded(to))
    }
    /// The bounds of all members with names within these.
    pub(crate) fn name_bounds(&self, min: Bound<&[u8]>, max: Bound<&[u8]>) -> Bounds {
        let at = |name: &[u8]| key(self.generation, MEMBER, name);
        let from = match min {
            Bound::Unbounded => Bound::Included(at(&[])),
            bound => bound.map(at),
        };
        let to = match max {
            Bound::Unbounded => Bound::Excluded(key(self.generation, MEMBER + 1, &[])),
            bound => bound.map(at),
        };
        (from, to)
    }
}

/// Bounds of a scan of the ordered index.
pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A page of entries, and the bounds of those behind it.
async fn scan(store: &Store, (from, to): &Bounds, wanted: usize) -> Result<(Vec<Entry>, Option<Bounds>), Fail> {
    let page = wanted.clamp(SMALL_PAGE, PAGE);
    let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    let found = store.ordered().scan(bounds, page).await?;
    let next =
        found.last().filter(|_| found.len() == page).map(|last| (Bound::Excluded(last.key.to_vec()), to.clone()));
    Ok((found, next))
}

/// A member of a sorted set, as a range shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: Vec<u8>,
    pub(crate) score: f64,
}

impl Member {
    /// The member that a score entry is about.
    pub(crate) fn of_score_entry(entry: &[u8]) -> Result<Self, Fail> {
        let order = entry.get(17..).and_then(|rest| rest.split_first_chunk::<8>());
        let (order, name) = order.ok_or_else(damaged_entry)?;
        Ok(Member { name: name.to_vec(), score: score_of(u64::from_be_bytes(*order)) })
    }
}

fn damaged_entry() -> Fail {
    Fail::text("an entry of this sorted set is damaged; run `farindex pool check`, or DEL the key")
}

/// What a member entry holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct State {
    pub(crate) score: f64,
    nonce: u64,
}

impl State {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fail> {
        let (score, nonce) = bytes.split_first_chunk().ok_or_else(damaged_entry)?;
        let nonce = nonce.try_into().map_err(|_| damaged_entry())?;
        Ok(State { score: f64::from_le_bytes(*score), nonce: u64::from_le_bytes(nonce) })
    }
    fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (score, nonce) = bytes.split_at_mut(8);
        score.copy_from_slice(&self.score.to_le_bytes());
        nonce.copy_from_slice(&self.nonce.to_le_bytes());
        bytes
    }
}

pub(crate) fn key(generation: Generation, class: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(17 + rest.len());
    key.extend_from_slice(&generation);
    key.push(class);
    key.extend_from_slice(rest);
    key
}
pub(crate) fn score_key(generation: Generation, score: f64, member: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(25 + member.len());
    key.extend_from_slice(&generation);
    key.push(SCORE);
    key.extend_from_slice(&order(score).to_be_bytes());
    key.extend_from_slice(member);
    key
}
pub(crate) fn owner_key(generation: Generation) -> Vec<u8> {
    key(generation, OWNER, &[])
}
pub(crate) fn member_key(generation: Generation, member: &[u8]) -> Vec<u8> {
    key(generation, MEMBER, member)
}
/// Is this the key of a score entry?
pub(crate) fn is_score_entry(entry: &[u8]) -> bool {
    entry.get(16) == Some(&SCORE)
}
/// The bounds of all entries of a generation but its owner entry.
pub(crate) fn entries_of(generation: Generation) -> Bounds {
    (Bound::Included(key(generation, OWNER + 1, &[])), Bound::Excluded(key(generation, SCORE + 1, &[])))
}
/// When a generation was drawn, in milliseconds since 1970.
pub(crate) fn drawn_at(generation: Generation) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().skip(2).zip(generation) {
        *to = from;
    }
    u64::from_be_bytes(bytes)
}

const SIGN: u64 = 1 << 63;

/// Maps scores to numbers of the same order.
fn order(score: f64) -> u64 {
    let bits = score.to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}
fn score_of(order: u64) -> f64 {
    f64::from_bits(if order & SIGN == 0 { !order } else { order & !SIGN })
}

impl Store {
    /// Gives a command up that has taken too long (Z2, Z4, Z5).
    fn patient(&self, since: Instant) -> Result<(), Fail> {
        #[cfg(test)]
        self.stall(self.periods.stall);
        let patience = self.periods.patience;
        if since.elapsed() < patience {
            #[cfg(test)]
            self.stall(self.periods.late);
            return Ok(());
        }
        Err(Fail::text(format!(
            "the command took longer than {patience:?} and was given up: it had no effect on this member; send it again"
        )))
    }
    /// Has what was just written been written so late that a sweep may have removed what it rests on (Z2, Z4, Z5)? An
    /// operation of an index may wait for locks of others for two leases of the pool, which may be longer than any patience.
    fn is_late(&self, since: Instant) -> bool {
        since.elapsed() >= self.periods.settle.saturating_sub(self.periods.patience)
    }
    fn late(&self) -> Fail {
        let most = self.periods.settle.saturating_sub(self.periods.patience);
        Fail::text(format!(
            "the command took longer than {most:?}, and may have taken effect or not: read the member before you send it again"
        ))
    }
    /// Lets a test's command wait.
    #[cfg(test)]
    fn stall(&self, most: Duration) {
        let most = most.as_micros() as u64;
        if most > 0 {
            std::thread::sleep(Duration::from_micros(self.nonce() % most));
        }
    }
    /// The sorted set under a key, for reading; `None` if the key is absent.
    pub(crate) async fn set(&self, key: &[u8]) -> Result<Option<Set>, Fail> {
        let Some(bytes) = self.raw(key).await? else { return Ok(None) };
        let record = Record::parse(&bytes)?;
        if record.is_expired() {
            self.expire(key, &bytes).await?;
            return Ok(None);
        }
        Ok(Some(Set::parse(record.of(Kind::SortedSet)?)?))
    }

    /// The sorted set under a key, for adding members, with the moment from which on the command must be
    /// [patient](Periods::patience). If the key is absent the set is created, or `None` is returned.
    pub(crate) async fn set_to_write(&self, name: &[u8], create: bool) -> Result<Option<(Set, Instant)>, Fail> {
        loop {
            let since = Instant::now();
            let before = self.raw(name).await?;
            if let Some(bytes) = &before {
                let record = Record::parse(bytes)?;
                if !record.is_expired() {
                    let set = Set::parse(record.of(Kind::SortedSet)?)?;
                    if record.expires.is_none() || !set.is_empty(self).await? {
                        if set.mark.is_none() {
                            return Ok(Some((set, since)));
                        }
                        // Z5: the sweep loses.
                        let open = Set { mark: None, ..set }.record(record.expires);
                        self.swap(name, Some(bytes), Some(&open)).await?;
                        continue;
                    }
                    // An empty set counts as absent: a new one does not inherit its expiry.
                }
            }
            if !create {
                return Ok(None);
            }
            let set = Set::draw(self);
            self.ordered().upsert(&owner_key(set.generation), name).await?;
            self.patient(since)?;
            let record = set.record(None);
            if self.swap(name, before.as_deref(), Some(&record)).await? {
                if self.is_late(since) {
                    // Z4: its owner entry may be gone.
                    self.swap(name, Some(&record), None).await?;
                    return Err(self.late());
                }
                return Ok(Some((set, since)));
            }
            self.ordered().remove(&owner_key(set.generation)).await?;
            self.retries.set(self.retries.get() + 1);
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_ordered_as_their_orders() {
        let scores = [
            f64::NEG_INFINITY,
            f64::MIN,
            -2.5,
            -1.0,
            -f64::MIN_POSITIVE,
            0.0,
            1e-300,
            1.0,
            2.5,
            f64::MAX,
            f64::INFINITY,
        ];
        for pair in scores.windows(2) {
            assert!(order(pair[0]) < order(pair[1]), "{pair:?}");
        }
        for score in scores {
            assert_eq!(score_of(order(score)).to_bits(), score.to_bits());
        }
    }

    #[test]
    fn a_set_reads_as_it_was_written() {
        for mark in [None, Some(7)] {
            let set = Set { generation: *b"0123456789abcdef", mark };
            let bytes = set.record(Some(99));
            let record = Record::parse(&bytes).expect("a record");
            assert_eq!((record.kind, record.expires, Set::parse(record.payload)), (Kind::SortedSet, Some(99), Ok(set)));
            assert_eq!(generation_of(&bytes), Some(set.generation));
            for len in 0..record.payload.len() {
                assert!(Set::parse(&record.payload[..len]).is_err(), "{len} bytes");
            }
        }
        assert_eq!(drawn_at(*b"\0\0\0\0\x01\x020123456789"), 258);
    }
}
