//! An index as its users see it.

use crate::session::Session;
use crate::walk::{Iter, Range, Walk};
use crate::{Error, Handle, Insert, Remove, RemoveIf, Replace, Update, Upsert};
use farindex_index::audit::Damage;
use farindex_index::dex::PartitionInfo;
use farindex_index::{AnyIndex, Entry, IndexAudit, KeyBounds, Limits, OrderedIndex, PointIndex, Value};
use farindex_pool::audit::Audit;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::rc::Rc;

/// Lookups that share batches of verbs: `get_many` of an index divides longer lists into parts of as many.
pub(crate) const SHARED: usize = 128;

/// An open index. The methods block until the operation is done; [`async_handle`](Self::async_handle) has the same
/// operations as futures, many of which may be in flight.
///
/// A method that blocks panics inside a coroutine of its own session: see [`Session::block_on`].
///
/// A [`Value`] dereferences to a byte slice. It is the buffer that the READ filled, so nothing was copied; keep it only
/// for a short time, or copy it (`to_vec`).
#[derive(Clone)]
pub struct Index {
    // Dropped before the session that it lives in.
    index: Rc<AnyIndex>,
    name: Rc<str>,
    session: Session,
}

impl Index {
    pub(crate) fn new(session: Session, name: &str, index: AnyIndex) -> Self {
        Index { index: Rc::new(index), name: name.into(), session }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        Ok(self.session.block_on(self.index.get(key.as_ref()))?)
    }
    /// Returns the values of many keys, in their order. All lookups are in flight together, and share batches; each is
    /// linearizable on its own. The buffers of all values are held at once: see [`get_each`](Self::get_each).
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>, Error> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        Ok(self.session.block_on(self.index.get_many(&keys))?)
    }
    /// Sets the values of many keys, and returns the outcome of each, in their order. They take effect one after the other, in
    /// this order, and not all at once: each is linearizable on its own. SHARD prepares them in shared batches.
    ///
    /// ```
    /// let index = farindex::Pool::in_memory(64 << 20)?.session()?.index("demo").create()?;
    /// let outcomes = index.upsert_many([("a", "far"), ("b", "memory"), ("a", "near")]);
    /// assert!(outcomes.iter().all(Result::is_ok));
    /// assert_eq!(index.get("a")?.as_deref(), Some(&b"near"[..]));
    /// # Ok::<_, farindex::Error>(())
    /// ```
    pub fn upsert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Vec<Result<Upsert, Error>> {
        let pairs: Vec<(K, V)> = pairs.into_iter().collect();
        let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        let outcomes = self.session.block_on(self.index.upsert_many(&pairs));
        outcomes.into_iter().map(|outcome| Ok(outcome?)).collect()
    }
    /// Looks many keys up as [`get_many`](Self::get_many) does, and calls `each` with the position and the value of each
    /// key, in their order, until it breaks; returns what it broke with. Only the values of as many keys as share a batch
    /// are held at once. So their buffers are used again while they are in the processor's cache, which makes this the
    /// faster way to many long values.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// let index = farindex::Pool::in_memory(64 << 20)?.session()?.index("demo").create()?;
    /// index.insert("b", "memory")?;
    /// let mut bytes = 0;
    /// let ended = index.get_each(&["a", "b", "c"], |_, value| {
    ///     bytes += value.map_or(0, |value| value.len());
    ///     ControlFlow::<()>::Continue(())
    /// })?;
    /// assert_eq!((bytes, ended), (6, None));
    /// # Ok::<(), farindex::Error>(())
    /// ```
    pub fn get_each<K: AsRef<[u8]>, B>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<Value>) -> ControlFlow<B>,
    ) -> Result<Option<B>, Error> {
        let mut at = 0;
        for keys in keys.chunks(SHARED) {
            let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
            for value in self.session.block_on(self.index.get_many(&keys))? {
                if let ControlFlow::Break(why) = each(at, value) {
                    return Ok(Some(why));
                }
                at += 1;
            }
        }
        Ok(None)
    }
    /// Is the key present?
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.get(key)?.is_some())
    }
    /// Says for each of many keys, in their order, whether it is present. The lookups share batches as those of
    /// [`get_each`](Self::get_each).
    pub fn contains_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>, Error> {
        let mut present = Vec::with_capacity(keys.len());
        self.get_each(keys, |_, value| {
            present.push(value.is_some());
            ControlFlow::<()>::Continue(())
        })?;
        Ok(present)
    }
    /// Adds a key that is absent.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Insert, Error> {
        Ok(self.session.block_on(self.index.insert(key.as_ref(), value.as_ref()))?)
    }
    /// Changes the value of a key that is present.
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Update, Error> {
        Ok(self.session.block_on(self.index.update(key.as_ref(), value.as_ref()))?)
    }
    /// Sets the value of a key, present or not. An index with blind writes answers [`Upsert::Written`].
    pub fn upsert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Upsert, Error> {
        Ok(self.session.block_on(self.index.upsert(key.as_ref(), value.as_ref()))?)
    }
    /// Like [`upsert`](Self::upsert), but always reports whether the key existed. An index with blind writes pays one
    /// extra lookup.
    pub fn upsert_with_outcome(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Upsert, Error> {
        Ok(self.session.block_on(self.index.upsert_with_outcome(key.as_ref(), value.as_ref()))?)
    }
    /// Removes a key.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<Remove, Error> {
        Ok(self.session.block_on(self.index.remove(key.as_ref()))?)
    }
    /// Changes the value of a key from exactly `expected` to `value`: a compare-and-swap, with which clients that read,
    /// compute and write lose no update of each other.
    ///
    /// ```
    /// use farindex::{Pool, Replace};
    ///
    /// let pool = Pool::in_memory(64 << 20)?;
    /// let index = pool.session()?.index("counters").create()?;
    /// index.insert("visits", "41")?;
    /// // However many clients do this at the same time, each adds one.
    /// let count = loop {
    ///     let seen = index.get("visits")?.expect("nobody removes it");
    ///     let count = std::str::from_utf8(&seen).expect("digits").parse::<u64>().expect("digits") + 1;
    ///     if index.replace("visits", &seen, count.to_string())? == Replace::Replaced {
    ///         break count;
    ///     }
    /// };
    /// assert_eq!(count, 42);
    /// # Ok::<(), farindex::Error>(())
    /// ```
    ///
    /// After an error the value may have been replaced or not; the error says more.
    pub fn replace(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Replace, Error> {
        Ok(self.session.block_on(self.index.replace(key.as_ref(), expected.as_ref(), value.as_ref()))?)
    }
    /// Removes a key if it has exactly the value `expected`: what another client has written since stays.
    pub fn remove_if(&self, key: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) -> Result<RemoveIf, Error> {
        Ok(self.session.block_on(self.index.remove_if(key.as_ref(), expected.as_ref()))?)
    }

    /// Returns at most `limit` entries within `bounds`, in ascending order of their keys. Only an
    /// [ordered](Self::is_ordered) index can do that; see [`OrderedIndex::scan`] for what a scan promises.
    pub fn scan<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>, limit: usize) -> Result<Vec<Entry>, Error> {
        let bounds = (slice(bounds.start_bound()), slice(bounds.end_bound()));
        Ok(self.session.block_on(self.index.scan(bounds, limit))?)
    }
    /// Makes this process the owner of all keys within `bounds`, also of those that another process owns. Only an index that is
    /// divided among compute nodes (kind `dex`) can do that; see [`farindex_index::Dex::own`].
    pub fn own<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<(), Error> {
        let bounds = (slice(bounds.start_bound()), slice(bounds.end_bound()));
        Ok(self.session.block_on(self.index.own(bounds))?)
    }
    /// Gives the keys within `bounds` back, as far as this process owns them: nobody owns them afterwards. Unbounded bounds
    /// give everything back, as a process does that leaves; see [`farindex_index::Dex::give_up`].
    pub fn give_up<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<(), Error> {
        let bounds = (slice(bounds.start_bound()), slice(bounds.end_bound()));
        Ok(self.session.block_on(self.index.give_up(bounds))?)
    }
    /// Writes to far memory what this process has acknowledged and has in its cache alone, as kind `dex` does with the setting
    /// `durability=write_back`. Every other index acknowledges what is in far memory: there this does nothing. Closing the pool
    /// does the same.
    pub fn flush(&self) -> Result<(), Error> {
        Ok(self.session.block_on(self.index.flush())?)
    }
    /// Lists the ranges of keys and who owns them, of an index that is divided among compute nodes.
    pub fn partitions(&self) -> Result<Vec<PartitionInfo>, Error> {
        Ok(self.session.block_on(self.index.partitions())?)
    }
    /// Iterates over the entries within `bounds`, in ascending order of their keys, in bounded memory. Only an
    /// [ordered](Self::is_ordered) index can do that: another one yields an error. The iterator is a series of
    /// [scans](Self::scan), each of which begins behind the last key; what changes between them may be seen or not.
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Range {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Range::new(self.clone(), owned(bounds.start_bound()), owned(bounds.end_bound()))
    }
    /// Iterates over all entries, in bounded memory; an ordered index yields them in ascending order. Entries that no
    /// other client modifies meanwhile are yielded exactly once; concurrent changes may be seen or not. Nothing of the
    /// pool is held between two calls of `next`. Damage is an error, which names the place; it ends the iteration.
    pub fn iter(&self) -> Iter {
        Iter::new(self.walk(), &self.name)
    }
    /// Calls `each` with every key and value until it breaks; returns the number of calls. The same promises as for
    /// [`iter`](Self::iter); `each` may call methods of this index and of its session.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<u64, Error> {
        let mut calls = 0;
        for entry in self.iter() {
            let Entry { key, value } = entry?;
            calls += 1;
            if each(&key, &value).is_break() {
                break;
            }
        }
        Ok(calls)
    }
    /// Like [`for_each`](Self::for_each), but reports what cannot be read to `damaged`, and continues behind it. It is
    /// unknown how many entries were there. Every value that lies in a block was verified by its checksum; of a record
    /// within a slot, as linear probing has them, only the shape is verified.
    pub fn for_each_skipping_damage(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
        mut damaged: impl FnMut(Damage),
    ) -> Result<u64, Error> {
        let mut calls = 0;
        for found in self.walk() {
            match found? {
                Ok(Entry { key, value }) => {
                    calls += 1;
                    if each(&key, &value).is_break() {
                        break;
                    }
                }
                Err(damage) => damaged(damage),
            }
        }
        Ok(calls)
    }
    fn walk(&self) -> Walk {
        Walk::new(self.session.clone(), Rc::clone(&self.index))
    }

    /// Counts entries and memory, and checks every entry, by walking the index while other clients may work with it.
    pub fn audit(&self) -> Result<IndexAudit, Error> {
        Ok(self.session.block_on(self.index.audit(&mut Audit::default(), false))?)
    }
    /// Returns the bytes of local memory that this handle, and what it shares with the other handles of its process,
    /// use as a cache.
    pub fn cache_bytes(&self) -> u64 {
        self.index.cache_bytes()
    }
    /// Returns the longest key and value that the index takes.
    pub fn limits(&self) -> Limits {
        self.index.limits()
    }
    /// Returns the name of its kind.
    pub fn kind(&self) -> &'static str {
        self.index.kind()
    }
    /// Are its keys ordered, so that it can be scanned?
    pub fn is_ordered(&self) -> bool {
        self.index.is_ordered()
    }
    /// Returns its name in the pool's catalog.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same index with operations that are futures ([`PointIndex`], [`OrderedIndex`]): start many, then
    /// wait for them with [`Session::block_on`]. The futures are not `Send`, and make progress only while their session
    /// is driven.
    pub fn async_handle(&self) -> Rc<AnyIndex> {
        Rc::clone(&self.index)
    }
    /// Opens the same index for any async runtime and any thread: see [`Handle`](crate::Handle). This starts a worker
    /// thread; [`HandleBuilder`](crate::HandleBuilder) has settings.
    pub fn handle(&self) -> Result<Handle, Error> {
        Handle::open(self.session.pool(), &self.name)
    }
    /// Returns the session in which it was opened.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

fn slice<K: AsRef<[u8]>>(bound: Bound<&K>) -> Bound<&[u8]> {
    bound.map(AsRef::as_ref)
}

/// The bounds of a range, borrowed.
pub(crate) fn borrowed<'a>(from: &'a Bound<Vec<u8>>, to: &'a Bound<Vec<u8>>) -> KeyBounds<'a> {
    (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice))
}
