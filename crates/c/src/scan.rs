//! Entries, one after the other.

use crate::index::farindex_index;
use crate::raw::{self, farindex_bytes};
use crate::status::{Failure, Status, farindex_status, guard};
use std::ffi::c_void;
use std::ops::{Bound, ControlFlow};

/// What an end of a range is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum farindex_bound_kind {
    /// There is no bound; the key means nothing.
    FARINDEX_UNBOUNDED = 0,
    /// The key belongs to the range.
    FARINDEX_INCLUDED = 1,
    /// The key does not belong to the range.
    FARINDEX_EXCLUDED = 2,
}

/// An end of a range. All zeros is no bound.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct farindex_bound {
    /// A farindex_bound_kind.
    pub kind: u32,
    /// The key.
    pub key: farindex_bytes,
}

impl farindex_bound {
    /// # Safety
    ///
    /// Unless null, the key points to as many bytes as it says, for `'a`.
    unsafe fn get<'a>(self) -> Result<Bound<&'a [u8]>, Failure> {
        use farindex_bound_kind::{FARINDEX_EXCLUDED, FARINDEX_INCLUDED, FARINDEX_UNBOUNDED};
        // A number and not the enum: C may hold any value in an enum, and Rust only those that it has.
        // SAFETY: the caller's promise.
        let key = || unsafe { raw::bytes(self.key.data, self.key.len) };
        match self.kind {
            kind if kind == FARINDEX_UNBOUNDED as u32 => Ok(Bound::Unbounded),
            kind if kind == FARINDEX_INCLUDED as u32 => Ok(Bound::Included(key()?)),
            kind if kind == FARINDEX_EXCLUDED as u32 => Ok(Bound::Excluded(key()?)),
            other => Err(Failure::argument(format!("{other} is no farindex_bound_kind"))),
        }
    }
}

/// Is called with each entry, and with the caller's own pointer. Returns true to go on, false to end. Key and value are valid during
/// the call. It may call functions of this library, with the same index too. It must return: no longjmp and no exception of C++
/// past it.
pub type farindex_visitor =
    Option<unsafe extern "C" fn(context: *mut c_void, key: farindex_bytes, value: farindex_bytes) -> bool>;

fn visit(visitor: farindex_visitor, context: *mut c_void, key: &[u8], value: &[u8]) -> Result<bool, Failure> {
    let visitor = visitor.ok_or_else(|| Failure::argument("visitor is null"))?;
    let bytes = |bytes: &[u8]| farindex_bytes { data: bytes.as_ptr(), len: bytes.len() };
    // SAFETY: what the header asks of the caller: a function of this type, and a context that is its own. The bytes outlive the call.
    Ok(unsafe { visitor(context, bytes(key), bytes(value)) })
}

/// Calls `visitor` with at most `limit` entries between two bounds, in ascending order of their keys. Only an ordered kind can do that:
/// others give FARINDEX_ERROR_WRONG_KIND. The entries are read before the first call: to go on, scan again from behind the last key.
///
/// # Safety
///
/// `index` is open; the bounds' keys point to as many bytes as they say; `visitor` does what its type asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_scan(
    index: *const farindex_index,
    from: farindex_bound,
    to: farindex_bound,
    limit: usize,
    visitor: farindex_visitor,
    context: *mut c_void,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let (index, bounds) = unsafe { (farindex_index::of(index)?, (from.get()?, to.get()?)) };
        for entry in index.scan::<&[u8]>(bounds, limit)? {
            if !visit(visitor, context, &entry.key, &entry.value)? {
                break;
            }
        }
        Ok(Status::FARINDEX_OK)
    })
}

/// Calls `visitor` with every entry of an index of any kind, in bounded memory; of an ordered kind in ascending order. Entries that no
/// client changes meanwhile come exactly once; changes may be seen or not.
///
/// # Safety
///
/// `index` is open; `visitor` does what its type asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_for_each(
    index: *const farindex_index,
    visitor: farindex_visitor,
    context: *mut c_void,
) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        let index = unsafe { farindex_index::of(index)? };
        let mut failed = None;
        index.for_each(|key, value| match visit(visitor, context, key, value) {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(failure) => {
                failed = Some(failure);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(Status::FARINDEX_OK), Err)
    })
}
