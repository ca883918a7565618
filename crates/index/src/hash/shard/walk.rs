//! Every slot of an index: for audits, recovery and drops.
//!
//! A walk goes through the segments in order, and within a segment through its levels. An entry only ever moves to a
//! later segment, so a walk visits every key that is present all the time at least once. A key that is moved, or
//! removed and inserted again, may be visited twice; an audit that runs concurrently with other clients counts it once.
//! Each step has a pin of its own, so that a long walk does not delay reclamation. A dump visits each key once, by
//! [classes](super::dump).

use super::Shard;
use super::bucket::{LOCK_SLOT, Level, Snapshot, lock_of, version_bit};
use super::geometry::{Geometry, Places, ROOT_LEN};
use super::level3::{Chain3, NODE_LEN};
use super::slot::{Entry, META, Slot, Stamp};
use super::table::Table;
use crate::IndexError;
use crate::audit::{Findings, IndexAudit, KeyId, key_id};
use crate::block::UNIT;
use crate::keyhash::KeyHash;
use crate::maintenance::{BLOCKS_PER_BATCH, astray, fetch_blocks, free_blocks};
use crate::marks::mark;
use crate::recovery::recover_lock;
use crate::root_sync::free_root;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Buckets that one step reads.
const STEP: u64 = 16;

/// Figures of an audit: entries by level, slots of level 1 in all segments, buckets of levels 1 and 2 that are in use,
/// buckets that have yet to be split off from their parents, slots that are neither free nor in use.
const FIGURES: [&str; 7] =
    [LEVELS[0], LEVELS[1], LEVELS[2], "level1_slots", "buckets", "buckets_to_split", "dead_slots"];
const LEVELS: [&str; 3] = ["level1_entries", "level2_entries", "level3_entries"];

/// A slot that a walk visits.
#[derive(Clone, Copy)]
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

/// An entry as an audit has counted it.
struct Counted {
    key: KeyId,
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
    /// lies where a lookup finds it. `alone` states that no other client is at work: then an unfinished split is a
    /// problem.
    pub(crate) async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut findings = Findings::new(&self.session, audit, alone, &FIGURES);
        let mut counted: Vec<Counted> = Vec::new();
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            findings.check_root(table.root(), node);
            findings.audit.reach(table.root(), ROOT_LEN as u64, "a root");
            let mut geometry = table.current(&self.session).await?;
            let mut left = std::collections::VecDeque::from(steps(&geometry, 0));
            while let Some(part) = left.pop_front() {
                let pin = table.pin_step(&self.session, OpKind::Scan).await?;
                let step = read_step(&pin, &geometry, part).await?;
                findings.count("buckets", step.written);
                findings.count("buckets_to_split", step.unwritten);
                for node in &step.nodes {
                    findings.reach(*node, NODE_LEN as u64, "a node of level 3");
                }
                for (at, what) in &step.broken {
                    findings.problem(format!("the slot at {at}: {what}"));
                }
                for at in step.locked.iter().filter(|_| alone) {
                    findings.problem(format!("the bucket at {at} is locked, and no client is there to release it"));
                }
                for at in step.half_recycled.iter().filter(|_| alone) {
                    findings.problem(format!("the bucket at {at} holds dead slots that its latest recycling left out"));
                }
                for part in step.visited.chunks(BLOCKS_PER_BATCH) {
                    audit_entries(&pin, &geometry, part, &mut findings, &mut counted).await?;
                }
                drop(pin);
                if left.is_empty() {
                    // Entries may have moved on to segments that have come since.
                    let newer = table.current(&self.session).await?;
                    left.extend(steps(&newer, geometry.segments().len()));
                    geometry = newer;
                }
            }
            findings.count("level1_slots", geometry.slots());
            findings.report.resizes = findings.report.resizes.max(geometry.version);
            for (segment, bytes) in geometry.spans() {
                findings.reach(segment, bytes, "a segment");
            }
        }
        if !alone {
            count_once(counted, &mut findings.report);
        }
        Ok(findings.finish())
    }

    /// Scans the index, recovers every structure that a crashed client left unfinished, and returns the number of
    /// repairs. Working clients also recover what blocks them. A live client that holds a lock for two leases is an
    /// error.
    pub(crate) async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut recovered = 0;
        for table in &self.tables {
            recovered += table.recover_growth(session, self.uid).await?;
            let geometry = table.current(session).await?;
            for part in steps(&geometry, 0) {
                let pin = table.pin_step(session, OpKind::Maintenance).await?;
                let step = read_step(&pin, &geometry, part).await?;
                drop(pin);
                for at in step.locked {
                    let pin = async || Ok(Some(table.pin_step(session, OpKind::Maintenance).await?));
                    let attempt = async |pin: &Pin<'_>| self.recovery(table, pin).try_recover_lock(at).await;
                    recovered += recover_lock(session, lock_of(at), pin, attempt).await?;
                }
                let is_frozen = |visited: &&VisitedEntry| {
                    let due = visited.level < 3 && visited.version < geometry.version;
                    !due && matches!(Slot::decode(visited.word), Slot::Frozen(..) | Slot::Barrier(..))
                };
                let frozen: BTreeSet<_> =
                    step.visited.iter().filter(is_frozen).map(|visited| (visited.level == 2, visited.bucket)).collect();
                for (second, bucket) in frozen {
                    let pin = table.pin_step(session, OpKind::Maintenance).await?;
                    self.recovery(table, &pin).repair(if second { Level::Two } else { Level::One }, bucket).await?;
                    recovered += 1;
                }
            }
        }
        Ok(recovered)
    }

    /// Frees a table of a dropped index, with all of its entries, when no client can use it any more.
    ///
    /// A frozen slot of a bucket that is not locked was left by a split that has lost the lock, and is where its entry is. In a
    /// locked one a client has crashed in its split, and the new bucket may have the entry, or may have had it before it was
    /// removed there: that memory is left to [`Audit::reclaim`].
    pub(super) async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        let session = &self.session;
        // No client resizes the table after it was marked as dropped, so this READ shows the newest directory.
        let words = span.read(table.root(), ROOT_LEN).await?;
        let geometry = Geometry::parse(words.words()).map_or_else(|| table.geometry(), Rc::new);
        let mut locked: BTreeSet<RemotePtr> = BTreeSet::new();
        for part in steps(&geometry, 0) {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            let step = read_step(&pin, &geometry, part).await?;
            // Level 3 has the locks of level 1, which comes before it.
            locked.extend(&step.locked);
            let is_locked = |visited: &VisitedEntry| {
                let level = if visited.level == 2 { Level::Two } else { Level::One };
                locked.contains(&geometry.bucket(level, visited.bucket))
            };
            let entries = step.visited.iter().filter_map(|visited| match Slot::decode(visited.word) {
                Slot::Live(Entry { ptr, .. }) => Some(ptr),
                Slot::Frozen(_, ptr) if !is_locked(visited) => Some(ptr),
                _ => None,
            });
            let entries: Vec<_> = entries.collect();
            free_blocks(session, pin.span(), &entries).await?;
            for node in step.nodes {
                session.free(pin.span(), node, NODE_LEN as u64).await?;
            }
            drop(pin);
            session.maintain().await?;
        }
        free_root::<Rc<Geometry>>(session, span, table.root(), ()).await
    }
}

async fn audit_entries(
    pin: &Pin<'_>,
    geometry: &Geometry,
    visited: &[VisitedEntry],
    findings: &mut Findings<'_>,
    counted: &mut Vec<Counted>,
) -> Result<(), IndexError> {
    let (span, alone, pool) = (pin.span(), findings.alone, pin.session().pool());
    let mut live = Vec::new();
    for visited in visited {
        match Slot::decode(visited.word) {
            Slot::Live(entry) => live.push((visited, entry)),
            Slot::Dead(..) => findings.count("dead_slots", 1),
            // The slots of a split that is due may be frozen: the next client that comes begins there.
            Slot::Frozen(..) | Slot::Barrier(..)
                if alone && (visited.level == 3 || visited.version >= geometry.version) =>
            {
                findings.problem(format!("the slot at {} belongs to an unfinished split", visited.slot));
                if let Slot::Frozen(fp, ptr) = Slot::decode(visited.word) {
                    live.push((visited, Entry { fp, sid: 0, len: 0, ptr }));
                }
            }
            // A frozen slot has no sid and no length; its block has them.
            Slot::Frozen(fp, ptr) => live.push((visited, Entry { fp, sid: 0, len: 0, ptr })),
            Slot::Unknown => findings.problem(format!("the slot at {} holds {:#018x}", visited.slot, visited.word)),
            Slot::Unwritten if alone && visited.level < 3 => {
                findings.problem(format!("the slot at {} of a bucket in use was never written", visited.slot));
            }
            _ => {}
        }
    }
    live.retain(|(visited, entry)| match astray(pool, entry.ptr, entry.len.max(1) * UNIT as u64) {
        Some(what) => {
            findings.problem(format!("the slot at {} points to {what}", visited.slot));
            false
        }
        None => true,
    });
    let asked: Vec<_> = live.iter().map(|(_, entry)| (entry.ptr, entry.len.max(1))).collect();
    for ((visited, entry), block) in live.into_iter().zip(fetch_blocks(span, &asked).await?) {
        let at = visited.slot;
        let block = match block {
            Ok(block) => block,
            Err(what) => {
                findings.problem(format!("the slot at {at} points to {what}"));
                continue;
            }
        };
        let (hash, len) = (block.header.hash, block.header.block_len());
        let units = ((len / UNIT) as u64).min(super::slot::MAX_UNITS);
        let frozen = entry.len == 0;
        if entry.fp != hash.fingerprint() || entry.len != units && !frozen {
            findings.problem(format!("the slot at {at} does not fit the block at {} that it points to", entry.ptr));
        }
        let sid = (!frozen).then_some(entry.sid);
        if is_misplaced(geometry, visited, sid, hash)
            && (alone || stays_misplaced(span, geometry, visited, sid, hash).await?)
        {
            findings.problem(format!("the entry at {at} lies where no lookup finds it"));
        }
        findings.reach_block(span, format_args!("the slot at {at}"), entry.ptr, len as u64).await?;
        findings.report.entries += 1;
        findings.count(LEVELS[visited.level.clamp(1, 3) - 1], 1);
        findings.key(hash, block.key(), at);
        counted.push(Counted { key: key_id(hash, block.key()), level: visited.level, bytes: len as u64 });
    }
    Ok(())
}

/// Corrects the figures of an audit while other clients work: a key that the walk has visited at two places counts
/// once.
fn count_once(mut counted: Vec<Counted>, report: &mut IndexAudit) {
    counted.sort_by_key(|entry| entry.key);
    for same in counted.chunk_by(|one, two| one.key == two.key) {
        // The last one was visited last.
        for entry in same.iter().rev().skip(1) {
            report.entries -= 1;
            report.figures.entry(LEVELS[entry.level.clamp(1, 3) - 1]).and_modify(|count| *count -= 1);
            report.block_bytes -= entry.bytes;
        }
    }
}

/// Is an entry still where no lookup finds it? While other clients work, a READ may show a bucket in the midst of a split:
/// only what two READs show that agree with each other is amiss.
async fn stays_misplaced(
    span: &Span,
    geometry: &Geometry,
    visited: &VisitedEntry,
    sid: Option<u64>,
    hash: KeyHash,
) -> Result<bool, IndexError> {
    let of = match visited.level {
        1 => Level::One,
        2 => Level::Two,
        _ => return Ok(true),
    };
    let at = geometry.bucket(of, visited.bucket);
    let mut batch = span.batch();
    let reads = [batch.read(at, of.bytes()), batch.read(at, of.bytes())];
    let mut done = batch.post().await?;
    let [first, second] = reads.map(|read| Snapshot::new(at, done.buf(read)));
    let slot = (visited.slot.offset().saturating_sub(at.offset()) / 8) as usize;
    let settled = first.words() == second.words() && !second.locked();
    if !settled || second.words().get(slot) != Some(&visited.word) {
        mark!("walk: an entry was moved under an audit");
        return Ok(false);
    }
    Ok(is_misplaced(geometry, &VisitedEntry { version: second.version(), ..*visited }, sid, hash))
}

/// Is an entry where no lookup finds it?
fn is_misplaced(geometry: &Geometry, visited: &VisitedEntry, sid: Option<u64>, hash: KeyHash) -> bool {
    debug_assert_eq!(version_bit(LOCK_SLOT, 0), 0);
    let fits = |hash: u64| {
        let in_place = geometry.home(hash, visited.version) == visited.bucket;
        in_place && sid.is_none_or(|sid| sid == geometry.sid(hash, visited.version))
    };
    let found = match visited.level {
        1 => fits(hash.bits()),
        2 => Places::of(hash).choices().into_iter().any(fits),
        // Level 3 belongs to the level-1 bucket, whose version this step does not know: any version that fits will do.
        _ => (0..=geometry.version).any(|version| geometry.home(hash.bits(), version) == visited.bucket),
    };
    !found
}
