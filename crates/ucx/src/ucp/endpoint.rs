//! Endpoints, what UCX calls back with, and where its callbacks leave what they were told.

use super::sys::{self, Api};
use super::{Issued, issued, text};
use crate::chain::FULL_BYTES;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// Bytes of one message at most.
const MAX_MESSAGE: usize = 96 << 20;
/// Bytes that a new buffer has room for: it does not grow with the first message that is longer than all before.
const ROOM: usize = FULL_BYTES + (8 << 10);
/// Buffers kept for messages to come.
const SPARE: usize = 64;
/// Larger ones are given back at once, and so are those without room, which never were a buffer.
const SPARE_BYTES: usize = 256 << 10;
/// The one active message that is used.
pub(super) const MESSAGE: u32 = 1;

/// Names an endpoint of a worker. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EpId(pub(super) u64);

/// What takes in messages as they come. It calls nothing of UCX.
pub(super) type Taker<'a> = dyn FnMut(&[u8]) + 'a;

/// What callbacks write to.
#[derive(Default)]
pub(super) struct Inbox {
    /// While it is there, it takes in messages; otherwise they are kept.
    pub(super) taker: Cell<Option<NonNull<Taker<'static>>>>,
    pub(super) messages: RefCell<VecDeque<Vec<u8>>>,
    pub(super) spare: RefCell<Vec<Vec<u8>>>,
    // Boxes, because UCX has a pointer to one while its message is on its way.
    #[allow(clippy::vec_box)]
    idle: RefCell<Vec<Box<Sending>>>,
    pub(super) failed: RefCell<Vec<(EpId, sys::Status)>>,
    /// Endpoints that are connected, or never will be.
    pub(super) connected: RefCell<Vec<(EpId, sys::Status)>>,
}

/// What the error callback of an endpoint gets.
pub(super) struct EpArg {
    pub(super) id: EpId,
    pub(super) inbox: Rc<Inbox>,
}

pub(super) struct Ep {
    pub(super) raw: *mut sys::RawEp,
    /// What UCX calls back with.
    pub(super) _arg: Box<EpArg>,
    /// UCX reports the peer's failure, and so it can be closed without the peer.
    pub(super) tells: bool,
    pub(super) has_failed: bool,
    pub(super) unsent: Rc<Cell<usize>>,
    /// Messages that wait until it is connected. None from then on.
    pub(super) waiting: Option<Vec<(Vec<u8>, Manner)>>,
    /// A message has made UCX ask for what it needs to know of the other side.
    pub(super) introduced: bool,
}

/// How a message is sent.
#[derive(Clone, Copy)]
pub(super) enum Manner {
    /// At once or not at all, as far as UCX is concerned: it asks the other side for nothing.
    Greeting,
    Eager,
    /// As a client would that leaves the bytes for the other side to fetch.
    #[cfg(test)]
    Rendezvous,
}

impl Ep {
    /// UCX has nothing of it left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.unsent.get() == 0 && self.waiting.is_none()
    }
}

/// What is told that UCX has connected an endpoint, or never will.
struct Connecting {
    id: EpId,
    inbox: Rc<Inbox>,
    free: unsafe extern "C" fn(*mut c_void),
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

/// Has messages given to `take` until it is dropped.
pub(super) struct Lent<'a> {
    inbox: Rc<Inbox>,
    _take: PhantomData<&'a mut Taker<'a>>,
}

impl<'a> Lent<'a> {
    pub(super) fn new(inbox: &Rc<Inbox>, take: &'a mut Taker<'a>) -> Self {
        let taker = NonNull::from(take);
        // SAFETY: only the lifetime changes, and the pointer is taken back when this is dropped, which is within the true one.
        let taker = unsafe { std::mem::transmute::<NonNull<Taker<'a>>, NonNull<Taker<'static>>>(taker) };
        inbox.taker.set(Some(taker));
        Lent { inbox: Rc::clone(inbox), _take: PhantomData }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.inbox.taker.set(None);
    }
}

impl Inbox {
    pub(super) fn keep(&self, mut bytes: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && (ROOM..=SPARE_BYTES).contains(&bytes.capacity()) {
            bytes.clear();
            spare.push(bytes);
        }
    }
    pub(super) fn take(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(ROOM))
    }
}

pub(super) extern "C" fn on_message(
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
    let message: &[u8] = match len {
        0 => &[],
        // SAFETY: without the rendezvous flag, `data` points to the `len` bytes of the message until this returns.
        _ => unsafe { std::slice::from_raw_parts(data.cast_const().cast::<u8>(), len) },
    };
    match inbox.taker.get() {
        // SAFETY: it is lent until UCX returns to `Worker::progress_with`, and is called here alone: as it calls nothing of UCX,
        // this does not happen inside of itself.
        Some(mut taker) => (unsafe { taker.as_mut() })(message),
        None => {
            let mut bytes = inbox.take();
            bytes.extend_from_slice(message);
            inbox.messages.borrow_mut().push_back(bytes);
        }
    }
    sys::OK
}

pub(super) extern "C" fn on_error(arg: *mut c_void, _ep: *mut sys::RawEp, status: sys::Status) {
    // SAFETY: `arg` is the endpoint's, which lives until the endpoint is closed, and UCX calls back before that alone.
    let arg = unsafe { &*arg.cast::<EpArg>() };
    arg.inbox.failed.borrow_mut().push((arg.id, status));
}

extern "C" fn on_sent(request: *mut c_void, _status: sys::Status, user_data: *mut c_void) {
    // SAFETY: `user_data` is the box that `hand_over` gave away; UCX calls back once for each request.
    let sending = unsafe { Box::from_raw(user_data.cast::<Sending>()) };
    // SAFETY: the request is complete, and nothing else uses it. A failure is reported by the endpoint's
    // callback.
    unsafe { (sending.free)(request) };
    sending.end();
}

extern "C" fn on_connected(request: *mut c_void, status: sys::Status, user_data: *mut c_void) {
    // SAFETY: `user_data` is the box that `connects` gave away; UCX calls back once for each request.
    let Connecting { id, inbox, free } = *unsafe { Box::from_raw(user_data.cast::<Connecting>()) };
    // SAFETY: the request is complete, and nothing else uses it. A failure is reported by the endpoint's callback.
    unsafe { free(request) };
    inbox.connected.borrow_mut().push((id, status));
}

/// Is an endpoint still to be connected? Then `on_connected` follows. Nothing was sent over it, so UCX can flush it as
/// soon as the transport has connected it.
pub(super) fn connects(api: &Api, inbox: &Rc<Inbox>, id: EpId, raw: *mut sys::RawEp) -> bool {
    let free = api.ucp_request_free;
    let connecting = Box::into_raw(Box::new(Connecting { id, inbox: Rc::clone(inbox), free }));
    let param = sys::RequestParam::new(0, Some(on_connected), connecting.cast());
    // SAFETY: the endpoint is open, and the box lives until `on_connected`, or until UCX says below that there is no
    // request.
    let waits = matches!(issued(unsafe { (api.ucp_ep_flush_nbx)(raw, &raw const param) }), Issued::Request(_));
    if !waits {
        // SAFETY: there is no request, so `on_connected` never comes: the box is ours again.
        drop(unsafe { Box::from_raw(connecting) });
    }
    waits
}

/// Hands a message to UCX. With the first one that cannot leave at once, UCX asks the other side for its number of the
/// endpoint, and UCX 1.13 ends the process there if the answer still waits when this side goes (docs/bugs/145). So the
/// first message counts as such a one, whatever its length: neither side has anything else to send then.
pub(super) fn hand_over(
    api: &Api,
    inbox: &Rc<Inbox>,
    ep: &mut Ep,
    bytes: Vec<u8>,
    manner: Manner,
) -> Result<(), String> {
    let (flags, introduces) = match manner {
        Manner::Greeting => (sys::AM_SEND_FLAG_EAGER, false),
        Manner::Eager => (sys::AM_SEND_FLAG_EAGER, !std::mem::replace(&mut ep.introduced, true)),
        #[cfg(test)]
        Manner::Rendezvous => (sys::AM_SEND_FLAG_RNDV, false),
    };
    ep.unsent.set(ep.unsent.get() + bytes.len());
    let idle = inbox.idle.borrow_mut().pop();
    let free = api.ucp_request_free;
    let mut sending = idle.unwrap_or_else(|| Box::new(Sending { bytes: Vec::new(), of: None, free }));
    sending.bytes = bytes;
    sending.of = Some((Rc::clone(&ep.unsent), Rc::clone(inbox)));
    let (data, len) = (sending.bytes.as_ptr(), sending.bytes.len());
    let sending = Box::into_raw(sending);
    let mut param = sys::RequestParam::new(flags, Some(on_sent), sending.cast());
    if introduces {
        param.op_attr_mask |= sys::OP_ATTR_FLAG_NO_IMM_CMPL;
    }
    let raw = ep.raw;
    // SAFETY: the endpoint is open; the message's bytes are in a vector that is neither touched nor freed before
    // `on_sent`, or before UCX says below that it is done with them.
    let pointer = unsafe { (api.ucp_am_send_nbx)(raw, MESSAGE, ptr::null(), 0, data.cast(), len, &raw const param) };
    match issued(pointer) {
        // `on_sent` follows, or has come already.
        Issued::Request(_) => Ok(()),
        ended => {
            // SAFETY: there is no request, so `on_sent` never comes: the box is ours again.
            unsafe { Box::from_raw(sending) }.end();
            match ended {
                Issued::Failed(status) => Err(format!("UCX: {}", text(api, status))),
                _ => Ok(()),
            }
        }
    }
}
