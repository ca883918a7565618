//! A session: one worker thread's hands in a pool.
//!
//! Invariants: every operation of an index runs under a [`Pin`]; what it unlinks it [retires](Pin::retire), and the
//! session frees it once no operation that could have seen it is left (see [`epoch`](crate::epoch)); blocks are taken from
//! the session's stock without a verb whenever it has some.

mod retire_list;

pub(crate) use retire_list::RetireList;
use retire_list::Retired;

use crate::alloc::chunks::Chunks;
use crate::alloc::search::{Counters, Hints};
use crate::alloc::{self, FreeList, classes};
use crate::client::Client;
use crate::epoch::{OldestPin, Pins, tag};
use crate::pool::zero;
use crate::{Pool, PoolError};
use farindex_fabric::{Endpoint, FabricError, NodeId, OpKind, RemotePtr, Span};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// After how many retired objects, or bytes of them, a session looks whether the epoch has moved.
const TICK_EVERY: usize = 128;
const TICK_BYTES: u64 = 512 << 10;

/// What an allocation does in a full pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Waits for what this session has retired.
    Wait,
    /// Fails.
    Try,
}

/// One worker thread's hands in a pool.
pub struct Session {
    client: Arc<Client>,
    endpoint: Endpoint,
    pins: Rc<Pins>,
    stocks: Vec<RefCell<FreeList>>,
    hints: Vec<Hints>,
    retired: RefCell<VecDeque<Retired>>,
    /// Length of `retired` at which the next look at the epoch is due.
    tick_at: Cell<usize>,
    /// Bytes that were retired since the last look.
    retired_bytes: Cell<u64>,
    /// Has the stock grown well beyond what a session keeps?
    hoards: Cell<bool>,
    /// Operations until the next look at the epoch that somebody waits for; zero if nobody does.
    wanted: Cell<u32>,
}

impl Session {
    pub(crate) fn new(client: Arc<Client>, endpoint: Endpoint, oldest: Arc<OldestPin>) -> Self {
        let stocks = client.pool().nodes().map(|_| RefCell::default()).collect();
        let hints = client.pool().nodes().map(|_| Hints::default()).collect();
        Session {
            client,
            endpoint,
            pins: Rc::new(Pins::new(oldest)),
            stocks,
            hints,
            retired: RefCell::default(),
            tick_at: Cell::new(TICK_EVERY),
            retired_bytes: Cell::new(0),
            hoards: Cell::new(false),
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

    /// Opens the account of an operation.
    pub fn span(&self, kind: OpKind) -> Span {
        self.endpoint.span(kind)
    }

    /// Pins an operation: until the pin is dropped, nothing that it can reach is used again. Memory that the operation
    /// needs is better allocated before, because an allocation may have to wait for others' pins and its own.
    pub fn pin(&self, span: Span) -> Result<Pin<'_>, PoolError> {
        if self.client.is_lost() {
            return Err(PoolError::LeaseLost);
        }
        let epoch = self.pins.pin(self.client.epoch_word());
        Ok(Pin { session: self, span, epoch })
    }

    fn chunks(&self, node: NodeId) -> Chunks<'_> {
        Chunks { pool: self.pool(), node, owner: self.client.slot() as u16 }
    }
    fn free_list(&self, node: NodeId) -> Result<&RefCell<FreeList>, PoolError> {
        self.stocks.get(node.index()).ok_or(PoolError::Fabric(FabricError::NoSuchNode(node)))
    }
    fn hints(&self, node: NodeId) -> Result<&Hints, PoolError> {
        self.hints.get(node.index()).ok_or(PoolError::Fabric(FabricError::NoSuchNode(node)))
    }
    fn class(&self, node: NodeId, bytes: u64) -> Option<usize> {
        classes::of(bytes, self.pool().geometry(node).chunk_size)
    }
    /// The class of a block, `None` for a span. An address at which no such object can lie is an error: it came out of
    /// damaged memory, and must not come back out of the stock.
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
    /// Puts a free block into the stock; returns how many of its class are there now.
    fn push_free(&self, ptr: RemotePtr, class: usize) -> usize {
        let Ok(free_list) = self.free_list(ptr.node()) else { return 0 };
        let mut free_list = free_list.borrow_mut();
        let free = &mut free_list.free[class];
        free.push(ptr);
        if free.len() > 2 * alloc::keep(class) {
            self.hoards.set(true);
        }
        free.len()
    }

    /// At least `bytes` bytes of undefined content on `node`, 64-byte aligned. In a full pool it waits, for up to a
    /// lease, for what this session has retired; so call it before the operation is pinned, and not under a lock.
    pub async fn alloc(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        self.alloc_or(span, node, bytes, Patience::Wait).await
    }

    /// The same without waiting: for operations that are pinned or hold a lock.
    pub async fn alloc_now(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        self.alloc_or(span, node, bytes, Patience::Try).await
    }

    async fn alloc_or(
        &self,
        span: &Span,
        node: NodeId,
        bytes: u64,
        patience: Patience,
    ) -> Result<RemotePtr, PoolError> {
        let Some(class) = self.class(node, bytes) else {
            return self.alloc_span(span, node, bytes, patience, false).await.map(|(ptr, _)| ptr);
        };
        let free_list = self.free_list(node)?;
        loop {
            if let Some(ptr) = free_list.borrow_mut().take(class) {
                return Ok(ptr);
            }
            self.refill(span, node, class, patience).await?;
        }
    }

    /// Zeros, in whole chunks, without waiting. For tables.
    pub async fn alloc_zeroed(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        let (ptr, is_zero) = self.alloc_span(span, node, bytes, Patience::Try, true).await?;
        if !is_zero {
            // If this fails, a WRITE may land yet (N7), so nobody else may have the chunks: they are left to the checker.
            zero(span, ptr, bytes).await?;
        }
        Ok(ptr)
    }

    async fn alloc_span(
        &self,
        span: &Span,
        node: NodeId,
        bytes: u64,
        patience: Patience,
        zero: bool,
    ) -> Result<(RemotePtr, bool), PoolError> {
        let chunks = self.chunks(node);
        let geometry = chunks.geometry();
        if geometry.chunks_for(bytes) > geometry.chunks {
            return Err(chunks.full(bytes));
        }
        if !zero {
            self.free_graced();
            if let Some(ptr) = self.free_list(node)?.borrow_mut().take_span(geometry.chunks_for(bytes)) {
                return Ok((ptr, false));
            }
        }
        let hints = self.hints(node)?;
        if let Some(found) = chunks.take_span(span, hints, bytes, zero, false).await? {
            return Ok(found);
        }
        self.alloc_under_pressure(span, node, patience, None, async |chunks| {
            chunks.take_span(span, hints, bytes, false, true).await
        })
        .await?
        .ok_or_else(|| chunks.full(bytes))
    }

    /// Fills the stock with blocks of a class, from the nearest source to the farthest.
    async fn refill(&self, span: &Span, node: NodeId, class: usize, patience: Patience) -> Result<(), PoolError> {
        self.free_graced();
        let free_list = self.free_list(node)?;
        let ready = || free_list.borrow().has(class);
        if ready() || self.refill_once(span, node, class, false).await? {
            return Ok(());
        }
        let refilled = self.alloc_under_pressure(span, node, patience, Some(class), async |_| {
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
                // Another coroutine of this session filled the stock at the same time.
                let step = classes::bytes(class);
                free_list.borrow_mut().free[class].extend((0..run.left).map(|i| run.next.add(i * step)));
            }
            return Ok(true);
        }
        let some = !enough && counters.returned > 0;
        Ok((some || thorough) && self.claim_returned(span, &chunks, class, &counters).await?)
    }

    async fn claim_returned(
        &self,
        span: &Span,
        chunks: &Chunks<'_>,
        class: usize,
        counters: &Counters,
    ) -> Result<bool, PoolError> {
        let mut found = FreeList::default();
        let any = chunks.claim_returned(span, class, counters, self.hints(chunks.node)?, &mut found).await;
        // Blocks of another class may be among them: see `Chunks::claim`.
        for (free, found) in self.free_list(chunks.node)?.borrow_mut().free.iter_mut().zip(&mut found.free) {
            free.append(found);
        }
        any
    }

    /// The pool looks full. Waits for what has been unlinked to become free, gives back what this session hoards, turns
    /// empty chunks of other classes into free ones, and tries again; for as long as a lease if something is on its way.
    async fn alloc_under_pressure<T>(
        &self,
        span: &Span,
        node: NodeId,
        patience: Patience,
        class: Option<usize>,
        mut attempt: impl AsyncFnMut(&Chunks<'_>) -> Result<Option<T>, PoolError>,
    ) -> Result<Option<T>, PoolError> {
        let until = self.endpoint.now() + self.pool().lease();
        let mut pause = Duration::from_micros(50);
        loop {
            self.adopt_orphans();
            if !self.retired.borrow().is_empty() {
                self.client.tick(&self.endpoint).await?;
                self.free_graced();
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
            if patience == Patience::Try || self.retired.borrow().is_empty() || self.endpoint.now() >= until {
                return Ok(None);
            }
            self.endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pins.close();
        let mut orphans = self.client.orphans();
        orphans.retired.append(self.retired.get_mut());
        for (node, free_list) in self.client.pool().nodes().zip(&mut self.stocks) {
            let (free_list, chunk_size) = (free_list.get_mut(), self.client.pool().geometry(node).chunk_size);
            orphans.free.append(&mut free_list.drain());
            let spans = free_list.spans.drain(..);
            orphans.retired.extend(spans.map(|(ptr, chunks)| Retired { tag: 0, ptr, bytes: chunks * chunk_size }));
        }
    }
}

/// An operation in flight: its account, and its hold on everything it can reach.
pub struct Pin<'s> {
    session: &'s Session,
    span: Span,
    epoch: u64,
}

impl<'s> Pin<'s> {
    /// The operation's account, through which it posts its verbs.
    pub fn span(&self) -> &Span {
        &self.span
    }
    /// The session it runs in.
    pub fn session(&self) -> &'s Session {
        self.session
    }
    /// The epoch that its client knew when it began. The pool's epoch is at most one more while it runs (E1).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// The same pin once more, to be dropped when the last verb of the operation has ended, whoever waits for that: see
    /// [`Batch::post_holding`](farindex_fabric::Batch::post_holding).
    pub fn hold(&self) -> Hold {
        self.session.pins.again(self.epoch);
        Hold { pins: Rc::clone(&self.session.pins), epoch: self.epoch }
    }
    /// Frees an object as soon as no operation can see it any more. Call it after the object was unlinked. Where no such
    /// object can lie, nothing happens: the checker finds what is wrong.
    pub fn retire(&self, ptr: RemotePtr, bytes: u64) {
        self.session.retire(tag(self.epoch), ptr, bytes);
    }
}

/// A pin that outlives its operation: for verbs that nobody waits for ([`Pin::hold`]).
pub struct Hold {
    pins: Rc<Pins>,
    epoch: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pins.unpin(self.epoch);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.session.pins.unpin(self.epoch);
    }
}
