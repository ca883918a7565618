//! Reclamation: frees retired objects after their grace period, and returns surplus free memory to the pool.
//!
//! Invariants: a retired object is freed only after its grace period, the oldest first. A span whose grace period has
//! elapsed stays at the front of the retire list until maintenance frees it. An address at which no object can lie is
//! never freed.

use super::{Session, TICK_BYTES, TICK_EVERY};
use crate::PoolError;
use crate::alloc::classes::CLASSES;
use crate::epoch::grace_period_elapsed;
use crate::faults::{Fault, planted};
use crate::retire_list::Retired;
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, cold};
use std::time::Duration;

impl Session {
    /// Frees an object that was never linked, or that no operation can reach any more.
    pub async fn free(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        let Some(class) = self.object(ptr, bytes)? else {
            return self.free_span(span, ptr, bytes).await;
        };
        // A session that only frees must not keep everything, even if it never calls `maintain`.
        let len = self.push_free(ptr, class);
        if len > 4 * self.keep(ptr.node(), &self.free_list(ptr.node())?.borrow(), class) {
            self.give_back_surplus().await?;
        }
        Ok(())
    }

    /// Frees an allocation of [`alloc_zeroed`](Self::alloc_zeroed); `bytes` is the size that was asked for. It consists
    /// of whole chunks even if a block would be large enough.
    pub async fn free_zeroed(&self, span: &Span, ptr: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        self.free_list(ptr.node())?;
        self.chunks(ptr.node()).free_span(span, ptr, bytes).await
    }

    /// Frees an object that was never linked, without a verb: a block at once, a span at the next maintenance. Does
    /// nothing if no such object can lie at this address.
    pub fn discard(&self, ptr: RemotePtr, bytes: u64) {
        #[cfg(feature = "marks")]
        crate::ledger::discarded(self.pins.id(), ptr, bytes);
        match self.object(ptr, bytes) {
            Ok(Some(class)) => drop(self.push_free(ptr, class)),
            Ok(None) => self.retired.borrow_mut().push_front(Retired { tag: 0, ptr, bytes }),
            Err(_) => {}
        }
    }

    /// Keeps a free span in the free list, or returns it to the pool if the list is full. An address that is no span,
    /// or is in the list already, comes from damaged memory and is an error.
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

    /// Adds an object to the retire list, to be freed after the grace period of `tag`.
    pub(super) fn retire(&self, tag: u64, ptr: RemotePtr, bytes: u64) {
        if self.object(ptr, bytes).is_ok() {
            self.retired.borrow_mut().push_back(Retired { tag, ptr, bytes });
            self.retirements.set(self.retirements.get() + 1);
            #[cfg(feature = "marks")]
            crate::ledger::retired(ptr);
            self.retired_bytes.set(self.retired_bytes.get().saturating_add(bytes));
        }
    }

    /// Moves the blocks whose grace period has elapsed from the retire list to the free list, and the spans to the
    /// front of the retire list, for [`maintain`](Self::maintain).
    pub(super) fn free_elapsed(&self) {
        let epoch = self.client.epoch() + u64::from(planted(Fault::FreesEarly));
        let mut retired = self.retired.borrow_mut();
        let (mut spans, mut any) = (Vec::new(), false);
        while let Some(front) = retired.front().copied().filter(|front| grace_period_elapsed(front.tag, epoch)) {
            retired.pop_front();
            #[cfg(feature = "marks")]
            crate::ledger::freed(front.ptr, front.bytes);
            match self.class(front.ptr.node(), front.bytes) {
                Some(class) => {
                    self.push_free(front.ptr, class);
                    any = true;
                }
                None => spans.push(front),
            }
        }
        if any {
            self.free_lists.iter().for_each(|free_list| free_list.borrow_mut().note_demand());
        }
        for span in spans {
            retired.push_front(Retired { tag: 0, ..span });
        }
        // Never later than before: every refill calls this, and must not postpone maintenance for ever.
        self.tick_at.set(self.tick_at.get().min(retired.len() + TICK_EVERY));
    }

    /// Frees the spans whose grace period has elapsed: [`free_elapsed`](Self::free_elapsed) has moved them to the
    /// front.
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

    /// Returns to the pool what the free list has beyond what a session keeps.
    pub(super) async fn give_back_surplus(&self) -> Result<(), PoolError> {
        self.overfull.set(false);
        for node in self.pool().nodes() {
            let surplus = self.take_surplus(node)?;
            self.give_back(node, surplus).await?;
        }
        Ok(())
    }

    fn take_surplus(&self, node: NodeId) -> Result<Vec<(RemotePtr, usize)>, PoolError> {
        let mut free_list = self.free_list(node)?.borrow_mut();
        let mut surplus = Vec::new();
        for class in 0..CLASSES {
            if free_list.free[class].is_empty() {
                continue;
            }
            let keep = self.keep(node, &free_list, class);
            if free_list.free[class].len() > keep && !planted(Fault::KeepsSurplus) {
                surplus.extend(free_list.free[class].drain(keep / 2..).map(|ptr| (ptr, class)));
            }
        }
        Ok(surplus)
    }

    /// Returns the whole free list to the pool, runs and spans included.
    pub(super) async fn give_back_all(&self) -> Result<(), PoolError> {
        self.overfull.set(false);
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

    /// Asks for maintenance within so many operations: something other than retired memory waits for the epoch to
    /// advance, such as slots of an index.
    pub fn want_epoch(&self, within: u32) {
        let within = within.clamp(1, TICK_EVERY as u32);
        let wanted = self.wanted.get();
        self.wanted.set(if wanted == 0 { within } else { wanted.min(within) });
    }

    /// Returns whether [`maintain`](Self::maintain) is due. Call it once after each operation; it costs no verb.
    pub fn maintenance_due(&self) -> bool {
        let wanted = self.wanted.get();
        self.wanted.set(wanted.saturating_sub(1));
        wanted == 1
            || self.retired.borrow().len() >= self.tick_at.get()
            || self.retired_bytes.get() >= TICK_BYTES
            || self.overfull.get()
    }

    /// Runs maintenance: a [tick](crate::Client::tick), then frees the objects whose grace period has elapsed, and
    /// returns surplus free memory to the pool. Counted as [`OpKind::Maintenance`].
    pub async fn maintain(&self) -> Result<(), PoolError> {
        cold(self.maintain_inner()).await
    }

    async fn maintain_inner(&self) -> Result<(), PoolError> {
        self.tick_at.set(self.retired.borrow().len() + TICK_EVERY);
        self.retired_bytes.set(0);
        self.client.tick(&self.endpoint).await?;
        self.adopt_orphans();
        self.free_elapsed();
        self.free_spans().await?;
        self.give_back_surplus().await
    }

    /// Takes over the memory that closed sessions of this client left.
    pub(crate) fn adopt_orphans(&self) {
        let retire_list = std::mem::take(&mut *self.client.orphans());
        if !retire_list.retired.is_empty() {
            // Oldest first again, so that objects whose grace period has elapsed are not behind others.
            let mut retired = self.retired.borrow_mut();
            retired.extend(retire_list.retired);
            retired.make_contiguous().sort_by_key(|retired| retired.tag);
        }
        for (ptr, class) in retire_list.free {
            self.push_free(ptr, class);
        }
    }

    /// Objects that this session has retired so far.
    pub(crate) fn retirements(&self) -> u64 {
        self.retirements.get()
    }

    /// Returns whether the free list and the retire list are empty.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.retired.borrow().is_empty() && self.free_lists.iter().all(|free_list| free_list.borrow().is_empty())
    }

    /// Frees the objects whose grace period has elapsed, and returns the whole free list to the pool.
    pub async fn flush(&self) -> Result<(), PoolError> {
        cold(self.flush_inner()).await
    }

    async fn flush_inner(&self) -> Result<(), PoolError> {
        self.free_elapsed();
        self.free_spans().await?;
        self.give_back_all().await
    }

    /// Returns all memory of the session to the pool: waits for the grace periods of all retired objects, and returns
    /// the free list. If another client keeps the epoch from advancing, it ends a lease after the last advance.
    pub async fn drain(&self) -> Result<(), PoolError> {
        cold(self.drain_inner()).await
    }

    async fn drain_inner(&self) -> Result<(), PoolError> {
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
