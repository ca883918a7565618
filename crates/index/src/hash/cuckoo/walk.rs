//! Every entry of an index: for dumps, audits, repairs and drops.
//!
//! A walk goes through the table three times, and through the next one behind it each time: first for the entries that lie at their
//! keys' first places, then for those at the second, then for those at the third. Entries move forward only, so a walk beside working
//! clients meets every key that was there all the time; one that is moved meanwhile it may meet twice. Each step is pinned on
//! its own.

use super::places::{WAYS, place_of};
use super::{Cuckoo, Table};
use crate::audit::{IndexAudit, OnDamage, Problems};
use crate::keyhash::KeyHash;
use crate::slotted::geometry::{DONE, Geometry, LOCKED, REGION, ROOT_LEN, Segment};
use crate::slotted::slot::{Slot, frozen};
use crate::slotted::walk::{audit_entry, entries_of, free_what_was_moved};
use crate::upkeep::bear;
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Vigil};

/// Figures of an audit: entries in head words, behind them, and out of band; at their keys' first, second and third places; slots;
/// regions that have yet to be moved.
const FIGURES: [&str; 5] = ["tiny_entries", "inline_entries", "heap_entries", "slots", "regions_to_move"];
const BY_PLACE: [&str; WAYS] = ["first_place", "second_place", "third_place"];

/// Region locks that are READ at once.
const LOCKS: u64 = 64;

/// What an audit has come to.
struct Findings<'a> {
    alone: bool,
    audit: &'a mut Audit,
    report: IndexAudit,
    problems: Problems,
    /// What is equal of equal keys only, and where.
    keys: Vec<((u64, u64), RemotePtr)>,
}

impl Cuckoo {
    /// Calls `each` with every key and value. See the promise above for what that means beside working clients.
    pub async fn for_each(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            for place in 0..WAYS {
                let mut next = Some(table.current(&self.session).await?.current);
                while let Some(segment) = next {
                    for region in 0..segment.regions {
                        let Some(met) = table.met_in(&self.session, &segment, region, damaged).await? else { break };
                        for entry in met {
                            let hash = self.hash(&entry.key);
                            if self.place_at(table, &segment, hash, entry.at) == Some(place) {
                                each(&entry.key, entry.value).await?;
                                seen += 1;
                            }
                        }
                    }
                    next = table.newer(&self.session, segment.generation).await?;
                }
            }
        }
        Ok(seen)
    }

    /// Which of the key's places this slot belongs to.
    fn place_at(&self, table: &Table, segment: &Segment, hash: KeyHash, at: RemotePtr) -> Option<usize> {
        let slot = (at.offset() - segment.start.offset()) / segment.width as u64;
        place_of(hash, segment, table.own.associativity, slot)
    }

    /// Walks the whole index, notes every object in `audit`, and checks every entry: its bytes are sound, and it lies where a
    /// lookup finds it. `alone` says that no other client is at work: then nothing may be unfinished.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let (report, problems) = (IndexAudit::default(), Problems::default());
        let mut findings = Findings { alone, audit, report, problems, keys: Vec::new() };
        FIGURES.iter().chain(&BY_PLACE).for_each(|name| findings.report.count(name, 0));
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            if table.root().node() != node {
                let what = format!("the table of memory node {node} has its root at {}", table.root());
                findings.problems.add(what);
            }
            findings.audit.reach(table.root(), ROOT_LEN as u64, "a root");
            let geometry = table.current(&self.session).await?;
            findings.report.resizes = findings.report.resizes.max(geometry.current.generation);
            if alone && geometry.state.resizer().is_some() {
                let what = format!("the root at {} names a resizer, and no client is there", table.root());
                findings.problems.add(what);
            }
            let chunk = self.session.pool().geometry(node).chunk_size;
            for segment in geometry.segments() {
                let bytes = Segment::bytes_for(segment.regions, segment.width, chunk);
                findings.report.index_bytes += bytes;
                findings.report.count("slots", segment.slots());
                findings.audit.reach(segment.start, bytes, "a segment");
                for region in 0..segment.regions {
                    self.audit_region(table, &geometry, &segment, region, &mut findings).await?;
                }
            }
        }
        let Findings { mut report, mut problems, mut keys, .. } = findings;
        if alone {
            keys.sort_unstable();
            for pair in keys.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                problems.add(format!("the slots at {} and {} have the same key", pair[0].1, pair[1].1));
            }
        }
        report.problems = problems.into_vec();
        Ok(report)
    }

    async fn audit_region(
        &self,
        table: &Table,
        geometry: &Geometry,
        segment: &Segment,
        region: u64,
        findings: &mut Findings<'_>,
    ) -> Result<(), IndexError> {
        let Findings { alone, audit, report, problems, keys } = findings;
        let Some(pin) = table.pin_step(&self.session, segment, OpKind::Scan).await? else { return Ok(()) };
        let mut batch = pin.span().batch();
        let lock = batch.read(segment.lock(region).at, 8);
        let slots = batch.read(segment.slot(region * REGION), REGION as usize * segment.width);
        let mut done = batch.post().await?;
        let lock = done.buf(lock).words().first().copied().unwrap_or_default();
        let slots = done.buf(slots);
        drop(done);
        let growing = geometry.next.is_some() && segment.generation == geometry.current.generation;
        report.count("regions_to_move", u64::from(growing && lock != DONE));
        if *alone && lock != 0 && (lock != DONE || !growing) {
            let at = segment.lock(region).at;
            problems.add(format!("the region lock at {at} holds {lock}, and no client is there to release it"));
        }
        for (i, words) in slots.words().chunks_exact(segment.width / 8).enumerate() {
            let head = words.first().copied().unwrap_or_default();
            let gone = matches!(Slot::decode(head), Slot::Sealed | Slot::Moved);
            if *alone && (frozen(head) || gone != (lock == DONE)) {
                let at = segment.slot(region * REGION + i as u64);
                problems.add(format!("the slot at {at} belongs to a move that nobody finishes: {head:#018x}"));
            }
        }
        let (met, wrong) = entries_of(pin.span(), segment, region, slots).await?;
        wrong.into_iter().for_each(|what| problems.add(what));
        for entry in met {
            let hash = self.hash(&entry.key);
            match self.place_at(table, segment, hash, entry.at) {
                Some(place) => report.count(BY_PLACE[place], 1),
                None => problems.add(format!("the entry at {} lies where no lookup comes by", entry.at)),
            }
            keys.push(((hash.bits(), xxhash_rust::xxh3::xxh3_64_with_seed(&entry.key, 1)), entry.at));
            audit_entry(&pin, &entry, hash, audit, report, problems).await?;
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
            for segment in table.current(session).await?.segments() {
                for first in (0..segment.regions).step_by(LOCKS as usize) {
                    mended += self.mend_regions(table, &segment, first).await?;
                }
            }
        }
        if mended > 0 {
            free_what_was_moved(session).await?;
        }
        Ok(mended)
    }

    async fn mend_regions(&self, table: &Table, segment: &Segment, first: u64) -> Result<u64, IndexError> {
        let session = &self.session;
        let (mut vigil, mut mended, mut last) = (Vigil::default(), 0, None);
        while let Some(pin) = table.pin_step(session, segment, OpKind::Maintenance).await? {
            let count = LOCKS.min(segment.regions - first);
            let locks = pin.span().read(segment.lock(first).at, count as usize * 8).await?;
            let Some(region) = (first..).zip(locks.words()).find(|(_, word)| **word == LOCKED).map(|(i, _)| i) else {
                break;
            };
            if last.replace(region) != Some(region) {
                vigil = Vigil::default();
            }
            let busy = self.mover(table, &pin).put_right(*segment, region).await?;
            drop(pin);
            mended += u64::from(busy.is_none());
            bear(session, &mut vigil, segment.lock(region).at, busy.unwrap_or(0)).await?;
        }
        Ok(mended)
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(super) async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        self.drop_tables(span, info, self.config.width).await
    }
}
