//! The endpoint: a worker thread's connection to far memory.
//!
//! Invariants: a verb is posted when it is called, not when its future is first polled; every posted batch is completed
//! exactly once (G1), by the fabric or by the deadline; a batch whose future is dropped still runs, and its buffers
//! stay with the fabric until then; a batch that a fabric collects is sent at the latest when the endpoint is next asked
//! for progress, and at once if no executor runs on this thread and none has announced that it soon will; a batch on
//! mapped memory is carried out in place when it is posted, and its chain and results never move; not waiting for a batch
//! is a choice ([`Batch::post_detached`]), and a future that is dropped early is counted as `abandoned`, which tests hold
//! at zero.
//!
//! An operation of an index opens a [`Span`], posts all its verbs through it, and so has them counted under its kind.

mod batch;
mod span;

use batch::Verbs;
pub use batch::{Batch, Completion, Done, Ticket};
pub use span::Span;

use crate::buf::BufPool;
use crate::doubts::Nodes;
use crate::exec::yield_now;
use crate::inflight::Inflight;
use crate::meter::{Meter, OpKind};
use crate::timer::{Sleep, Timers};
use crate::transport::{Capabilities, Completions, Post, Transport};
use crate::{Buf, Chain, Driver, FabricError, Idle, NodeId, Verb};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

/// How long a batch may take before it fails, unless [`Endpoint::set_deadline`] says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);

/// Bytes that one READ may fetch at most. A length often comes out of far memory: a corrupted one is an error,
/// and not an attempt to allocate as much.
pub const MAX_READ_LEN: usize = 1 << 30;

/// A worker thread's connection to every memory node. Cheap to clone; clones share buffers, meter and connection.
#[derive(Clone)]
pub struct Endpoint {
    inner: Rc<Inner>,
}

struct Inner {
    transport: RefCell<Box<dyn Transport>>,
    flights: RefCell<Inflight>,
    buffers: Rc<BufPool>,
    chains: RefCell<Vec<Chain>>,
    meter: RefCell<Meter>,
    timers: RefCell<Timers>,
    deadline: Cell<Duration>,
    /// Batches that completed at once since the endpoint was last asked for progress.
    streak: Cell<u32>,
    /// Wakers of what has completed: kept for its room.
    arrived: RefCell<Vec<Waker>>,
    /// Are batches of READs fetched ahead, while other coroutines run?
    interleaves: Cell<bool>,
    /// Is a READ alone carried out when it is posted, without a chain?
    runs_now: Cell<bool>,
    /// Will somebody ask for progress soon, whether an executor runs now or not? See [`Driver::expect_progress`].
    expects_progress: Cell<bool>,
    /// Woken by the next verb or timer: see [`Driver::wake_on_work`].
    watcher: Cell<Option<Waker>>,
}

/// On a fabric whose verbs complete at once, a coroutine would never let another one of its thread run. So it does that
/// after this many batches, when its operation has ended ([`Endpoint::let_others_run`]). Within an operation it yields after
/// `STREAK_WITHIN`: a coroutine that is stopped there holds a pin, and no memory is freed until its turn comes again.
const STREAK: u32 = 512;
const STREAK_WITHIN: u32 = 8 * STREAK;
/// And so often it looks whether a sleeper is due, which may hold what others wait for (an epoch, a lock).
const LOOK_FOR_SLEEPERS: u32 = 16;
const _: () = assert!(STREAK_WITHIN.is_multiple_of(LOOK_FOR_SLEEPERS));

/// Chains kept for batches to come: as many as a full house of coroutines has in flight.
const CHAINS: usize = 1024;

impl Inner {
    /// Counts a batch that completed at once; should its coroutine yield now?
    #[inline]
    fn should_yield(&self) -> bool {
        let streak = self.streak.get() + 1;
        let yields = streak >= STREAK_WITHIN || streak.is_multiple_of(LOOK_FOR_SLEEPERS) && self.sleeper_is_due();
        self.streak.set(if yields { 0 } else { streak });
        yields
    }
    /// Is a batch that completes at once no reason to yield, whatever the time is?
    #[inline]
    fn goes_on(&self) -> bool {
        // A streak that is too long has a length at which one looks for sleepers as well.
        !(self.streak.get() + 1).is_multiple_of(LOOK_FOR_SLEEPERS)
    }
    fn sleeper_is_due(&self) -> bool {
        let due = self.timers.borrow().next_due();
        due.is_some_and(|due| self.transport.borrow().now() >= due)
    }
    /// There is something new to wait for.
    fn wake_watcher(&self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }
}

impl Endpoint {
    /// Makes an endpoint from a connection.
    pub fn new(transport: Box<dyn Transport>) -> Self {
        let buffers = Rc::new(BufPool::new(transport.registrar()));
        let runs_now = Cell::new(transport.runs_now());
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
                arrived: RefCell::default(),
                interleaves: Cell::new(false),
                runs_now,
                expects_progress: Cell::new(false),
                watcher: Cell::default(),
            }),
        }
    }
    /// Begins an operation: its verbs are posted and counted through the span.
    #[inline]
    pub fn span(&self, kind: OpKind) -> Span {
        Span::new(self.clone(), kind)
    }
    /// A buffer of `len` bytes with undefined content.
    #[inline]
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
    /// Returns the counters so far.
    pub fn meter(&self) -> Meter {
        let mut meter = self.inner.meter.borrow().clone();
        meter.set_traffic(self.inner.transport.borrow().traffic());
        meter
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
    /// Lets other coroutines of this thread run, if this one has had it for long. To be called where an operation has ended
    /// and holds nothing, neither a pin nor a lock.
    #[inline]
    pub async fn let_others_run(&self) {
        if self.inner.streak.get() >= STREAK {
            self.inner.streak.set(0);
            yield_now().await;
        }
    }
    pub(crate) fn timers(&self) -> &RefCell<Timers> {
        &self.inner.timers
    }
    /// A timer was set.
    pub(crate) fn timer_set(&self) {
        self.inner.wake_watcher();
    }
    /// Batches that have not completed after this long fail with [`FabricError::Deadline`], those in flight included.
    pub fn set_deadline(&self, deadline: Duration) {
        self.inner.deadline.set(deadline);
        let mut transport = self.inner.transport.borrow_mut();
        for posted in self.inner.flights.borrow().posting_times() {
            transport.wake_at(posted.saturating_add(deadline));
        }
    }
    /// Whether coroutines of this thread interleave on mapped memory: a batch of READs alone is fetched into the
    /// processor's cache when it is posted, other coroutines run, and then it is carried out. That pays where a cache
    /// line takes longer than it takes to suspend a coroutine, as behind a CXL link; `farindex calibrate` measures it.
    /// Elsewhere, and on other fabrics, it changes nothing. Off at first.
    pub fn set_interleaving(&self, interleaves: bool) {
        self.inner.interleaves.set(interleaves);
        self.inner.runs_now.set(!interleaves && self.inner.transport.borrow().runs_now());
    }
    /// Is this a fabric on which coroutines can interleave so?
    pub fn can_interleave(&self) -> bool {
        self.inner.transport.borrow_mut().fetch_ahead(&Chain::default()).is_some()
    }
    /// Number of completions that belong to no batch in flight: they came after its deadline, or a second time (which
    /// no fabric may do).
    pub fn strays(&self) -> u64 {
        self.inner.flights.borrow().strays()
    }
    /// Number of batches posted so far, without those that were carried out at once.
    pub fn posted(&self) -> u64 {
        self.inner.flights.borrow().opened()
    }
    /// Number of batches in flight that were posted by [`Batch::post_holding`].
    pub fn trailing(&self) -> usize {
        self.inner.flights.borrow().holding()
    }
    /// Waits until no batch that was posted by [`Batch::post_holding`] is in flight. Call it before dropping an
    /// endpoint.
    pub async fn settle(&self) {
        let mut pause = Duration::from_nanos(500);
        while self.trailing() > 0 {
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
    /// Number of batches so far that change memory and have failed.
    #[inline]
    pub fn failed(&self) -> u64 {
        self.inner.flights.borrow().failed()
    }
    /// Has all landed that operations of this endpoint have posted and left since so many batches had [failed](Self::failed)?
    /// That is, of those that change memory none has failed since, and none is still with the transport whose future was
    /// dropped or whose deadline has passed.
    #[inline]
    pub fn has_landed(&self, failed: u64) -> bool {
        let flights = self.inner.flights.borrow();
        let landed = flights.failed() == failed && !flights.has_abandoned();
        if flights.has_doubts() {
            drop(flights);
            self.end_doubts();
        }
        landed
    }
    /// Has all landed that operations of this endpoint have posted and left? A batch that changes memory and has failed may
    /// land as long as this client is not revoked, and has no later connection to the node ([`Transport::connections`]). One
    /// that has failed by its deadline may land until the transport has ended it.
    pub fn is_settled(&self) -> bool {
        self.end_doubts();
        let flights = self.inner.flights.borrow();
        !flights.has_abandoned() && !flights.has_doubts()
    }
    /// Holds a value until nothing of what operations have posted and left can land any more: see
    /// [`is_settled`](Self::is_settled). If the endpoint is dropped first, the value never is.
    pub fn hold_until_settled(&self, held: Rc<dyn Any>) {
        self.inner.flights.borrow_mut().hold_until_landed(&held);
        self.end_doubts();
    }
    #[cold]
    fn end_doubts(&self) {
        let connections = |node| self.inner.transport.borrow().connections(node);
        let ended = self.inner.flights.borrow_mut().doubts().end(connections);
        drop(ended);
    }
    /// Returns the fabric's capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.transport.borrow().capabilities()
    }
    /// Name of the fabric.
    pub fn fabric_name(&self) -> &'static str {
        self.inner.transport.borrow().name()
    }

    #[inline]
    fn chain(&self) -> Chain {
        self.inner.chains.borrow_mut().pop().unwrap_or_default()
    }
    #[inline]
    fn recycle(&self, verbs: Verbs) {
        let Verbs::Chain(mut chain) = verbs else { return };
        chain.clear();
        let mut free = self.inner.chains.borrow_mut();
        if free.len() < CHAINS && chain.capacity() > 0 {
            free.push(chain);
        }
    }

    /// Posts the verbs of a batch to the transport.
    #[inline]
    fn launch(&self, verbs: &mut Verbs) -> Launched {
        match verbs {
            Verbs::Chain(chain) => self.launch_chain(chain),
            Verbs::Read(ptr, buf) if self.inner.runs_now.get() => {
                // Not in the head of the `match`: the transport would stay borrowed within it.
                let now = self.inner.transport.borrow_mut().read_now(*ptr, buf);
                match now {
                    Some(Ok(())) => Launched::Done(None),
                    Some(Err(error)) => Launched::Done(Some(error)),
                    None => self.launch_as_chain(verbs),
                }
            }
            Verbs::Read(..) => self.launch_as_chain(verbs),
        }
    }

    /// Posts one READ to the transport as a chain.
    #[inline(never)]
    fn launch_as_chain(&self, verbs: &mut Verbs) -> Launched {
        let mut chain = std::mem::take(verbs).into_chain(self);
        let launched = self.launch_chain(&mut chain);
        *verbs = Verbs::Chain(chain);
        launched
    }

    /// Posts a chain to the transport.
    #[inline]
    fn launch_chain(&self, chain: &mut Chain) -> Launched {
        if self.inner.interleaves.get()
            && crate::exec::is_running()
            && let Some(from) = self.inner.transport.borrow_mut().fetch_ahead(chain)
        {
            return Launched::Fetching(from);
        }
        let now = self.inner.transport.borrow_mut().run_now(chain);
        match now {
            Some(Ok(())) => Launched::Done(None),
            Some(Err(error)) => Launched::Done(Some(error)),
            None => self.launch_far(chain),
        }
    }

    /// Posts a chain that takes time, and is given away meanwhile.
    #[inline(never)]
    fn launch_far(&self, chain: &mut Chain) -> Launched {
        let node = chain.first().map_or(NodeId::new(0), Verb::node);
        let mut flights = self.inner.flights.borrow_mut();
        let mut transport = self.inner.transport.borrow_mut();
        let id = flights.open(Nodes::changed_by(chain));
        match transport.post(id, std::mem::take(chain)) {
            Post::Done(ended, result) => {
                flights.close(id);
                *chain = ended;
                Launched::Done(result.err().map(Box::new))
            }
            Post::Pending => {
                let now = transport.posted_at();
                if let Some(now) = now {
                    let due = now.saturating_add(self.inner.deadline.get());
                    if flights.arm(now, due) {
                        transport.wake_at(due);
                    }
                }
                flights.posted(id, node, now);
                if !crate::exec::is_running() && !self.inner.expects_progress.get() {
                    // Nobody may ask for progress soon.
                    transport.flush();
                }
                drop((transport, flights));
                self.inner.wake_watcher();
                Launched::Flying(id)
            }
        }
    }
}

/// What became of a chain that was posted.
enum Launched {
    /// It has ended. The error is behind a pointer so that success moves no room for it about.
    Done(Option<Box<FabricError>>),
    /// It will complete under this number.
    Flying(u64),
    /// It has READs alone, and is carried out when its future is polled for the second time.
    Fetching(Duration),
}

struct Arrivals<'a> {
    inner: &'a Inner,
    woken: Vec<Waker>,
}

impl Completions for Arrivals<'_> {
    fn complete(&mut self, id: u64, chain: Chain, result: Result<(), Box<FabricError>>) {
        self.woken.extend(self.inner.flights.borrow_mut().settle(id, chain, result.err()));
    }
}

impl Driver for Endpoint {
    fn progress(&self) -> bool {
        let (mut any, mut read) = (false, None);
        if self.inner.flights.borrow().expects_completions() {
            let mut arrivals = Arrivals { inner: &self.inner, woken: self.inner.arrived.take() };
            let mut transport = self.inner.transport.borrow_mut();
            any = transport.progress(&mut arrivals);
            let now = transport.now();
            read = Some(now);
            drop(transport);
            let mut arrived = arrivals.woken;
            arrived.drain(..).for_each(Waker::wake);
            self.inner.arrived.replace(arrived);
            let deadline = self.inner.deadline.get();
            let (expired, woken) = self.inner.flights.borrow_mut().expire(now, deadline);
            woken.into_iter().for_each(Waker::wake);
            let rearm = self.inner.flights.borrow_mut().rearm(now, deadline);
            if let Some(due) = rearm {
                self.inner.transport.borrow_mut().wake_at(due);
            }
            any |= expired;
            if self.inner.flights.borrow().has_doubts() {
                self.end_doubts();
            }
            let released = self.inner.flights.borrow_mut().take_released();
            drop(released);
        }
        let next = self.inner.timers.borrow().next_due();
        if let Some(next) = next {
            // One look at the clock is enough for a round.
            let now = read.unwrap_or_else(|| self.now());
            if next <= now {
                let due = self.inner.timers.borrow_mut().due(now);
                any |= !due.is_empty();
                due.into_iter().for_each(Waker::wake);
            }
        }
        any
    }

    fn flush(&self) {
        self.inner.transport.borrow_mut().flush();
    }
    fn collects(&self) -> bool {
        self.inner.transport.borrow().collects()
    }
    fn expect_progress(&self, soon: bool) {
        self.inner.expects_progress.set(soon);
    }

    /// With verbs in flight, completions must be polled for. Without, only a timer or a waker can make a task runnable.
    fn idle(&self) -> Idle {
        if !self.inner.flights.borrow().is_empty() {
            return Idle::Poll;
        }
        let next = self.inner.timers.borrow().next_due();
        Idle::Park(next.map(|at| at.saturating_sub(self.now())))
    }

    fn wake_on_work(&self, waker: &Waker) {
        drop(self.inner.watcher.replace(Some(waker.clone())));
    }
}
