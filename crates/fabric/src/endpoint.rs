//! The endpoint: a worker thread's connection to far memory.
//!
//! Invariants: a verb is posted when it is called, not when its future is first polled; every posted batch is completed
//! exactly once (G1), by the fabric or by the deadline; a batch whose future is dropped still runs, and its buffers stay
//! with the fabric until then; not waiting for a batch is a choice ([`Batch::post_detached`]), and a future that is
//! dropped early is counted as `abandoned`, which tests hold at zero.
//!
//! An operation of an index opens a [`Span`], posts all its verbs through it, and so has them counted under its kind.

use crate::buf::BufPool;
use crate::flights::{Ending, Flights};
use crate::meter::{Class, Counters, Meter, OpKind};
use crate::timer::{Sleep, Timers};
use crate::transport::{Capabilities, Completions, Identity, Post, Transport};
use crate::{Buf, Chain, Driver, FabricError, NodeId, RemotePtr, Verb, VerbKind};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long a batch may take before it fails, unless [`Endpoint::set_deadline`] says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);

/// Bytes that one READ may fetch at most. A length often comes out of far memory: a wild one is an error, and not an
/// attempt to allocate as much.
pub const MAX_READ_LEN: usize = 1 << 30;

/// A worker thread's connection to every memory node. Cheap to clone; clones share buffers, meter and connection.
#[derive(Clone)]
pub struct Endpoint {
    inner: Rc<Inner>,
}

struct Inner {
    transport: RefCell<Box<dyn Transport>>,
    flights: RefCell<Flights>,
    buffers: Rc<BufPool>,
    chains: RefCell<Vec<Chain>>,
    meter: RefCell<Meter>,
    timers: RefCell<Timers>,
    deadline: Cell<Duration>,
    /// Batches that completed at once since the endpoint was last asked for progress.
    streak: Cell<u32>,
}

/// On a fabric whose verbs complete at once, a coroutine would never let another one of its thread run. So it makes way
/// after so many batches: soon while somebody sleeps, who may hold what others wait for (an epoch, a lock).
const STREAK: u32 = 512;
const STREAK_WHILE_SLEEPING: u32 = 16;

impl Inner {
    /// Is it time that the coroutine whose batch has completed at once makes way?
    fn makes_way(&self) -> bool {
        let streak = self.streak.get() + 1;
        let limit = if self.timers.borrow().is_empty() { STREAK } else { STREAK_WHILE_SLEEPING };
        self.streak.set(if streak >= limit { 0 } else { streak });
        streak >= limit
    }
}

impl Endpoint {
    /// Puts an endpoint on top of a connection.
    pub fn new(transport: Box<dyn Transport>) -> Self {
        let buffers = Rc::new(BufPool::new(transport.registrar()));
        Endpoint {
            inner: Rc::new(Inner {
                transport: RefCell::new(transport),
                flights: RefCell::default(),
                buffers,
                chains: RefCell::default(),
                meter: RefCell::default(),
                timers: RefCell::default(),
                deadline: Cell::new(DEFAULT_DEADLINE),
                streak: Cell::new(0),
            }),
        }
    }
    /// Opens the account of one operation.
    pub fn span(&self, kind: OpKind) -> Span {
        Span { endpoint: self.clone(), kind, cost: RefCell::default(), waits: Cell::new(0) }
    }
    /// A buffer of `len` bytes with undefined content.
    pub fn buf(&self, len: usize) -> Buf {
        self.inner.buffers.take(len)
    }
    /// A buffer that holds these bytes, zero-padded to whole words.
    pub fn buf_from(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.buf(bytes.len());
        if let Some(last) = buf.words_mut().last_mut() {
            *last = 0;
        }
        buf.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        buf
    }
    /// A buffer that holds these words.
    pub fn buf_from_words(&self, words: &[u64]) -> Buf {
        let mut buf = self.buf(words.len() * 8);
        buf.words_mut().copy_from_slice(words);
        buf
    }
    /// What has been counted so far.
    pub fn meter(&self) -> Meter {
        self.inner.meter.borrow().clone()
    }
    /// Time on the fabric's clock.
    pub fn now(&self) -> Duration {
        self.inner.transport.borrow().now()
    }
    /// Completes after `pause` on the fabric's clock.
    pub fn sleep(&self, pause: Duration) -> Sleep {
        let at = self.now() + pause;
        self.inner.transport.borrow_mut().wake_at(at);
        Sleep::new(self.clone(), at)
    }
    pub(crate) fn timers(&self) -> &RefCell<Timers> {
        &self.inner.timers
    }
    /// Batches that have not completed after this long fail with [`FabricError::Deadline`], those in flight included.
    pub fn set_deadline(&self, deadline: Duration) {
        self.inner.deadline.set(deadline);
        let mut transport = self.inner.transport.borrow_mut();
        for posted in self.inner.flights.borrow().posting_times() {
            transport.wake_at(posted.saturating_add(deadline));
        }
    }
    /// Completions that came for no batch in flight: after its deadline, or a second time (which no fabric may do).
    pub fn strays(&self) -> u64 {
        self.inner.flights.borrow().strays()
    }
    /// Batches in flight that nobody waits for and that hold something: see [`Batch::post_holding`].
    pub fn trailing(&self) -> usize {
        self.inner.flights.borrow().holding()
    }
    /// Waits until no batch that was posted by [`Batch::post_holding`] is in flight: whoever is about to leave an endpoint
    /// owes it that.
    pub async fn settle(&self) {
        let mut pause = Duration::from_nanos(500);
        while self.trailing() > 0 {
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
    /// What the fabric can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.transport.borrow().capabilities()
    }
    /// Name of the fabric.
    pub fn fabric_name(&self) -> &'static str {
        self.inner.transport.borrow().name()
    }

    fn chain(&self) -> Chain {
        self.inner.chains.borrow_mut().pop().unwrap_or_default()
    }
    fn recycle(&self, mut chain: Chain) {
        chain.clear();
        let mut free = self.inner.chains.borrow_mut();
        if free.len() < 64 {
            free.push(chain);
        }
    }

    /// Hands a chain to the transport. `Err` is the number it will complete under.
    fn launch(&self, chain: Chain) -> Result<Ending, u64> {
        let node = chain.first().map_or(NodeId::new(0), Verb::node);
        let id = self.inner.flights.borrow_mut().open();
        let mut transport = self.inner.transport.borrow_mut();
        match transport.post(id, chain) {
            Post::Done(chain, result) => {
                self.inner.flights.borrow_mut().close(id);
                Ok((chain, result))
            }
            Post::Pending => {
                let now = transport.now();
                let due = now.saturating_add(self.inner.deadline.get());
                let mut flights = self.inner.flights.borrow_mut();
                if flights.arm(now, due) {
                    transport.wake_at(due);
                }
                flights.posted(id, node, now);
                Err(id)
            }
        }
    }
}

struct Arrivals<'a> {
    inner: &'a Inner,
    /// Who waits for the first completion: mostly there is one, and it needs no allocation.
    first: Option<Waker>,
    woken: Vec<Waker>,
}

impl Completions for Arrivals<'_> {
    fn complete(&mut self, id: u64, chain: Chain, result: Result<(), FabricError>) {
        let waker = self.inner.flights.borrow_mut().settle(id, chain, result);
        match self.first {
            None => self.first = waker,
            Some(_) => self.woken.extend(waker),
        }
    }
}

impl Driver for Endpoint {
    fn progress(&self) -> bool {
        let mut any = false;
        if !self.inner.flights.borrow().is_empty() {
            let mut arrivals = Arrivals { inner: &self.inner, first: None, woken: Vec::new() };
            let mut transport = self.inner.transport.borrow_mut();
            any = transport.progress(&mut arrivals);
            let now = transport.now();
            drop(transport);
            arrivals.first.into_iter().chain(arrivals.woken).for_each(Waker::wake);
            let deadline = self.inner.deadline.get();
            let (expired, woken) = self.inner.flights.borrow_mut().expire(now, deadline);
            woken.into_iter().for_each(Waker::wake);
            let rearm = self.inner.flights.borrow_mut().rearm(now, deadline);
            if let Some(due) = rearm {
                self.inner.transport.borrow_mut().wake_at(due);
            }
            any |= expired;
            let released = self.inner.flights.borrow_mut().take_released();
            drop(released);
        }
        if !self.inner.timers.borrow().is_empty() {
            let now = self.now();
            let due = self.inner.timers.borrow_mut().due(now);
            any |= !due.is_empty();
            due.into_iter().for_each(Waker::wake);
        }
        any
    }
}

/// The account of one operation: every verb it posts, and every wait.
pub struct Span {
    endpoint: Endpoint,
    kind: OpKind,
    cost: RefCell<Counters>,
    /// Waits that have ended. A batch posted before the latest of them was in flight together with it.
    waits: Cell<u32>,
}

impl Span {
    /// The endpoint that its verbs go through.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
    /// What kind of operation it is.
    pub fn kind(&self) -> OpKind {
        self.kind
    }
    /// What the operation has cost so far.
    pub fn cost(&self) -> Counters {
        *self.cost.borrow()
    }
    /// Begins a batch of verbs on the index itself.
    pub fn batch(&self) -> Batch<'_> {
        self.batch_of(Class::Index)
    }
    /// Begins a batch that only dereferences key-value blocks.
    pub fn block_batch(&self) -> Batch<'_> {
        self.batch_of(Class::Block)
    }
    fn batch_of(&self, class: Class) -> Batch<'_> {
        Batch { span: self, chain: self.endpoint.chain(), class, fence: false, failure: None }
    }
    /// READs `len` bytes.
    pub fn read(&self, ptr: RemotePtr, len: usize) -> impl Future<Output = Result<Buf, FabricError>> + '_ {
        let mut batch = self.batch();
        let ticket = batch.read(ptr, len);
        let posted = batch.post();
        async move { Ok(posted.await?.buf(ticket)) }
    }
    /// WRITEs a buffer.
    pub fn write(&self, ptr: RemotePtr, buf: Buf) -> impl Future<Output = Result<(), FabricError>> + '_ {
        let mut batch = self.batch();
        batch.write(ptr, buf);
        let posted = batch.post();
        async move { posted.await.map(drop) }
    }
    /// Compare-and-swap; returns the word before.
    pub fn cas(&self, ptr: RemotePtr, expect: u64, new: u64) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        let mut batch = self.batch();
        let ticket = batch.cas(ptr, expect, new);
        let posted = batch.post();
        async move { Ok(posted.await?.old(ticket)) }
    }
    /// Fetch-and-add; returns the word before.
    pub fn faa(&self, ptr: RemotePtr, add: u64) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        let mut batch = self.batch();
        let ticket = batch.faa(ptr, add);
        let posted = batch.post();
        async move { Ok(posted.await?.old(ticket)) }
    }
    /// Compares the bits of `compare_mask` and stores those of `swap_mask`; returns the word before. One verb where the
    /// fabric has it; elsewhere a READ and a loop of CAS, each of which is counted.
    pub fn masked_cas(
        &self,
        ptr: RemotePtr,
        expect: u64,
        new: u64,
        compare_mask: u64,
        swap_mask: u64,
    ) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        let native = self.endpoint.capabilities().masked_cas;
        let mut batch = self.batch();
        let ticket = if native {
            batch.push(ptr, VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, old: 0 })
        } else {
            batch.read(ptr, 8)
        };
        let posted = batch.post();
        async move {
            let mut done = posted.await?;
            if native {
                return Ok(done.old(ticket));
            }
            let mut seen = done.buf(ticket).words().first().copied().unwrap_or_default();
            loop {
                if (seen ^ expect) & compare_mask != 0 {
                    return Ok(seen);
                }
                let old = self.cas(ptr, seen, seen & !swap_mask | new & swap_mask).await?;
                if old == seen {
                    return Ok(old);
                }
                seen = old;
            }
        }
    }
    /// Asks the memory node's CPU.
    pub fn call(&self, node: NodeId, request: Buf) -> impl Future<Output = Result<Vec<u8>, FabricError>> + '_ {
        let mut batch = self.batch();
        let ticket = batch.push(RemotePtr::new(node, 0), VerbKind::Call { request, reply: None });
        let posted = batch.post();
        async move { Ok(posted.await?.reply(ticket)) }
    }
    /// Shuts a client out of one memory node (G6).
    pub fn revoke(&self, node: NodeId, identity: Identity) -> impl Future<Output = Result<(), FabricError>> + '_ {
        let mut batch = self.batch();
        batch.push(RemotePtr::new(node, 0), VerbKind::Revoke(identity));
        let posted = batch.post();
        async move { posted.await.map(drop) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.endpoint.inner.meter.borrow_mut().record(self.kind, self.cost.get_mut());
    }
}

/// Names a verb of a batch, to fetch its result by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(usize);

/// A batch in the making: one doorbell, one round trip.
#[must_use = "nothing is posted until `post` or `post_detached`"]
pub struct Batch<'s> {
    span: &'s Span,
    chain: Chain,
    class: Class,
    fence: bool,
    failure: Option<FabricError>,
}

impl<'s> Batch<'s> {
    fn push(&mut self, ptr: RemotePtr, kind: VerbKind) -> Ticket {
        let verb = Verb { ptr, fence: std::mem::take(&mut self.fence), kind };
        if !ptr.offset().is_multiple_of(8) && !verb.is_empty() {
            self.failure.get_or_insert(FabricError::Misaligned { ptr, len: verb.len() });
        }
        self.chain.push(verb);
        Ticket(self.chain.len() - 1)
    }
    /// READ of `len` bytes, a multiple of 8, at most [`MAX_READ_LEN`].
    pub fn read(&mut self, ptr: RemotePtr, len: usize) -> Ticket {
        if !len.is_multiple_of(8) {
            self.failure.get_or_insert(FabricError::Misaligned { ptr, len });
        }
        if len > MAX_READ_LEN {
            self.failure.get_or_insert(FabricError::TooLong { ptr, len });
        }
        let buf = self.span.endpoint.buf(if self.failure.is_none() { len } else { 0 });
        self.push(ptr, VerbKind::Read(buf))
    }
    /// WRITE of a buffer.
    pub fn write(&mut self, ptr: RemotePtr, buf: Buf) -> Ticket {
        self.push(ptr, VerbKind::Write(buf))
    }
    /// WRITE of a few words.
    pub fn write_words(&mut self, ptr: RemotePtr, words: &[u64]) -> Ticket {
        let buf = self.span.endpoint.buf_from_words(words);
        self.write(ptr, buf)
    }
    /// Compare-and-swap.
    pub fn cas(&mut self, ptr: RemotePtr, expect: u64, new: u64) -> Ticket {
        self.push(ptr, VerbKind::Cas { expect, new, old: 0 })
    }
    /// Fetch-and-add, wrapping.
    pub fn faa(&mut self, ptr: RemotePtr, add: u64) -> Ticket {
        self.push(ptr, VerbKind::Faa { add, old: 0 })
    }
    /// The next verb waits for every READ and atomic before it (N3 otherwise).
    pub fn fence(&mut self) {
        self.fence = true;
    }
    /// Verbs so far.
    pub fn len(&self) -> usize {
        self.chain.len()
    }
    /// No verbs yet?
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Counts what is about to be posted. What is refused beforehand, and a batch without verbs, costs nothing.
    fn count(&self) -> bool {
        if self.failure.is_some() || self.chain.is_empty() {
            return false;
        }
        let mut cost = self.span.cost.borrow_mut();
        cost.batches += 1;
        for verb in &self.chain {
            match &verb.kind {
                VerbKind::Read(buf) => {
                    cost.reads += 1;
                    cost.block_reads += u64::from(self.class == Class::Block);
                    cost.bytes_read += buf.len() as u64;
                }
                VerbKind::Write(buf) => {
                    cost.writes += 1;
                    cost.bytes_written += buf.len() as u64;
                }
                VerbKind::Cas { .. } | VerbKind::MaskedCas { .. } => cost.cas += 1,
                VerbKind::Faa { .. } => cost.faa += 1,
                VerbKind::Call { .. } | VerbKind::Revoke(_) => cost.calls += 1,
            }
        }
        true
    }

    fn launch(self) -> (State, &'s Span, Class) {
        let Batch { span, chain, class, failure, .. } = self;
        let state = match failure {
            Some(error) => {
                // Nothing was posted, so waiting for it is no round trip.
                span.endpoint.recycle(chain);
                State::Ready(Some((Chain::new(), Err(error))))
            }
            None if chain.is_empty() => State::Ready(Some((chain, Ok(())))),
            None => match span.endpoint.launch(chain) {
                Ok(done) => State::Fresh(Some(done)),
                Err(id) => State::Flying(id),
            },
        };
        (state, span, class)
    }

    /// Posts the batch now. Await the completion, or the results are lost (the verbs still run).
    pub fn post(self) -> Completion<'s> {
        self.count();
        let posted_after = self.span.waits.get();
        let (state, span, class) = self.launch();
        Completion { state, span, class, posted_after }
    }

    /// Posts the batch now, and waits for nothing; `held` is dropped when the batch has ended, and never if it fails,
    /// or if the endpoint is gone by then. So what `held` protects stays protected as long as a verb of the batch may land, and the operation that
    /// posts it can answer before. Counted as [`detached`](crate::meter::Counters::detached).
    pub fn post_holding(self, held: Box<dyn Any>) {
        if self.count() {
            self.span.cost.borrow_mut().detached += 1;
        }
        let (state, span, _) = self.launch();
        match state {
            State::Fresh(Some((chain, _))) | State::Ready(Some((chain, _))) => span.endpoint.recycle(chain),
            State::Fresh(None) | State::Ready(None) => {}
            State::Flying(id) => {
                let ended = span.endpoint.inner.flights.borrow_mut().hold(id, held);
                drop(ended);
            }
        }
    }

    /// Posts the batch now, and waits for nothing: N5 applies to when it lands, and an error goes unseen.
    pub fn post_detached(self) {
        if self.count() {
            self.span.cost.borrow_mut().detached += 1;
        }
        let (state, span, _) = self.launch();
        match state {
            State::Fresh(Some((chain, _))) | State::Ready(Some((chain, _))) => span.endpoint.recycle(chain),
            State::Fresh(None) | State::Ready(None) => {}
            State::Flying(id) => {
                let unused = span.endpoint.inner.flights.borrow_mut().forget(id);
                debug_assert!(unused.is_none(), "nobody can wait for it yet");
                span.endpoint.inner.transport.borrow_mut().detached(id);
            }
        }
    }
}

enum State {
    /// It completed when it was posted, and was not polled yet.
    Fresh(Option<Ending>),
    Ready(Option<Ending>),
    Flying(u64),
}

/// A batch that has been posted. Awaiting it is a round trip.
#[must_use = "a batch that nobody waits for is posted with `post_detached`"]
pub struct Completion<'s> {
    state: State,
    span: &'s Span,
    class: Class,
    posted_after: u32,
}

impl<'s> Future for Completion<'s> {
    type Output = Result<Done, FabricError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Flying(id) = self.state {
            let (polled, unused) = self.span.endpoint.inner.flights.borrow_mut().poll(id, cx);
            drop(unused);
            let Poll::Ready(ending) = polled else {
                return Poll::Pending;
            };
            self.state = State::Ready(ending);
        }
        if let State::Fresh(ending) = &mut self.state {
            let ending = ending.take();
            self.state = State::Ready(ending);
            if self.span.endpoint.inner.makes_way() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let State::Ready(done) = &mut self.state else {
            return Poll::Pending;
        };
        let Some((chain, result)) = done.take() else {
            debug_assert!(false, "a completion was polled after it was done");
            return Poll::Pending;
        };
        if self.posted_after == self.span.waits.get() && !chain.is_empty() {
            self.span.waits.set(self.posted_after + 1);
            let mut cost = self.span.cost.borrow_mut();
            cost.round_trips += 1;
            cost.block_round_trips += u64::from(self.class == Class::Block);
        }
        match result {
            Ok(()) => Poll::Ready(Ok(Done { chain, endpoint: self.span.endpoint.clone() })),
            Err(error) => {
                self.span.endpoint.recycle(chain);
                Poll::Ready(Err(error))
            }
        }
    }
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        match &self.state {
            State::Fresh(None) | State::Ready(None) => {}
            State::Fresh(Some(_)) | State::Ready(Some(_)) => self.span.cost.borrow_mut().abandoned += 1,
            State::Flying(id) => {
                self.span.cost.borrow_mut().abandoned += 1;
                let unused = self.span.endpoint.inner.flights.borrow_mut().forget(*id);
                drop(unused);
            }
        }
    }
}

/// A completed batch.
pub struct Done {
    chain: Chain,
    endpoint: Endpoint,
}

impl Done {
    fn kind(&mut self, ticket: Ticket) -> Option<&mut VerbKind> {
        self.chain.get_mut(ticket.0).map(|verb| &mut verb.kind)
    }
    /// What a READ fetched. Each can be taken once; a second time, or for another verb, it is an empty buffer.
    pub fn buf(&mut self, ticket: Ticket) -> Buf {
        let empty = self.endpoint.inner.buffers.hollow();
        match self.kind(ticket) {
            Some(VerbKind::Read(buf)) => std::mem::replace(buf, empty),
            other => {
                debug_assert!(other.is_none(), "not the ticket of a READ");
                empty
            }
        }
    }
    /// The word before a CAS or FAA.
    pub fn old(&mut self, ticket: Ticket) -> u64 {
        match self.kind(ticket) {
            Some(VerbKind::Cas { old, .. } | VerbKind::Faa { old, .. } | VerbKind::MaskedCas { old, .. }) => *old,
            _ => {
                debug_assert!(false, "not the ticket of an atomic");
                0
            }
        }
    }
    /// What the memory node's CPU answered.
    pub fn reply(&mut self, ticket: Ticket) -> Vec<u8> {
        match self.kind(ticket) {
            Some(VerbKind::Call { reply, .. }) => reply.take().unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.endpoint.recycle(std::mem::take(&mut self.chain));
    }
}
