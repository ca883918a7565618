//! Operations on one key.

use crate::raw;
use crate::session::Owned;
use crate::status::{Failure, Status, farindex_status, guard};
use farindex::{Index, Insert, Remove, RemoveIf, Replace, Update};

/// An open index. It belongs to the thread of its session, and keeps that session open until it is closed itself.
///
/// Keys and values are bytes of any content: a pointer and a length. Every operation on one key takes effect at one moment, for all
/// threads and processes.
pub struct farindex_index {
    pub(crate) index: Owned<Index>,
}

impl farindex_index {
    /// # Safety
    ///
    /// As for [`raw::handle`].
    pub(crate) unsafe fn of<'a>(index: *const farindex_index) -> Result<&'a Index, Failure> {
        // SAFETY: the caller's promise.
        unsafe { raw::handle("index", index)? }.index.get()
    }
}

/// Closes an index; null is none. The index stays in the pool.
///
/// # Safety
///
/// `index` was not closed yet. Unless the status is FARINDEX_ERROR_WRONG_THREAD or FARINDEX_ERROR_FORKED, it must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_index_close(index: *mut farindex_index) -> farindex_status {
    guard(|| {
        if !index.is_null() {
            // SAFETY: what the header asks of the caller. The thread is compared before the index is taken back.
            unsafe {
                farindex_index::of(index)?;
                drop(raw::take(index));
            }
        }
        Ok(Status::FARINDEX_OK)
    })
}

/// Copies the value of a key to `buffer`, and its length to `len`. FARINDEX_ABSENT if there is no such key, and `len` is 0. If the value is
/// longer than `capacity`: FARINDEX_BUFFER_TOO_SMALL, `len` is its length, and the buffer is unchanged.
///
/// # Safety
///
/// `index` is open; `key` points to `key_len` bytes, `buffer` to `capacity` bytes that nobody else uses, `len` to a number. Of these the
/// pointers to no bytes may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_get(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller. Bytes of the buffer are only written, never read.
        unsafe {
            let (index, key) = (farindex_index::of(index)?, raw::bytes(key, key_len)?);
            raw::set("len", len, 0)?;
            let buffer = raw::array_mut(buffer.cast::<std::mem::MaybeUninit<u8>>(), capacity)?;
            let Some(value) = index.get(key)? else { return Ok(Status::FARINDEX_ABSENT) };
            raw::set("len", len, value.len())?;
            let Some(target) = buffer.get_mut(..value.len()) else { return Ok(Status::FARINDEX_BUFFER_TOO_SMALL) };
            target.write_copy_of_slice(&value);
        }
        Ok(Status::FARINDEX_OK)
    })
}

/// Is the key present? FARINDEX_OK or FARINDEX_ABSENT.
///
/// # Safety
///
/// `index` is open; `key` points to `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_contains(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let present = unsafe { farindex_index::of(index)?.contains(raw::bytes(key, key_len)?)? };
        Ok(if present { Status::FARINDEX_OK } else { Status::FARINDEX_ABSENT })
    })
}

/// Sets the value of a key, present or not.
///
/// # Safety
///
/// `index` is open; `key` points to `key_len` bytes and `value` to `value_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_put(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        unsafe { farindex_index::of(index)?.upsert(raw::bytes(key, key_len)?, raw::bytes(value, value_len)?)? };
        Ok(Status::FARINDEX_OK)
    })
}

/// Adds a key that is absent: FARINDEX_OK, or FARINDEX_EXISTS. Of all that insert a key at the same time, one gets FARINDEX_OK.
///
/// # Safety
///
/// `index` is open; `key` points to `key_len` bytes and `value` to `value_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_insert(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let outcome =
            unsafe { farindex_index::of(index)?.insert(raw::bytes(key, key_len)?, raw::bytes(value, value_len)?)? };
        Ok(match outcome {
            Insert::Inserted => Status::FARINDEX_OK,
            Insert::Exists => Status::FARINDEX_EXISTS,
        })
    })
}

/// Changes the value of a key that is present: FARINDEX_OK, or FARINDEX_ABSENT.
///
/// # Safety
///
/// `index` is open; `key` points to `key_len` bytes and `value` to `value_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_update(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let outcome =
            unsafe { farindex_index::of(index)?.update(raw::bytes(key, key_len)?, raw::bytes(value, value_len)?)? };
        Ok(match outcome {
            Update::Updated => Status::FARINDEX_OK,
            Update::Absent => Status::FARINDEX_ABSENT,
        })
    })
}

/// Removes a key: FARINDEX_OK, or FARINDEX_ABSENT.
///
/// # Safety
///
/// `index` is open; `key` points to `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_remove(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let outcome = unsafe { farindex_index::of(index)?.remove(raw::bytes(key, key_len)?)? };
        Ok(match outcome {
            Remove::Removed => Status::FARINDEX_OK,
            Remove::Absent => Status::FARINDEX_ABSENT,
        })
    })
}

/// Changes the value of a key from exactly `expected` to `value`: a compare-and-swap, with which clients that read, compute and write
/// lose no update of each other. FARINDEX_OK, FARINDEX_DIFFERS or FARINDEX_ABSENT.
///
/// # Safety
///
/// `index` is open; each pointer points to as many bytes as the length behind it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_replace(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
    expected: *const u8,
    expected_len: usize,
    value: *const u8,
    value_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let outcome = unsafe {
            let expected = raw::bytes(expected, expected_len)?;
            farindex_index::of(index)?.replace(raw::bytes(key, key_len)?, expected, raw::bytes(value, value_len)?)?
        };
        Ok(match outcome {
            Replace::Replaced => Status::FARINDEX_OK,
            Replace::Differs => Status::FARINDEX_DIFFERS,
            Replace::Absent => Status::FARINDEX_ABSENT,
        })
    })
}

/// Removes a key if it has exactly the value `expected`: FARINDEX_OK, FARINDEX_DIFFERS or FARINDEX_ABSENT.
///
/// # Safety
///
/// `index` is open; each pointer points to as many bytes as the length behind it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_remove_if(
    index: *const farindex_index,
    key: *const u8,
    key_len: usize,
    expected: *const u8,
    expected_len: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let outcome = unsafe {
            farindex_index::of(index)?.remove_if(raw::bytes(key, key_len)?, raw::bytes(expected, expected_len)?)?
        };
        Ok(match outcome {
            RemoveIf::Removed => Status::FARINDEX_OK,
            RemoveIf::Differs => Status::FARINDEX_DIFFERS,
            RemoveIf::Absent => Status::FARINDEX_ABSENT,
        })
    })
}
