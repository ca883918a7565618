//! Builders for pools, sessions and indexes.

use crate::pool::Pool;
use crate::session::Session;
use crate::url::PoolUrl;
use crate::{Error, Index};
use farindex_fabric::shm::ShmFabric;
use farindex_fabric::{Fabric, MemoryFabric, OpKind};
use farindex_index::{AnyIndex, IndexConfig};
use farindex_pool::{PoolError, PoolOptions, catalog};
use std::sync::Arc;
use std::time::Duration;

/// Creates a pool.
///
/// ```no_run
/// # use std::time::Duration;
/// let pool = farindex::Pool::builder()
///     .node_bytes(1 << 30)
///     .lease(Duration::from_secs(5))
///     .create("shm:/dev/shm/demo")?;
/// # Ok::<(), farindex::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct PoolBuilder {
    options: PoolOptions,
    node_bytes: Option<u64>,
}

impl PoolBuilder {
    /// Sets the size of each memory node in bytes: for pools in new files, which need it, and for `memory:` pools whose
    /// string names no size. Memory nodes over a network have their sizes already.
    pub fn node_bytes(mut self, bytes: u64) -> Self {
        self.node_bytes = Some(bytes);
        self
    }
    /// Sets how long a client may send no heartbeat before its lease expires and another client may evict it: 10 s
    /// unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }
    /// Sets how many clients may be registered at once: 2 to 1,024, 64 unless set.
    pub fn client_slots(mut self, slots: u64) -> Self {
        self.options.client_slots = slots;
        self
    }
    /// Sets the bytes of one chunk, the unit in which clients allocate from a memory node. Unless set, one that suits
    /// the size of the node.
    pub fn chunk_bytes(mut self, bytes: u64) -> Self {
        self.options.chunk_size = Some(bytes);
        self
    }
    /// Sets the key from which the hash seeds of the pool's indexes are drawn. Unless set it is random, as a pool needs
    /// that others write to. Runs that must repeat exactly set it.
    pub fn hash_key(mut self, key: u64) -> Self {
        self.options.hash_key = Some(key);
        self
    }
    /// Gives every index the same hash seed, 0: keys lie at the same places in every run.
    pub fn unseeded(mut self) -> Self {
        self.options.hash_key = PoolOptions::unseeded().hash_key;
        self
    }

    /// Sets all of the pool's own settings at once.
    pub fn options(mut self, options: PoolOptions) -> Self {
        self.options = options;
        self
    }

    /// Creates the pool at the place that a string or a [`PoolUrl`] names, and opens it.
    pub fn create<U: TryInto<PoolUrl>>(self, url: U) -> Result<Pool, Error>
    where
        Error: From<U::Error>,
    {
        match (url.try_into()?, self.node_bytes) {
            (PoolUrl::Memory { .. }, Some(_)) => Err(Error::SizeGiven { nodes: "the nodes of a memory: string" }),
            (PoolUrl::Memory { len, nodes }, None) => {
                self.create_on(Arc::new(MemoryFabric::new(nodes, len)?.with_call_handler(handlers())))
            }
            (PoolUrl::Shm { .. }, None) => Err(Error::SizeMissing),
            (PoolUrl::Shm { paths }, Some(bytes)) => {
                let created = self.create_on(Arc::new(ShmFabric::create(&paths, bytes)?.with_call_handler(handlers())));
                if created.is_err() {
                    // The files are new and empty. A device is left alone.
                    for path in paths.iter().filter(|path| path.is_file()) {
                        let _: std::io::Result<()> = std::fs::remove_file(path);
                    }
                }
                created
            }
            (PoolUrl::Remote { .. }, Some(_)) => Err(Error::SizeGiven { nodes: "memory nodes over a network" }),
            (PoolUrl::Remote { addrs, token_file }, None) => {
                self.create_on(crate::net::connect(&addrs, token_file.as_deref())?)
            }
        }
    }

    /// Creates the pool on so many memory nodes in this process's memory, and opens it. It is gone when it is closed.
    pub fn in_memory(self, nodes: usize) -> Result<Pool, Error> {
        let bytes = self.node_bytes.ok_or(Error::SizeMissing)?.next_multiple_of(4096);
        self.create_on(Arc::new(MemoryFabric::new(nodes, bytes)?.with_call_handler(handlers())))
    }

    /// Creates the pool on all memory nodes of a fabric, and opens it.
    pub fn create_on(self, fabric: Arc<dyn Fabric>) -> Result<Pool, Error> {
        Pool::format(fabric, &self.options)
    }
}

/// Opens a session.
#[derive(Debug, Clone)]
#[must_use]
pub struct SessionBuilder<'p> {
    pub(crate) pool: &'p Pool,
    pub(crate) deadline: Option<Duration>,
}

impl SessionBuilder<'_> {
    /// Sets how long a verb may take before it fails. Unless set, the fabric's own deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
    /// Opens the session for the calling thread.
    pub fn open(self) -> Result<Session, Error> {
        let session = Session::connect(self.pool)?;
        session.inner.endpoint.set_interleaving(self.pool.interleaves());
        if let Some(deadline) = self.deadline {
            session.inner.endpoint.set_deadline(deadline);
        }
        Ok(session)
    }
}

/// Creates or opens an index.
///
/// ```
/// use farindex::{Pool, linear};
///
/// let session = Pool::in_memory(64 << 20)?.session()?;
/// let index = session.index("demo").config(linear::Config { width: 16, ..Default::default() }).open_or_create()?;
/// assert_eq!(index.kind(), "linear");
/// # Ok::<(), farindex::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct IndexBuilder<'s> {
    pub(crate) session: &'s Session,
    pub(crate) name: String,
    pub(crate) config: Option<IndexConfig>,
    pub(crate) coalesce: bool,
}

impl IndexBuilder<'_> {
    /// Sets kind and settings of the index: an [`IndexConfig`], or the `Config` of a kind. A new index is of kind SHARD
    /// with its default settings unless set. An index that exists keeps its own settings, but must be of this kind.
    pub fn config(mut self, config: impl Into<IndexConfig>) -> Self {
        self.config = Some(config.into());
        self
    }
    /// Lets operations of this process on one key share their verbs, through a [local lock
    /// table](crate::lower::index::coalesce).
    ///
    /// This pays for skewed workloads on a network, where a round trip costs far more than the lock table adds to each
    /// operation, and where the CASes of many threads on one key make each other fail. It is off unless set: uniform
    /// workloads, and fabrics as fast as memory, only pay for it; and operations of this process then wait for each
    /// other: an operation that was started and is neither polled nor dropped holds up all others on its key.
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = coalesce;
        self
    }

    /// Creates the index and opens it. An index of this name must not exist.
    pub fn create(self) -> Result<Index, Error> {
        crate::salvage::check_name(&self.name)?;
        let config = self.config.unwrap_or_default();
        config.check_lossless()?;
        let index = self.session.block_on(AnyIndex::create(&self.session.inner.raw, &self.name, &config))?;
        Ok(self.wrap(index))
    }

    /// Opens the index, which must exist.
    pub fn open(self) -> Result<Index, Error> {
        let raw = &self.session.inner.raw;
        let index = self.session.block_on(async {
            let info = catalog::find(raw.pool(), &raw.span(OpKind::Other), &self.name).await?;
            IndexConfig::of_info(&info).map_or(Ok(()), |config| config.check_lossless())?;
            AnyIndex::open_info(raw, &info).await
        })?;
        match self.config {
            Some(config) if config.kind() != index.kind() => Err(PoolError::WrongKind {
                name: self.name,
                found: index.kind().to_owned(),
                wanted: config.kind().to_owned(),
            }
            .into()),
            _ => Ok(self.wrap(index)),
        }
    }

    /// Opens the index if it exists, else creates it.
    pub fn open_or_create(self) -> Result<Index, Error> {
        match self.clone().open() {
            Err(Error::Pool(PoolError::NoSuchIndex(_))) => {}
            opened => return opened,
        }
        match self.clone().create() {
            // Another client has created it in the meantime.
            Err(Error::Pool(PoolError::IndexExists(_))) => self.open(),
            created => created,
        }
    }

    fn wrap(self, mut index: AnyIndex) -> Index {
        if self.coalesce {
            index = index.coalesced(self.session.pool().coalescer());
        }
        Index::new(self.session.clone(), &self.name, index)
    }
}

/// What memory nodes do for indexes: of embedded pools, in this process.
pub(crate) fn handlers() -> Arc<farindex_fabric::CallHandler> {
    farindex_index::call_table().into_handler()
}
