//! Workers: they make endpoints, send and receive messages, and are waited for.

use super::context::Context;
use super::endpoint::{Ep, EpArg, EpId, Inbox, Lent, MESSAGE, Manner, connects, hand_over, on_error, on_message};
use super::sys::{self, Api};
use super::{Issued, check, issued, text};
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
        let waiting = connects(self.api(), &self.inbox, id, raw).then(Vec::new);
        let (unsent, has_failed, introduced) = (Rc::default(), false, false);
        self.eps.insert(id, Ep { raw, _arg: arg, tells, has_failed, unsent, waiting, introduced });
        Ok(id)
    }

    /// Hands the messages that have waited for an endpoint to UCX.
    fn connected(&mut self) {
        let connected = std::mem::take(&mut *self.inbox.connected.borrow_mut());
        for (id, status) in connected {
            let Some(ep) = self.eps.get_mut(&id).or_else(|| self.leaving.get_mut(&id)) else { continue };
            for (bytes, manner) in ep.waiting.take().unwrap_or_default() {
                ep.unsent.set(ep.unsent.get().saturating_sub(bytes.len()));
                if status == sys::OK {
                    // A failure is reported by the endpoint's callback.
                    let _ = hand_over(self.context.api, &self.inbox, ep, bytes, manner);
                }
            }
        }
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
        self.send_as(id, bytes, Manner::Eager)
    }
    /// Sends a short message, the first one, as [`send`](Self::send) does. UCX asks nothing of the other side for it.
    pub(crate) fn greet(&mut self, id: EpId, bytes: Vec<u8>) -> Result<(), String> {
        self.send_as(id, bytes, Manner::Greeting)
    }
    /// As a client would that leaves the bytes for the other side to fetch.
    #[cfg(test)]
    pub(crate) fn send_by_rendezvous(&mut self, id: EpId, bytes: Vec<u8>) -> Result<(), String> {
        self.send_as(id, bytes, Manner::Rendezvous)
    }

    fn send_as(&mut self, id: EpId, bytes: Vec<u8>, manner: Manner) -> Result<(), String> {
        let ep = self.eps.get_mut(&id).ok_or("the endpoint is closed")?;
        match &mut ep.waiting {
            Some(waiting) => {
                ep.unsent.set(ep.unsent.get() + bytes.len());
                waiting.push((bytes, manner));
                Ok(())
            }
            None => hand_over(self.context.api, &self.inbox, ep, bytes, manner),
        }
    }

    /// Bytes handed to this endpoint that have not left yet.
    pub(crate) fn unsent(&self, id: EpId) -> usize {
        self.eps.get(&id).map_or(0, |ep| ep.unsent.get())
    }

    /// As [`progress`](Self::progress), with messages given to `take` as they come, and not kept. A panic in it ends the
    /// process.
    pub(crate) fn progress_with<'a>(&mut self, take: &'a mut (dyn FnMut(&[u8]) + 'a)) {
        let lent = Lent::new(&self.inbox, take);
        self.progress();
        drop(lent);
    }
    /// Lets UCX work; says whether it did anything.
    pub(crate) fn progress(&mut self) -> bool {
        // SAFETY: the worker lives, this is its thread, and no borrow of the inbox is held.
        let any = unsafe { (self.api().ucp_worker_progress)(self.raw) } != 0;
        self.connected();
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
            let (sent, waits) = std::mem::take(&mut self.leaving).into_iter().partition(|(_, ep)| ep.is_idle());
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
        if ep.tells && !failed && !ep.is_idle() {
            self.leaving.insert(id, ep);
        } else {
            self.end(ep);
        }
    }

    fn end(&mut self, ep: Ep) {
        let flags = if ep.tells { sys::EP_CLOSE_FLAG_FORCE } else { 0 };
        let param = sys::RequestParam::new(flags, None, ptr::null_mut());
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
    use crate::hostile::{TIME_LIMIT, is_there};
    use crate::ucp::ContextSettings;

    #[test]
    fn what_is_sent_before_the_connection_is_there_waits_for_it() {
        if !is_there() {
            return;
        }
        let context = Context::new(ContextSettings { wakeup: false, loopback: true }).unwrap();
        let (mut near, mut far) = (Worker::new(&context).unwrap(), Worker::new(&context).unwrap());
        let ep = near.connect(&far.address().unwrap()).unwrap();
        let messages = [vec![1; 8], vec![2; 100_000], vec![3; 8]];
        for message in &messages {
            near.send(ep, message.clone()).unwrap();
        }
        // UCX has none of them, and closing it would wait for them.
        assert_eq!(near.eps[&ep].waiting.as_ref().map(Vec::len), Some(3));
        assert_eq!((near.unsent(ep), near.eps[&ep].is_idle()), (100_016, false));
        let mut received = Vec::new();
        let since = Instant::now();
        while received.len() < 3 || !near.eps[&ep].is_idle() {
            assert!(since.elapsed() < TIME_LIMIT, "{} have arrived", received.len());
            near.progress();
            far.progress();
            received.extend(far.received());
        }
        assert_eq!(received, messages);
    }

    #[test]
    fn lanes_are_read_from_what_ucx_says() {
        let info = "#\n#      lane[0]:  1:tcp/lo.0 md[1]      -> addr[0].md[1]/tcp/sysdev[255] am am_bw#0\n\
                    #      lane[1]:  5:posix/memory.0 md[3]      -> md[3] rma_bw\n";
        assert_eq!(lanes(info), ["tcp/lo", "posix/memory"]);
    }
}
