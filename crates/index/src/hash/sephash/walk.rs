//! Every entry of an index: for dumps, audits and drops.
//!
//! A walk goes through the directory in ascending order of suffixes. A key only ever moves to a segment with a longer
//! suffix, so a walk beside working clients meets every key that was there all the time; what is in a segment and in a child of it
//! that the walk comes to, it meets in the child alone. Each segment is pinned on its own, so that a long walk holds up nobody's memory.

use super::layout::{Control, META_LEN, Meta, State, dep_of, fp_of, fp2_of};
use super::lookup::first_word;
use super::main_segment::{self, Item};
use super::merge::main_items;
use super::probe::{Segment, count_taken, damaged as corrupt, taken};
use super::recovery::Recovery;
use super::{SepHash, Table};
use crate::audit::{Damage, IndexAudit, OnDamage, Problems};
use crate::block::{HEADER_LEN, Header};
use crate::extendible::directory::holds;
use crate::extendible::layout::{MAX_DEPTH, width};
use crate::maintenance::{Block, astray, fetch_blocks};
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{LockTimeout, Pin, PoolError, intent};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// Blocks that are read in one batch.
const BLOCKS: usize = 64;
/// A walk hands out what it has when it has so many bytes.
const HANDFUL: usize = 32 << 20;

/// A whole segment, read so that it was all there at one moment.
struct Whole {
    state: State,
    control: Control,
    main: Vec<Item>,
    /// What is wrong with the pointer to the MainSegment, if nothing of that can be read.
    main_lost: Option<String>,
    /// With their slots, in the order of those.
    cur: Vec<(usize, Item)>,
    groups: Vec<u64>,
}

impl Whole {
    /// Slots whose entries have landed, and are not there any more.
    fn lost(&self) -> Vec<usize> {
        let there: BTreeSet<usize> = self.cur.iter().map(|(slot, _)| *slot).collect();
        (0..self.state.count).filter(|slot| !there.contains(slot)).collect()
    }
}

/// An entry as a walk meets it.
#[derive(Clone, Copy)]
struct Found {
    /// Its slot in the CurSegment; `None` if it is in the MainSegment.
    cur: Option<usize>,
    /// Its number there, or its slot.
    number: usize,
    item: Item,
}

impl SepHash {
    async fn segments(&self, table: &Table, span: &Span, damaged: OnDamage<'_>) -> Result<Vec<Segment>, IndexError> {
        let mut segments = Vec::new();
        let note = async |suffix, word| {
            segments.push(Segment::new((suffix, word)));
            Ok(())
        };
        table.directory.walk(self.session.pool(), span, note, damaged).await?;
        let first = table.directory.shape().initial_depth;
        let known: BTreeSet<u64> = segments.iter().map(|segment| segment.suffix).collect();
        for suffix in (0..1 << first).filter(|suffix| !known.contains(suffix)) {
            damaged(lost_segment(table, suffix))?;
        }
        Ok(segments)
    }

    /// Reads a segment until nothing of it has changed meanwhile.
    async fn whole(&self, pin: &Pin<'_>, segment: Segment) -> Result<Whole, IndexError> {
        let span = pin.span();
        if let Some(what) = astray(self.session.pool(), segment.at, self.geometry.bytes() as u64) {
            return Err(corrupt(segment.at, &format!("the directory's word points to {what}")));
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
                && state.generation == control.generation()
                && !count_taken(self.geometry, &groups, state.generation).1
            {
                let born = width(segment.suffix).max(self.config.initial_depth);
                if state.depth < born {
                    let what = format!("CurSegMeta says depth {}, and the segment was made with {born}", state.depth);
                    return Err(corrupt(segment.at, &what));
                }
                // Named under this pin, so nobody uses its memory again before the pin ends.
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
                return Err(corrupt(segment.at, "a segment does not settle; `farindex pool check --repair` may help"));
            }
            span.endpoint().sleep(pause).await;
            pause *= 2;
        }
    }

    /// The pairs of a segment, from a fingerprint on, and where to go on if there are more.
    async fn pairs(
        &self,
        pin: &Pin<'_>,
        (table, segment): (&Table, Segment),
        known: &BTreeSet<u64>,
        from: u8,
        damaged: OnDamage<'_>,
    ) -> Result<(Vec<Block>, Option<u8>), IndexError> {
        // The depth is raised behind the word of the child (X3), and the list of those is older.
        let deepest = (0..MAX_DEPTH).rev().find(|bit| {
            let child = segment.suffix | 1 << bit;
            child != segment.suffix && *bit >= self.born(table, segment) && known.contains(&child)
        });
        let whole = match self.whole(pin, segment).await {
            Ok(whole) if deepest.is_none_or(|bit| whole.state.depth >= bit) => Ok(whole),
            Ok(_) => Err(corrupt(segment.at, "CurSegMeta says a depth less than that of a child")),
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
            self.report_losses(pin, (table, segment), &whole, damaged).await?;
        }
        // A split is in its last step, perhaps for ever: the child is whole and still locked, and what belongs to it is met there.
        let child = segment.suffix | 1 << whole.state.depth;
        let child = known.contains(&child).then_some(child);
        let newest_lost = whole.lost().last().copied();
        let mut by_fp: BTreeMap<u8, Vec<Found>> = BTreeMap::new();
        // Newest first.
        let cur = whole.cur.iter().rev().map(|(slot, item)| Found { cur: Some(*slot), number: *slot, item: *item });
        let main = whole.main.iter().enumerate().map(|(number, item)| Found { cur: None, number, item: *item });
        for found in cur.chain(main) {
            by_fp.entry(found.item.entry.fp).or_default().push(found);
        }
        let (mut visited, mut bytes) = (Vec::new(), 0);
        for (fp, all) in by_fp.range(from..) {
            if bytes > HANDFUL {
                return Ok((visited, Some(*fp)));
            }
            // What is lost may be newer than what is older than it.
            let newest_lost = newest_lost.filter(|_| whole.state.filter.holds(*fp));
            let surer = |found: &&Found| newest_lost.is_none_or(|lost| found.cur.is_some_and(|slot| slot > lost));
            let all: Vec<Found> = all.iter().filter(surer).copied().collect();
            let (mut seen, mut doubtful): (HashSet<Vec<u8>>, Vec<Option<u8>>) = (HashSet::new(), Vec::new());
            for part in all.chunks(BLOCKS) {
                let blocks = read(pin.span(), part.iter().map(|found| &found.item)).await?;
                for (found, block) in part.iter().zip(blocks) {
                    let item = found.item;
                    let what = match block {
                        Ok(block) if self.may_be(table, segment, item, &block) => {
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
                    if let Some(slot) = found.cur {
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

    /// Can this be the block of an entry of a segment, or of one that has been split off from it?
    fn may_be(&self, table: &Table, segment: Segment, item: Item, block: &Block) -> bool {
        let (hash, born) = (block.header.hash, self.born(table, segment));
        fp_of(hash) == item.entry.fp && holds(segment.suffix, born, hash.bits())
    }

    /// Depth at which a segment came to be.
    fn born(&self, table: &Table, segment: Segment) -> u32 {
        width(segment.suffix).max(table.directory.shape().initial_depth)
    }

    /// Where an entry lies: its address, and its place in words.
    fn place(&self, whole: &Whole, segment: Segment, found: &Found) -> (RemotePtr, String) {
        let Found { cur, number, .. } = found;
        let (at, of) = match cur {
            Some(slot) => (segment.at.add(self.geometry.at(self.geometry.slot(*slot))), "slot"),
            None => (whole.state.main.add(main_segment::offset_of(self.config.table, *number)), "entry"),
        };
        let kind = if cur.is_some() { "CurSegment" } else { "MainSegment" };
        (at, format!("{of} {number} of the {kind} of suffix {:#b}", segment.suffix))
    }

    /// Reports what a segment shows to be missing: entries that have landed in it, and segments that were split off from it.
    async fn report_losses(
        &self,
        pin: &Pin<'_>,
        (table, segment): (&Table, Segment),
        whole: &Whole,
        damaged: OnDamage<'_>,
    ) -> Result<(), IndexError> {
        if let Some(what) = &whole.main_lost {
            let what = format!("the segment of suffix {:#b} has its MainSegment at {what}", segment.suffix);
            damaged(Damage { at: segment.at, what })?;
        }
        let lost = whole.lost();
        if let (Some(first), Some(last)) = (lost.first(), lost.last()) {
            let older = |slot: &Option<usize>| slot.is_none_or(|slot| slot < *last);
            let cur = whole.cur.iter().map(|(slot, item)| (Some(*slot), item));
            let all = cur.chain(whole.main.iter().map(|item| (None, item)));
            let left_out = all.filter(|(slot, item)| older(slot) && whole.state.filter.holds(item.entry.fp)).count();
            let at = segment.at.add(self.geometry.at(self.geometry.slot(*first)));
            let what = format!(
                "{} slots of the CurSegment of suffix {:#b} are lost, the first of them slot {first}; {left_out} entries that may be \
                 older ones of the same keys are left out",
                lost.len(),
                segment.suffix
            );
            damaged(Damage { at, what })?;
        }
        for bit in self.born(table, segment)..whole.state.depth {
            let child = segment.suffix | 1 << bit;
            if table.directory.mirror().get(child).is_none() {
                // It may have been split off behind the walk. X3: the words of all children up to a depth that was read can be read.
                match table.directory.look_up(pin.span(), child, bit, bit + 1).await {
                    Ok(Some(_)) => {}
                    Ok(None) => damaged(lost_segment(table, child))?,
                    Err(error) => {
                        let lost = Damage::of(error, segment.at)?;
                        damaged(lost.within(format_args!("the directory's word for suffix {child:#b}")))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Calls `each` with every key and value; returns how often. See the promise above for what that means beside working
    /// clients. Nothing is pinned while `each` runs. What cannot be read is reported to `damaged`, and the walk goes on behind it; no
    /// older value is handed out in place of one that is lost.
    pub async fn visit(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut count = 0;
        for table in &self.tables {
            let pin = self.session.pin(self.session.span(OpKind::Scan))?;
            self.check_alive(table, &pin).await?;
            let segments = self.segments(table, pin.span(), damaged).await?;
            drop(pin);
            let known = segments.iter().map(|segment| segment.suffix).collect();
            for segment in segments {
                let mut from = Some(0);
                while let Some(fp) = from {
                    let pin = self.session.pin(self.session.span(OpKind::Scan))?;
                    self.check_alive(table, &pin).await?;
                    let (pairs, next) = self.pairs(&pin, (table, segment), &known, fp, damaged).await?;
                    drop(pin);
                    for pair in pairs {
                        let key = pair.key().to_vec();
                        each(&key, pair.into_value()).await?;
                        count += 1;
                    }
                    from = next;
                }
            }
            // Segments that were split off behind the walk have only keys that it has met.
        }
        Ok(count)
    }

    async fn check_alive(&self, table: &Table, pin: &Pin<'_>) -> Result<(), IndexError> {
        let mut batch = pin.span().batch();
        let guard = table.directory.guard(&mut batch, pin.epoch());
        table.directory.finish_guard(guard, &mut batch.post().await?)
    }

    /// Walks the whole index, notes every object in `audit`, and checks every entry. `alone` says that no other client is
    /// at work: then nothing may be unfinished.
    ///
    /// Its own figures: `slots` (entries that there is room for), `in_cur` (entries whose newest is in a CurSegment),
    /// `superseded` (entries that the next merge drops), `segments`, `main_bytes`, `cur_bytes`, `directory_bytes`,
    /// `table_points`, `table_overflow`, `table_bytes` (of record points, as a client keeps them).
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut report = IndexAudit::default();
        let mut problems = Problems::default();
        for table in &self.tables {
            let pin = self.session.pin(self.session.span(OpKind::Scan))?;
            self.check_alive(table, &pin).await?;
            let bytes = table.directory.audit(self.session.pool(), pin.span(), audit, &mut problems).await?;
            report.count("directory_bytes", bytes);
            report.index_bytes += bytes;
            // What cannot be read of the directory, its audit has told.
            let segments = self.segments(table, pin.span(), &mut |_| Ok(())).await?;
            drop(pin);
            for segment in segments {
                let pin = self.session.pin(self.session.span(OpKind::Scan))?;
                self.audit_segment(&pin, segment, alone, audit, &mut report, &mut problems).await?;
            }
        }
        report.resizes = report.figure("deepest").saturating_sub(u64::from(self.config.initial_depth));
        report.problems = problems.into_vec();
        Ok(report)
    }

    async fn audit_segment(
        &self,
        pin: &Pin<'_>,
        segment: Segment,
        alone: bool,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
    ) -> Result<(), IndexError> {
        let at = segment.at;
        let cur_bytes = self.geometry.bytes() as u64;
        if astray(self.session.pool(), at, cur_bytes).is_none() {
            audit.reach(at, cur_bytes, "a CurSegment");
        }
        let whole = match self.whole(pin, segment).await {
            Ok(whole) => whole,
            Err(IndexError::Pool(PoolError::Corrupt { what, .. })) => {
                problems.add(format!("the segment at {at}: {what}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let state = &whole.state;
        let main_bytes = main_segment::bytes(self.config.table, state.len);
        if let Some(what) = &whole.main_lost {
            problems.add(format!("the segment at {at} has its MainSegment at {what}"));
        } else if state.len > 0 {
            audit.reach(state.main, main_bytes, "a MainSegment");
            report.count("main_bytes", main_bytes);
            report.index_bytes += main_bytes;
            self.audit_table(pin, &whole, report, problems).await?;
        }
        report.count("cur_bytes", cur_bytes);
        report.index_bytes += cur_bytes;
        report.count("segments", 1);
        report.count("slots", (self.geometry.slots + state.len) as u64);
        let deepest = report.figure("deepest");
        report.count("deepest", u64::from(state.depth).saturating_sub(deepest));
        if alone {
            self.audit_settled(segment, &whole, problems);
        }
        let count = state.count.min(whole.cur.len());
        let landed = whole.cur.iter().take(count);
        for (i, item) in landed.filter(|(_, item)| !state.filter.holds(item.entry.fp)) {
            problems.add(format!(
                "slot {i} of the segment at {at}: the filter does not know fingerprint {}",
                item.entry.fp
            ));
        }
        if !whole.main.is_sorted_by_key(|item| item.entry.fp) {
            problems.add(format!("the MainSegment at {} is not sorted", state.main));
        }
        self.audit_entries(pin, segment, &whole, audit, report, problems).await
    }

    /// Is anything unfinished?
    fn audit_settled(&self, segment: Segment, whole: &Whole, problems: &mut Problems) {
        let Whole { state, control, cur, groups, .. } = whole;
        let at = segment.at;
        if control.locked() {
            problems.add(format!("the segment at {at} is locked, and no client is there to release it"));
        }
        if control.depth() != state.depth {
            problems.add(format!("the segment at {at} has two depths, {} and {}", control.depth(), state.depth));
        }
        if cur.len() != state.count {
            problems.add(format!(
                "{} slots of the segment at {at} are taken, and {} have landed",
                cur.len(),
                state.count
            ));
        }
        let in_order = taken(self.geometry, groups, state.generation).enumerate().all(|(i, (slot, _))| i == slot);
        if !in_order {
            problems.add(format!("the slots of the segment at {at} have been taken out of order"));
        }
    }

    async fn audit_table(
        &self,
        pin: &Pin<'_>,
        whole: &Whole,
        report: &mut IndexAudit,
        problems: &mut Problems,
    ) -> Result<(), IndexError> {
        let state = &whole.state;
        let kind = self.config.table;
        let head = pin.span().read(state.main, main_segment::head_len(kind)).await?;
        let table = main_segment::decode_table(kind, head.words(), state.len);
        let built = main_segment::table_of(kind, &whole.main);
        if table.as_ref() != Some(&built) {
            problems.add(format!("the FPTable of the MainSegment at {} is not that of its entries", state.main));
        }
        report.count("table_bytes", built.bytes());
        if let super::fptable::FpTable::Points(points) = &built {
            report.count("table_points", points.count() as u64);
            report.count("table_overflow", points.overflow() as u64);
        }
        Ok(())
    }

    async fn audit_entries(
        &self,
        pin: &Pin<'_>,
        segment: Segment,
        whole: &Whole,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
    ) -> Result<(), IndexError> {
        let span = pin.span();
        let state = &whole.state;
        // Newest first; a key counts once. Keys are told by hash and place among those of the same hash.
        let mut seen: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let all: Vec<(bool, Item)> = whole
            .cur
            .iter()
            .rev()
            .map(|(_, item)| (true, *item))
            .chain(whole.main.iter().map(|item| (false, *item)))
            .collect();
        for part in all.chunks(BLOCKS) {
            for ((in_cur, item), block) in part.iter().zip(read(span, part.iter().map(|(_, item)| item)).await?) {
                let ptr = item.entry.ptr;
                let name = || format!("the entry for {ptr} in the segment at {}", segment.at);
                let (header, key) = match &block {
                    Ok(block) => (block.header, block.key()),
                    Err(what) => {
                        problems.add(format!("{} points to {what}", name()));
                        continue;
                    }
                };
                let len = header.block_len() as u64;
                // The second fingerprint of a slot that has not landed is not there.
                let fp2 = *in_cur && whole.cur.len() > state.count || item.fp2 == fp2_of(header.hash);
                if item.entry.fp != fp_of(header.hash) || !fp2 || item.entry.bytes().is_some_and(|bytes| bytes != len) {
                    problems.add(format!("{} does not fit the block", name()));
                }
                if item.entry.dep != dep_of(header.hash, state.depth) {
                    problems.add(format!("{} has the depth information of another round", name()));
                }
                if !holds(segment.suffix, state.depth, header.hash.bits()) {
                    problems.add(format!("{} lies where no lookup comes by", name()));
                }
                if let Some(what) = Audit::dangling(&self.session, span, ptr, len).await? {
                    problems.add(format!("{}: {what}", name()));
                }
                audit.reach(ptr, len, "a block");
                report.block_bytes += len;
                let same = seen.entry(header.hash.bits()).or_default();
                if same.iter().any(|other| other == key) {
                    report.count("superseded", 1);
                } else {
                    same.push(key.to_vec());
                    if item.entry.removes() {
                        report.count("superseded", 1);
                    } else {
                        report.entries += 1;
                        report.count("in_cur", u64::from(*in_cur));
                    }
                }
                if !in_cur && item.entry.removes() {
                    problems.add(format!("{} removes a key, and is in a MainSegment", name()));
                }
            }
        }
        let mut keys = HashSet::new();
        for item in &whole.main {
            if !keys.insert(item.entry.ptr) {
                problems.add(format!("the MainSegment at {} has two entries for {}", state.main, item.entry.ptr));
            }
        }
        Ok(())
    }

    /// Walks the whole index for what the dead have left, and puts it right; returns how many places there were. Working
    /// clients do so as well, wherever they come by. A client that is alive and holds a lock for two leases is an error.
    pub async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut recovered = 0;
        for table in &self.tables {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            let segments = self.segments(table, pin.span(), &mut Damage::fail).await?;
            drop(pin);
            for segment in segments {
                let mut lock_timeout = LockTimeout::default();
                loop {
                    let pin = session.pin(session.span(OpKind::Maintenance))?;
                    if !super::merge::control_of(pin.span(), segment.at).await?.locked() {
                        break;
                    }
                    let recovery = Recovery { index: self, table, pin: &pin };
                    let busy = recovery.try_recover_lock(segment).await?;
                    drop(pin);
                    recovered += u64::from(busy.is_none());
                    let (lock, names) = busy.unwrap_or((segment.at, 0));
                    let waited = lock_timeout.lasts(names, session.endpoint().now());
                    if waited > session.pool().lease() * 2 {
                        let holder = intent::holders(session, &session.span(OpKind::Maintenance), lock).await?;
                        return Err(IndexError::Locked { at: lock, waited_ms: waited.as_millis() as u64, holder });
                    }
                    session.endpoint().sleep(session.pool().lease() / 16).await;
                }
                recovered += self.recover_landing(table, segment).await?;
            }
        }
        Ok(recovered)
    }

    /// Lands what nobody else will.
    async fn recover_landing(&self, table: &Table, segment: Segment) -> Result<u64, IndexError> {
        // Any key of the segment will do: its suffix is the hash of one.
        let hash = crate::keyhash::KeyHash::from_bits(segment.suffix);
        let settle = async |op: &mut super::probe::Op<'_>| op.settle(segment).await;
        self.run_on(table, self.session.span(OpKind::Maintenance), hash, &[], settle).await.map(u64::from)
    }

    /// Frees a table of a dropped index, with all of its entries, when no client can use it any more.
    pub(super) async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        table.directory.learn_root(span).await?;
        for segment in self.segments(table, span, &mut Damage::fail).await? {
            self.free_segment(segment).await?;
            self.session.maintain().await?;
        }
        table.directory.free(&self.session, span).await
    }

    /// Gives back a segment of a dropped index. One that somebody has died on may share blocks with another: what such a
    /// one holds is left to [`Audit::reclaim`].
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
        let items: Vec<Item> = cur.chain(&whole.main).filter(|item| seen.insert(item.entry.ptr)).copied().collect();
        for part in items.chunks(BLOCKS) {
            let mut batch = span.batch();
            let tickets: Vec<_> = part.iter().map(|item| (item, batch.read(item.entry.ptr, HEADER_LEN))).collect();
            let mut done = batch.post().await?;
            for (item, ticket) in tickets {
                if let Some(header) = Header::decode(done.buf(ticket).words()) {
                    session.free(span, item.entry.ptr, header.block_len() as u64).await?;
                }
            }
        }
        if whole.state.len > 0 {
            session.free(span, whole.state.main, main_segment::bytes(self.config.table, whole.state.len)).await?;
        }
        session.free(span, segment.at, self.geometry.bytes() as u64).await?;
        Ok(())
    }
}

/// A segment that must be there, and that the directory does not name.
fn lost_segment(table: &Table, suffix: u64) -> Damage {
    let at = table.directory.address(suffix).unwrap_or(table.directory.root());
    Damage { at, what: format!("the directory names no segment of suffix {suffix:#b}, and there was one") }
}

/// Reads the blocks of entries.
async fn read<'i>(
    span: &Span,
    items: impl Iterator<Item = &'i Item>,
) -> Result<Vec<Result<Block, String>>, IndexError> {
    let asked: Vec<_> = items.map(|item| (item.entry.ptr, item.entry.units() as u64)).collect();
    fetch_blocks(span, &asked).await
}
