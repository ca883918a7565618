//! The class `Index`. Its methods are in parts, by what they are: one `#[pymethods]` block in each module.

mod batches;
mod conditional;
mod mapping;
mod ordered;

pub(crate) use conditional::{of_removal, of_replace, outcome};
pub(crate) use ordered::bounds;

use crate::failure::Failure;
use crate::handle::IndexHandle;
use crate::threads::{Place, values_of, with_index};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::Arc;

/// An index in far memory: a mutable mapping of bytes to bytes, which any number of threads and processes use at once.
///
/// >>> import farindex
/// >>> pool = farindex.Pool.in_memory("64MiB")
/// >>> index = pool.create_index("words")
/// >>> index[b"far"] = b"memory"
/// >>> index[b"far"], index.get(b"near"), b"far" in index
/// (b'memory', None, True)
/// >>> index.set_many({b"a": b"1", b"b": b"2"})
/// >>> index.get_many([b"a", b"x", b"b"])
/// [b'1', None, b'2']
///
/// Keys and values are bytes, or any other object with the buffer protocol. Every operation on one key takes effect at one
/// moment, for all threads and processes. Operations on many keys are so many operations: each has its own moment.
///
/// It is obtained from a :class:`Pool`; threads share it.
#[pyclass(frozen, mapping, module = "farindex", weakref)]
pub(crate) struct Index {
    place: Arc<Place>,
}

impl Index {
    pub(crate) fn new(place: Place) -> Self {
        Index { place: Arc::new(place) }
    }
    /// Runs an operation on the calling thread's session, detached from the interpreter.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&farindex::Index) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        with_index(py, &self.place, body)
    }
    /// The value of a key, as a Python object.
    fn find<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        values_of(
            py,
            &self.place,
            |index, found| {
                found.push(index.get(key)?);
                Ok(())
            },
            |found| Ok(found.next().flatten().map(|value| PyBytes::new(py, &value))),
        )
    }
}

#[pymethods]
impl Index {
    /// Opens the same index for asyncio: see :class:`farindex.AsyncIndex`. `threads` worker threads carry out its operations;
    /// up to `queue` requests wait for them, and each has up to `batch` operations in flight.
    ///
    /// Blocks for the time of a connection.
    ///
    /// >>> import asyncio, farindex
    /// >>> pool = farindex.Pool.in_memory("64MiB")
    /// >>> index = pool.create_index("words")
    /// >>> async def main():
    /// ...     async with index.open_async() as words:
    /// ...         await words.set(b"far", b"memory")
    /// ...         return await words.get(b"far")
    /// >>> asyncio.run(main())
    /// b'memory'
    #[pyo3(signature = (*, threads=1, queue=1024, batch=128))]
    fn open_async<'py>(
        &self,
        py: Python<'py>,
        threads: usize,
        queue: usize,
        batch: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handle = IndexHandle::open(py, &self.place, threads, queue, batch)?;
        py.import("farindex._aio")?.getattr("AsyncIndex")?.call1((handle,))
    }

    /// Its name in the pool.
    #[getter]
    fn name(&self) -> &str {
        &self.place.name
    }
    /// Its kind: one of :func:`farindex.kinds`.
    #[getter]
    fn kind(&self) -> &'static str {
        self.place.kind
    }
    /// Whether its keys are ordered, so that it has `range`.
    #[getter]
    fn is_ordered(&self) -> bool {
        farindex::KINDS.iter().any(|kind| kind.name == self.place.kind && kind.ordered)
    }
    /// The length in bytes of the longest key that it takes.
    #[getter]
    fn max_key_size(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, |index| Ok(index.limits().key))
    }
    /// The length in bytes of the longest value that it takes.
    #[getter]
    fn max_value_size(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, |index| Ok(index.limits().value))
    }
    /// Bytes of local memory that this process uses as a cache of the index, on this thread's session.
    #[getter]
    fn cache_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |index| Ok(index.cache_bytes()))
    }

    /// Writes to far memory what this process has acknowledged and has in its cache alone: of kind ``dex`` with
    /// ``durability="write_back"``. Every other index acknowledges what is in far memory, and this does nothing.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |index| Ok(index.flush()?))
    }

    /// Counts entries and memory, and checks every entry, by walking the index while others may use it.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> index.audit()["entries"]
    /// 1
    fn audit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let audit = self.run(py, |index| Ok(serde_json::to_value(index.audit()?).unwrap_or_default()))?;
        crate::settings::to_python(py, &audit)
    }

    fn __repr__(&self) -> String {
        format!("<farindex.Index {:?} of kind {} in {:?}>", self.place.name, self.place.kind, self.place.shared.url)
    }
    fn __reduce__(&self) -> PyResult<()> {
        let what =
            "an Index cannot be pickled: pass the pool's url and the index's name, and open both in the other process";
        Err(PyTypeError::new_err(what))
    }
}
