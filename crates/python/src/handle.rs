//! The operations of an index for asyncio: on a `Handle` of the library, whose worker threads have sessions of their own.
//!
//! `farindex._aio.AsyncIndex` gives them their face; each method here starts one operation, whose answer resolves a future.

use crate::bytes::{Bytes, all, pairs};
use crate::completions::{Answer, Completions};
use crate::failure::Failure;
use crate::fork::Birthplace;
use crate::index::{of_removal, of_replace, outcome};
use crate::threads::{Close, Place};
use farindex::{Error, Handle, Insert, Remove, Update};
use futures_util::future::join_all;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::ops::Bound as End;
use std::sync::{Arc, Mutex, PoisonError};

/// The handle, until it is closed.
struct Slot {
    handle: Mutex<Option<Handle>>,
    birthplace: Birthplace,
}

impl Close for Slot {
    fn close(&self) {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if !self.birthplace.is_here() {
            // Its threads do not exist in this process.
            std::mem::forget(handle);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.close();
    }
}

/// The native part of an `AsyncIndex`.
#[pyclass(frozen, module = "farindex._native")]
pub(crate) struct IndexHandle {
    slot: Arc<Slot>,
    place: Arc<Place>,
}

/// The number of an operation that has begun, to forget it by.
type Started = PyResult<Option<u64>>;

impl IndexHandle {
    pub(crate) fn open(
        py: Python<'_>,
        place: &Arc<Place>,
        threads: usize,
        queue: usize,
        batch: usize,
    ) -> PyResult<Self> {
        let pool = place.shared.pool()?;
        let builder = Handle::builder().threads(threads).queue(queue).batch(batch).coalesce(place.coalesce);
        let handle = py.detach(|| builder.open(&pool, &place.name).map_err(Failure::from))?;
        let slot = Arc::new(Slot { handle: Mutex::new(Some(handle)), birthplace: Birthplace::here() });
        let close: Arc<dyn Close> = slot.clone();
        place.shared.close_with_pool(&close);
        Ok(IndexHandle { slot, place: Arc::clone(place) })
    }

    /// Starts an operation. `answer` makes its Python object.
    fn start<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        completions: &Completions,
        future: &Bound<'_, PyAny>,
        operation: impl FnOnce(Handle) -> F,
        answer: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Bound<'py, PyAny>> + Send + 'static,
    ) -> Started {
        self.place.shared.check()?;
        let handle = self.slot.handle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let handle =
            handle.ok_or_else(|| Failure::Own("PoolClosed", "this AsyncIndex is closed: open it again".to_owned()))?;
        let operation = operation(handle);
        let operation = async move {
            let found = operation.await?;
            let answer: Answer = Box::new(move |py| answer(py, found));
            Ok(answer)
        };
        completions.start(future, Box::pin(operation))
    }
}

fn none(py: Python<'_>) -> Bound<'_, PyAny> {
    py.None().into_bound(py)
}

fn truth(py: Python<'_>, value: bool) -> PyResult<Bound<'_, PyAny>> {
    Ok(value.into_pyobject(py)?.to_owned().into_any())
}

#[pymethods]
impl IndexHandle {
    #[getter]
    fn name(&self) -> &str {
        &self.place.name
    }
    /// Ends the worker threads, when the operations in flight have ended.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.slot.close());
    }

    fn get(&self, completions: &Completions, future: &Bound<'_, PyAny>, key: Bytes) -> Started {
        let key = key.into_vec();
        self.start(
            completions,
            future,
            move |handle| async move { handle.get(key).await },
            |py, value| Ok(value.map_or_else(|| none(py), |value| PyBytes::new(py, &value).into_any())),
        )
    }
    fn contains(&self, completions: &Completions, future: &Bound<'_, PyAny>, key: Bytes) -> Started {
        let key = key.into_vec();
        self.start(completions, future, move |handle| async move { handle.contains(key).await }, truth)
    }
    fn get_many(&self, completions: &Completions, future: &Bound<'_, PyAny>, keys: &Bound<'_, PyAny>) -> Started {
        let keys: Vec<_> = all(keys)?.into_iter().map(Bytes::into_vec).collect();
        self.start(
            completions,
            future,
            move |handle| async move { handle.get_many(keys).await },
            |py, values| {
                let values = values.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value)));
                Ok(PyList::new(py, values.collect::<Vec<_>>())?.into_any())
            },
        )
    }
    fn exists_prefix(&self, completions: &Completions, future: &Bound<'_, PyAny>, keys: &Bound<'_, PyAny>) -> Started {
        let keys: Vec<_> = all(keys)?.into_iter().map(Bytes::into_vec).collect();
        let find = move |handle: Handle| async move {
            let present = handle.contains_many(keys).await?;
            Ok(present.iter().position(|present| !present).unwrap_or(present.len()))
        };
        self.start(completions, future, find, |py, length| Ok(length.into_pyobject(py)?.into_any()))
    }
    fn set(&self, completions: &Completions, future: &Bound<'_, PyAny>, key: Bytes, value: Bytes) -> Started {
        let (key, value) = (key.into_vec(), value.into_vec());
        self.start(
            completions,
            future,
            move |handle| async move { handle.upsert(key, value).await },
            |py, _| Ok(none(py)),
        )
    }
    fn set_many(&self, completions: &Completions, future: &Bound<'_, PyAny>, items: &Bound<'_, PyAny>) -> Started {
        // Writes in flight together have no order: the last pair of a key counts.
        let pairs: std::collections::HashMap<Vec<u8>, Vec<u8>> =
            pairs(items)?.into_iter().map(|(key, value)| (key.into_vec(), value.into_vec())).collect();
        let set = move |handle: Handle| async move {
            let written = join_all(pairs.into_iter().map(|(key, value)| handle.upsert(key, value))).await;
            written.into_iter().find_map(Result::err).map_or(Ok(()), Err)
        };
        self.start(completions, future, set, |py, ()| Ok(none(py)))
    }
    fn insert(&self, completions: &Completions, future: &Bound<'_, PyAny>, key: Bytes, value: Bytes) -> Started {
        let (key, value) = (key.into_vec(), value.into_vec());
        let insert = move |handle: Handle| async move { handle.insert(key, value).await };
        self.start(completions, future, insert, |py, inserted| truth(py, inserted == Insert::Inserted))
    }
    fn update_if_present(
        &self,
        completions: &Completions,
        future: &Bound<'_, PyAny>,
        key: Bytes,
        value: Bytes,
    ) -> Started {
        let (key, value) = (key.into_vec(), value.into_vec());
        let update = move |handle: Handle| async move { handle.update(key, value).await };
        self.start(completions, future, update, |py, updated| truth(py, updated == Update::Updated))
    }
    fn remove(&self, completions: &Completions, future: &Bound<'_, PyAny>, key: Bytes) -> Started {
        let key = key.into_vec();
        let remove = move |handle: Handle| async move { handle.remove(key).await };
        self.start(completions, future, remove, |py, removed| truth(py, removed == Remove::Removed))
    }
    fn replace(
        &self,
        completions: &Completions,
        future: &Bound<'_, PyAny>,
        key: Bytes,
        expected: Bytes,
        value: Bytes,
    ) -> Started {
        let (key, expected, value) = (key.into_vec(), expected.into_vec(), value.into_vec());
        let replace = move |handle: Handle| async move { handle.replace(key, expected, value).await };
        self.start(completions, future, replace, |py, replaced| outcome(py, of_replace(replaced)))
    }
    fn remove_if(&self, completions: &Completions, future: &Bound<'_, PyAny>, key: Bytes, expected: Bytes) -> Started {
        let (key, expected) = (key.into_vec(), expected.into_vec());
        let remove = move |handle: Handle| async move { handle.remove_if(key, expected).await };
        self.start(completions, future, remove, |py, removed| outcome(py, of_removal(removed)))
    }
    #[pyo3(signature = (completions, future, start, stop, include_start, include_stop, limit))]
    #[expect(clippy::too_many_arguments, reason = "both ends of a range")]
    fn scan(
        &self,
        completions: &Completions,
        future: &Bound<'_, PyAny>,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        include_start: bool,
        include_stop: bool,
        limit: usize,
    ) -> Started {
        let (from, to) = crate::index::bounds(start, stop, (include_start, include_stop));
        let scan = move |handle: Handle| async move {
            let bounds: (End<Vec<u8>>, End<Vec<u8>>) = (from, to);
            handle.scan(bounds, limit).await
        };
        self.start(completions, future, scan, |py, entries| {
            let pairs = entries.iter().map(|(key, value)| (PyBytes::new(py, key), PyBytes::new(py, value)));
            Ok(PyList::new(py, pairs.collect::<Vec<_>>())?.into_any())
        })
    }
}
