//! Every entry of an index: for dumps, audits, repairs and drops.
//!
//! A walk goes through the table, and then through the one that it is being moved to, and so on until there is no newer one.
//! An entry only ever moves to a newer table, so a walk beside working clients meets every key that was there all the time;
//! one that is moved meanwhile it may meet twice. Each step is pinned on its own.

use super::Linear;
use super::geometry::{DONE, Geometry, REGION, ROOT_LEN, Segment, signature};
use super::migrate::Mover;
use super::slot::{self, Slot, frozen, gather};
use super::table::Table;
use crate::audit::{IndexAudit, Problems};
use crate::block::{self, Decoded};
use crate::keyhash::KeyHash;
use crate::kind::seal;
use crate::upkeep::{bear, outlast};
use crate::{IndexError, Value};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Pin, PoolError, Vigil};
use std::collections::BTreeSet;
use std::time::Duration;

/// Figures of an audit: entries in head words, behind them, and out of band; slots; dead ones; regions that have yet to be
/// moved.
const FIGURES: [&str; 6] = ["tiny_entries", "inline_entries", "heap_entries", "slots", "dead_slots", "regions_to_move"];

/// An entry as a walk meets it.
struct Met {
    at: RemotePtr,
    head: u64,
    key: Vec<u8>,
    value: Value,
    /// The block, if it lies out of band.
    block: Option<(RemotePtr, u64)>,
}

/// READs a region.
async fn read_region(span: &Span, segment: &Segment, region: u64) -> Result<Buf, IndexError> {
    Ok(span.read(segment.slot(region * REGION), REGION as usize * segment.width).await?)
}

/// The entries of a region that was read, and what is wrong with it.
async fn entries_of(
    span: &Span,
    segment: &Segment,
    region: u64,
    mut slots: Buf,
) -> Result<(Vec<Met>, Vec<String>), IndexError> {
    let step = segment.width / 8;
    let (mut met, mut wrong, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..REGION {
        let (at, first) = (segment.slot(region * REGION + i), i as usize * step);
        let head = slots.words().get(first).copied().unwrap_or_default();
        let (start, key, value) = match Slot::decode(head) {
            Slot::Tiny { key, value, .. } => (first * 8, key, value),
            Slot::Inline { tag, key, value, .. } => {
                let mut words: Vec<u64> = slots.words().get(first + 1..first + step).unwrap_or_default().to_vec();
                for _ in 0..100 {
                    if slot::whole(tag, key + value, &words) {
                        break;
                    }
                    // Its head was read before the rest was written, so now the rest is there.
                    words = span.read(at.add(8), segment.width - 8).await?.words().to_vec();
                }
                if !slot::whole(tag, key + value, &words) {
                    wrong.push(format!("the record at {at} is not whole"));
                    continue;
                }
                slots.words_mut()[first + 1..first + step].copy_from_slice(&words);
                gather(&mut slots.bytes_mut()[(first + 1) * 8..(first + step) * 8], key + value);
                ((first + 1) * 8, key, value)
            }
            Slot::Heap { ptr, units, .. } => {
                blocks.push((at, head, ptr, units));
                continue;
            }
            Slot::Unknown => {
                wrong.push(format!("the slot at {at} holds {head:#018x}"));
                continue;
            }
            _ => continue,
        };
        let bytes = slots.bytes().get(start..start + key + value).unwrap_or_default();
        let (key, value) = bytes.split_at_checked(key).unwrap_or_default();
        met.push(Met { at, head, key: key.to_vec(), value: Value::from(value), block: None });
    }
    let mut batch = span.block_batch();
    let asked: Vec<_> = blocks
        .into_iter()
        .map(|(at, head, ptr, units)| (at, head, ptr, batch.read(ptr, units as usize * block::UNIT)))
        .collect();
    let mut done = batch.post().await?;
    for (at, head, ptr, ticket) in asked {
        let mut buf = done.buf(ticket);
        if let Decoded::Longer(len) = block::decode(&buf) {
            buf = span.read(ptr, len).await?;
        }
        let Decoded::Sound(header, key, value) = block::decode(&buf) else {
            wrong.push(format!("the slot at {at} points to {ptr}, where no sound key-value block is"));
            continue;
        };
        let key = buf.bytes().get(key).unwrap_or_default().to_vec();
        let block = Some((ptr, header.block_len() as u64));
        met.push(Met { at, head, key, value: Value::fetched(buf, value), block });
    }
    Ok((met, wrong))
}

impl Linear {
    /// The root as it is now.
    async fn current(&self, table: &Table) -> Result<Geometry, IndexError> {
        let pin = self.session.pin(self.session.span(OpKind::Scan))?;
        table.sync(pin.span(), pin.epoch()).await
    }

    /// Pins a step of a walk through a segment; `None` if everything has been moved out of it.
    async fn pin_step(&self, table: &Table, segment: &Segment, kind: OpKind) -> Result<Option<Pin<'_>>, IndexError> {
        let pin = self.session.pin(self.session.span(kind))?;
        if !table.is_checked(pin.epoch()) {
            table.sync(pin.span(), pin.epoch()).await?;
        }
        Ok((table.geometry().current.generation <= segment.generation).then_some(pin))
    }

    /// The segment that a walk goes on with after one of this generation.
    async fn newer(&self, table: &Table, generation: u64) -> Result<Option<Segment>, IndexError> {
        let geometry = self.current(table).await?;
        Ok(geometry.segments().find(|segment| segment.generation > generation))
    }

    /// Calls `each` with every key and value. See the promise above for what that means beside working clients.
    pub async fn for_each(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
    ) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            let mut next = Some(self.current(table).await?.current);
            while let Some(segment) = next {
                for region in 0..segment.regions {
                    let Some(pin) = self.pin_step(table, &segment, OpKind::Scan).await? else { break };
                    let slots = read_region(pin.span(), &segment, region).await?;
                    let (met, wrong) = entries_of(pin.span(), &segment, region, slots).await?;
                    drop(pin);
                    if let Some(what) = wrong.into_iter().next() {
                        return Err(PoolError::Corrupt { at: segment.slot(region * REGION), what }.into());
                    }
                    for entry in met {
                        each(&entry.key, entry.value).await?;
                        seen += 1;
                    }
                }
                next = self.newer(table, segment.generation).await?;
            }
        }
        Ok(seen)
    }

    /// Walks the whole index, notes every object in `audit`, and checks every entry: its bytes are sound, and it lies where a
    /// lookup finds it. `alone` says that no other client is at work: then nothing may be unfinished.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut report = IndexAudit::default();
        FIGURES.iter().for_each(|name| report.count(name, 0));
        let mut problems = Problems::default();
        let mut keys = Vec::new();
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            if table.root().node() != node {
                problems.add(format!("the table of memory node {node} has its root at {}", table.root()));
            }
            audit.reach(table.root(), ROOT_LEN as u64, "a root");
            let geometry = self.current(table).await?;
            report.resizes = report.resizes.max(geometry.current.generation);
            if alone && geometry.state.resizer().is_some() {
                problems.add(format!("the root at {} names a resizer, and no client is there", table.root()));
            }
            let chunk = self.session.pool().geometry(node).chunk_size;
            for segment in geometry.segments() {
                let bytes = Segment::bytes_for(segment.regions, segment.width, chunk);
                report.index_bytes += bytes;
                report.count("slots", segment.slots());
                audit.reach(segment.start, bytes, "a segment");
                self.audit_segment(table, &geometry, &segment, alone, audit, &mut report, &mut problems, &mut keys)
                    .await?;
            }
        }
        if alone {
            keys.sort_unstable();
            for pair in keys.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                problems.add(format!("the slots at {} and {} have the same key", pair[0].1, pair[1].1));
            }
        }
        report.problems = problems.into_vec();
        Ok(report)
    }

    #[allow(clippy::too_many_arguments)]
    async fn audit_segment(
        &self,
        table: &Table,
        geometry: &Geometry,
        segment: &Segment,
        alone: bool,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
        keys: &mut Vec<((u64, u64), RemotePtr)>,
    ) -> Result<(), IndexError> {
        // By slot: does a lookup end there? And for each entry its slot and its home.
        let mut ends = Vec::new();
        let mut places = Vec::new();
        for region in 0..segment.regions {
            let Some(pin) = self.pin_step(table, segment, OpKind::Scan).await? else { return Ok(()) };
            let mut batch = pin.span().batch();
            let lock = batch.read(segment.lock(region).at, 8);
            let slots = batch.read(segment.slot(region * REGION), REGION as usize * segment.width);
            let mut done = batch.post().await?;
            let lock = done.buf(lock).words().first().copied().unwrap_or_default();
            let slots = done.buf(slots);
            let growing = geometry.next.is_some() && segment.generation == geometry.current.generation;
            report.count("regions_to_move", u64::from(growing && lock != DONE));
            if alone && lock != 0 && (lock != DONE || !growing) {
                let at = segment.lock(region).at;
                problems.add(format!("the region lock at {at} holds {lock}, and no client is there to release it"));
            }
            for (i, words) in slots.words().chunks_exact(segment.width / 8).enumerate() {
                let head = words.first().copied().unwrap_or_default();
                let slot = Slot::decode(head);
                ends.push(matches!(slot, Slot::Empty | Slot::Sealed));
                report.count("dead_slots", u64::from(slot == Slot::Dead));
                let at = segment.slot(region * REGION + i as u64);
                let unfinished = frozen(head)
                    || matches!(slot, Slot::Reserved(_))
                    || lock == DONE && !matches!(slot, Slot::Sealed | Slot::Moved | Slot::Dead);
                if alone && unfinished {
                    problems.add(format!("the slot at {at} belongs to a move that nobody finishes: {head:#018x}"));
                }
            }
            let (met, wrong) = entries_of(pin.span(), segment, region, slots).await?;
            wrong.into_iter().for_each(|what| problems.add(what));
            for entry in met {
                let hash = KeyHash::of(&entry.key);
                places.push((entry.at, segment.home(hash)));
                keys.push(((hash.bits(), xxhash_rust::xxh3::xxh3_64_with_seed(&entry.key, 1)), entry.at));
                self.audit_entry(&pin, &entry, hash, audit, report, problems).await?;
            }
        }
        if alone {
            check_reachable(segment, &ends, &places, problems);
        }
        Ok(())
    }

    async fn audit_entry(
        &self,
        pin: &Pin<'_>,
        entry: &Met,
        hash: KeyHash,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
    ) -> Result<(), IndexError> {
        let at = entry.at;
        report.entries += 1;
        let kept = match Slot::decode(entry.head) {
            Slot::Tiny { .. } => {
                report.count("tiny_entries", 1);
                signature(hash)
            }
            Slot::Inline { signature, .. } => {
                report.count("inline_entries", 1);
                signature
            }
            Slot::Heap { units, signature, ptr, .. } => {
                report.count("heap_entries", 1);
                let Some((_, len)) = entry.block else { return Ok(()) };
                if slot::heap(ptr, len as usize, signature, slot::Stamp::CLAIMED) >> 56 & 7 != units {
                    problems.add(format!("the slot at {at} does not fit the block at {ptr} that it points to"));
                }
                if let Some(what) = Audit::dangling(&self.session, pin.span(), ptr, len).await? {
                    problems.add(format!("the slot at {at} points to {ptr}, but {what}"));
                }
                report.block_bytes += len;
                audit.reach(ptr, len, "a block");
                signature
            }
            _ => return Ok(()),
        };
        if kept != signature(hash) {
            problems.add(format!("the slot at {at} has the signature of another key"));
        }
        Ok(())
    }

    /// Walks the whole index for what the dead have left, and puts it right; returns how many places there were. Working
    /// clients do so as well, wherever they come by. A client that is alive and holds a lock for two leases is an error.
    pub async fn mend(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut mended = 0;
        for table in &self.tables {
            let mut vigil = Vigil::default();
            while let Some(resizer) = self.current(table).await?.state.resizer() {
                let pin = session.pin(session.span(OpKind::Maintenance))?;
                table.resume_growth(&pin, self.uid).await?;
                drop(pin);
                mended += 1;
                bear(session, &mut vigil, table.root(), resizer).await?;
            }
            let geometry = self.current(table).await?;
            let (Some(next), from) = (geometry.next, geometry.current) else { continue };
            for region in 0..from.regions {
                let mut vigil = Vigil::default();
                while let Some(pin) = self.pin_step(table, &from, OpKind::Maintenance).await? {
                    let lock = from.lock(region);
                    let word = pin.span().read(lock.at, 8).await?.words().first().copied().unwrap_or_default();
                    if !lock.held(word) {
                        break;
                    }
                    let mover = Mover { index: self.uid, table, pin: &pin };
                    let busy = mover.look_after(from, next, region).await?;
                    drop(pin);
                    mended += u64::from(busy.is_none());
                    bear(session, &mut vigil, lock.at, busy.unwrap_or(0)).await?;
                }
            }
        }
        if mended > 0 {
            self.free_what_was_moved().await?;
        }
        Ok(mended)
    }

    /// What a repair has retired is freed before it is called done, unless somebody keeps the epoch from moving on.
    async fn free_what_was_moved(&self) -> Result<(), IndexError> {
        let (session, endpoint) = (&self.session, self.session.endpoint());
        let marked = session.client().epoch() + 1;
        let until = endpoint.now() + session.pool().lease();
        while !farindex_pool::epoch::graced(marked, session.client().epoch()) && endpoint.now() < until {
            session.client().tick(endpoint).await?;
            endpoint.sleep(Duration::from_micros(20)).await;
        }
        Ok(session.maintain().await?)
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(super) async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        let session = &self.session;
        for table in &self.tables {
            Table::mark_dropped(span, table.root(), seal(session, self.uid)).await?;
        }
        outlast(session, span, &info.name).await?;
        for table in &self.tables {
            let words = span.read(table.root(), ROOT_LEN).await?;
            let Some(geometry) = Geometry::parse(words.words(), self.config.width) else { continue };
            // A dead mover may have left entries in both segments.
            let mut freed = BTreeSet::new();
            for segment in geometry.segments() {
                for region in 0..segment.regions {
                    let slots = read_region(span, &segment, region).await?;
                    let (met, _) = entries_of(span, &segment, region, slots).await?;
                    for (ptr, len) in met.into_iter().filter_map(|entry| entry.block) {
                        if freed.insert(ptr) {
                            session.free(span, ptr, len).await?;
                        }
                    }
                    if session.maintenance_due() {
                        session.maintain().await?;
                    }
                }
            }
            Table::free_segments(session, span, table.root(), self.config.width).await?;
            span.write(table.root(), session.endpoint().buf_from_words(&[0; ROOT_LEN / 8])).await?;
            session.free(span, table.root(), ROOT_LEN as u64).await?;
        }
        self.forget(span, info).await
    }
}

/// Is there no empty slot between an entry and its home?
fn check_reachable(segment: &Segment, ends: &[bool], places: &[(RemotePtr, u64)], problems: &mut Problems) {
    // Slots in a row before each one that do not end a lookup; twice around, because the table is a ring.
    let mut before = vec![0u64; ends.len()];
    let mut run = 0;
    for i in 0..2 * ends.len() {
        let i = i % ends.len();
        before[i] = run;
        run = if ends[i] { 0 } else { (run + 1).min(segment.slots()) };
    }
    for (at, home) in places {
        let index = (at.offset() - segment.start.offset()) / segment.width as u64;
        let away = segment.after(index, segment.slots() - home);
        if before.get(index as usize).is_none_or(|before| *before < away) {
            problems.add(format!("the entry at {at} lies where no lookup comes by"));
        }
    }
}
