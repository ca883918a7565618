//! Append (4.3): the CAS that takes a slot, and the WRITEs behind it, for which the operation does not wait.
//!
//! Invariants:
//!
//! * **A1** Slots are taken in order, each by a CAS from the word that is left from the generation before.
//! * **A2** A client that takes slot `n` has seen that slot `n - 1` has landed: the stamp has the count `n`. So at most
//!   one batch of WRITEs behind a CAS is in flight to a segment, and what it writes is exact, although the operation
//!   does not wait for it.
//! * **A3** The operation's pin stands until that batch has completed ([`farindex_pool::Hold`]), even after the
//!   operation has returned.

use super::layout::{Entry, FILTER, fp2_of, with_fp2};
use super::main_segment;
use super::probe::{Need, Op, Probe, Step};
use super::views::Occupancy;
use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::marks::mark;
use crate::write::{Check, Guard};
use farindex_fabric::{Buf, RemotePtr, cold};

/// What a write does with a key that is present, and with one that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode<'a> {
    Insert,
    Update(Guard<'a>),
    Upsert,
    Remove(Guard<'a>),
    /// An upsert that does not look up the key.
    Blind,
}

impl<'a> Mode<'a> {
    /// The condition under which it changes a present key.
    pub(super) fn guard(self) -> Guard<'a> {
        match self {
            Mode::Update(guard) | Mode::Remove(guard) => guard,
            Mode::Insert | Mode::Upsert | Mode::Blind => Guard::Any,
        }
    }
    /// Does it change a key in this state? The guard is not asked.
    fn changes(self, present: bool) -> bool {
        match self {
            Mode::Insert => !present,
            Mode::Update(_) | Mode::Remove(_) => present,
            Mode::Upsert | Mode::Blind => true,
        }
    }
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrote {
    /// Was the key present? Unknown after a blind write.
    pub present: bool,
    appended: bool,
    /// Has it taken the last slot?
    pub last: bool,
}

impl Wrote {
    /// Does an entry point to the block?
    pub(super) fn appended(&self) -> bool {
        self.appended
    }
}

impl Op<'_> {
    /// Makes one attempt to write.
    pub(super) async fn write(
        &mut self,
        (mode, check): (Mode<'_>, &mut Check<'_>),
        ptr: RemotePtr,
        len: usize,
        piggybacked: &mut Option<(RemotePtr, Buf)>,
    ) -> Result<Step<Wrote>, IndexError> {
        let late = if planted(Fault::EarlyPointer) { piggybacked.take() } else { None };
        if planted(Fault::UnawaitedBlock)
            && let Some((ptr, buf)) = piggybacked.take()
        {
            let mut batch = self.span().batch();
            batch.write(ptr, buf);
            batch.post_detached();
        }
        let probe = match self.probe(Need { main: mode != Mode::Blind, window: true }, piggybacked).await? {
            Step::Done(probe) => probe,
            other => {
                *piggybacked = late.or(piggybacked.take());
                return Ok(other.map());
            }
        };
        let mut present = false;
        if mode != Mode::Blind {
            let hit = match self.examine(&probe).await? {
                Step::Done(hit) => hit,
                other => {
                    *piggybacked = late.or(piggybacked.take());
                    return Ok(other.map());
                }
            };
            present = hit.is_some();
            let differs = hit.as_ref().is_some_and(|hit| !check.admits(hit.block.value()));
            if differs || !mode.changes(present) {
                return Ok(Step::Done(Wrote { present, appended: false, last: false }));
            }
            if planted(Fault::UpdateInMain)
                && let Some((place, entry)) = hit.and_then(|hit| hit.main)
                && matches!(mode, Mode::Update(_))
            {
                return cold(self.update_in_main(&probe, place, entry, ptr, len)).await;
            }
        }
        let geometry = self.index.geometry;
        let Some(word) = probe.next.filter(|_| probe.slot < geometry.slots) else {
            *piggybacked = late.or(piggybacked.take());
            mark!("append: full");
            return Ok(cold(self.merge(probe.segment, &probe.state)).await?.map());
        };
        let state = &probe.state;
        let entry = Entry::new(self.hash, state.depth, ptr, len, matches!(mode, Mode::Remove(_)));
        let at = probe.segment.at.add(geometry.at(geometry.slot(probe.slot)));
        if self.span().cas(at, word, entry.encode(state.generation)).await? != word {
            mark!("append: CAS lost");
            *piggybacked = late.or(piggybacked.take());
            return Ok(Step::Again);
        }
        self.write_landing(&probe).await?;
        if let Some((ptr, buf)) = late {
            self.span().write(ptr, buf).await?;
        }
        let last = probe.slot + 1 == geometry.slots;
        Ok(Step::Done(Wrote { present, appended: true, last }))
    }

    /// Lands the slot: WRITEs the second fingerprint, then filter and count.
    async fn write_landing(&self, probe: &Probe) -> Result<(), IndexError> {
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
        let occupancy = Occupancy::new(probe.slot + 1, self.span().endpoint().now());
        self.table.views.appended(probe.segment.suffix, state.generation, occupancy);
        Ok(())
    }

    /// For [`Fault::UpdateInMain`]: as in the released code, an update changes the entry where it finds it, even if the
    /// segment is merged meanwhile.
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
    /// Converts a step without an outcome; an outcome becomes `Again`.
    pub(super) fn map<U>(self) -> Step<U> {
        match self {
            Step::Done(_) | Step::Again => Step::Again,
            Step::Stuck(stuck) => Step::Stuck(stuck),
            Step::Room(bytes) => Step::Room(bytes),
        }
    }
}
