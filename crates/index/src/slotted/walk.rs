//! Every entry of a table of slots: for dumps, audits and drops. Each step of a walk is pinned on its own.

use super::geometry::{Geometry, REGION, ROOT_LEN, Segment, signature};
use super::slot::{self, Slot, gather};
use super::table::Table;
use crate::audit::{Damage, IndexAudit, OnDamage, Problems};
use crate::block::{self, Decoded};
use crate::handle::Handle;
use crate::keyhash::KeyHash;
use crate::kind::seal;
use crate::upkeep::{bear, outlast};
use crate::{IndexError, Value};
use farindex_fabric::{Buf, OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Pin, Session, Vigil};
use std::collections::BTreeSet;
use std::time::Duration;

/// An entry as a walk meets it.
pub(crate) struct Met {
    pub(crate) at: RemotePtr,
    pub(crate) head: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Value,
    /// The block, if it lies out of band.
    pub(crate) block: Option<(RemotePtr, u64)>,
}

/// READs a region.
pub(crate) async fn read_region(span: &Span, segment: &Segment, region: u64) -> Result<Buf, IndexError> {
    Ok(span.read(segment.slot(region * REGION), REGION as usize * segment.width).await?)
}

/// The entries of a region that was read, and what is wrong with it.
pub(crate) async fn entries_of(
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

impl<X> Table<X> {
    /// The root as it is now.
    pub(crate) async fn current(&self, session: &Session) -> Result<Geometry, IndexError> {
        let pin = session.pin(session.span(OpKind::Scan))?;
        self.sync(pin.span(), pin.epoch()).await
    }

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

    /// The segment that a walk goes on with after one of this generation.
    pub(crate) async fn newer(&self, session: &Session, generation: u64) -> Result<Option<Segment>, IndexError> {
        let geometry = self.current(session).await?;
        Ok(geometry.segments().find(|segment| segment.generation > generation))
    }

    /// What lies in a region: it is READ under a pin of its own, and its entries are handed on without one. `None` if
    /// everything has been moved out of the segment.
    pub(crate) async fn met_in(
        &self,
        session: &Session,
        segment: &Segment,
        region: u64,
        damaged: OnDamage<'_>,
    ) -> Result<Option<Vec<Met>>, IndexError> {
        let Some(pin) = self.pin_step(session, segment, OpKind::Scan).await? else { return Ok(None) };
        let slots = read_region(pin.span(), segment, region).await?;
        let (met, wrong) = entries_of(pin.span(), segment, region, slots).await?;
        wrong.into_iter().try_for_each(|what| damaged(Damage { at: segment.slot(region * REGION), what }))?;
        Ok(Some(met))
    }

    /// Takes the names of dead resizers out of the root; returns how many there were.
    pub(crate) async fn mend_growth(&self, session: &Session, index: u64) -> Result<u64, IndexError> {
        let (mut vigil, mut mended) = (Vigil::default(), 0);
        while let Some(resizer) = self.current(session).await?.state.resizer() {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            self.resume_growth(&pin, index).await?;
            drop(pin);
            mended += 1;
            bear(session, &mut vigil, self.root(), resizer).await?;
        }
        Ok(mended)
    }
}

pub(crate) async fn audit_entry(
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
            if let Some(what) = Audit::dangling(pin.session(), pin.span(), ptr, len).await? {
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

/// What a repair has retired is freed before it is called done, unless somebody keeps the epoch from moving on.
pub(crate) async fn free_what_was_moved(session: &Session) -> Result<(), IndexError> {
    let endpoint = session.endpoint();
    let marked = session.client().epoch() + 1;
    let until = endpoint.now() + session.pool().lease();
    while !farindex_pool::epoch::graced(marked, session.client().epoch()) && endpoint.now() < until {
        session.client().tick(endpoint).await?;
        endpoint.sleep(Duration::from_micros(20)).await;
    }
    Ok(session.maintain().await?)
}

impl<C, X> Handle<C, Table<X>> {
    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(crate) async fn drop_tables(&self, span: &Span, info: &IndexInfo, width: usize) -> Result<(), IndexError> {
        let session = &self.session;
        for table in &self.tables {
            Table::<X>::mark_dropped(span, table.root(), seal(session, self.uid)).await?;
        }
        outlast(session, span, &info.name).await?;
        for table in &self.tables {
            let words = span.read(table.root(), ROOT_LEN).await?;
            let Some(geometry) = Geometry::parse(words.words(), width) else { continue };
            // Who died in the midst of something may have left a block in two slots.
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
            Table::<X>::free_segments(session, span, table.root(), width).await?;
            span.write(table.root(), session.endpoint().buf_from_words(&[0; ROOT_LEN / 8])).await?;
            session.free(span, table.root(), ROOT_LEN as u64).await?;
        }
        self.forget(span, info).await
    }
}
