//! A handle to an index for programs that run on an async runtime.
//!
//! [`Handle`] is `Clone + Send + Sync`, and any runtime can await its operations. Worker threads carry them out; each
//! has a [session](crate::Session) of its own and takes all requests that have arrived, so that they share batches of
//! verbs.
//!
//! ```text
//!   tasks of any runtime          queue (bounded)         worker threads           memory nodes
//!   handle.get(k).await    --->  [get, upsert, get]  ---> take what is there  ---> batches of verbs
//!                          <---------- answers ----------  one session each   <---
//! ```
//!
//! Invariants: a request is answered exactly once, or its future is gone; a request whose future was dropped before a
//! worker took it has no effect; after a worker has panicked, every waiting and every later future gets an error.

mod request;
mod worker;

use crate::{Error, Insert, Pool, Remove, RemoveIf, Replace, Update, Upsert};
use async_channel::Sender;
use farindex_index::{IndexError, Limits};
use request::{Asked, Request};
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

/// Why the workers of a handle gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// A worker thread could not be started.
    #[error("cannot start a worker thread: {0}")]
    NotStarted(String),
    /// A worker thread has panicked, and the handle is closed. The operation may have taken effect or not.
    #[error(
        "a worker thread of this handle has panicked; the operation may have taken effect or not: open a new handle"
    )]
    WorkerPanicked,
}

/// Settings of a [`Handle`].
///
/// ```
/// use farindex::{Handle, Pool};
///
/// let pool = Pool::in_memory(64 << 20)?;
/// pool.session()?.index("demo").create()?;
/// let handle = Handle::builder().threads(2).queue(4096).open(&pool, "demo")?;
/// # let _ = handle;
/// # Ok::<(), farindex::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct HandleBuilder {
    threads: usize,
    queue: usize,
    batch: usize,
    coalesce: bool,
}

impl Default for HandleBuilder {
    fn default() -> Self {
        HandleBuilder { threads: 1, queue: 1024, batch: 128, coalesce: false }
    }
}

impl HandleBuilder {
    /// Number of worker threads: 1 unless set, at least 1. One worker keeps a network busy, since it has many
    /// operations in flight; where far memory is as fast as local memory, more workers use more cores.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }
    /// Requests that can wait in the queue: 1024 unless set, at least 1. While the queue is full, futures wait for room
    /// before they hand over their request.
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = requests.max(1);
        self
    }
    /// Operations that one worker has in flight at once: 128 unless set, at least 1. It is also the largest number of
    /// lookups that share a batch.
    pub fn batch(mut self, operations: usize) -> Self {
        self.batch = operations.max(1);
        self
    }
    /// Lets the workers, and other sessions of this process that ask for it, share the verbs of operations on one key:
    /// see [`IndexBuilder::coalesce`](crate::IndexBuilder::coalesce).
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = coalesce;
        self
    }

    /// Starts the worker threads, each of which opens a session and the index. Blocks until all of them are ready.
    pub fn open(self, pool: &Pool, name: &str) -> Result<Handle, Error> {
        let (requests, queue) = async_channel::bounded(self.queue);
        // Dropped on every way out of here, it ends the workers that have started.
        let mut inner =
            Inner { requests, limits: Limits { key: 0, value: 0 }, name: name.into(), threads: Mutex::default() };
        let (ready, opened) = mpsc::channel();
        for _ in 0..self.threads {
            let worker = worker::Worker {
                pool: pool.clone(),
                name: Arc::clone(&inner.name),
                coalesce: self.coalesce,
                queue: queue.clone(),
                batch: self.batch,
            };
            let ready = ready.clone();
            let thread =
                std::thread::Builder::new().name("farindex-worker".to_owned()).spawn(move || worker.run(&ready));
            let thread = thread.map_err(|error| HandleError::NotStarted(error.to_string()))?;
            inner.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        drop((ready, queue));
        for _ in 0..self.threads {
            inner.limits = opened.recv().unwrap_or(Err(HandleError::WorkerPanicked.into()))?;
        }
        Ok(Handle { inner: Arc::new(inner) })
    }
}

/// An open index that any number of tasks and threads share, on any async runtime.
///
/// ```
/// use farindex::{Handle, Pool};
///
/// # fn main() -> Result<(), farindex::Error> {
/// let pool = Pool::in_memory(64 << 20)?;
/// pool.session()?.index("demo").create()?;
/// let handle = Handle::open(&pool, "demo")?;
/// let task = async move {
///     handle.upsert("far", "memory").await?;
///     handle.get("far").await
/// };
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
/// let value = runtime.block_on(runtime.spawn(task)).expect("no panic")?;
/// assert_eq!(value.as_deref(), Some(&b"memory"[..]));
/// # Ok(())
/// # }
/// ```
///
/// **Dropping a future** is safe. Before a worker has taken the request, the operation does not happen. After that it
/// runs to its end. It takes effect once at most.
///
/// **Order.** Operations that are awaited one after the other take effect in that order. Those in flight at the same
/// time have no order.
///
/// **Errors.** An operation fails as on a session ([`Error`]). If this process loses its lease, every operation of the
/// handle fails; open the pool again. If a worker thread panics, the handle is closed and every operation fails with
/// [`HandleError::WorkerPanicked`].
///
/// **The last clone to be dropped** ends the worker threads: it blocks until the operations in flight have ended, for a
/// few round trips, or at most for as long as an operation can take. Idle workers are parked.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

struct Inner {
    requests: Sender<Request>,
    limits: Limits,
    name: Arc<str>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.requests.close();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker that drops the last clone itself, with the waker that it calls, cannot wait for its own end.
            if thread.thread().id() != std::thread::current().id() {
                // A worker never panics to the end of its thread.
                let _: Result<(), _> = thread.join();
            }
        }
    }
}

// An operation is a method here and a function of `request`.
impl Handle {
    /// Opens an index of a pool by name, with default settings. Blocks until the worker thread is ready.
    pub fn open(pool: &Pool, name: &str) -> Result<Handle, Error> {
        HandleBuilder::default().open(pool, name)
    }
    /// Settings other than the default ones.
    pub fn builder() -> HandleBuilder {
        HandleBuilder::default()
    }
    /// Name of the index.
    pub fn name(&self) -> &str {
        &self.inner.name
    }
    /// The longest key and value that the index takes.
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// Returns the value of a key.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Vec<u8>>, Error> {
        self.submit(request::get(self.owned(key)?)).await
    }
    /// Returns whether a key is present.
    pub async fn contains(&self, key: impl Into<Vec<u8>>) -> Result<bool, Error> {
        self.submit(request::contains(self.owned(key)?)).await
    }
    /// Returns the values of many keys, in their order, as [`Index::get_many`](crate::Index::get_many) does. It counts as
    /// one operation of [`HandleBuilder::batch`].
    pub async fn get_many<K: Into<Vec<u8>>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.submit(request::get_many(self.all_owned(keys)?)).await
    }
    /// Says for each of many keys, in their order, whether it is present, as
    /// [`Index::contains_many`](crate::Index::contains_many) does. It counts as one operation of [`HandleBuilder::batch`].
    pub async fn contains_many<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<bool>, Error> {
        self.submit(request::contains_many(self.all_owned(keys)?)).await
    }
    /// Adds a key that is absent.
    pub async fn insert(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<Insert, Error> {
        self.submit(request::insert(self.owned(key)?, self.owned_value(value)?)).await
    }
    /// Changes the value of a key that is present.
    pub async fn update(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<Update, Error> {
        self.submit(request::update(self.owned(key)?, self.owned_value(value)?)).await
    }
    /// Sets the value of a key, present or not.
    pub async fn upsert(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<Upsert, Error> {
        self.submit(request::upsert(self.owned(key)?, self.owned_value(value)?)).await
    }
    /// Sets the values of many keys, one after the other in this order, as [`Index::upsert_many`](crate::Index::upsert_many) does;
    /// returns the outcome of each. It counts as one operation of [`HandleBuilder::batch`], and values of all keys are
    /// held at once. The error of the whole says that no worker is there to carry it out.
    pub async fn upsert_many<K: Into<Vec<u8>>, V: Into<Vec<u8>>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<Result<Upsert, Error>>, Error> {
        let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        self.submit(request::upsert_many(pairs)).await
    }
    /// Like [`upsert`](Self::upsert), but always reports whether the key existed. An index with blind writes pays one
    /// extra lookup.
    pub async fn upsert_with_outcome(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Result<Upsert, Error> {
        self.submit(request::upsert_with_outcome(self.owned(key)?, self.owned_value(value)?)).await
    }
    /// Removes a key.
    pub async fn remove(&self, key: impl Into<Vec<u8>>) -> Result<Remove, Error> {
        self.submit(request::remove(self.owned(key)?)).await
    }
    /// Changes the value of a key from exactly `expected` to `value`: see [`Index::replace`](crate::Index::replace).
    pub async fn replace(
        &self,
        key: impl Into<Vec<u8>>,
        expected: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Result<Replace, Error> {
        self.submit(request::replace(self.owned(key)?, expected.into(), self.owned_value(value)?)).await
    }
    /// Removes a key if it has exactly the value `expected`.
    pub async fn remove_if(&self, key: impl Into<Vec<u8>>, expected: impl Into<Vec<u8>>) -> Result<RemoveIf, Error> {
        self.submit(request::remove_if(self.owned(key)?, expected.into())).await
    }

    /// Returns at most `limit` entries within `bounds`, in ascending order of their keys, as
    /// [`Index::scan`](crate::Index::scan) does.
    pub async fn scan<K: AsRef<[u8]>>(
        &self,
        bounds: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let bounds = (owned(bounds.start_bound()), owned(bounds.end_bound()));
        self.submit(request::scan(bounds, limit)).await
    }

    /// Refuses a key that the index would refuse, before it takes room in the queue.
    fn owned(&self, key: impl Into<Vec<u8>>) -> Result<Vec<u8>, IndexError> {
        let (key, max) = (key.into(), self.inner.limits.key);
        if key.len() > max { Err(IndexError::KeyTooLong { len: key.len(), max }) } else { Ok(key) }
    }
    /// The same for a value.
    fn owned_value(&self, value: impl Into<Vec<u8>>) -> Result<Vec<u8>, IndexError> {
        let (value, max) = (value.into(), self.inner.limits.value);
        if value.len() > max { Err(IndexError::ValueTooLong { len: value.len(), max }) } else { Ok(value) }
    }
    /// The same for many keys.
    fn all_owned<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Vec<u8>>, IndexError> {
        keys.into_iter().map(|key| self.owned(key)).collect()
    }

    async fn submit<T>(&self, (request, answer): Asked<T>) -> Result<T, Error> {
        // While there is a handle, workers close the queue and drop requests only when they panic.
        let panicked = || HandleError::WorkerPanicked.into();
        self.inner.requests.send(request).await.map_err(|_| panicked())?;
        answer.await.unwrap_or_else(|_| Err(panicked()))
    }
}
