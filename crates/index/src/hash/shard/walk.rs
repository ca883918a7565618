//! Every slot of an index: for audits, recovery and drops.
//!
//! They go through the segments in order, and within a segment through its levels. An entry only ever moves to a later
//! segment, so they meet every key that was there all the time at least once; a key that is moved, or removed and inserted
//! again, they may meet twice, and an audit beside other clients counts it once. Each step is pinned on its own, so that a
//! long one holds up nobody's memory. Who wants each key once goes by [classes](super::dump).

use super::bucket::{LOCK_SLOT, Level, Snapshot, version_bit};
use super::geometry::{Geometry, Places, ROOT_LEN};
use super::level3::{Chain3, NODE_LEN};
use super::slot::{Entry, META, Slot, Stamp};
use super::table::Table;
use super::{Shard, geometry};
use crate::IndexError;
use crate::audit::{IndexAudit, Problems};
use crate::block::{self, Decoded, HEADER_LEN, Header, UNIT};
use crate::upkeep::{astray, bear, find_twins, outlast, read_blocks};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Pin, Vigil};
use std::rc::Rc;

/// Buckets that one step reads.
const STEP: u64 = 16;

/// Figures of an audit: entries by level, slots of level 1 in all segments, buckets of levels 1 and 2 that are in use, buckets
/// that have yet to be split off from their parents, slots that are neither free nor in use.
const FIGURES: [&str; 7] =
    [LEVELS[0], LEVELS[1], LEVELS[2], "level1_slots", "buckets", "buckets_to_split", "dead_slots"];
const LEVELS: [&str; 3] = ["level1_entries", "level2_entries", "level3_entries"];

/// What a walk meets.
struct Met {
    /// 1, 2 or 3.
    level: usize,
    /// Number of the level-1 or level-2 bucket; in level 3 that of the level-1 bucket it belongs to.
    bucket: u64,
    /// Version of the bucket.
    version: u64,
    slot: RemotePtr,
    word: u64,
}

/// An entry that an audit has met.
struct MetEntry {
    hash: u64,
    ptr: RemotePtr,
    level: usize,
    bytes: u64,
}

/// One step of a walk.
#[derive(Default)]
struct Step {
    met: Vec<Met>,
    /// Nodes of level 3.
    nodes: Vec<RemotePtr>,
    /// Where chains of level 3 cannot be followed.
    broken: Vec<(RemotePtr, String)>,
    /// Locked buckets.
    locked: Vec<RemotePtr>,
    /// Buckets that break S5: they hold dead slots that their latest recycling would have used.
    half_recycled: Vec<RemotePtr>,
    /// Level-1 buckets that are there, and that are not yet.
    written: u64,
    unwritten: u64,
}

/// Number of the first bucket of a segment.
fn first_bucket(geometry: &Geometry, segment: usize) -> u64 {
    if segment == 0 { 0 } else { Geometry::segment_buckets(geometry.initial_bits(), segment as u64) }
}

/// Steps of a walk from this segment on: segment, level, first bucket within the segment, buckets.
fn steps(geometry: &Geometry, from: usize) -> Vec<(usize, usize, u64, u64)> {
    let mut steps = Vec::new();
    for segment in from..geometry.segments().len() {
        let buckets = Geometry::segment_buckets(geometry.initial_bits(), segment as u64);
        for level in 1..=3 {
            let step = STEP * [1, 8, 64][level - 1];
            let parts = (0..buckets).step_by(step as usize);
            steps.extend(parts.map(|first| (segment, level, first, step.min(buckets - first))));
        }
    }
    steps
}

async fn read_step(
    pin: &Pin<'_>,
    geometry: &Geometry,
    (segment, level, first, count): (usize, usize, u64, u64),
) -> Result<Step, IndexError> {
    let span = pin.span();
    let mut step = Step::default();
    let first = first_bucket(geometry, segment) + first;
    if level == 3 {
        let words = span.read(geometry.third(first), count as usize * 8).await?;
        for (i, word) in words.words().iter().enumerate().filter(|(_, word)| **word & !META != 0) {
            let bucket = first + i as u64;
            let chain = Chain3::follow(span, geometry.third(bucket), *word).await?;
            step.nodes.extend(&chain.nodes);
            step.broken.extend(chain.broken.clone());
            let met = |(slot, word): &(RemotePtr, u64)| Met { level, bucket, version: 0, slot: *slot, word: *word };
            step.met.extend(chain.words().iter().map(met));
        }
        return Ok(step);
    }
    let of = if level == 1 { Level::One } else { Level::Two };
    let start = geometry.bucket(of, first);
    let words = span.read(start, count as usize * of.bytes()).await?;
    for (i, part) in words.words().chunks_exact(of.slots()).enumerate() {
        let bucket = first + i as u64;
        let at = start.add((i * of.bytes()) as u64);
        let snapshot = Snapshot::new(at, span.endpoint().buf_from_words(part));
        if snapshot.word(LOCK_SLOT) & !META == 0 {
            step.unwritten += 1;
            continue;
        }
        step.written += 1;
        if snapshot.locked() {
            step.locked.push(at);
        }
        let stamp = snapshot.slots().find_map(|(_, slot)| match slot {
            Slot::Fresh(_, stamp) if stamp != Stamp::NEVER => Some(stamp),
            _ => None,
        });
        let missed = |slot| matches!(slot, Slot::Dead(_, dead) if stamp.is_some_and(|stamp| stamp.recycles(dead)));
        if level == 1 && snapshot.slots().any(|(_, slot)| missed(slot)) {
            step.half_recycled.push(at);
        }
        let version = snapshot.version();
        for (i, word) in part.iter().enumerate() {
            step.met.push(Met { level, bucket, version, slot: snapshot.slot(i), word: *word });
        }
    }
    Ok(step)
}

impl Shard {
    /// The directory as the root has it now.
    pub(super) async fn current(&self, table: &Table) -> Result<Rc<Geometry>, IndexError> {
        let pin = self.session.pin(self.session.span(OpKind::Scan))?;
        table.sync(pin.span(), pin.epoch()).await?;
        Ok(table.geometry())
    }

    /// Walks the whole index, notes every object in `audit`, and checks every entry: its block exists, is sound, and lies
    /// where a lookup finds it. `alone` says that no other client is at work: then nothing may be unfinished.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut report = IndexAudit::default();
        FIGURES.iter().for_each(|name| report.count(name, 0));
        let mut problems = Problems::default();
        let mut met: Vec<MetEntry> = Vec::new();
        let nodes = self.session.pool().nodes();
        for (table, node) in self.tables.iter().zip(nodes) {
            if table.root().node() != node {
                problems.add(format!("the table of memory node {node} has its root at {}", table.root()));
            }
            audit.reach(table.root(), ROOT_LEN as u64, "a root");
            let mut geometry = self.current(table).await?;
            let mut left = std::collections::VecDeque::from(steps(&geometry, 0));
            while let Some(part) = left.pop_front() {
                let pin = self.session.pin(self.session.span(OpKind::Scan))?;
                let step = read_step(&pin, &geometry, part).await?;
                report.count("buckets", step.written);
                report.count("buckets_to_split", step.unwritten);
                for node in &step.nodes {
                    report.index_bytes += NODE_LEN as u64;
                    audit.reach(*node, NODE_LEN as u64, "a node of level 3");
                }
                for (at, what) in &step.broken {
                    problems.add(format!("the slot at {at}: {what}"));
                }
                for at in step.locked.iter().filter(|_| alone) {
                    problems.add(format!("the bucket at {at} is locked, and no client is there to release it"));
                }
                for at in step.half_recycled.iter().filter(|_| alone) {
                    problems.add(format!("the bucket at {at} holds dead slots that its latest recycling left out"));
                }
                for part in step.met.chunks(64) {
                    self.audit_entries(&pin, &geometry, part, alone, audit, &mut report, &mut problems, &mut met)
                        .await?;
                }
                drop(pin);
                if left.is_empty() {
                    // Entries may have moved on to segments that have come since.
                    let newer = self.current(table).await?;
                    left.extend(steps(&newer, geometry.segments().len()));
                    geometry = newer;
                }
            }
            report.count("level1_slots", geometry.slots());
            report.resizes = report.resizes.max(geometry.version);
            for (segment, bytes) in geometry.spans() {
                report.index_bytes += bytes;
                audit.reach(segment, bytes, "a segment");
            }
        }
        if alone {
            let hashes = met.iter().map(|entry| (entry.hash, entry.ptr)).collect();
            find_twins(&self.session, hashes, &mut problems).await?;
        } else {
            self.count_once(met, &mut report).await?;
        }
        report.problems = problems.into_vec();
        Ok(report)
    }

    #[allow(clippy::too_many_arguments)]
    async fn audit_entries(
        &self,
        pin: &Pin<'_>,
        geometry: &Geometry,
        met: &[Met],
        alone: bool,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
        entries: &mut Vec<MetEntry>,
    ) -> Result<(), IndexError> {
        let span = pin.span();
        let mut live = Vec::new();
        for met in met {
            match Slot::decode(met.word) {
                Slot::Live(entry) => live.push((met, entry)),
                Slot::Dead(..) => report.count("dead_slots", 1),
                // Those of a split that is due are in order: who comes next begins there.
                Slot::Frozen(..) | Slot::Barrier(..)
                    if alone && (met.level == 3 || met.version >= geometry.version) =>
                {
                    problems.add(format!("the slot at {} belongs to a split that nobody finishes", met.slot));
                    if let Slot::Frozen(fp, ptr) = Slot::decode(met.word) {
                        live.push((met, Entry { fp, sid: 0, len: 0, ptr }));
                    }
                }
                // Its sid and its length are gone; its block tells them.
                Slot::Frozen(fp, ptr) => live.push((met, Entry { fp, sid: 0, len: 0, ptr })),
                Slot::Unknown => problems.add(format!("the slot at {} holds {:#018x}", met.slot, met.word)),
                Slot::Unwritten if alone && met.level < 3 => {
                    problems.add(format!("the slot at {} of a bucket in use was never written", met.slot));
                }
                _ => {}
            }
        }
        live.retain(|(met, entry)| match astray(self.session.pool(), entry.ptr, entry.len.max(1) * UNIT as u64) {
            Some(what) => {
                problems.add(format!("the slot at {} points to {what}", met.slot));
                false
            }
            None => true,
        });
        let blocks: Vec<_> = live.iter().map(|(_, entry)| (entry.ptr, entry.len.max(1))).collect();
        let bufs = read_blocks(span, &blocks).await?;
        for ((met, entry), buf) in live.into_iter().zip(bufs) {
            let at = met.slot;
            let Decoded::Sound(header, ..) = block::decode(&buf) else {
                problems.add(format!("the slot at {at} points to {}, where no sound key-value block is", entry.ptr));
                continue;
            };
            let units = ((header.block_len() / UNIT) as u64).min(super::slot::MAX_UNITS);
            let frozen = entry.len == 0;
            if entry.fp != header.hash.fingerprint() || entry.len != units && !frozen {
                problems.add(format!("the slot at {at} does not fit the block at {} that it points to", entry.ptr));
            }
            let sid = (!frozen).then_some(entry.sid);
            if let Some(what) = misplaced(geometry, met, sid, &header) {
                problems.add(format!("the entry at {at} {what}"));
            }
            if let Some(what) = Audit::dangling(&self.session, span, entry.ptr, header.block_len() as u64).await? {
                problems.add(format!("the slot at {at} points to {}, but {what}", entry.ptr));
            }
            report.entries += 1;
            report.count(LEVELS[met.level.clamp(1, 3) - 1], 1);
            report.block_bytes += header.block_len() as u64;
            audit.reach(entry.ptr, header.block_len() as u64, "a block");
            let (hash, bytes) = (header.hash.bits(), header.block_len() as u64);
            entries.push(MetEntry { hash, ptr: entry.ptr, level: met.level, bytes });
        }
        Ok(())
    }

    /// Beside other clients a key may have been met where it was and where it is now: it counts once.
    async fn count_once(&self, mut entries: Vec<MetEntry>, report: &mut IndexAudit) -> Result<(), IndexError> {
        entries.sort_by_key(|entry| entry.hash);
        for same in entries.chunk_by(|one, two| one.hash == two.hash).filter(|same| same.len() > 1) {
            let pin = self.session.pin(self.session.span(OpKind::Scan))?;
            // Their blocks may be gone by now, and others there; but two keys of one hash are a rarity.
            let blocks: Vec<_> = same.iter().map(|entry| (entry.ptr, 1)).collect();
            let bufs = read_blocks(pin.span(), &blocks).await?;
            let mut keys = std::collections::BTreeSet::new();
            for (entry, buf) in same.iter().zip(bufs) {
                if let Decoded::Sound(header, key, _) = block::decode(&buf)
                    && header.hash.bits() == entry.hash
                {
                    keys.insert(buf.bytes().get(key).unwrap_or_default().to_vec());
                }
            }
            // What lies furthest back was met last.
            for entry in same.iter().rev().skip(keys.len().max(1)) {
                report.entries -= 1;
                report.figures.entry(LEVELS[entry.level.clamp(1, 3) - 1]).and_modify(|count| *count -= 1);
                report.block_bytes -= entry.bytes;
            }
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
                self.rescue(table, &pin).resume_growth().await?;
                mended += 1;
                drop(pin);
                bear(session, &mut vigil, table.root(), resizer).await?;
            }
            let geometry = self.current(table).await?;
            for part in steps(&geometry, 0) {
                let pin = session.pin(session.span(OpKind::Maintenance))?;
                let step = read_step(&pin, &geometry, part).await?;
                drop(pin);
                for at in step.locked {
                    let mut vigil = Vigil::default();
                    loop {
                        let pin = session.pin(session.span(OpKind::Maintenance))?;
                        let word = pin.span().read(at, 8).await?.words().first().copied().unwrap_or(0);
                        if word & META == 0 {
                            break;
                        }
                        let busy = self.rescue(table, &pin).look_after(at).await?;
                        drop(pin);
                        mended += u64::from(busy.is_none());
                        let (lock, names) = busy.unwrap_or((at, 0));
                        bear(session, &mut vigil, lock, names).await?;
                    }
                }
                let stands = |met: &&Met| {
                    let due = met.level < 3 && met.version < geometry.version;
                    !due && matches!(Slot::decode(met.word), Slot::Frozen(..) | Slot::Barrier(..))
                };
                let still: std::collections::BTreeSet<_> =
                    step.met.iter().filter(stands).map(|met| (met.level == 2, met.bucket)).collect();
                for (second, bucket) in still {
                    let pin = session.pin(session.span(OpKind::Maintenance))?;
                    self.rescue(table, &pin).repair(if second { Level::Two } else { Level::One }, bucket).await?;
                    mended += 1;
                }
            }
        }
        Ok(mended)
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(super) async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        let session = &self.session;
        let endpoint = session.endpoint();
        // Before it is dropped, the directory must be the newest; nobody resizes it afterwards.
        let mut geometries = Vec::new();
        for table in &self.tables {
            geometries.push(self.current(table).await?);
        }
        for (table, geometry) in self.tables.iter().zip(&mut geometries) {
            table.mark_dropped(span).await?;
            let root = span.read(table.root(), ROOT_LEN).await?;
            if let Some(newest) = geometry::Geometry::parse(root.words()) {
                *geometry = Rc::new(newest);
            }
        }
        outlast(session, span, &info.name).await?;
        for (table, geometry) in self.tables.iter().zip(&geometries) {
            for part in steps(geometry, 0) {
                let pin = session.pin(session.span(OpKind::Maintenance))?;
                let step = read_step(&pin, geometry, part).await?;
                let live = step.met.iter().filter_map(|met| match Slot::decode(met.word) {
                    Slot::Live(Entry { ptr, .. }) | Slot::Frozen(_, ptr) => Some(ptr),
                    _ => None,
                });
                let live: Vec<_> = live.collect();
                for part in live.chunks(64) {
                    let mut batch = pin.span().batch();
                    let tickets: Vec<_> = part.iter().map(|ptr| (*ptr, batch.read(*ptr, HEADER_LEN))).collect();
                    let mut done = batch.post().await?;
                    for (ptr, ticket) in tickets {
                        if let Some(header) = Header::decode(done.buf(ticket).words()) {
                            session.free(pin.span(), ptr, header.block_len() as u64).await?;
                        }
                    }
                }
                for node in step.nodes {
                    session.free(pin.span(), node, NODE_LEN as u64).await?;
                }
                drop(pin);
                session.maintain().await?;
            }
            for (segment, bytes) in geometry.spans() {
                session.free_zeroed(span, segment, bytes).await?;
            }
            span.write(table.root(), endpoint.buf_from_words(&[0; ROOT_LEN / 8])).await?;
            session.free(span, table.root(), ROOT_LEN as u64).await?;
        }
        self.forget(span, info).await
    }

    /// Gives back the segments of a table that nobody has seen.
    pub(super) async fn free_segments(
        session: &farindex_pool::Session,
        span: &Span,
        root: RemotePtr,
    ) -> Result<(), IndexError> {
        let words = span.read(root, ROOT_LEN).await?;
        if let Some(geometry) = Geometry::parse(words.words()) {
            for (segment, bytes) in geometry.spans() {
                session.free_zeroed(span, segment, bytes).await?;
            }
        }
        Ok(())
    }
}

/// Would a lookup find an entry where it is?
fn misplaced(geometry: &Geometry, met: &Met, sid: Option<u64>, header: &Header) -> Option<&'static str> {
    debug_assert_eq!(version_bit(LOCK_SLOT, 0), 0);
    let places = Places::of(header.hash);
    let fits = |hash: u64| {
        let in_place = geometry.home(hash, met.version) == met.bucket;
        in_place && sid.is_none_or(|sid| sid == geometry.sid(hash, met.version))
    };
    let found = match met.level {
        1 => fits(header.hash.bits()),
        2 => places.choices.into_iter().any(fits),
        // Level 3 goes with the level-1 bucket, whose version this step does not know: any that fits will do.
        _ => (0..=geometry.version).any(|version| geometry.home(header.hash.bits(), version) == met.bucket),
    };
    (!found).then_some("lies where no lookup comes by")
}
