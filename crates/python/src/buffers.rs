//! The buffer protocol: arrays of records of one size, which numpy and torch have, as targets and sources of batches.
//!
//! Invariant: a [`Records`] holds an export of the buffer, so that its owner can neither free nor resize the memory while the
//! `Records` lives (PEP 3118); every access is within it.
//!
//! The thread is detached from the interpreter while bytes are copied. If the program changes the buffer from another thread
//! at the same time, the bytes that arrive are a mixture: as with `file.readinto` and `hashlib`, which do the same.

#![allow(unsafe_code)]

use crate::failure::Failure;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// The records of a buffer: `count` of `size` bytes each, one behind the other.
pub(crate) struct Records {
    buffer: PyUntypedBuffer,
    count: usize,
    size: usize,
}

impl Records {
    /// Takes a buffer as `count` records: of `size` bytes, or of an equal share of the buffer.
    pub(crate) fn new(object: &Bound<'_, PyAny>, count: usize, size: Option<usize>, write: bool) -> PyResult<Self> {
        let buffer = export(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer is not C-contiguous: make it so by numpy.ascontiguousarray",
            ));
        }
        if write && buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only: give one that can be written"));
        }
        let len = buffer.len_bytes();
        let size = match size {
            Some(0) => return Err(PyValueError::new_err("record_size is at least 1 byte")),
            Some(size) => size,
            None if count == 0 => 0,
            None if len.is_multiple_of(count) => len / count,
            None => {
                let what = format!("a buffer of {len} bytes is not {count} records of one size: give record_size");
                return Err(PyValueError::new_err(what));
            }
        };
        if size.checked_mul(count).is_none_or(|needed| needed > len) {
            let what = format!("a buffer of {len} bytes is too short for {count} records of {size} bytes");
            return Err(PyValueError::new_err(what));
        }
        Ok(Records { buffer, count, size })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Copies a value to the start of record `at`.
    pub(crate) fn write(&self, at: usize, value: &[u8]) -> Result<(), Failure> {
        let len = value.len();
        if at >= self.count || len > self.size {
            let what = format!("the value of key {at} has {len} bytes, and a record of the buffer has {}", self.size);
            return Err(Failure::Own("ValueTooLong", what));
        }
        // SAFETY: `new` has checked that the buffer is contiguous, writable and at least `count * size` bytes long; `at < count`
        // and the value is at most `size` long, so the target lies inside. The export keeps the memory alive and in place. The
        // value lies in a buffer of the fabric, which is no Python object, so the two do not overlap.
        unsafe {
            let target = self.buffer.buf_ptr().cast::<u8>().add(at * self.size);
            std::ptr::copy_nonoverlapping(value.as_ptr(), target, value.len());
        }
        Ok(())
    }

    /// The first `len` bytes of record `at`.
    pub(crate) fn read(&self, at: usize, len: usize) -> Option<&[u8]> {
        if at >= self.count || len > self.size {
            return None;
        }
        if len == 0 {
            return Some(&[]);
        }
        // SAFETY: `new` has checked that the buffer is contiguous and at least `count * size` bytes long; `at < count` and
        // `len <= size`, so the slice lies inside, and `len > 0` means that the pointer is not null. The export, which `self`
        // holds, keeps the memory alive and in place for the lifetime of the slice. That nobody writes it meanwhile is what
        // the method's documentation asks of the program; the bytes are only copied to far memory, and nothing depends on
        // their not changing.
        Some(unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>().add(at * self.size), len) })
    }
}

/// Takes an export of a buffer, through a memoryview: that adds the strides which some objects leave out (those of ctypes).
fn export(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any())
}

/// Copies the bytes of an object with the buffer protocol; `None` if it has none.
pub(crate) fn copy(object: &Bound<'_, PyAny>) -> Option<PyResult<Vec<u8>>> {
    let buffer = export(object).ok()?;
    if !buffer.is_c_contiguous() {
        return Some(Err(PyBufferError::new_err("a key or value in a buffer must be C-contiguous")));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Some(Ok(Vec::new()));
    }
    let mut bytes = vec![0; len];
    // SAFETY: the buffer is contiguous and has `len` bytes, which its export keeps alive and in place; the vector has `len`
    // bytes and is new, so the two do not overlap. The thread is attached to the interpreter all the while.
    unsafe { std::ptr::copy_nonoverlapping(buffer.buf_ptr().cast::<u8>(), bytes.as_mut_ptr(), len) };
    Some(Ok(bytes))
}
