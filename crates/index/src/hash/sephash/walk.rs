//! Visits every segment and every entry of an index: for dumps, audits, recovery and drops.
//!
//! A walk goes through the segments that the directory named when it began, and through each child that the depth of a
//! visited segment shows to be newer. A key only ever moves to a segment with a longer suffix, so a walk visits every key
//! that is present all the time, while other clients work. What is in a segment and in a child of it that the walk visits
//! later, the walk returns in the child alone. Each segment has a pin of its own, so a long walk does not delay
//! reclamation.

use super::layout::{Control, META_LEN, Meta, State, dep_of, fp_of, fp2_of};
use super::main_segment::{self, Item};
use super::merge::{lock_of, main_items};
use super::probe::{Op, Segment, count_taken, taken};
use super::recovery::Recovery;
use super::{SepHash, Table};
use crate::IndexError;
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::block::Block;
use crate::extendible::Shape;
use crate::extendible::directory::holds;
use crate::extendible::layout::MAX_DEPTH;
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::maintenance::{BLOCKS_PER_BATCH, astray, fetch_blocks, first_word, free_blocks, hand_out};
use crate::marks::mark;
use crate::recovery::recover_lock;
use crate::visit::Entries;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{Pin, PoolError};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::Duration;

/// Bytes of blocks at which a step of a walk ends.
const STEP_BYTES: usize = 32 << 20;

/// A segment as it was at one moment.
struct Whole {
    state: State,
    control: Control,
    main: Vec<Item>,
    /// What is wrong with the pointer to the MainSegment, if the MainSegment cannot be read.
    main_lost: Option<String>,
    /// Entries of the CurSegment with their slots, in the order of the slots.
    cur: Vec<(usize, Item)>,
    groups: Vec<u64>,
}

impl Whole {
    /// Returns the slots whose entries have landed, and are missing now.
    fn lost(&self) -> Vec<usize> {
        let there: BTreeSet<usize> = self.cur.iter().map(|(slot, _)| *slot).collect();
        (0..self.state.count).filter(|slot| !there.contains(slot)).collect()
    }

    /// All entries: those of the CurSegment from the newest to the oldest, then those of the MainSegment.
    fn newest_first(&self) -> impl Iterator<Item = Found> + '_ {
        let cur = self.cur.iter().rev().map(|(slot, item)| Found { in_cur: true, number: *slot, item: *item });
        let main = self.main.iter().enumerate().map(|(number, item)| Found { in_cur: false, number, item: *item });
        cur.chain(main)
    }
}

/// An entry that a walk visits.
#[derive(Clone, Copy)]
struct Found {
    in_cur: bool,
    /// Its slot in the CurSegment, or its number in the MainSegment.
    number: usize,
    item: Item,
}

impl Found {
    /// Its slot in the CurSegment; `None` if it is in the MainSegment.
    fn slot(&self) -> Option<usize> {
        self.in_cur.then_some(self.number)
    }
}

/// The segments that a walk knows.
struct Known {
    suffixes: BTreeSet<u64>,
    /// Those that it has not visited, and the fingerprint that each is to be visited from.
    left: VecDeque<(Segment, u8)>,
}

impl Known {
    fn new(segments: Vec<Segment>) -> Self {
        let suffixes = segments.iter().map(|segment| segment.suffix).collect();
        Known { suffixes, left: segments.into_iter().map(|segment| (segment, 0)).collect() }
    }
}

impl SepHash {
    async fn segments(&self, table: &Table, span: &Span, damaged: OnDamage<'_>) -> Result<Vec<Segment>, IndexError> {
        let segments = table.directory.segments(self.session.pool(), span, damaged).await?;
        Ok(segments.into_iter().map(Segment::new).collect())
    }

    /// Reads a segment, again until nothing of it has changed meanwhile.
    async fn whole(&self, pin: &Pin<'_>, segment: Segment) -> Result<Whole, IndexError> {
        let span = pin.span();
        if let Some(what) = astray(self.session.pool(), segment.at, self.geometry.bytes() as u64) {
            return Err(IndexError::corrupt(segment.at, format!("the directory's word points to {what}")));
        }
        let mut pause = Duration::from_micros(1);
        loop {
            let mut batch = span.batch();
            let meta = batch.read(segment.at, META_LEN);
            let groups = batch.read(segment.at.add(META_LEN as u64), self.geometry.words * 8);
            let control = batch.read(segment.at, 8);
            let mut done = batch.post().await?;
            let meta = Meta::parse(done.buf(meta).words());
            let groups = done.buf(groups).words().to_vec();
            let control = Control(first_word(&done.buf(control)));
            drop(done);
            if let Some(state) = meta.and_then(|meta| meta.state())
                && (state.generation == control.generation() || planted(Fault::WalkTorn))
                && !count_taken(self.geometry, &groups, state.generation).1
            {
                let created = self.creation_depth(segment);
                if state.depth < created {
                    let what =
                        format!("CurSegMeta says depth {}, and the segment was created with {created}", state.depth);
                    return Err(IndexError::corrupt(segment.at, what));
                }
                // Named under this pin, so its memory is not reused before the pin ends.
                let bytes = main_segment::bytes(self.config.table, state.len);
                let main_lost = astray(self.session.pool(), state.main, bytes).filter(|_| state.len > 0);
                let main = match &main_lost {
                    None if state.len > 0 => {
                        main_items(self, span.read(state.main, bytes as usize).await?.words(), state.len)
                    }
                    _ => Vec::new(),
                };
                let cur = taken(self.geometry, &groups, state.generation).collect();
                return Ok(Whole { state, control, main, main_lost, cur, groups });
            }
            if pause > Duration::from_secs(1) {
                let what = "a segment does not settle; `farindex pool check --repair` may help";
                return Err(IndexError::corrupt(segment.at, what));
            }
            span.endpoint().sleep(pause).await;
            pause *= 2;
        }
    }

    /// Reads the blocks of a segment's live entries from a fingerprint on, and returns the fingerprint to continue
    /// with.
    async fn blocks_of(
        &self,
        pin: &Pin<'_>,
        (table, segment): (&Table, Segment),
        known: &mut Known,
        from: u8,
        damaged: OnDamage<'_>,
    ) -> Result<(Vec<Block>, Option<u8>), IndexError> {
        // The depth is raised behind the word of the child (X3), and the list of those is older.
        let deepest = (0..MAX_DEPTH).rev().find(|bit| {
            let child = segment.suffix | 1 << bit;
            child != segment.suffix && *bit >= self.creation_depth(segment) && known.suffixes.contains(&child)
        });
        let whole = match self.whole(pin, segment).await {
            Ok(whole) if deepest.is_none_or(|bit| whole.state.depth >= bit) => Ok(whole),
            Ok(_) => Err(IndexError::corrupt(segment.at, "CurSegMeta says a depth less than that of a child")),
            Err(error) => Err(error),
        };
        let whole = match whole {
            Ok(whole) => whole,
            Err(error) => {
                let lost = Damage::of(error, segment.at)?;
                damaged(lost.within(format_args!("the segment of suffix {:#b}", segment.suffix)))?;
                return Ok((Vec::new(), None));
            }
        };
        if from == 0 {
            self.report_losses(segment, &whole, damaged)?;
        }
        self.add_children(pin, (table, segment), whole.state.depth, known, from, damaged).await?;
        // A split may be in its last step: the child is whole and still locked, and its entries are visited there.
        let child = segment.suffix | 1 << whole.state.depth;
        let child = known.suffixes.contains(&child).then_some(child);
        let newest_lost = whole.lost().last().copied();
        let mut by_fp: BTreeMap<u8, Vec<Found>> = BTreeMap::new();
        for found in whole.newest_first() {
            by_fp.entry(found.item.entry.fp).or_default().push(found);
        }
        let (mut visited, mut bytes) = (Vec::new(), 0);
        for (fp, all) in by_fp.range(from..) {
            if bytes > STEP_BYTES {
                return Ok((visited, Some(*fp)));
            }
            // A lost entry may be a newer one of the same key.
            let newest_lost = newest_lost.filter(|_| whole.state.filter.holds(*fp));
            let surer = |found: &&Found| newest_lost.is_none_or(|lost| found.slot().is_some_and(|slot| slot > lost));
            let all: Vec<Found> = all.iter().filter(surer).copied().collect();
            let (mut seen, mut doubtful): (HashSet<Vec<u8>>, Vec<Option<u8>>) = (HashSet::new(), Vec::new());
            for part in all.chunks(BLOCKS_PER_BATCH) {
                let blocks = fetch(pin.span(), part).await?;
                for (found, block) in part.iter().zip(blocks) {
                    let item = found.item;
                    let what = match block {
                        Ok(block) if self.may_be(segment, item, &block) => {
                            let (depth, hash) = (whole.state.depth, block.header.hash.bits());
                            let moved = child.is_some_and(|child| holds(child, depth + 1, hash));
                            let here = holds(segment.suffix, depth, hash) && !moved;
                            let sure = !doubtful.iter().any(|fp2| fp2.is_none_or(|fp2| fp2 == item.fp2));
                            if sure && seen.insert(block.key().to_vec()) && !item.entry.removes() && here {
                                bytes += block.header.block_len();
                                visited.push(block);
                            }
                            continue;
                        }
                        Ok(_) => format!("{}, where the block of another entry lies", item.entry.ptr),
                        Err(what) => what,
                    };
                    if let Some(slot) = found.slot() {
                        // The second fingerprint of a slot that has not landed is not there.
                        doubtful.push((slot < whole.state.count).then_some(item.fp2));
                    }
                    let place = self.place(&whole, segment, found);
                    damaged(Damage { at: place.0, what: format!("{} points to {what}", place.1) })?;
                }
            }
        }
        Ok((visited, None))
    }

    /// Can this be the block of an entry of a segment, or of a segment that has been split off from it?
    fn may_be(&self, segment: Segment, item: Item, block: &Block) -> bool {
        let hash = block.header.hash;
        fp_of(hash) == item.entry.fp && holds(segment.suffix, self.creation_depth(segment), hash.bits())
    }

    /// Depth at which a segment was created.
    fn creation_depth(&self, segment: Segment) -> u32 {
        Shape { initial_depth: self.config.initial_depth }.creation_depth(segment.suffix)
    }

    /// Returns the address of an entry, and describes its place.
    fn place(&self, whole: &Whole, segment: Segment, found: &Found) -> (RemotePtr, String) {
        let number = found.number;
        let (at, place) = match found.in_cur {
            true => (segment.at.add(self.geometry.at(self.geometry.slot(number))), "slot"),
            false => (whole.state.main.add(main_segment::offset_of(self.config.table, number)), "entry"),
        };
        let kind = if found.in_cur { "CurSegment" } else { "MainSegment" };
        (at, format!("{place} {number} of the {kind} of suffix {:#b}", segment.suffix))
    }

    /// Adds the children that this depth of a segment says there are, and that the walk does not know: they were split off
    /// after the walk had read the directory. What the walk has visited in the segment before, it does not visit in them:
    /// the fingerprints below `from`.
    async fn add_children(
        &self,
        pin: &Pin<'_>,
        (table, segment): (&Table, Segment),
        depth: u32,
        known: &mut Known,
        from: u8,
        damaged: OnDamage<'_>,
    ) -> Result<(), IndexError> {
        for bit in self.creation_depth(segment)..depth {
            let child = segment.suffix | 1 << bit;
            if planted(Fault::WalkOnce) || !known.suffixes.insert(child) {
                continue;
            }
            mark!("sephash walk: split meanwhile");
            // X3: the words of all children up to a depth that was read can be read.
            match table.directory.look_up(pin.span(), child, bit, bit + 1).await {
                Ok(Some((suffix, entry))) if suffix == child => {
                    known.left.push_front((Segment::new((suffix, entry)), from));
                }
                Ok(_) => damaged(table.directory.lost_segment(child))?,
                Err(error) => {
                    let lost = Damage::of(error, segment.at)?;
                    damaged(lost.within(format_args!("the directory's word for suffix {child:#b}")))?;
                }
            }
        }
        Ok(())
    }

    /// Reports what a segment shows to be lost: entries that have landed in it.
    fn report_losses(&self, segment: Segment, whole: &Whole, damaged: OnDamage<'_>) -> Result<(), IndexError> {
        if let Some(what) = &whole.main_lost {
            let what = format!("the segment of suffix {:#b} has its MainSegment at {what}", segment.suffix);
            damaged(Damage { at: segment.at, what })?;
        }
        let lost = whole.lost();
        if let (Some(first), Some(last)) = (lost.first(), lost.last()) {
            let older = |found: &Found| found.slot().is_none_or(|slot| slot < *last);
            let older = whole.newest_first().filter(older);
            let left_out = older.filter(|found| whole.state.filter.holds(found.item.entry.fp)).count();
            let at = segment.at.add(self.geometry.at(self.geometry.slot(*first)));
            let what = format!(
                "{} slots of the CurSegment of suffix {:#b} are lost, the first of them slot {first}; {left_out} entries that may be \
                 older ones of the same keys are left out",
                lost.len(),
                segment.suffix
            );
            damaged(Damage { at, what })?;
        }
        Ok(())
    }

    /// Hands out every key and value; returns their number. Nothing is pinned meanwhile. What
    /// cannot be read is reported to `damaged`, and the walk continues; where an entry is lost, no older value of its
    /// key is returned.
    pub(crate) async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        let mut count = 0;
        for table in &self.tables {
            let pin = table.directory.pin_step(&self.session, OpKind::Scan).await?;
            let segments = self.segments(table, pin.span(), damaged).await?;
            drop(pin);
            let mut known = Known::new(segments);
            while let Some((segment, from)) = known.left.pop_front() {
                let mut from = Some(from);
                while let Some(fp) = from {
                    let pin = table.directory.pin_step(&self.session, OpKind::Scan).await?;
                    let (blocks, next) = self.blocks_of(&pin, (table, segment), &mut known, fp, damaged).await?;
                    drop(pin);
                    count += hand_out(blocks, entries).await?;
                    from = next;
                }
            }
        }
        Ok(count)
    }

    /// Walks the whole index, records every object in `audit`, and checks every entry. `alone` states that no other
    /// client is at work: then an unfinished structure is a problem.
    ///
    /// Figures: `slots` (entries that there is room for), `in_cur` (keys whose newest entry is in a CurSegment),
    /// `superseded` (entries that the next merge drops), `segments`, `main_bytes`, `cur_bytes`, `directory_bytes`,
    /// `deepest` (local depth of the deepest segment), `table_points`, `table_overflow`, `table_bytes` (of record
    /// points, as a client keeps them).
    pub(crate) async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut findings = Findings::new(&self.session, audit, alone, &[]);
        for table in &self.tables {
            let pin = table.directory.pin_step(&self.session, OpKind::Scan).await?;
            table.directory.audit(pin.span(), &mut findings).await?;
            // The audit of the directory has reported its damage.
            let segments = self.segments(table, pin.span(), &mut |_| Ok(())).await?;
            drop(pin);
            for segment in segments {
                let pin = table.directory.pin_step(&self.session, OpKind::Scan).await?;
                self.audit_segment(&pin, segment, &mut findings).await?;
            }
        }
        let deepest = findings.report.figure("deepest");
        findings.report.resizes = deepest.saturating_sub(u64::from(self.config.initial_depth));
        Ok(findings.finish())
    }

    async fn audit_segment(
        &self,
        pin: &Pin<'_>,
        segment: Segment,
        findings: &mut Findings<'_>,
    ) -> Result<(), IndexError> {
        let at = segment.at;
        let cur_bytes = self.geometry.bytes() as u64;
        let whole = match self.whole(pin, segment).await {
            Ok(whole) => whole,
            Err(IndexError::Pool(PoolError::Corrupt { what, .. })) => {
                if astray(self.session.pool(), at, cur_bytes).is_none() {
                    findings.audit.reach(at, cur_bytes, "a CurSegment");
                }
                findings.problem(format!("the segment at {at}: {what}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        findings.reach(at, cur_bytes, "a CurSegment");
        let state = &whole.state;
        if let Some(what) = &whole.main_lost {
            findings.problem(format!("the segment at {at} has its MainSegment at {what}"));
        } else if state.len > 0 {
            let main_bytes = main_segment::bytes(self.config.table, state.len);
            findings.reach(state.main, main_bytes, "a MainSegment");
            findings.count("main_bytes", main_bytes);
            self.audit_table(pin, &whole, findings).await?;
        }
        findings.count("cur_bytes", cur_bytes);
        findings.count("segments", 1);
        findings.count("slots", (self.geometry.slots + state.len) as u64);
        let deepest = findings.report.figure("deepest");
        findings.count("deepest", u64::from(state.depth).saturating_sub(deepest));
        if findings.alone {
            self.check_finished(segment, &whole, findings);
        }
        let landed = whole.cur.iter().take(state.count);
        for (i, item) in landed.filter(|(_, item)| !state.filter.holds(item.entry.fp)) {
            let fp = item.entry.fp;
            findings.problem(format!("slot {i} of the segment at {at}: the filter does not know fingerprint {fp}"));
        }
        if !whole.main.is_sorted_by_key(|item| item.entry.fp) {
            findings.problem(format!("the MainSegment at {} is not sorted", state.main));
        }
        let mut blocks = HashSet::new();
        for item in whole.main.iter().filter(|item| !blocks.insert(item.entry.ptr)) {
            findings.problem(format!("the MainSegment at {} has two entries for {}", state.main, item.entry.ptr));
        }
        self.audit_entries(pin, segment, &whole, findings).await
    }

    /// Reports what a crashed client left unfinished.
    fn check_finished(&self, segment: Segment, whole: &Whole, findings: &mut Findings<'_>) {
        let Whole { state, control, cur, groups, .. } = whole;
        let at = segment.at;
        if control.locked() {
            findings.problem(format!("the segment at {at} is locked, and no client is there to release it"));
        }
        if control.depth() != state.depth {
            findings.problem(format!("the segment at {at} has two depths, {} and {}", control.depth(), state.depth));
        }
        if cur.len() != state.count {
            let (taken, landed) = (cur.len(), state.count);
            findings.problem(format!("{taken} slots of the segment at {at} are taken, and {landed} have landed"));
        }
        let in_order = taken(self.geometry, groups, state.generation).enumerate().all(|(i, (slot, _))| i == slot);
        if !in_order {
            findings.problem(format!("the slots of the segment at {at} have been taken out of order"));
        }
    }

    async fn audit_table(&self, pin: &Pin<'_>, whole: &Whole, findings: &mut Findings<'_>) -> Result<(), IndexError> {
        let state = &whole.state;
        let kind = self.config.table;
        let head = pin.span().read(state.main, main_segment::head_len(kind)).await?;
        let table = main_segment::decode_table(kind, head.words(), state.len);
        let built = main_segment::table_of(kind, &whole.main);
        if table.as_ref() != Some(&built) {
            findings.problem(format!("the FPTable of the MainSegment at {} is not that of its entries", state.main));
        }
        findings.count("table_bytes", built.bytes());
        if let super::fptable::FpTable::Points(points) = &built {
            findings.count("table_points", points.count() as u64);
            findings.count("table_overflow", points.overflow() as u64);
        }
        Ok(())
    }

    async fn audit_entries(
        &self,
        pin: &Pin<'_>,
        segment: Segment,
        whole: &Whole,
        findings: &mut Findings<'_>,
    ) -> Result<(), IndexError> {
        let state = &whole.state;
        // Keys whose newest entry was visited, by hash.
        let mut seen: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let all: Vec<Found> = whole.newest_first().collect();
        for part in all.chunks(BLOCKS_PER_BATCH) {
            for (Found { in_cur, item, .. }, block) in part.iter().zip(fetch(pin.span(), part).await?) {
                let ptr = item.entry.ptr;
                let name = format!("the entry for {ptr} in the segment at {}", segment.at);
                let block = match block {
                    Ok(block) => block,
                    Err(what) => {
                        findings.problem(format!("{name} points to {what}"));
                        continue;
                    }
                };
                let (hash, len) = (block.header.hash, block.header.block_len() as u64);
                // The second fingerprint of a slot that has not landed is not there.
                let fp2 = *in_cur && whole.cur.len() > state.count || item.fp2 == fp2_of(hash);
                if item.entry.fp != fp_of(hash) || !fp2 || item.entry.bytes().is_some_and(|bytes| bytes != len) {
                    findings.problem(format!("{name} does not fit the block"));
                }
                if item.entry.dep != dep_of(hash, state.depth) {
                    findings.problem(format!("{name} has the depth information of another round"));
                }
                if !holds(segment.suffix, state.depth, hash.bits()) {
                    findings.problem(format!("{name} lies where no lookup finds it"));
                }
                if !in_cur && item.entry.removes() {
                    findings.problem(format!("{name} removes a key, and is in a MainSegment"));
                }
                findings.reach_block(pin.span(), name, ptr, len).await?;
                let same = seen.entry(hash.bits()).or_default();
                if same.iter().any(|other| other == block.key()) {
                    findings.count("superseded", 1);
                    continue;
                }
                same.push(block.key().to_vec());
                if item.entry.removes() {
                    findings.count("superseded", 1);
                } else {
                    findings.report.entries += 1;
                    findings.count("in_cur", u64::from(*in_cur));
                }
            }
        }
        Ok(())
    }

    /// Walks the whole index, recovers every segment that a crashed client left unfinished, and returns the number of
    /// repairs. Operations do the same where they need such a segment. A client that is alive and holds a lock for two
    /// leases is an error.
    pub(crate) async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut recovered = 0;
        for table in &self.tables {
            let pin = table.directory.pin_step(session, OpKind::Maintenance).await?;
            let segments = self.segments(table, pin.span(), &mut Damage::fail).await?;
            drop(pin);
            for segment in segments {
                let pin = async || Ok(Some(table.directory.pin_step(session, OpKind::Maintenance).await?));
                let attempt =
                    async |pin: &Pin<'_>| Recovery { index: self, table, pin }.try_recover_lock(segment).await;
                recovered += recover_lock(session, lock_of(segment.at), pin, attempt).await?;
                recovered += self.recover_landing(table, segment).await?;
            }
        }
        Ok(recovered)
    }

    /// Lands the slot of a client that has crashed, if there is one; returns how many there were.
    async fn recover_landing(&self, table: &Table, segment: Segment) -> Result<u64, IndexError> {
        // Any hash of the segment will do.
        let hash = KeyHash::from_bits(segment.suffix);
        let settle = async |op: &mut Op<'_>| op.settle(segment).await;
        self.run_on(table, self.session.span(OpKind::Maintenance), hash, &[], settle).await.map(u64::from)
    }

    /// Frees a table of a dropped index, with all of its entries, when no client can use it any more.
    pub(super) async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        for segment in self.segments(table, span, &mut Damage::fail).await? {
            self.free_segment(segment).await?;
            self.session.maintain().await?;
        }
        table.directory.free(&self.session, span).await
    }

    /// Frees a segment of a dropped index. A segment that is locked may share blocks with another one, because a client
    /// has crashed while it split them: its memory is left to [`Audit::reclaim`].
    async fn free_segment(&self, segment: Segment) -> Result<(), IndexError> {
        let session = &self.session;
        let pin = session.pin(session.span(OpKind::Maintenance))?;
        let span = pin.span();
        let Ok(whole) = self.whole(&pin, segment).await else { return Ok(()) };
        if whole.control.locked() || whole.main_lost.is_some() {
            return Ok(());
        }
        let mut seen = HashSet::new();
        let cur = whole.cur.iter().map(|(_, item)| item);
        let blocks = cur.chain(&whole.main).map(|item| item.entry.ptr).filter(|ptr| seen.insert(*ptr));
        free_blocks(session, span, &blocks.collect::<Vec<_>>()).await?;
        if whole.state.len > 0 {
            session.free(span, whole.state.main, main_segment::bytes(self.config.table, whole.state.len)).await?;
        }
        session.free(span, segment.at, self.geometry.bytes() as u64).await?;
        Ok(())
    }
}

/// Reads the blocks of entries.
async fn fetch(span: &Span, entries: &[Found]) -> Result<Vec<Result<Block, String>>, IndexError> {
    let asked: Vec<_> = entries.iter().map(|found| (found.item.entry.ptr, found.item.entry.units() as u64)).collect();
    fetch_blocks(span, &asked).await
}
