//! Pools.

use crate::fork::Birthplace;
use crate::raw;
use crate::status::{Status, farindex_status, guard};
use farindex::{Pool, PoolUrl};
use std::ffi::c_char;
use std::mem::ManuallyDrop;
use std::time::Duration;

/// An open pool of far memory. While it is open, this process is a client of the pool, and a thread of its own renews the lease.
///
/// It belongs to no thread: any may use it, and several at once. farindex_pool_close ends it; sessions that are open keep the pool
/// open until they are closed too. A child of fork opens the pool itself: what it has inherited gives FARINDEX_ERROR_FORKED, and
/// closing that does nothing.
pub struct farindex_pool {
    pub(crate) pool: ManuallyDrop<Pool>,
    pub(crate) birthplace: Birthplace,
}

impl farindex_pool {
    fn new(pool: Pool) -> Self {
        farindex_pool { pool: ManuallyDrop::new(pool), birthplace: Birthplace::here() }
    }
}

impl Drop for farindex_pool {
    fn drop(&mut self) {
        if !self.birthplace.is_forked() {
            // SAFETY: this is the only place that drops the pool, and nobody uses it afterwards. In a child of fork it is forgotten: it
            // would wait for a heartbeat thread that does not exist there, and close its parent's client.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
    }
}

/// Settings of a new pool. What is 0 has its default: set all to 0 first.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct farindex_pool_options {
    /// Bytes of each memory node. Pools in new files need it; the others have their sizes already.
    pub node_bytes: u64,
    /// Milliseconds for which a client may be silent before another one may evict it: 10,000.
    pub lease_ms: u64,
    /// Clients that may be registered at once: 64.
    pub client_slots: u64,
    /// Bytes of the unit in which clients allocate: one that suits the size of the node.
    pub chunk_bytes: u64,
}

/// Creates a pool at a place and opens it: "shm:/dev/shm/NAME" (several files separated by commas), "memory:1GiB" for one inside of
/// this process, "connect:HOST:PORT" for memory nodes over a network. `options` may be null.
///
/// # Safety
///
/// `url` is a string with a zero byte at its end; `options` is null or points to settings; `out` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_pool_create(
    url: *const c_char,
    options: *const farindex_pool_options,
    out: *mut *mut farindex_pool,
) -> farindex_status {
    guard(|| {
        let open = || {
            // SAFETY: what the header asks of the caller.
            let (url, options) = unsafe { (raw::text("url", url)?, options.as_ref().copied().unwrap_or_default()) };
            let mut builder = Pool::builder();
            // A memory: string has the size.
            if options.node_bytes != 0 {
                builder = builder.node_bytes(options.node_bytes);
            }
            if options.lease_ms != 0 {
                builder = builder.lease(Duration::from_millis(options.lease_ms));
            }
            if options.client_slots != 0 {
                builder = builder.client_slots(options.client_slots);
            }
            if options.chunk_bytes != 0 {
                builder = builder.chunk_bytes(options.chunk_bytes);
            }
            Ok(farindex_pool::new(builder.create(url.parse::<PoolUrl>()?)?))
        };
        // SAFETY: what the header asks of the caller.
        unsafe { raw::give(out, open)? };
        Ok(Status::FARINDEX_OK)
    })
}

/// Opens a pool that exists. If other clients of it have crashed and this one is alone, it first recovers what they left unfinished.
///
/// # Safety
///
/// `url` is a string with a zero byte at its end; `out` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_pool_open(url: *const c_char, out: *mut *mut farindex_pool) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        unsafe { raw::give(out, || Ok(farindex_pool::new(Pool::open(raw::text("url", url)?)?)))? };
        Ok(Status::FARINDEX_OK)
    })
}

/// Closes a pool; null is none. Any thread may close it. If sessions are open, the process stays a client until they are closed.
///
/// # Safety
///
/// `pool` was not closed yet, and no other thread uses it. It must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_pool_close(pool: *mut farindex_pool) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        drop(unsafe { raw::take(pool) });
        Ok(Status::FARINDEX_OK)
    })
}
