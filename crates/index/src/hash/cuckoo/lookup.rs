//! Lookup of a key: READs its three buckets in the order in which its entry moves.
//!
//! An entry moves forward only, in the order of [`spots`], and its copy is written before the old entry is cleared. So
//! a lookup that READs the spots in this order and finds no entry has passed a moment at which the key was absent. A
//! lookup that precedes a change READs them in the opposite order: if it finds one entry, and that is not frozen, it is
//! the key's only entry (docs/protocols/cuckoo.md).

use super::places::{Spot, Spots, WAYS, spots};
use super::{Cuckoo, Lookup, Table};
use crate::IndexError;
use crate::Value;
use crate::backoff::Backoff;
use crate::block::{CandidateBlocks, KeyMatch, UNIT, check_slot_changed};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::slotted::geometry::signature;
use crate::slotted::record::{InlineWords, PiggybackedWrite};
use crate::slotted::slot::{Slot, frozen, gather, whole};
use farindex_fabric::{Buf, RemotePtr, Span, cold};
use farindex_pool::{Pin, PoolError};
use smallvec::SmallVec;

/// Number of attempts with a torn record, or with a sealed slot but no next table, after which the memory counts as
/// damaged.
const MAX_ATTEMPTS: u32 = 1000;

/// An entry of the key.
pub(super) struct Hit {
    pub(super) spot: Spot,
    pub(super) index: u64,
    pub(super) head: u64,
    pub(super) behind: InlineWords,
    /// Address and bytes of its block, if the entry is out of band.
    pub(super) block: Option<(RemotePtr, u64)>,
    pub(super) value: Value,
}

/// A free slot.
pub(super) struct Free {
    pub(super) spot: Spot,
    pub(super) index: u64,
    pub(super) head: u64,
    pub(super) behind: InlineWords,
}

/// A slot whose block may be the key's.
pub(super) struct Candidate {
    spot: Spot,
    index: u64,
    head: u64,
    pub(super) ptr: RemotePtr,
    pub(super) units: u64,
    behind: InlineWords,
}

impl Candidate {
    /// Returns the bytes to READ of its block.
    pub(super) fn len(&self) -> usize {
        self.units as usize * UNIT
    }
}

/// What buckets that were READ hold of the key.
#[derive(Default)]
pub(super) struct Seen {
    /// Entries of the key, in the order of the READs.
    pub(super) hits: SmallVec<[Hit; 1]>,
    pub(super) candidates: SmallVec<[Candidate; 2]>,
    /// A record was torn, or its slot has been reused meanwhile.
    pub(super) torn: bool,
    /// A slot shows that a table exists that is newer than this worker knows.
    pub(super) stale: bool,
    /// Free slots that are not reserved for a mover.
    pub(super) free: Vec<Free>,
}

/// What to collect from buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// One entry of the key.
    First,
    /// Every entry of the key.
    All,
    /// Every entry of the key, and free slots.
    Room,
}

/// One operation on one key.
pub(super) struct Op<'a> {
    pub(super) cuckoo: &'a Cuckoo,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    /// Blocks of other keys. They cannot be reused under the pin.
    rejected: SmallVec<[RemotePtr; 4]>,
    pub(super) backoff: Backoff,
    pub(super) counted: bool,
    attempts: u32,
}

impl<'a> Op<'a> {
    pub(super) fn new(cuckoo: &'a Cuckoo, table: &'a Table, pin: &'a Pin<'a>, hash: KeyHash, key: &'a [u8]) -> Self {
        let (rejected, backoff) = (SmallVec::new(), Backoff::default());
        Op { cuckoo, table, pin, key, hash, rejected, backoff, counted: false, attempts: 0 }
    }

    pub(super) fn span(&self) -> &'a Span {
        self.pin.span()
    }

    pub(super) fn spots(&self) -> Spots {
        spots(self.table, self.hash)
    }

    /// Counts another attempt; too many of them are an error.
    pub(super) fn count_attempt(&mut self) -> Result<(), IndexError> {
        self.attempts += 1;
        if self.attempts > MAX_ATTEMPTS {
            let what = "a key's places stay inconsistent".to_owned();
            return Err(PoolError::Corrupt { at: self.table.root(), what }.into());
        }
        Ok(())
    }

    /// Returns the number of spots that one batch READs.
    pub(super) fn step(&self, spots: &Spots) -> usize {
        match self.cuckoo.config.lookup {
            Lookup::Parallel => spots.len(),
            Lookup::Sequential => spots.len() / WAYS,
        }
    }

    /// Looks up the key. `None` proves a moment at which it was absent.
    pub(super) async fn find(&mut self) -> Result<Option<Hit>, IndexError> {
        loop {
            let spots = self.spots();
            let step = self.step(&spots);
            if let Some(found) = self.find_in(&spots, step).await? {
                return Ok(found);
            }
        }
    }

    /// Like [`find`](Self::find) in spots that are in their order; `None` if the spots have changed.
    pub(super) async fn find_in(&mut self, spots: &[Spot], step: usize) -> Result<Option<Option<Hit>>, IndexError> {
        for spots in spots.chunks(step) {
            let Some(mut bufs) = self.read(spots, &mut None).await? else { return Ok(None) };
            let mut seen = self.scan_buckets(spots, &mut bufs, Scope::First)?;
            self.verify(&mut seen, Scope::First).await?;
            if let Some(hit) = seen.hits.pop() {
                return Ok(Some(Some(hit)));
            }
            if !self.is_consistent(&seen).await? {
                return Ok(None);
            }
        }
        Ok(Some(None))
    }

    /// Looks up the one entry of the key that may be changed. `None` does not prove that the key is absent.
    pub(super) async fn find_to_change(&mut self, piggyback: &mut PiggybackedWrite) -> Result<Option<Hit>, IndexError> {
        loop {
            let mut spots = self.spots();
            spots.reverse();
            let Some(mut bufs) = self.read(&spots, piggyback).await? else { continue };
            let mut seen = self.scan_buckets(&spots, &mut bufs, Scope::All)?;
            self.verify(&mut seen, Scope::All).await?;
            if !self.is_consistent(&seen).await? {
                continue;
            }
            match seen.hits.as_slice() {
                [] => return Ok(None),
                [hit] if !frozen(hit.head) => return Ok(seen.hits.pop()),
                [hit, ..] if !frozen(hit.head) && planted(Fault::CuckooCopyChanged) => {
                    return Ok(Some(seen.hits.remove(0)));
                }
                hits => {
                    let first = hits.iter().min_by_key(|hit| (hit.spot.place, hit.spot.segment.generation));
                    if let Some((spot, head)) = first.map(|hit| (hit.spot, hit.head)) {
                        cold(self.wait_for_move(spot, frozen(head))).await?;
                    }
                }
            }
        }
    }

    /// Returns whether the buckets were consistent. Otherwise the lookup must READ again; reads the root if a newer
    /// table exists.
    pub(super) async fn is_consistent(&mut self, seen: &Seen) -> Result<bool, IndexError> {
        if seen.stale && !planted(Fault::CuckooUnseen) {
            mark!("cuckoo lookup: a newer table");
            self.count_attempt()?;
            cold(self.table.sync(self.span(), self.pin.epoch())).await?;
            return Ok(false);
        }
        if seen.torn {
            mark!("cuckoo lookup: torn record");
            self.count_attempt()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Waits while the key's entry is being moved.
    async fn wait_for_move(&mut self, spot: Spot, frozen: bool) -> Result<(), IndexError> {
        mark!("cuckoo change: waits for a move");
        if !frozen {
            self.backoff.wait(self.pin.session()).await;
            return Ok(());
        }
        let mover = self.cuckoo.mover(self.table, self.pin);
        mover.await_region(&mut self.backoff, spot.segment, spot.region()).await
    }

    /// READs buckets, in this order; `None` if the table has been replaced, so that the buckets may hold anything.
    pub(super) async fn read(
        &mut self,
        spots: &[Spot],
        piggyback: &mut PiggybackedWrite,
    ) -> Result<Option<Vec<Buf>>, IndexError> {
        let mut batch = self.pin.span().batch();
        let sync = match std::mem::replace(&mut self.counted, true) {
            false => self.table.count_operation(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((ptr, buf)) = piggyback.take() {
            batch.write(ptr, buf);
        }
        let len = self.table.own.bucket_bytes();
        let tickets: SmallVec<[_; 6]> = spots.iter().map(|spot| batch.read(spot.at(), len)).collect();
        let mut done = batch.post().await?;
        if let Some(sync) = sync {
            self.table.finish_sync(&sync, &mut done)?;
            if !self.table.is_checked(self.pin.epoch()) {
                cold(self.table.sync(self.span(), self.pin.epoch())).await?;
            }
            let oldest = spots.iter().map(|spot| spot.segment.generation).min().unwrap_or_default();
            if self.table.geometry().current.generation > oldest {
                return Ok(None);
            }
        }
        Ok(Some(tickets.into_iter().map(|ticket| done.buf(ticket)).collect()))
    }

    /// Evaluates buckets that were READ. The candidates' blocks have not been READ yet.
    pub(super) fn scan_buckets(&self, spots: &[Spot], bufs: &mut [Buf], scope: Scope) -> Result<Seen, IndexError> {
        let mut seen = Seen::default();
        let step = self.table.own.width / 8;
        // For each place, whether all entries of the older table's bucket have been moved.
        let mut closed = [true; WAYS];
        for (spot, buf) in spots.iter().zip(bufs) {
            let left = buf.words().iter().step_by(step).map(|head| Slot::decode(*head));
            let moved = left.filter(|slot| matches!(slot, Slot::Sealed | Slot::Moved)).count();
            match spot.older {
                true => closed[spot.place] = moved == self.table.own.associativity as usize,
                false => seen.stale |= moved > 0,
            }
            // A bucket of the next table is reserved for its mover until all entries have been moved there.
            if scope == Scope::Room && (spot.older || closed[spot.place]) {
                seen.free.extend(free_in(spot, buf, step));
            }
            if scope != Scope::First || seen.hits.is_empty() {
                self.scan_bucket(spot, buf, step, &mut seen)?;
            }
        }
        Ok(seen)
    }

    /// Collects the key's entry in a bucket, and the candidates.
    fn scan_bucket(&self, spot: &Spot, buf: &mut Buf, step: usize, seen: &mut Seen) -> Result<(), IndexError> {
        let mine = signature(self.hash);
        for i in 0..self.table.own.associativity {
            let first = i as usize * step;
            let Some(words) = buf.words().get(first..first + step) else { break };
            let (index, head) = (spot.first + i, words.first().copied().unwrap_or_default());
            let (start, key, value) = match Slot::decode(head) {
                Slot::Tiny { key, value, .. } => (first * 8, key, value),
                Slot::Inline { tag, key, value, signature } => {
                    if signature != mine || key != self.key.len() {
                        continue;
                    }
                    if !whole(tag, key + value, words.get(1..).unwrap_or_default()) && !planted(Fault::CuckooTorn) {
                        seen.torn = true;
                        continue;
                    }
                    let behind = behind(buf, first, step);
                    let start = (first + 1) * 8;
                    if let Some(bytes) = buf.bytes_mut().get_mut(start..start + (step - 1) * 8) {
                        gather(bytes, key + value);
                    }
                    if buf.bytes().get(start..start + key) == Some(self.key) {
                        self.hit(spot, index, head, behind, buf, start + key..start + key + value, seen);
                        return Ok(());
                    }
                    continue;
                }
                Slot::Heap { ptr, units, signature, .. } => {
                    if signature == mine && !self.rejected.contains(&ptr) {
                        let behind = behind(buf, first, step);
                        seen.candidates.push(Candidate { spot: *spot, index, head, ptr, units, behind });
                    }
                    continue;
                }
                Slot::Empty | Slot::Vacant { .. } | Slot::Sealed | Slot::Moved => continue,
                Slot::Dead | Slot::Reserved(_) | Slot::Unknown => {
                    let what = format!("a slot holds {head:#018x}");
                    return Err(PoolError::Corrupt { at: spot.segment.slot(index), what }.into());
                }
            };
            if buf.bytes().get(start..start + key) == Some(self.key) {
                let behind = behind(buf, first, step);
                self.hit(spot, index, head, behind, buf, start + key..start + key + value, seen);
                return Ok(());
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn hit(
        &self,
        spot: &Spot,
        index: u64,
        head: u64,
        behind: InlineWords,
        buf: &mut Buf,
        value: std::ops::Range<usize>,
        seen: &mut Seen,
    ) {
        let taken = std::mem::replace(buf, self.span().endpoint().buf(0));
        let value = Value::fetched(taken, value);
        seen.hits.push(Hit { spot: *spot, index, head, behind, block: None, value });
    }

    /// READs the candidates' blocks in one batch, and compares the keys.
    pub(super) async fn verify(&mut self, seen: &mut Seen, scope: Scope) -> Result<(), IndexError> {
        let candidates = std::mem::take(&mut seen.candidates);
        if candidates.is_empty() || scope == Scope::First && !seen.hits.is_empty() {
            return Ok(());
        }
        let asked = candidates.into_iter().map(|candidate| {
            let (ptr, len) = (candidate.ptr, candidate.len());
            (candidate, ptr, len)
        });
        let mut blocks = CandidateBlocks::read(self.pin.span(), asked).await?;
        while let Some((Candidate { spot, index, head, behind, .. }, ptr, found)) =
            blocks.next(self.hash, self.key).await?
        {
            match found {
                KeyMatch::Other => self.rejected.push(ptr),
                KeyMatch::Own(own) => {
                    let block = Some((ptr, own.len()));
                    seen.hits.push(Hit { spot, index, head, behind, block, value: own.into_value() });
                }
                KeyMatch::Unsound => {
                    let still = |now| matches!(Slot::decode(now), Slot::Heap { ptr: of, .. } if of == ptr);
                    cold(check_slot_changed(self.span(), spot.segment.slot(index), ptr, still)).await?;
                    seen.torn = true;
                }
            }
        }
        Ok(())
    }
}

/// Returns the words behind the head of the slot that begins at word `first`.
fn behind(buf: &Buf, first: usize, step: usize) -> InlineWords {
    buf.words().get(first + 1..first + step).unwrap_or_default().iter().copied().collect()
}

/// Returns the free slots of a bucket.
fn free_in(spot: &Spot, buf: &Buf, step: usize) -> Vec<Free> {
    let slots = (spot.first..).zip(buf.words().chunks_exact(step));
    let free = slots.filter_map(|(index, words)| {
        let (head, behind) = words.split_first()?;
        let free = matches!(Slot::decode(*head), Slot::Empty | Slot::Vacant { .. });
        free.then(|| Free { spot: *spot, index, head: *head, behind: behind.iter().copied().collect() })
    });
    free.collect()
}
