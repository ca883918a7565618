//! A session: one worker thread's hands in a pool.
//!
//! Invariants: every operation of an index runs under a [`Pin`]; what it unlinks it [retires](Pin::retire), and the
//! session frees it once no operation that could have seen it is left (see [`epoch`](crate::epoch)); blocks are taken from
//! the session's stock without a verb whenever it has some.

use crate::alloc::chunks::{Chunks, Hints};
use crate::alloc::{self, Stock, classes};
use crate::client::Client;
use crate::epoch::{OldestPin, Pins, graced, tag};
use crate::pool::zero;
use crate::{Pool, PoolError};
use farindex_fabric::{Endpoint, NodeId, OpKind, RemotePtr, Span};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// After how many retired objects a session looks whether the epoch has moved.
const TICK_EVERY: usize = 128;

/// What an allocation does in a full pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Waits for what this session has retired.
    Wait,
    /// Fails.
    Try,
}

/// Something unlinked that waits for the epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retired {
    tag: u64,
    ptr: RemotePtr,
    bytes: u64,
}

/// What is unlinked, and blocks that are free already but in nobody's stock.
#[derive(Default)]
pub(crate) struct Limbo {
    retired: VecDeque<Retired>,
    free: Vec<(RemotePtr, usize)>,
}

impl Limbo {
    pub(crate) fn is_empty(&self) -> bool {
        self.retired.is_empty() && self.free.is_empty()
    }
}

/// One worker thread's hands in a pool.
pub struct Session {
    client: Arc<Client>,
    endpoint: Endpoint,
    pins: Pins,
    stocks: Vec<RefCell<(Stock, Hints)>>,
    retired: RefCell<VecDeque<Retired>>,
    /// Length of `retired` at which the next look at the epoch is due.
    tick_at: Cell<usize>,
}

impl Session {
    pub(crate) fn new(client: Arc<Client>, endpoint: Endpoint, oldest: Arc<OldestPin>) -> Self {
        let stocks = client.pool().nodes().map(|_| RefCell::default()).collect();
        Session {
            client,
            endpoint,
            pins: Pins::new(oldest),
            stocks,
            retired: RefCell::default(),
            tick_at: Cell::new(TICK_EVERY),
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
    fn stock(&self, node: NodeId) -> Result<&RefCell<(Stock, Hints)>, PoolError> {
        self.stocks.get(node.index()).ok_or(PoolError::Fabric(farindex_fabric::FabricError::NoSuchNode(node)))
    }
    fn class(&self, node: NodeId, bytes: u64) -> Option<usize> {
        classes::of(bytes, self.pool().geometry(node).chunk_size)
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
        let stock = self.stock(node)?;
        loop {
            if let Some(ptr) = stock.borrow_mut().0.take(class) {
                return Ok(ptr);
            }
            self.refill(span, node, class, patience).await?;
        }
    }

    /// Zeros, in whole chunks, without waiting. For tables.
    pub async fn alloc_zeroed(&self, span: &Span, node: NodeId, bytes: u64) -> Result<RemotePtr, PoolError> {
        let (ptr, is_zero) = self.alloc_span(span, node, bytes, Patience::Try, true).await?;
        if !is_zero {
            let cleared = zero(span, ptr, bytes).await;
            if cleared.is_err() {
                self.chunks(node).free_span(span, ptr).await?;
            }
            cleared?;
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
        let count = bytes.div_ceil(chunks.geometry().chunk_size).max(1);
        if let Some(found) = chunks.take_span(span, count, zero).await? {
            return Ok(found);
        }
        self.squeeze(span, node, patience, async |chunks| chunks.take_span(span, count, false).await)
            .await?
            .ok_or_else(|| chunks.full(bytes))
    }

    /// Fills the stock with blocks of a class, from the nearest source to the farthest.
    async fn refill(&self, span: &Span, node: NodeId, class: usize, patience: Patience) -> Result<(), PoolError> {
        self.free_graced();
        let stock = self.stock(node)?;
        if !stock.borrow().0.free[class].is_empty() {
            return Ok(());
        }
        if self.refill_once(span, node, class).await? {
            return Ok(());
        }
        let refilled = self.squeeze(span, node, patience, async |_| {
            let ready = !stock.borrow().0.free[class].is_empty();
            Ok((ready || self.refill_once(span, node, class).await?).then_some(()))
        });
        refilled.await?.ok_or_else(|| self.chunks(node).full(classes::bytes(class)))
    }

    async fn refill_once(&self, span: &Span, node: NodeId, class: usize) -> Result<bool, PoolError> {
        let chunks = self.chunks(node);
        let stock = self.stock(node)?;
        let counters = chunks.counters(span, Some(class)).await?;
        // A chunk's worth of returned blocks is worth a scan; with fewer, an unused chunk is nearer.
        let enough = counters.returned >= 32;
        if enough && self.claim_returned(span, &chunks, class, counters.cursor).await? {
            return Ok(true);
        }
        if let Some(run) = chunks.take_chunk(span, class, &counters).await? {
            let replaced = stock.borrow_mut().0.runs[class].replace(run);
            if let Some(run) = replaced {
                // Another coroutine of this session filled the stock at the same time.
                let step = classes::bytes(class);
                stock.borrow_mut().0.free[class].extend((0..run.left).map(|i| run.next.add(i * step)));
            }
            return Ok(true);
        }
        self.claim_returned(span, &chunks, class, counters.cursor).await
    }

    async fn claim_returned(
        &self,
        span: &Span,
        chunks: &Chunks<'_>,
        class: usize,
        cursor: u64,
    ) -> Result<bool, PoolError> {
        let cell = self.stock(chunks.node)?;
        let mut found = Stock::default();
        let mut hints = std::mem::take(&mut cell.borrow_mut().1);
        let any = chunks.claim_returned(span, class, cursor, &mut hints, &mut found).await;
        let mut stock = cell.borrow_mut();
        stock.1 = hints;
        stock.0.free[class].append(&mut found.free[class]);
        any
    }

    /// The pool looks full. Waits for what has been unlinked to become free, gives back what this session hoards, turns
    /// empty chunks of other classes into free ones, and tries again; for as long as a lease if something is on its way.
    async fn squeeze<T>(
        &self,
        span: &Span,
        node: NodeId,
        patience: Patience,
        mut attempt: impl AsyncFnMut(&Chunks<'_>) -> Result<Option<T>, PoolError>,
    ) -> Result<Option<T>, PoolError> {
        let until = self.endpoint.now() + self.pool().lease();
        let mut pause = Duration::from_micros(50);
        loop {
            let waiting = self.retired.borrow().len();
            if waiting > 0 {
                self.client.tick(&self.endpoint).await?;
                self.free_graced();
            }
            self.give_back_surplus(0).await?;
            let chunks = self.chunks(node);
            let counters = chunks.counters(span, None).await?;
            chunks.recycle(span, counters.cursor).await?;
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

    /// Frees an object that was never linked anywhere, or that no operation can see any more.
    pub async fn free(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        match self.class(ptr.node(), bytes) {
            Some(class) => {
                self.stock(ptr.node())?.borrow_mut().0.free[class].push(ptr);
                Ok(())
            }
            None => self.chunks(ptr.node()).free_span(span, ptr).await,
        }
    }

    /// Frees a block at once and without a verb, if it is one; a span waits in limbo like anything retired.
    pub fn discard(&self, ptr: RemotePtr, bytes: u64) {
        match (self.class(ptr.node(), bytes), self.stock(ptr.node())) {
            (Some(class), Ok(stock)) => stock.borrow_mut().0.free[class].push(ptr),
            _ => self.retired.borrow_mut().push_back(Retired { tag: 0, ptr, bytes }),
        }
    }

    /// Moves blocks whose time has come from limbo to the stock. Spans stay for [`maintain`](Self::maintain).
    fn free_graced(&self) {
        let epoch = self.client.epoch();
        let mut retired = self.retired.borrow_mut();
        let mut spans = Vec::new();
        while let Some(front) = retired.front().copied().filter(|front| graced(front.tag, epoch)) {
            retired.pop_front();
            match (self.class(front.ptr.node(), front.bytes), self.stock(front.ptr.node())) {
                (Some(class), Ok(stock)) => stock.borrow_mut().0.free[class].push(front.ptr),
                _ => spans.push(front),
            }
        }
        for span in spans {
            retired.push_front(Retired { tag: 0, ..span });
        }
        self.tick_at.set(retired.len() + TICK_EVERY);
    }

    async fn free_spans(&self, span: &Span) -> Result<(), PoolError> {
        loop {
            let next = {
                let mut retired = self.retired.borrow_mut();
                let front = retired.front().copied().filter(|front| graced(front.tag, self.client.epoch()));
                let front = front.filter(|front| self.class(front.ptr.node(), front.bytes).is_none());
                if front.is_some() {
                    retired.pop_front();
                }
                front
            };
            let Some(next) = next else { return Ok(()) };
            self.chunks(next.ptr.node()).free_span(span, next.ptr).await?;
        }
    }

    async fn give_back_surplus(&self, keep_share: usize) -> Result<(), PoolError> {
        for node in self.pool().nodes() {
            let mut surplus = Vec::new();
            {
                let stock = &mut self.stock(node)?.borrow_mut().0;
                for (class, free) in stock.free.iter_mut().enumerate() {
                    let keep = alloc::keep(class) * keep_share;
                    if free.len() > keep {
                        surplus.extend(free.drain(keep / 2..).map(|ptr| (ptr, class)));
                    }
                }
            }
            if !surplus.is_empty() {
                let span = self.endpoint.span(OpKind::Maintenance);
                self.chunks(node).give_back(&span, &surplus).await?;
            }
        }
        Ok(())
    }

    /// Is [`maintain`](Self::maintain) due? Costs nothing.
    pub fn maintenance_due(&self) -> bool {
        self.retired.borrow().len() >= self.tick_at.get()
    }

    /// Moves reclamation on: looks at the epoch, frees what it allows, gives back what this session has too much of.
    /// Counted as [`OpKind::Maintenance`].
    pub async fn maintain(&self) -> Result<(), PoolError> {
        self.tick_at.set(self.retired.borrow().len() + TICK_EVERY);
        self.client.tick(&self.endpoint).await?;
        let left = std::mem::take(&mut *self.client.orphans());
        self.adopt(left);
        self.free_graced();
        let span = self.endpoint.span(OpKind::Maintenance);
        self.free_spans(&span).await?;
        self.give_back_surplus(1).await
    }

    /// Takes over what closed sessions of this client left.
    pub(crate) fn adopt(&self, limbo: Limbo) {
        self.retired.borrow_mut().extend(limbo.retired);
        for (ptr, class) in limbo.free {
            if let Ok(stock) = self.stock(ptr.node()) {
                stock.borrow_mut().0.free[class].push(ptr);
            }
        }
    }

    /// Gives the whole stock back to the pool, and frees what the epoch allows.
    pub async fn flush(&self) -> Result<(), PoolError> {
        self.free_graced();
        let span = self.endpoint.span(OpKind::Maintenance);
        self.free_spans(&span).await?;
        for node in self.pool().nodes() {
            let all = self.stock(node)?.borrow_mut().0.drain();
            if !all.is_empty() {
                self.chunks(node).give_back(&span, &all).await?;
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut orphans = self.client.orphans();
        orphans.retired.append(self.retired.get_mut());
        for stock in &mut self.stocks {
            orphans.free.append(&mut stock.get_mut().0.drain());
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
    /// Frees an object as soon as no operation can see it any more. Call it after the object was unlinked.
    pub fn retire(&self, ptr: RemotePtr, bytes: u64) {
        self.session.retired.borrow_mut().push_back(Retired { tag: tag(self.epoch), ptr, bytes });
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.session.pins.unpin(self.epoch);
    }
}
