//! Iterators over entries. They read some hundred entries at a time, so that a crossing pays for many.
//!
//! An ordered index is read by scans, each of which begins behind the last key: such an iterator may move between threads. An
//! unordered index is walked, and a walk belongs to the session in which it began: its thread alone may continue it.

use crate::threads::{Place, end_walk, unique, values_of, walk_on};
use farindex::Value;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::ops::Bound as End;
use std::sync::{Arc, Mutex, PoisonError};

/// Entries of one crossing.
const PAGE: usize = 256;

/// What an iterator yields of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Keys,
    Values,
    Items,
}

/// A series of scans.
pub(crate) struct Pages {
    /// Where the next scan begins; `None` if there is none.
    pub(crate) from: Option<End<Vec<u8>>>,
    pub(crate) to: End<Vec<u8>>,
    /// Entries that are still wanted.
    pub(crate) limit: Option<usize>,
}

/// Where the next entries come from.
enum Source {
    Pages(Pages),
    Walk {
        id: u64,
        token: Arc<()>,
        begun: bool,
    },
    Ended,
    /// Another thread is reading.
    InUse,
}

struct State {
    source: Source,
    ready: VecDeque<Py<PyAny>>,
}

/// Iterator over the entries of an index.
#[pyclass(frozen, module = "farindex._native")]
pub(crate) struct Entries {
    place: Arc<Place>,
    what: What,
    state: Mutex<State>,
}

impl Entries {
    /// All entries: in order, if the index has one.
    pub(crate) fn new(place: &Arc<Place>, what: What) -> Self {
        if farindex::KINDS.iter().any(|kind| kind.name == place.kind && kind.ordered) {
            Self::pages(place, what, Pages { from: Some(End::Unbounded), to: End::Unbounded, limit: None })
        } else {
            Self::from_source(place, what, Source::Walk { id: unique(), token: Arc::new(()), begun: false })
        }
    }
    pub(crate) fn pages(place: &Arc<Place>, what: What, pages: Pages) -> Self {
        Self::from_source(place, what, Source::Pages(pages))
    }
    fn from_source(place: &Arc<Place>, what: What, source: Source) -> Self {
        let state = Mutex::new(State { source, ready: VecDeque::new() });
        Entries { place: Arc::clone(place), what, state }
    }

    /// Reads the next entries.
    fn read(&self, py: Python<'_>, source: &mut Source) -> PyResult<VecDeque<Py<PyAny>>> {
        let place = &*self.place;
        match source {
            Source::Ended | Source::InUse => Ok(VecDeque::new()),
            Source::Walk { id, token, begun } => {
                let read = values_of(
                    py,
                    place,
                    |_, found| walk_on(place, token, *id, *begun, PAGE, found),
                    |found| self.objects(py, found),
                )?;
                *begun = true;
                if read.len() < PAGE {
                    *source = Source::Ended;
                }
                Ok(read)
            }
            Source::Pages(pages) => {
                let wanted = pages.limit.map_or(PAGE, |limit| limit.min(PAGE));
                let (Some(from), true) = (pages.from.take(), wanted > 0) else {
                    return Ok(VecDeque::new());
                };
                let (to, mut last) = (pages.to.clone(), None);
                let read = values_of(
                    py,
                    place,
                    |index, found| {
                        let entries = index.scan((from, to), wanted)?;
                        if entries.len() == wanted {
                            last = entries.last().map(|entry| entry.key.to_vec());
                        }
                        found.extend(entries.into_iter().flat_map(|entry| [Some(entry.key), Some(entry.value)]));
                        Ok(())
                    },
                    |found| self.objects(py, found),
                )?;
                pages.from = last.map(End::Excluded);
                pages.limit = pages.limit.map(|limit| limit.saturating_sub(read.len()));
                Ok(read)
            }
        }
    }

    fn objects(&self, py: Python<'_>, found: &mut dyn Iterator<Item = Option<Value>>) -> PyResult<VecDeque<Py<PyAny>>> {
        let mut objects = VecDeque::new();
        while let (Some(Some(key)), Some(Some(value))) = (found.next(), found.next()) {
            objects.push_back(match self.what {
                What::Keys => PyBytes::new(py, &key).into_any().unbind(),
                What::Values => PyBytes::new(py, &value).into_any().unbind(),
                What::Items => {
                    (PyBytes::new(py, &key), PyBytes::new(py, &value)).into_pyobject(py)?.into_any().unbind()
                }
            });
        }
        Ok(objects)
    }
}

#[pymethods]
impl Entries {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        // Taken out while far memory is read, because a lock must not be held while the thread is detached.
        let mut source = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(next) = state.ready.pop_front() {
                return Ok(Some(next));
            }
            std::mem::replace(&mut state.source, Source::InUse)
        };
        if matches!(source, Source::InUse) {
            return Err(PyValueError::new_err("another thread is in the middle of next() of this iterator"));
        }
        let read = self.read(py, &mut source);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(mut read) => {
                let next = read.pop_front();
                state.source = if next.is_none() { Source::Ended } else { source };
                state.ready.append(&mut read);
                Ok(next)
            }
            Err(error) => {
                state.source = Source::Ended;
                Err(error)
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Source::Walk { id, begun: true, .. } = state.source {
            end_walk(&self.place.shared, id);
        }
    }
}
