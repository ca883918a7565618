//! What ordered indexes have beyond the mapping, and what an index has that is divided among compute nodes.

use super::Index;
use crate::bytes::Bytes;
use crate::entries::{Entries, Pages, What};
use crate::failure::Failure;
use pyo3::prelude::*;
use std::ops::Bound as End;

/// The keys from a first one to a last one.
pub(crate) type Keys = (End<Vec<u8>>, End<Vec<u8>>);

/// The ends of a range.
pub(crate) fn bounds(start: Option<Bytes>, stop: Option<Bytes>, inclusive: (bool, bool)) -> Keys {
    let end = |key: Option<Bytes>, inclusive| match key.map(Bytes::into_vec) {
        None => End::Unbounded,
        Some(key) if inclusive => End::Included(key),
        Some(key) => End::Excluded(key),
    };
    (end(start, inclusive.0), end(stop, inclusive.1))
}

#[pymethods]
impl Index {
    /// Iterates over the entries from `start` to `stop`, in ascending order of their keys, at most `limit` of them. As in
    /// Python's ranges `start` is part of it and `stop` is not, unless `include_start` and `include_stop` say otherwise; ``None``
    /// is no bound. Only an ordered index can do that: others raise `NotOrdered`.
    ///
    /// The iterator reads 256 entries at a time. What changes between two reads may be seen or not.
    ///
    /// >>> import farindex
    /// >>> index = farindex.Pool.in_memory("64MiB").create_index("words", "sherman")
    /// >>> index.update({b"%d" % i: b"" for i in range(10)})
    /// >>> [key for key, value in index.range(b"3", b"6")]
    /// [b'3', b'4', b'5']
    /// >>> [key for key, value in index.range(b"3", include_start=False, limit=2)]
    /// [b'4', b'5']
    #[pyo3(signature = (start=None, stop=None, *, include_start=true, include_stop=false, limit=None))]
    fn range(
        &self,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        include_start: bool,
        include_stop: bool,
        limit: Option<usize>,
    ) -> PyResult<Entries> {
        self.place.shared.check()?;
        if !self.is_ordered() {
            return Err(Failure::from(farindex::IndexError::NotOrdered { kind: self.place.kind }).into());
        }
        let (from, to) = bounds(start, stop, (include_start, include_stop));
        Ok(Entries::pages(&self.place, What::Items, Pages { from: Some(from), to, limit }))
    }

    /// Makes this process the owner of the keys from `start` to before `stop`, also of those that another process owns. Only an
    /// index of kind ``dex`` can do that: others raise `NotPartitioned`.
    #[pyo3(signature = (start=None, stop=None))]
    fn own(&self, py: Python<'_>, start: Option<Bytes>, stop: Option<Bytes>) -> PyResult<()> {
        let bounds = bounds(start, stop, (true, false));
        self.run(py, |index| Ok(index.own(bounds)?))
    }
    /// Gives the keys from `start` to before `stop` back, as far as this process owns them.
    #[pyo3(signature = (start=None, stop=None))]
    fn give_up(&self, py: Python<'_>, start: Option<Bytes>, stop: Option<Bytes>) -> PyResult<()> {
        let bounds = bounds(start, stop, (true, false));
        self.run(py, |index| Ok(index.give_up(bounds)?))
    }
}
