//! A session: one worker thread's hands in a pool.
//!
//! Invariants: every operation of an index runs under a [`Pin`]; what it unlinks it [retires](Pin::retire), and the
//! session frees it once no operation that could have seen it is left (see [`epoch`](crate::epoch)); blocks are taken from
//! the session's stock without a verb whenever it has some.

use crate::alloc::chunks::{Chunks, Counters, Hints};
use crate::alloc::{self, Stock, classes};
use crate::client::Client;
use crate::epoch::{OldestPin, Pins, graced, tag};
use crate::pool::zero;
use crate::{Pool, PoolError};
use farindex_fabric::{Endpoint, NodeId, OpKind, RemotePtr, Span};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
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
    pins: Rc<Pins>,
    stocks: Vec<RefCell<(Stock, Hints)>>,
    retired: RefCell<VecDeque<Retired>>,
    /// Length of `retired` at which the next look at the epoch is due.
    tick_at: Cell<usize>,
    /// Has the stock grown well beyond what a session keeps?
    hoards: Cell<bool>,
    /// Operations until the next look at the epoch that somebody waits for; zero if nobody does.
    wanted: Cell<u32>,
}

impl Session {
    pub(crate) fn new(client: Arc<Client>, endpoint: Endpoint, oldest: Arc<OldestPin>) -> Self {
        let stocks = client.pool().nodes().map(|_| RefCell::default()).collect();
        Session {
            client,
            endpoint,
            pins: Rc::new(Pins::new(oldest)),
            stocks,
            retired: RefCell::default(),
            tick_at: Cell::new(TICK_EVERY),
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
    fn stock(&self, node: NodeId) -> Result<&RefCell<(Stock, Hints)>, PoolError> {
        self.stocks.get(node.index()).ok_or(PoolError::Fabric(farindex_fabric::FabricError::NoSuchNode(node)))
    }
    fn class(&self, node: NodeId, bytes: u64) -> Option<usize> {
        classes::of(bytes, self.pool().geometry(node).chunk_size)
    }
    /// The class of a block, `None` for a span. An address at which no such object can lie is an error: it came out of
    /// damaged memory, and must not come back out of the stock.
    fn object(&self, ptr: RemotePtr, bytes: u64) -> Result<Option<usize>, PoolError> {
        self.stock(ptr.node())?;
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
    fn stow(&self, ptr: RemotePtr, class: usize) -> usize {
        let Ok(stock) = self.stock(ptr.node()) else { return 0 };
        let free = &mut stock.borrow_mut().0.free[class];
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
        self.stock(node)?;
        let geometry = chunks.geometry();
        if geometry.chunks_for(bytes) > geometry.chunks {
            return Err(chunks.full(bytes));
        }
        if let Some(found) = chunks.take_span(span, bytes, zero, false).await? {
            return Ok(found);
        }
        self.squeeze(span, node, patience, None, async |chunks| chunks.take_span(span, bytes, false, true).await)
            .await?
            .ok_or_else(|| chunks.full(bytes))
    }

    /// Fills the stock with blocks of a class, from the nearest source to the farthest.
    async fn refill(&self, span: &Span, node: NodeId, class: usize, patience: Patience) -> Result<(), PoolError> {
        self.free_graced();
        let stock = self.stock(node)?;
        let ready = || stock.borrow().0.has(class);
        if ready() || self.refill_once(span, node, class, false).await? {
            return Ok(());
        }
        let refilled = self.squeeze(span, node, patience, Some(class), async |_| {
            Ok((ready() || self.refill_once(span, node, class, true).await?).then_some(()))
        });
        refilled.await?.ok_or_else(|| self.chunks(node).full(classes::bytes(class)))
    }

    async fn refill_once(&self, span: &Span, node: NodeId, class: usize, thorough: bool) -> Result<bool, PoolError> {
        let chunks = self.chunks(node);
        let stock = self.stock(node)?;
        let counters = chunks.counters(span, Some(class)).await?;
        // A chunk's worth of returned blocks is worth a scan; with fewer, an unused chunk is nearer.
        let enough = counters.returned >= 32;
        if enough && self.claim_returned(span, &chunks, class, &counters).await? {
            return Ok(true);
        }
        if let Some(run) = chunks.take_chunk(span, class, &counters, thorough).await? {
            let replaced = stock.borrow_mut().0.runs[class].replace(run);
            if let Some(run) = replaced {
                // Another coroutine of this session filled the stock at the same time.
                let step = classes::bytes(class);
                stock.borrow_mut().0.free[class].extend((0..run.left).map(|i| run.next.add(i * step)));
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
        let cell = self.stock(chunks.node)?;
        let mut found = Stock::default();
        let mut hints = std::mem::take(&mut cell.borrow_mut().1);
        let any = chunks.claim_returned(span, class, counters, &mut hints, &mut found).await;
        let mut stock = cell.borrow_mut();
        stock.1 = hints;
        // Blocks of another class may be among them: see `Chunks::claim`.
        for (free, found) in stock.0.free.iter_mut().zip(&mut found.free) {
            free.append(found);
        }
        any
    }

    /// The pool looks full. Waits for what has been unlinked to become free, gives back what this session hoards, turns
    /// empty chunks of other classes into free ones, and tries again; for as long as a lease if something is on its way.
    async fn squeeze<T>(
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
            let ready = class.is_some_and(|class| self.stock(node).is_ok_and(|stock| stock.borrow().0.has(class)));
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

    /// Frees an object that was never linked anywhere, or that no operation can see any more.
    pub async fn free(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        let Some(class) = self.object(ptr, bytes)? else {
            return self.chunks(ptr.node()).free_span(span, ptr, bytes).await;
        };
        // Who only ever frees must not hoard, even if it never calls `maintain`.
        if self.stow(ptr, class) > 4 * alloc::keep(class) {
            self.give_back_surplus().await?;
        }
        Ok(())
    }

    /// Frees what [`alloc_zeroed`](Self::alloc_zeroed) gave, with the size that was asked for: whole chunks, even where a
    /// block would do for so few bytes.
    pub async fn free_zeroed(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        self.stock(ptr.node())?;
        self.chunks(ptr.node()).free_span(span, ptr, bytes).await
    }

    /// Frees a block at once and without a verb, if it is one; a span waits in limbo like anything retired. Where no such
    /// object can lie, nothing happens.
    pub fn discard(&self, ptr: RemotePtr, bytes: u64) {
        match self.object(ptr, bytes) {
            Ok(Some(class)) => drop(self.stow(ptr, class)),
            Ok(None) => self.retired.borrow_mut().push_front(Retired { tag: 0, ptr, bytes }),
            Err(_) => {}
        }
    }

    /// Frees an object once nobody can see it who began before the epoch passed `tag`.
    fn retire(&self, tag: u64, ptr: RemotePtr, bytes: u64) {
        if self.object(ptr, bytes).is_ok() {
            self.retired.borrow_mut().push_back(Retired { tag, ptr, bytes });
        }
    }

    /// Moves blocks whose time has come from limbo to the stock. Spans stay for [`maintain`](Self::maintain).
    fn free_graced(&self) {
        let epoch = self.client.epoch();
        let mut retired = self.retired.borrow_mut();
        let mut spans = Vec::new();
        while let Some(front) = retired.front().copied().filter(|front| graced(front.tag, epoch)) {
            retired.pop_front();
            match self.class(front.ptr.node(), front.bytes) {
                Some(class) => drop(self.stow(front.ptr, class)),
                None => spans.push(front),
            }
        }
        for span in spans {
            retired.push_front(Retired { tag: 0, ..span });
        }
        // Never later than it was: every refill comes by here, and must not put maintenance off for ever.
        self.tick_at.set(self.tick_at.get().min(retired.len() + TICK_EVERY));
    }

    /// Frees the spans whose time has come: [`free_graced`](Self::free_graced) has put them in front.
    async fn free_spans(&self) -> Result<(), PoolError> {
        let span = self.endpoint.span(OpKind::Maintenance);
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
            self.chunks(next.ptr.node()).free_span(&span, next.ptr, next.bytes).await?;
        }
    }

    /// Gives back what the stock holds beyond what a session keeps.
    async fn give_back_surplus(&self) -> Result<(), PoolError> {
        self.hoards.set(false);
        for node in self.pool().nodes() {
            let mut surplus = Vec::new();
            for (class, free) in self.stock(node)?.borrow_mut().0.free.iter_mut().enumerate() {
                let keep = alloc::keep(class);
                if free.len() > keep {
                    surplus.extend(free.drain(keep / 2..).map(|ptr| (ptr, class)));
                }
            }
            self.give_back(node, surplus).await?;
        }
        Ok(())
    }

    /// Gives the whole stock back, runs included.
    async fn give_back_all(&self) -> Result<(), PoolError> {
        self.hoards.set(false);
        for node in self.pool().nodes() {
            let all = self.stock(node)?.borrow_mut().0.drain();
            self.give_back(node, all).await?;
        }
        Ok(())
    }

    async fn give_back(&self, node: NodeId, blocks: Vec<(RemotePtr, usize)>) -> Result<(), PoolError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let span = self.endpoint.span(OpKind::Maintenance);
        self.chunks(node).give_back(&span, &blocks).await
    }

    /// Something waits for the epoch to move on that is not retired memory: slots of an index, say. The session looks at
    /// the epoch within as many operations.
    pub fn want_epoch(&self, within: u32) {
        let within = within.clamp(1, TICK_EVERY as u32);
        let wanted = self.wanted.get();
        self.wanted.set(if wanted == 0 { within } else { wanted.min(within) });
    }

    /// Is [`maintain`](Self::maintain) due? To be asked once after each operation; costs nothing.
    pub fn maintenance_due(&self) -> bool {
        let wanted = self.wanted.get();
        self.wanted.set(wanted.saturating_sub(1));
        wanted == 1 || self.retired.borrow().len() >= self.tick_at.get() || self.hoards.get()
    }

    /// Moves reclamation on: looks at the epoch, frees what it allows, gives back what this session has too much of.
    /// Counted as [`OpKind::Maintenance`].
    pub async fn maintain(&self) -> Result<(), PoolError> {
        self.tick_at.set(self.retired.borrow().len() + TICK_EVERY);
        self.client.tick(&self.endpoint).await?;
        self.adopt_orphans();
        self.free_graced();
        self.free_spans().await?;
        self.give_back_surplus().await
    }

    /// Takes over what closed sessions of this client left.
    pub(crate) fn adopt_orphans(&self) {
        let limbo = std::mem::take(&mut *self.client.orphans());
        if !limbo.retired.is_empty() {
            // Oldest first again, or what is freed already would wait behind what is not.
            let mut retired = self.retired.borrow_mut();
            retired.extend(limbo.retired);
            retired.make_contiguous().sort_by_key(|retired| retired.tag);
        }
        for (ptr, class) in limbo.free {
            self.stow(ptr, class);
        }
    }

    /// Neither stock nor limbo?
    pub(crate) fn holds_nothing(&self) -> bool {
        let empty = |stock: &RefCell<(Stock, Hints)>| (0..classes::CLASSES).all(|class| !stock.borrow().0.has(class));
        self.retired.borrow().is_empty() && self.stocks.iter().all(empty)
    }

    /// Gives the whole stock back to the pool, and frees what the epoch allows.
    pub async fn flush(&self) -> Result<(), PoolError> {
        self.free_graced();
        self.free_spans().await?;
        self.give_back_all().await
    }

    /// Gives everything back: the whole stock, and what was retired as soon as the epoch allows. If somebody keeps the epoch
    /// from moving on, it ends a lease after it last moved.
    pub async fn drain(&self) -> Result<(), PoolError> {
        let mut moved = (self.client.epoch(), self.endpoint.now());
        let mut pause = Duration::from_micros(2);
        loop {
            self.maintain().await?;
            let (epoch, now) = (self.client.epoch(), self.endpoint.now());
            if epoch != moved.0 {
                moved = (epoch, now);
            }
            if self.retired.borrow().is_empty() || now.saturating_sub(moved.1) >= self.client.pool().lease() {
                return self.flush().await;
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
