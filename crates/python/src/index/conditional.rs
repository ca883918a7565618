//! Operations that say what they did, and those that expect a state.

use super::Index;
use crate::bytes::Bytes;
use farindex::{Insert, Remove, RemoveIf, Replace, Update};
use pyo3::prelude::*;

#[pymethods]
impl Index {
    /// Adds a key that is absent. Returns whether it was: of all that insert a key at the same time, one gets ``True``.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.insert(b"far", b"memory"), index.insert(b"far", b"away")
    /// (True, False)
    fn insert(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.run(py, |index| Ok(index.insert(key, value)? == Insert::Inserted))
    }

    /// Changes the value of a key that is present. Returns whether it was.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.update_if_present(b"far", b"memory")
    /// False
    fn update_if_present(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.run(py, |index| Ok(index.update(key, value)? == Update::Updated))
    }

    /// Removes a key. Returns whether it was present; ``del index[key]`` raises `KeyError` instead.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.remove(b"far")
    /// False
    fn remove(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        let key = key.as_ref();
        self.run(py, |index| Ok(index.remove(key)? == Remove::Removed))
    }

    /// Changes the value of a key from exactly `expected` to `value`: a compare-and-swap, with which threads and processes that
    /// read, compute and write lose no update of each other. The outcome is true if the value was replaced.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("counters")
    /// >>> index[b"visits"] = b"41"
    /// >>> while True:
    /// ...     seen = index[b"visits"]
    /// ...     if index.replace(b"visits", seen, b"%d" % (int(seen) + 1)):
    /// ...         break
    /// >>> index[b"visits"]
    /// b'42'
    /// >>> index.replace(b"visits", b"41", b"0")
    /// <Outcome.DIFFERS: 'differs'>
    ///
    /// If it raises an error of the fabric, the value may have been replaced or not.
    fn replace<'py>(&self, py: Python<'py>, key: Bytes, expected: Bytes, value: Bytes) -> PyResult<Bound<'py, PyAny>> {
        let (key, expected, value) = (key.as_ref(), expected.as_ref(), value.as_ref());
        let replaced = self.run(py, |index| Ok(index.replace(key, expected, value)?))?;
        outcome(py, of_replace(replaced))
    }

    /// Removes a key if it has exactly the value `expected`: what another client has written since stays. The outcome is true if
    /// the key was removed.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> bool(index.remove_if(b"far", b"away")), bool(index.remove_if(b"far", b"memory"))
    /// (False, True)
    fn remove_if<'py>(&self, py: Python<'py>, key: Bytes, expected: Bytes) -> PyResult<Bound<'py, PyAny>> {
        let (key, expected) = (key.as_ref(), expected.as_ref());
        let removed = self.run(py, |index| Ok(index.remove_if(key, expected)?))?;
        outcome(py, of_removal(removed))
    }
}

/// The name of an outcome in `farindex.Outcome`.
pub(crate) fn of_replace(outcome: Replace) -> &'static str {
    match outcome {
        Replace::Replaced => "DONE",
        Replace::Differs => "DIFFERS",
        Replace::Absent => "ABSENT",
    }
}

pub(crate) fn of_removal(outcome: RemoveIf) -> &'static str {
    match outcome {
        RemoveIf::Removed => "DONE",
        RemoveIf::Differs => "DIFFERS",
        RemoveIf::Absent => "ABSENT",
    }
}

/// A member of `farindex.Outcome`.
pub(crate) fn outcome<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("farindex._outcome")?.getattr("Outcome")?.getattr(name)
}
