//! Every entry of an index: for dumps, audits and drops.
//!
//! A walk goes from each segment to the children that its state tells of. The state is read behind the slots, so whatever has left a
//! segment by then is met in a child; what moves while others walk may be met twice. Each segment is pinned on its own, so that a long
//! walk holds up nobody's memory.

use super::Race;
use super::rescue::Rescue;
use super::segment::{SEAL, Seat, State, is_header, is_overflow, lock_of, slots};
use super::slot::{self, EMPTY, Entry};
use super::table::Table;
use crate::audit::{Damage, IndexAudit, OnDamage, Problems};
use crate::block::{self, Decoded, HEADER_LEN, Header};
use crate::extendible::Entry as Word;
use crate::extendible::directory::Directory;
use crate::upkeep::{bear, find_twins, outlast, read_blocks};
use crate::{IndexError, Value};
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::audit::Audit;
use farindex_pool::{IndexInfo, Pin, PoolError, Vigil};
use std::collections::BTreeSet;

/// Figures of an audit: segments, slots, entries in main and in overflow buckets, bits of the longest suffix, bytes of directories.
const FIGURES: [&str; 6] = ["segments", "slots", "main_entries", "overflow_entries", "depth", "directory_bytes"];

/// Blocks that are read at a time.
const STEP: usize = 64;

/// A segment as a walk has read it.
struct Met {
    seat: Seat,
    state: State,
    words: Vec<u64>,
}

impl Met {
    fn slot(&self, word: usize) -> RemotePtr {
        self.seat.at.add(word as u64 * 8)
    }
    fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        slots(&self.words).filter_map(|(i, word)| Entry::decode(word).map(|entry| (i, entry)))
    }
}

/// READs the segment, and its state behind it.
async fn read_segment(pin: &Pin<'_>, table: &Table, seat: Seat, of: Walked) -> Result<Met, IndexError> {
    let mut batch = pin.span().batch();
    let guard = match of {
        Walked::Open => table.directory().guard(&mut batch, pin.epoch()),
        Walked::Dropped => None,
    };
    let words = batch.read(seat.at, table.shape().bytes());
    let state = batch.read(seat.at, 8);
    let mut done = batch.post().await?;
    table.directory().finish_guard(guard, &mut done)?;
    let words = done.buf(words).words().to_vec();
    let state = State(done.buf(state).words().first().copied().unwrap_or_default());
    if state.suffix() != seat.suffix || words.get(SEAL) != Some(&table.seal()) {
        let what = format!("the segment of suffix {:#b} bears another's state or seal", seat.suffix);
        return Err(PoolError::Corrupt { at: seat.at, what }.into());
    }
    table.saw(state.depth());
    Ok(Met { seat, state, words })
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
    left: Vec<Seat>,
}

impl<'a> Walk<'a> {
    async fn begin(pin: &Pin<'_>, table: &'a Table, of: Walked) -> Result<Self, IndexError> {
        let mut walk = Walk { table, of, known: BTreeSet::new(), left: Vec::new() };
        let note = async |suffix, entry: Word| {
            walk.known.insert(suffix);
            walk.left.push(Seat { suffix, at: entry.at() });
            Ok(())
        };
        table.directory().walk(pin.span(), note).await?;
        walk.left.reverse();
        Ok(walk)
    }

    /// The next segment; notes children of it that have come since the directory was read.
    async fn next(&mut self, pin: &Pin<'_>) -> Result<Option<Met>, IndexError> {
        let Some(seat) = self.left.pop() else { return Ok(None) };
        let met = read_segment(pin, self.table, seat, self.of).await?;
        for bit in self.table.birth(seat.suffix)..=met.state.depth() {
            let born = State::open(seat.suffix, bit);
            let due = bit < met.state.depth() || met.state.closing();
            if due
                && !self.known.contains(&born.child())
                && let Some(child) = self.table.child(pin.span(), born).await?
            {
                self.known.insert(child.suffix);
                self.left.push(child);
            }
        }
        Ok(Some(met))
    }

    /// Is what is frozen in this segment in its child as well, which the walk comes to?
    fn has_moved(&self, met: &Met) -> bool {
        met.state.closing() && self.known.contains(&met.state.child())
    }

    /// Entries that no other segment has, or will have: those that are being moved, once.
    fn entries<'m>(&self, met: &'m Met) -> impl Iterator<Item = (usize, Entry)> + use<'m> {
        let moved = self.has_moved(met);
        met.entries().filter(move |(_, entry)| !(moved && entry.state == slot::State::Frozen))
    }
}

impl Race {
    fn scan(&self) -> Result<Pin<'_>, IndexError> {
        Ok(self.session.pin(self.session.span(OpKind::Scan))?)
    }

    /// A walk that begins now. Whoever begins one is told if the index has been dropped.
    async fn walk<'a>(&self, table: &'a Table) -> Result<Walk<'a>, IndexError> {
        let pin = self.scan()?;
        let mut batch = pin.span().batch();
        let guard = table.directory().guard(&mut batch, pin.epoch());
        table.directory().finish_guard(guard, &mut batch.post().await?)?;
        Walk::begin(&pin, table, Walked::Open).await
    }

    /// Calls `each` with every key and value. A key that is there all the time is met at least once, and one that moves twice.
    /// Nothing is pinned while `each` runs.
    pub async fn for_each(
        &self,
        mut each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            let mut walk = self.walk(table).await?;
            loop {
                let pin = self.scan()?;
                let Some(met) = walk.next(&pin).await? else { break };
                let entries = walk.entries(&met).filter(|(_, entry)| entry.state != slot::State::Tentative);
                let entries: Vec<_> = entries.map(|(_, entry)| (entry.ptr, entry.len)).collect();
                let mut found = Vec::new();
                for part in entries.chunks(STEP) {
                    for (buf, (ptr, _)) in read_blocks(pin.span(), part).await?.into_iter().zip(part) {
                        let Decoded::Sound(_, key, value) = block::decode(&buf) else {
                            let what = "the key-value block has a wrong checksum".to_owned();
                            damaged(Damage { at: *ptr, what })?;
                            continue;
                        };
                        let key = buf.bytes().get(key).unwrap_or_default().to_vec();
                        found.push((key, Value::fetched(buf, value)));
                    }
                }
                drop(pin);
                for (key, value) in found {
                    each(&key, value).await?;
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
            let directory = table.directory().audit(self.scan()?.span(), audit, &mut problems).await?;
            report.count("directory_bytes", directory);
            report.index_bytes += directory;
            let mut walk = self.walk(table).await?;
            loop {
                let pin = self.scan()?;
                let Some(met) = walk.next(&pin).await? else { break };
                depth = depth.max(u64::from(met.state.depth()));
                let bytes = table.shape().bytes() as u64;
                audit.reach(met.seat.at, bytes, "a segment");
                report.index_bytes += bytes;
                report.count("segments", 1);
                report.count("slots", table.shape().slots());
                if alone {
                    unfinished(&met, &mut problems);
                }
                self.audit_entries(&pin, table, &walk, &met, audit, &mut report, &mut problems, &mut hashes).await?;
            }
        }
        report.count("depth", depth);
        report.resizes = depth.saturating_sub(self.config.initial_depth);
        if alone {
            find_twins(&self.session, hashes, &mut problems).await?;
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
        met: &Met,
        audit: &mut Audit,
        report: &mut IndexAudit,
        problems: &mut Problems,
        hashes: &mut Vec<(u64, RemotePtr)>,
    ) -> Result<(), IndexError> {
        for (i, word) in slots(&met.words).filter(|(_, word)| !slot::is_sound(*word)) {
            problems.add(format!("the slot at {} holds {word:#018x}", met.slot(i)));
        }
        let entries = walk.entries(met).filter(|(_, entry)| entry.state != slot::State::Tentative);
        let entries: Vec<_> = entries.collect();
        for part in entries.chunks(STEP) {
            let blocks: Vec<_> = part.iter().map(|(_, entry)| (entry.ptr, entry.len)).collect();
            let bufs = read_blocks(pin.span(), &blocks).await?;
            for ((i, entry), buf) in part.iter().zip(bufs) {
                let (at, ptr) = (met.slot(*i), entry.ptr);
                let Decoded::Sound(header, ..) = block::decode(&buf) else {
                    problems.add(format!("the slot at {at} points to {ptr}, where no sound key-value block is"));
                    continue;
                };
                let len = header.block_len();
                if entry.fp != slot::fingerprint(header.hash) || entry.len != slot::units(len) {
                    problems.add(format!("the slot at {at} does not fit the block at {ptr} that it points to"));
                }
                if !met.state.holds(header.hash) || !table.shape().fits(header.hash, *i) {
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
    pub async fn mend(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let maintenance = || session.pin(session.span(OpKind::Maintenance));
        let mut mended = 0;
        for table in &self.tables {
            let mut walk = self.walk(table).await?;
            loop {
                let pin = maintenance()?;
                let Some(mut met) = walk.next(&pin).await? else { break };
                drop(pin);
                let mut vigil = Vigil::default();
                while met.state.locked() {
                    let pin = maintenance()?;
                    let rescue = Rescue { index: self.uid, table, pin: &pin };
                    let busy = rescue.look_after(met.seat.at).await?;
                    mended += u64::from(busy.is_none());
                    met = read_segment(&pin, table, met.seat, Walked::Open).await?;
                    drop(pin);
                    if met.state.locked() {
                        bear(session, &mut vigil, lock_of(met.seat.at).at, busy.unwrap_or(0)).await?;
                    }
                }
                // An insert of the living that is hit by this begins again.
                let pin = maintenance()?;
                for (i, entry) in met.entries().filter(|(_, entry)| entry.state == slot::State::Tentative) {
                    let word = entry.encode();
                    mended += u64::from(pin.span().cas(met.slot(i), word, EMPTY).await? == word);
                }
            }
        }
        Ok(mended)
    }

    /// Second half of a drop: waits for everyone who may still use the index, and gives its memory back.
    pub(super) async fn finish_drop(&self, span: &Span, info: &IndexInfo) -> Result<(), IndexError> {
        let session = &self.session;
        for table in &self.tables {
            Directory::mark_dropped(span, table.directory().root(), table.seal()).await?;
        }
        outlast(session, span, &info.name).await?;
        for table in &self.tables {
            let mut walk = Walk::begin(&self.scan()?, table, Walked::Dropped).await?;
            loop {
                let pin = self.scan()?;
                let Some(met) = walk.next(&pin).await? else { break };
                // What is tentative belongs to nobody by now.
                let blocks: Vec<_> = walk.entries(&met).map(|(_, entry)| entry.ptr).collect();
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
            table.free(session, span).await?;
        }
        self.forget(span, info).await
    }
}

/// What must not be there when nobody is at work.
fn unfinished(met: &Met, problems: &mut Problems) {
    let at = met.seat.at;
    if met.state.locked() {
        problems.add(format!("the segment at {at} is locked, and no client is there to release it"));
    }
    for (i, entry) in met.entries() {
        match entry.state {
            slot::State::Tentative => {
                problems.add(format!("the slot at {} belongs to an insert that nobody finishes", met.slot(i)));
            }
            slot::State::Frozen => {
                problems.add(format!("the slot at {} belongs to a split that nobody finishes", met.slot(i)));
            }
            slot::State::Live => {}
        }
    }
    let headers = met.words.iter().enumerate().filter(|(i, _)| is_header(*i));
    let wrong = headers.filter(|(_, header)| !met.state.locked() && **header != met.state.0).count();
    if wrong > 0 {
        problems.add(format!("{wrong} headers of the segment at {at} are not what its state says"));
    }
}
