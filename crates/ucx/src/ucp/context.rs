//! What the workers of a process share: UCX with its settings.

use super::check;
use super::sys::{self, Api};
use std::ptr;
use std::sync::Arc;

/// UCX, set up: shared by the workers of a process.
pub(crate) struct Context {
    pub(super) api: &'static Api,
    pub(super) raw: *mut sys::RawContext,
    /// No transport that may be used reports a peer's failure.
    pub(super) mute: bool,
}

// SAFETY: the context was made with `mt_workers_shared`: UCX locks it itself. Only workers are made from it here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a context is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextSettings {
    /// Workers can be waited for without polling.
    pub(crate) wakeup: bool,
    /// Use the loopback device alone, of network devices, unless the environment names others.
    pub(crate) loopback: bool,
}

impl Context {
    /// Loads UCX if that has not happened yet. The error says what to install.
    pub(crate) fn new(settings: ContextSettings) -> Result<Arc<Self>, String> {
        let api = sys::load()?;
        let mut config = ptr::null_mut();
        // SAFETY: no prefix, no file, and a place for the result.
        check(api, "settings cannot be read", unsafe {
            (api.ucp_config_read)(ptr::null(), ptr::null(), &raw mut config)
        })?;
        if settings.loopback && std::env::var_os("UCX_NET_DEVICES").is_none() {
            // SAFETY: `config` was read just now; both strings end with zero and are copied. A UCX that does not know
            // the name says so, and goes on with all devices: the connection is refused later if none fits.
            let status = unsafe { (api.ucp_config_modify)(config, c"NET_DEVICES".as_ptr(), c"lo".as_ptr()) };
            check(api, "NET_DEVICES=lo", status)?;
        }
        if std::env::var_os("UCX_ZCOPY_THRESH").is_none() {
            // Messages are copied on their way out: UCX 1.13 over tcp ends the process when a peer goes while one is
            // sent from where it lies (docs/bugs/044). SAFETY: as above.
            let status = unsafe { (api.ucp_config_modify)(config, c"ZCOPY_THRESH".as_ptr(), c"inf".as_ptr()) };
            check(api, "ZCOPY_THRESH=inf", status)?;
        }
        if ["UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"].iter().all(|name| std::env::var_os(name).is_none()) {
            // A message of many batches leaves at once, and not in pieces of 8 KiB that the other side puts together.
            // It is as much as UCX receives in one piece. One that does not know the name goes on with 8 KiB.
            // SAFETY: as above.
            let _ = unsafe { (api.ucp_config_modify)(config, c"TX_SEG_SIZE".as_ptr(), c"64k".as_ptr()) };
        }
        if std::env::var_os("UCX_TCP_CONN_NB").is_none() {
            // By default UCX waits for the handshake of TCP, and nobody else is served meanwhile (docs/bugs/188). One
            // that does not know the name goes on waiting. SAFETY: as above.
            let _ = unsafe { (api.ucp_config_modify)(config, c"CONN_NB".as_ptr(), c"y".as_ptr()) };
        }
        let features = sys::FEATURE_AM | if settings.wakeup { sys::FEATURE_WAKEUP } else { 0 };
        let params = sys::Params {
            field_mask: sys::PARAM_FEATURES | sys::PARAM_MT_WORKERS_SHARED,
            features,
            request_size: 0,
            request_init: ptr::null(),
            request_cleanup: ptr::null(),
            tag_sender_mask: 0,
            mt_workers_shared: 1,
            estimated_num_eps: 0,
            estimated_num_ppn: 0,
            name: ptr::null(),
        };
        let (major, minor) = sys::api_version();
        let mut raw = ptr::null_mut();
        // SAFETY: the parameters are whole as far as their mask says, `config` is valid, `raw` takes the result.
        let status = unsafe { (api.ucp_init_version)(major, minor, &raw const params, config, &raw mut raw) };
        // SAFETY: it is not used any more.
        unsafe { (api.ucp_config_release)(config) };
        check(api, "cannot be started", status)?;
        Ok(Arc::new(Context { api, raw, mute: only_shared_memory() }))
    }
}

/// UCX's shared memory does not report a peer's failure, and refuses connections that ask for it: where UCX_TLS allows
/// nothing else, only the control channel notices that a peer is gone.
fn only_shared_memory() -> bool {
    const SHARED: [&str; 9] = ["shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "self"];
    std::env::var("UCX_TLS").is_ok_and(|tls| tls.split(',').all(|name| SHARED.contains(&name)))
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: workers hold the context, so there are none left.
        unsafe { (self.api.ucp_cleanup)(self.raw) };
    }
}
