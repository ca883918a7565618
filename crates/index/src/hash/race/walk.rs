//! Every entry of an index: for dumps, audits and drops.
//!
//! A walk goes from each segment to the children that its state tells of. The state is read behind the slots, so whatever has left a
//! segment by then is met in a child, and only there: what does not belong to a segment by its state is passed over. Each segment is
//! pinned on its own, so that a long walk holds up nobody's memory.

use super::Race;
use super::recovery::Recovery;
use super::segment::{FIRST, SEAL, SegmentRef, State, bucket_of, is_header, is_overflow, lock_of, slots};
use super::slot::{self, EMPTY, Entry};
use super::table::Table;
use crate::audit::{Damage, IndexAudit, OnDamage, Problems};
use crate::block::{HEADER_LEN, Header};
use crate::extendible::Entry as Word;
use crate::extendible::layout::MAX_DEPTH;
use crate::maintenance::{Block, astray, fetch_blocks, find_duplicate_keys, wait_for_lock_holder};
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{LockTimeout, Pin};
use std::collections::BTreeSet;

/// Figures of an audit: segments, slots, entries in main and in overflow buckets, bits of the longest suffix, bytes of directories.
const FIGURES: [&str; 6] = ["segments", "slots", "main_entries", "overflow_entries", "depth", "directory_bytes"];

/// Blocks that are read at a time.
const STEP: usize = 64;

/// A segment as a walk has read it.
struct VisitedEntry {
    segment_ref: SegmentRef,
    state: State,
    words: Vec<u64>,
}

impl VisitedEntry {
    fn slot(&self, word: usize) -> RemotePtr {
        self.segment_ref.at.add(word as u64 * 8)
    }
    /// A slot, for people.
    fn place(&self, word: usize) -> String {
        let (bucket, slot) = bucket_of(word);
        format!("slot {slot} of bucket {bucket} of the segment of suffix {:#b}", self.segment_ref.suffix)
    }
    fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        slots(&self.words).filter_map(|(i, word)| Entry::decode(word).map(|entry| (i, entry)))
    }
}

/// READs the segment, and its state behind it. `None` if it is no segment of this suffix, which `damaged` has been told.
async fn read_segment(
    pin: &Pin<'_>,
    table: &Table,
    segment_ref: SegmentRef,
    of: Walked,
    damaged: OnDamage<'_>,
) -> Result<Option<VisitedEntry>, IndexError> {
    let place = format!("the segment of suffix {:#b}", segment_ref.suffix);
    if let Some(what) = astray(pin.session().pool(), segment_ref.at, table.shape().bytes() as u64) {
        damaged(Damage { at: segment_ref.at, what: format!("the directory's word for {place} points to {what}") })?;
        return Ok(None);
    }
    let mut batch = pin.span().batch();
    let guard = match of {
        Walked::Open => table.directory().guard(&mut batch, pin.epoch()),
        Walked::Dropped => None,
    };
    let words = batch.read(segment_ref.at, table.shape().bytes());
    let state = batch.read(segment_ref.at, 8);
    let mut done = batch.post().await?;
    table.directory().finish_guard(guard, &mut done)?;
    let words = done.buf(words).words().to_vec();
    let mut state = State(done.buf(state).words().first().copied().unwrap_or_default());
    drop(done);
    let born = table.birth(segment_ref.suffix);
    let of_suffix = |state: State| state.suffix() == segment_ref.suffix && (born..=MAX_DEPTH).contains(&state.depth());
    if !of_suffix(state) || words.get(SEAL) != Some(&table.index_tag()) {
        // Each bucket's header says the suffix and the depth as well.
        let headers = words.iter().enumerate().filter(|(i, _)| is_header(*i)).map(|(_, word)| State(*word));
        let (own, all) =
            headers.clone().fold((0, 0), |(own, all), header| (own + u32::from(of_suffix(header)), all + 1));
        let deepest = headers.filter(|header| of_suffix(*header)).map(State::depth).max();
        let deepest = deepest.filter(|_| own * 2 > all);
        let what = format!("{place} bears another's state or seal");
        let lost = if deepest.is_none() { ", and its entries are lost" } else { "" };
        damaged(Damage { at: segment_ref.at, what: format!("{what}{lost}") })?;
        let Some(depth) = deepest else { return Ok(None) };
        state = State::open(segment_ref.suffix, depth);
        // Frozen entries are in a child by then, if the directory names one.
        if matches!(table.child(pin.span(), state).await, Ok(Some(_))) {
            state = state.close();
        }
    }
    table.saw(state.depth());
    Ok(Some(VisitedEntry { segment_ref, state, words }))
}

/// What is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walked {
    /// An index that may be dropped meanwhile: that is an error.
    Open,
    /// One that has been, by who frees it.
    Dropped,
}

/// Every segment of a table, parents before their children.
struct Walk<'a> {
    table: &'a Table,
    of: Walked,
    known: BTreeSet<u64>,
    left: Vec<SegmentRef>,
}

impl<'a> Walk<'a> {
    async fn begin(pin: &Pin<'_>, table: &'a Table, of: Walked, damaged: OnDamage<'_>) -> Result<Self, IndexError> {
        let mut walk = Walk { table, of, known: BTreeSet::new(), left: Vec::new() };
        let note = async |suffix, entry: Word| {
            walk.known.insert(suffix);
            walk.left.push(SegmentRef { suffix, at: entry.at() });
            Ok(())
        };
        table.directory().walk(pin.session().pool(), pin.span(), note, damaged).await?;
        for first in (0..1 << table.directory().shape().initial_depth).filter(|first| !walk.known.contains(first)) {
            damaged(lost_segment(table, first))?;
        }
        walk.left.reverse();
        Ok(walk)
    }

    /// The next segment; notes children of it that have come since the directory was read.
    async fn next(&mut self, pin: &Pin<'_>, damaged: OnDamage<'_>) -> Result<Option<VisitedEntry>, IndexError> {
        while let Some(segment_ref) = self.left.pop() {
            let Some(visited) = read_segment(pin, self.table, segment_ref, self.of, damaged).await? else { continue };
            for bit in self.table.birth(segment_ref.suffix)..=visited.state.depth() {
                let born = State::open(segment_ref.suffix, bit);
                let due = bit < visited.state.depth() || visited.state.closing();
                if !due || self.known.contains(&born.child()) {
                    continue;
                }
                match self.table.child(pin.span(), born).await {
                    Ok(Some(child)) => {
                        self.known.insert(child.suffix);
                        self.left.push(child);
                    }
                    // X3: the words of all children up to a depth that was read can be read.
                    Ok(None) if bit < visited.state.depth() => damaged(lost_segment(self.table, born.child()))?,
                    Ok(None) => {}
                    Err(error) => {
                        let lost = Damage::of(error, segment_ref.at)?;
                        damaged(lost.within(format_args!("the directory's word for suffix {:#b}", born.child())))?;
                    }
                }
            }
            return Ok(Some(visited));
        }
        Ok(None)
    }

    /// Is what is frozen in this segment in its child as well, which the walk comes to?
    fn has_moved(&self, visited: &VisitedEntry) -> bool {
        visited.state.closing() && self.known.contains(&visited.state.child())
    }

    /// Entries that no other segment has, or will have: those that are being moved, once.
    fn entries<'m>(&self, visited: &'m VisitedEntry) -> impl Iterator<Item = (usize, Entry)> + use<'m> {
        let moved = self.has_moved(visited);
        visited.entries().filter(move |(_, entry)| !(moved && entry.state == slot::State::Frozen))
    }
}

impl Race {
    fn scan(&self) -> Result<Pin<'_>, IndexError> {
        Ok(self.session.pin(self.session.span(OpKind::Scan))?)
    }

    /// A walk that begins now. Whoever begins one is told if the index has been dropped.
    async fn walk<'a>(&self, table: &'a Table, damaged: OnDamage<'_>) -> Result<Walk<'a>, IndexError> {
        let pin = self.scan()?;
        let mut batch = pin.span().batch();
        let guard = table.directory().guard(&mut batch, pin.epoch());
        table.directory().finish_guard(guard, &mut batch.post().await?)?;
        Walk::begin(&pin, table, Walked::Open, damaged).await
    }

    /// Calls `each` with every key and value: each key once, with a value whose checksum is right. Nothing is pinned while `each`
    /// runs. What cannot be read is reported to `damaged`, and the walk goes on behind it. A slot that was overwritten by zeros looks
    /// empty: nothing tells of it, unless its bucket's header was lost with it.
    pub async fn visit(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            let mut walk = self.walk(table, damaged).await?;
            loop {
                let pin = self.scan()?;
                let Some(visited) = walk.next(&pin, damaged).await? else { break };
                let found = pairs(&pin, &walk, &visited, damaged).await?;
                drop(pin);
                for pair in found {
                    let key = pair.key().to_vec();
                    each(&key, pair.into_value()).await?;
                    seen += 1;
                }
            }
        }
        Ok(seen)
    }

    /// Walks the whole index, notes every object in `audit`, and checks every entry: its block exists, is sound, and lies
    /// where a lookup finds it. `alone` says that no other client is at work: then nothing may be unfinished.
    pub async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut report = IndexAudit::default();
        FIGURES.iter().for_each(|name| report.count(name, 0));
        let mut problems = Problems::default();
        let mut hashes = Vec::new();
        let mut depth = 0;
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            if table.node() != node {
                let root = table.directory().root();
                problems.add(format!("the table of memory node {node} has its root at {root}"));
            }
            let pin = self.scan()?;
            let directory = table.directory().audit(self.session.pool(), pin.span(), audit, &mut problems).await?;
            drop(pin);
            report.count("directory_bytes", directory);
            report.index_bytes += directory;
            let mut walk = self.walk(table, &mut |damage| note(&mut problems, damage)).await?;
            loop {
                let pin = self.scan()?;
                let Some(visited) = walk.next(&pin, &mut |damage| note(&mut problems, damage)).await? else { break };
                depth = depth.max(u64::from(visited.state.depth()));
                let bytes = table.shape().bytes() as u64;
                audit.reach(visited.segment_ref.at, bytes, "a segment");
                report.index_bytes += bytes;
                report.count("segments", 1);
                report.count("slots", table.shape().slots());
                if alone {
                    unfinished(&visited, &mut problems);
                }
                self.audit_entries(&pin, table, &walk, &visited, audit, &mut report, &mut problems, &mut hashes)
                    .await?;
            }
        }
        report.count("depth", depth);
        report.resizes = depth.saturating_sub(self.config.initial_depth);
        if alone {
            find_duplicate_keys(&self.session, hashes, &mut problems).await?;
        }
        report.problems = problems.into_vec();
        Ok(report)
    }

    #[allow(clippy::too_many_arguments)]
    async fn audit_entries(
        &self,
        pin: &Pin<'_>,
        table: &Table,
        walk: &Walk<'_>,
        visited: &VisitedEntry,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
        hashes: &mut Vec<(u64, RemotePtr)>,
    ) -> Result<(), IndexError> {
        for (i, word) in slots(&visited.words).filter(|(_, word)| !slot::is_sound(*word)) {
            problems.add(format!("the slot at {} holds {word:#018x}", visited.slot(i)));
        }
        let entries = walk.entries(visited).filter(|(_, entry)| entry.state != slot::State::Tentative);
        let entries: Vec<_> = entries.collect();
        for part in entries.chunks(STEP) {
            let blocks: Vec<_> = part.iter().map(|(_, entry)| (entry.ptr, entry.len)).collect();
            let blocks = fetch_blocks(pin.span(), &blocks).await?;
            for ((i, entry), block) in part.iter().zip(blocks) {
                let (at, ptr) = (visited.slot(*i), entry.ptr);
                let header = match block {
                    Ok(block) => block.header,
                    Err(what) => {
                        problems.add(format!("{} at {at} points to {what}", visited.place(*i)));
                        continue;
                    }
                };
                let len = header.block_len();
                if entry.fp != slot::fingerprint(header.hash) || entry.len != slot::units(len) {
                    problems.add(format!("the slot at {at} does not fit the block at {ptr} that it points to"));
                }
                if !visited.state.holds(header.hash) || !table.shape().fits(header.hash, *i) {
                    problems.add(format!("the entry at {at} lies where no lookup comes by"));
                }
                if let Some(what) = Audit::dangling(&self.session, pin.span(), ptr, len as u64).await? {
                    problems.add(format!("the slot at {at} points to {ptr}, but {what}"));
                }
                report.entries += 1;
                report.count(if is_overflow(*i) { "overflow_entries" } else { "main_entries" }, 1);
                report.block_bytes += len as u64;
                audit.reach(ptr, len as u64, "a block");
                hashes.push((header.hash.bits(), ptr));
            }
        }
        Ok(())
    }

    /// Walks the whole index for what the dead have left, and puts it right; returns how many places there were. Working
    /// clients do so as well, wherever they come by. A client that is alive and holds a lock for two leases is an error.
    pub async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let maintenance = || session.pin(session.span(OpKind::Maintenance));
        let mut recovered = 0;
        for table in &self.tables {
            let mut walk = self.walk(table, &mut Damage::fail).await?;
            loop {
                let pin = maintenance()?;
                let Some(mut visited) = walk.next(&pin, &mut Damage::fail).await? else { break };
                drop(pin);
                let mut lock_timeout = LockTimeout::default();
                while visited.state.locked() {
                    let pin = maintenance()?;
                    let recovery = Recovery { index: self.uid, table, pin: &pin };
                    let busy = recovery.try_recover_lock(visited.segment_ref.at).await?;
                    recovered += u64::from(busy.is_none());
                    let again = read_segment(&pin, table, visited.segment_ref, Walked::Open, &mut Damage::fail).await?;
                    drop(pin);
                    let Some(again) = again else { break };
                    visited = again;
                    if visited.state.locked() {
                        wait_for_lock_holder(
                            session,
                            &mut lock_timeout,
                            lock_of(visited.segment_ref.at).at,
                            busy.unwrap_or(0),
                        )
                        .await?;
                    }
                }
                // An insert of the living that is hit by this begins again.
                let pin = maintenance()?;
                for (i, entry) in visited.entries().filter(|(_, entry)| entry.state == slot::State::Tentative) {
                    let word = entry.encode();
                    recovered += u64::from(pin.span().cas(visited.slot(i), word, EMPTY).await? == word);
                }
            }
        }
        Ok(recovered)
    }

    /// Frees a table of a dropped index, with all of its entries, when no client can use it any more.
    pub(super) async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        let session = &self.session;
        let mut walk = Walk::begin(&self.scan()?, table, Walked::Dropped, &mut Damage::fail).await?;
        loop {
            let pin = self.scan()?;
            let Some(visited) = walk.next(&pin, &mut Damage::fail).await? else { break };
            // The blocks of tentative entries belong to no client by now.
            let blocks: Vec<_> = walk.entries(&visited).map(|(_, entry)| entry.ptr).collect();
            for part in blocks.chunks(STEP) {
                let mut batch = pin.span().batch();
                let tickets: Vec<_> = part.iter().map(|ptr| (*ptr, batch.read(*ptr, HEADER_LEN))).collect();
                let mut done = batch.post().await?;
                for (ptr, ticket) in tickets {
                    if let Some(header) = Header::decode(done.buf(ticket).words()) {
                        session.free(pin.span(), ptr, header.block_len() as u64).await?;
                    }
                }
            }
            drop(pin);
            session.maintain().await?;
        }
        table.directory().free_with_segments(session, span, table.shape().bytes() as u64).await
    }
}

/// The pairs of a segment. An entry of a hash that has left the segment since its slot was read is met in a child.
async fn pairs(
    pin: &Pin<'_>,
    walk: &Walk<'_>,
    visited: &VisitedEntry,
    damaged: OnDamage<'_>,
) -> Result<Vec<Block>, IndexError> {
    let (table, suffix) = (walk.table, visited.segment_ref.suffix);
    let first = State::open(suffix, table.birth(suffix));
    for (i, word) in visited.words.iter().enumerate().skip(FIRST) {
        let header = State(*word);
        if is_header(i) && (header.suffix() != suffix || header.depth() < first.depth()) {
            let what =
                format!("bucket {} of the segment of suffix {suffix:#b} has the header {word:#x}", bucket_of(i).0);
            damaged(Damage { at: visited.slot(i), what: format!("{what}: some of its slots may be lost") })?;
        } else if !is_header(i) && !slot::is_sound(*word) {
            damaged(Damage { at: visited.slot(i), what: format!("{} holds {word:#018x}", visited.place(i)) })?;
        }
    }
    let entries = walk.entries(visited).filter(|(_, entry)| entry.state != slot::State::Tentative);
    let entries: Vec<_> = entries.collect();
    let mut found = Vec::new();
    for part in entries.chunks(STEP) {
        let asked: Vec<_> = part.iter().map(|(_, entry)| (entry.ptr, entry.len)).collect();
        for ((i, entry), block) in part.iter().zip(fetch_blocks(pin.span(), &asked).await?) {
            let what = match block {
                Ok(block) => {
                    let hash = block.header.hash;
                    let own = entry.fp == slot::fingerprint(hash) && table.shape().fits(hash, *i);
                    if own && first.holds(hash) {
                        found.extend(visited.state.holds(hash).then_some(block));
                        continue;
                    }
                    format!("{}, where the block of another slot lies", entry.ptr)
                }
                Err(what) => what,
            };
            damaged(Damage { at: visited.slot(*i), what: format!("{} points to {what}", visited.place(*i)) })?;
        }
    }
    Ok(found)
}

/// A segment that must be there, and that the directory does not name.
fn lost_segment(table: &Table, suffix: u64) -> Damage {
    let at = table.directory().address(suffix).unwrap_or(table.directory().root());
    Damage { at, what: format!("the directory names no segment of suffix {suffix:#b}, and there was one") }
}

/// Notes damage as a problem of an audit, which goes on behind it.
fn note(problems: &mut Problems, damage: Damage) -> Result<(), IndexError> {
    problems.add(format!("{}, at {}", damage.what, damage.at));
    Ok(())
}

/// What must not be there when nobody is at work.
fn unfinished(visited: &VisitedEntry, problems: &mut Problems) {
    let at = visited.segment_ref.at;
    if visited.state.locked() {
        problems.add(format!("the segment at {at} is locked, and no client is there to release it"));
    }
    for (i, entry) in visited.entries() {
        match entry.state {
            slot::State::Tentative => {
                problems.add(format!("the slot at {} belongs to an insert that nobody finishes", visited.slot(i)));
            }
            slot::State::Frozen => {
                problems.add(format!("the slot at {} belongs to a split that nobody finishes", visited.slot(i)));
            }
            slot::State::Live => {}
        }
    }
    let headers = visited.words.iter().enumerate().filter(|(i, _)| is_header(*i));
    let wrong = headers.filter(|(_, header)| !visited.state.locked() && **header != visited.state.0).count();
    if wrong > 0 {
        problems.add(format!("{wrong} headers of the segment at {at} are not what its state says"));
    }
}
