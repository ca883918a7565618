//! Keys and values from Python: `bytes`, or anything with the buffer protocol.

use crate::buffers;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// The bytes of a key or a value. Those of a `bytes` object are borrowed, since nobody changes them; those of any other buffer are
/// copied, since its owner might change them while far memory works.
pub(crate) enum Bytes {
    Borrowed(PyBackedBytes),
    Copied(Vec<u8>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl Bytes {
    pub(crate) fn into_vec(self) -> Vec<u8> {
        match self {
            Bytes::Borrowed(bytes) => bytes.to_vec(),
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Bytes::Borrowed(bytes.to_owned().into()));
        }
        match buffers::copy(&object) {
            Some(bytes) => bytes.map(Bytes::Copied),
            None => {
                let found = object.get_type().name()?;
                Err(PyTypeError::new_err(format!("keys and values are bytes-like objects, not {found}")))
            }
        }
    }
}

/// The bytes of each item of an iterable: the keys of a batch.
pub(crate) fn all(iterable: &Bound<'_, PyAny>) -> PyResult<Vec<Bytes>> {
    if iterable.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err("this method takes several keys, such as a list, not one bytes object"));
    }
    let mut all = Vec::with_capacity(iterable.len().unwrap_or(0));
    for item in iterable.try_iter()? {
        all.push(item?.extract()?);
    }
    Ok(all)
}

/// The pairs of a mapping, or of an iterable of pairs.
pub(crate) fn pairs(items: &Bound<'_, PyAny>) -> PyResult<Vec<(Bytes, Bytes)>> {
    let pairs = if items.hasattr("items")? { items.call_method0("items")? } else { items.clone() };
    pairs.try_iter()?.map(|pair| pair?.extract()).collect()
}

pub(crate) fn slices<T: AsRef<[u8]>>(all: &[T]) -> Vec<&[u8]> {
    all.iter().map(AsRef::as_ref).collect()
}
