//! The part of UCP's C interface that is used, as of UCX 1.13, and its loading at run time.
//!
//! Invariants: types and constants are those of `ucp/api/ucp.h` (sizes and offsets are asserted below, against what a C
//! compiler says of that header); the library is never unloaded, so its functions may be called for ever.
#![allow(unsafe_code)]

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::OnceLock;

/// What Debian and Ubuntu call the package.
const PACKAGE: &str = "libucx0";
const LIBRARY: &str = "libucp.so.0";
/// The interface that these declarations describe.
const API: (c_uint, c_uint) = (1, 13);

pub(super) type Status = i8;
pub(super) type StatusPtr = *mut c_void;
pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;
pub(super) const ERR_BUSY: Status = -15;

/// An opaque object of the library.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub(super) struct $name {
            _nothing: [u8; 0],
        }
    )*};
}
opaque!(RawContext, RawWorker, RawEp, RawAddress, RawConfig, RawFile);

#[repr(C)]
pub(super) struct Params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: *const c_void,
    pub(super) request_cleanup: *const c_void,
    pub(super) tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    pub(super) estimated_num_eps: usize,
    pub(super) estimated_num_ppn: usize,
    pub(super) name: *const c_char,
}
pub(super) const PARAM_FEATURES: u64 = 1 << 0;
pub(super) const PARAM_MT_WORKERS_SHARED: u64 = 1 << 5;
pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const FEATURE_AM: u64 = 1 << 6;

#[repr(C)]
pub(super) struct WorkerParams {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_uint,
    pub(super) cpu_mask: [u64; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *mut c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) am_alignment: usize,
    pub(super) client_id: u64,
}
pub(super) const WORKER_PARAM_THREAD_MODE: u64 = 1 << 0;
pub(super) const THREAD_MODE_SINGLE: c_uint = 0;

#[repr(C)]
pub(super) struct SockAddr {
    pub(super) addr: *const c_void,
    pub(super) len: u32,
}

#[repr(C)]
pub(super) struct ErrHandler {
    pub(super) cb: Option<ErrCallback>,
    pub(super) arg: *mut c_void,
}
pub(super) type ErrCallback = extern "C" fn(arg: *mut c_void, ep: *mut RawEp, status: Status);

#[repr(C)]
pub(super) struct EpParams {
    pub(super) field_mask: u64,
    pub(super) address: *const RawAddress,
    pub(super) err_mode: c_uint,
    pub(super) err_handler: ErrHandler,
    pub(super) user_data: *mut c_void,
    pub(super) flags: c_uint,
    pub(super) sockaddr: SockAddr,
    pub(super) conn_request: *mut c_void,
    pub(super) name: *const c_char,
    pub(super) local_sockaddr: SockAddr,
}
pub(super) const EP_PARAM_REMOTE_ADDRESS: u64 = 1 << 0;
pub(super) const EP_PARAM_ERR_HANDLING_MODE: u64 = 1 << 1;
pub(super) const EP_PARAM_ERR_HANDLER: u64 = 1 << 2;
pub(super) const ERR_HANDLING_MODE_NONE: c_uint = 0;
pub(super) const ERR_HANDLING_MODE_PEER: c_uint = 1;

#[repr(C)]
pub(super) struct RequestParam {
    pub(super) op_attr_mask: u32,
    pub(super) flags: u32,
    pub(super) request: *mut c_void,
    pub(super) cb: Option<SendCallback>,
    pub(super) datatype: u64,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_type: c_uint,
    pub(super) recv_info: *mut c_void,
    pub(super) memh: *mut c_void,
}
impl RequestParam {
    /// With a callback, if there is one, and what it gets.
    pub(super) fn new(flags: u32, cb: Option<SendCallback>, user_data: *mut c_void) -> Self {
        let calls = if cb.is_some() { OP_ATTR_CALLBACK | OP_ATTR_USER_DATA } else { 0 };
        RequestParam {
            op_attr_mask: calls | OP_ATTR_FLAGS,
            flags,
            request: std::ptr::null_mut(),
            cb,
            datatype: 0,
            user_data,
            reply_buffer: std::ptr::null_mut(),
            memory_type: 0,
            recv_info: std::ptr::null_mut(),
            memh: std::ptr::null_mut(),
        }
    }
}
pub(super) type SendCallback = extern "C" fn(request: *mut c_void, status: Status, user_data: *mut c_void);
const OP_ATTR_CALLBACK: u32 = 1 << 1;
const OP_ATTR_USER_DATA: u32 = 1 << 2;
const OP_ATTR_FLAGS: u32 = 1 << 4;
/// No short cut for a message that can leave at once.
pub(super) const OP_ATTR_FLAG_NO_IMM_CMPL: u32 = 1 << 16;
pub(super) const AM_SEND_FLAG_EAGER: u32 = 1 << 1;
#[cfg(test)]
pub(super) const AM_SEND_FLAG_RNDV: u32 = 1 << 2;
pub(super) const EP_CLOSE_FLAG_FORCE: u32 = 1 << 0;

#[repr(C)]
pub(super) struct AmHandlerParam {
    pub(super) field_mask: u64,
    pub(super) id: c_uint,
    pub(super) flags: u32,
    pub(super) cb: Option<AmCallback>,
    pub(super) arg: *mut c_void,
}
pub(super) type AmCallback = extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_len: usize,
    data: *mut c_void,
    len: usize,
    param: *const AmRecvParam,
) -> Status;
pub(super) const AM_HANDLER_ID: u64 = 1 << 0;
pub(super) const AM_HANDLER_FLAGS: u64 = 1 << 1;
pub(super) const AM_HANDLER_CB: u64 = 1 << 2;
pub(super) const AM_HANDLER_ARG: u64 = 1 << 3;
pub(super) const AM_FLAG_WHOLE_MSG: u32 = 1 << 0;

#[repr(C)]
pub(super) struct AmRecvParam {
    pub(super) recv_attr: u64,
    pub(super) reply_ep: *mut RawEp,
}
pub(super) const AM_RECV_ATTR_FLAG_RNDV: u64 = 1 << 17;

// What a C compiler says of ucp/api/ucp.h of UCX 1.13.1 on x86-64.
const _: () = {
    assert!(size_of::<Params>() == 80 && offset_of!(Params, mt_workers_shared) == 48);
    assert!(offset_of!(Params, name) == 72);
    assert!(size_of::<WorkerParams>() == 200 && offset_of!(WorkerParams, cpu_mask) == 16);
    assert!(offset_of!(WorkerParams, events) == 144 && offset_of!(WorkerParams, client_id) == 192);
    assert!(size_of::<EpParams>() == 104 && offset_of!(EpParams, err_mode) == 16);
    assert!(offset_of!(EpParams, err_handler) == 24 && offset_of!(EpParams, user_data) == 40);
    assert!(offset_of!(EpParams, flags) == 48 && offset_of!(EpParams, local_sockaddr) == 88);
    assert!(size_of::<RequestParam>() == 72 && offset_of!(RequestParam, cb) == 16);
    assert!(offset_of!(RequestParam, user_data) == 32 && offset_of!(RequestParam, memh) == 64);
    assert!(size_of::<AmHandlerParam>() == 32 && offset_of!(AmHandlerParam, cb) == 16);
    assert!(size_of::<AmRecvParam>() == 16);
};

macro_rules! api {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }
        impl Api {
            fn of(library: &Library) -> Result<Api, libloading::Error> {
                $(
                    let symbol = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the symbol is a function of UCP, whose C declaration in ucp/api/ucp.h (UCX 1.13) this
                    // type renders. UCX keeps its functions compatible within major version 1, which `load` checks.
                    let $name: Symbol<unsafe extern "C" fn($($arg),*) $(-> $result)?> = unsafe { library.get(symbol)? };
                )*
                Ok(Api { $($name: *$name),* })
            }
        }
    };
}

api! {
    ucp_get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint);
    ucp_config_read: fn(*const c_char, *const c_char, *mut *mut RawConfig) -> Status;
    ucp_config_modify: fn(*mut RawConfig, *const c_char, *const c_char) -> Status;
    ucp_config_release: fn(*mut RawConfig);
    ucp_init_version: fn(c_uint, c_uint, *const Params, *const RawConfig, *mut *mut RawContext) -> Status;
    ucp_cleanup: fn(*mut RawContext);
    ucp_worker_create: fn(*mut RawContext, *const WorkerParams, *mut *mut RawWorker) -> Status;
    ucp_worker_destroy: fn(*mut RawWorker);
    ucp_worker_get_address: fn(*mut RawWorker, *mut *mut RawAddress, *mut usize) -> Status;
    ucp_worker_release_address: fn(*mut RawWorker, *mut RawAddress);
    ucp_worker_progress: fn(*mut RawWorker) -> c_uint;
    ucp_worker_get_efd: fn(*mut RawWorker, *mut c_int) -> Status;
    ucp_worker_arm: fn(*mut RawWorker) -> Status;
    ucp_worker_set_am_recv_handler: fn(*mut RawWorker, *const AmHandlerParam) -> Status;
    ucp_ep_create: fn(*mut RawWorker, *const EpParams, *mut *mut RawEp) -> Status;
    ucp_ep_close_nbx: fn(*mut RawEp, *const RequestParam) -> StatusPtr;
    ucp_ep_flush_nbx: fn(*mut RawEp, *const RequestParam) -> StatusPtr;
    ucp_ep_print_info: fn(*mut RawEp, *mut RawFile);
    ucp_am_send_nbx: fn(*mut RawEp, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam) -> StatusPtr;
    ucp_request_check_status: fn(*mut c_void) -> Status;
    ucp_request_free: fn(*mut c_void);
    ucs_status_string: fn(Status) -> *const c_char;
    ucs_log_push_handler: fn(LogHandler);
}

/// Of ucs/debug/log_def.h. The last argument is a `va_list`, which is passed as a pointer on the platforms that
/// [`log_handler`] is used on.
type LogHandler =
    extern "C" fn(*const c_char, c_uint, *const c_char, c_int, *const c_void, *const c_char, *mut c_void) -> c_int;

unsafe extern "C" {
    // The C library, which std links.
    pub(super) fn open_memstream(text: *mut *mut c_char, len: *mut usize) -> *mut RawFile;
    pub(super) fn fclose(file: *mut RawFile) -> c_int;
    pub(super) fn free(memory: *mut c_void);
    fn vsnprintf(to: *mut c_char, len: usize, format: *const c_char, args: *mut c_void) -> c_int;
}

/// UCX reports to standard output, which is for results: what matters goes to standard error instead.
extern "C" fn log_handler(
    _file: *const c_char,
    _line: c_uint,
    _function: *const c_char,
    level: c_int,
    _component: *const c_void,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    const WARN: c_int = 2;
    const STOP: c_int = 0;
    if level <= WARN {
        let mut text = [0_u8; 512];
        // SAFETY: `text` has the length that is given, room for the final zero included; `format` and `args` belong
        // together: UCX passes on what its own call site gave. On x86-64 and AArch64 Linux a `va_list` argument is a
        // pointer; elsewhere this handler is not installed.
        unsafe { vsnprintf(text.as_mut_ptr().cast(), text.len(), format, args) };
        let said = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        use std::io::Write;
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "UCX: {said}");
    }
    STOP
}

/// The library, loaded when it is first asked for. The error says what to install.
pub(super) fn load() -> Result<&'static Api, String> {
    static LOADED: OnceLock<Result<Api, String>> = OnceLock::new();
    LOADED.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// Loads something, and gives the process its action for SIGHUP back. UCX's initialiser takes that signal for its own
/// debug mode (UCX_DEBUG_SIGNO), so that a terminal that closes would not end the program. A user that sets the
/// variable has chosen.
fn with_hangup_kept<T>(load: impl FnOnce() -> T) -> T {
    if std::env::var_os("UCX_DEBUG_SIGNO").is_some() {
        return load();
    }
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and there is a place for the one that is set.
    let kept = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), before.as_mut_ptr()) } == 0;
    let loaded = load();
    if kept {
        // SAFETY: the call above has written the action, which was in force until then, so its handler may run at any
        // time.
        unsafe { libc::sigaction(libc::SIGHUP, before.as_ptr(), std::ptr::null_mut()) };
    }
    loaded
}

fn open() -> Result<Api, String> {
    // SAFETY: loading runs the library's initialisers: UCX's read its settings from the environment and prepare its own
    // data. Global, as when a program is linked to it, since its transports are plugins that look for its symbols.
    let library = with_hangup_kept(|| unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) });
    let library = library.map_err(|error| {
        format!(
            "the ucx fabric needs UCX, which cannot be loaded ({error}); install {PACKAGE} (apt-get install {PACKAGE})"
        )
    })?;
    let api = Api::of(&library).map_err(|error| {
        format!("this UCX lacks something that is needed ({error}); install {PACKAGE} of version 1.13 or newer")
    })?;
    // Its functions are used from now on, for ever.
    std::mem::forget(library);
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three places to write to.
    unsafe { (api.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut patch) };
    if major != API.0 || minor < API.1 {
        return Err(format!(
            "UCX {major}.{minor}.{patch} is there, and 1.13 or a newer 1.x is needed: install {PACKAGE}"
        ));
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: the handler has the type that UCX calls it with, and lives for ever. Handlers are kept in a plain list:
    // this runs once, before any other function of the library can.
    unsafe {
        (api.ucs_log_push_handler)(log_handler);
    }
    Ok(api)
}

pub(super) fn api_version() -> (c_uint, c_uint) {
    API
}
