//! UCP's workers and endpoints without raw pointers.
//!
//! Invariants: a worker stays on the thread that made it (it is not `Send`), as UCX asks of single-threaded workers;
//! what UCX has a pointer to (buffers being sent, arguments of callbacks) lives until UCX has said that it is done; no
//! borrow of what a callback touches is held while UCX is called, since it may call back; an endpoint's failure is
//! reported once, and nothing is sent through it afterwards; an endpoint that has messages to send is not closed by
//! force before it has failed (UCX 1.13 goes on to use what it has freed: docs/bugs/044).
#![allow(unsafe_code)]

mod sys;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::Api;

/// Bytes of one message at most.
pub(crate) const MAX_MESSAGE: usize = 96 << 20;
/// Buffers kept for messages to come.
const SPARE: usize = 64;
/// Larger ones are given back at once.
const SPARE_BYTES: usize = 256 << 10;
/// The one active message that is used.
const MESSAGE: u32 = 1;

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

/// UCX, set up: shared by the workers of a process.
pub(crate) struct Context {
    api: &'static Api,
    raw: *mut sys::RawContext,
    /// No transport that may be used reports a peer's failure.
    mute: bool,
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

/// Names an endpoint of a worker. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EpId(u64);

/// What callbacks write to.
#[derive(Default)]
struct Inbox {
    messages: RefCell<VecDeque<Vec<u8>>>,
    spare: RefCell<Vec<Vec<u8>>>,
    // Boxes, because UCX has a pointer to one while its message is on its way.
    #[allow(clippy::vec_box)]
    idle: RefCell<Vec<Box<Sending>>>,
    failed: RefCell<Vec<(EpId, sys::Status)>>,
}

/// What the error callback of an endpoint gets.
struct EpArg {
    id: EpId,
    inbox: Rc<Inbox>,
}

struct Ep {
    raw: *mut sys::RawEp,
    /// What UCX calls back with.
    _arg: Box<EpArg>,
    /// UCX reports the peer's failure, and so it can be closed without the peer.
    tells: bool,
    has_failed: bool,
    unsent: Rc<Cell<usize>>,
}

/// A message on its way out.
struct Sending {
    bytes: Vec<u8>,
    /// Of its endpoint, and what takes the buffer back. None while it is kept for a message to come.
    of: Option<(Rc<Cell<usize>>, Rc<Inbox>)>,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Sending {
    /// The message has left, or never will. The buffer and the box itself are kept for the next one.
    fn end(mut self: Box<Self>) {
        if let Some((unsent, inbox)) = self.of.take() {
            unsent.set(unsent.get().saturating_sub(self.bytes.len()));
            inbox.keep(std::mem::take(&mut self.bytes));
            let mut idle = inbox.idle.borrow_mut();
            if idle.len() < SPARE {
                idle.push(self);
            }
        }
    }
}

impl Inbox {
    fn keep(&self, mut bytes: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && bytes.capacity() <= SPARE_BYTES {
            bytes.clear();
            spare.push(bytes);
        }
    }
    fn take(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }
}

extern "C" fn on_message(
    arg: *mut c_void,
    _header: *const c_void,
    _header_len: usize,
    data: *mut c_void,
    len: usize,
    param: *const sys::AmRecvParam,
) -> sys::Status {
    // SAFETY: `arg` is the worker's inbox, which lives longer than the worker, and UCX calls back on the worker's
    // thread alone.
    let inbox = unsafe { &*arg.cast::<Inbox>() };
    // SAFETY: UCX passes a valid description of the message.
    let rendezvous = unsafe { (*param).recv_attr } & sys::AM_RECV_ATTR_FLAG_RNDV != 0;
    if rendezvous || len > MAX_MESSAGE {
        // farindex never sends that. Reporting it as done drops it.
        return sys::OK;
    }
    let mut bytes = inbox.take();
    if len > 0 {
        // SAFETY: without the rendezvous flag, `data` points to the `len` bytes of the message until this returns.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast_const().cast::<u8>(), len) });
    }
    inbox.messages.borrow_mut().push_back(bytes);
    sys::OK
}

extern "C" fn on_error(arg: *mut c_void, _ep: *mut sys::RawEp, status: sys::Status) {
    // SAFETY: `arg` is the endpoint's, which lives until the endpoint is closed, and UCX calls back before that alone.
    let arg = unsafe { &*arg.cast::<EpArg>() };
    arg.inbox.failed.borrow_mut().push((arg.id, status));
}

extern "C" fn on_sent(request: *mut c_void, _status: sys::Status, user_data: *mut c_void) {
    // SAFETY: `user_data` is the box that `send` gave away; UCX calls back once for each request.
    let sending = unsafe { Box::from_raw(user_data.cast::<Sending>()) };
    // SAFETY: the request is complete, and nothing else uses it. A failure is reported by the endpoint's
    // callback.
    unsafe { (sending.free)(request) };
    sending.end();
}

/// One thread's part of UCX: sends and receives messages.
pub(crate) struct Worker {
    context: Arc<Context>,
    raw: *mut sys::RawWorker,
    inbox: Rc<Inbox>,
    eps: HashMap<EpId, Ep>,
    /// Closed, but for messages that the other side has not taken.
    leaving: HashMap<EpId, Ep>,
    /// Requests to close, with what their callbacks may still touch.
    closing: Vec<(*mut c_void, Ep)>,
    next: u64,
}

impl Worker {
    /// A worker of the calling thread.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, String> {
        let api = context.api;
        let params = sys::WorkerParams {
            field_mask: sys::WORKER_PARAM_THREAD_MODE,
            thread_mode: sys::THREAD_MODE_SINGLE,
            cpu_mask: [0; 16],
            events: 0,
            user_data: ptr::null_mut(),
            event_fd: 0,
            flags: 0,
            name: ptr::null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the context lives, the parameters are whole as far as their mask says, `raw` takes the result.
        let status = unsafe { (api.ucp_worker_create)(context.raw, &raw const params, &raw mut raw) };
        check(api, "no worker", status)?;
        let worker = Worker {
            context: Arc::clone(context),
            raw,
            inbox: Rc::default(),
            eps: HashMap::new(),
            leaving: HashMap::new(),
            closing: Vec::new(),
            next: 1,
        };
        let handler = sys::AmHandlerParam {
            field_mask: sys::AM_HANDLER_ID | sys::AM_HANDLER_FLAGS | sys::AM_HANDLER_CB | sys::AM_HANDLER_ARG,
            id: MESSAGE,
            flags: sys::AM_FLAG_WHOLE_MSG,
            cb: Some(on_message),
            arg: Rc::as_ptr(&worker.inbox).cast_mut().cast(),
        };
        // SAFETY: the worker lives; the inbox is behind an `Rc` that the worker holds until it is destroyed.
        let status = unsafe { (api.ucp_worker_set_am_recv_handler)(raw, &raw const handler) };
        check(api, "no handler", status)?;
        Ok(worker)
    }

    fn api(&self) -> &'static Api {
        self.context.api
    }

    /// What others need to connect to this worker.
    pub(crate) fn address(&self) -> Result<Vec<u8>, String> {
        let (mut address, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the worker lives, and there are places for both results.
        let status = unsafe { (self.api().ucp_worker_get_address)(self.raw, &raw mut address, &raw mut len) };
        check(self.api(), "no address", status)?;
        // SAFETY: the address has `len` bytes until it is released.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast_const().cast::<u8>(), len) }.to_vec();
        // SAFETY: it was had from this worker, once.
        unsafe { (self.api().ucp_worker_release_address)(self.raw, address) };
        Ok(bytes)
    }

    /// An endpoint to the worker of that address. UCX connects it in the background.
    pub(crate) fn connect(&mut self, address: &[u8]) -> Result<EpId, String> {
        // UCX reads an address without a length: what a peer sent is followed by zeros, so that it reads an end.
        let mut padded = address.to_vec();
        padded.resize(address.len() + 4096, 0);
        let id = EpId(self.next);
        self.next += 1;
        let arg = Box::new(EpArg { id, inbox: Rc::clone(&self.inbox) });
        let nowhere = || sys::SockAddr { addr: ptr::null(), len: 0 };
        let mut params = sys::EpParams {
            field_mask: sys::EP_PARAM_REMOTE_ADDRESS | sys::EP_PARAM_ERR_HANDLING_MODE | sys::EP_PARAM_ERR_HANDLER,
            address: padded.as_ptr().cast(),
            err_mode: sys::ERR_HANDLING_MODE_PEER,
            err_handler: sys::ErrHandler { cb: Some(on_error), arg: (&raw const *arg).cast_mut().cast() },
            user_data: ptr::null_mut(),
            flags: 0,
            sockaddr: nowhere(),
            conn_request: ptr::null_mut(),
            name: ptr::null(),
            local_sockaddr: nowhere(),
        };
        let tells = !self.context.mute;
        if !tells {
            params.err_mode = sys::ERR_HANDLING_MODE_NONE;
            params.field_mask &= !sys::EP_PARAM_ERR_HANDLER;
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the worker lives; the parameters are whole as far as their mask says; the address is copied; the
        // callback's argument is boxed, and kept until the endpoint is closed. UCX takes the address from a peer on
        // trust, as it takes everything below the level of messages: see docs/protocols/remote.md.
        let status = unsafe { (self.api().ucp_ep_create)(self.raw, &raw const params, &raw mut raw) };
        check(self.api(), "cannot connect", status)?;
        self.eps.insert(id, Ep { raw, _arg: arg, tells, has_failed: false, unsent: Rc::default() });
        Ok(id)
    }

    /// An empty buffer, to send.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.inbox.take()
    }
    /// Gives a buffer that was received back.
    pub(crate) fn recycle(&self, bytes: Vec<u8>) {
        self.inbox.keep(bytes);
    }

    /// Sends one message. It leaves when the network takes it; `unsent` says how much has not.
    pub(crate) fn send(&mut self, id: EpId, bytes: Vec<u8>) -> Result<(), String> {
        self.send_as(id, bytes, sys::AM_SEND_FLAG_EAGER)
    }
    /// As a client would that leaves the bytes for the other side to fetch.
    #[cfg(test)]
    pub(crate) fn send_by_rendezvous(&mut self, id: EpId, bytes: Vec<u8>) -> Result<(), String> {
        self.send_as(id, bytes, sys::AM_SEND_FLAG_RNDV)
    }

    fn send_as(&mut self, id: EpId, bytes: Vec<u8>, flags: u32) -> Result<(), String> {
        let ep = self.eps.get(&id).ok_or("the endpoint is closed")?;
        ep.unsent.set(ep.unsent.get() + bytes.len());
        let idle = self.inbox.idle.borrow_mut().pop();
        let free = self.api().ucp_request_free;
        let mut sending = idle.unwrap_or_else(|| Box::new(Sending { bytes: Vec::new(), of: None, free }));
        sending.bytes = bytes;
        sending.of = Some((Rc::clone(&ep.unsent), Rc::clone(&self.inbox)));
        let (data, len) = (sending.bytes.as_ptr(), sending.bytes.len());
        let sending = Box::into_raw(sending);
        let param = sys::RequestParam {
            op_attr_mask: sys::OP_ATTR_CALLBACK | sys::OP_ATTR_USER_DATA | sys::OP_ATTR_FLAGS,
            flags,
            request: ptr::null_mut(),
            cb: Some(on_sent),
            datatype: 0,
            user_data: sending.cast(),
            reply_buffer: ptr::null_mut(),
            memory_type: 0,
            recv_info: ptr::null_mut(),
            memh: ptr::null_mut(),
        };
        let raw = ep.raw;
        // SAFETY: the endpoint is open; the message's bytes are in a vector that is neither touched nor freed before
        // `on_sent`, or before UCX says below that it is done with them.
        let pointer =
            unsafe { (self.api().ucp_am_send_nbx)(raw, MESSAGE, ptr::null(), 0, data.cast(), len, &raw const param) };
        match issued(pointer) {
            // `on_sent` follows, or has come already.
            Issued::Request(_) => Ok(()),
            ended => {
                // SAFETY: there is no request, so `on_sent` never comes: the box is ours again.
                unsafe { Box::from_raw(sending) }.end();
                match ended {
                    Issued::Failed(status) => Err(format!("UCX: {}", text(self.api(), status))),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Bytes handed to this endpoint that have not left yet.
    pub(crate) fn unsent(&self, id: EpId) -> usize {
        self.eps.get(&id).map_or(0, |ep| ep.unsent.get())
    }

    /// Lets UCX work; says whether it did anything.
    pub(crate) fn progress(&mut self) -> bool {
        // SAFETY: the worker lives, this is its thread, and no borrow of the inbox is held.
        let any = unsafe { (self.api().ucp_worker_progress)(self.raw) } != 0;
        if !self.closing.is_empty() {
            let api = self.api();
            self.closing.retain(|(request, _)| {
                // SAFETY: the request is freed here alone, once it is complete.
                let open = unsafe { (api.ucp_request_check_status)(*request) } == sys::IN_PROGRESS;
                if !open {
                    // SAFETY: as above.
                    unsafe { (api.ucp_request_free)(*request) };
                }
                open
            });
        }
        if !self.leaving.is_empty() {
            let (sent, waits) = std::mem::take(&mut self.leaving).into_iter().partition(|(_, ep)| ep.unsent.get() == 0);
            let sent: HashMap<EpId, Ep> = sent;
            self.leaving = waits;
            sent.into_values().for_each(|ep| self.end(ep));
        }
        any
    }
    /// Endpoints that wait for the other side before they close, and the bytes they hold.
    pub(crate) fn leaving(&self) -> (usize, usize) {
        (self.leaving.len(), self.leaving.values().map(|ep| ep.unsent.get()).sum())
    }
    /// The next message that has come.
    pub(crate) fn received(&self) -> Option<Vec<u8>> {
        self.inbox.messages.borrow_mut().pop_front()
    }
    /// An endpoint that has failed since, and why. It is still to be closed.
    pub(crate) fn failed(&mut self) -> Option<(EpId, String)> {
        loop {
            let (id, status) = self.inbox.failed.borrow_mut().pop()?;
            match self.leaving.remove(&id) {
                Some(ep) => self.end(ep),
                None => {
                    if let Some(ep) = self.eps.get_mut(&id) {
                        ep.has_failed = true;
                    }
                    return Some((id, text(self.api(), status)));
                }
            }
        }
    }

    /// Closes an endpoint: nothing is sent or received over it any more, but for what UCX was given before. While the
    /// other side neither takes that nor goes, it stays.
    pub(crate) fn close(&mut self, id: EpId) {
        let Some(ep) = self.eps.remove(&id) else { return };
        let failed = ep.has_failed || self.inbox.failed.borrow().iter().any(|(failed, _)| *failed == id);
        if ep.tells && !failed && ep.unsent.get() > 0 {
            self.leaving.insert(id, ep);
        } else {
            self.end(ep);
        }
    }

    fn end(&mut self, ep: Ep) {
        let param = sys::RequestParam {
            op_attr_mask: sys::OP_ATTR_FLAGS,
            flags: if ep.tells { sys::EP_CLOSE_FLAG_FORCE } else { 0 },
            request: ptr::null_mut(),
            cb: None,
            datatype: 0,
            user_data: ptr::null_mut(),
            reply_buffer: ptr::null_mut(),
            memory_type: 0,
            recv_info: ptr::null_mut(),
            memh: ptr::null_mut(),
        };
        // SAFETY: the endpoint is open, and not used any more from here on. What its callback may touch is kept below
        // until UCX has closed it.
        let pointer = unsafe { (self.api().ucp_ep_close_nbx)(ep.raw, &raw const param) };
        if let Issued::Request(request) = issued(pointer) {
            self.closing.push((request, ep));
        }
    }

    /// Which transports UCX has chosen for an endpoint, such as `tcp/eth0`. Known once messages have gone both ways.
    pub(crate) fn transports(&self, id: EpId) -> Vec<String> {
        let Some(ep) = self.eps.get(&id) else { return Vec::new() };
        let (mut memory, mut len) = (ptr::null_mut(), 0);
        // SAFETY: places for both results, which live until the stream is closed.
        let file = unsafe { sys::open_memstream(&raw mut memory, &raw mut len) };
        if file.is_null() {
            return Vec::new();
        }
        // SAFETY: the endpoint is open, and so is the stream, which is not used after it is closed.
        unsafe {
            (self.api().ucp_ep_print_info)(ep.raw, file);
            sys::fclose(file);
        }
        if memory.is_null() {
            return Vec::new();
        }
        // SAFETY: closing the stream has left its text there, followed by a zero.
        let said = unsafe { CStr::from_ptr(memory) }.to_string_lossy().into_owned();
        // SAFETY: it was allocated by the stream, and belongs to the caller.
        unsafe { sys::free(memory.cast()) };
        lanes(&said)
    }

    /// Something to wait on for messages, if the context can.
    pub(crate) fn event_fd(&self) -> Result<RawFd, String> {
        let mut fd = 0;
        // SAFETY: the worker lives, and there is a place for the result.
        check(self.api(), "cannot be waited for", unsafe { (self.api().ucp_worker_get_efd)(self.raw, &raw mut fd) })?;
        Ok(fd)
    }
    /// Prepares to wait: false if there is something to do already.
    pub(crate) fn arm(&self) -> Result<bool, String> {
        // SAFETY: the worker lives.
        match unsafe { (self.api().ucp_worker_arm)(self.raw) } {
            sys::ERR_BUSY => Ok(false),
            status => check(self.api(), "cannot be waited for", status).map(|()| true),
        }
    }
    /// The file descriptor of [`event_fd`](Self::event_fd), for as long as the worker lives.
    pub(crate) fn borrow_fd(&self, fd: RawFd) -> BorrowedFd<'_> {
        // SAFETY: UCX gave it for this worker, and closes it with the worker.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// How long closing may take.
const PARTING: Duration = Duration::from_millis(500);

impl Drop for Worker {
    fn drop(&mut self) {
        let open: Vec<EpId> = self.eps.keys().copied().collect();
        open.into_iter().for_each(|id| self.close(id));
        // Nothing is polled any more, so nothing comes of force.
        std::mem::take(&mut self.leaving).into_values().for_each(|ep| self.end(ep));
        let begun = Instant::now();
        while !self.closing.is_empty() && begun.elapsed() < PARTING {
            self.progress();
            // A node that is there answers by then; one that is not is waited for at no cost.
            if begun.elapsed() > PARTING / 100 {
                std::thread::sleep(PARTING / 500);
            }
        }
        // SAFETY: it is not used any more. The inbox goes after it.
        unsafe { (self.api().ucp_worker_destroy)(self.raw) };
        // What could not be closed in time was ended with the worker.
        self.closing.clear();
    }
}

/// `#     lane[0]:  2:tcp/lo.0 md[1] ...` gives `tcp/lo`.
fn lanes(info: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in info.lines().filter(|line| line.contains("lane[")) {
        let after = line.split_once("]:").map_or("", |(_, after)| after);
        let Some(word) = after.split_whitespace().find(|word| word.contains('/')) else { continue };
        let name = word.split_once(':').map_or(word, |(_, name)| name);
        let name = name.rsplit_once('.').map_or(name, |(name, _)| name).to_owned();
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_requests_are_told_apart() {
        assert!(matches!(issued(ptr::null_mut()), Issued::Done));
        assert!(matches!(issued(ptr::without_provenance_mut(usize::MAX - 14)), Issued::Failed(-15)));
        assert!(matches!(issued(ptr::without_provenance_mut(0x7000_0000)), Issued::Request(_)));
    }

    #[test]
    fn lanes_are_read_from_what_ucx_says() {
        let info = "#\n#      lane[0]:  1:tcp/lo.0 md[1]      -> addr[0].md[1]/tcp/sysdev[255] am am_bw#0\n\
                    #      lane[1]:  5:posix/memory.0 md[3]      -> md[3] rma_bw\n";
        assert_eq!(lanes(info), ["tcp/lo", "posix/memory"]);
    }
}
