//! Pointers from C, as what they stand for. Null where something must be is an error; what C alone can know is in the contract of each
//! function, which the header states.

use crate::status::Failure;
use std::ffi::{CStr, c_char};

/// Bytes: `len` of them from `data` on. `data` may be null if `len` is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct farindex_bytes {
    /// The first byte.
    pub data: *const u8,
    /// How many.
    pub len: usize,
}

/// # Safety
///
/// Unless null, `data` points to `len` bytes that nobody changes during `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise; a byte has no alignment.
    unsafe { array(data, len) }
}

/// # Safety
///
/// Unless null, `data` points to `len` values, aligned, that nobody changes during `'a`.
pub(crate) unsafe fn array<'a, T>(data: *const T, len: usize) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    check_len::<T>(data.is_null(), len)?;
    // SAFETY: not null, not longer than an object can be, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// # Safety
///
/// Unless null, `data` points to `len` values, aligned and initialised, that nobody else uses during `'a`.
pub(crate) unsafe fn array_mut<'a, T>(data: *mut T, len: usize) -> Result<&'a mut [T], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_len::<T>(data.is_null(), len)?;
    // SAFETY: not null, not longer than an object can be, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
}

fn check_len<T>(is_null: bool, len: usize) -> Result<(), Failure> {
    if is_null {
        return Err(Failure::argument(format!("a null pointer where {len} values must be")));
    }
    if len.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Failure::argument(format!("{len} values are longer than memory can be")));
    }
    Ok(())
}

/// # Safety
///
/// Unless null, `text` points to a string with a zero byte at its end that nobody changes during `'a`.
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(what, text)? }.ok_or_else(|| Failure::argument(format!("{what} is null")))
}

/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn optional_text<'a>(what: &str, text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller promises the zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// # Safety
///
/// Unless null, `handle` is one that a function of this library has given out, and that was not closed yet, nor will be during `'a`.
pub(crate) unsafe fn handle<'a, T>(what: &str, handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise. Handles are given out as boxes, so they are aligned, and never as mutable references.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::argument(format!("{what} is null")))
}

/// Writes a result.
///
/// # Safety
///
/// Unless null, `out` points to memory for a `T`, aligned.
pub(crate) unsafe fn set<T>(what: &str, out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::argument(format!("{what} is null")));
    }
    // SAFETY: not null, and the caller promises the rest. What was there is overwritten and not dropped: results are plain data.
    unsafe { out.write(value) };
    Ok(())
}

/// Gives a handle out.
///
/// # Safety
///
/// As for [`set`].
pub(crate) unsafe fn give<T>(out: *mut *mut T, open: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
    // First, so that there is none if it cannot be opened, and so that nothing is opened that cannot be given out.
    // SAFETY: the caller's promise.
    unsafe { set("out", out, std::ptr::null_mut())? };
    let handle = Box::into_raw(Box::new(open()?));
    // SAFETY: the same.
    unsafe { set("out", out, handle) }
}

/// Takes a handle back; null is none.
///
/// # Safety
///
/// Unless null, `handle` came from [`give`] and was not taken back yet, and nobody uses it any more.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: `give` has made it of a box, and the caller promises that this is the only time.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}
