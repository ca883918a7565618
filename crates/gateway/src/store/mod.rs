//! The keys of all gateways: one hash index, and one ordered index for sorted sets.
//!
//! Invariants:
//!
//! 1. a key's record changes by one operation of the hash index: a command on one key takes effect there, at one moment;
//! 2. a command that reads, computes and writes does so by compare-and-swap of the whole record ([`Store::modify`]): its
//!    result follows from the record that it replaces. Whether that record was there all the time does not matter: a
//!    record with the same bytes gives the same result;
//! 3. nothing about a key is kept in this process.

pub(crate) mod fields;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod sorted;

use crate::Fail;
use farindex::{AnyIndex, Index, Insert, PointIndex, Remove, RemoveIf, Replace, Session, Value, yield_now};
use record::{HEADER, Kind, Record};
use sorted::Periods;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What one thread works with.
pub(crate) struct Store {
    hash: Rc<AnyIndex>,
    ordered: Rc<AnyIndex>,
    /// The longest key, and the longest value with its header.
    limits: farindex::Limits,
    /// Keys that one look-up of many keys takes.
    many: Cell<usize>,
    /// How often a compare-and-swap was lost to another client, and expired records that were removed.
    pub(crate) retries: Cell<u64>,
    pub(crate) expired: Cell<u64>,
    /// Sorted sets that were dropped, whose entries are to be removed.
    pub(crate) dropped: RefCell<Vec<sorted::Generation>>,
    /// A buffer for a record.
    scratch: RefCell<Vec<u8>>,
    /// Keys that scans have read ahead.
    ahead: RefCell<Vec<scan::Ahead>>,
    nonces: Cell<u64>,
    /// What the rules of sorted sets wait for.
    pub(crate) periods: Periods,
}

/// What becomes of a record.
pub(crate) enum Change<T> {
    /// It stays.
    Keep(T),
    /// These bytes take its place.
    Put(Vec<u8>, T),
    /// It goes.
    Remove(T),
}

/// Most keys of one look-up of many, and of SETs that are carried out together.
pub(crate) const MANY: usize = 64;
/// A look-up of many keys takes fewer when its values are longer than this together.
const MANY_BYTES: usize = 4 << 20;
/// Scratch buffers above this are given back.
const SCRATCH: usize = 64 << 10;

/// A random number. Without a source of randomness, the time and an address: what it is used for needs no secret.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => record::now_ms() << 20 ^ &raw const bytes as u64 ^ u64::from(std::process::id()) << 44,
    }
}

impl Store {
    /// The two indexes, opened in one session.
    pub(crate) fn new(hash: &Index, ordered: &Index, periods: Periods) -> Self {
        Store {
            limits: hash.limits(),
            hash: hash.async_handle(),
            ordered: ordered.async_handle(),
            many: Cell::new(MANY),
            retries: Cell::new(0),
            expired: Cell::new(0),
            dropped: RefCell::default(),
            scratch: RefCell::default(),
            ahead: RefCell::default(),
            nonces: Cell::new(random()),
            periods,
        }
    }
    /// Opens the indexes, and creates them if they are not there.
    pub(crate) fn open(session: &Session, names: &crate::Names, periods: Periods) -> Result<Self, farindex::Error> {
        let hash = session.index(&names.index).open_or_create()?;
        let ordered = match session.index(&names.ordered).open() {
            Err(farindex::Error::Pool(farindex::PoolError::NoSuchIndex(_))) => {
                session.index(&names.ordered).config(farindex::sherman::Config::default()).open_or_create()?
            }
            opened => opened?,
        };
        if !ordered.is_ordered() {
            return Err(farindex::Error::Index(farindex::IndexError::NotOrdered { kind: ordered.kind() }));
        }
        Ok(Self::new(&hash, &ordered, periods))
    }

    /// The longest value of a string.
    pub(crate) fn longest_value(&self) -> usize {
        self.limits.value.saturating_sub(HEADER)
    }
    pub(crate) fn hash(&self) -> &Rc<AnyIndex> {
        &self.hash
    }
    pub(crate) fn ordered(&self) -> &Rc<AnyIndex> {
        &self.ordered
    }
    /// How many keys to give to one [`raw_many`](Self::raw_many), or to [`put_strings`](Self::put_strings).
    pub(crate) fn chunk(&self) -> usize {
        self.many.get()
    }

    /// The bytes under a key, expired or not.
    pub(crate) async fn raw(&self, key: &[u8]) -> Result<Option<Value>, Fail> {
        if key.len() > self.limits.key {
            // It cannot have been written.
            return Ok(None);
        }
        Ok(self.hash.get(key).await?)
    }
    /// The same for several keys, at most [`chunk`](Self::chunk) of them. Each is read at a moment of its own.
    pub(crate) async fn raw_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, Fail> {
        if keys.iter().any(|key| key.len() > self.limits.key) {
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                values.push(self.raw(key).await?);
            }
            return Ok(values);
        }
        let values = self.hash.get_many(keys).await?;
        let bytes: usize = values.iter().flatten().map(|value| value.len()).sum();
        self.many.set(if bytes > MANY_BYTES { 4 } else { MANY });
        Ok(values)
    }

    /// The bytes under a key that counts as present. An expired record is removed.
    pub(crate) async fn live(&self, key: &[u8]) -> Result<Option<Value>, Fail> {
        let Some(bytes) = self.raw(key).await? else { return Ok(None) };
        if self.counts(key, &bytes).await? { Ok(Some(bytes)) } else { Ok(None) }
    }
    /// Does a record count as present?
    pub(crate) async fn counts(&self, key: &[u8], bytes: &[u8]) -> Result<bool, Fail> {
        let record = Record::parse(bytes)?;
        if record.is_expired() {
            self.expire(key, bytes).await?;
            return Ok(false);
        }
        match record.kind {
            Kind::SortedSet => Ok(!sorted::Set::parse(record.payload)?.is_empty(self).await?),
            Kind::String | Kind::Hash => Ok(true),
        }
    }
    /// Removes a record that has expired, unless it has changed.
    pub(crate) async fn expire(&self, key: &[u8], bytes: &[u8]) -> Result<(), Fail> {
        if self.swap(key, Some(bytes), None).await? {
            self.expired.set(self.expired.get() + 1);
        }
        Ok(())
    }

    /// Reads a record, and changes it as `change` says, which sees `None` for what counts as absent. If another client
    /// changes the record in between, `change` is asked again, about what is there then.
    pub(crate) async fn modify<T>(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<Record<'_>>) -> Result<Change<T>, Fail>,
    ) -> Result<T, Fail> {
        loop {
            let before = self.raw(key).await?;
            let counts = match &before {
                None => false,
                Some(bytes) => {
                    let record = Record::parse(bytes)?;
                    !record.is_expired()
                        && (record.kind != Kind::SortedSet
                            || !sorted::Set::parse(record.payload)?.is_empty(self).await?)
                }
            };
            let record = before.as_deref().filter(|_| counts).map(Record::parse).transpose()?;
            let (after, result) = match change(record)? {
                Change::Keep(result) => return Ok(result),
                Change::Put(bytes, result) => (Some(bytes), result),
                Change::Remove(result) => (None, result),
            };
            if self.swap(key, before.as_deref(), after.as_deref()).await? {
                return Ok(result);
            }
            self.retries.set(self.retries.get() + 1);
            yield_now().await;
        }
    }
    /// Changes the record of a key from `before` to `after`, if it still is `before`; `None` is an absent one.
    pub(crate) async fn swap(&self, key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) -> Result<bool, Fail> {
        let done = match (before, after) {
            (None, None) => true,
            (None, Some(after)) => self.hash.insert(key, after).await? == Insert::Inserted,
            (Some(before), Some(after)) => self.hash.replace(key, before, after).await? == Replace::Replaced,
            (Some(before), None) => self.hash.remove_if(key, before).await? == RemoveIf::Removed,
        };
        if let Some(set) = before.filter(|_| done).and_then(sorted::generation_of)
            && after.and_then(sorted::generation_of) != Some(set)
        {
            self.dropped.borrow_mut().push(set);
        }
        Ok(done)
    }

    /// Sets a string, whatever was there.
    pub(crate) async fn put_string(&self, key: &[u8], value: &[u8], expires: Option<u64>) -> Result<(), Fail> {
        let mut bytes = self.scratch.take();
        bytes.clear();
        record::begin(&mut bytes, Kind::String, expires);
        bytes.extend_from_slice(value);
        let written = self.hash.upsert(key, &bytes).await;
        if bytes.capacity() <= SCRATCH {
            self.scratch.replace(bytes);
        }
        written?;
        Ok(())
    }

    /// Sets strings one after the other, whatever was there.
    pub(crate) async fn put_strings(&self, strings: &[(&[u8], &[u8])]) -> Vec<Result<(), Fail>> {
        let mut bytes = self.scratch.take();
        bytes.clear();
        let mut ends = Vec::with_capacity(strings.len());
        for (_, value) in strings {
            record::begin(&mut bytes, Kind::String, None);
            bytes.extend_from_slice(value);
            ends.push(bytes.len());
        }
        let mut from = 0;
        let records = ends.into_iter().map(|end| bytes.get(std::mem::replace(&mut from, end)..end).unwrap_or_default());
        let pairs: Vec<(&[u8], &[u8])> = strings.iter().map(|(key, _)| *key).zip(records).collect();
        let written = self.hash.upsert_many(&pairs).await;
        if bytes.capacity() <= SCRATCH {
            self.scratch.replace(bytes);
        }
        written.into_iter().map(|written| Ok(written.map(drop)?)).collect()
    }

    /// Removes a key; returns whether it counted as present.
    pub(crate) async fn remove(&self, key: &[u8]) -> Result<bool, Fail> {
        loop {
            let Some(before) = self.raw(key).await? else { return Ok(false) };
            let counts = self.counts(key, &before).await?;
            if self.swap(key, Some(&before), None).await? {
                return Ok(counts);
            }
            if !counts {
                // Removed as expired, or an empty set that has changed.
                continue;
            }
            self.retries.set(self.retries.get() + 1);
            yield_now().await;
        }
    }
    /// Removes a key whose value is of no interest, such as all of them.
    pub(crate) async fn clear(&self, key: &[u8], bytes: &[u8]) -> Result<(), Fail> {
        if self.hash.remove(key).await? == Remove::Removed {
            self.dropped.borrow_mut().extend(sorted::generation_of(bytes));
        }
        Ok(())
    }
    /// A number that no other write has drawn.
    pub(crate) fn nonce(&self) -> u64 {
        // SplitMix64: a permutation of a counter that begins at a random number.
        let state = self.nonces.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.nonces.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
