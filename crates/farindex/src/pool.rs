//! A pool as its users see it.

use crate::builder::{PoolBuilder, SessionBuilder};
use crate::check;
use crate::error::Error;
use crate::heartbeat::{Heartbeat, once};
use crate::net::connect;
use crate::session::Session;
use crate::url::PoolUrl;
use farindex_fabric::shm::ShmFabric;
use farindex_fabric::{Endpoint, Fabric, Identity, OpKind};
use farindex_index::Coalescer;
use farindex_pool::{Calibration, Client, PoolError, PoolOptions};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// An open pool of far memory. Cheap to clone and shared by threads; each thread opens a [`Session`], or uses a
/// [`Handle`](crate::Handle) from anywhere.
///
/// While it is open, this process is registered as a client of the pool, and a thread of its own renews the lease. When
/// the last clone and the last session are dropped, the process gives back what it holds.
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
    /// Whether sessions interleave their coroutines on mapped memory.
    interleaves: AtomicBool,
    /// Made when the first index is opened that uses it.
    coalescer: OnceLock<Arc<Coalescer>>,
}

impl Pool {
    /// Returns a builder for a new pool.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Creates a pool of one memory node with so many bytes in this process's memory. It is gone when it is closed.
    pub fn in_memory(bytes: u64) -> Result<Pool, Error> {
        Self::builder().create(PoolUrl::Memory { len: bytes.next_multiple_of(4096), nodes: 1 })
    }

    /// Opens a pool that exists, at the place that a string (`shm:PATH`, `connect:HOST:PORT`) or a [`PoolUrl`] names.
    ///
    /// If other clients of the pool have crashed and this one is the only client, it recovers what they left
    /// unfinished. That takes as long as a check of the whole pool, once.
    pub fn open<U: TryInto<PoolUrl>>(url: U) -> Result<Pool, Error>
    where
        Error: From<U::Error>,
    {
        let pool = Self::open_without_recovery(url)?;
        pool.recover_if_alone();
        Ok(pool)
    }

    /// Opens a pool that exists, and leaves in it what crashed clients left unfinished: for checks.
    pub fn open_without_recovery<U: TryInto<PoolUrl>>(url: U) -> Result<Pool, Error>
    where
        Error: From<U::Error>,
    {
        let fabric: Arc<dyn Fabric> = match url.try_into()? {
            PoolUrl::Memory { .. } => return Err(Error::NotStored),
            PoolUrl::Shm { paths } => Arc::new(open_files(&paths, false)?),
            PoolUrl::Remote { addrs, token_file } => connect(&addrs, token_file.as_deref())?,
        };
        Self::attach_without_recovery(fabric)
    }

    /// Opens the pool that the memory nodes of a fabric form.
    pub fn attach(fabric: Arc<dyn Fabric>) -> Result<Pool, Error> {
        let pool = Self::attach_without_recovery(fabric)?;
        pool.recover_if_alone();
        Ok(pool)
    }

    /// Creates a pool on all memory nodes of a fabric.
    pub(crate) fn format(fabric: Arc<dyn Fabric>, options: &PoolOptions) -> Result<Pool, Error> {
        let identity = fabric.new_identity();
        let created = once(&fabric, &identity, async |endpoint: &Endpoint| {
            farindex_pool::Pool::create(Arc::clone(&fabric), endpoint, options).await
        })??;
        Self::register(fabric, created, identity)
    }

    /// If clients have crashed and no other client is registered, recovers what they left unfinished and frees their
    /// memory, once, as a file system recovers that was not unmounted: this walks the whole pool.
    fn recover_if_alone(&self) {
        // What fails here fails again where it matters, in an operation of the user.
        let _ = self.session().and_then(|session| session.block_on(check::repair_if_alone(session.raw())));
    }

    fn attach_without_recovery(fabric: Arc<dyn Fabric>) -> Result<Pool, Error> {
        let identity = fabric.new_identity();
        let (opened, measured) = once(&fabric, &identity, async |endpoint: &Endpoint| {
            let pool = farindex_pool::Pool::open(Arc::clone(&fabric), endpoint).await?;
            let measured = Calibration::load(&endpoint.span(OpKind::Other)).await?;
            Ok::<_, PoolError>((pool, measured))
        })??;
        let pool = Self::register(fabric, opened, identity)?;
        pool.set_interleaving(measured.is_some_and(|measured| measured.interleaving));
        Ok(pool)
    }

    fn register(fabric: Arc<dyn Fabric>, pool: farindex_pool::Pool, identity: Identity) -> Result<Pool, Error> {
        let client =
            once(&fabric, &identity, async |endpoint: &Endpoint| Client::register(&pool, identity, endpoint).await)??;
        let heartbeat = Heartbeat::start(Arc::clone(&fabric), identity, Arc::clone(&client))?;
        let interleaves = AtomicBool::new(false);
        let coalescer = OnceLock::new();
        Ok(Pool { inner: Arc::new(Inner { fabric, pool, identity, client, heartbeat, interleaves, coalescer }) })
    }

    /// Opens a session for the calling thread.
    pub fn session(&self) -> Result<Session, Error> {
        self.session_builder().open()
    }
    /// Returns a builder for a session with settings of its own.
    pub fn session_builder(&self) -> SessionBuilder<'_> {
        SessionBuilder { pool: self, deadline: None }
    }

    /// Whether sessions that are opened from now on interleave their coroutines where far memory is mapped into this process:
    /// see [`Endpoint::set_interleaving`]. At first it is what the pool's [`Calibration`] says, and off for a pool that was
    /// never measured.
    pub fn set_interleaving(&self, interleaves: bool) {
        self.inner.interleaves.store(interleaves, Relaxed);
    }
    pub(crate) fn interleaves(&self) -> bool {
        self.inner.interleaves.load(Relaxed)
    }

    /// Returns how often this process has missed its lease and has come back: it was stopped, or not scheduled. It has
    /// lost nothing, or every operation would fail; but other clients may have been refused what it held, or have
    /// waited for it.
    pub fn missed_leases(&self) -> u64 {
        self.inner.client.missed_leases()
    }
    /// Returns the pool of the crate underneath, for addresses and settings.
    pub fn raw(&self) -> &farindex_pool::Pool {
        &self.inner.pool
    }
    /// Returns the fabric underneath.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.inner.fabric
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.inner.identity
    }
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.inner.client
    }
    /// Returns this process's lock table.
    pub(crate) fn coalescer(&self) -> &Arc<Coalescer> {
        self.inner.coalescer.get_or_init(Arc::default)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("fabric", &self.inner.fabric.name()).finish_non_exhaustive()
    }
}

/// Maps the files of a pool. That they are a pool is checked before any space is reserved in them, and no more is
/// reserved than the pool has.
pub(crate) fn open_files(paths: &[PathBuf], read_only: bool) -> Result<ShmFabric, PoolError> {
    let len = |node, head: &_| Ok(farindex_pool::Pool::recognise(node, head)?.region_len);
    let fabric: Result<_, PoolError> = ShmFabric::open_as(paths, read_only, len);
    Ok(fabric?.with_call_handler(crate::builder::handlers()))
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.heartbeat.stop();
        let client = Arc::clone(&self.client);
        // What cannot be given back now is found by the next check of the pool.
        let _ = once(&self.fabric, &self.identity, async |endpoint: &Endpoint| client.close(endpoint).await);
    }
}
