//! The class `Pool`.

use crate::failure::Failure;
use crate::index::Index;
use crate::settings::{self, Size, seconds};
use crate::threads::{Place, Shared, unique, with_session};
use farindex::{IndexConfig, KINDS, PoolBuilder};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Every pool that may be open, to be closed at the end of the interpreter.
static POOLS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// An open pool of far memory: named indexes that any number of processes use at once.
///
/// A pool in shared memory, which other processes open by the same name:
///
/// >>> import farindex, tempfile
/// >>> folder = tempfile.TemporaryDirectory(dir="/dev/shm")
/// >>> url = f"shm:{folder.name}/words"
/// >>> with farindex.Pool.create(url, node_bytes="64MiB") as pool:
/// ...     words = pool.create_index("words")
/// ...     words[b"far"] = b"memory"
/// >>> with farindex.Pool.open(url) as pool:
/// ...     pool.open_index("words")[b"far"]
/// b'memory'
/// >>> folder.cleanup()
///
/// While the pool is open, this process is a client of it, and a thread of its own renews the lease. Threads share the object.
#[pyclass(frozen, module = "farindex", weakref)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    fn new(pool: farindex::Pool, url: String, deadline: Option<f64>) -> PyResult<Self> {
        let shared = Arc::new(Shared::new(pool, url, seconds("deadline", deadline)?));
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&shared));
        Ok(Pool { shared })
    }
    fn index(&self, name: String, kind: &'static str, coalesce: bool) -> Index {
        Index::new(Place { shared: Arc::clone(&self.shared), name, kind, coalesce, id: unique() })
    }
}

/// Settings of a new pool.
#[derive(Default)]
struct Settings {
    node_bytes: Option<Size>,
    lease: Option<f64>,
    client_slots: Option<u64>,
    chunk_bytes: Option<Size>,
    hash_key: Option<u64>,
    unseeded: bool,
}

impl Settings {
    fn builder(self) -> PyResult<PoolBuilder> {
        let mut builder = farindex::Pool::builder();
        if let Some(Size(bytes)) = self.node_bytes {
            builder = builder.node_bytes(bytes);
        }
        if let Some(lease) = seconds("lease", self.lease)? {
            builder = builder.lease(lease);
        }
        if let Some(slots) = self.client_slots {
            builder = builder.client_slots(slots);
        }
        if let Some(Size(bytes)) = self.chunk_bytes {
            builder = builder.chunk_bytes(bytes);
        }
        if let Some(key) = self.hash_key {
            builder = builder.hash_key(key);
        }
        if self.unseeded {
            builder = builder.unseeded();
        }
        Ok(builder)
    }
}

#[pymethods]
impl Pool {
    /// Creates a pool at the place that `url` names, and opens it: ``"shm:/dev/shm/NAME"`` (one file for each memory node,
    /// separated by commas), ``"memory:1GiB"`` or ``"connect:HOST:PORT"``.
    ///
    /// `node_bytes` is the size of each memory node in bytes, or text such as ``"1GiB"``: new files need it. `lease` is in
    /// seconds (10 unless set): how long a client may be silent before another one may evict it. `client_slots` is how many
    /// processes may use the pool at once (64 unless set). `chunk_bytes` is the unit of allocation. `hash_key` and `unseeded`
    /// fix the hash seeds of indexes, for runs that must repeat exactly. `deadline` is in seconds: how long one access to far
    /// memory may take before it fails, for this process.
    ///
    /// >>> import farindex
    /// >>> with farindex.Pool.create("memory:64MiB", lease=5) as pool:
    /// ...     pool.url
    /// 'memory:64MiB'
    #[classmethod]
    #[pyo3(signature = (url, *, node_bytes=None, lease=None, client_slots=None, chunk_bytes=None, hash_key=None, unseeded=false, deadline=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create(
        cls: &Bound<'_, PyType>,
        url: &str,
        node_bytes: Option<Size>,
        lease: Option<f64>,
        client_slots: Option<u64>,
        chunk_bytes: Option<Size>,
        hash_key: Option<u64>,
        unseeded: bool,
        deadline: Option<f64>,
    ) -> PyResult<Self> {
        seconds("deadline", deadline)?;
        let builder = Settings { node_bytes, lease, client_slots, chunk_bytes, hash_key, unseeded }.builder()?;
        let pool = cls.py().detach(|| builder.create(url).map_err(Failure::from))?;
        Self::new(pool, url.to_owned(), deadline)
    }

    /// Opens a pool that exists. If other clients of it have crashed and this one is alone, what they left unfinished is
    /// recovered first, which takes as long as a check of the pool; not with ``recover=False``.
    ///
    /// >>> import farindex
    /// >>> farindex.Pool.open("shm:/dev/shm/no-such-pool")
    /// Traceback (most recent call last):
    ///     ...
    /// farindex.RegionError: /dev/shm/no-such-pool: ...
    #[classmethod]
    #[pyo3(signature = (url, *, deadline=None, recover=true))]
    fn open(cls: &Bound<'_, PyType>, url: &str, deadline: Option<f64>, recover: bool) -> PyResult<Self> {
        seconds("deadline", deadline)?;
        let open = || if recover { farindex::Pool::open(url) } else { farindex::Pool::open_without_recovery(url) };
        let pool = cls.py().detach(|| open().map_err(Failure::from))?;
        Self::new(pool, url.to_owned(), deadline)
    }

    /// Creates a pool in this process's memory: `nodes` memory nodes of `node_bytes` each. It is gone when it is closed.
    ///
    /// >>> import farindex
    /// >>> with farindex.Pool.in_memory("64MiB") as pool:
    /// ...     pool.create_index("words").insert(b"far", b"memory")
    /// True
    #[classmethod]
    #[pyo3(signature = (node_bytes, *, nodes=1, lease=None, client_slots=None, chunk_bytes=None, hash_key=None, unseeded=false, deadline=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn in_memory(
        cls: &Bound<'_, PyType>,
        node_bytes: Size,
        nodes: usize,
        lease: Option<f64>,
        client_slots: Option<u64>,
        chunk_bytes: Option<Size>,
        hash_key: Option<u64>,
        unseeded: bool,
        deadline: Option<f64>,
    ) -> PyResult<Self> {
        seconds("deadline", deadline)?;
        let node_bytes = Some(node_bytes);
        let builder = Settings { node_bytes, lease, client_slots, chunk_bytes, hash_key, unseeded }.builder()?;
        let pool = cls.py().detach(|| builder.in_memory(nodes).map_err(Failure::from))?;
        Self::new(pool, "memory:".to_owned(), deadline)
    }

    /// Creates an index. `kind` is one of :func:`farindex.kinds`; `coalesce` lets threads of this process share the work of
    /// operations on one key; other keywords are settings of the kind. Raises `IndexExists` if the name is taken.
    ///
    /// >>> import farindex
    /// >>> pool = farindex.Pool.in_memory("64MiB")
    /// >>> pool.create_index("by-time", "sherman", leaf_span=32).is_ordered
    /// True
    /// >>> pool.create_index("words", "tree")
    /// Traceback (most recent call last):
    ///     ...
    /// farindex.ConfigError: there is no kind "tree": there are ...
    #[pyo3(signature = (name, kind="shard", *, coalesce=false, **settings))]
    fn create_index(
        &self,
        py: Python<'_>,
        name: String,
        kind: &str,
        coalesce: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Index> {
        let config = settings::config(kind, settings)?;
        with_session(py, &self.shared, |session| session.index(&name).config(config).create().map(drop))?;
        Ok(self.index(name, settings::kind(kind)?.name, coalesce))
    }

    /// Opens an index, whatever its kind, or of this kind alone. Raises `NoSuchIndex`.
    ///
    /// >>> import farindex
    /// >>> pool = farindex.Pool.in_memory("64MiB")
    /// >>> pool.open_index("words")
    /// Traceback (most recent call last):
    ///     ...
    /// farindex.NoSuchIndex: the pool has no index named "words"; ...
    #[pyo3(signature = (name, kind=None, *, coalesce=false))]
    fn open_index(&self, py: Python<'_>, name: String, kind: Option<&str>, coalesce: bool) -> PyResult<Index> {
        let config = kind.map(|kind| settings::config(kind, None)).transpose()?;
        let kind = with_session(py, &self.shared, |session| {
            let builder = session.index(&name);
            let index = config.map_or(builder.clone(), |config| builder.config(config)).open()?;
            Ok(index.kind())
        })?;
        Ok(self.index(name, kind, coalesce))
    }

    /// Opens an index of this kind if it exists, else creates it: what processes do that start at the same time.
    ///
    /// >>> import farindex
    /// >>> pool = farindex.Pool.in_memory("64MiB")
    /// >>> pool.open_or_create_index("words")[b"far"] = b"memory"
    /// >>> pool.open_or_create_index("words")[b"far"]
    /// b'memory'
    #[pyo3(signature = (name, kind="shard", *, coalesce=false, **settings))]
    fn open_or_create_index(
        &self,
        py: Python<'_>,
        name: String,
        kind: &str,
        coalesce: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Index> {
        let config = settings::config(kind, settings)?;
        with_session(py, &self.shared, |session| session.index(&name).config(config).open_or_create().map(drop))?;
        Ok(self.index(name, settings::kind(kind)?.name, coalesce))
    }

    /// Drops an index. A process that has it open gets `IndexDropped` from its next operation.
    fn drop_index(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        with_session(py, &self.shared, |session| session.drop_index(name))
    }

    /// Returns the indexes of the pool: a dict of each one's kind and settings, by name.
    ///
    /// >>> import farindex
    /// >>> pool = farindex.Pool.in_memory("64MiB")
    /// >>> index = pool.create_index("words")
    /// >>> pool.indexes()["words"]["kind"]
    /// 'shard'
    fn indexes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let infos = with_session(py, &self.shared, |session| session.indexes())?;
        let all = PyDict::new(py);
        for info in infos.iter().filter(|info| !info.dropping) {
            let about = PyDict::new(py);
            about.set_item("kind", KINDS.iter().find(|kind| kind.number == info.kind).map(|kind| kind.name))?;
            let config = IndexConfig::of_info(info).and_then(|config| serde_json::to_value(config).ok());
            about.set_item("settings", settings::to_python(py, &config.unwrap_or_default())?)?;
            all.set_item(&info.name, about)?;
        }
        Ok(all)
    }

    /// Returns how full each memory node is, in bytes: a list of dicts with ``data_bytes``, ``used_bytes``,
    /// ``free_block_bytes`` and ``free_chunk_bytes``.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let nodes = with_session(py, &self.shared, |session| session.usage())?;
        let node = |usage: &farindex::NodeUsage| {
            let dict = PyDict::new(py);
            dict.set_item("data_bytes", usage.data_bytes)?;
            dict.set_item("used_bytes", usage.used_bytes)?;
            dict.set_item("free_block_bytes", usage.free_block_bytes)?;
            dict.set_item("free_chunk_bytes", usage.free_chunk_bytes)?;
            Ok(dict)
        };
        nodes.iter().map(node).collect()
    }

    /// Returns how many clients are registered with the pool: processes that have it open, and crashed ones that nobody has
    /// evicted yet.
    fn client_count(&self, py: Python<'_>) -> PyResult<usize> {
        with_session(py, &self.shared, |session| Ok(session.clients()?.len()))
    }

    /// Evicts clients that have crashed or whose lease has expired, and recovers what they left unfinished. Clients at work do
    /// the same for what they need. Takes slightly longer than one lease.
    fn repair(&self, py: Python<'_>) -> PyResult<()> {
        with_session(py, &self.shared, |session| session.repair().map(drop))
    }

    /// How often this process has missed its lease and has come back, because it was stopped or not scheduled.
    #[getter]
    fn missed_leases(&self) -> PyResult<u64> {
        Ok(self.shared.pool()?.missed_leases())
    }
    /// Where the pool is.
    #[getter]
    fn url(&self) -> &str {
        &self.shared.url
    }
    /// Whether the pool is closed. Every operation on a closed pool raises `PoolClosed`.
    #[getter]
    fn closed(&self) -> bool {
        !self.shared.is_open()
    }

    /// Closes the pool: every later operation raises `PoolClosed`. It may be closed again, and a ``with`` statement closes it.
    ///
    /// The process is a client of the pool until the last of its threads that has used the pool has ended, or has used
    /// farindex once more.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shared.close());
    }
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
    fn __repr__(&self) -> String {
        let state = if self.shared.is_open() { "open" } else { "closed" };
        format!("<farindex.Pool {:?}, {state}>", self.shared.url)
    }
    fn __reduce__(&self) -> PyResult<()> {
        let what = "a Pool cannot be pickled: pass its url to the other process, and call farindex.Pool.open there";
        Err(PyTypeError::new_err(what))
    }
}

/// Closes every pool. Registered with `atexit`, so that other processes need not wait for a lease.
#[pyfunction]
#[pyo3(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    let pools = std::mem::take(&mut *POOLS.lock().unwrap_or_else(PoisonError::into_inner));
    for pool in pools.iter().filter_map(Weak::upgrade) {
        py.detach(|| pool.close());
    }
}
