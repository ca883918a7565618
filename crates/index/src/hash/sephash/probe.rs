//! The first batch of every operation, and what it proves.
//!
//! An operation READs, in this order: the MainSegment's entries of its fingerprint, as far as they can be predicted; for a
//! lookup, the slot that it takes to be the next one; CurSegMeta; for a write, the window of the CurSegment around that
//! slot, and the control word once more. G4 orders READs of a batch, and that order is what everything below rests on:
//!
//! * The stamp of the filter names a generation `g` and a count `n`, the same in all of its words. Let `t` be
//!   the moment at which the last of them was read. At `t` the segment was in generation `g`, its slots below `n` had landed, and no slot
//!   above `n` was taken: whoever takes a slot has seen the one before it land.
//! * What was READ of the MainSegment of `g` was read before `t`, so it lay in memory that was not given back.
//! * A slot that was read before `t` and was free then tells that nothing above it was taken.
//! * If the control word, read last, is of generation `g` as well, so is the window.

use super::fptable::{FpTable, Points};
use super::layout::{
    Control, Entry, FINGERPRINTS, GROUP, GROUP_WORDS, META_LEN, Meta, State, fp_of, fp2_of, is_emptied, is_taken,
};
use super::main_segment::{self, Item};
use super::views::{Sight, View};
use super::{SepHash, Table, TableKind};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::extendible::Entry as Word;
use crate::extendible::directory::holds;
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::maintenance::first_word;
use crate::marks::mark;
use farindex_fabric::{Batch, Buf, Done, RemotePtr, Span, Ticket};
use farindex_pool::Pin;
use std::ops::Range;
use std::sync::Arc;

/// What came of one attempt.
pub(super) enum Step<T> {
    /// An outcome.
    Done(T),
    /// Something has changed, or was put right: look again.
    Again,
    /// Somebody owes a landing: to be looked at again, by another pin, when every operation of now has ended.
    Stuck(Stuck),
    /// So many bytes are needed, and must be waited for without a pin.
    Room(u64),
}

/// A slot that was taken and has not landed, or a stamp that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stuck {
    pub at: RemotePtr,
    generation: u64,
    count: usize,
    epoch: u64,
}

impl Stuck {
    /// The epoch that shows that whoever owed the landing has landed, or never will. It was pinned no later than the
    /// epoch that was known when the slot was seen, and one more (E1).
    pub(super) fn ended(&self) -> u64 {
        self.epoch + 3
    }
}

/// A segment that the directory names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub suffix: u64,
    pub at: RemotePtr,
}

impl Segment {
    pub(super) fn new((suffix, word): (u64, Word)) -> Self {
        Segment { suffix, at: word.at() }
    }
}

/// What the first batch has brought, consistent as the module says.
pub(super) struct Probe {
    pub segment: Segment,
    pub state: State,
    /// Entries of the MainSegment that match, and their places in it.
    pub found: Vec<(usize, Item)>,
    /// The word of slot `state.count`, if it was read.
    pub next: Option<u64>,
    /// For a write: that slot's word of second fingerprints.
    pub fp2_word: u64,
    /// For a write: the slot to take.
    pub slot: usize,
}

/// What an operation needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// The MainSegment's entries of the fingerprint.
    pub main: bool,
    /// The window of the CurSegment.
    pub window: bool,
}

/// The READs of a first batch that every operation may need.
pub(super) struct Asked {
    segment: Segment,
    view: Option<View>,
    /// Of the MainSegment: entries, which of them, and its head.
    main: Option<(Ticket, Range<usize>, Option<Ticket>)>,
    /// The slot that the view takes to be the next one.
    next: Option<(usize, Ticket)>,
    meta: Ticket,
    needs_main: bool,
}

/// What they say.
pub(super) enum Judged {
    Probe(Probe),
    /// The filter's words are of different moments; the control word that came with them.
    Torn(Control),
    /// The key does not belong to a segment of this depth.
    Elsewhere(u32),
    /// What this compute node knew of the segment was old, or a prediction short: both are put right now.
    Again,
}

/// One operation on one key, under one pin.
pub(super) struct Op<'a> {
    pub(super) index: &'a SepHash,
    pub(super) table: &'a Table,
    pub(super) pin: Pin<'a>,
    pub(super) hash: KeyHash,
    pub(super) key: &'a [u8],
    pub(super) backoff: Backoff,
    /// Generation and count of the landing that was waited for last.
    visited: Option<(u64, usize)>,
    /// What was stuck when the pin before this one was let go.
    pub(super) stuck: Option<Stuck>,
    /// Why there was no room.
    pub(super) full: Option<IndexError>,
    /// Entries of the MainSegment of a generation that have to be read, where the prediction was short.
    range: Option<(u64, Range<usize>)>,
}

impl<'a> Op<'a> {
    pub(super) fn new(
        index: &'a SepHash,
        table: &'a Table,
        pin: Pin<'a>,
        hash: KeyHash,
        key: &'a [u8],
        stuck: Option<Stuck>,
    ) -> Self {
        Op { index, table, pin, hash, key, backoff: Backoff::default(), visited: None, stuck, full: None, range: None }
    }

    pub(super) fn span(&self) -> &Span {
        self.pin.span()
    }
    pub(super) fn fp(&self) -> u8 {
        fp_of(self.hash)
    }

    /// The segment of the key, as far as the directory's copy knows.
    pub(super) fn known(&self) -> Option<Segment> {
        self.table.directory.find(self.hash.bits()).map(Segment::new)
    }

    /// The segment of the key, as far as the directory's copy knows, or else as the directory says.
    async fn locate(&self) -> Result<Segment, IndexError> {
        match self.known() {
            Some(known) => Ok(known),
            None => Box::pin(self.locate_cold()).await,
        }
    }

    async fn locate_cold(&self) -> Result<Segment, IndexError> {
        mark!("directory: cold");
        let directory = &self.table.directory;
        // What follows reads what the root names: is the root there still?
        let mut batch = self.span().batch();
        let guard = directory.guard(&mut batch, self.pin.epoch());
        directory.finish_guard(guard, &mut batch.post().await?)?;
        let depth = directory.mirror().depth();
        let found = directory.look_up(self.span(), self.hash.bits(), 0, depth).await?;
        found.map(Segment::new).ok_or_else(|| damaged(directory.root(), "the directory names no segment for a hash"))
    }

    /// What to READ of the MainSegment.
    fn range(&self, view: &View) -> Range<usize> {
        match (&self.range, self.index.config.table) {
            (_, TableKind::Off) => 0..view.len,
            (Some((generation, range)), _) if *generation == view.generation => range.clone(),
            _ => view.table.predict(self.fp()),
        }
    }

    /// Adds what every operation READs first to a batch.
    pub(super) fn ask(&self, batch: &mut Batch<'_>, segment: Segment, need: Need) -> Asked {
        let (geometry, kind) = (self.index.geometry, self.index.config.table);
        let view = self.table.views.get(segment.suffix);
        let main = view.as_ref().filter(|view| need.main && view.len > 0).map(|view| {
            let (offset, bytes, brings) = main_segment::read_of(kind, &self.range(view), view.len);
            let head = (!view.fresh).then(|| batch.read(view.main, main_segment::head_len(kind)));
            (batch.read(view.main.add(offset), bytes), brings, head)
        });
        let guess = view.as_ref().map_or(0, |view| view.sight.count);
        let next = (!need.window && need.main && guess < geometry.slots)
            .then(|| (guess, batch.read(segment.at.add(geometry.at(geometry.slot(guess))), 8)));
        Asked { segment, view, main, next, meta: batch.read(segment.at, META_LEN), needs_main: need.main }
    }

    /// What that has brought.
    pub(super) fn judge(&mut self, asked: &Asked, done: &mut Done) -> Result<Judged, IndexError> {
        let Asked { segment, view, .. } = asked;
        let kind = self.index.config.table;
        let meta = Meta::parse(done.buf(asked.meta).words());
        let Some(state) = meta.and_then(|meta| meta.state()) else {
            mark!("probe: torn stamp");
            return Ok(Judged::Torn(meta.map_or(Control(0), |meta| meta.control)));
        };
        if !holds(segment.suffix, state.depth, self.hash.bits()) {
            mark!("directory: behind");
            return Ok(Judged::Elsewhere(state.depth));
        }
        let same =
            |view: &&View| view.generation == state.generation && view.main == state.main && view.len == state.len;
        let current = view.as_ref().filter(same);
        if current.is_none() {
            let older = view.as_ref().map(|view| &view.table);
            self.remember(*segment, &state, older, None);
            if asked.needs_main && state.len > 0 {
                mark!("view: stale");
                return Ok(Judged::Again);
            }
        }
        let mut found = Vec::new();
        if let (Some(view), Some((words, brings, head))) = (current, &asked.main) {
            let words = done.buf(*words);
            if let Some(head) = head {
                let table = main_segment::decode_table(kind, done.buf(*head).words(), view.len);
                let table = table.ok_or_else(|| damaged(view.main, "the head of a MainSegment makes no sense"))?;
                self.remember(*segment, &state, None, Some(Arc::new(table)));
            }
            let items: Vec<Item> = main_segment::items(words.words(), brings.clone()).collect();
            let further = self.further(&items, brings, view.len);
            if self.range.as_ref().is_none_or(|(generation, _)| *generation != view.generation) {
                self.table.predicted(further.is_some());
            }
            if let Some(further) = further {
                mark!("fptable: read further");
                self.range = Some((state.generation, further));
                return Ok(Judged::Again);
            }
            let (fp, fp2) = (self.fp(), fp2_of(self.hash));
            let matching = items.into_iter().enumerate().filter(|(_, item)| item.entry.fp == fp && item.fp2 == fp2);
            found.extend(matching.map(|(i, item)| (brings.start + i, item)));
        }
        let mut probe = Probe { segment: *segment, state, found, next: None, fp2_word: 0, slot: state.count };
        // A word that was read in a generation long before this one may bear this one's sign.
        let next = asked.next.filter(|(guess, _)| *guess == state.count && (current.is_some() || state.generation < 2));
        if let Some((_, next)) = next {
            probe.next = Some(first_word(&done.buf(next)));
        }
        let sight = Sight::new(state.count, self.span().endpoint().now());
        self.table.views.found(segment.suffix, state.generation, sight);
        Ok(Judged::Probe(probe))
    }

    /// The first batch. `along` is a block that is written in it.
    pub(super) async fn probe(
        &mut self,
        need: Need,
        along: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<Step<Probe>, IndexError> {
        let geometry = self.index.geometry;
        let segment = self.locate().await?;
        let span = self.pin.span();
        let mut batch = span.batch();
        let guard = self.table.directory.guard(&mut batch, self.pin.epoch());
        if let Some((ptr, buf)) = along.take() {
            batch.write(ptr, buf);
        }
        let asked = self.ask(&mut batch, segment, need);
        let window = need.window.then(|| {
            let sight = asked.view.as_ref().map(|view| view.sight);
            let first = sight.map_or(0, |sight| sight.window(geometry.slots, span.endpoint().now()));
            let first = first / GROUP * GROUP_WORDS;
            let end = (first + 2 * GROUP_WORDS).min(geometry.words);
            let words = batch.read(segment.at.add(geometry.at(first)), (end - first) * 8);
            (first, words, batch.read(segment.at, 8))
        });
        let mut done = batch.post().await?;
        self.table.directory.finish_guard(guard, &mut done)?;
        let probe = match self.judge(&asked, &mut done)? {
            Judged::Probe(probe) => probe,
            Judged::Again => return Ok(Step::Again),
            Judged::Torn(control) => {
                drop(done);
                return Box::pin(self.unsettled(segment, control, control.generation(), usize::MAX)).await;
            }
            Judged::Elsewhere(depth) => {
                drop(done);
                let above = self.table.directory.shape().birth(segment.suffix);
                let found = self.table.directory.look_up(self.span(), self.hash.bits(), above, depth);
                let found = Box::pin(found).await?;
                if found.is_none_or(|(suffix, _)| suffix == segment.suffix) {
                    self.wait_for(segment).await?;
                }
                return Ok(Step::Again);
            }
        };
        let Some((first, words, control)) = window else { return Ok(Step::Done(probe)) };
        let words = done.buf(words);
        let control = Control(first_word(&done.buf(control)));
        drop(done);
        if control.generation() != probe.state.generation || control.locked() {
            mark!("probe: locked or merged");
            self.wait_for(segment).await?;
            return Ok(Step::Again);
        }
        self.window(probe, first, words.words(), control).await
    }

    /// The slot to take, out of the window.
    async fn window(
        &mut self,
        mut probe: Probe,
        first: usize,
        words: &[u64],
        control: Control,
    ) -> Result<Step<Probe>, IndexError> {
        let geometry = self.index.geometry;
        let state = &probe.state;
        if planted(Fault::LateFp2) {
            // As published: the first slot that looks free, whatever has landed.
            let free = |i: &usize| {
                let word = geometry.slot(*i).checked_sub(first).and_then(|i| words.get(i));
                word.is_some_and(|word| !is_taken(*word, state.generation))
            };
            probe.slot = (state.count..geometry.slots).find(free).unwrap_or(geometry.slots);
            let in_window = geometry.slot(probe.slot.min(geometry.slots - 1)) < first + words.len();
            if probe.slot == geometry.slots && !in_window {
                probe.slot = state.count;
            }
        }
        if probe.slot >= geometry.slots {
            return Ok(Step::Done(probe));
        }
        let word = |at: usize| at.checked_sub(first).and_then(|i| words.get(i)).copied();
        let (Some(slot), Some(fp2s)) = (word(geometry.slot(probe.slot)), word(geometry.fp2_word(probe.slot))) else {
            mark!("window: too far");
            return Ok(Step::Again);
        };
        if is_taken(slot, state.generation) {
            mark!("window: not landed");
            let (segment, generation, count) = (probe.segment, state.generation, state.count);
            return Box::pin(self.unsettled(segment, control, generation, count)).await;
        }
        probe.next = Some(slot);
        probe.fp2_word = fp2s;
        Ok(Step::Done(probe))
    }

    fn remember(&self, segment: Segment, state: &State, older: Option<&Arc<FpTable>>, table: Option<Arc<FpTable>>) {
        let fresh = table.is_some();
        let table = table.unwrap_or_else(|| {
            let points = older.and_then(|table| match &**table {
                FpTable::Points(points) => Some(points),
                FpTable::Starts(_) => None,
            });
            Arc::new(FpTable::Points(Points::guess(points, state.len)))
        });
        let State { generation, main, len, count, .. } = *state;
        let sight = Sight::new(count, self.span().endpoint().now());
        self.table.views.set(segment.suffix, View { generation, main, len, table, fresh, sight });
    }

    /// What to READ instead, if these entries do not prove that they are all of the fingerprint.
    fn further(&self, items: &[Item], brings: &Range<usize>, len: usize) -> Option<Range<usize>> {
        let fp = self.fp();
        let begins = brings.start == 0 || items.first().is_some_and(|item| item.entry.fp < fp);
        let ends = brings.end >= len || items.last().is_some_and(|item| item.entry.fp > fp);
        if begins && ends {
            return None;
        }
        // Half of the average in the paper; at least as much again as was read, so that it ends soon however skewed it is.
        let more = (len / FINGERPRINTS / 2).max(brings.len()).max(GROUP);
        let start = if begins { brings.start } else { brings.start.saturating_sub(more) };
        let end = if ends { brings.end } else { (brings.end + more).min(len) };
        Some(start..end)
    }

    /// Somebody has taken a slot and has not landed, or the stamp is torn: it takes a moment, unless that one is gone.
    async fn unsettled<T>(
        &mut self,
        segment: Segment,
        control: Control,
        generation: u64,
        count: usize,
    ) -> Result<Step<T>, IndexError> {
        let epoch = self.pin.epoch();
        // As long as others get on, none of them has to be waited for any longer than the first.
        let progress = (generation, count);
        if count != usize::MAX && self.visited.replace(progress).is_some_and(|visited| visited != progress) {
            mark!("window: others get on");
            self.backoff = Backoff::default();
        }
        let known = |stuck: &Stuck| (stuck.at, stuck.generation, stuck.count) == (segment.at, generation, count);
        if self.stuck.filter(known).is_some_and(|stuck| epoch >= stuck.ended()) && !control.locked() {
            self.stuck = None;
            self.land(segment, control).await?;
            return Ok(Step::Again);
        }
        self.wait_for(segment).await?;
        if self.backoff.is_long() && !control.locked() {
            self.backoff = Backoff::default();
            let now = Stuck { at: segment.at, generation, count, epoch };
            return Ok(Step::Stuck(self.stuck.filter(known).unwrap_or(now)));
        }
        Ok(Step::Again)
    }

    /// Is there a landing that nobody will make? Makes it; says whether there was one.
    pub(super) async fn settle(&mut self, segment: Segment) -> Result<Step<bool>, IndexError> {
        let geometry = self.index.geometry;
        let mut batch = self.pin.span().batch();
        let meta = batch.read(segment.at, META_LEN);
        let words = batch.read(segment.at.add(META_LEN as u64), geometry.words * 8);
        let control = batch.read(segment.at, 8);
        let mut done = batch.post().await?;
        let meta = Meta::parse(done.buf(meta).words());
        let words = done.buf(words).words().to_vec();
        let control = Control(first_word(&done.buf(control)));
        drop(done);
        let state = meta.and_then(|meta| meta.state());
        let (slots, _) = count_taken(geometry, &words, control.generation());
        match state {
            Some(state) if state.generation == control.generation() && state.count >= slots => Ok(Step::Done(false)),
            _ if control.locked() => {
                self.wait_for(segment).await?;
                Ok(Step::Again)
            }
            state => {
                let count = state.map_or(usize::MAX, |state| state.count);
                let due = self.stuck.is_some();
                let step: Step<()> = self.unsettled(segment, control, control.generation(), count).await?;
                Ok(match step {
                    Step::Again | Step::Done(()) if due && self.stuck.is_none() => Step::Done(true),
                    other => other.map(),
                })
            }
        }
    }

    /// Waits for others, longer each time; after a while looks after who is in the way, and takes over from the dead.
    pub(super) async fn wait_for(&mut self, segment: Segment) -> Result<(), IndexError> {
        match self.backoff.wait(self.pin.session()).await {
            true => Box::pin(self.try_recover_lock(segment)).await,
            false => Ok(()),
        }
    }
}

pub(super) fn damaged(at: RemotePtr, what: &str) -> IndexError {
    IndexError::corrupt(at, what)
}

/// Entries of a CurSegment's groups that are taken in a generation: slot, entry, second fingerprint.
pub(super) fn taken(
    geometry: super::layout::Geometry,
    words: &[u64],
    generation: u64,
) -> impl DoubleEndedIterator<Item = (usize, Item)> {
    (0..geometry.slots).filter_map(move |i| {
        let word =
            words.get(geometry.slot(i)).copied().filter(|word| is_taken(*word, generation) && !is_emptied(*word))?;
        let fp2 = super::layout::fp2_in(words.get(geometry.fp2_word(i)).copied().unwrap_or_default(), i);
        Some((i, Item { entry: Entry::decode(word), fp2 }))
    })
}

/// How many slots of a CurSegment's groups are taken in a generation, and whether some of them have been emptied: then that
/// generation is about to end, or has ended.
pub(super) fn count_taken(geometry: super::layout::Geometry, words: &[u64], generation: u64) -> (usize, bool) {
    let taken =
        (0..geometry.slots).filter_map(|i| words.get(geometry.slot(i)).filter(|word| is_taken(**word, generation)));
    taken.fold((0, false), |(count, emptied), word| (count + 1, emptied || is_emptied(*word)))
}
