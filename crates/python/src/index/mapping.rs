//! The mapping protocol: `collections.abc.MutableMapping`, of which `Index` is registered as a subclass.

use super::Index;
use crate::bytes::Bytes;
use crate::entries::{Entries, What};
use crate::threads::values_of;
use farindex::{Error, Insert, Remove, RemoveIf};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ops::ControlFlow;

/// Keys that [`Index::clear`] removes together.
const CLEARED: usize = 1024;

#[pymethods]
impl Index {
    fn __getitem__<'py>(&self, py: Python<'py>, key: Bytes) -> PyResult<Bound<'py, PyBytes>> {
        self.find(py, key.as_ref())?.ok_or_else(|| absent(py, &key))
    }
    fn __setitem__(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.run(py, |index| Ok(index.upsert(key, value).map(drop)?))
    }
    fn __delitem__(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        let name = key.as_ref();
        match self.run(py, |index| Ok(index.remove(name)?))? {
            Remove::Removed => Ok(()),
            Remove::Absent => Err(absent(py, &key)),
        }
    }
    fn __contains__(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        let key = key.as_ref();
        self.run(py, |index| Ok(index.contains(key)?))
    }
    /// Counts the entries, by walking the whole index.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.run(py, |index| Ok(index.for_each(|_, _| ControlFlow::Continue(()))?))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }
    /// Is there an entry? Unlike `len`, this reads only up to the first one.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |index| Ok(index.iter().next().transpose()?.is_some()))
    }
    fn __iter__(&self) -> Entries {
        Entries::new(&self.place, What::Keys)
    }
    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if let Ok(other) = other.cast::<Index>()
            && std::sync::Arc::ptr_eq(&self.place, &other.get().place)
        {
            return Ok(true.into_pyobject(py)?.to_owned().into_any().unbind());
        }
        if !other.is_instance(&py.import("collections.abc")?.getattr("Mapping")?)? {
            return Ok(py.NotImplemented());
        }
        let content = PyDict::new(py);
        content.call_method1("update", (Entries::new(&self.place, What::Items),))?;
        let others = PyDict::new(py);
        others.call_method1("update", (other.call_method0("items")?,))?;
        Ok(content.rich_compare(others, pyo3::basic::CompareOp::Eq)?.unbind())
    }

    /// Returns the value of a key, or `default`.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.get(b"far", b"?")
    /// b'?'
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.find(py, key.as_ref())?.map(Bound::into_any).or(default))
    }

    /// Returns the value of a key, after adding it with the value `default` if it is absent. Of all threads and processes that do
    /// this at the same time, one adds the key, and all get its value.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.setdefault(b"far", b"memory"), index.setdefault(b"far", b"away")
    /// (b'memory', b'memory')
    fn setdefault<'py>(&self, py: Python<'py>, key: Bytes, default: Bytes) -> PyResult<Bound<'py, PyBytes>> {
        let (key, default) = (key.as_ref(), default.as_ref());
        // Each round means that another client has removed the key in between.
        loop {
            if let Some(value) = self.find(py, key)? {
                return Ok(value);
            }
            if self.run(py, |index| Ok(index.insert(key, default)?))? == Insert::Inserted {
                return Ok(PyBytes::new(py, default));
            }
        }
    }

    /// Removes a key and returns the value that it had. If it is absent: returns `default` if there is one, or raises `KeyError`.
    /// Of all that pop a value at the same time, one gets it.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> index.pop(b"far"), index.pop(b"far", None)
    /// (b'memory', None)
    /// >>> index.pop(b"far")
    /// Traceback (most recent call last):
    ///     ...
    /// KeyError: b'far'
    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        default: &Bound<'py, pyo3::types::PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if default.len() > 1 {
            return Err(PyTypeError::new_err("pop takes a key, and at most one default"));
        }
        let name = key.as_ref();
        let take = |index: &farindex::Index, found: &mut Vec<_>| {
            while let Some(value) = index.get(name)? {
                match index.remove_if(name, &value)? {
                    RemoveIf::Removed => {
                        found.push(Some(value));
                        break;
                    }
                    // Changed or removed in between.
                    RemoveIf::Differs | RemoveIf::Absent => {}
                }
            }
            Ok(())
        };
        let taken = values_of(py, &self.place, take, |found| {
            Ok(found.next().flatten().map(|value| PyBytes::new(py, &value).into_any()))
        })?;
        match taken {
            Some(value) => Ok(value),
            None => default.get_item(0).map_err(|_| absent(py, &key)),
        }
    }

    /// Removes some entry and returns its key and value: of an ordered index the first. Raises `KeyError` if the index is empty.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> index.popitem()
    /// (b'far', b'memory')
    fn popitem<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let take = |index: &farindex::Index, found: &mut Vec<_>| {
            while let Some(entry) = index.iter().next() {
                let entry = entry?;
                if index.remove_if(&entry.key, &entry.value)? == RemoveIf::Removed {
                    found.extend([Some(entry.key), Some(entry.value)]);
                    break;
                }
            }
            Ok(())
        };
        let item = values_of(py, &self.place, take, |found| {
            let (key, value) = (found.next().flatten(), found.next().flatten());
            Ok(key.zip(value).map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value))))
        })?;
        item.ok_or_else(|| PyKeyError::new_err("popitem(): the index is empty"))
    }

    /// Removes the entries that are there when it comes to them. What others add meanwhile may stay.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |index| {
            let mut entries = index.iter();
            loop {
                let keys: Result<Vec<_>, Error> =
                    entries.by_ref().take(CLEARED).map(|entry| Ok(entry?.key.to_vec())).collect();
                let keys = keys?;
                if keys.is_empty() {
                    return Ok(());
                }
                super::batches::remove_all(index, &crate::bytes::slices(&keys))?;
            }
        })
    }

    /// Sets the value of each key of a mapping, or of an iterable of pairs: see `set_many`.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.update({b"far": b"memory"})
    #[pyo3(signature = (other, /))]
    fn update(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_many(py, other)
    }

    /// Returns a view of the keys. Iterating over it reads the index in batches.
    fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        view(slf, "KeysView")
    }
    /// Returns a view of the values. Iterating over it reads the index in batches.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        view(slf, "ValuesView")
    }
    /// Returns a view of the pairs of key and value. Iterating over it reads the index in batches. Entries that nobody changes
    /// meanwhile come exactly once; changes may be seen or not.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words", "sherman")
    /// >>> index.update({b"b": b"2", b"a": b"1"})
    /// >>> list(index.items())
    /// [(b'a', b'1'), (b'b', b'2')]
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        view(slf, "ItemsView")
    }
    #[pyo3(name = "_iter_values")]
    fn iter_values(&self) -> Entries {
        Entries::new(&self.place, What::Values)
    }
    #[pyo3(name = "_iter_items")]
    fn iter_items(&self) -> Entries {
        Entries::new(&self.place, What::Items)
    }
}

/// A view of `farindex._views`, which iterates over entries rather than look each key up once more.
fn view<'py>(index: &Bound<'py, Index>, class: &str) -> PyResult<Bound<'py, PyAny>> {
    index.py().import("farindex._views")?.getattr(class)?.call1((index,))
}

fn absent(py: Python<'_>, key: &Bytes) -> PyErr {
    PyKeyError::new_err(PyBytes::new(py, key.as_ref()).unbind())
}
