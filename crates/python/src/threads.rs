//! The sessions of a thread: one for each pool that the thread uses, with the indexes that it has opened.
//!
//! Invariants:
//!
//! - A session is opened at the first operation of a thread on a pool, and dropped when the thread ends, when it closes the pool,
//!   or, if another thread has closed the pool, at the next operation of this thread on any pool.
//! - The state is borrowed only while no Python code can run. So no destructor of a Python object meets it borrowed.
//! - A child process forgets the state of the thread that forked; other threads' state does not exist there.

use crate::failure::Failure;
use crate::fork::Birthplace;
use farindex::{Error, IndexConfig, Iter, Session, Value};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A number that nothing else of this process has.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How many pools were closed. A thread that has seen fewer looks for sessions of closed pools.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// An open pool, as all its Python objects share it.
pub(crate) struct Shared {
    pub(crate) url: String,
    id: u64,
    birthplace: Birthplace,
    deadline: Option<Duration>,
    open: Arc<AtomicBool>,
    pool: Mutex<Option<farindex::Pool>>,
    /// What stops the worker threads of the handles that are open.
    handles: Mutex<Vec<Weak<dyn Close>>>,
}

/// Something that ends with its pool.
pub(crate) trait Close: Send + Sync {
    fn close(&self);
}

impl Shared {
    pub(crate) fn new(pool: farindex::Pool, url: String, deadline: Option<Duration>) -> Self {
        Shared {
            url,
            id: unique(),
            birthplace: Birthplace::here(),
            deadline,
            open: Arc::new(AtomicBool::new(true)),
            pool: Mutex::new(Some(pool)),
            handles: Mutex::default(),
        }
    }
    /// Refuses a pool that is closed, or that another process has opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.birthplace.is_forked() {
            return Err(Failure::forked());
        }
        if !self.is_open() {
            return Err(Failure::closed());
        }
        Ok(())
    }
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }
    pub(crate) fn pool(&self) -> Result<farindex::Pool, Failure> {
        self.check()?;
        if !self.birthplace.is_here() {
            return Err(Failure::forked());
        }
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(Failure::closed)
    }
    /// Ends a handle when the pool is closed.
    pub(crate) fn close_with_pool(&self, handle: &Arc<dyn Close>) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(handle));
    }
    /// Closes the pool for every thread. The process stays its client until the last thread with a session has dropped it, and
    /// the last operation of a handle has ended.
    pub(crate) fn close(&self) {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner).take();
        if !self.birthplace.is_here() {
            std::mem::forget(pool);
            return;
        }
        if !self.open.swap(false, Ordering::AcqRel) {
            return;
        }
        CLOSED.fetch_add(1, Ordering::AcqRel);
        for handle in self.handles.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(handle) = handle.upgrade() {
                handle.close();
            }
        }
        let closed = STATE.try_with(|state| state.try_borrow_mut().map(|mut state| state.take_closed()));
        drop(closed);
        drop(pool);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// An index of a pool, by name. A thread opens it at its first operation.
pub(crate) struct Place {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) coalesce: bool,
    pub(crate) id: u64,
}

/// The session of a thread with a pool. The fields are dropped in this order.
struct ThreadPool {
    walks: HashMap<u64, (Weak<()>, Iter)>,
    indexes: HashMap<u64, Rc<farindex::Index>>,
    session: Session,
    open: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    pools: HashMap<u64, ThreadPool>,
    /// How many closed pools this thread knows of.
    closed: u64,
    /// Values that an operation has found, on their way to the interpreter: they belong to this thread, and are not copied.
    found: Vec<Option<Value>>,
    birthplace: Option<Birthplace>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

impl State {
    fn pool(&mut self, shared: &Shared) -> Result<&mut ThreadPool, Failure> {
        let closed = CLOSED.load(Ordering::Acquire);
        if closed != self.closed {
            self.closed = closed;
            drop(self.take_closed());
        }
        match self.pools.entry(shared.id) {
            std::collections::hash_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let pool = shared.pool()?;
                let mut builder = pool.session_builder();
                if let Some(deadline) = shared.deadline {
                    builder = builder.deadline(deadline);
                }
                let session = builder.open()?;
                self.birthplace = Some(Birthplace::here());
                Ok(entry.insert(ThreadPool {
                    walks: HashMap::new(),
                    indexes: HashMap::new(),
                    session,
                    open: Arc::clone(&shared.open),
                }))
            }
        }
    }
    fn index(&mut self, place: &Place) -> Result<Rc<farindex::Index>, Failure> {
        let pool = self.pool(&place.shared)?;
        if let Some(index) = pool.indexes.get(&place.id) {
            return Ok(Rc::clone(index));
        }
        let mut builder = pool.session.index(&place.name).coalesce(place.coalesce);
        if let Some(config) = IndexConfig::of_kind(place.kind) {
            // Its own settings count; this makes an index of another kind under the same name an error.
            builder = builder.config(config);
        }
        let index = Rc::new(builder.open()?);
        pool.indexes.insert(place.id, Rc::clone(&index));
        Ok(index)
    }
    fn take_closed(&mut self) -> Vec<ThreadPool> {
        self.pools.extract_if(|_, pool| !pool.open.load(Ordering::Acquire)).map(|(_, pool)| pool).collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.birthplace.is_some_and(|birthplace| !birthplace.is_here()) {
            std::mem::forget(std::mem::take(&mut self.pools));
            std::mem::forget(std::mem::take(&mut self.found));
        }
    }
}

/// Forgets the sessions of this thread, which are its parent process's.
pub(crate) fn forget_all() {
    let taken = STATE.try_with(|state| state.try_borrow_mut().map(|mut state| std::mem::take(&mut *state)));
    std::mem::forget(taken);
}

fn with_state<T>(body: impl FnOnce(&RefCell<State>) -> Result<T, Failure>) -> Result<T, Failure> {
    let ending = |_| Err(Failure::Own("PoolClosed", "this thread is ending, and has closed its session".to_owned()));
    STATE.try_with(body).unwrap_or_else(ending)
}

/// Runs an operation of a whole pool on this thread's session, detached from the interpreter.
pub(crate) fn with_session<T: Send>(
    py: Python<'_>,
    shared: &Shared,
    body: impl FnOnce(&Session) -> Result<T, Error> + Send,
) -> PyResult<T> {
    shared.check()?;
    let run = || {
        let session = with_state(|state| Ok(state.borrow_mut().pool(shared)?.session.clone()))?;
        body(&session).map_err(Failure::from)
    };
    Ok(py.detach(run)?)
}

/// Runs an operation on an index of this thread, detached from the interpreter.
pub(crate) fn with_index<T: Send>(
    py: Python<'_>,
    place: &Place,
    body: impl FnOnce(&farindex::Index) -> Result<T, Failure> + Send,
) -> PyResult<T> {
    place.shared.check()?;
    Ok(py.detach(|| body(&*with_state(|state| state.borrow_mut().index(place))?))?)
}

/// Like [`with_index`], for values. They stay in the buffers that READs have filled until `take` has made Python objects of them.
pub(crate) fn values_of<T>(
    py: Python<'_>,
    place: &Place,
    body: impl FnOnce(&farindex::Index, &mut Vec<Option<Value>>) -> Result<(), Failure> + Send,
    take: impl FnOnce(&mut dyn Iterator<Item = Option<Value>>) -> PyResult<T>,
) -> PyResult<T> {
    let find = |index: &farindex::Index| {
        // An empty vector unless an earlier operation failed halfway. Its capacity is kept.
        let mut found = with_state(|state| Ok(std::mem::take(&mut state.borrow_mut().found)))?;
        found.clear();
        let result = body(index, &mut found);
        with_state(|state| {
            state.borrow_mut().found = found;
            Ok(())
        })?;
        result
    };
    with_index(py, place, find)?;
    let mut found = with_state(|state| Ok(std::mem::take(&mut state.borrow_mut().found)))?;
    let taken = take(&mut found.drain(..));
    with_state(|state| {
        state.borrow_mut().found = found;
        Ok(())
    })?;
    taken
}

/// Continues a walk through the whole index, which this thread has begun or begins now, with at most `most` entries. Keys and
/// values alternate in `found`; fewer mean that the walk has ended.
pub(crate) fn walk_on(
    place: &Place,
    walk: &Arc<()>,
    id: u64,
    begun: bool,
    most: usize,
    found: &mut Vec<Option<Value>>,
) -> Result<(), Failure> {
    // Taken out while it runs, so that the state is not borrowed.
    let mut iter = with_state(|state| {
        let mut state = state.borrow_mut();
        let index = state.index(place)?;
        let pool = state.pool(&place.shared)?;
        // Iterators that were dropped on another thread.
        pool.walks.retain(|_, (walk, _)| walk.strong_count() > 0);
        match pool.walks.remove(&id) {
            Some((_, iter)) => Ok(iter),
            None if begun => {
                let what = "an iterator over an index belongs to the thread that called next() first";
                Err(Failure::Own("WrongThread", what.to_owned()))
            }
            None => Ok(index.iter()),
        }
    })?;
    for _ in 0..most {
        match iter.next() {
            None => return Ok(()),
            Some(entry) => {
                let entry = entry?;
                found.extend([Some(entry.key), Some(entry.value)]);
            }
        }
    }
    with_state(|state| {
        state.borrow_mut().pool(&place.shared)?.walks.insert(id, (Arc::downgrade(walk), iter));
        Ok(())
    })
}

/// Ends a walk, if this thread has begun it. Another thread's is ended by that thread's next walk.
pub(crate) fn end_walk(shared: &Shared, id: u64) {
    let ended = STATE.try_with(|state| {
        let mut state = state.try_borrow_mut().ok()?;
        state.pools.get_mut(&shared.id)?.walks.remove(&id)
    });
    drop(ended);
}
