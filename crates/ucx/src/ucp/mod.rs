//! UCP's workers and endpoints without raw pointers.
//!
//! Invariants: a worker stays on the thread that made it (it is not `Send`), as UCX asks of single-threaded workers;
//! what UCX has a pointer to (buffers being sent, arguments of callbacks) lives until UCX has said that it is done; no
//! borrow of what a callback touches is held while UCX is called, since it may call back; an endpoint's failure is
//! reported once, and nothing is sent through it afterwards; UCX gets nothing to send over an endpoint before the
//! transport has connected it (docs/bugs/145); an endpoint that has messages to send, or is not connected yet, is not
//! closed by force before it has failed (UCX 1.13 goes on to use what it has freed: docs/bugs/044).
#![allow(unsafe_code)]

mod context;
mod endpoint;
mod sys;
mod worker;

pub(crate) use context::{Context, ContextSettings};
pub(crate) use endpoint::EpId;
use std::ffi::{CStr, c_void};
use sys::Api;
pub(crate) use worker::Worker;

fn text(api: &Api, status: sys::Status) -> String {
    // SAFETY: it gives a static string for every status.
    let text = unsafe { CStr::from_ptr((api.ucs_status_string)(status)) };
    text.to_string_lossy().into_owned()
}

fn check(api: &Api, doing: &str, status: sys::Status) -> Result<(), String> {
    if status == sys::OK { Ok(()) } else { Err(format!("UCX: {doing}: {}", text(api, status))) }
}

/// What a pointer that stands for a request, for success (null) or for a status means.
enum Issued {
    Done,
    Failed(sys::Status),
    Request(*mut c_void),
}

fn issued(pointer: sys::StatusPtr) -> Issued {
    // As UCS_PTR_IS_ERR: statuses are the topmost 100 addresses.
    match pointer.addr() {
        0 => Issued::Done,
        addr if addr >= usize::MAX - 99 => Issued::Failed(addr.cast_signed() as sys::Status),
        _ => Issued::Request(pointer),
    }
}

/// Loads UCX if that has not happened yet. The error says what to install.
pub(crate) fn available() -> Result<(), String> {
    sys::load().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn statuses_and_requests_are_told_apart() {
        assert!(matches!(issued(ptr::null_mut()), Issued::Done));
        assert!(matches!(issued(ptr::without_provenance_mut(usize::MAX - 14)), Issued::Failed(-15)));
        assert!(matches!(issued(ptr::without_provenance_mut(0x7000_0000)), Issued::Request(_)));
    }
}
