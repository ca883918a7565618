//! Visits every segment and every entry of an index: for dumps, audits, recovery and drops.
//!
//! A walk continues from each segment with the children that its state shows. The state is READ behind the slots, so an
//! entry that has left a segment by then is visited in a child, and only there: an entry that the state does not assign
//! to the segment is skipped, whether its slot was READ before it was frozen or after. Each segment has a pin of its
//! own, so a long walk does not delay reclamation.

use super::Race;
use super::recovery::Recovery;
use super::segment::{FIRST, INDEX_TAG, SegmentRef, State, bucket_of, is_header, is_overflow, lock_of, slots};
use super::slot::{self, EMPTY, Entry};
use super::table::Table;
use crate::IndexError;
use crate::audit::{Damage, Findings, IndexAudit, OnDamage};
use crate::block::Block;
use crate::extendible::layout::MAX_DEPTH;
use crate::maintenance::{BLOCKS_PER_BATCH, astray, fetch_blocks, first_word, free_blocks, hand_out};
use crate::recovery::recover_lock;
use crate::visit::Entries;
use farindex_fabric::{OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use std::collections::{BTreeSet, HashSet};

/// Figures of an audit: segments, slots, entries in main and in overflow buckets, bits of the longest suffix, bytes of
/// directories.
const FIGURES: [&str; 6] = ["segments", "slots", "main_entries", "overflow_entries", "depth", "directory_bytes"];

/// A segment as a walk has read it.
struct VisitedSegment {
    segment_ref: SegmentRef,
    state: State,
    words: Vec<u64>,
}

impl VisitedSegment {
    fn slot(&self, word: usize) -> RemotePtr {
        self.segment_ref.at.add(word as u64 * 8)
    }
    /// Describes a slot in a message.
    fn place(&self, word: usize) -> String {
        let (bucket, slot) = bucket_of(word);
        format!("slot {slot} of bucket {bucket} of the segment of suffix {:#b}", self.segment_ref.suffix)
    }
    fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        slots(&self.words).filter_map(|(i, word)| Entry::decode(word).map(|entry| (i, entry)))
    }
}

/// READs the segment, and its state behind it. Reports a segment that is not of this suffix to `damaged`, and returns
/// `None` if its depth cannot be reconstructed.
async fn read_segment(
    pin: &Pin<'_>,
    table: &Table,
    segment_ref: SegmentRef,
    of: Walked,
    damaged: OnDamage<'_>,
) -> Result<Option<VisitedSegment>, IndexError> {
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
    let mut state = State(first_word(&done.buf(state)));
    drop(done);
    let created = table.creation_depth(segment_ref.suffix);
    let of_suffix =
        |state: State| state.suffix() == segment_ref.suffix && (created..=MAX_DEPTH).contains(&state.depth());
    if !of_suffix(state) || words.get(INDEX_TAG) != Some(&table.index_tag()) {
        // The headers of the buckets have the suffix and the depth as well.
        let headers = words.iter().enumerate().filter(|(i, _)| is_header(*i)).map(|(_, word)| State(*word));
        let (own, all) =
            headers.clone().fold((0, 0), |(own, all), header| (own + u32::from(of_suffix(header)), all + 1));
        let deepest = headers.filter(|header| of_suffix(*header)).map(State::depth).max();
        let deepest = deepest.filter(|_| own * 2 > all);
        let what = format!("{place} has the state or the index tag of another");
        let lost = if deepest.is_none() { ", and its entries are lost" } else { "" };
        damaged(Damage { at: segment_ref.at, what: format!("{what}{lost}") })?;
        let Some(depth) = deepest else { return Ok(None) };
        state = State::open(segment_ref.suffix, depth);
        // Frozen entries are in the child, if the directory names one.
        if matches!(table.child(pin.span(), state).await, Ok(Some(_))) {
            state = state.close();
        }
    }
    table.note_depth(state.depth());
    Ok(Some(VisitedSegment { segment_ref, state, words }))
}

/// What a walk goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walked {
    /// An open index. If it is dropped meanwhile, the walk fails.
    Open,
    /// A dropped index that is being freed.
    Dropped,
}

/// A walk through the segments of a table, parents before their children.
struct Walk<'a> {
    table: &'a Table,
    of: Walked,
    /// Suffixes of the segments that were visited or are in `left`.
    known: BTreeSet<u64>,
    left: Vec<SegmentRef>,
}

impl<'a> Walk<'a> {
    async fn begin(pin: &Pin<'_>, table: &'a Table, of: Walked, damaged: OnDamage<'_>) -> Result<Self, IndexError> {
        let segments = table.directory().segments(pin.session().pool(), pin.span(), damaged).await?;
        let known = segments.iter().map(|(suffix, _)| *suffix).collect();
        let left = segments.into_iter().rev().map(|(suffix, entry)| SegmentRef { suffix, at: entry.at() });
        Ok(Walk { table, of, known, left: left.collect() })
    }

    /// Reads the next segment, and adds its children that were created since the directory was read.
    async fn next(&mut self, pin: &Pin<'_>, damaged: OnDamage<'_>) -> Result<Option<VisitedSegment>, IndexError> {
        while let Some(segment_ref) = self.left.pop() {
            let Some(visited) = read_segment(pin, self.table, segment_ref, self.of, damaged).await? else { continue };
            for bit in self.table.creation_depth(segment_ref.suffix)..=visited.state.depth() {
                let parent = State::open(segment_ref.suffix, bit);
                let due = bit < visited.state.depth() || visited.state.closing();
                if !due || self.known.contains(&parent.child()) {
                    continue;
                }
                match self.table.child(pin.span(), parent).await {
                    Ok(Some(child)) => {
                        self.known.insert(child.suffix);
                        self.left.push(child);
                    }
                    // X3: the words of all children up to a depth that was read can be read.
                    Ok(None) if bit < visited.state.depth() => {
                        damaged(self.table.directory().lost_segment(parent.child()))?
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let lost = Damage::of(error, segment_ref.at)?;
                        damaged(lost.within(format_args!("the directory's word for suffix {:#b}", parent.child())))?;
                    }
                }
            }
            return Ok(Some(visited));
        }
        Ok(None)
    }

    /// Is the second half of this segment in its child as well, and does the walk visit the child?
    fn has_moved(&self, visited: &VisitedSegment) -> bool {
        visited.state.closing() && self.known.contains(&visited.state.child())
    }

    /// The state that says which hashes the walk visits in the segment. An entry that moves may have been READ before
    /// it was frozen.
    fn assigned(&self, visited: &VisitedSegment) -> State {
        if self.has_moved(visited) { visited.state.deeper() } else { visited.state }
    }

    /// Entries of the segment; those that are known to be in the child are left out.
    fn entries<'m>(&self, visited: &'m VisitedSegment) -> impl Iterator<Item = (usize, Entry)> + use<'m> {
        let moved = self.has_moved(visited);
        visited.entries().filter(move |(_, entry)| !(moved && entry.state == slot::State::Frozen))
    }
}

impl Race {
    fn scan(&self) -> Result<Pin<'_>, IndexError> {
        Ok(self.session.pin(self.session.span(OpKind::Scan))?)
    }

    /// Begins a walk; fails if the index has been dropped.
    async fn walk<'a>(&self, table: &'a Table, damaged: OnDamage<'_>) -> Result<Walk<'a>, IndexError> {
        let pin = table.directory().pin_step(&self.session, OpKind::Scan).await?;
        Walk::begin(&pin, table, Walked::Open, damaged).await
    }

    /// Hands out every key and value: each key once, with a value whose checksum is right. Nothing is pinned
    /// meanwhile. What cannot be read is reported to `damaged`, and the walk continues. A slot that was
    /// overwritten by zeros looks empty: no damage is reported for it, unless the header of its bucket was lost as
    /// well.
    pub(crate) async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        let mut seen = 0;
        for table in &self.tables {
            let mut walk = self.walk(table, damaged).await?;
            loop {
                let pin = self.scan()?;
                let Some(visited) = walk.next(&pin, damaged).await? else { break };
                let found = blocks_of(&pin, &walk, &visited, damaged).await?;
                drop(pin);
                seen += hand_out(found, entries).await?;
            }
        }
        Ok(seen)
    }

    /// Walks the whole index, records every object in `audit`, and checks every entry: its block exists, is sound, and
    /// lies where a lookup finds it. `alone` states that no other client is at work: then an unfinished split or insert
    /// is a problem.
    pub(crate) async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        let mut findings = Findings::new(&self.session, audit, alone, &FIGURES);
        let mut depth = 0;
        for (table, node) in self.tables.iter().zip(self.session.pool().nodes()) {
            findings.check_root(table.directory().root(), node);
            let pin = table.directory().pin_step(&self.session, OpKind::Scan).await?;
            table.directory().audit(pin.span(), &mut findings).await?;
            drop(pin);
            // The audit of the directory has reported its damage.
            let mut walk = self.walk(table, &mut |_| Ok(())).await?;
            loop {
                let pin = self.scan()?;
                let Some(visited) = walk.next(&pin, &mut |damage| findings.damage(damage)).await? else { break };
                depth = depth.max(u64::from(visited.state.depth()));
                findings.reach(visited.segment_ref.at, table.shape().bytes() as u64, "a segment");
                findings.count("segments", 1);
                findings.count("slots", table.shape().slots());
                if alone {
                    check_finished(&visited, &mut findings);
                }
                audit_entries(&pin, &walk, &visited, &mut findings).await?;
            }
        }
        findings.count("depth", depth);
        findings.report.resizes = depth.saturating_sub(self.config.initial_depth);
        Ok(findings.finish())
    }

    /// Walks the whole index, recovers every segment and every slot that a crashed client left unfinished, and returns
    /// the number of repairs. Operations do the same where they need such a segment. A client that is alive and holds a
    /// lock for two leases is an error.
    pub(crate) async fn recover(&self) -> Result<u64, IndexError> {
        let session = &self.session;
        let maintenance = || session.pin(session.span(OpKind::Maintenance));
        let mut recovered = 0;
        for table in &self.tables {
            let mut walk = self.walk(table, &mut Damage::fail).await?;
            loop {
                let pin = maintenance()?;
                let Some(mut visited) = walk.next(&pin, &mut Damage::fail).await? else { break };
                drop(pin);
                if visited.state.locked() {
                    let segment = visited.segment_ref;
                    let attempt = async |pin: &Pin<'_>| {
                        Recovery { index: self.uid, table, pin }.try_recover_lock(segment.at).await
                    };
                    let pin = async || Ok(Some(table.directory().pin_step(session, OpKind::Maintenance).await?));
                    recovered += recover_lock(session, lock_of(segment.at), pin, attempt).await?;
                    let again = read_segment(&maintenance()?, table, segment, Walked::Open, &mut Damage::fail).await?;
                    let Some(again) = again else { continue };
                    visited = again;
                }
                // A live client whose insert loses its tentative slot begins again.
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
            // A tentative entry belongs to an insert that has ended.
            let blocks: Vec<_> = walk.entries(&visited).map(|(_, entry)| entry.ptr).collect();
            free_blocks(session, pin.span(), &blocks).await?;
            drop(pin);
            session.maintain().await?;
        }
        table.directory().free_with_segments(session, span, table.shape().bytes() as u64).await
    }
}

/// Reads the blocks of a segment's entries. An entry whose hash has left the segment since its slot was read is visited
/// in a child. Of a key that was removed and inserted again while the slots were read, both entries may be there: it is
/// visited once.
async fn blocks_of(
    pin: &Pin<'_>,
    walk: &Walk<'_>,
    visited: &VisitedSegment,
    damaged: OnDamage<'_>,
) -> Result<Vec<Block>, IndexError> {
    let (table, suffix, assigned) = (walk.table, visited.segment_ref.suffix, walk.assigned(visited));
    let first = State::open(suffix, table.creation_depth(suffix));
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
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for part in settled(walk, visited).chunks(BLOCKS_PER_BATCH) {
        let asked: Vec<_> = part.iter().map(|(_, entry)| (entry.ptr, entry.len)).collect();
        for ((i, entry), block) in part.iter().zip(fetch_blocks(pin.span(), &asked).await?) {
            let what = match block {
                Ok(block) => {
                    let hash = block.header.hash;
                    let own = entry.fp == slot::fingerprint(hash) && table.shape().fits(hash, *i);
                    if own && first.holds(hash) {
                        if assigned.holds(hash) && seen.insert(block.key().to_vec()) {
                            found.push(block);
                        }
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

/// Entries of a segment that the walk visits there, without tentative ones.
fn settled(walk: &Walk<'_>, visited: &VisitedSegment) -> Vec<(usize, Entry)> {
    walk.entries(visited).filter(|(_, entry)| entry.state != slot::State::Tentative).collect()
}

async fn audit_entries(
    pin: &Pin<'_>,
    walk: &Walk<'_>,
    visited: &VisitedSegment,
    findings: &mut Findings<'_>,
) -> Result<(), IndexError> {
    for (i, word) in slots(&visited.words).filter(|(_, word)| !slot::is_sound(*word)) {
        findings.problem(format!("the slot at {} holds {word:#018x}", visited.slot(i)));
    }
    for part in settled(walk, visited).chunks(BLOCKS_PER_BATCH) {
        let asked: Vec<_> = part.iter().map(|(_, entry)| (entry.ptr, entry.len)).collect();
        for ((i, entry), block) in part.iter().zip(fetch_blocks(pin.span(), &asked).await?) {
            let (at, ptr) = (visited.slot(*i), entry.ptr);
            let block = match block {
                Ok(block) => block,
                Err(what) => {
                    findings.problem(format!("{} at {at} points to {what}", visited.place(*i)));
                    continue;
                }
            };
            let (hash, len) = (block.header.hash, block.header.block_len());
            if entry.fp != slot::fingerprint(hash) || entry.len != slot::units(len) {
                findings.problem(format!("the slot at {at} does not fit the block at {ptr} that it points to"));
            }
            if !walk.assigned(visited).holds(hash) || !walk.table.shape().fits(hash, *i) {
                // An entry that a split has moved since its slot was READ has left the slot before the state said so.
                if first_word(&pin.span().read(at, 8).await?) != visited.words[*i] {
                    continue;
                }
                findings.problem(format!("the entry at {at} lies where no lookup finds it"));
            }
            findings.reach_block(pin.span(), format_args!("the slot at {at}"), ptr, len as u64).await?;
            findings.report.entries += 1;
            findings.count(if is_overflow(*i) { "overflow_entries" } else { "main_entries" }, 1);
            findings.key(hash, block.key(), at);
        }
    }
    Ok(())
}

/// Reports what a crashed client left unfinished.
fn check_finished(visited: &VisitedSegment, findings: &mut Findings<'_>) {
    let at = visited.segment_ref.at;
    if visited.state.locked() {
        findings.problem(format!("the segment at {at} is locked, and no client is there to release it"));
    }
    for (i, entry) in visited.entries() {
        let of = match entry.state {
            slot::State::Tentative => "an insert",
            slot::State::Frozen => "a split",
            slot::State::Live => continue,
        };
        findings.problem(format!("the slot at {} belongs to {of} that no client finishes", visited.slot(i)));
    }
    let headers = visited.words.iter().enumerate().filter(|(i, _)| is_header(*i));
    let wrong = headers.filter(|(_, header)| !visited.state.locked() && **header != visited.state.0).count();
    if wrong > 0 {
        findings.problem(format!("{wrong} headers of the segment at {at} are not what its state says"));
    }
}
