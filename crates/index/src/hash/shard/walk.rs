//! Every slot of an index: for audits, recovery and drops.
//!
//! A walk goes through the segments in order, and within a segment through its levels. An entry only ever moves to a
//! later segment, so a walk visits every key that is present all the time at least once. A key that is moved, or
//! removed and inserted again, may be visited twice; an audit that runs concurrently with other clients counts it once.
//! Each step has a pin of its own, so that a long walk does not delay reclamation. A dump visits each key once, by
//! [classes](super::dump).

use super::Shard;
use super::bucket::{LOCK_SLOT, Level, Snapshot, version_bit};
use super::geometry::{Geometry, Places, ROOT_LEN};
use super::level3::{Chain3, NODE_LEN};
use super::slot::{Entry, META, Slot, Stamp};
use super::table::Table;
use crate::IndexError;
use crate::audit::{IndexAudit, Problems};
use crate::block::{self, Decoded, HEADER_LEN, Header, UNIT};
use crate::maintenance::{astray, find_duplicate_keys, read_blocks, wait_for_lock_holder};
use crate::root_sync::free_root;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{LockTimeout, Pin};
use std::rc::Rc;

/// Buckets that one step reads.
const STEP: u64 = 16;

/// Figures of an audit: entries by level, slots of level 1 in all segments, buckets of levels 1 and 2 that are in use,
/// buckets that have yet to be split off from their parents, slots that are neither free nor in use.
const FIGURES: [&str; 7] =
    [LEVELS[0], LEVELS[1], LEVELS[2], "level1_slots", "buckets", "buckets_to_split", "dead_slots"];
const LEVELS: [&str; 3] = ["level1_entries", "level2_entries", "level3_entries"];

/// A slot that a walk visits.
struct VisitedEntry {
    /// 1, 2 or 3.
    level: usize,
    /// Number of the level-1 or level-2 bucket; in level 3 that of the level-1 bucket it belongs to.
    bucket: u64,
    /// Version of the bucket.
    version: u64,
    slot: RemotePtr,
    word: u64,
}

/// An entry that an audit has visited.
struct AuditedEntry {
    hash: u64,
    ptr: RemotePtr,
    level: usize,
    bytes: u64,
}

/// One step of a walk.
#[derive(Default)]
struct Step {
    visited: Vec<VisitedEntry>,
    /// Nodes of level 3.
    nodes: Vec<RemotePtr>,
    /// Where damage ends chains of level 3.
    broken: Vec<(RemotePtr, String)>,
    /// Locked buckets.
    locked: Vec<RemotePtr>,
    /// Buckets that break S5: they hold dead slots that their latest recycling would have used.
    half_recycled: Vec<RemotePtr>,
    /// Level-1 buckets that are written, and that have yet to be split off.
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
            let visited =
                |(slot, word): &(RemotePtr, u64)| VisitedEntry { level, bucket, version: 0, slot: *slot, word: *word };
            step.visited.extend(chain.words().iter().map(visited));
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
            step.visited.push(VisitedEntry { level, bucket, version, slot: snapshot.slot(i), word: *word });
        }
    }
    Ok(step)
}

impl Shard {
    /// Walks the whole index, records every object in `audit`, and checks every entry: its block exists, is sound, and
    /// is where a lookup finds it. `alone` states that no other client is at work: then an unfinished structure is a
    /// problem.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut report = IndexAudit::default();
        FIGURES.iter().for_each(|name| report.count(name, 0));
        let mut problems = Problems::default();
        let mut visited: Vec<AuditedEntry> = Vec::new();
        let nodes = self.session.pool().nodes();
        for (table, node) in self.tables.iter().zip(nodes) {
            if table.root().node() != node {
                problems.add(format!("the table of memory node {node} has its root at {}", table.root()));
            }
            audit.reach(table.root(), ROOT_LEN as u64, "a root");
            let mut geometry = table.current(&self.session).await?;
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
                for part in step.visited.chunks(64) {
                    self.audit_entries(&pin, &geometry, part, alone, audit, &mut report, &mut problems, &mut visited)
                        .await?;
                }
                drop(pin);
                if left.is_empty() {
                    // Entries may have moved on to segments that have come since.
                    let newer = table.current(&self.session).await?;
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
            let hashes = visited.iter().map(|entry| (entry.hash, entry.ptr)).collect();
            find_duplicate_keys(&self.session, hashes, &mut problems).await?;
        } else {
            self.count_once(visited, &mut report).await?;
        }
        report.problems = problems.into_vec();
        Ok(report)
    }

    #[allow(clippy::too_many_arguments)]
    async fn audit_entries(
        &self,
        pin: &Pin<'_>,
        geometry: &Geometry,
        visited: &[VisitedEntry],
        alone: bool,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
        entries: &mut Vec<AuditedEntry>,
    ) -> Result<(), IndexError> {
        let span = pin.span();
        let mut live = Vec::new();
        for visited in visited {
            match Slot::decode(visited.word) {
                Slot::Live(entry) => live.push((visited, entry)),
                Slot::Dead(..) => report.count("dead_slots", 1),
                // Those of a split that is due are no problem: the next client continues the split.
                Slot::Frozen(..) | Slot::Barrier(..)
                    if alone && (visited.level == 3 || visited.version >= geometry.version) =>
                {
                    problems.add(format!("the slot at {} belongs to an unfinished split", visited.slot));
                    if let Slot::Frozen(fp, ptr) = Slot::decode(visited.word) {
                        live.push((visited, Entry { fp, sid: 0, len: 0, ptr }));
                    }
                }
                // Its sid and its length are gone; its block tells them.
                Slot::Frozen(fp, ptr) => live.push((visited, Entry { fp, sid: 0, len: 0, ptr })),
                Slot::Unknown => problems.add(format!("the slot at {} holds {:#018x}", visited.slot, visited.word)),
                Slot::Unwritten if alone && visited.level < 3 => {
                    problems.add(format!("the slot at {} of a bucket in use was never written", visited.slot));
                }
                _ => {}
            }
        }
        live.retain(|(visited, entry)| match astray(self.session.pool(), entry.ptr, entry.len.max(1) * UNIT as u64) {
            Some(what) => {
                problems.add(format!("the slot at {} points to {what}", visited.slot));
                false
            }
            None => true,
        });
        let blocks: Vec<_> = live.iter().map(|(_, entry)| (entry.ptr, entry.len.max(1))).collect();
        let bufs = read_blocks(span, &blocks).await?;
        for ((visited, entry), buf) in live.into_iter().zip(bufs) {
            let at = visited.slot;
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
            if let Some(what) = misplaced(geometry, visited, sid, &header) {
                problems.add(format!("the entry at {at} {what}"));
            }
            if let Some(what) = Audit::dangling(&self.session, span, entry.ptr, header.block_len() as u64).await? {
                problems.add(format!("the slot at {at} points to {}, but {what}", entry.ptr));
            }
            report.entries += 1;
            report.count(LEVELS[visited.level.clamp(1, 3) - 1], 1);
            report.block_bytes += header.block_len() as u64;
            audit.reach(entry.ptr, header.block_len() as u64, "a block");
            let (hash, bytes) = (header.hash.bits(), header.block_len() as u64);
            entries.push(AuditedEntry { hash, ptr: entry.ptr, level: visited.level, bytes });
        }
        Ok(())
    }

    /// Corrects the counts of an audit that runs concurrently with other clients: a key that was visited in two places
    /// counts once.
    async fn count_once(&self, mut entries: Vec<AuditedEntry>, report: &mut IndexAudit) -> Result<(), IndexError> {
        entries.sort_by_key(|entry| entry.hash);
        for same in entries.chunk_by(|one, two| one.hash == two.hash).filter(|same| same.len() > 1) {
            let pin = self.session.pin(self.session.span(OpKind::Scan))?;
            // Their memory may have been reused by now; but two keys with the same hash are rare.
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
            // The last one was visited in the latest segment.
            for entry in same.iter().rev().skip(keys.len().max(1)) {
                report.entries -= 1;
                report.figures.entry(LEVELS[entry.level.clamp(1, 3) - 1]).and_modify(|count| *count -= 1);
                report.block_bytes -= entry.bytes;
            }
        }
        Ok(())
    }

    /// Scans the index, recovers every structure that a crashed client left unfinished, and returns the number of
    /// repairs. Working clients also recover what blocks them. A live client that holds a lock for two leases is an
    /// error.
    pub async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut recovered = 0;
        for table in &self.tables {
            recovered += table.recover_growth(session, self.uid).await?;
            let geometry = table.current(session).await?;
            for part in steps(&geometry, 0) {
                let pin = session.pin(session.span(OpKind::Maintenance))?;
                let step = read_step(&pin, &geometry, part).await?;
                drop(pin);
                for at in step.locked {
                    let mut lock_timeout = LockTimeout::default();
                    loop {
                        let pin = session.pin(session.span(OpKind::Maintenance))?;
                        let word = pin.span().read(at, 8).await?.words().first().copied().unwrap_or(0);
                        if word & META == 0 {
                            break;
                        }
                        let busy = self.recovery(table, &pin).try_recover_lock(at).await?;
                        drop(pin);
                        recovered += u64::from(busy.is_none());
                        let (lock, names) = busy.unwrap_or((at, 0));
                        wait_for_lock_holder(session, &mut lock_timeout, lock, names).await?;
                    }
                }
                let is_frozen = |visited: &&VisitedEntry| {
                    let due = visited.level < 3 && visited.version < geometry.version;
                    !due && matches!(Slot::decode(visited.word), Slot::Frozen(..) | Slot::Barrier(..))
                };
                let frozen: std::collections::BTreeSet<_> =
                    step.visited.iter().filter(is_frozen).map(|visited| (visited.level == 2, visited.bucket)).collect();
                for (second, bucket) in frozen {
                    let pin = session.pin(session.span(OpKind::Maintenance))?;
                    self.recovery(table, &pin).repair(if second { Level::Two } else { Level::One }, bucket).await?;
                    recovered += 1;
                }
            }
        }
        Ok(recovered)
    }

    /// Frees a table of a dropped index, with all of its entries, when no client can use it any more.
    pub(super) async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        let session = &self.session;
        // No client resizes the table after it was marked as dropped, so this READ shows the newest directory.
        let words = span.read(table.root(), ROOT_LEN).await?;
        let geometry = Geometry::parse(words.words()).map_or_else(|| table.geometry(), Rc::new);
        for part in steps(&geometry, 0) {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            let step = read_step(&pin, &geometry, part).await?;
            let live = step.visited.iter().filter_map(|visited| match Slot::decode(visited.word) {
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
        free_root::<Rc<Geometry>>(session, span, table.root(), ()).await
    }
}

/// Returns what is wrong if no lookup finds an entry where it is.
fn misplaced(geometry: &Geometry, visited: &VisitedEntry, sid: Option<u64>, header: &Header) -> Option<&'static str> {
    debug_assert_eq!(version_bit(LOCK_SLOT, 0), 0);
    let places = Places::of(header.hash);
    let fits = |hash: u64| {
        let in_place = geometry.home(hash, visited.version) == visited.bucket;
        in_place && sid.is_none_or(|sid| sid == geometry.sid(hash, visited.version))
    };
    let found = match visited.level {
        1 => fits(header.hash.bits()),
        2 => places.choices.into_iter().any(fits),
        // Level 3 goes with the level-1 bucket, whose version this step does not know: any that fits will do.
        _ => (0..=geometry.version).any(|version| geometry.home(header.hash.bits(), version) == visited.bucket),
    };
    (!found).then_some("lies where no lookup finds it")
}
