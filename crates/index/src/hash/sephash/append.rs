//! Append (4.3): the claim of a slot, and the WRITEs that nobody waits for.
//!
//! Invariants:
//!
//! * **A1** Slots are taken in order, each by a CAS from what was left of the generation before.
//! * **A2** Whoever takes slot `n` has seen that slot `n - 1` has landed: the stamp says `n`. So of the WRITEs behind a claim
//!   at most one batch is on its way to a segment, and what it writes is exact, although nobody waits for it.
//! * **A3** The claimant's pin stands until that batch has ended ([`farindex_pool::Hold`]), whoever has answered by then.

use super::layout::{Entry, FILTER, fp2_of, with_fp2};
use super::main_segment;
use super::probe::{Need, Op, Probe, Step};
use super::views::Sight;
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use farindex_fabric::{Buf, RemotePtr};

/// What a write does with a key that is present, and with one that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Insert,
    Update,
    Upsert,
    Remove,
    /// An upsert that does not look.
    Blind,
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrote {
    /// Was the key present? A blind write does not know.
    pub present: bool,
    appended: bool,
    /// It took the last slot.
    pub last: bool,
}

impl Wrote {
    /// Is there an entry for the block?
    pub(super) fn appended(&self) -> bool {
        self.appended
    }
}

impl Op<'_> {
    /// One attempt to write.
    pub(super) async fn write(
        &mut self,
        mode: Mode,
        ptr: RemotePtr,
        len: usize,
        along: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<Step<Wrote>, IndexError> {
        let late = if planted(Fault::EarlyPointer) { along.take() } else { None };
        if planted(Fault::UnawaitedBlock)
            && let Some((ptr, buf)) = along.take()
        {
            let mut batch = self.span().batch();
            batch.write(ptr, buf);
            batch.post_detached();
        }
        let probe = match self.probe(Need { main: mode != Mode::Blind, window: true }, along).await? {
            Step::Done(probe) => probe,
            other => {
                *along = late.or(along.take());
                return Ok(other.map());
            }
        };
        let mut present = false;
        if mode != Mode::Blind {
            let hit = match self.examine(&probe).await? {
                Step::Done(hit) => hit,
                other => {
                    *along = late.or(along.take());
                    return Ok(other.map());
                }
            };
            present = hit.is_some();
            if present == (mode == Mode::Insert) && mode != Mode::Upsert {
                return Ok(Step::Done(Wrote { present, appended: false, last: false }));
            }
            if planted(Fault::UpdateInMain)
                && let Some((place, entry)) = hit.and_then(|hit| hit.main)
                && mode == Mode::Update
            {
                return Box::pin(self.update_in_main(&probe, place, entry, ptr, len)).await;
            }
        }
        let geometry = self.index.geometry;
        let Some(word) = probe.next.filter(|_| probe.slot < geometry.slots) else {
            *along = late.or(along.take());
            mark!("append: full");
            return Ok(Box::pin(self.merge(probe.segment, &probe.state)).await?.map());
        };
        let state = &probe.state;
        let entry = Entry::new(self.hash, state.depth, ptr, len, mode == Mode::Remove);
        let at = probe.segment.at.add(geometry.at(geometry.slot(probe.slot)));
        if self.span().cas(at, word, entry.encode(state.generation)).await? != word {
            mark!("append: CAS lost");
            *along = late.or(along.take());
            return Ok(Step::Again);
        }
        self.trail(&probe).await?;
        if let Some((ptr, buf)) = late {
            self.span().write(ptr, buf).await?;
        }
        let last = probe.slot + 1 == geometry.slots;
        Ok(Step::Done(Wrote { present, appended: true, last }))
    }

    /// Second fingerprint, then filter and count: what makes the slot landed.
    async fn trail(&self, probe: &Probe) -> Result<(), IndexError> {
        let geometry = self.index.geometry;
        let state = &probe.state;
        let mut batch = self.span().batch();
        let fp2s = with_fp2(probe.fp2_word, probe.slot, fp2_of(self.hash));
        batch.write_words(probe.segment.at.add(geometry.at(geometry.fp2_word(probe.slot))), &[fp2s]);
        let filter = state.filter.with(self.fp()).stamped(state.generation, probe.slot + 1);
        batch.write_words(probe.segment.at.add(FILTER as u64 * 8), &filter);
        if planted(Fault::LateFp2) {
            batch.post_detached();
        } else if self.index.config.zero_wait {
            batch.post_holding(Box::new(self.pin.hold()));
        } else {
            batch.post().await?;
        }
        let sight = Sight::new(probe.slot + 1, self.span().endpoint().now());
        self.table.views.appended(probe.segment.suffix, state.generation, sight);
        Ok(())
    }

    /// For [`Fault::UpdateInMain`]: as in the released code, an update changes the entry where it finds it, whoever merges
    /// the segment meanwhile.
    async fn update_in_main(
        &self,
        probe: &Probe,
        place: usize,
        entry: Entry,
        ptr: RemotePtr,
        len: usize,
    ) -> Result<Step<Wrote>, IndexError> {
        let at = probe.state.main.add(main_segment::offset_of(self.index.config.table, place));
        let new = Entry { dep: entry.dep, ..Entry::new(self.hash, 0, ptr, len, false) };
        let word = entry.encode(1);
        match self.span().cas(at, word, new.encode(1)).await? == word {
            true => Ok(Step::Done(Wrote { present: true, appended: true, last: false })),
            false => Ok(Step::Again),
        }
    }
}

impl<T> Step<T> {
    /// The same of something else, where there is no outcome: an outcome becomes "again".
    pub(super) fn map<U>(self) -> Step<U> {
        match self {
            Step::Done(_) | Step::Again => Step::Again,
            Step::Stuck(stuck) => Step::Stuck(stuck),
            Step::Room(bytes) => Step::Room(bytes),
        }
    }
}
