//! The first batch of every operation, and what it proves.
//!
//! An operation READs, in this order: the MainSegment's entries of its fingerprint, as far as they can be predicted;
//! for a lookup, the slot that it expects to be the next one; CurSegMeta; for a write, the window of the CurSegment
//! around that slot, and the control word again. G4 orders the READs of a batch. The following conclusions depend on
//! that order:
//!
//! * The stamp of the filter names a generation `g` and a count `n`, the same in all of its words. Let `t` be the
//!   moment at which the last of them was read. At `t` the segment was in generation `g`, its slots below `n` had
//!   landed, and no slot above `n` was taken: a client takes a slot only after it has seen the slot before it land.
//! * What was READ of the MainSegment of `g` was read before `t`, so its memory had not been freed.
//! * If a slot that was read before `t` was free, no slot above it was taken.
//! * If the control word, read last, is of generation `g` as well, so is the window.

use super::fptable::{FpTable, Points};
use super::layout::{
    Control, Entry, FINGERPRINTS, GROUP, GROUP_WORDS, META_LEN, Meta, State, fp_of, fp2_of, is_emptied, is_taken,
};
use super::main_segment::{self, Item};
use super::views::{Occupancy, View};
use super::{SepHash, Table, TableKind};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::extendible::Entry as Word;
use crate::extendible::directory::holds;
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::maintenance::first_word;
use crate::marks::mark;
use farindex_fabric::{Batch, Buf, Done, RemotePtr, Span, Ticket, cold};
use farindex_pool::Pin;
use std::ops::Range;
use std::sync::Arc;

/// Result of one attempt.
pub(super) enum Step<T> {
    /// The attempt has an outcome.
    Done(T),
    /// Something has changed or was recovered: try again.
    Again,
    /// A slot has not landed: try again, under another pin, when every operation of this moment has ended.
    Stuck(Stuck),
    /// The pool must free this many bytes first; wait for them without a pin.
    Room(u64),
}

/// What was seen of a segment in which a slot has not landed. If the same is seen again after every operation has ended that
/// was running the first time, no operation will land that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// This slot of this generation is taken.
    Slot { generation: u64, count: usize },
    /// CurSegMeta is torn: the hash of its words behind the control word. A stamp comes once in a generation, so words that
    /// are torn in the same way are torn by the same landing.
    Torn(u64),
}

impl Unsettled {
    pub(super) fn of(meta: Option<&Meta>) -> Self {
        match meta.map(|meta| (meta.state(), meta)) {
            Some((Some(State { generation, count, .. }), _)) => Unsettled::Slot { generation, count },
            Some((None, meta)) => Unsettled::Torn(meta.digest()),
            None => Unsettled::Torn(0),
        }
    }
}

/// Such a segment, and the epoch in which it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stuck {
    pub at: RemotePtr,
    seen: Unsettled,
    epoch: u64,
}

impl Stuck {
    /// The epoch from which on the slot has landed, or no operation will land it. The operation that took it was pinned
    /// no later than one epoch after the epoch that was known when the slot was observed (E1).
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

/// What the first batch has READ; consistent as the [module](self) states.
pub(super) struct Probe {
    pub segment: Segment,
    pub state: State,
    /// Matching entries of the MainSegment, with their numbers in it.
    pub found: Vec<(usize, Item)>,
    /// The word of slot `state.count`, if it was read.
    pub next: Option<u64>,
    /// For a write: that slot's word of second fingerprints.
    pub fp2_word: u64,
    /// For a write: the slot to take.
    pub slot: usize,
}

/// Parts of the first batch that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// The MainSegment's entries of the fingerprint.
    pub main: bool,
    /// The window of the CurSegment.
    pub window: bool,
}

/// The READs of a first batch.
pub(super) struct Asked {
    segment: Segment,
    view: Option<View>,
    /// Of the MainSegment: the entries, their numbers, and the head.
    main: Option<(Ticket, Range<usize>, Option<Ticket>)>,
    /// The slot that is next by the view.
    next: Option<(usize, Ticket)>,
    meta: Ticket,
    needs_main: bool,
}

/// Result of evaluating a first batch.
pub(super) enum Judged {
    Probe(Probe),
    /// The filter's words are of different moments. Has the control word that was READ with them.
    Torn(Control, Unsettled),
    /// The key does not belong to a segment of this depth.
    Elsewhere(u32),
    /// The view of the segment was old, or a prediction too short. Both have been corrected.
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
    /// Generation and count of the slot that was last waited for.
    awaited: Option<Unsettled>,
    /// The slot that had not landed when the previous pin was released.
    pub(super) stuck: Option<Stuck>,
    /// The error of an allocation that found no room.
    pub(super) full: Option<IndexError>,
    /// Entries of the MainSegment of a generation to READ, where the prediction was too short.
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
        Op { index, table, pin, hash, key, backoff: Backoff::default(), awaited: None, stuck, full: None, range: None }
    }

    pub(super) fn span(&self) -> &Span {
        self.pin.span()
    }
    pub(super) fn fp(&self) -> u8 {
        fp_of(self.hash)
    }

    /// Returns the segment of the key by the cached directory.
    pub(super) fn known(&self) -> Option<Segment> {
        self.table.directory.find(self.hash.bits()).map(Segment::new)
    }

    /// Returns the segment of the key by the cached directory, or else by the directory in far memory.
    async fn locate(&self) -> Result<Segment, IndexError> {
        match self.known() {
            Some(known) => Ok(known),
            None => cold(self.locate_cold()).await,
        }
    }

    async fn locate_cold(&self) -> Result<Segment, IndexError> {
        mark!("directory: cold");
        let directory = &self.table.directory;
        // The root first: the index may have been dropped.
        let mut batch = self.span().batch();
        let guard = directory.guard(&mut batch, self.pin.epoch());
        directory.finish_guard(guard, &mut batch.post().await?)?;
        let depth = directory.mirror().depth();
        let found = directory.look_up(self.span(), self.hash.bits(), 0, depth).await?;
        found
            .map(Segment::new)
            .ok_or_else(|| IndexError::corrupt(directory.root(), "the directory names no segment for a hash"))
    }

    /// Returns the entries of the MainSegment to READ.
    fn range(&self, view: &View) -> Range<usize> {
        match (&self.range, self.index.config.table) {
            (_, TableKind::Off) => 0..view.len,
            (Some((generation, range)), _) if *generation == view.generation => range.clone(),
            _ => view.table.predict(self.fp()),
        }
    }

    /// Adds the READs of an operation's first batch.
    pub(super) fn ask(&self, batch: &mut Batch<'_>, segment: Segment, need: Need) -> Asked {
        let (geometry, kind) = (self.index.geometry, self.index.config.table);
        let view = self.table.views.get(segment.suffix);
        let main = view.as_ref().filter(|view| need.main && view.len > 0).map(|view| {
            let (offset, bytes, brings) = main_segment::read_of(kind, &self.range(view), view.len);
            let head = (!view.fresh).then(|| batch.read(view.main, main_segment::head_len(kind)));
            (batch.read(view.main.add(offset), bytes), brings, head)
        });
        let guess = view.as_ref().map_or(0, |view| view.occupancy.count);
        let next = (!need.window && need.main && guess < geometry.slots)
            .then(|| (guess, batch.read(segment.at.add(geometry.at(geometry.slot(guess))), 8)));
        Asked { segment, view, main, next, meta: batch.read(segment.at, META_LEN), needs_main: need.main }
    }

    /// Evaluates these READs.
    pub(super) fn judge(&mut self, asked: &Asked, done: &mut Done) -> Result<Judged, IndexError> {
        let Asked { segment, view, .. } = asked;
        let kind = self.index.config.table;
        let meta = Meta::parse(done.buf(asked.meta).words());
        let Some(state) = meta.and_then(|meta| meta.state()) else {
            mark!("probe: torn stamp");
            return Ok(Judged::Torn(meta.map_or(Control(0), |meta| meta.control), Unsettled::of(meta.as_ref())));
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
                let table =
                    table.ok_or_else(|| IndexError::corrupt(view.main, "the head of a MainSegment makes no sense"))?;
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
        // A word of a much older generation may have the sign of this one.
        let next = asked.next.filter(|(guess, _)| *guess == state.count && (current.is_some() || state.generation < 2));
        if let Some((_, next)) = next {
            probe.next = Some(first_word(&done.buf(next)));
        }
        let occupancy = Occupancy::new(state.count, self.span().endpoint().now());
        self.table.views.found(segment.suffix, state.generation, occupancy);
        Ok(Judged::Probe(probe))
    }

    /// Posts the first batch. `piggybacked` is a block that is written in it.
    pub(super) async fn probe(
        &mut self,
        need: Need,
        piggybacked: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<Step<Probe>, IndexError> {
        let geometry = self.index.geometry;
        let segment = self.locate().await?;
        let span = self.pin.span();
        let mut batch = span.batch();
        let guard = self.table.directory.guard(&mut batch, self.pin.epoch());
        if let Some((ptr, buf)) = piggybacked.take() {
            batch.write(ptr, buf);
        }
        let asked = self.ask(&mut batch, segment, need);
        let window = need.window.then(|| {
            let occupancy = asked.view.as_ref().map(|view| view.occupancy);
            let first = occupancy.map_or(0, |occupancy| occupancy.window(geometry.slots, span.endpoint().now()));
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
            Judged::Torn(control, seen) => {
                drop(done);
                return cold(self.unsettled(segment, control, seen)).await;
            }
            Judged::Elsewhere(depth) => {
                drop(done);
                let above = self.table.directory.shape().creation_depth(segment.suffix);
                let found = self.table.directory.look_up(self.span(), self.hash.bits(), above, depth);
                let found = cold(found).await?;
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

    /// Finds the slot to take in the window.
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
            // As published: the first slot that looks free, whether or not the slots before it have landed.
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
            // The next window has the slot. If it is taken and has not landed, that is waited for.
            let occupancy = Occupancy::new(state.count, self.span().endpoint().now());
            self.table.views.overtaken(probe.segment.suffix, state.generation, occupancy);
            return Ok(Step::Again);
        };
        if is_taken(slot, state.generation) {
            mark!("window: not landed");
            let seen = Unsettled::Slot { generation: state.generation, count: state.count };
            return cold(self.unsettled(probe.segment, control, seen)).await;
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
        let occupancy = Occupancy::new(count, self.span().endpoint().now());
        self.table.views.set(segment.suffix, View { generation, main, len, table, fresh, occupancy });
    }

    /// Returns a larger range to READ, if these entries do not prove that they include all of the fingerprint.
    fn further(&self, items: &[Item], brings: &Range<usize>, len: usize) -> Option<Range<usize>> {
        let fp = self.fp();
        let begins = brings.start == 0 || items.first().is_some_and(|item| item.entry.fp < fp);
        let ends = brings.end >= len || items.last().is_some_and(|item| item.entry.fp > fp);
        if begins && ends {
            return None;
        }
        // Half of the average in the paper. Here the range at least doubles, so that the search ends soon for any
        // distribution.
        let more = (len / FINGERPRINTS / 2).max(brings.len()).max(GROUP);
        let start = if begins { brings.start } else { brings.start.saturating_sub(more) };
        let end = if ends { brings.end } else { (brings.end + more).min(len) };
        Some(start..end)
    }

    /// Waits for a slot that is taken and has not landed, or for a torn stamp. After a long wait, lands the slots of a
    /// crashed client.
    async fn unsettled<T>(
        &mut self,
        segment: Segment,
        control: Control,
        seen: Unsettled,
    ) -> Result<Step<T>, IndexError> {
        let epoch = self.pin.epoch();
        // If other clients make progress, the wait begins again.
        if matches!(seen, Unsettled::Slot { .. }) && self.awaited.replace(seen).is_some_and(|awaited| awaited != seen) {
            mark!("window: other clients make progress");
            self.backoff = Backoff::default();
        }
        let known = |stuck: &Stuck| (stuck.at, stuck.seen) == (segment.at, seen);
        if self.stuck.filter(known).is_some_and(|stuck| epoch >= stuck.ended()) && !control.locked() {
            self.stuck = None;
            self.land(segment, control, seen).await?;
            return Ok(Step::Again);
        }
        self.wait_for(segment).await?;
        if self.backoff.is_long() && !control.locked() {
            self.backoff = Backoff::default();
            let now = Stuck { at: segment.at, seen, epoch };
            return Ok(Step::Stuck(self.stuck.filter(known).unwrap_or(now)));
        }
        Ok(Step::Again)
    }

    /// Lands the slots of crashed clients, if there are any; returns whether there were.
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
            _ => {
                let due = self.stuck.is_some();
                let step: Step<()> = self.unsettled(segment, control, Unsettled::of(meta.as_ref())).await?;
                Ok(match step {
                    Step::Again | Step::Done(()) if due && self.stuck.is_none() => Step::Done(true),
                    other => other.map(),
                })
            }
        }
    }

    /// Waits for other clients, longer each time; after several waits recovers the segment if a lock holder has
    /// crashed.
    pub(super) async fn wait_for(&mut self, segment: Segment) -> Result<(), IndexError> {
        match self.backoff.wait(self.pin.session()).await {
            true => cold(self.try_recover_lock(segment)).await,
            false => Ok(()),
        }
    }
}

/// Returns the slots of a CurSegment's groups that are taken in a generation, with their entries and second
/// fingerprints.
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

/// Returns how many slots of a CurSegment's groups are taken in a generation, and whether some of them have been
/// emptied: then that generation is about to end, or has ended.
pub(super) fn count_taken(geometry: super::layout::Geometry, words: &[u64], generation: u64) -> (usize, bool) {
    let taken =
        (0..geometry.slots).filter_map(|i| words.get(geometry.slot(i)).filter(|word| is_taken(**word, generation)));
    taken.fold((0, false), |(count, emptied), word| (count + 1, emptied || is_emptied(*word)))
}
