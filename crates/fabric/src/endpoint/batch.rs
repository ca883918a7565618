//! A batch of verbs: being built, in flight, and completed.
//!
//! Invariants: a batch that is refused (misaligned, too long) posts none of its verbs, and one without verbs costs
//! nothing; what is counted is what was posted; waiting for a batch is a round trip, unless it was in flight together
//! with one that the operation has already waited for; its chain and its buffers go back to the endpoint however it
//! ends.

use super::{Endpoint, Launched, MAX_READ_LEN, Span};
use crate::inflight::Landing;
use crate::meter::{Class, Counters};
use crate::{Buf, CallRefused, Chain, FabricError, RemotePtr, Verb, VerbKind};
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Names a verb of a batch, to fetch its result by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(usize);

/// The verbs of a batch.
pub(super) enum Verbs {
    /// One READ on mapped memory, as usual: it needs no chain.
    Read(RemotePtr, Buf),
    /// Any other verbs.
    Chain(Chain),
}

impl Default for Verbs {
    #[inline]
    fn default() -> Self {
        Verbs::Chain(Chain::new())
    }
}

impl Verbs {
    /// Number of verbs.
    #[inline]
    fn len(&self) -> usize {
        match self {
            Verbs::Read(..) => 1,
            Verbs::Chain(chain) => chain.len(),
        }
    }
    /// Makes a chain of them, with room that the endpoint keeps.
    #[inline]
    pub(super) fn into_chain(self, endpoint: &Endpoint) -> Chain {
        match self {
            Verbs::Chain(chain) if chain.capacity() > 0 => chain,
            other => other.into_kept_chain(endpoint),
        }
    }
    fn into_kept_chain(self, endpoint: &Endpoint) -> Chain {
        let mut chain = endpoint.chain();
        if let Verbs::Read(ptr, buf) = self {
            chain.push(Verb { ptr, fence: false, kind: VerbKind::Read(buf) });
        }
        chain
    }
}

/// Counts a READ.
#[inline]
pub(super) fn count_read(cost: &mut Counters, class: Class, buf: &Buf) {
    cost.reads += 1;
    cost.block_reads += u64::from(class == Class::Block);
    cost.bytes_read += buf.len() as u64;
}

/// Counts a batch of these verbs.
#[inline]
pub(super) fn count(cost: &mut Counters, class: Class, verbs: &[Verb]) {
    cost.batches += 1;
    for verb in verbs {
        match &verb.kind {
            VerbKind::Read(buf) => count_read(cost, class, buf),
            VerbKind::Write(buf) => {
                cost.writes += 1;
                cost.bytes_written += buf.len() as u64;
            }
            VerbKind::Cas { .. } | VerbKind::MaskedCas { .. } => cost.cas += 1,
            VerbKind::Faa { .. } => cost.faa += 1,
            VerbKind::Call { .. } | VerbKind::Revoke(_) => cost.calls += 1,
        }
    }
}

/// A batch that is being built: one doorbell, one round trip.
#[must_use = "nothing is posted until `post` or `post_detached`"]
pub struct Batch<'s> {
    span: &'s Span,
    verbs: Verbs,
    class: Class,
    fence: bool,
    /// Why it is refused. Behind a pointer, because a batch moves.
    failure: Option<Box<FabricError>>,
}

impl<'s> Batch<'s> {
    #[inline]
    pub(super) fn new(span: &'s Span, class: Class) -> Self {
        Batch { span, verbs: Verbs::default(), class, fence: false, failure: None }
    }
    /// Lets the batch fail with this error, unless it fails already. Nothing is posted.
    #[cold]
    pub(super) fn refuse(&mut self, error: FabricError) {
        self.failure.get_or_insert_with(|| Box::new(error));
    }
    #[inline]
    pub(super) fn push(&mut self, ptr: RemotePtr, kind: VerbKind) -> Ticket {
        let verb = Verb { ptr, fence: std::mem::take(&mut self.fence), kind };
        if !ptr.offset().is_multiple_of(8) && !verb.is_empty() {
            self.refuse(FabricError::Misaligned { ptr, len: verb.len() });
        }
        self.push_verb(verb)
    }
    #[inline]
    fn push_verb(&mut self, verb: Verb) -> Ticket {
        match &mut self.verbs {
            Verbs::Chain(chain) if chain.capacity() > 0 => {
                chain.push(verb);
                Ticket(chain.len() - 1)
            }
            _ => self.push_first(verb),
        }
    }
    /// Adds the first verb that needs a chain.
    #[inline(never)]
    fn push_first(&mut self, verb: Verb) -> Ticket {
        let mut chain = std::mem::take(&mut self.verbs).into_chain(&self.span.endpoint);
        let ticket = Ticket(chain.len());
        chain.push(verb);
        self.verbs = Verbs::Chain(chain);
        ticket
    }
    /// READ of `len` bytes, a multiple of 8, at most [`MAX_READ_LEN`].
    #[inline]
    pub fn read(&mut self, ptr: RemotePtr, len: usize) -> Ticket {
        if !(ptr.offset() | len as u64).is_multiple_of(8) || len > MAX_READ_LEN {
            self.check_read(ptr, len);
        }
        let buf = self.span.endpoint.buf(if self.failure.is_none() { len } else { 0 });
        if self.verbs.len() == 0 && !self.fence && self.span.endpoint.inner.runs_now.get() {
            self.verbs = Verbs::Read(ptr, buf);
            return Ticket(0);
        }
        let fence = std::mem::take(&mut self.fence);
        self.push_verb(Verb { ptr, fence, kind: VerbKind::Read(buf) })
    }
    #[cold]
    fn check_read(&mut self, ptr: RemotePtr, len: usize) {
        if len.is_multiple_of(8) && len > MAX_READ_LEN {
            self.refuse(FabricError::TooLong { ptr, len });
        } else if len > 0 {
            self.refuse(FabricError::Misaligned { ptr, len });
        }
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
    #[inline]
    pub fn cas(&mut self, ptr: RemotePtr, expect: u64, new: u64) -> Ticket {
        self.push(ptr, VerbKind::Cas { expect, new, old: 0 })
    }
    /// Compares the bits of `compare_mask` with those of `expect`, and stores those of `swap_mask` from `new`. Counted
    /// as a CAS.
    ///
    /// Only where [`Capabilities::masked_cas`](crate::Capabilities::masked_cas) says so. Elsewhere the batch is refused
    /// with [`FabricError::Unsupported`] and posts nothing: a loop of READ and CAS cannot run inside a batch without
    /// breaking G4. [`Span::masked_cas`] runs that loop, as verbs of its own.
    pub fn masked_cas(&mut self, ptr: RemotePtr, expect: u64, new: u64, compare_mask: u64, swap_mask: u64) -> Ticket {
        let endpoint = &self.span.endpoint;
        if !endpoint.capabilities().masked_cas {
            let fabric = endpoint.fabric_name();
            self.refuse(FabricError::Unsupported { fabric, verb: "masked CAS" });
        }
        self.push(ptr, VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, old: 0 })
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
        self.verbs.len()
    }
    /// No verbs yet?
    pub fn is_empty(&self) -> bool {
        self.verbs.len() == 0
    }

    /// Counts what is about to be posted.
    #[inline]
    fn count(&self) {
        let mut cost = self.span.cost.borrow_mut();
        match &self.verbs {
            Verbs::Read(_, buf) => {
                cost.batches += 1;
                count_read(&mut cost, self.class, buf);
            }
            Verbs::Chain(chain) => count(&mut cost, self.class, chain),
        }
    }

    /// Posts what is there. A batch that is refused beforehand, or has no verbs, has nothing posted: it costs nothing, and
    /// waiting for it is no round trip.
    #[inline]
    fn launch(self) -> Completion<'s> {
        if self.failure.is_some() || self.verbs.len() == 0 {
            return self.launch_nothing();
        }
        self.count();
        let Batch { span, mut verbs, class, .. } = self;
        let (state, failure) = match span.endpoint.launch(&mut verbs) {
            Launched::Done(failure) => (State::Fresh, failure),
            Launched::Flying(id) => (State::Flying(id), None),
            Launched::Fetching(from) => (State::Fetching(from), None),
        };
        Completion { span, verbs, failure, state, class, posted_after: span.waits.get() }
    }
    #[cold]
    fn launch_nothing(self) -> Completion<'s> {
        let Batch { span, class, failure, .. } = self;
        let posted_after = span.waits.get();
        Completion { span, verbs: Verbs::default(), failure, state: State::Ready, class, posted_after }
    }

    /// Posts the batch now. Await the completion, or the results are lost (the verbs still run).
    #[inline]
    pub fn post(self) -> Completion<'s> {
        self.launch()
    }

    /// Posts the batch now, and waits for nothing. `held` is dropped when the batch has ended; it is never dropped if
    /// the batch fails, or if the endpoint is dropped first. So what `held` protects stays protected as long as a verb
    /// of the batch may land, and the operation that posts the batch can return earlier. Counted as
    /// [`detached`](crate::meter::Counters::detached).
    pub fn post_holding(self, held: Box<dyn Any>) {
        if let Some((endpoint, id)) = self.leave() {
            let ended = endpoint.inner.flights.borrow_mut().hold(id, held);
            drop(ended);
        }
    }

    /// Posts the batch now, and waits for nothing: N5 applies to when it lands, and an error goes unseen.
    pub fn post_detached(self) {
        if let Some((endpoint, id)) = self.leave() {
            let unused = endpoint.inner.flights.borrow_mut().forget(id, false);
            debug_assert!(unused.is_none(), "no future waits for it yet");
            endpoint.inner.transport.borrow_mut().detached(id);
        }
    }

    /// Posts the batch without a future. Returns the endpoint and the batch's number, unless it has ended already.
    fn leave(self) -> Option<(&'s Endpoint, u64)> {
        let posts = self.failure.is_none() && !self.is_empty();
        let span = self.span;
        if posts {
            span.cost.borrow_mut().detached += 1;
        }
        let mut left = self.launch();
        match std::mem::replace(&mut left.state, State::Taken) {
            State::Flying(id) => Some((&span.endpoint, id)),
            // Nobody sees what READs alone return.
            State::Fresh | State::Ready | State::Fetching(_) | State::Fetched(_) | State::Taken => {
                span.endpoint.recycle(std::mem::take(&mut left.verbs));
                None
            }
        }
    }
}

enum State {
    /// It completed when it was posted, and was not polled yet.
    Fresh,
    /// It has ended.
    Ready,
    Flying(u64),
    /// Its memory is being fetched.
    Fetching(Duration),
    /// Its memory may be there.
    Fetched(Duration),
    /// Its results were taken.
    Taken,
}

/// A batch that has been posted. Awaiting it is a round trip.
#[must_use = "a batch without a waiter is posted with `post_detached`"]
pub struct Completion<'s> {
    span: &'s Span,
    /// None while the batch flies.
    verbs: Verbs,
    failure: Option<Box<FabricError>>,
    state: State,
    class: Class,
    posted_after: u32,
}

impl<'s> Completion<'s> {
    /// Carries out a batch whose memory was fetched ahead.
    fn carry_out(&mut self, from: Duration) {
        let mut chain = std::mem::take(&mut self.verbs).into_chain(&self.span.endpoint);
        let result = self.span.endpoint.inner.transport.borrow_mut().run_fetched(&mut chain, from);
        (self.verbs, self.failure) = (Verbs::Chain(chain), result.err());
    }

    /// Asks for a batch that has not just completed while it was posted; `None` while there is something to wait for.
    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Option<()> {
        match self.state {
            State::Ready => return Some(()),
            State::Fetched(from) => {
                self.carry_out(from);
                return Some(());
            }
            // It is done, and the others have a turn first.
            State::Fresh => self.state = State::Ready,
            State::Fetching(from) => self.state = State::Fetched(from),
            State::Flying(_) | State::Taken => {
                debug_assert!(false, "a completion was polled after it was done");
                return None;
            }
        }
        cx.waker().wake_by_ref();
        None
    }

    /// Asks for a batch that flies.
    #[inline(never)]
    fn land(&mut self, id: u64, cx: &mut Context<'_>) -> Poll<Result<Done, FabricError>> {
        let landing = self.span.endpoint.inner.flights.borrow_mut().poll(id, cx);
        match landing {
            Landing::Waits(unused) => {
                drop(unused);
                Poll::Pending
            }
            Landing::Ended(chain, failure) => {
                self.state = State::Taken;
                self.count_wait(chain.len());
                if let Some(error) = failure {
                    self.give_back(Verbs::Chain(chain));
                    return Poll::Ready(Err(*error));
                }
                Poll::Ready(Ok(Done { verbs: Verbs::Chain(chain), home: Some(self.span.endpoint.clone()) }))
            }
            Landing::Taken => {
                self.state = State::Taken;
                debug_assert!(false, "a completion was taken by another");
                Poll::Pending
            }
        }
    }

    /// Counts the wait that ends with so many verbs, unless the operation has waited meanwhile.
    #[inline]
    fn count_wait(&self, verbs: usize) {
        if verbs > 0 {
            self.span.count_wait(self.class, self.posted_after);
        }
    }

    #[cold]
    fn give_back(&self, verbs: Verbs) {
        self.span.endpoint.recycle(verbs);
    }
}

impl<'s> Future for Completion<'s> {
    type Output = Result<Done, FabricError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::Flying(id) = this.state {
            return this.land(id, cx);
        }
        let ready = matches!(this.state, State::Fresh) && !this.span.endpoint.inner.should_yield();
        if !ready && this.wait(cx).is_none() {
            return Poll::Pending;
        }
        this.state = State::Taken;
        this.count_wait(this.verbs.len());
        let verbs = std::mem::take(&mut this.verbs);
        if let Some(error) = this.failure.take() {
            this.give_back(verbs);
            return Poll::Ready(Err(*error));
        }
        let home = matches!(verbs, Verbs::Chain(_)).then(|| this.span.endpoint.clone());
        Poll::Ready(Ok(Done { verbs, home }))
    }
}

impl Drop for Completion<'_> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Taken) {
            self.abandon();
        }
    }
}

impl Completion<'_> {
    #[cold]
    fn abandon(&mut self) {
        self.span.cost.borrow_mut().abandoned += 1;
        if let State::Flying(id) = self.state {
            let inner = &self.span.endpoint.inner;
            let unused = inner.flights.borrow_mut().forget(id, true);
            drop(unused);
            inner.transport.borrow_mut().abandoned(id);
        }
    }
}

/// A completed batch.
pub struct Done {
    verbs: Verbs,
    /// Where a chain goes back to.
    home: Option<Endpoint>,
}

impl Done {
    #[inline]
    fn verb(&mut self, ticket: Ticket) -> Option<&mut Verb> {
        match &mut self.verbs {
            Verbs::Read(..) => None,
            Verbs::Chain(chain) => chain.get_mut(ticket.0),
        }
    }
    /// Takes the buffer of a READ. A second time, or for another verb, it is an empty buffer.
    #[inline]
    pub fn buf(&mut self, ticket: Ticket) -> Buf {
        if let Verbs::Read(..) = self.verbs
            && ticket == Ticket(0)
            && let Verbs::Read(_, buf) = std::mem::take(&mut self.verbs)
        {
            return buf;
        }
        // An atomic that nobody asks for takes the place of the READ.
        match self.verb(ticket).map(|verb| &mut verb.kind) {
            Some(kind @ VerbKind::Read(_)) => match std::mem::replace(kind, VerbKind::Faa { add: 0, old: 0 }) {
                VerbKind::Read(buf) => buf,
                _ => Buf::default(),
            },
            other => {
                let taken = matches!(other, None | Some(VerbKind::Faa { add: 0, old: 0 }));
                debug_assert!(taken, "not the ticket of a READ");
                Buf::default()
            }
        }
    }
    /// The buffers of READs that nobody has taken, in the order of the batch.
    pub fn bufs(&self) -> impl Iterator<Item = &Buf> {
        let (single, chain) = match &self.verbs {
            Verbs::Read(_, buf) => (Some(buf), None),
            Verbs::Chain(chain) => (None, Some(chain.iter())),
        };
        let of_chain = chain.into_iter().flatten().filter_map(|verb| match &verb.kind {
            VerbKind::Read(buf) => Some(buf),
            _ => None,
        });
        single.into_iter().chain(of_chain)
    }
    /// The word before a CAS or FAA.
    #[inline]
    pub fn old(&mut self, ticket: Ticket) -> u64 {
        match self.verb(ticket).map(|verb| &verb.kind) {
            Some(VerbKind::Cas { old, .. } | VerbKind::Faa { old, .. } | VerbKind::MaskedCas { old, .. }) => *old,
            _ => {
                debug_assert!(false, "not the ticket of an atomic");
                0
            }
        }
    }
    /// The reply of a CALL. It can be taken once.
    pub(super) fn reply(&mut self, ticket: Ticket) -> Result<Vec<u8>, FabricError> {
        let Some(Verb { ptr, kind: VerbKind::Call { reply, .. }, .. }) = self.verb(ticket) else {
            debug_assert!(false, "not the ticket of a CALL");
            return Ok(Vec::new());
        };
        let reply = reply.take().unwrap_or_else(|| Err("there is no reply".into()));
        reply.map_err(|CallRefused(reason)| FabricError::CallRefused { node: ptr.node(), reason })
    }
}

impl Drop for Done {
    #[inline]
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.recycle(std::mem::take(&mut self.verbs));
        }
    }
}
