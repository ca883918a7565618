//! Looking for a key.
//!
//! Invariants: a live word is believed wherever it is met, because nothing leaves a segment without having been frozen before
//! somebody else can see it elsewhere; an absence is believed only if the state of the segment was read behind the buckets (one READ
//! does not order its words, so the header in it proves nothing about the slots).

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
use farindex_fabric::{Batch, Buf, Done, RemotePtr, Span, Ticket};
use farindex_pool::Pin;
use smallvec::SmallVec;

/// A key that was found.
pub(super) struct Hit {
    /// Its slot, and what it holds.
    pub slot: RemotePtr,
    pub word: u64,
    /// Its block.
    pub ptr: RemotePtr,
    pub block: Block,
}

impl Hit {
    /// What the entry is at.
    pub(super) fn state(&self) -> Option<slot::State> {
        Entry::decode(self.word).map(|entry| entry.state)
    }
}

/// Entries of one key: usually one.
pub(super) type Hits = SmallVec<[Hit; 1]>;

/// A key that was not found, and what was read of the place where it would be.
pub(super) struct Absence {
    pub segment_ref: SegmentRef,
    pub view: View,
}

/// What a lookup found.
pub(super) enum LookupResult {
    /// The key.
    Hit(Hit),
    /// Its absence; for [`LookupPurpose::Add`] not yet proved.
    Absent(Absence),
}

/// What the key is looked for for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookupPurpose {
    /// Its value, wherever it stands.
    Read,
    /// To change it.
    Change,
    /// To add it if it is absent, which is proved in that step.
    Add,
}

/// READs of a key's buckets within a batch.
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
    /// Pointers to other keys' blocks. Under the pin they stay what they are (R8).
    rejected: SmallVec<[u64; 4]>,
    /// A segment that was looked up because the copy has none as near.
    nearer: Option<SegmentRef>,
    /// Buckets that a lost CAS has brought.
    pub(super) ready: Option<(SegmentRef, View)>,
    /// Has the block of this operation been in a slot?
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
            nearer: None,
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
    /// May others have met this operation's block?
    pub(super) fn was_seen(&self) -> bool {
        self.seen
    }

    /// Waits for who holds a segment's lock, longer each time; after a while looks after it, and takes over from the dead.
    pub(super) async fn wait_for(&mut self, segment: RemotePtr) -> Result<(), IndexError> {
        match self.backoff.wait(self.pin.session()).await {
            true => Box::pin(self.try_recover_lock(lock_of(segment).at)).await,
            false => Ok(()),
        }
    }

    /// Looks for the key. `along` is a block that is written in the lookup's first batch.
    pub(super) async fn look(
        &mut self,
        along: &mut Option<(RemotePtr, Buf)>,
        aim: LookupPurpose,
    ) -> Result<LookupResult, IndexError> {
        loop {
            if let Some(looked) = self.look_once(along, aim).await? {
                return Ok(looked);
            }
        }
    }

    async fn look_once(
        &mut self,
        along: &mut Option<(RemotePtr, Buf)>,
        aim: LookupPurpose,
    ) -> Result<Option<LookupResult>, IndexError> {
        let (segment_ref, view) = match self.ready.take() {
            Some(ready) => ready,
            None => {
                let segment_ref = self.segment_ref().await?;
                (segment_ref, self.read(segment_ref, along).await?)
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
        self.table.saw(depth);
        if depth > 0 && !holds(segment_ref.suffix, depth, self.hash.bits()) {
            mark!("race: lookup: a header tells of a split");
            self.descend(segment_ref, depth).await?;
            return Ok(None);
        }
        let proved = self.race.published() || frozen.is_none() && planted(Fault::HeaderProves);
        if proved || aim == LookupPurpose::Add && frozen.is_none() {
            return Ok(Some(LookupResult::Absent(Absence { segment_ref, view })));
        }
        Box::pin(self.conclude(segment_ref, view, frozen, aim)).await
    }

    /// No live entry: is the key frozen, is it absent, or was this the wrong segment?
    async fn conclude(
        &mut self,
        segment_ref: SegmentRef,
        view: View,
        frozen: Option<Hit>,
        aim: LookupPurpose,
    ) -> Result<Option<LookupResult>, IndexError> {
        let word = read_word(self.span(), segment_ref.at).await?;
        let state = self.expect(segment_ref, word)?;
        if !state.holds(self.hash) {
            mark!("race: lookup: the state tells of a split");
            self.descend(segment_ref, state.depth()).await?;
            return Ok(None);
        }
        match frozen {
            Some(hit) if aim == LookupPurpose::Read && state.locked() && !state.closing() => {
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

    /// The state of a segment; one that is none of this segment's is an error.
    pub(super) fn expect(&self, segment_ref: SegmentRef, word: u64) -> Result<State, IndexError> {
        let state = State(word);
        if state.suffix() != segment_ref.suffix || state.depth() < self.table.birth(segment_ref.suffix) {
            let what = format!("no segment of suffix {:#b} has a state of {word:#018x}", segment_ref.suffix);
            return Err(IndexError::corrupt(segment_ref.at, what));
        }
        self.table.saw(state.depth());
        Ok(state)
    }

    /// The segment to look into: the nearest that is known.
    async fn segment_ref(&mut self) -> Result<SegmentRef, IndexError> {
        if let Some(segment_ref) = self.nearer.or_else(|| self.table.find(self.hash.bits())) {
            return Ok(segment_ref);
        }
        mark!("race: lookup: nothing cached");
        // Before anything is believed that is read without the root.
        let mut batch = self.pin.span().batch();
        let guard = self.table.directory().guard(&mut batch, self.pin.epoch());
        if guard.is_some() {
            let mut done = batch.post().await?;
            self.table.directory().finish_guard(guard, &mut done)?;
        }
        self.guarded = true;
        let depth = self.table.directory().shape().initial_depth;
        let segment_ref = self.table.descend(self.pin.span(), self.hash.bits(), None, depth).await?;
        self.nearer = Some(segment_ref);
        Ok(segment_ref)
    }

    /// A segment was split: looks up which of its children, or of theirs, holds the key.
    pub(super) async fn descend(&mut self, from: SegmentRef, depth: u32) -> Result<(), IndexError> {
        let segment_ref = self.table.descend(self.pin.span(), self.hash.bits(), Some(from), depth).await?;
        self.nearer = Some(segment_ref);
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
    /// What those have brought.
    pub(super) fn view(&self, segment_ref: SegmentRef, parts: Parts, done: &mut Done) -> View {
        let parts = parts.into_iter().map(|(at, ticket)| (at, done.buf(ticket))).collect();
        View::new(self.table.shape(), segment_ref.at, self.mains, parts)
    }

    /// The first batch of a lookup.
    async fn read(
        &mut self,
        segment_ref: SegmentRef,
        along: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<View, IndexError> {
        let mut batch = self.pin.span().batch();
        let guard = match std::mem::replace(&mut self.guarded, true) {
            false => self.table.directory().guard(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((ptr, buf)) = along.take() {
            batch.write(ptr, buf);
        }
        let parts = self.read_parts(&mut batch, segment_ref);
        let mut done = batch.post().await?;
        self.table.directory().finish_guard(guard, &mut done)?;
        Ok(self.view(segment_ref, parts, &mut done))
    }

    /// Slots of the key's fingerprint whose entries are at what `wanted` says, without those that are known to be others'.
    pub(super) fn candidates(
        &self,
        view: &View,
        wanted: impl Fn(slot::State) -> bool,
    ) -> SmallVec<[(RemotePtr, u64); 2]> {
        let known = |word: u64| self.rejected.contains(&slot::pointer(word));
        let wanted = |word: u64| Entry::decode(word).is_some_and(|entry| wanted(entry.state));
        view.matches(self.fp()).filter(|(_, word)| wanted(*word) && !known(*word)).collect()
    }

    /// READs the candidates' blocks in one batch, and returns those that have the key. `None` if a block is not sound because its
    /// slot has changed meanwhile.
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
                    Box::pin(check_slot_changed(self.span(), slot, ptr, still)).await?;
                    self.backoff.wait(self.pin.session()).await;
                    return Ok(None);
                }
            }
        }
        Ok(Some(hits))
    }
}
