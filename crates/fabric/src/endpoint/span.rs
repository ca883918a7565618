//! One operation: posts its verbs, and counts them and every wait.
//!
//! Invariants: a verb is posted when the method is called, not when its future is first polled. On mapped memory the usual
//! verbs of an operation (a READ or an atomic alone; a READ behind a WRITE) are carried out *in place*: as the batch that
//! they are, by the same rules and with the same counts, but without a chain from the heap and without a completion.

use super::batch::{Batch, count, count_read};
use super::{Endpoint, MAX_READ_LEN};
use crate::call::{CallRefused, check_request};
use crate::meter::{Class, Counters, OpKind};
use crate::transport::Identity;
use crate::{Buf, FabricError, NodeId, RemotePtr, Verb, VerbKind};
use std::cell::{Cell, RefCell};
use std::future::Future;

/// One operation: posts its verbs, and counts them and every wait.
pub struct Span {
    pub(super) endpoint: Endpoint,
    kind: OpKind,
    pub(super) cost: RefCell<Counters>,
    /// Waits that have ended. A batch that was posted before the latest wait ended was in flight together with that
    /// wait.
    pub(super) waits: Cell<u32>,
}

/// A batch that was carried out in place, and has yet to be waited for.
#[must_use = "its wait has to be counted"]
struct InPlace<'s> {
    span: &'s Span,
    class: Class,
    /// The number of waits that had ended before.
    posted_after: u32,
    waited: bool,
}

impl InPlace<'_> {
    #[inline]
    fn wait(mut self) {
        self.waited = true;
        self.span.count_wait(self.class, self.posted_after);
    }
}

impl Drop for InPlace<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.waited {
            self.span.cost.borrow_mut().abandoned += 1;
        }
    }
}

impl Span {
    #[inline]
    pub(super) fn new(endpoint: Endpoint, kind: OpKind) -> Self {
        Span { endpoint, kind, cost: RefCell::default(), waits: Cell::new(0) }
    }
    /// The endpoint that its verbs go through.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
    /// The kind of operation.
    pub fn kind(&self) -> OpKind {
        self.kind
    }
    /// Returns the cost of the operation so far.
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
    #[inline]
    fn batch_of(&self, class: Class) -> Batch<'_> {
        Batch::new(self, class)
    }
    /// May a batch be carried out in place now? Not where its coroutine may have to let others run.
    #[inline]
    fn goes_in_place(&self) -> bool {
        self.endpoint.inner.runs_now.get() && self.endpoint.inner.goes_on()
    }
    /// Notes that a batch was carried out in place.
    #[inline]
    fn carried_out(&self, class: Class) -> InPlace<'_> {
        let streak = &self.endpoint.inner.streak;
        streak.set(streak.get() + 1);
        InPlace { span: self, class, posted_after: self.waits.get(), waited: false }
    }
    /// Carries a batch out in place; `None` where it is to be posted. The caller counts it.
    #[inline]
    fn in_place(&self, verbs: &mut [Verb]) -> Option<Result<(), Box<FabricError>>> {
        if self.goes_in_place() { self.endpoint.inner.transport.borrow_mut().run_now(verbs) } else { None }
    }
    /// Carries a READ out in place, and counts it. `None` where it is to be posted.
    #[inline]
    fn read_in_place(&self, class: Class, ptr: RemotePtr, len: usize) -> Option<(Buf, InPlace<'_>)> {
        if !len.is_multiple_of(8) || len > MAX_READ_LEN || !self.goes_in_place() {
            return None;
        }
        let inner = &*self.endpoint.inner;
        let mut buf = inner.buffers.take(len);
        if !matches!(inner.transport.borrow_mut().read_now(ptr, &mut buf), Some(Ok(()))) {
            return None;
        }
        let mut cost = self.cost.borrow_mut();
        cost.batches += 1;
        count_read(&mut cost, class, &buf);
        Some((buf, self.carried_out(class)))
    }
    /// Counts a wait that ends, unless the operation has waited since `posted_after`.
    #[inline]
    pub(super) fn count_wait(&self, class: Class, posted_after: u32) {
        if posted_after == self.waits.get() {
            self.waits.set(posted_after + 1);
            let mut cost = self.cost.borrow_mut();
            cost.round_trips += 1;
            cost.block_round_trips += u64::from(class == Class::Block);
        }
    }

    /// READs `len` bytes in place, as a batch that is posted and awaited. `None`, and nothing is posted or counted, where it is
    /// to be posted as a batch: on other fabrics, where its coroutine may have to let others run, and where it fails.
    #[inline]
    pub fn read_now(&self, class: Class, ptr: RemotePtr, len: usize) -> Option<Buf> {
        let (buf, done) = self.read_in_place(class, ptr, len)?;
        done.wait();
        Some(buf)
    }
    /// The same with the WRITE of `along` ahead in the batch, if there is one. It is left there where `None` is returned.
    #[inline]
    pub fn read_behind_now(
        &self,
        class: Class,
        along: &mut Option<(RemotePtr, Buf)>,
        ptr: RemotePtr,
        len: usize,
    ) -> Option<Buf> {
        if along.is_none() { self.read_now(class, ptr, len) } else { self.write_and_read_now(class, along, ptr, len) }
    }
    #[inline(never)]
    fn write_and_read_now(
        &self,
        class: Class,
        along: &mut Option<(RemotePtr, Buf)>,
        ptr: RemotePtr,
        len: usize,
    ) -> Option<Buf> {
        if !len.is_multiple_of(8) || len > MAX_READ_LEN || !self.goes_in_place() {
            return None;
        }
        let (to, buf) = along.take()?;
        let mut verbs = [Verb::new(to, VerbKind::Write(buf)), Verb::new(ptr, VerbKind::Read(self.endpoint.buf(len)))];
        let done = matches!(self.in_place(&mut verbs), Some(Ok(())));
        if done {
            count(&mut self.cost.borrow_mut(), class, &verbs);
            self.carried_out(class).wait();
        }
        let [written, read] = verbs;
        match (done, written.kind, read.kind) {
            (true, _, VerbKind::Read(read)) => Some(read),
            // It may be carried out once more: it is the same WRITE.
            (_, VerbKind::Write(buf), _) => {
                *along = Some((to, buf));
                None
            }
            _ => None,
        }
    }
    /// READs `len` bytes.
    pub fn read(&self, ptr: RemotePtr, len: usize) -> impl Future<Output = Result<Buf, FabricError>> + '_ {
        let posted = self.read_in_place(Class::Index, ptr, len).ok_or_else(|| {
            let mut batch = self.batch();
            let ticket = batch.read(ptr, len);
            (batch.post(), ticket)
        });
        async move {
            match posted {
                Ok((buf, done)) => {
                    done.wait();
                    Ok(buf)
                }
                Err((posted, ticket)) => Ok(posted.await?.buf(ticket)),
            }
        }
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
        self.atomic(Verb::new(ptr, VerbKind::Cas { expect, new, old: 0 }))
    }
    /// Fetch-and-add; returns the word before.
    pub fn faa(&self, ptr: RemotePtr, add: u64) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        self.atomic(Verb::new(ptr, VerbKind::Faa { add, old: 0 }))
    }
    /// Posts an atomic alone; returns the word before.
    #[inline]
    fn atomic(&self, mut verb: Verb) -> impl Future<Output = Result<u64, FabricError>> + '_ {
        // A batch that has failed is none to try again: it may have taken effect.
        let is_aligned = verb.ptr.offset().is_multiple_of(8);
        let ran = if is_aligned { self.in_place(std::slice::from_mut(&mut verb)) } else { None };
        let posted = match (ran, &verb.kind) {
            (Some(ran), VerbKind::Cas { old, .. } | VerbKind::Faa { old, .. }) => {
                count(&mut self.cost.borrow_mut(), Class::Index, std::slice::from_ref(&verb));
                Ok((ran.map(|()| *old), self.carried_out(Class::Index)))
            }
            _ => {
                let mut batch = self.batch();
                let ticket = batch.push(verb.ptr, verb.kind);
                Err((batch.post(), ticket))
            }
        };
        async move {
            match posted {
                Ok((ran, done)) => {
                    done.wait();
                    ran.map_err(|error| *error)
                }
                Err((posted, ticket)) => Ok(posted.await?.old(ticket)),
            }
        }
    }
    /// Compares the bits of `compare_mask` with those of `expect`, and stores those of `swap_mask` from `new`; returns
    /// the word before. One verb where the fabric has it; elsewhere a READ and a loop of CAS, each of which is counted.
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
        let ticket =
            if native { batch.masked_cas(ptr, expect, new, compare_mask, swap_mask) } else { batch.read(ptr, 8) };
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
    /// Asks the memory node's CPU, and returns its reply: see [`call`](crate::call). It is a batch of its own. Where
    /// the fabric has no CALL ([`Capabilities::call`](crate::Capabilities::call)), it is [`FabricError::Unsupported`];
    /// a request that the node refuses is [`FabricError::CallRefused`].
    pub fn call(&self, node: NodeId, request: Buf) -> impl Future<Output = Result<Vec<u8>, FabricError>> + '_ {
        let mut batch = self.batch();
        if let Err(CallRefused(reason)) = check_request(request.len()) {
            batch.refuse(FabricError::CallRefused { node, reason });
        }
        let ticket = batch.push(RemotePtr::new(node, 0), VerbKind::Call { request, reply: None });
        let posted = batch.post();
        async move { posted.await?.reply(ticket) }
    }
    /// Revokes a client on one memory node (G6): none of its verbs takes effect there once this completes.
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
