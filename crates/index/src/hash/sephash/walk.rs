//! Every entry of an index: for dumps, audits and drops.
//!
//! A walk goes through the directory in ascending order of suffixes. A key only ever moves to a segment with a longer
//! suffix, so a walk beside working clients meets every key that was there all the time at least once; a key that is moved
//! by a split, it may meet twice. Each segment is pinned on its own, so that a long walk holds up nobody's memory.

use super::layout::{Control, META_LEN, Meta, State, dep_of, fp_of, fp2_of};
use super::lookup::first_word;
use super::main_segment::{self, Item};
use super::merge::main_items;
use super::probe::{Segment, count_taken, damaged, taken};
use super::rescue::Rescue;
use super::{SepHash, Table};
use crate::audit::{IndexAudit, OnDamage, Problems};
use crate::block::{self, Decoded, HEADER_LEN, Header, UNIT};
use crate::extendible::Directory;
use crate::extendible::directory::holds;
use crate::kind::seal;
use crate::{IndexError, Value};
use farindex_fabric::{Buf, OpKind, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Pin, PoolError, Vigil, intent};
use std::collections::{BTreeMap, HashSet};
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
    /// In the order of slots.
    cur: Vec<Item>,
    groups: Vec<u64>,
}

/// A key-value pair that a walk has met: the block, where the key lies, where the value lies.
type Met = (Buf, std::ops::Range<usize>, std::ops::Range<usize>);

impl SepHash {
    async fn segments(&self, table: &Table, span: &Span) -> Result<Vec<Segment>, IndexError> {
        let mut segments = Vec::new();
        table
            .directory
            .walk(span, async |suffix, word| {
                segments.push(Segment::new((suffix, word)));
                Ok(())
            })
            .await?;
        Ok(segments)
    }

    /// Reads a segment until nothing of it has changed meanwhile.
    async fn whole(&self, pin: &Pin<'_>, segment: Segment) -> Result<Whole, IndexError> {
        let span = pin.span();
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
                // Named under this pin, so nobody uses its memory again before the pin ends.
                let words = match state.len {
                    0 => span.endpoint().buf(0),
                    len => span.read(state.main, main_segment::bytes(self.config.table, len) as usize).await?,
                };
                let main = main_items(self, words.words(), state.len);
                let cur = taken(self.geometry, &groups, state.generation).map(|(_, item)| item).collect();
                return Ok(Whole { state, control, main, cur, groups });
            }
            if pause > Duration::from_secs(1) {
                return Err(damaged(segment.at, "a segment does not settle; `farindex pool check --repair` may help"));
            }
            span.endpoint().sleep(pause).await;
            pause *= 2;
        }
    }

    /// The pairs of a segment, from a fingerprint on, and where to go on if there are more.
    async fn pairs(&self, pin: &Pin<'_>, segment: Segment, from: u8) -> Result<(Vec<Met>, Option<u8>), IndexError> {
        let whole = self.whole(pin, segment).await?;
        let mut by_fp: BTreeMap<u8, Vec<Item>> = BTreeMap::new();
        // Newest first.
        for item in whole.cur.iter().rev().chain(&whole.main) {
            by_fp.entry(item.entry.fp).or_default().push(*item);
        }
        let (mut met, mut bytes) = (Vec::new(), 0);
        for (fp, items) in by_fp.range(from..) {
            if bytes > HANDFUL {
                return Ok((met, Some(*fp)));
            }
            let mut seen: HashSet<Vec<u8>> = HashSet::new();
            for part in items.chunks(BLOCKS) {
                for (item, buf) in part.iter().zip(read_blocks(pin.span(), part).await?) {
                    let Decoded::Sound(header, key, value) = block::decode(&buf) else {
                        return Err(damaged(item.entry.ptr, "the key-value block has a wrong checksum"));
                    };
                    let of_key = buf.bytes().get(key.clone()).unwrap_or_default().to_vec();
                    let here = holds(segment.suffix, whole.state.depth, header.hash.bits());
                    if seen.insert(of_key) && !item.entry.removes() && here {
                        bytes += buf.len();
                        met.push((buf, key, value));
                    }
                }
            }
        }
        Ok((met, None))
    }

    /// Calls `each` with every key and value; returns how often. See the promise above for what that means beside working
    /// clients. Nothing is pinned while `each` runs.
    pub async fn for_each(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut count = 0;
        for table in &self.tables {
            let pin = self.session.pin(self.session.span(OpKind::Scan))?;
            self.check_alive(table, &pin).await?;
            let segments = self.segments(table, pin.span()).await?;
            drop(pin);
            for segment in segments {
                let mut from = Some(0);
                while let Some(fp) = from {
                    let pin = self.session.pin(self.session.span(OpKind::Scan))?;
                    self.check_alive(table, &pin).await?;
                    let (pairs, next) = self.pairs(&pin, segment, fp).await?;
                    drop(pin);
                    for (buf, key, value) in pairs {
                        let key = buf.bytes().get(key).unwrap_or_default().to_vec();
                        each(&key, Value::fetched(buf, value)).await?;
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
            let bytes = table.directory.audit(pin.span(), audit, &mut problems).await?;
            report.count("directory_bytes", bytes);
            report.index_bytes += bytes;
            let segments = self.segments(table, pin.span()).await?;
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
        audit.reach(at, cur_bytes, "a CurSegment");
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
        if state.len > 0 {
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
        let landed = whole.cur.iter().take(count).enumerate();
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
            .map(|item| (true, *item))
            .chain(whole.main.iter().map(|item| (false, *item)))
            .collect();
        for part in all.chunks(BLOCKS) {
            let items: Vec<Item> = part.iter().map(|(_, item)| *item).collect();
            for ((in_cur, item), buf) in part.iter().zip(read_blocks(span, &items).await?) {
                let ptr = item.entry.ptr;
                let name = || format!("the entry for {ptr} in the segment at {}", segment.at);
                let Decoded::Sound(header, key, _) = block::decode(&buf) else {
                    problems.add(format!("{}: no sound key-value block lies there", name()));
                    continue;
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
                let key = buf.bytes().get(key).unwrap_or_default();
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
    pub async fn mend(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let mut mended = 0;
        for table in &self.tables {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            let segments = self.segments(table, pin.span()).await?;
            drop(pin);
            for segment in segments {
                let mut vigil = Vigil::default();
                loop {
                    let pin = session.pin(session.span(OpKind::Maintenance))?;
                    if !super::merge::control_of(pin.span(), segment.at).await?.locked() {
                        break;
                    }
                    let rescue = Rescue { index: self, table, pin: &pin };
                    let busy = rescue.look_after(segment).await?;
                    drop(pin);
                    mended += u64::from(busy.is_none());
                    let (lock, names) = busy.unwrap_or((segment.at, 0));
                    let waited = vigil.lasts(names, session.endpoint().now());
                    if waited > session.pool().lease() * 2 {
                        let holder = intent::holders(session, &session.span(OpKind::Maintenance), lock).await?;
                        return Err(IndexError::Locked { at: lock, waited_ms: waited.as_millis() as u64, holder });
                    }
                    session.endpoint().sleep(session.pool().lease() / 16).await;
                }
                mended += self.mend_landing(table, segment).await?;
            }
        }
        Ok(mended)
    }

    /// Lands what nobody else will.
    async fn mend_landing(&self, table: &Table, segment: Segment) -> Result<u64, IndexError> {
        // Any key of the segment will do: its suffix is the hash of one.
        let hash = crate::keyhash::KeyHash::from_bits(segment.suffix);
        let settle = async |op: &mut super::probe::Op<'_>| op.settle(segment).await;
        self.run_on(table, self.session.span(OpKind::Maintenance), hash, &[], settle).await.map(u64::from)
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(super) async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        let session = &self.session;
        let endpoint = session.endpoint();
        let seal = seal(session, self.uid);
        for table in &self.tables {
            Directory::mark_dropped(span, table.directory.root(), seal).await?;
        }
        let marked = session.client().epoch() + 1;
        let until = endpoint.now() + session.pool().lease() * 2;
        while !farindex_pool::epoch::graced(marked, session.client().epoch()) {
            if endpoint.now() > until {
                let what = format!("the memory of index {:?}", info.name);
                let holder = "a client that does not quiesce; `farindex pool stat` lists the clients".to_owned();
                return Err(PoolError::Held { what, holder }.into());
            }
            session.client().tick(endpoint).await?;
            endpoint.sleep(Duration::from_micros(20)).await;
        }
        for table in &self.tables {
            for segment in self.dropped_segments(table, span).await? {
                self.free_segment(segment).await?;
                session.maintain().await?;
            }
            table.directory.free(session, span).await?;
        }
        self.forget(span, info).await
    }

    async fn dropped_segments(&self, table: &Table, span: &Span) -> Result<Vec<Segment>, IndexError> {
        table.directory.learn_root(span).await?;
        self.segments(table, span).await
    }

    /// Gives back a segment of a dropped index. One that somebody has died on may share blocks with another: what such a
    /// one holds is left to [`Audit::reclaim`].
    async fn free_segment(&self, segment: Segment) -> Result<(), IndexError> {
        let session = &self.session;
        let pin = session.pin(session.span(OpKind::Maintenance))?;
        let span = pin.span();
        let Ok(whole) = self.whole(&pin, segment).await else { return Ok(()) };
        if whole.control.locked() {
            return Ok(());
        }
        let mut seen = HashSet::new();
        let items: Vec<Item> =
            whole.cur.iter().chain(&whole.main).filter(|item| seen.insert(item.entry.ptr)).copied().collect();
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

/// Reads whole blocks, in one batch.
async fn read_blocks(span: &Span, items: &[Item]) -> Result<Vec<Buf>, IndexError> {
    let mut batch = span.block_batch();
    let tickets: Vec<_> = items.iter().map(|item| batch.read(item.entry.ptr, item.entry.units() * UNIT)).collect();
    let mut done = batch.post().await?;
    let mut bufs: Vec<_> = tickets.into_iter().map(|ticket| done.buf(ticket)).collect();
    drop(done);
    for (buf, item) in bufs.iter_mut().zip(items) {
        if let Decoded::Longer(len) = block::decode(buf) {
            *buf = block::read_tail(span, item.entry.ptr, buf, len).await?;
        }
    }
    Ok(bufs)
}
