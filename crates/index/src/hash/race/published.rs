//! Insert and split as published, whose faults the checks must detect.
//!
//! *Duplicates* (SHARD's Figure 4): an insert is live before it has looked for other entries of its key, so a reader
//! may see an entry that is removed again. *Missing* (Figure 5): a split moves entries one by one while inserts
//! continue. An entry that finds no slot in the child is lost, and an entry that has not been moved yet is not found.

use super::insert::Put;
use super::lookup::Op;
use super::segment::{SegmentRef, State, is_header, slots};
use super::slot::{self, EMPTY, Entry};
use super::split::Held;
use crate::IndexError;
use crate::block::{HEADER_LEN, Header};
use crate::extendible::Entry as Word;
use crate::keyhash::KeyHash;
use crate::marks::mark;
use farindex_fabric::RemotePtr;
use farindex_pool::IntentCell;

impl Op<'_> {
    /// Inserts: CAS, then READ again. Of several entries of the key, the one with the lowest address stays.
    pub(super) async fn put_published(
        &mut self,
        segment_ref: SegmentRef,
        slot: RemotePtr,
        entry: Entry,
    ) -> Result<Put, IndexError> {
        let mine = Entry { state: slot::State::Live, ..entry }.encode();
        if self.span().cas(slot, EMPTY, mine).await? != EMPTY {
            return Ok(Put::Again);
        }
        let mut batch = self.span().batch();
        let parts = self.read_parts(&mut batch, segment_ref);
        let mut done = batch.post().await?;
        let view = self.view(segment_ref, parts, &mut done);
        drop(done);
        let state = State::open(segment_ref.suffix, view.depth(segment_ref.suffix));
        if !state.holds(self.hash) && self.span().cas(slot, mine, EMPTY).await? == mine {
            // The split has already passed this slot.
            self.descend(segment_ref, state.depth()).await?;
            return Ok(Put::Again);
        }
        let mut candidates = self.candidates(&view, |_| true);
        candidates.retain(|(at, _)| *at != slot);
        if candidates.is_empty() {
            return Ok(Put::Done);
        }
        let Some(hits) = self.same_key(candidates).await? else { return Ok(Put::Done) };
        if hits.iter().any(|hit| hit.slot.to_bits() < slot.to_bits()) {
            mark!("race: published: duplicate, mine");
            self.span().cas(slot, mine, EMPTY).await?;
            return Ok(Put::Exists);
        }
        for hit in hits {
            mark!("race: published: duplicate, another's");
            // Its block leaks: the client that has inserted it does not know.
            self.span().cas(hit.slot, hit.word, EMPTY).await?;
        }
        Ok(Put::Done)
    }

    /// Splits: writes directory and headers first, then moves entry by entry.
    pub(super) async fn split_published(
        &self,
        held: Held,
        made: RemotePtr,
        word_at: RemotePtr,
        cell: IntentCell<'_>,
    ) -> Result<(), IndexError> {
        let span = self.pin.span();
        let endpoint = span.endpoint();
        let Held { segment_ref, state, words } = held;
        let child = SegmentRef { suffix: state.child(), at: made };
        let empty = self.table.shape().empty(State::open(child.suffix, state.depth() + 1), self.table.index_tag());
        span.write(made, endpoint.buf_from_words(&empty)).await?;
        let word = Word::new(made, 0).unwrap_or_default();
        span.write(word_at, endpoint.buf_from_words(&[word.to_bits()])).await?;
        self.table.directory().published(child.suffix, word);
        for i in (0..words.len()).filter(|i| is_header(*i)) {
            span.write(segment_ref.at.add(i as u64 * 8), endpoint.buf_from_words(&[state.deeper().0])).await?;
        }
        for (i, _) in slots(&words) {
            let at = segment_ref.at.add(i as u64 * 8);
            self.move_published(at, child, state.depth()).await?;
        }
        let mut batch = span.batch();
        batch.cas(segment_ref.at, state.lock().0, state.deeper().0);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        self.table.note_depth(state.depth() + 1);
        mark!("race: published: split");
        Ok(())
    }

    /// Moves the entry of a slot, if it belongs to the child.
    async fn move_published(&self, at: RemotePtr, child: SegmentRef, bit: u32) -> Result<(), IndexError> {
        let span = self.pin.span();
        loop {
            let word = span.read(at, 8).await?.words().first().copied().unwrap_or_default();
            let Some(entry) = Entry::decode(word) else { return Ok(()) };
            let header = span.read(entry.ptr, HEADER_LEN).await?;
            let Some(Header { hash, .. }) = Header::decode(header.words()) else { return Ok(()) };
            if hash.bits() >> bit & 1 == 0 {
                return Ok(());
            }
            let copy = self.place_published(child, hash, word).await?;
            if copy.is_none() {
                mark!("race: published: entry lost");
            }
            if span.cas(at, word, EMPTY).await? == word {
                return Ok(());
            }
            // Another client has updated or removed it meanwhile.
            if let Some(copy) = copy {
                span.cas(copy, word, EMPTY).await?;
            }
        }
    }

    /// Puts a word into an empty slot of its key in the child; `None` if there is none.
    async fn place_published(
        &self,
        child: SegmentRef,
        hash: KeyHash,
        word: u64,
    ) -> Result<Option<RemotePtr>, IndexError> {
        let span = self.pin.span();
        let shape = self.table.shape();
        let mains = shape.mains(hash);
        loop {
            let mut batch = span.batch();
            let parts: smallvec::SmallVec<[_; 2]> = shape
                .parts(mains)
                .into_iter()
                .map(|(from, len)| (child.at.add(from), batch.read(child.at.add(from), len)))
                .collect();
            let mut done = batch.post().await?;
            let parts = parts.into_iter().map(|(at, ticket)| (at, done.buf(ticket))).collect();
            let view = super::segment::View::new(shape, child.at, mains, parts);
            let Some(slot) = view.vacancy() else { return Ok(None) };
            if span.cas(slot, EMPTY, word).await? == EMPTY {
                return Ok(Some(slot));
            }
        }
    }
}
