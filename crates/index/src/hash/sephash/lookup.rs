//! Search (4.2.1), made linearizable.
//!
//! If the filter has no bit for the fingerprint, and the next slot is free, the key is not in the CurSegment. Otherwise
//! the CurSegment is READ, and its entries are checked from the newest to the oldest. The MainSegment's matches count
//! only if the CurSegment has no entry of the key. Their blocks are READ in the same batch, so a false positive of the
//! filter costs no round trip.

use super::layout::{Control, Entry, GROUP, State, fp2_of, is_emptied, is_taken, main_words};
use super::main_segment::Item;
use super::probe::{Need, Op, Probe, Step, count_taken, taken};
use crate::IndexError;
use crate::block::{self, Block, KeyMatch, UNIT, bad_checksum};
use crate::faults::{Fault, planted};
use crate::maintenance::first_word;
use crate::marks::mark;
use farindex_fabric::{Buf, RemotePtr};

/// A key that was found.
pub(super) struct Hit {
    /// Its block.
    pub block: Block,
    /// Its number in the MainSegment, and the entry, if it was found there.
    pub main: Option<(usize, Entry)>,
}

impl Op<'_> {
    /// Makes one attempt to look up the key.
    pub(super) async fn get(&mut self) -> Result<Step<Option<Hit>>, IndexError> {
        match self.probe(Need { main: true, window: false }, &mut None).await? {
            Step::Done(probe) => self.examine(&probe).await,
            Step::Again => Ok(Step::Again),
            Step::Stuck(stuck) => Ok(Step::Stuck(stuck)),
            Step::Room(bytes) => Ok(Step::Room(bytes)),
        }
    }

    /// Does the filter prove that the key is not in the CurSegment?
    pub(super) fn is_old(&self, probe: &Probe) -> bool {
        let (state, fp) = (&probe.state, self.fp());
        let is_full = state.count >= self.index.geometry.slots;
        !self.is_filtered(state)
            && probe.next.map_or(is_full, |word| !is_taken(word, state.generation) || Entry::decode(word).fp != fp)
    }

    /// Can the key be in the CurSegment, by the filter?
    fn is_filtered(&self, state: &State) -> bool {
        state.count > 0 && (!self.index.config.bitmap || state.filter.holds(self.fp()))
    }

    /// Decides whether the key is present.
    pub(super) async fn examine(&mut self, probe: &Probe) -> Result<Step<Option<Hit>>, IndexError> {
        let geometry = self.index.geometry;
        let state = &probe.state;
        let (fp, count) = (self.fp(), state.count);
        let is_full = count >= geometry.slots;
        let in_main: Vec<Entry> = probe.found.iter().map(|(_, item)| item.entry).collect();
        if planted(Fault::MainFirst)
            && let Some(hit) = self.first_of(probe, self.fetch(&in_main).await?).await?
        {
            return Ok(Step::Done(Some(hit)));
        }
        if self.is_old(probe) {
            let blocks = self.fetch(&in_main).await?;
            return Ok(Step::Done(self.first_of(probe, blocks).await?));
        }
        let span = self.pin.span();
        let mut batch = span.batch();
        let blocks: Vec<_> = in_main.iter().map(|entry| batch.read(entry.ptr, entry.units() * UNIT)).collect();
        let groups = self.is_filtered(state).then(|| {
            let end = geometry.words.min(main_words((count.min(geometry.slots - 1) / GROUP + 1) * GROUP));
            batch.read(probe.segment.at.add(geometry.at(0)), end * 8)
        });
        let next = (groups.is_none() && probe.next.is_none() && !is_full)
            .then(|| batch.read(probe.segment.at.add(geometry.at(geometry.slot(count))), 8));
        // READ behind the slots, to prove that these are of the stamp's generation.
        let control = batch.read(probe.segment.at, 8);
        let mut done = batch.post().await?;
        if Control(first_word(&done.buf(control))).generation() != state.generation {
            mark!("lookup: merged meanwhile");
            drop(done);
            self.wait_for(probe.segment).await?;
            return Ok(Step::Again);
        }
        let (newest, emptied): (Vec<Entry>, bool) = match groups {
            Some(groups) => {
                mark!("lookup: CurSegment");
                let words = done.buf(groups);
                let fp2 = fp2_of(self.hash);
                // The second fingerprint of a slot that has not landed is not there.
                let matching = |(i, item): &(usize, Item)| item.entry.fp == fp && (item.fp2 == fp2 || *i >= count);
                let items = taken(geometry, words.words(), state.generation).rev().filter(matching);
                (items.map(|(_, item)| item.entry).collect(), count_taken(geometry, words.words(), state.generation).1)
            }
            None => {
                let word = next.map(|next| first_word(&done.buf(next))).or(probe.next);
                let word = word.filter(|word| is_taken(*word, state.generation));
                let entry = word.map(Entry::decode).filter(|entry| entry.fp == fp);
                (entry.into_iter().collect(), word.is_some_and(is_emptied))
            }
        };
        if emptied {
            // An emptied slot may have had the key; then the next generation's MainSegment has it.
            mark!("lookup: emptied meanwhile");
            drop(done);
            self.wait_for(probe.segment).await?;
            return Ok(Step::Again);
        }
        let blocks: Vec<Buf> = blocks.into_iter().map(|block| done.buf(block)).collect();
        drop(done);
        for entry in newest {
            let block = self.fetch(&[entry]).await?.pop();
            if let Some(block) = block
                && let Some(block) = self.own(entry.ptr, block).await?
            {
                mark!("lookup: found in CurSegment");
                return Ok(Step::Done((!entry.removes()).then_some(Hit { block, main: None })));
            }
        }
        Ok(Step::Done(self.first_of(probe, blocks).await?))
    }

    /// READs blocks in one batch.
    async fn fetch(&self, entries: &[Entry]) -> Result<Vec<Buf>, IndexError> {
        let mut batch = self.pin.span().block_batch();
        let tickets: Vec<_> = entries.iter().map(|entry| batch.read(entry.ptr, entry.units() * UNIT)).collect();
        let mut done = batch.post().await?;
        Ok(tickets.into_iter().map(|ticket| done.buf(ticket)).collect())
    }

    /// Returns the first block of the MainSegment's matches that has the key.
    async fn first_of(&self, probe: &Probe, blocks: Vec<Buf>) -> Result<Option<Hit>, IndexError> {
        for ((place, item), block) in probe.found.iter().zip(blocks) {
            if let Some(block) = self.own(item.entry.ptr, block).await? {
                return Ok(Some(Hit { block, main: Some((*place, item.entry)) }));
            }
        }
        Ok(None)
    }

    /// Returns the whole block, if it has the key.
    async fn own(&self, ptr: RemotePtr, buf: Buf) -> Result<Option<Block>, IndexError> {
        match block::match_key(self.span(), ptr, buf, self.hash, self.key).await? {
            KeyMatch::Own(block) => Ok(Some(block)),
            KeyMatch::Other => Ok(None),
            // While the pin stands, no block that an entry names is reused.
            KeyMatch::Unsound => Err(bad_checksum(ptr)),
        }
    }
}
