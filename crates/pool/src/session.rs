//! A session: the handle of one worker thread to a pool.
//!
//! Invariants: every operation of an index runs under a [`Pin`]. The operation [retires](Pin::retire) what it unlinks,
//! and the session frees it after its grace period (see [`epoch`](crate::epoch)). An allocation takes a block from the
//! session's free list, without a verb, if the list has one.

mod close;
mod reclamation;
mod turn;

use crate::alloc::chunks::Chunks;
use crate::alloc::search::{Counters, Hints};
use crate::alloc::{self, FreeList, classes};
use crate::client::Client;
use crate::epoch::{OldestPin, Pins, tag};
use crate::faults::{Fault, planted};
use crate::pool::zero;
use crate::retire_list::Retired;
use crate::{Pool, PoolError, Waited, mark};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr, Span, cold};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Number of retired objects after which a session runs maintenance.
const TICK_EVERY: usize = 128;
/// Bytes of retired objects after which a session runs maintenance.
const TICK_BYTES: u64 = 512 << 10;

/// The behaviour of an allocation in a full pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    /// Waits until objects that this session has retired are free.
    Wait,
    /// Fails.
    Fail,
}

/// The handle of one worker thread to a pool: pins, allocation and reclamation.
pub struct Session {
    client: Arc<Client>,
    endpoint: Endpoint,
    pins: Rc<Pins>,
    /// Pins of operations that have ended and whose verbs may land, by their epochs.
    late: RefCell<Vec<(u64, Weak<Hold>)>>,
    /// Free blocks and spans that this session keeps, for each node.
    free_lists: Vec<RefCell<FreeList>>,
    hints: Vec<Hints>,
    /// Refills take turns.
    refills: turn::Turn,
    /// The pool had nothing for the last refill before a list was empty. The next one waits until a list is empty.
    ahead_in_vain: Cell<bool>,
    /// The epoch in which an allocation in a full pool has waited last, and for how long allocations have waited in it.
    waiting: RefCell<(u64, Waited)>,
    retired: RefCell<VecDeque<Retired>>,
    /// Objects retired since this session was opened.
    retirements: Cell<u64>,
    /// Length of `retired` at which maintenance is due.
    tick_at: Cell<usize>,
    /// Bytes retired since the last maintenance.
    retired_bytes: Cell<u64>,
    /// True if a free list has grown well beyond what a session keeps.
    overfull: Cell<bool>,
    /// Operations until the maintenance that [`want_epoch`](Self::want_epoch) asked for; zero if none was asked for.
    wanted: Cell<u32>,
}

impl Session {
    fn new(client: Arc<Client>, endpoint: Endpoint, oldest: Arc<OldestPin>) -> Self {
        let free_lists = client.pool().nodes().map(|_| RefCell::default()).collect();
        let hints = client.pool().nodes().map(|_| Hints::default()).collect();
        Session {
            client,
            endpoint,
            pins: Rc::new(Pins::new(oldest)),
            late: RefCell::default(),
            free_lists,
            hints,
            refills: turn::Turn::default(),
            ahead_in_vain: Cell::new(false),
            waiting: RefCell::default(),
            retired: RefCell::default(),
            retirements: Cell::new(0),
            tick_at: Cell::new(TICK_EVERY),
            retired_bytes: Cell::new(0),
            overfull: Cell::new(false),
            wanted: Cell::new(0),
        }
    }

    /// The client that this session belongs to.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }
    /// The pool.
    pub fn pool(&self) -> &Pool {
        self.client.pool()
    }
    /// This thread's connection.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Opens a span: posts and counts the verbs of one operation.
    pub fn span(&self, kind: OpKind) -> Span {
        self.endpoint.span(kind)
    }

    /// Pins an operation: until the pin is dropped, no memory that it can reach is reused. Allocate before you pin: in
    /// a full pool an allocation may wait for all pins, its own operation's included.
    pub fn pin(&self, span: Span) -> Result<Pin<'_>, PoolError> {
        if self.client.is_lost() {
            return Err(PoolError::LeaseLost);
        }
        let epoch = self.pins.pin(self.client.epoch_word());
        Ok(Pin { pinned: Pinned { session: self, epoch, failed: self.endpoint.failed() }, span })
    }

    /// Removes the pin of an operation when nothing of what this thread has posted and left can land any more.
    #[cold]
    fn unpin_later(&self, epoch: u64) {
        mark!("pin: stays as long as a verb may land");
        let mut late = self.late.borrow_mut();
        late.retain(|(_, hold)| hold.strong_count() > 0);
        let held = match late.iter().find(|(of, _)| *of == epoch).and_then(|(_, hold)| hold.upgrade()) {
            // One pin for each epoch is enough, however many operations fail.
            Some(held) => {
                self.pins.unpin(epoch);
                held
            }
            None => {
                let held = Rc::new(Hold { pins: Rc::clone(&self.pins), epoch });
                late.push((epoch, Rc::downgrade(&held)));
                held
            }
        };
        drop(late);
        self.endpoint.hold_until_settled(held);
    }

    fn chunks(&self, node: NodeId) -> Chunks<'_> {
        Chunks { pool: self.pool(), node, owner: self.client.slot() as u16 }
    }
    fn free_list(&self, node: NodeId) -> Result<&RefCell<FreeList>, PoolError> {
        // Not `ok_or`: the error would be made, and dropped, each time.
        let Some(list) = self.free_lists.get(node.index()) else { return Err(FabricError::NoSuchNode(node).into()) };
        Ok(list)
    }
    fn hints(&self, node: NodeId) -> Result<&Hints, PoolError> {
        let Some(hints) = self.hints.get(node.index()) else { return Err(FabricError::NoSuchNode(node).into()) };
        Ok(hints)
    }
    fn class(&self, node: NodeId, bytes: u64) -> Option<usize> {
        classes::of(bytes, self.pool().geometry(node).chunk_size)
    }
    /// The size class of an object, `None` for a span. An address at which no such object can lie is an error: it comes
    /// from damaged memory, and must not get into the free list.
    fn object(&self, ptr: RemotePtr, bytes: u64) -> Result<Option<usize>, PoolError> {
        self.free_list(ptr.node())?;
        let geometry = self.pool().geometry(ptr.node());
        let class = classes::of(bytes, geometry.chunk_size);
        let fits = match class {
            Some(class) => alloc::place(&geometry, ptr, class).is_some(),
            None => geometry.span_start(ptr, geometry.chunks_for(bytes)).is_some(),
        };
        let corrupt = || PoolError::Corrupt { at: ptr, what: format!("no object of {bytes} bytes can lie here") };
        fits.then_some(class).ok_or_else(corrupt)
    }
    /// Number of blocks of a class that this session keeps in its free list of a node.
    fn keep(&self, node: NodeId, list: &FreeList, class: usize) -> usize {
        alloc::keep(class, self.pins.in_progress(), list.demand(class), &self.pool().geometry(node))
    }
    /// Adds a free block to the free list; returns how many blocks of its class the list has now.
    fn push_free(&self, ptr: RemotePtr, class: usize) -> usize {
        let Ok(free_list) = self.free_list(ptr.node()) else { return 0 };
        let mut free_list = free_list.borrow_mut();
        free_list.free[class].push(ptr);
        let len = free_list.free[class].len();
        if len > 2 * self.keep(ptr.node(), &free_list, class) {
            self.overfull.set(true);
        }
        len
    }

    /// Allocates at least `bytes` bytes of undefined content on `node`, 64-byte aligned. In a full pool it waits, for
    /// up to a lease, until objects that this session has retired are free. So call it before the operation is pinned,
    /// and not under a lock.
    pub async fn alloc(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        self.alloc_or(span, node, bytes, WhenFull::Wait).await
    }

    /// Like [`alloc`](Self::alloc) without waiting: for operations that are pinned or hold a lock.
    pub async fn alloc_now(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        self.alloc_or(span, node, bytes, WhenFull::Fail).await
    }

    async fn alloc_or(
        &self,
        span: &Span,
        node: NodeId,
        bytes: u64,
        when_full: WhenFull,
    ) -> Result<RemotePtr, PoolError> {
        let Some(class) = self.class(node, bytes) else {
            return self.alloc_span(span, node, bytes, when_full, false).await.map(|(ptr, _)| ptr);
        };
        let free_list = self.free_list(node)?;
        // An operation that holds a lock takes what is left.
        if when_full == WhenFull::Wait && self.runs_low(free_list, class) {
            self.refill_ahead(span, node, class).await?;
        }
        loop {
            if let Some(ptr) = free_list.borrow_mut().take(class) {
                #[cfg(feature = "marks")]
                crate::ledger::allocated(ptr, bytes);
                return Ok(ptr);
            }
            self.refill(span, node, class, when_full).await?;
        }
    }

    /// Allocates zeroed bytes in whole chunks, without waiting. For tables.
    pub async fn alloc_zeroed(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        let (ptr, is_zero) = self.alloc_span(span, node, bytes, WhenFull::Fail, true).await?;
        if !is_zero {
            // If this fails, a WRITE may still land (N7), so the chunks must not be reused: they stay leaked.
            zero(span, ptr, bytes).await?;
        }
        Ok(ptr)
    }

    async fn alloc_span(
        &self,
        span: &Span,
        node: NodeId,
        bytes: u64,
        when_full: WhenFull,
        zero: bool,
    ) -> Result<(RemotePtr, bool), PoolError> {
        let taken = cold(self.alloc_span_inner(span, node, bytes, when_full, zero)).await;
        #[cfg(feature = "marks")]
        taken.iter().for_each(|(ptr, _)| crate::ledger::allocated(*ptr, bytes));
        taken
    }

    async fn alloc_span_inner(
        &self,
        span: &Span,
        node: NodeId,
        bytes: u64,
        when_full: WhenFull,
        zero: bool,
    ) -> Result<(RemotePtr, bool), PoolError> {
        let chunks = self.chunks(node);
        let geometry = chunks.geometry();
        if geometry.chunks_for(bytes) > geometry.chunks {
            return Err(chunks.full(bytes));
        }
        if !zero {
            self.free_elapsed();
            if let Some(ptr) = self.free_list(node)?.borrow_mut().take_span(geometry.chunks_for(bytes)) {
                return Ok((ptr, false));
            }
        }
        let hints = self.hints(node)?;
        if let Some(found) = chunks.take_span(span, hints, bytes, zero, false).await? {
            return Ok(found);
        }
        self.alloc_under_pressure(span, node, when_full, None, async |chunks| {
            chunks.take_span(span, hints, bytes, false, true).await
        })
        .await?
        .ok_or_else(|| chunks.full(bytes))
    }

    /// Returns whether the free list should be refilled before it is empty. Coroutines that find it empty wait, and then
    /// go on together: a table gets as many inserts at once, more than its splits keep up with.
    fn runs_low(&self, free_list: &RefCell<FreeList>, class: usize) -> bool {
        let low = alloc::low(class, self.pins.in_progress()) as u64;
        low > 0
            && (1..=low).contains(&free_list.borrow().count(class))
            && !self.ahead_in_vain.get()
            && !self.refills.is_taken()
    }

    /// Refills the free list while others of this session's operations take what is left of it.
    async fn refill_ahead(&self, span: &Span, node: NodeId, class: usize) -> Result<(), PoolError> {
        cold(self.refill_ahead_inner(span, node, class)).await
    }

    async fn refill_ahead_inner(&self, span: &Span, node: NodeId, class: usize) -> Result<(), PoolError> {
        self.free_elapsed();
        if !self.runs_low(self.free_list(node)?, class) {
            return Ok(());
        }
        let Some(_turn) = self.refills.try_take() else { return Ok(()) };
        let refilled = self.refill_once(span, node, class, false).await?;
        self.ahead_in_vain.set(!refilled);
        Ok(())
    }

    /// Refills the free list with blocks of a class, from the cheapest source to the most expensive.
    async fn refill(&self, span: &Span, node: NodeId, class: usize, when_full: WhenFull) -> Result<(), PoolError> {
        cold(self.refill_inner(span, node, class, when_full)).await
    }

    async fn refill_inner(
        &self,
        span: &Span,
        node: NodeId,
        class: usize,
        when_full: WhenFull,
    ) -> Result<(), PoolError> {
        self.free_elapsed();
        let free_list = self.free_list(node)?;
        let ready = || free_list.borrow().has(class);
        {
            // One coroutine after the other: together they would ask for the same blocks, and nearly all in vain. One that
            // has waited often finds what another one has brought.
            let _turn = self.refills.take(&self.endpoint, self.pool().lease() / 4).await;
            if ready() || self.refill_once(span, node, class, false).await? {
                self.ahead_in_vain.set(false);
                return Ok(());
            }
        }
        let refilled = self.alloc_under_pressure(span, node, when_full, Some(class), async |_| {
            Ok((ready() || self.refill_once(span, node, class, true).await?).then_some(()))
        });
        refilled.await?.ok_or_else(|| self.chunks(node).full(classes::bytes(class)))
    }

    async fn refill_once(&self, span: &Span, node: NodeId, class: usize, thorough: bool) -> Result<bool, PoolError> {
        let chunks = self.chunks(node);
        let free_list = self.free_list(node)?;
        let counters = chunks.counters(span, Some(class)).await?;
        let enough = counters.many_returned(class);
        if enough && self.claim_returned(span, &chunks, class, &counters).await? {
            return Ok(true);
        }
        if let Some(run) = chunks.take_chunk(span, class, &counters, self.hints(node)?, thorough).await? {
            let replaced = free_list.borrow_mut().runs[class].replace(run);
            if let Some(run) = replaced {
                // Another coroutine of this session refilled the list at the same time.
                let step = classes::bytes(class);
                free_list.borrow_mut().free[class].extend((0..run.left).map(|i| run.next.add(i * step)));
            }
            return Ok(true);
        }
        let some = !enough && counters.returned > 0;
        Ok((some || thorough) && self.claim_returned(span, &chunks, class, &counters).await?)
    }

    /// Number of blocks of a class that a refill brings at once, if they are there.
    fn enough(&self, node: NodeId, class: usize) -> Result<u64, PoolError> {
        Ok(self.keep(node, &self.free_list(node)?.borrow(), class) as u64 / 2)
    }

    async fn claim_returned(
        &self,
        span: &Span,
        chunks: &Chunks<'_>,
        class: usize,
        counters: &Counters,
    ) -> Result<bool, PoolError> {
        let mut found = FreeList::default();
        let (enough, hints) = (self.enough(chunks.node, class)?, self.hints(chunks.node)?);
        let any = chunks.claim_returned(span, class, enough, counters, hints, &mut found).await;
        // Some blocks may be of another class: see `Chunks::claim`.
        for (free, found) in self.free_list(chunks.node)?.borrow_mut().free.iter_mut().zip(&mut found.free) {
            free.append(found);
        }
        any
    }

    /// Allocates although the pool looks full: frees retired objects whose grace period has elapsed, returns the
    /// session's free list to the pool, turns empty chunks of other classes into free ones, and tries again. While
    /// retired objects are left, it repeats this for up to a lease; and all allocations together for a lease in each epoch:
    /// who keeps the epoch from advancing would else hold up each allocation of an operation once more (bug 189).
    async fn alloc_under_pressure<T>(
        &self,
        span: &Span,
        node: NodeId,
        when_full: WhenFull,
        class: Option<usize>,
        mut attempt: impl AsyncFnMut(&Chunks<'_>) -> Result<Option<T>, PoolError>,
    ) -> Result<Option<T>, PoolError> {
        let until = self.endpoint.now() + self.pool().lease();
        let mut pause = Duration::from_micros(50);
        loop {
            self.adopt_orphans();
            if !self.retired.borrow().is_empty() {
                self.client.tick(&self.endpoint).await?;
                self.free_elapsed();
                self.free_spans().await?;
            }
            let chunks = self.chunks(node);
            let ready =
                class.is_some_and(|class| self.free_list(node).is_ok_and(|free_list| free_list.borrow().has(class)));
            if !ready {
                self.give_back_all().await?;
                chunks.recycle(span).await?;
            }
            if let Some(found) = attempt(&chunks).await? {
                return Ok(Some(found));
            }
            if when_full == WhenFull::Fail || self.retired.borrow().is_empty() || self.endpoint.now() >= until {
                return Ok(None);
            }
            if self.waits_in_epoch() >= self.pool().lease() {
                return Ok(None);
            }
            self.endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// For how long allocations have waited in this epoch. It begins again when none has looked for a lease: the epoch may have
    /// stood still because nobody asked for more.
    fn waits_in_epoch(&self) -> Duration {
        let (epoch, mut waiting) = (self.client.epoch(), self.waiting.borrow_mut());
        if waiting.0 != epoch {
            *waiting = (epoch, Waited::default());
        }
        waiting.1.look(self)
    }
}

impl Client {
    /// Opens a session on the calling thread.
    pub fn session(self: &Arc<Self>, endpoint: Endpoint) -> Session {
        let session = Session::new(Arc::clone(self), endpoint, self.add_session());
        #[cfg(feature = "marks")]
        crate::ledger::session((self.slot(), self.generation()), session.pins.id());
        session
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What was posted without a pin may land as well.
        if !self.endpoint.is_settled() {
            let epoch = self.pins.pin(self.client.epoch_word());
            self.unpin_later(epoch);
        }
        self.pins.close();
        let mut orphans = self.client.orphans();
        orphans.retired.append(self.retired.get_mut());
        for (node, free_list) in self.client.pool().nodes().zip(&mut self.free_lists) {
            let (free_list, chunk_size) = (free_list.get_mut(), self.client.pool().geometry(node).chunk_size);
            orphans.free.append(&mut free_list.drain());
            let spans = free_list.spans.drain(..);
            orphans.retired.extend(spans.map(|(ptr, chunks)| Retired { tag: 0, ptr, bytes: chunks * chunk_size }));
        }
    }
}

/// A guard for one operation: while it exists, no memory that the operation can reach is reused.
pub struct Pin<'s> {
    pinned: Pinned<'s>,
    span: Span,
}

/// The epoch that an operation has pinned.
struct Pinned<'s> {
    session: &'s Session,
    epoch: u64,
    /// Number of batches of this thread that had failed before.
    failed: u64,
}

impl<'s> Pin<'s> {
    /// The operation's span, through which it posts its verbs.
    pub fn span(&self) -> &Span {
        &self.span
    }
    /// The session in which the operation runs.
    pub fn session(&self) -> &'s Session {
        self.pinned.session
    }
    /// The epoch that the client knew when the operation began. While it runs, the pool's epoch is at most one more
    /// (E1).
    pub fn epoch(&self) -> u64 {
        self.pinned.epoch
    }
    /// Unpins, and returns the span of an operation that goes on under another pin.
    pub fn into_span(self) -> Span {
        self.span
    }
    /// Returns a second pin of the same epoch, for verbs that the operation does not await: it is dropped when they
    /// have completed. See [`Batch::post_holding`](farindex_fabric::Batch::post_holding).
    pub fn hold(&self) -> Hold {
        self.pinned.session.pins.pin_again(self.pinned.epoch);
        Hold { pins: Rc::clone(&self.pinned.session.pins), epoch: self.pinned.epoch }
    }
    /// Retires an unlinked object: the session frees it after its grace period. Does nothing if no such object can lie
    /// at this address; the audit reports the damage.
    pub fn retire(&self, ptr: RemotePtr, bytes: u64) {
        self.pinned.session.retire(tag(self.pinned.epoch), ptr, bytes);
    }
}

/// A pin that stays after its operation, until verbs that the operation does not await have completed ([`Pin::hold`]).
pub struct Hold {
    pins: Rc<Pins>,
    epoch: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pins.unpin(self.epoch);
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.session.endpoint.has_landed(self.failed) || planted(Fault::UnpinsEarly) {
            true => self.session.pins.unpin(self.epoch),
            false => self.session.unpin_later(self.epoch),
        }
    }
}
