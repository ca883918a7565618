//! Operations on many keys: look-ups share batches of verbs, and writes are in flight together.

use crate::index::farindex_index;
use crate::raw::{self, farindex_bytes};
use crate::status::{Failure, Status, farindex_status, guard};
use farindex::{PointIndex, Remove};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// # Safety
///
/// Unless null, `keys` points to `count` values, each of which is null or points to as many bytes as it says, for `'a`.
unsafe fn all<'a>(keys: *const farindex_bytes, count: usize) -> Result<Vec<&'a [u8]>, Failure> {
    // SAFETY: the caller's promise.
    unsafe { raw::array(keys, count)?.iter().map(|key| raw::bytes(key.data, key.len)).collect() }
}

/// Copies the values of many keys to an array of records of `record_size` bytes: the value of key i to the start of record i, straight
/// from the buffer that far memory was read into. Number i of `lengths` is the length of that value, or -1 if there is no such key. Records of
/// absent keys, and bytes behind a value, are unchanged. If a value is longer than a record: FARINDEX_BUFFER_TOO_SMALL, the lengths
/// say which, and its record is unchanged; the other values are there.
///
/// # Safety
///
/// `index` is open; `keys` points to `count` keys, `records` to count * record_size bytes and `lengths` to `count` numbers, both of
/// which nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_get_many(
    index: *const farindex_index,
    keys: *const farindex_bytes,
    count: usize,
    records: *mut u8,
    record_size: usize,
    lengths: *mut i64,
) -> farindex_status {
    guard(|| {
        let bytes = count.checked_mul(record_size).ok_or_else(|| Failure::argument("count * record_size overflows"))?;
        // SAFETY: what the header asks of the caller. Both arrays are only written, never read.
        let (index, keys, records, lengths) = unsafe {
            (
                farindex_index::of(index)?,
                all(keys, count)?,
                raw::array_mut(records.cast::<MaybeUninit<u8>>(), bytes)?,
                raw::array_mut(lengths.cast::<MaybeUninit<i64>>(), count)?,
            )
        };
        let mut too_small = false;
        index.get_each(&keys, |at, value| {
            let length = value.as_ref().map_or(-1, |value| i64::try_from(value.len()).unwrap_or(i64::MAX));
            if let Some(place) = lengths.get_mut(at) {
                place.write(length);
            }
            if let Some(value) = value {
                let start = at.saturating_mul(record_size);
                let record = records.get_mut(start..start.saturating_add(value.len()));
                match record.filter(|_| value.len() <= record_size) {
                    Some(record) => _ = record.write_copy_of_slice(&value),
                    None => too_small = true,
                }
            }
            ControlFlow::<()>::Continue(())
        })?;
        Ok(if too_small { Status::FARINDEX_BUFFER_TOO_SMALL } else { Status::FARINDEX_OK })
    })
}

/// Sets the values of many keys: key i to value i. Of several pairs with one key the last counts. After an error some of them may be
/// set.
///
/// # Safety
///
/// `index` is open; `keys` and `values` point to `count` keys and values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_put_many(
    index: *const farindex_index,
    keys: *const farindex_bytes,
    values: *const farindex_bytes,
    count: usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let (index, keys, values) = unsafe { (farindex_index::of(index)?, all(keys, count)?, all(values, count)?) };
        // Writes in flight together have no order, so there is one for each key.
        let pairs: HashMap<&[u8], &[u8]> = keys.into_iter().zip(values).collect();
        let writer = index.async_handle();
        index.session().run_all(pairs.into_iter().map(|(key, value)| writer.upsert(key, value)), |_| ())?;
        Ok(Status::FARINDEX_OK)
    })
}

/// Removes many keys, and counts in `removed` how many of them were present; `removed` may be null.
///
/// # Safety
///
/// `index` is open; `keys` points to `count` keys; `removed` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_remove_many(
    index: *const farindex_index,
    keys: *const farindex_bytes,
    count: usize,
    removed: *mut usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let (index, keys) = unsafe { (farindex_index::of(index)?, all(keys, count)?) };
        let (remover, mut present) = (index.async_handle(), 0);
        let done = index.session().run_all(keys.into_iter().map(|key| remover.remove(key)), |outcome| {
            present += usize::from(outcome == Remove::Removed);
        });
        if !removed.is_null() {
            // SAFETY: what the header asks of the caller.
            unsafe { raw::set("removed", removed, present)? };
        }
        done?;
        Ok(Status::FARINDEX_OK)
    })
}

/// Counts how many of the first keys are present: the length of the longest prefix of `keys` that is in the index. The keys are looked
/// up together. This is the question of a prefix cache, whose keys are chained hashes.
///
/// # Safety
///
/// `index` is open; `keys` points to `count` keys; `length` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_exists_prefix(
    index: *const farindex_index,
    keys: *const farindex_bytes,
    count: usize,
    length: *mut usize,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        unsafe {
            let (index, keys) = (farindex_index::of(index)?, all(keys, count)?);
            raw::set("length", length, 0)?;
            let mut present = 0;
            index.get_each(&keys, |_, value| {
                present += usize::from(value.is_some());
                if value.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            raw::set("length", length, present)?;
        }
        Ok(Status::FARINDEX_OK)
    })
}
