//! Operations on many keys at once: one crossing from Python, and lookups that share batches of verbs.

use super::Index;
use crate::buffers::Records;
use crate::bytes::{all, pairs, slices};
use crate::failure::Failure;
use crate::threads::values_of;
use farindex::{PointIndex, Remove, Value};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Look-ups that share a batch of verbs, as many as in the library.
const SHARED: usize = 128;

/// Bytes of values, and one batch more, whose buffers are held until the interpreter has copies of them.
const HELD: usize = 256 << 10;

#[pymethods]
impl Index {
    /// Returns the values of many keys, in their order; ``None`` for keys that are absent. The lookups share batches, and each
    /// has its own moment.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> index.get_many([b"far", b"near"])
    /// [b'memory', None]
    fn get_many<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let keys = all(keys)?;
        let keys = slices(&keys);
        let mut values: Vec<Option<Bound<'py, PyBytes>>> = Vec::with_capacity(keys.len());
        // One crossing, unless the values are so long that many of their buffers should not be held at once.
        while values.len() < keys.len() {
            let keys = keys.get(values.len()..).unwrap_or_default();
            let find = |index: &farindex::Index, found: &mut Vec<Option<Value>>| {
                let mut bytes = 0;
                look_up(index, keys, |at, value| {
                    bytes += value.as_ref().map_or(0, |value| value.len());
                    found.push(value);
                    // Not in the middle of a batch: the rest of it has been read already.
                    Ok(if bytes < HELD || (at + 1) % SHARED != 0 { Next::Key } else { Next::Nothing })
                })
            };
            values_of(py, &self.place, find, |found| {
                values.extend(found.map(|value| value.map(|value| PyBytes::new(py, &value))));
                Ok(())
            })?;
        }
        PyList::new(py, values)
    }

    /// Sets the value of each key of a mapping, or of an iterable of pairs; the last pair of a key counts. After an exception some
    /// of them may be set.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.set_many([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    /// >>> index[b"a"]
    /// b'3'
    pub(super) fn set_many(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<()> {
        let pairs = pairs(items)?;
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        self.run(py, |index| put_all(index, &pairs))
    }

    /// Removes many keys. Returns how many of them were present.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> index.delete_many([b"far", b"near"])
    /// 1
    fn delete_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = all(keys)?;
        let keys = slices(&keys);
        self.run(py, |index| remove_all(index, &keys))
    }

    /// Returns for each key whether it is present.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index[b"far"] = b"memory"
    /// >>> index.contains_many([b"far", b"near"])
    /// [True, False]
    fn contains_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let keys = all(keys)?;
        let keys = slices(&keys);
        self.run(py, |index| Ok(index.contains_many(&keys)?))
    }

    /// Returns how many of the first keys are present: the length of the longest prefix of `keys` that is in the index. The keys
    /// are looked up together, in one crossing.
    ///
    /// This is the question of a prefix cache, whose keys are chained hashes: a prompt's longest cached prefix.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("blocks")
    /// >>> index.set_many({b"block-0": b"@17", b"block-1": b"@4"})
    /// >>> index.exists_prefix([b"block-0", b"block-1", b"block-2"])
    /// 2
    fn exists_prefix(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = all(keys)?;
        let keys = slices(&keys);
        self.run(py, |index| {
            let mut length = 0;
            look_up(index, &keys, |_, value| {
                length += usize::from(value.is_some());
                Ok(if value.is_some() { Next::Key } else { Next::Nothing })
            })?;
            Ok(length)
        })
    }

    /// Reads the values of many keys into a buffer that the caller has: numpy's and torch's arrays, a bytearray, shared memory.
    /// The value of key *i* goes to the start of record *i*, straight from the buffer that far memory was read into.
    ///
    /// A record has `record_size` bytes; unless given, the buffer is divided by the number of keys. Returns the length of each
    /// value, and -1 for a key that is absent. Bytes of a record behind the value, and records of absent keys, are unchanged.
    ///
    /// Raises `BufferError` if the buffer is read-only or not contiguous, `ValueError` if it is too short, and `ValueTooLong` if a
    /// value is longer than a record; values of keys before it may be in the buffer then. No other thread may use the buffer
    /// meanwhile.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.set_many({b"a": b"1111", b"b": b"22"})
    /// >>> buffer = bytearray(12)
    /// >>> index.get_many_into([b"a", b"x", b"b"], buffer, record_size=4)
    /// [4, -1, 2]
    /// >>> bytes(buffer)
    /// b'1111\x00\x00\x00\x0022\x00\x00'
    #[pyo3(signature = (keys, buffer, record_size=None))]
    fn get_many_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        record_size: Option<usize>,
    ) -> PyResult<Vec<i64>> {
        let keys = all(keys)?;
        let keys = slices(&keys);
        let records = Records::new(buffer, keys.len(), record_size, true)?;
        let records = &records;
        self.run(py, |index| {
            let mut lengths = Vec::with_capacity(keys.len());
            look_up(index, &keys, |at, value| {
                match value {
                    None => lengths.push(-1),
                    Some(value) => {
                        records.write(at, &value)?;
                        lengths.push(i64::try_from(value.len()).unwrap_or(i64::MAX));
                    }
                }
                Ok(Next::Key)
            })?;
            Ok(lengths)
        })
    }

    /// Sets the values of many keys from a buffer: key *i* gets record *i*, or its first ``lengths[i]`` bytes. The counterpart of
    /// `get_many_into`, with the same rules; the last record of a key counts. Nothing may change the buffer meanwhile.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words")
    /// >>> index.put_many_from([b"a", b"b"], b"111122--", lengths=[4, 2])
    /// >>> index[b"a"], index[b"b"]
    /// (b'1111', b'22')
    #[pyo3(signature = (keys, buffer, record_size=None, *, lengths=None))]
    fn put_many_from(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        record_size: Option<usize>,
        lengths: Option<Vec<usize>>,
    ) -> PyResult<()> {
        let keys = all(keys)?;
        let keys = slices(&keys);
        let records = Records::new(buffer, keys.len(), record_size, false)?;
        if let Some(lengths) = &lengths
            && lengths.len() != keys.len()
        {
            let what = format!("there are {} keys and {} lengths", keys.len(), lengths.len());
            return Err(PyValueError::new_err(what));
        }
        let (records, size) = (&records, records.size());
        let mut pairs = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            let len = lengths.as_ref().and_then(|lengths| lengths.get(at).copied()).unwrap_or(size);
            let Some(value) = records.read(at, len) else {
                return Err(PyValueError::new_err(format!("lengths[{at}] is {len}, and a record has {size} bytes")));
            };
            pairs.push((*key, value));
        }
        self.run(py, |index| put_all(index, &pairs))
    }
}

/// What a batch of look-ups does after a value.
enum Next {
    Key,
    /// The values of later keys do not matter.
    Nothing,
}

/// Looks keys up together, and calls `each` with the number and the value of each key, in their order, until it fails or needs no
/// more.
fn look_up(
    index: &farindex::Index,
    keys: &[&[u8]],
    mut each: impl FnMut(usize, Option<Value>) -> Result<Next, Failure>,
) -> Result<(), Failure> {
    let ended = index.get_each(keys, |at, value| match each(at, value) {
        Ok(Next::Key) => ControlFlow::Continue(()),
        Ok(Next::Nothing) => ControlFlow::Break(Ok(())),
        Err(failure) => ControlFlow::Break(Err(failure)),
    })?;
    ended.unwrap_or(Ok(()))
}

/// Sets many values. Of several pairs with one key the last counts, as in a dict.
pub(super) fn put_all(index: &farindex::Index, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure> {
    // Writes in flight together have no order, so there is one for each key.
    let last: HashMap<&[u8], usize> = pairs.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
    let counts = |at: usize, key: &[u8]| last.get(key) == Some(&at);
    let writer = index.async_handle();
    let pairs = pairs.iter().enumerate().filter(|(at, (key, _))| counts(*at, key));
    Ok(index.session().run_all(pairs.map(|(_, (key, value))| writer.upsert(key, value)), |_| ())?)
}

/// Removes many keys; returns how many were present.
pub(super) fn remove_all(index: &farindex::Index, keys: &[&[u8]]) -> Result<usize, Failure> {
    let remover = index.async_handle();
    let mut removed = 0;
    index.session().run_all(keys.iter().map(|key| remover.remove(key)), |outcome| {
        removed += usize::from(outcome == Remove::Removed);
    })?;
    Ok(removed)
}
