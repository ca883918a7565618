//! Splitting a segment: half of its keys go to a new one.
//!
//! The published split moves entries one by one, beside inserts into both segments, and loses those that find no room. Here whoever splits
//! makes every CAS fail that must not succeed any more, before anybody sees the new segment:
//!
//! 1. *one batch*: write the intent; CAS the state to locked; READ the segment. From now on no insert becomes live that was not tentative before.
//! 2. CAS what is tentative to empty, and each entry that moves to frozen (its block's header tells whether it moves).
//! 3. *one batch*: WRITE the new segment; CAS the state to closing.
//! 4. *in this order*: WRITE the directory's word; WRITE headers, and empty over what is frozen; CAS the state to open at the new depth; clear the
//!    intent.
//!
//! What moves keeps its bucket and its slot, which do not depend on the segment: so there is room for all of it.

use super::lookup::Op;
use super::recovery::Recovery;
use super::segment::{BUCKET_WORDS, FIRST, SegmentRef, State, is_header, lock_of, slots};
use super::slot::{self, EMPTY, Entry};
use crate::IndexError;
use crate::block::{HEADER_LEN, Header};
use crate::extendible::Entry as Word;
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use farindex_fabric::{Buf, RemotePtr};
use farindex_pool::{Intent, IntentCell, PoolError};
use std::collections::BTreeMap;

/// Verbs of a batch at most: a segment has hundreds of entries.
pub(super) const PART: usize = 128;

/// What an intent's first word says: which kind of step its client is about to take.
pub(super) mod steps {
    /// Splitting a segment: then its suffix and its depth.
    pub(crate) const SPLIT: u64 = 1;
    /// Finishing or undoing what a dead client has left.
    pub(crate) const RESCUE: u64 = 2;
}

/// A segment that is held by whoever splits it.
pub(super) struct Held {
    pub segment_ref: SegmentRef,
    /// What its state was when it was open.
    pub state: State,
    /// Its words as they are known to be: slots that are frozen here stay so.
    pub words: Vec<u64>,
}

impl Op<'_> {
    /// Splits a segment whose headers show this depth, unless somebody else does.
    pub(super) async fn split(&mut self, segment_ref: SegmentRef, depth: u32) -> Result<(), IndexError> {
        if depth >= self.table.max_depth() {
            return Err(IndexError::TooDeep { depth });
        }
        if depth < self.table.birth(segment_ref.suffix) {
            let what = format!("no bucket of the segment of suffix {:#b} has a header of its own", segment_ref.suffix);
            return Err(PoolError::Corrupt { at: segment_ref.at, what }.into());
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
        let mut batch = span.batch();
        let what = [steps::SPLIT, segment_ref.suffix, u64::from(depth), 0];
        cell.declare(&mut batch, &Intent { index: self.race.uid(), lock: lock_of(segment_ref.at), what });
        let lock = batch.cas(segment_ref.at, state.0, state.lock().0);
        let read = batch.read(segment_ref.at, bytes as usize);
        let mut done = batch.post().await?;
        if done.old(lock) != state.0 {
            mark!("race: split: lock lost");
            drop(done);
            let mut batch = span.batch();
            cell.clear(&mut batch);
            batch.post().await?;
            drop(cell);
            session.discard(made, bytes);
            return self.wait_for(segment_ref.at).await;
        }
        let words = done.buf(read).words().to_vec();
        drop(done);
        let mut held = Held { segment_ref, state, words };
        #[cfg(feature = "published")]
        if self.race.published() {
            return self.split_published(held, made, word_at, cell).await;
        }
        match self.hold_still(&mut held).await {
            Ok(()) => {
                self.close(&held, made, word_at, cell).await?;
                self.table.growth().split(session.endpoint().now().saturating_sub(since));
                self.backoff = Default::default();
                Ok(())
            }
            // Only a failed verb leaves it open what holds (N7).
            Err(error @ IndexError::Fabric(_)) => Err(error),
            Err(error) => {
                self.recovery().undo(&held.segment_ref, held.state.lock(), Some(&cell)).await?;
                session.discard(made, bytes);
                Err(error)
            }
        }
    }

    pub(super) fn recovery(&self) -> Recovery<'_> {
        Recovery { index: self.race.uid(), table: self.table, pin: &self.pin }
    }

    /// Step 2: every entry that moves is frozen, and nothing is tentative that may become live.
    async fn hold_still(&self, held: &mut Held) -> Result<(), IndexError> {
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
                    return Err(PoolError::Corrupt { at: held.segment_ref.at.add(i as u64 * 8), what }.into());
                };
                let moves = hashes.get(&entry.ptr).is_some_and(|hash| hash.bits() >> bit & 1 == 1);
                match entry.state {
                    slot::State::Tentative => changes.push((i, EMPTY)),
                    slot::State::Live if moves => changes.push((i, slot::turned(word, slot::State::Frozen))),
                    _ => {}
                }
            }
            open = self.change(held, &changes).await?;
            if !open.is_empty() {
                mark!("race: split: straggler");
            }
        }
        Ok(())
    }

    /// Reads the headers of live entries' blocks.
    async fn learn_hashes(&self, held: &Held, open: &[usize], hashes: &mut Hashes) -> Result<(), IndexError> {
        let span = self.pin.span();
        let entries = open.iter().filter_map(|i| Entry::decode(held.words[*i]));
        let live = entries.filter(|entry| entry.state == slot::State::Live && !hashes.contains_key(&entry.ptr));
        let live: Vec<_> = live.map(|entry| entry.ptr).collect();
        for part in live.chunks(PART) {
            let mut batch = span.block_batch();
            let tickets: Vec<_> = part.iter().map(|ptr| (*ptr, batch.read(*ptr, HEADER_LEN))).collect();
            let mut done = batch.post().await?;
            for (ptr, ticket) in tickets {
                let Some(header) = Header::decode(done.buf(ticket).words()) else {
                    let what = "a block's header makes no sense".to_owned();
                    return Err(PoolError::Corrupt { at: ptr, what }.into());
                };
                hashes.insert(ptr, header.hash);
            }
        }
        Ok(())
    }

    /// CASes slots of a held segment; returns those for which that has failed, whose words are what the CAS has found.
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

    /// The new segment: what is frozen, at the same place, live.
    fn child_of(&self, held: &Held) -> Buf {
        let state = State::open(held.state.child(), held.state.depth() + 1);
        let mut words = self.table.shape().empty(state, self.table.index_tag());
        for (i, word) in slots(&held.words) {
            if Entry::decode(word).is_some_and(|entry| entry.state == slot::State::Frozen) {
                words[i] = slot::turned(word, slot::State::Live);
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
            let what = "no segment can lie here".to_owned();
            return Err(PoolError::Corrupt { at: made, what }.into());
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
        self.table.saw(held.state.depth() + 1);
        mark!("race: split");
        Ok(())
    }
}

/// Hashes of keys by their blocks.
type Hashes = BTreeMap<RemotePtr, KeyHash>;

/// What ends a split: new headers, and empty over what is frozen. Runs of words, in their order.
pub(super) fn endings(held: &Held) -> Vec<(RemotePtr, Vec<u64>)> {
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
