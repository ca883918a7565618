//! Inserts, updates and upserts: a block, a lookup, and a CAS that points a slot to the block.
//!
//! *Many upserts at once*: one batch WRITEs the blocks of all and READs the level-1 bucket of each key. A second one READs the
//! blocks that may be the keys'. Then each upsert goes on by itself from what was read for it, in order: usually by one CAS.
//!
//! Invariants: a block is allocated before its operation is pinned, and written before a CAS points to it. Each upsert of many
//! has its own pin from before its READ to after its CAS, so it is an upsert whose client is slow. It begins to change the
//! table when those before it have taken effect.

use super::Shard;
use super::insert::Put;
use super::lookup::{Hit, LookupResult, Op};
use super::slot::{self, Entry, Slot};
use super::table::Table;
use crate::IndexError;
use crate::block::{self, UNIT};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::many::MAX_SHARED;
use crate::marks::mark;
use crate::traits::Upsert;
use crate::write::{Mode, Wrote};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span, cold};
use std::time::Duration;

/// A write whose block is allocated.
pub(super) struct Draft<'a> {
    table: &'a Table,
    hash: KeyHash,
    key: &'a [u8],
    /// Its block, of `len` bytes.
    ptr: RemotePtr,
    len: usize,
    /// What has yet to be written to it.
    buf: Option<Buf>,
}

impl Shard {
    /// Writes a block, looks up the key, and inserts or replaces its entry as `mode` says.
    pub(super) async fn write(&self, mode: Mode<'_>, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        let span = self.session.span(mode.kind());
        let mut draft = self.draft(&span, key, value).await?;
        let wrote = self.write_draft(mode, &mut draft, &mut Some(span)).await;
        self.after(draft.table, matches!(wrote, Ok(Wrote::Inserted))).await?;
        wrote
    }

    /// Allocates the block of a write, and composes its content. No pin is held: in a full pool this may wait for all pins.
    async fn draft<'a>(&'a self, span: &Span, key: &'a [u8], value: &[u8]) -> Result<Draft<'a>, IndexError> {
        self.check_lengths(key, value)?;
        let hash = self.hash(key);
        let table = self.table(hash);
        let len = block::block_len(key.len(), value.len());
        let ptr = self.session.alloc(span, table.root().node(), len as u64).await?;
        let buf = Some(block::encode(self.session.endpoint(), hash, key, value));
        Ok(Draft { table, hash, key, ptr, len, buf })
    }

    /// Carries out a write whose block is allocated, by itself. `span` counts its first attempt. It is large, so it is moved
    /// once.
    async fn write_draft(
        &self,
        mode: Mode<'_>,
        draft: &mut Draft<'_>,
        span: &mut Option<Span>,
    ) -> Result<Wrote, IndexError> {
        let wrote = loop {
            // After a wait for the epoch the write begins again, under another pin. An update never waits, and does without a
            // look at the clock.
            let began = (!mode.is_update()).then(|| self.session.endpoint().now());
            match self.write_block(span, mode, draft).await {
                Ok(Some(wrote)) => break Ok(wrote),
                Ok(None) => {
                    let took =
                        began.map_or(Duration::ZERO, |began| self.session.endpoint().now().saturating_sub(began));
                    if let Err(error) = draft.table.await_epoch(&self.session, took).await {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.settle(draft, &wrote);
        wrote
    }

    /// Takes note of a write's effect, and gives back the block that nothing points to.
    fn settle(&self, draft: &Draft<'_>, wrote: &Result<Wrote, IndexError>) {
        match wrote {
            Ok(Wrote::Inserted) => draft.table.note(1),
            Ok(Wrote::Updated) => {}
            // The block was written, but nothing points to it.
            Ok(Wrote::Exists | Wrote::Absent | Wrote::Differs) => self.session.discard(draft.ptr, draft.len as u64),
            // After a failed verb it may be linked all the same (N7), or its WRITE may land later (N5).
            Err(IndexError::Fabric(_)) => {}
            Err(_) => self.session.discard(draft.ptr, draft.len as u64),
        }
    }

    /// Makes one attempt. Returns `None` if the caller should wait for the epoch, which is not possible under the pin.
    async fn write_block(
        &self,
        span: &mut Option<Span>,
        mode: Mode<'_>,
        draft: &mut Draft<'_>,
    ) -> Result<Option<Wrote>, IndexError> {
        let pin = self.session.pin(span.take().unwrap_or_else(|| self.session.span(mode.kind())))?;
        let mut op = Op::new(self, draft.table, pin, draft.hash, draft.key);
        op.change(mode, draft).await
    }

    /// Sets the values of many keys, one after the other.
    pub(super) async fn write_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        let mut outcomes = Vec::with_capacity(pairs.len());
        while let Some(rest) = pairs.get(outcomes.len()..).filter(|rest| !rest.is_empty()) {
            self.write_some(rest, &mut outcomes).await;
        }
        outcomes
    }

    /// Sets the values of the first pairs, at least one, and appends their outcomes.
    async fn write_some(&self, pairs: &[(&[u8], &[u8])], outcomes: &mut Vec<Result<Upsert, IndexError>>) {
        // It counts all drafts, and goes on as that of the first upsert.
        let span = self.session.span(OpKind::Upsert);
        let mut drafts = Vec::with_capacity(pairs.len().min(MAX_SHARED));
        for (key, value) in pairs.iter().take(MAX_SHARED) {
            match self.draft(&span, key, value).await {
                Ok(draft) => drafts.push(draft),
                Err(error) if drafts.is_empty() => return outcomes.push(Err(error)),
                // It is tried again when those before it have freed what they replace.
                Err(_) => break,
            }
        }
        let first = outcomes.len();
        match self.look_together(span, &mut drafts).await {
            Ok(mut prepared) => {
                for (draft, prepared) in drafts.iter_mut().zip(&mut prepared) {
                    let Some(wrote) = prepared.change(draft).await.transpose() else { break };
                    self.settle(draft, &wrote);
                    outcomes.push(wrote.map(Upsert::from));
                }
            }
            Err(error) => {
                drafts.iter().for_each(|draft| self.settle(draft, &Err(error.clone())));
                outcomes.extend(drafts.iter().map(|_| Err(error.clone())));
            }
        }
        // One of them has to wait for the epoch, which waits for all pins.
        for draft in drafts.iter_mut().skip(outcomes.len() - first) {
            mark!("upserts of many keys: by itself");
            outcomes.push(self.write_draft(Mode::Upsert, draft, &mut None).await.map(Upsert::from));
        }
        let inserted = outcomes.iter().skip(first).any(|outcome| matches!(outcome, Ok(Upsert::Inserted)));
        for table in &self.tables {
            if let (Err(error), Some(last)) = (self.after(table, inserted).await, outcomes.last_mut()) {
                *last = Err(error);
            }
        }
    }

    /// Writes the blocks of upserts, and looks up their keys. `span` is that of the first upsert.
    async fn look_together<'a>(
        &'a self,
        span: Span,
        drafts: &mut [Draft<'a>],
    ) -> Result<Vec<Prepared<'a>>, IndexError> {
        let mut all = Vec::with_capacity(drafts.len());
        let mut first = Some(span);
        for draft in drafts.iter() {
            let pin = self.session.pin(first.take().unwrap_or_else(|| self.session.span(OpKind::Upsert)))?;
            all.push(Prepared { op: Op::new(self, draft.table, pin, draft.hash, draft.key), hit: None });
        }
        for Prepared { op, .. } in &mut all {
            op.look_at_root().await?;
        }
        // The meter counts shared batches for the first upsert.
        let Some(Prepared { op: first, .. }) = all.first() else { return Ok(all) };
        let mut batch = first.span().batch();
        let mut reads = Vec::with_capacity(drafts.len());
        for (draft, Prepared { op, .. }) in drafts.iter_mut().zip(&all) {
            if let Some(buf) = draft.buf.take() {
                batch.write(draft.ptr, buf);
            }
            reads.push(op.ask_bucket(&mut batch));
        }
        let mut done = batch.post().await?;
        let mut blocks = Vec::with_capacity(drafts.len());
        for (i, (Prepared { op, .. }, read)) in all.iter_mut().zip(reads).enumerate() {
            op.judge_bucket(read, &mut done, |slot, entry| blocks.push((i, slot, entry)));
        }
        drop(done);
        let Some(Prepared { op: first, .. }) = all.first() else { return Ok(all) };
        let mut batch = first.span().block_batch();
        let read = |(i, slot, entry): (usize, usize, Entry)| {
            (i, slot, entry.ptr, batch.read(entry.ptr, entry.len as usize * UNIT))
        };
        let tickets: Vec<_> = blocks.into_iter().map(read).collect();
        let mut done = batch.post().await?;
        for (i, slot, ptr, ticket) in tickets {
            if let Some(Prepared { op, hit: hit @ None }) = all.get_mut(i) {
                *hit = op.judge_block(slot, ptr, done.buf(ticket));
            }
        }
        Ok(all)
    }
}

/// An upsert whose first READs are done.
struct Prepared<'a> {
    op: Op<'a>,
    /// Where its key was found.
    hit: Option<Hit>,
}

impl Prepared<'_> {
    /// Changes the table; `None`: see [`Op::change`].
    async fn change(&mut self, draft: &mut Draft<'_>) -> Result<Option<Wrote>, IndexError> {
        if let Some(hit) = self.hit.take()
            && (self.op.point_to(&hit, draft).await? || planted(Fault::CasUnchecked))
        {
            return Ok(Some(Wrote::Updated));
        }
        cold(self.op.change(Mode::Upsert, draft)).await
    }
}

impl Op<'_> {
    /// Looks up the key, and inserts or replaces its entry as `mode` says, until a CAS has succeeded. Returns `None` if the
    /// caller should wait for the epoch, which is not possible under the pin.
    async fn change(&mut self, mode: Mode<'_>, draft: &mut Draft<'_>) -> Result<Option<Wrote>, IndexError> {
        let (ptr, mut check) = (draft.ptr, mode.guard().begin());
        let mut along = draft.buf.take().map(|buf| (ptr, buf));
        let late = if planted(Fault::EarlyPointer) { along.take() } else { None };
        if planted(Fault::UnawaitedBlock)
            && let Some((ptr, buf)) = along.take()
        {
            let mut batch = self.span().batch();
            batch.write(ptr, buf);
            batch.post_detached();
        }
        loop {
            // What was found is large, and stays where it is.
            let looked = self.look(&mut along).await?;
            match &looked {
                LookupResult::Hit(_) if mode == Mode::Insert => return Ok(Some(Wrote::Exists)),
                LookupResult::Hit(hit) if !check.admits(hit.block.value()) => return Ok(Some(Wrote::Differs)),
                LookupResult::Hit(hit) => {
                    if self.point_to(hit, draft).await? {
                        self.write_late(late).await?;
                        return Ok(Some(Wrote::Updated));
                    }
                }
                LookupResult::Absent(_) if mode.is_update() => return Ok(Some(Wrote::Absent)),
                // An entry is added to a bucket of the newest version.
                LookupResult::Absent(_) if let Some(overdue) = self.overdue.take() => return Err(overdue.why),
                // A planted fault may not have written the block yet.
                LookupResult::Absent(absence) if late.is_none() && self.should_await_epoch(&absence.first) => {
                    return Ok(None);
                }
                LookupResult::Absent(absence) => {
                    if self.put(absence, ptr, draft.len).await? == Put::Done {
                        self.write_late(late).await?;
                        return Ok(Some(Wrote::Inserted));
                    }
                }
            }
        }
    }

    /// Has the slot of a key that was found point to the block of a draft.
    async fn point_to(&mut self, hit: &Hit, draft: &Draft<'_>) -> Result<bool, IndexError> {
        let len = ((draft.len / UNIT) as u64).min(slot::MAX_UNITS);
        match Slot::decode(hit.word) {
            Slot::Live(entry) => self.replace(hit, Slot::Live(Entry { len, ptr: draft.ptr, ..entry })).await,
            _ => Ok(false),
        }
    }

    /// CASes the slot of a key that was found. After success the old block is retired.
    pub(super) async fn replace(&mut self, hit: &Hit, slot: Slot) -> Result<bool, IndexError> {
        if let Some(bucket) = hit.bucket.as_ref().filter(|bucket| !bucket.is_written()) {
            mark!("replace: bucket not settled");
            // The client that splits the parent is still writing this bucket, and may write it again.
            let version = self.table.geometry().version;
            cold(self.wait_for_words(bucket, version, || "a bucket is written in part".to_owned())).await?;
            return Ok(false);
        }
        let done = self.span().cas(hit.slot, hit.word, slot.over(hit.word)).await? == hit.word;
        if !done {
            mark!("replace: CAS lost");
        }
        if done && planted(Fault::NoGrace) {
            self.pin.session().discard(hit.ptr, hit.block.len());
        } else if done {
            self.pin.retire(hit.ptr, hit.block.len());
        }
        Ok(done)
    }

    /// Writes the block that a slot already points to: for [`Fault::EarlyPointer`].
    async fn write_late(&self, block: Option<(RemotePtr, Buf)>) -> Result<(), IndexError> {
        if let Some((ptr, buf)) = block {
            self.span().write(ptr, buf).await?;
        }
        Ok(())
    }
}
