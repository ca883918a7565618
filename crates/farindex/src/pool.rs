//! A pool as a user sees it.

use crate::OpenOptions;
use crate::heartbeat::{Heartbeat, once};
use crate::index::Index;
use crate::inspect::{NodeUsage, usage};
use crate::net::connect;
use crate::url::PoolUrl;
use crate::{Error, check, salvage};
use farindex_fabric::shm::ShmFabric;
use farindex_fabric::{Endpoint, Executor, Fabric, Identity, MemoryFabric, Meter, OpKind, Task};
use farindex_index::Coalescer;
use farindex_index::{AnyIndex, IndexConfig};
use farindex_pool::{Client, ClientInfo, IndexInfo, PoolError, PoolOptions, catalog, clients};
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// An open pool of far memory. Cheap to clone and shared by threads; each thread opens a [`Session`].
///
/// While it is open this process is registered as a client of the pool. The last clone and session to be dropped gives
/// back what the process holds.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    fabric: Arc<dyn Fabric>,
    pool: farindex_pool::Pool,
    identity: Identity,
    client: Arc<Client>,
    heartbeat: Heartbeat,
    /// Made when the first index is opened that wants it.
    coalescer: OnceLock<Arc<Coalescer>>,
}

impl Pool {
    /// Opens a pool: `shm:PATH` or `connect:HOST:PORT` one that exists, `memory:SIZE` a new one. See [`PoolUrl`] for all forms.
    ///
    /// If other clients of the pool have crashed and this one finds itself alone, it recovers what they have left,
    /// which takes as long as a check of the whole pool, once.
    pub fn open(url: &str) -> Result<Pool, Error> {
        Self::open_at(&url.parse()?)
    }

    /// The same for a string that was parsed already, or for paths that no string can name.
    pub fn open_at(url: &PoolUrl) -> Result<Pool, Error> {
        match url {
            PoolUrl::Memory { len, nodes } => {
                Self::format(Arc::new(MemoryFabric::new(*nodes, *len)?), &PoolOptions::default())
            }
            PoolUrl::Shm { .. } | PoolUrl::Remote { .. } => {
                let pool = Self::open_as_it_is(url)?;
                pool.repair_if_alone();
                Ok(pool)
            }
        }
    }

    /// Opens a pool that exists and leaves in it what crashed clients have left: for checks.
    pub fn open_as_it_is(url: &PoolUrl) -> Result<Pool, Error> {
        let fabric: Arc<dyn Fabric> = match url {
            PoolUrl::Memory { .. } => {
                return Err(Error::Settings("a memory: pool is gone when its process ends".to_owned()));
            }
            PoolUrl::Shm { paths } => Arc::new(open_files(paths, false)?),
            PoolUrl::Remote { addrs, token_file } => connect(addrs, token_file.as_deref())?,
        };
        Self::attach_as_it_is(fabric)
    }

    /// Creates a pool. `size` is that of each memory node, for `shm:`; `memory:` has it in its string.
    pub fn create(url: &str, size: Option<u64>, options: &PoolOptions) -> Result<Pool, Error> {
        Self::create_at(&url.parse()?, size, options)
    }

    /// The same for a string that was parsed already, or for paths that no string can name.
    pub fn create_at(url: &PoolUrl, size: Option<u64>, options: &PoolOptions) -> Result<Pool, Error> {
        match (url, size) {
            (PoolUrl::Memory { len, nodes }, None) => Self::format(Arc::new(MemoryFabric::new(*nodes, *len)?), options),
            (PoolUrl::Memory { .. }, Some(_)) => {
                Err(Error::Settings("a memory: pool has its size in its string".to_owned()))
            }
            (PoolUrl::Shm { paths }, Some(size)) => {
                let made = Self::format(Arc::new(ShmFabric::create(paths, size)?), options);
                if made.is_err() {
                    // These files are ours, and hold nothing: a device is left alone.
                    for path in paths.iter().filter(|path| path.is_file()) {
                        let _: std::io::Result<()> = std::fs::remove_file(path);
                    }
                }
                made
            }
            (PoolUrl::Remote { addrs, token_file }, None) => {
                Self::format(connect(addrs, token_file.as_deref())?, options)
            }
            (PoolUrl::Remote { .. }, Some(_)) => {
                Err(Error::Settings("memory nodes that are served have their sizes: leave it out".to_owned()))
            }
            (PoolUrl::Shm { .. }, None) => Err(Error::Settings("a new shm: pool needs a size".to_owned())),
        }
    }

    /// Creates a pool on all memory nodes of a fabric.
    pub fn format(fabric: Arc<dyn Fabric>, options: &PoolOptions) -> Result<Pool, Error> {
        let identity = fabric.new_identity();
        let made = once(&fabric, &identity, async |endpoint: &Endpoint| {
            farindex_pool::Pool::create(Arc::clone(&fabric), endpoint, options).await
        })??;
        Self::join(fabric, made, identity)
    }

    /// Opens the pool that the memory nodes of a fabric form.
    pub fn attach(fabric: Arc<dyn Fabric>) -> Result<Pool, Error> {
        let pool = Self::attach_as_it_is(fabric)?;
        pool.repair_if_alone();
        Ok(pool)
    }

    /// If clients have crashed and no other client is there, this one finishes what they have left unfinished and gives
    /// back their memory, once, as a file system that was not unmounted is recovered: it walks the whole pool.
    fn repair_if_alone(&self) {
        // What fails here fails again where it matters, in an operation of the user.
        let _ = self.session().and_then(|session| session.block_on(check::repair_if_alone(session.raw())));
    }

    fn attach_as_it_is(fabric: Arc<dyn Fabric>) -> Result<Pool, Error> {
        let identity = fabric.new_identity();
        let opened = once(&fabric, &identity, async |endpoint: &Endpoint| {
            farindex_pool::Pool::open(Arc::clone(&fabric), endpoint).await
        })??;
        Self::join(fabric, opened, identity)
    }

    fn join(fabric: Arc<dyn Fabric>, pool: farindex_pool::Pool, identity: Identity) -> Result<Pool, Error> {
        let client =
            once(&fabric, &identity, async |endpoint: &Endpoint| Client::register(&pool, identity, endpoint).await)??;
        let heartbeat = Heartbeat::start(Arc::clone(&fabric), identity, Arc::clone(&client))?;
        Ok(Pool { inner: Arc::new(Inner { fabric, pool, identity, client, heartbeat, coalescer: OnceLock::new() }) })
    }

    /// Opens a session for the calling thread.
    pub fn session(&self) -> Result<Session, Error> {
        let endpoint = self.inner.fabric.connect(&self.inner.identity)?;
        let raw = Rc::new(self.inner.client.session(endpoint.clone()));
        let executor = Executor::new();
        Ok(Session { inner: Rc::new(SessionInner { raw, executor, endpoint, pool: self.clone() }) })
    }

    /// The pool below, for addresses and settings.
    pub fn raw(&self) -> &farindex_pool::Pool {
        &self.inner.pool
    }
    /// How often this process has been silent for a lease and has come back: it was stopped, or not scheduled. It has lost
    /// nothing by it, or every operation would say so; but others may have been refused what it held, or have waited for it.
    pub fn missed_leases(&self) -> u64 {
        self.inner.client.missed_leases()
    }
    /// The fabric below.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.inner.fabric
    }
}

/// Maps the files of a pool. Whether they are that is seen before any space is reserved in them, and no more is
/// reserved than the pool has.
pub(crate) fn open_files(paths: &[PathBuf], read_only: bool) -> Result<ShmFabric, PoolError> {
    ShmFabric::open_as(paths, read_only, |node, head| Ok(farindex_pool::Pool::recognise(node, head)?.region_len))
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.heartbeat.stop();
        let client = Arc::clone(&self.client);
        // What cannot be given back now is found by the next check of the pool.
        let _ = once(&self.fabric, &self.identity, async |endpoint: &Endpoint| client.close(endpoint).await);
    }
}

/// One thread's hands in a pool. Not shared between threads; cheap to clone within one.
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Rc<SessionInner>,
}

// The fields are dropped in this order: the session gives its stock to the client before the pool can close.
pub(crate) struct SessionInner {
    pub(crate) raw: Rc<farindex_pool::Session>,
    pub(crate) executor: Executor,
    pub(crate) endpoint: Endpoint,
    pool: Pool,
}

impl Session {
    /// Runs a future on this thread until it completes, with everything that was [spawned](Self::spawn). While none of it
    /// can run and no verb is in flight, the thread is parked.
    ///
    /// # Panics
    ///
    /// If the session is running already: inside of a coroutine, that is, or of another future that it blocks on. Every
    /// method of the session or of its indexes that blocks does the same. Two coroutines that blocked would wait for each
    /// other: await the operations of [`Index::concurrent`](crate::Index::concurrent) there.
    #[track_caller]
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.executor.block_on(&self.inner.endpoint, future)
    }
    /// Starts a coroutine; it runs while the session [blocks](Self::block_on) on something. The task is awaited in this
    /// session: no other one runs it, and awaiting it there panics.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.inner.executor.spawn(future)
    }

    /// Creates an index.
    pub fn create_index(&self, name: &str, config: &IndexConfig) -> Result<Index, Error> {
        salvage::check_name(name)?;
        config.check_lossless()?;
        let index = self.block_on(AnyIndex::create(&self.inner.raw, name, config))?;
        Ok(Index::new(self.clone(), name, index))
    }
    /// Opens an index by name, whatever its kind.
    pub fn open_index(&self, name: &str) -> Result<Index, Error> {
        self.open_index_with(name, &OpenOptions::default())
    }
    /// The same with options.
    pub fn open_index_with(&self, name: &str, options: &OpenOptions) -> Result<Index, Error> {
        let raw = &self.inner.raw;
        let mut index = self.block_on(async {
            let info = catalog::find(raw.pool(), &raw.span(OpKind::Other), name).await?;
            IndexConfig::of_info(&info).map_or(Ok(()), |config| config.check_lossless())?;
            AnyIndex::open_info(raw, &info).await
        })?;
        if options.coalesce {
            index = index.coalesced(self.inner.pool.inner.coalescer.get_or_init(Arc::default));
        }
        Ok(Index::new(self.clone(), name, index))
    }
    /// Drops an index. Whoever has it open is told at the next operation.
    pub fn drop_index(&self, name: &str) -> Result<(), Error> {
        Ok(self.block_on(AnyIndex::drop_named(&self.inner.raw, name))?)
    }
    /// Every index of the pool.
    pub fn indexes(&self) -> Result<Vec<IndexInfo>, Error> {
        let span = self.inner.raw.span(OpKind::Other);
        Ok(self.block_on(catalog::list(self.inner.raw.pool(), &span))?)
    }
    /// Everyone who is registered with the pool.
    pub fn clients(&self) -> Result<Vec<ClientInfo>, Error> {
        let span = self.inner.raw.span(OpKind::Other);
        Ok(self.block_on(clients(self.inner.raw.pool(), &span))?)
    }
    /// Checks the whole pool: superblocks, catalog, every entry of every index, every block.
    pub fn check(&self) -> Result<check::CheckReport, Error> {
        self.block_on(check::check(&self.inner.raw))
    }
    /// Shuts out clients that are gone or have not kept their leases, and puts right what they have left, all over the
    /// pool: locks, half-done steps, and, if no other client is there, the memory that they had in their hands. Clients
    /// at work take over the locks of the dead by themselves; this is for what nobody comes by. Takes a little more than a
    /// lease.
    pub fn repair(&self) -> Result<check::Repaired, Error> {
        self.block_on(check::repair(&self.inner.raw))
    }
    /// Replaces every index that is damaged by a copy of what can be read of it, and drops the rest. Nobody else may be there; and it
    /// takes room for the copy. [Repair](Self::repair) the pool first, so that what crashed clients have left does not count as damage.
    pub fn drop_damaged(&self) -> Result<Vec<salvage::Salvaged>, Error> {
        self.block_on(salvage::drop_damaged(&self.inner.raw))
    }
    /// How full each memory node is, by the account of the allocator.
    pub fn usage(&self) -> Result<Vec<NodeUsage>, Error> {
        let span = self.inner.raw.span(OpKind::Other);
        Ok(self.block_on(usage(self.inner.raw.pool(), &span))?)
    }
    /// Verbs, bytes and round trips of this session, by kind of operation.
    pub fn meter(&self) -> Meter {
        self.inner.endpoint.meter()
    }
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }
    /// The session below, for those who build on the crates underneath.
    pub fn raw(&self) -> &Rc<farindex_pool::Session> {
        &self.inner.raw
    }
}
