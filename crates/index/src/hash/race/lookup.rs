//! Lookup of a key.
//!
//! Invariants:
//!
//! * A live entry proves that the key is present, in whatever segment it is read: an entry is frozen before any client
//!   can read it in another segment.
//! * An absence is proved only if the state of the segment was READ behind the buckets. One READ does not order its
//!   words, so the header in it proves nothing about the slots.

use super::Race;
use super::segment::{Mains, SegmentRef, State, View, lock_of};
use super::slot::{self, Entry};
use super::table::Table;
use crate::IndexError;
use crate::backoff::Backoff;
use crate::block::{Block, CandidateBlocks, KeyMatch, check_slot_changed};
use crate::extendible::directory::holds;
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::maintenance::read_word;
use crate::marks::mark;
use farindex_fabric::{Batch, Buf, Done, RemotePtr, Span, Ticket, cold};
use farindex_pool::Pin;
use smallvec::SmallVec;

/// A key that was found.
pub(super) struct Hit {
    /// Its slot, and the word in it.
    pub slot: RemotePtr,
    pub word: u64,
    /// Its block.
    pub ptr: RemotePtr,
    pub block: Block,
}

impl Hit {
    /// The state of the entry.
    pub(super) fn state(&self) -> Option<slot::State> {
        Entry::decode(self.word).map(|entry| entry.state)
    }
}

/// Entries of one key, usually one.
pub(super) type Hits = SmallVec<[Hit; 1]>;

/// A key that was not found, and the buckets in which it would be.
pub(super) struct Absence {
    pub segment_ref: SegmentRef,
    pub view: View,
}

/// Result of a lookup.
pub(super) enum LookupResult {
    /// The key is present.
    Hit(Hit),
    /// The key is absent; for [`LookupPurpose::Add`] this is not yet proved.
    Absent(Absence),
}

/// Purpose of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookupPurpose {
    /// To read the value.
    Read,
    /// To change the entry.
    Change,
    /// To insert the key if it is absent; the insert proves the absence.
    Add,
}

/// READs of a key's buckets in a batch.
pub(super) type Parts = SmallVec<[(RemotePtr, Ticket); 2]>;

/// One operation on one key.
pub(super) struct Op<'a> {
    pub(super) race: &'a Race,
    pub(super) table: &'a Table,
    pub(super) pin: Pin<'a>,
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    pub(super) mains: Mains,
    pub(super) backoff: Backoff,
    /// Pointers to blocks of other keys. They remain that while the pin stands (R8).
    rejected: SmallVec<[u64; 4]>,
    /// The segment that was looked up in far memory, because the cached directory is behind.
    deeper_segment: Option<SegmentRef>,
    /// Buckets that were READ together with a CAS that failed.
    pub(super) ready: Option<(SegmentRef, View)>,
    /// Has a slot pointed to the block of this operation?
    pub(super) seen: bool,
    pub(super) guarded: bool,
}

impl<'a> Op<'a> {
    pub(super) fn new(race: &'a Race, table: &'a Table, pin: Pin<'a>, hash: KeyHash, key: &'a [u8]) -> Self {
        Op {
            race,
            table,
            pin,
            key,
            hash,
            mains: table.shape().mains(hash),
            backoff: Backoff::default(),
            rejected: SmallVec::new(),
            deeper_segment: None,
            ready: None,
            seen: false,
            guarded: false,
        }
    }

    pub(super) fn span(&self) -> &Span {
        self.pin.span()
    }
    pub(super) fn fp(&self) -> u64 {
        slot::fingerprint(self.hash)
    }
    /// May other clients have read the address of this operation's block?
    pub(super) fn was_seen(&self) -> bool {
        self.seen
    }

    /// Waits for the holder of a segment's lock, longer each time; after several waits recovers the segment if the
    /// holder has crashed.
    pub(super) async fn wait_for(&mut self, segment: RemotePtr) -> Result<(), IndexError> {
        match self.backoff.wait(self.pin.session()).await {
            true => cold(self.try_recover_lock(lock_of(segment).at)).await,
            false => Ok(()),
        }
    }

    /// Looks up the key. `piggybacked` is a block that is written in the lookup's first batch.
    pub(super) async fn look(
        &mut self,
        piggybacked: &mut Option<(RemotePtr, Buf)>,
        purpose: LookupPurpose,
    ) -> Result<LookupResult, IndexError> {
        loop {
            if let Some(looked) = self.look_once(piggybacked, purpose).await? {
                return Ok(looked);
            }
        }
    }

    async fn look_once(
        &mut self,
        piggybacked: &mut Option<(RemotePtr, Buf)>,
        purpose: LookupPurpose,
    ) -> Result<Option<LookupResult>, IndexError> {
        let (segment_ref, view) = match self.ready.take() {
            Some(ready) => ready,
            None => {
                let segment_ref = self.segment_ref().await?;
                (segment_ref, self.read(segment_ref, piggybacked).await?)
            }
        };
        let candidates = self.candidates(&view, |state| state != slot::State::Tentative);
        let mut frozen = None;
        if !candidates.is_empty() {
            let Some(hits) = self.same_key(candidates).await? else { return Ok(None) };
            for hit in hits {
                match hit.state() {
                    Some(slot::State::Live) => return Ok(Some(LookupResult::Hit(hit))),
                    _ => frozen = Some(hit),
                }
            }
        }
        let depth = view.depth(segment_ref.suffix);
        self.table.note_depth(depth);
        if depth > 0 && !holds(segment_ref.suffix, depth, self.hash.bits()) {
            mark!("race: lookup: split seen in a header");
            self.descend(segment_ref, depth).await?;
            return Ok(None);
        }
        let proved = self.race.published() || frozen.is_none() && planted(Fault::HeaderProves);
        if proved || purpose == LookupPurpose::Add && frozen.is_none() {
            return Ok(Some(LookupResult::Absent(Absence { segment_ref, view })));
        }
        cold(self.conclude(segment_ref, view, frozen, purpose)).await
    }

    /// Decides a lookup that has found no live entry: the key is frozen, it is absent, or the segment was split.
    async fn conclude(
        &mut self,
        segment_ref: SegmentRef,
        view: View,
        frozen: Option<Hit>,
        purpose: LookupPurpose,
    ) -> Result<Option<LookupResult>, IndexError> {
        let word = read_word(self.span(), segment_ref.at).await?;
        let state = self.expect(segment_ref, word)?;
        if !state.holds(self.hash) {
            mark!("race: lookup: split seen in the state");
            self.descend(segment_ref, state.depth()).await?;
            return Ok(None);
        }
        match frozen {
            Some(hit) if purpose == LookupPurpose::Read && state.locked() && !state.closing() => {
                mark!("race: lookup: read while frozen");
                Ok(Some(LookupResult::Hit(hit)))
            }
            None if !state.closing() => Ok(Some(LookupResult::Absent(Absence { segment_ref, view }))),
            _ => {
                mark!("race: lookup: waits for a split");
                self.wait_for(segment_ref.at).await.map(|()| None)
            }
        }
    }

    /// Decodes the state of a segment; the state of another segment is an error.
    pub(super) fn expect(&self, segment_ref: SegmentRef, word: u64) -> Result<State, IndexError> {
        let state = State(word);
        if state.suffix() != segment_ref.suffix || state.depth() < self.table.creation_depth(segment_ref.suffix) {
            let what = format!("no segment of suffix {:#b} has a state of {word:#018x}", segment_ref.suffix);
            return Err(IndexError::corrupt(segment_ref.at, what));
        }
        self.table.note_depth(state.depth());
        Ok(state)
    }

    /// Returns the segment to read: the deepest one that is known.
    async fn segment_ref(&mut self) -> Result<SegmentRef, IndexError> {
        if let Some(segment_ref) = self.deeper_segment.or_else(|| self.table.find(self.hash.bits())) {
            return Ok(segment_ref);
        }
        mark!("race: lookup: nothing cached");
        // The root first: without it, nothing that is read can be relied on.
        let mut batch = self.pin.span().batch();
        let guard = self.table.directory().guard(&mut batch, self.pin.epoch());
        if guard.is_some() {
            let mut done = batch.post().await?;
            self.table.directory().finish_guard(guard, &mut done)?;
        }
        self.guarded = true;
        let depth = self.table.directory().shape().initial_depth;
        let segment_ref = self.table.descend(self.pin.span(), self.hash.bits(), None, depth).await?;
        self.deeper_segment = Some(segment_ref);
        Ok(segment_ref)
    }

    /// Looks up the descendant of a split segment that holds the key.
    pub(super) async fn descend(&mut self, from: SegmentRef, depth: u32) -> Result<(), IndexError> {
        let segment_ref = self.table.descend(self.pin.span(), self.hash.bits(), Some(from), depth).await?;
        self.deeper_segment = Some(segment_ref);
        Ok(())
    }

    /// Adds READs of the key's buckets to a batch.
    pub(super) fn read_parts(&self, batch: &mut Batch<'_>, segment_ref: SegmentRef) -> Parts {
        let parts = self.table.shape().parts(self.mains);
        parts
            .into_iter()
            .map(|(from, len)| (segment_ref.at.add(from), batch.read(segment_ref.at.add(from), len)))
            .collect()
    }
    /// Returns what these READs have brought.
    pub(super) fn view(&self, segment_ref: SegmentRef, parts: Parts, done: &mut Done) -> View {
        let parts = parts.into_iter().map(|(at, ticket)| (at, done.buf(ticket))).collect();
        View::new(self.table.shape(), segment_ref.at, self.mains, parts)
    }

    /// Posts the first batch of a lookup.
    async fn read(
        &mut self,
        segment_ref: SegmentRef,
        piggybacked: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<View, IndexError> {
        let mut batch = self.pin.span().batch();
        let guard = match std::mem::replace(&mut self.guarded, true) {
            false => self.table.directory().guard(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((ptr, buf)) = piggybacked.take() {
            batch.write(ptr, buf);
        }
        let parts = self.read_parts(&mut batch, segment_ref);
        let mut done = batch.post().await?;
        self.table.directory().finish_guard(guard, &mut done)?;
        Ok(self.view(segment_ref, parts, &mut done))
    }

    /// Returns the slots with the key's fingerprint whose state is `wanted`, without those of other keys' blocks.
    pub(super) fn candidates(
        &self,
        view: &View,
        wanted: impl Fn(slot::State) -> bool,
    ) -> SmallVec<[(RemotePtr, u64); 2]> {
        let known = |word: u64| self.rejected.contains(&slot::pointer(word));
        let wanted = |word: u64| Entry::decode(word).is_some_and(|entry| wanted(entry.state));
        view.matches(self.fp()).filter(|(_, word)| wanted(*word) && !known(*word)).collect()
    }

    /// READs the candidates' blocks in one batch, and returns those that have the key. `None` if a block does not
    /// decode, and its slot has changed meanwhile.
    pub(super) async fn same_key(
        &mut self,
        candidates: SmallVec<[(RemotePtr, u64); 2]>,
    ) -> Result<Option<Hits>, IndexError> {
        let asked = candidates.into_iter().filter_map(|(slot, word)| {
            let entry = Entry::decode(word)?;
            Some(((slot, word), entry.ptr, entry.block_len()))
        });
        let mut blocks = CandidateBlocks::read(self.pin.span(), asked).await?;
        let mut hits = Hits::new();
        while let Some(((slot, word), ptr, found)) = blocks.next(self.hash, self.key).await? {
            match found {
                KeyMatch::Other => self.rejected.push(slot::pointer(word)),
                KeyMatch::Own(block) => hits.push(Hit { slot, word, ptr, block }),
                KeyMatch::Unsound => {
                    let still = |now| slot::pointer(now) == slot::pointer(word);
                    cold(check_slot_changed(self.span(), slot, ptr, still)).await?;
                    self.backoff.wait(self.pin.session()).await;
                    return Ok(None);
                }
            }
        }
        Ok(Some(hits))
    }
}
