//! What one thread works with: a connection, an executor, and the operations on a whole pool.

use crate::builder::IndexBuilder;
use crate::index::Index;
use crate::inspect::{NodeUsage, usage};
use crate::pool::Pool;
use crate::{Error, check, salvage};
use farindex_fabric::{Driver, Endpoint, Executor, Meter, OpKind, Task};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_pool::client::CLOSE_TIMEOUT;
use farindex_pool::{ClientInfo, IndexInfo, catalog, clients};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::future::Future;
use std::rc::Rc;

/// Operations of one [`Session::run_all`] that are in flight at once, as many as a worker of a handle has.
const IN_FLIGHT: usize = 128;

/// Per-thread handle to a pool: a connection to the memory nodes, and an executor for coroutines. It is not `Send`;
/// cheap to clone within its thread.
///
/// Futures of a session (those of [`Index::async_handle`], and tasks that were [spawned](Self::spawn)) make progress
/// only while the session is driven: by [`block_on`](Self::block_on), or by a runtime as the page `docs/async.md`
/// shows. A future that nobody drives never finishes, not even by its deadline. For futures that any runtime awaits, on
/// any thread, there is [`Handle`](crate::Handle).
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Rc<SessionInner>,
}

// The fields are dropped in this order: the session returns its free blocks to the client before the pool can close.
pub(crate) struct SessionInner {
    pub(crate) raw: Rc<farindex_pool::Session>,
    pub(crate) executor: Executor,
    pub(crate) endpoint: Endpoint,
    pool: Pool,
}

impl Drop for SessionInner {
    /// Waits, for a second at most, until the verbs have completed that no operation waits for, and that protect something until
    /// then: nobody drives this connection afterwards. An index posts such verbs with its last handle.
    fn drop(&mut self) {
        let until = self.endpoint.now() + CLOSE_TIMEOUT;
        while self.endpoint.trailing() > 0 && self.endpoint.now() < until {
            self.endpoint.flush();
            if !self.endpoint.progress() {
                std::thread::yield_now();
            }
        }
    }
}

impl Session {
    pub(crate) fn connect(pool: &Pool) -> Result<Session, Error> {
        let endpoint = pool.fabric().connect(pool.identity())?;
        let raw = Rc::new(pool.client().session(endpoint.clone()));
        let executor = Executor::new();
        Ok(Session { inner: Rc::new(SessionInner { raw, executor, endpoint, pool: pool.clone() }) })
    }

    /// Runs a future on this thread until it completes, together with everything that was [spawned](Self::spawn). While
    /// none of it can run and no verb is in flight, the thread is parked.
    ///
    /// # Panics
    ///
    /// If the session is running already: inside a coroutine, or inside another future that it blocks on. Every method
    /// of the session or of its indexes that blocks does the same. Two coroutines that blocked would wait for each
    /// other: await the operations of [`Index::async_handle`](crate::Index::async_handle) there.
    #[track_caller]
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.executor.block_on(&self.inner.endpoint, future)
    }
    /// Starts a coroutine; it runs while the session is driven. The task is awaited in this session: no other session
    /// runs it, and awaiting it there panics.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.inner.executor.spawn(future)
    }

    /// Runs operations of this session's indexes, 128 at a time, and calls `each` with every outcome, in the order in which they
    /// end. After an error no further one is started, and those in flight run to their end: an operation that is cut off may
    /// leave a lock behind. Returns the first error.
    ///
    /// # Panics
    /// As [`block_on`](Self::block_on).
    #[track_caller]
    pub fn run_all<T, E: Into<Error>>(
        &self,
        operations: impl IntoIterator<Item = impl Future<Output = Result<T, E>>>,
        mut each: impl FnMut(T),
    ) -> Result<(), Error> {
        let mut operations = operations.into_iter();
        self.block_on(async {
            let (mut running, mut failed) = (FuturesUnordered::new(), None);
            loop {
                while failed.is_none() && running.len() < IN_FLIGHT {
                    let Some(operation) = operations.next() else { break };
                    running.push(operation);
                }
                match running.next().await {
                    Some(Ok(outcome)) => each(outcome),
                    Some(Err(error)) => failed = failed.or(Some(error.into())),
                    None => return failed.map_or(Ok(()), Err),
                }
            }
        })
    }

    /// Returns a builder that creates or opens the index of this name.
    pub fn index(&self, name: &str) -> IndexBuilder<'_> {
        IndexBuilder { session: self, name: name.to_owned(), config: None, coalesce: false }
    }
    /// Creates an index of this kind and with these settings.
    pub fn create_index(&self, name: &str, config: impl Into<IndexConfig>) -> Result<Index, Error> {
        self.index(name).config(config).create()
    }
    /// Opens an index by name, whatever its kind.
    pub fn open_index(&self, name: &str) -> Result<Index, Error> {
        self.index(name).open()
    }
    /// Drops an index. A client that has it open gets an error from its next operation.
    pub fn drop_index(&self, name: &str) -> Result<(), Error> {
        Ok(self.block_on(AnyIndex::drop_named(&self.inner.raw, name))?)
    }
    /// Lists the indexes of the pool.
    pub fn indexes(&self) -> Result<Vec<IndexInfo>, Error> {
        let span = self.inner.raw.span(OpKind::Other);
        Ok(self.block_on(catalog::list(self.inner.raw.pool(), &span))?)
    }
    /// Lists the clients that are registered with the pool.
    pub fn clients(&self) -> Result<Vec<ClientInfo>, Error> {
        let span = self.inner.raw.span(OpKind::Other);
        Ok(self.block_on(clients(self.inner.raw.pool(), &span))?)
    }
    /// Checks the whole pool: superblocks, catalog, every entry of every index, every block.
    pub fn check(&self) -> Result<check::CheckReport, Error> {
        self.block_on(check::check(&self.inner.raw))
    }
    /// Evicts clients that have crashed or whose lease has expired, and recovers what they left unfinished in the whole
    /// pool: locks, half-done steps, and, if no other client is registered, memory that they had allocated but not yet
    /// linked. Clients at work take over the locks of crashed clients by themselves; this recovers what none of them
    /// needs. Blocks for slightly longer than one lease period.
    pub fn repair(&self) -> Result<check::Repaired, Error> {
        self.block_on(check::repair(&self.inner.raw))
    }
    /// Replaces every damaged index by a copy of what can be read of it, and drops the rest. No other client may be
    /// registered; the copy needs memory. [Repair](Self::repair) the pool first, so that what crashed clients left
    /// unfinished does not count as damage.
    pub fn drop_damaged(&self) -> Result<Vec<salvage::Salvaged>, Error> {
        self.block_on(salvage::drop_damaged(&self.inner.raw))
    }
    /// Returns how full each memory node is, according to the allocator.
    pub fn usage(&self) -> Result<Vec<NodeUsage>, Error> {
        let span = self.inner.raw.span(OpKind::Other);
        Ok(self.block_on(usage(self.inner.raw.pool(), &span))?)
    }
    /// Returns verbs, bytes and round trips of this session, by kind of operation.
    pub fn meter(&self) -> Meter {
        self.inner.endpoint.meter()
    }
    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }
    /// Returns the session of the crate underneath.
    pub fn raw(&self) -> &Rc<farindex_pool::Session> {
        &self.inner.raw
    }
}
