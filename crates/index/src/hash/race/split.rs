//! Split of a segment: half of its keys move to a new one.
//!
//! The published split moves entries one by one while inserts into both segments continue, and loses entries that find
//! no room. Here the splitting client first makes every CAS fail that must not succeed any more, and then publishes the
//! new segment:
//!
//! 1. *One batch*: WRITE the intent; CAS the state to locked; READ the segment. From now on only an insert that was
//!    tentative before can become live.
//! 2. CAS tentative entries to empty, and each entry that moves to frozen. The header of its block determines whether
//!    it moves.
//! 3. *One batch*: WRITE the new segment; CAS the state to closing.
//! 4. *In this order*: WRITE the directory's word; WRITE the headers, and empty over the frozen entries; CAS the state
//!    to open at the new depth; clear the intent.
//!
//! An entry that moves keeps its bucket and its slot, which do not depend on the segment. So the new segment has room
//! for all of them.

use super::lookup::Op;
use super::recovery::Recovery;
use super::segment::{BUCKET_WORDS, FIRST, SegmentRef, State, is_header, lock_of, slots};
use super::slot::{self, EMPTY, Entry};
use crate::IndexError;
use crate::extendible::Entry as Word;
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::maintenance::read_headers;
use crate::marks::mark;
use crate::recovery::{acquire, release_on_error};
use farindex_fabric::{Batch, Buf, RemotePtr};
use farindex_pool::{Intent, IntentCell};
use std::collections::BTreeMap;

/// Largest number of verbs in a batch: a segment has hundreds of entries.
pub(super) const PART: usize = 128;

/// The first word of an intent: the kind of step that its client is about to take.
pub(super) mod intents {
    /// Split of a segment; the next words are its suffix and its depth.
    pub(crate) const SPLIT: u64 = 1;
    /// Recovery of a segment after a crash.
    pub(crate) const RECOVER: u64 = 2;
}

/// A segment that this client has locked in order to split it.
pub(super) struct Held {
    pub segment_ref: SegmentRef,
    /// Its state before it was locked.
    pub state: State,
    /// Its words as they are known to be; a slot that is frozen here does not change.
    pub words: Vec<u64>,
}

impl Op<'_> {
    /// Splits a segment whose headers show this depth, unless another client does.
    pub(super) async fn split(&mut self, segment_ref: SegmentRef, depth: u32) -> Result<(), IndexError> {
        if depth >= self.table.max_depth() {
            return Err(IndexError::TooDeep { depth });
        }
        if depth < self.table.creation_depth(segment_ref.suffix) {
            let what = format!("no bucket of the segment of suffix {:#b} has a header of its own", segment_ref.suffix);
            return Err(IndexError::corrupt(segment_ref.at, what));
        }
        let state = State::open(segment_ref.suffix, depth);
        let (session, span) = (self.pin.session(), self.pin.span());
        let Some(word_at) = self.table.directory().ensure(&self.pin, state.child()).await? else {
            return Err(IndexError::TooDeep { depth });
        };
        let bytes = self.table.shape().bytes() as u64;
        let made = session.alloc_now(span, segment_ref.at.node(), bytes).await?;
        let cell = match session.intent_cell(segment_ref.at.node()).await {
            Ok(cell) => cell,
            Err(error) => {
                session.discard(made, bytes);
                return Err(error.into());
            }
        };
        let since = session.endpoint().now();
        let what = [intents::SPLIT, segment_ref.suffix, u64::from(depth), 0];
        let intent = Intent { index: self.race.uid(), lock: lock_of(segment_ref.at), what };
        let read = |batch: &mut Batch<'_>| batch.read(segment_ref.at, bytes as usize);
        let Ok((mut done, read)) = acquire(span, &cell, &intent, (state.0, state.lock().0), read).await? else {
            mark!("race: split: lock lost");
            drop(cell);
            session.discard(made, bytes);
            return self.wait_for(segment_ref.at).await;
        };
        let words = done.buf(read).words().to_vec();
        drop(done);
        let mut held = Held { segment_ref, state, words };
        #[cfg(feature = "published")]
        if self.race.published() {
            return self.split_published(held, made, word_at, cell).await;
        }
        let frozen = self.freeze(&mut held).await;
        let undo = async || {
            self.recovery().undo(&held.segment_ref, held.state.lock(), Some(&cell)).await?;
            session.discard(made, bytes);
            Ok(())
        };
        release_on_error(frozen, undo).await?;
        self.close(&held, made, word_at, cell).await?;
        self.table.growth().split(session.endpoint().now().saturating_sub(since));
        self.backoff = Default::default();
        Ok(())
    }

    pub(super) fn recovery(&self) -> Recovery<'_> {
        Recovery { index: self.race.uid(), table: self.table, pin: &self.pin }
    }

    /// Step 2: freezes every entry that moves, and empties tentative slots that may become live.
    async fn freeze(&self, held: &mut Held) -> Result<(), IndexError> {
        let mut hashes = Hashes::new();
        let mut open: Vec<usize> = slots(&held.words).filter(|(_, word)| *word != EMPTY).map(|(i, _)| i).collect();
        while !open.is_empty() {
            self.learn_hashes(held, &open, &mut hashes).await?;
            let bit = held.state.depth();
            let mut changes = Vec::new();
            for i in open {
                let word = held.words[i];
                let Some(entry) = Entry::decode(word) else {
                    if word == EMPTY {
                        continue;
                    }
                    let what = format!("a slot holds {word:#018x}");
                    return Err(IndexError::corrupt(held.segment_ref.at.add(i as u64 * 8), what));
                };
                let moves = hashes.get(&entry.ptr).is_some_and(|hash| hash.bits() >> bit & 1 == 1);
                match entry.state {
                    slot::State::Tentative => changes.push((i, EMPTY)),
                    slot::State::Live if moves => changes.push((i, slot::with_state(word, slot::State::Frozen))),
                    _ => {}
                }
            }
            open = self.change(held, &changes).await?;
            if !open.is_empty() {
                mark!("race: split: slot changed meanwhile");
            }
        }
        Ok(())
    }

    /// READs the headers of live entries' blocks.
    async fn learn_hashes(&self, held: &Held, open: &[usize], hashes: &mut Hashes) -> Result<(), IndexError> {
        let span = self.pin.span();
        let entries = open.iter().filter_map(|i| Entry::decode(held.words[*i]));
        let live = entries.filter(|entry| entry.state == slot::State::Live && !hashes.contains_key(&entry.ptr));
        let live: Vec<_> = live.map(|entry| entry.ptr).collect();
        for part in live.chunks(PART) {
            for (ptr, header) in part.iter().zip(read_headers(span, part).await?) {
                let Some(header) = header else {
                    return Err(IndexError::corrupt(*ptr, "a block's header makes no sense"));
                };
                hashes.insert(*ptr, header.hash);
            }
        }
        Ok(())
    }

    /// CASes slots of a held segment; returns the slots whose CAS has failed, with their words updated to what the CAS
    /// has found.
    async fn change(&self, held: &mut Held, changes: &[(usize, u64)]) -> Result<Vec<usize>, IndexError> {
        let mut failed = Vec::new();
        for part in changes.chunks(PART) {
            let mut batch = self.pin.span().batch();
            let at = |i: usize| held.segment_ref.at.add(i as u64 * 8);
            let tickets: Vec<_> = part.iter().map(|(i, to)| batch.cas(at(*i), held.words[*i], *to)).collect();
            let mut done = batch.post().await?;
            for (&(i, to), ticket) in part.iter().zip(tickets) {
                let old = done.old(ticket);
                if old == held.words[i] {
                    held.words[i] = to;
                } else {
                    held.words[i] = old;
                    failed.push(i);
                }
            }
        }
        Ok(failed)
    }

    /// Returns the words of the new segment: the frozen entries, live, in the same slots.
    fn child_of(&self, held: &Held) -> Buf {
        let state = State::open(held.state.child(), held.state.depth() + 1);
        let mut words = self.table.shape().empty(state, self.table.index_tag());
        for (i, word) in slots(&held.words) {
            if Entry::decode(word).is_some_and(|entry| entry.state == slot::State::Frozen) {
                words[i] = slot::with_state(word, slot::State::Live);
            }
        }
        self.pin.span().endpoint().buf_from_words(&words)
    }

    /// Steps 3 and 4.
    async fn close(
        &self,
        held: &Held,
        made: RemotePtr,
        word_at: RemotePtr,
        cell: IntentCell<'_>,
    ) -> Result<(), IndexError> {
        let span = self.pin.span();
        let child = held.state.child();
        let Some(word) = Word::new(made, 0) else {
            return Err(IndexError::corrupt(made, "no segment can lie here"));
        };
        if planted(Fault::EarlySegment) {
            let mut batch = span.batch();
            batch.write_words(word_at, &[word.to_bits()]);
            for i in (0..held.words.len()).filter(|i| is_header(*i)) {
                batch.write_words(held.segment_ref.at.add(i as u64 * 8), &[held.state.deeper().0]);
            }
            batch.post().await?;
        }
        let mut batch = span.batch();
        batch.write(made, self.child_of(held));
        batch.cas(held.segment_ref.at, held.state.lock().0, held.state.close().0);
        batch.post().await?;
        self.recovery().finish(held, Some((word_at, word)), Some(&cell)).await?;
        self.table.directory().published(child, word);
        self.table.note_depth(held.state.depth() + 1);
        mark!("race: split");
        Ok(())
    }
}

/// Hashes of keys by their blocks.
type Hashes = BTreeMap<RemotePtr, KeyHash>;

/// Returns the WRITEs that end a split, as runs of words in their order: new headers, and empty over frozen entries.
pub(super) fn final_writes(held: &Held) -> Vec<(RemotePtr, Vec<u64>)> {
    let header = held.state.deeper().0;
    let mut runs: Vec<(usize, Vec<u64>)> = Vec::new();
    for (i, word) in held.words.iter().enumerate().skip(FIRST) {
        let new = if is_header(i) {
            header
        } else if Entry::decode(*word).is_some_and(|entry| entry.state == slot::State::Frozen) {
            EMPTY
        } else {
            continue;
        };
        match runs.last_mut().filter(|(first, run)| first + run.len() == i && run.len() < BUCKET_WORDS) {
            Some((_, run)) => run.push(new),
            None => runs.push((i, vec![new])),
        }
    }
    runs.into_iter().map(|(first, run)| (held.segment_ref.at.add(first as u64 * 8), run)).collect()
}
