//! What a session frees: at once, or when the epoch allows.
//!
//! Invariants: what is retired is freed once no operation that could have seen it is left, oldest first; a span whose time has
//! come stands in front of the limbo until maintenance frees it, into the stock if that has room; where no object can lie
//! nothing is freed.

use super::{Session, TICK_BYTES, TICK_EVERY};
use crate::PoolError;
use crate::alloc;
use crate::epoch::grace_period_elapsed;
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span};
use std::collections::VecDeque;
use std::time::Duration;

/// Something unlinked that waits for the epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retired {
    pub(super) tag: u64,
    pub(super) ptr: RemotePtr,
    pub(super) bytes: u64,
}

/// What is unlinked, and blocks that are free already but in nobody's stock.
#[derive(Default)]
pub(crate) struct RetireList {
    pub(super) retired: VecDeque<Retired>,
    pub(super) free: Vec<(RemotePtr, usize)>,
}

impl RetireList {
    pub(crate) fn is_empty(&self) -> bool {
        self.retired.is_empty() && self.free.is_empty()
    }
}

impl Session {
    /// Frees an object that was never linked anywhere, or that no operation can see any more.
    pub async fn free(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        let Some(class) = self.object(ptr, bytes)? else {
            return self.free_span(span, ptr, bytes).await;
        };
        // Who only ever frees must not hoard, even if it never calls `maintain`.
        if self.push_free(ptr, class) > 4 * alloc::keep(class) {
            self.give_back_surplus().await?;
        }
        Ok(())
    }

    /// Frees what [`alloc_zeroed`](Self::alloc_zeroed) gave, with the size that was asked for: whole chunks, even where a
    /// block would do for so few bytes.
    pub async fn free_zeroed(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        self.free_list(ptr.node())?;
        self.chunks(ptr.node()).free_span(span, ptr, bytes).await
    }

    /// Frees a block at once and without a verb, if it is one; a span waits in limbo like anything retired. Where no such
    /// object can lie, nothing happens.
    pub fn discard(&self, ptr: RemotePtr, bytes: u64) {
        match self.object(ptr, bytes) {
            Ok(Some(class)) => drop(self.push_free(ptr, class)),
            Ok(None) => self.retired.borrow_mut().push_front(Retired { tag: 0, ptr, bytes }),
            Err(_) => {}
        }
    }

    /// Keeps a free span in the stock, or gives it back if there are enough. Neither happens to what is no span, or is there
    /// already: its address came out of damaged memory.
    async fn free_span(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        let chunks = self.chunks(ptr.node());
        let geometry = chunks.geometry();
        let count = geometry.chunks_for(bytes);
        let free_list = self.free_list(ptr.node())?;
        if free_list.borrow().has_span(ptr) {
            return Err(PoolError::Corrupt { at: ptr, what: "a span was freed twice".to_owned() });
        }
        if !free_list.borrow().has_room_for_span(count, &geometry) {
            return chunks.free_span(span, ptr, bytes).await;
        }
        chunks.check_span(span, ptr, bytes).await?;
        free_list.borrow_mut().spans.push((ptr, count));
        Ok(())
    }

    /// Frees an object once nobody can see it who began before the epoch passed `tag`.
    pub(super) fn retire(&self, tag: u64, ptr: RemotePtr, bytes: u64) {
        if self.object(ptr, bytes).is_ok() {
            self.retired.borrow_mut().push_back(Retired { tag, ptr, bytes });
            self.retired_bytes.set(self.retired_bytes.get().saturating_add(bytes));
        }
    }

    /// Moves blocks whose time has come from limbo to the stock. Spans stay for [`maintain`](Self::maintain).
    pub(super) fn free_graced(&self) {
        let epoch = self.client.epoch();
        let mut retired = self.retired.borrow_mut();
        let mut spans = Vec::new();
        while let Some(front) = retired.front().copied().filter(|front| grace_period_elapsed(front.tag, epoch)) {
            retired.pop_front();
            match self.class(front.ptr.node(), front.bytes) {
                Some(class) => drop(self.push_free(front.ptr, class)),
                None => spans.push(front),
            }
        }
        for span in spans {
            retired.push_front(Retired { tag: 0, ..span });
        }
        // Never later than it was: every refill comes by here, and must not put maintenance off for ever.
        self.tick_at.set(self.tick_at.get().min(retired.len() + TICK_EVERY));
    }

    /// Frees the spans whose time has come: [`free_grace_period_elapsed`](Self::free_graced) has put them in front.
    pub(super) async fn free_spans(&self) -> Result<(), PoolError> {
        let span = self.endpoint.span(OpKind::Maintenance);
        loop {
            let next = {
                let mut retired = self.retired.borrow_mut();
                let front =
                    retired.front().copied().filter(|front| grace_period_elapsed(front.tag, self.client.epoch()));
                let front = front.filter(|front| self.class(front.ptr.node(), front.bytes).is_none());
                if front.is_some() {
                    retired.pop_front();
                }
                front
            };
            let Some(next) = next else { return Ok(()) };
            self.free_span(&span, next.ptr, next.bytes).await?;
        }
    }

    /// Gives back what the stock holds beyond what a session keeps.
    pub(super) async fn give_back_surplus(&self) -> Result<(), PoolError> {
        self.hoards.set(false);
        for node in self.pool().nodes() {
            let mut surplus = Vec::new();
            for (class, free) in self.free_list(node)?.borrow_mut().free.iter_mut().enumerate() {
                let keep = alloc::keep(class);
                if free.len() > keep {
                    surplus.extend(free.drain(keep / 2..).map(|ptr| (ptr, class)));
                }
            }
            self.give_back(node, surplus).await?;
        }
        Ok(())
    }

    /// Gives the whole stock back, runs and spans included.
    pub(super) async fn give_back_all(&self) -> Result<(), PoolError> {
        self.hoards.set(false);
        let span = self.endpoint.span(OpKind::Maintenance);
        for node in self.pool().nodes() {
            let all = self.free_list(node)?.borrow_mut().drain();
            self.give_back(node, all).await?;
            let spans = std::mem::take(&mut self.free_list(node)?.borrow_mut().spans);
            let chunks = self.chunks(node);
            for (ptr, count) in spans {
                chunks.free_span(&span, ptr, count * chunks.geometry().chunk_size).await?;
            }
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
        wanted == 1
            || self.retired.borrow().len() >= self.tick_at.get()
            || self.retired_bytes.get() >= TICK_BYTES
            || self.hoards.get()
    }

    /// Moves reclamation on: looks at the epoch, frees what it allows, gives back what this session has too much of.
    /// Counted as [`OpKind::Maintenance`].
    pub async fn maintain(&self) -> Result<(), PoolError> {
        self.tick_at.set(self.retired.borrow().len() + TICK_EVERY);
        self.retired_bytes.set(0);
        self.client.tick(&self.endpoint).await?;
        self.adopt_orphans();
        self.free_graced();
        self.free_spans().await?;
        self.give_back_surplus().await
    }

    /// Takes over what closed sessions of this client left.
    pub(crate) fn adopt_orphans(&self) {
        let retire_list = std::mem::take(&mut *self.client.orphans());
        if !retire_list.retired.is_empty() {
            // Oldest first again, or what is freed already would wait behind what is not.
            let mut retired = self.retired.borrow_mut();
            retired.extend(retire_list.retired);
            retired.make_contiguous().sort_by_key(|retired| retired.tag);
        }
        for (ptr, class) in retire_list.free {
            self.push_free(ptr, class);
        }
    }

    /// Neither stock nor limbo?
    pub(crate) fn holds_nothing(&self) -> bool {
        self.retired.borrow().is_empty() && self.stocks.iter().all(|free_list| free_list.borrow().is_empty())
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
