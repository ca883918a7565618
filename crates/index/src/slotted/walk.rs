//! Walks over every entry of a table of slots: for dumps, audits and drops. Each step of a walk has a pin of its own.
//!
//! The kind decides which entries a step reads ([`SlottedIndex::step`]): no two steps of a walk return the same key.
//! What cannot be read is damage, which is reported once.

use super::geometry::{DONE, Geometry, REGION, ROOT_LEN, Segment, signature};
use super::index::SlottedIndex;
use super::slot::{self, Slot, gather};
use super::table::Table;
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::block::UNIT;
use crate::keyhash::KeyHash;
use crate::maintenance::{astray, fetch_blocks, first_word, grace_period};
use crate::root_sync::free_root;
use crate::visit::Entries;
use crate::{IndexError, Value};
use farindex_fabric::{Buf, NodeId, OpKind, RemotePtr, Span};
use farindex_pool::{Pin, PoolError, Session};
use std::collections::BTreeSet;

/// An entry that a walk visits.
pub(crate) struct VisitedEntry {
    pub(crate) segment: Segment,
    pub(crate) at: RemotePtr,
    pub(crate) head: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Value,
    /// The block, if it lies out of band.
    pub(crate) block: Option<(RemotePtr, u64)>,
}

/// What one step of a walk has read.
#[derive(Default)]
pub(crate) struct Step {
    /// Entries of keys that no earlier step has returned.
    pub(crate) visited: Vec<VisitedEntry>,
    /// What could not be read; an earlier step may have reported the same.
    pub(crate) wrong: Vec<Damage>,
}

/// A walk through one table; `P` says how far it has come.
struct Walk<P> {
    progress: P,
    begun: bool,
    ended: bool,
    /// Damage that has been reported.
    reported: BTreeSet<RemotePtr>,
}

impl<P: Default> Walk<P> {
    fn new() -> Self {
        Walk { progress: P::default(), begun: false, ended: false, reported: BTreeSet::new() }
    }

    /// Takes the next step, under this pin; returns `None` at the end. An invalid root ends the walk through its table.
    async fn step<I: SlottedIndex<Progress = P>>(
        &mut self,
        index: &I,
        table: &Table<I::Own>,
        pin: &Pin<'_>,
    ) -> Result<Option<Step>, IndexError> {
        if self.ended {
            return Ok(None);
        }
        let step = async {
            // The first step reports whether the index has been dropped.
            if !std::mem::replace(&mut self.begun, true) || !table.is_checked(pin.epoch()) {
                table.look(pin).await?;
            }
            index.step(table, pin, &mut self.progress).await
        };
        match step.await {
            Ok(Some(mut step)) => {
                step.wrong.retain(|damage| self.reported.insert(damage.at));
                Ok(Some(step))
            }
            Err(IndexError::Pool(PoolError::Corrupt { at, what })) => {
                self.ended = true;
                Ok(Some(Step { visited: Vec::new(), wrong: vec![Damage { at, what }] }))
            }
            other => other,
        }
    }
}

/// Hands out every key and value, and calls `damaged` with what cannot be read; returns the number of entries.
pub(crate) async fn visit<I: SlottedIndex>(
    index: &I,
    entries: &Entries,
    damaged: OnDamage<'_>,
) -> Result<u64, IndexError> {
    let (session, mut seen) = (index.session(), 0);
    for table in index.tables() {
        let mut walk = Walk::new();
        loop {
            let pin = session.pin(session.span(OpKind::Scan))?;
            let Some(Step { visited, wrong }) = walk.step(index, table, &pin).await? else { break };
            drop(pin);
            wrong.into_iter().try_for_each(&mut *damaged)?;
            for entry in visited {
                entries.hand_out(entry.key, entry.value).await?;
                seen += 1;
            }
        }
    }
    Ok(seen)
}

/// Audits the entries of a table, each key once, while other clients are at work. `also` counts the kind's own figures.
pub(crate) async fn audit_walk<I: SlottedIndex>(
    index: &I,
    table: &Table<I::Own>,
    findings: &mut Findings<'_>,
    also: impl Fn(&VisitedEntry, &mut IndexAudit),
) -> Result<(), IndexError> {
    let session = index.session();
    let mut walk = Walk::new();
    loop {
        let pin = session.pin(session.span(OpKind::Scan))?;
        let Some(Step { visited, wrong }) = walk.step(index, table, &pin).await? else { return Ok(()) };
        wrong.into_iter().for_each(|damage| findings.problem(damage.what));
        for entry in visited {
            also(&entry, &mut findings.report);
            audit_entry(&pin, &entry, index.hash(&entry.key), findings).await?;
        }
    }
}

/// Begins the audit of the table of a memory node: its root, and the segments that the root names. Returns `None` if
/// the root is invalid, which is a problem.
pub(crate) async fn audit_root<X>(
    table: &Table<X>,
    node: NodeId,
    findings: &mut Findings<'_>,
) -> Result<Option<Geometry>, IndexError> {
    let (root, session) = (table.root(), findings.session);
    findings.check_root(root, node);
    findings.audit.reach(root, ROOT_LEN as u64, "a root");
    let geometry = match table.look(&session.pin(session.span(OpKind::Scan))?).await {
        Err(IndexError::Pool(PoolError::Corrupt { at, what })) => {
            findings.problem(format!("the root at {at}: {what}"));
            return Ok(None);
        }
        geometry => geometry?,
    };
    findings.report.resizes = findings.report.resizes.max(geometry.current.generation);
    if findings.alone && geometry.state.resizer().is_some() {
        findings.problem(format!("the root at {root} names a resizer, and no client is there"));
    }
    let chunk = session.pool().geometry(node).chunk_size;
    for segment in geometry.segments() {
        findings.count("slots", segment.slots());
        findings.reach(segment.start, Segment::bytes_for(segment.regions, segment.width, chunk), "a segment");
    }
    Ok(Some(geometry))
}

/// Begins the audit of a region: READs its lock and its slots under a pin, and checks the lock. If no other client is
/// at work, a slot is a problem whose head is `unfinished`, given whether the region has been moved. `None` if all has
/// been moved out of the segment. `each` is called with each head.
pub(crate) async fn audit_region<'s, X>(
    table: &Table<X>,
    geometry: &Geometry,
    segment: &Segment,
    region: u64,
    findings: &mut Findings<'s>,
    unfinished: impl Fn(bool, u64) -> bool,
    mut each: impl FnMut(&mut IndexAudit, u64),
) -> Result<Option<(Pin<'s>, Buf)>, IndexError> {
    let Some(pin) = table.pin_step(findings.session, segment, OpKind::Scan).await? else { return Ok(None) };
    let mut batch = pin.span().batch();
    let lock = batch.read(segment.lock(region).at, 8);
    let slots = batch.read(segment.slot(region * REGION), REGION as usize * segment.width);
    let mut done = batch.post().await?;
    let lock = first_word(&done.buf(lock));
    let slots = done.buf(slots);
    drop(done);
    let growing = geometry.next.is_some() && segment.generation == geometry.current.generation;
    findings.count("regions_to_move", u64::from(growing && lock != DONE));
    if findings.alone && lock != 0 && (lock != DONE || !growing) {
        let at = segment.lock(region).at;
        findings.problem(format!("the region lock at {at} holds {lock}, and no client is there to release it"));
    }
    for (slot, words) in (region * REGION..).zip(slots.words().chunks_exact(segment.width / 8)) {
        let head = words.first().copied().unwrap_or_default();
        each(&mut findings.report, head);
        if findings.alone && unfinished(lock == DONE, head) {
            let at = segment.slot(slot);
            findings.problem(format!("the slot at {at} belongs to a move that no client finishes: {head:#018x}"));
        }
    }
    Ok(Some((pin, slots)))
}

/// READs slots.
pub(crate) async fn read_slots(span: &Span, segment: &Segment, first: u64, count: u64) -> Result<Buf, IndexError> {
    Ok(span.read(segment.slot(first), count as usize * segment.width).await?)
}

/// READs a region.
pub(crate) async fn read_region(span: &Span, segment: &Segment, region: u64) -> Result<Buf, IndexError> {
    read_slots(span, segment, region * REGION, REGION).await
}

/// Returns the name of a slot, for messages.
pub(crate) fn name(segment: &Segment, index: u64) -> String {
    let (node, generation) = (segment.start.node(), segment.generation);
    let (region, slot) = (index / REGION, index % REGION);
    format!("slot {slot} of region {region} of the table of generation {generation} on memory node {node}")
}

/// An entry whose block has yet to be read.
struct OutOfBand {
    index: u64,
    head: u64,
    ptr: RemotePtr,
    units: u64,
}

/// Returns the entries of slots that were read, from slot `first` on, and the damage in them. A block is READ only if
/// the signature of its head is `wanted`.
pub(crate) async fn entries_of(
    session: &Session,
    span: &Span,
    segment: &Segment,
    first: u64,
    mut slots: Buf,
    wanted: impl Fn(u8) -> bool,
) -> Result<(Vec<VisitedEntry>, Vec<Damage>), IndexError> {
    let step = segment.width / 8;
    let (mut visited, mut wrong, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..slots.len() / segment.width {
        let (index, word) = (first + i as u64, i * step);
        let at = segment.slot(index);
        let head = slots.words().get(word).copied().unwrap_or_default();
        let mut report = |what: &str| wrong.push(Damage { at, what: format!("{} {what}", name(segment, index)) });
        let (start, key, value) = match Slot::decode(head) {
            Slot::Tiny { key, value, .. } => (word * 8, key, value),
            Slot::Inline { tag, key, value, .. } => {
                let mut words: Vec<u64> = slots.words().get(word + 1..word + step).unwrap_or_default().to_vec();
                for _ in 0..100 {
                    if words.is_empty() || slot::whole(tag, key + value, &words) {
                        break;
                    }
                    // The head was read before the rest was written. By now the rest is written.
                    words = span.read(at.add(8), segment.width - 8).await?.words().to_vec();
                }
                if !slot::whole(tag, key + value, &words) {
                    report("holds a record that is not whole");
                    continue;
                }
                slots.words_mut()[word + 1..word + step].copy_from_slice(&words);
                gather(&mut slots.bytes_mut()[(word + 1) * 8..(word + step) * 8], key + value);
                ((word + 1) * 8, key, value)
            }
            Slot::Heap { ptr, units, signature, .. } => {
                let units = units.max(1);
                match astray(session.pool(), ptr, units * UNIT as u64) {
                    _ if !wanted(signature) => {}
                    Some(what) => report(&format!("points to {what}")),
                    None => blocks.push(OutOfBand { index, head, ptr, units }),
                }
                continue;
            }
            Slot::Unknown => {
                report(&format!("holds {head:#018x}"));
                continue;
            }
            _ => continue,
        };
        let bytes = slots.bytes().get(start..start + key + value).unwrap_or_default();
        let (key, value) = bytes.split_at_checked(key).unwrap_or_default();
        visited.push(VisitedEntry {
            segment: *segment,
            at,
            head,
            key: key.to_vec(),
            value: Value::from(value),
            block: None,
        });
    }
    let asked: Vec<_> = blocks.iter().map(|of| (of.ptr, of.units)).collect();
    for (OutOfBand { index, head, ptr, .. }, found) in blocks.into_iter().zip(fetch_blocks(span, &asked).await?) {
        let at = segment.slot(index);
        match found {
            Ok(found) => {
                let (key, block) = (found.key().to_vec(), Some((ptr, found.header.block_len() as u64)));
                visited.push(VisitedEntry { segment: *segment, at, head, key, value: found.into_value(), block });
            }
            Err(what) => wrong.push(Damage { at, what: format!("{} points to {what}", name(segment, index)) }),
        }
    }
    Ok((visited, wrong))
}

impl<X> Table<X> {
    /// Pins a step of a walk through a segment; `None` if everything has been moved out of it.
    pub(crate) async fn pin_step<'s>(
        &self,
        session: &'s Session,
        segment: &Segment,
        kind: OpKind,
    ) -> Result<Option<Pin<'s>>, IndexError> {
        let pin = session.pin(session.span(kind))?;
        if !self.is_checked(pin.epoch()) {
            self.sync(pin.span(), pin.epoch()).await?;
        }
        Ok((self.geometry().current.generation <= segment.generation).then_some(pin))
    }

    /// READs the root now, for an operation under this pin. Segments outside of the pool's memory are damage.
    pub(crate) async fn look(&self, pin: &Pin<'_>) -> Result<Geometry, IndexError> {
        let geometry = self.sync(pin.span(), pin.epoch()).await?;
        let chunk = pin.session().pool().geometry(self.root().node()).chunk_size;
        for segment in geometry.segments() {
            let bytes = Segment::bytes_for(segment.regions, segment.width, chunk);
            if let Some(what) = astray(pin.session().pool(), segment.start, bytes) {
                let what = format!("the root's segment of generation {} points to {what}", segment.generation);
                return Err(PoolError::Corrupt { at: self.root(), what }.into());
            }
        }
        Ok(geometry)
    }
}

/// Audits one entry of a key with this hash.
pub(crate) async fn audit_entry(
    pin: &Pin<'_>,
    entry: &VisitedEntry,
    hash: KeyHash,
    findings: &mut Findings<'_>,
) -> Result<(), IndexError> {
    let at = entry.at;
    findings.report.entries += 1;
    findings.key(hash, &entry.key, at);
    let kept = match Slot::decode(entry.head) {
        Slot::Tiny { .. } => {
            findings.count("tiny_entries", 1);
            signature(hash)
        }
        Slot::Inline { signature, .. } => {
            findings.count("inline_entries", 1);
            signature
        }
        Slot::Heap { units, signature, ptr, .. } => {
            findings.count("heap_entries", 1);
            let Some((_, len)) = entry.block else { return Ok(()) };
            if slot::heap(ptr, len as usize, signature, slot::Stamp::CLAIMED) >> 56 & 7 != units {
                findings.problem(format!("the slot at {at} does not fit the block at {ptr} that it points to"));
            }
            findings.reach_block(pin.span(), format_args!("the slot at {at}"), ptr, len).await?;
            signature
        }
        _ => return Ok(()),
    };
    if kept != signature(hash) {
        findings.problem(format!("the slot at {at} has the signature of another key"));
    }
    Ok(())
}

/// Frees what a repair has retired before the repair ends, unless another client keeps the epoch from advancing.
pub(crate) async fn free_what_was_moved(session: &Session) -> Result<(), IndexError> {
    let endpoint = session.endpoint();
    let until = endpoint.now() + session.pool().lease();
    grace_period(session, || endpoint.now() < until).await?;
    Ok(session.maintain().await?)
}

/// Frees a table of a dropped index, with all of its entries, when no client can use it any more.
pub(crate) async fn free_table<X>(
    session: &Session,
    span: &Span,
    table: &Table<X>,
    width: usize,
) -> Result<(), IndexError> {
    let words = span.read(table.root(), ROOT_LEN).await?;
    let geometry = Geometry::parse(words.words(), width);
    // A client that has crashed may have left a block in two slots.
    let mut freed = BTreeSet::new();
    for segment in geometry.into_iter().flat_map(|geometry| geometry.segments()) {
        for region in 0..segment.regions {
            let slots = read_region(span, &segment, region).await?;
            let (visited, _) = entries_of(session, span, &segment, region * REGION, slots, |_| true).await?;
            for (ptr, len) in visited.into_iter().filter_map(|entry| entry.block) {
                if freed.insert(ptr) {
                    session.free(span, ptr, len).await?;
                }
            }
            if session.maintenance_due() {
                session.maintain().await?;
            }
        }
    }
    free_root::<Geometry>(session, span, table.root(), width).await
}
