//! Every entry of an index: for dumps, audits, repairs and drops.
//!
//! A walk goes through the table, and then through the one that it is being moved to, and so on until there is no newer one.
//! An entry only ever moves to a newer table, so a walk beside working clients meets every key that was there all the time;
//! one that is moved meanwhile it may meet twice. Each step is pinned on its own.

use super::migrate::Mover;
use super::{Linear, Table};
use crate::audit::{IndexAudit, OnDamage, Problems};
use crate::slotted::geometry::{DONE, Geometry, REGION, ROOT_LEN, Segment};
use crate::slotted::mover::Moves;
use crate::slotted::slot::{Slot, frozen};
use crate::slotted::walk::{audit_entry, entries_of, free_what_was_moved};
use crate::upkeep::bear;
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Vigil};

/// Figures of an audit: entries in head words, behind them, and out of band; slots; dead ones; regions that have yet to be
/// moved.
const FIGURES: [&str; 6] = ["tiny_entries", "inline_entries", "heap_entries", "slots", "dead_slots", "regions_to_move"];

impl Linear {
    /// Calls `each` with every key and value. See the promise above for what that means beside working clients.
    pub async fn for_each(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            let mut next = Some(table.current(&self.session).await?.current);
            while let Some(segment) = next {
                for region in 0..segment.regions {
                    let Some(met) = table.met_in(&self.session, &segment, region, damaged).await? else { break };
                    for entry in met {
                        each(&entry.key, entry.value).await?;
                        seen += 1;
                    }
                }
                next = table.newer(&self.session, segment.generation).await?;
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
            let geometry = table.current(&self.session).await?;
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
            let Some(pin) = table.pin_step(&self.session, segment, OpKind::Scan).await? else { return Ok(()) };
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
                let hash = self.hash(&entry.key);
                places.push((entry.at, segment.home(hash)));
                keys.push(((hash.bits(), xxhash_rust::xxh3::xxh3_64_with_seed(&entry.key, 1)), entry.at));
                audit_entry(&pin, &entry, hash, audit, report, problems).await?;
            }
        }
        if alone {
            check_reachable(segment, &ends, &places, problems);
        }
        Ok(())
    }

    /// Walks the whole index for what the dead have left, and puts it right; returns how many places there were. Working
    /// clients do so as well, wherever they come by. A client that is alive and holds a lock for two leases is an error.
    pub async fn mend(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut mended = 0;
        for table in &self.tables {
            mended += table.mend_growth(session, self.uid).await?;
            let geometry = table.current(&self.session).await?;
            let (Some(next), from) = (geometry.next, geometry.current) else { continue };
            for region in 0..from.regions {
                let mut vigil = Vigil::default();
                while let Some(pin) = table.pin_step(&self.session, &from, OpKind::Maintenance).await? {
                    let lock = from.lock(region);
                    let word = pin.span().read(lock.at, 8).await?.words().first().copied().unwrap_or_default();
                    if !lock.held(word) {
                        break;
                    }
                    let mover = Mover { index: self.uid, seed: self.seed, table, pin: &pin };
                    let busy = mover.look_after(from, next, region).await?;
                    drop(pin);
                    mended += u64::from(busy.is_none());
                    bear(session, &mut vigil, lock.at, busy.unwrap_or(0)).await?;
                }
            }
        }
        if mended > 0 {
            free_what_was_moved(session).await?;
        }
        Ok(mended)
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(super) async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        self.drop_tables(span, info, self.config.width).await
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
