//! Lookup of a key: Algorithm 2, in a table that other clients change and move.
//!
//! A lookup goes from the key's home slot to the first empty slot, and READs several slots at once. A key that it finds
//! was present when its head word was read. A key that it does not find was absent at some moment of the lookup, unless
//! the lookup visited sealed or moved slots: then it continues in the next table (docs/protocols/linear.md has the
//! proof).

use super::{Linear, Table};
use crate::backoff::Backoff;
use crate::block::{CandidateBlocks, KeyMatch, UNIT, check_slot_changed};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::slotted::geometry::{Segment, signature};
use crate::slotted::record::PiggybackedWrite;
use crate::slotted::slot::{EMPTY, SEALED, Slot, gather, unused_tag, whole};
use crate::{IndexError, Value};
use farindex_fabric::{Buf, Class, RemotePtr, Span, cold};
use farindex_pool::{Pin, PoolError};
use smallvec::SmallVec;

/// Number of attempts with a torn record, or with a sealed slot but no next table, after which the memory counts as
/// damaged.
const MAX_ATTEMPTS: u32 = 1000;

/// An entry of the key.
pub(super) struct Hit {
    pub(super) segment: Segment,
    pub(super) index: u64,
    pub(super) head: u64,
    /// None of the words behind its head has it.
    pub(super) tag: u8,
    /// Address and bytes of its block, if the entry is out of band.
    pub(super) block: Option<(RemotePtr, u64)>,
    pub(super) value: Value,
}

/// The empty slot in which an absent key can be inserted.
pub(super) struct Gap {
    pub(super) segment: Segment,
    pub(super) index: u64,
    /// None of the words behind its head has it.
    pub(super) tag: u8,
}

/// Purpose of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Its result.
    Read,
    /// A change of the entry. An entry that such a lookup finds in the next table is not in this one, and cannot be
    /// inserted here.
    Change,
}

/// Result of a lookup.
pub(super) enum LookupResult {
    Hit(Hit),
    Absent(Gap),
    /// The key is absent, and the table has no empty slot.
    Full,
}

/// Result of a lookup in one segment.
enum Walk {
    Hit(Hit),
    /// It reached the first slot that is or was empty, if there is one.
    End {
        gap: Option<Gap>,
        sealed: bool,
        moved: bool,
    },
    /// The first batch brought the root, which names another table.
    Restart,
}

/// Result of the slots of one READ.
pub(super) enum Scan {
    Hit(Hit),
    End {
        at: u64,
        sealed: bool,
    },
    /// The slot behind this many slots was torn.
    Torn(u64),
    /// A block was not sound, because its slot has changed.
    Again,
    /// The lookup continues behind these slots.
    On,
}

/// A slot whose block may be the key's.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) index: u64,
    head: u64,
    pub(super) ptr: RemotePtr,
    pub(super) units: u64,
}

/// Usually one, so no allocation.
pub(super) type Candidates = SmallVec<[Candidate; 2]>;

/// One operation on one key.
pub(super) struct Op<'a> {
    pub(super) linear: &'a Linear,
    pub(super) table: &'a Table,
    pub(super) pin: Pin<'a>,
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    /// Blocks of other keys. They cannot be reused under the pin.
    rejected: SmallVec<[RemotePtr; 4]>,
    pub(super) backoff: Backoff,
    pub(super) counted: bool,
    /// The generation of a next table in which a slot is reserved for the key.
    pub(super) reserved: Option<u64>,
}

impl<'a> Op<'a> {
    pub(super) fn new(linear: &'a Linear, table: &'a Table, pin: Pin<'a>, hash: KeyHash, key: &'a [u8]) -> Self {
        let (rejected, backoff) = (SmallVec::new(), Backoff::default());
        Op { linear, table, pin, key, hash, rejected, backoff, counted: false, reserved: None }
    }

    pub(super) fn span(&self) -> &Span {
        self.pin.span()
    }

    /// Looks up the key. The lookup's first batch carries the block `piggyback`, if there is one.
    pub(super) async fn look(
        &mut self,
        purpose: Purpose,
        piggyback: &mut PiggybackedWrite,
    ) -> Result<LookupResult, IndexError> {
        let mut attempts = 0;
        'table: loop {
            let mut segment = self.table.geometry().current;
            loop {
                let (gap, sealed, moved) = match self.walk(&segment, piggyback).await? {
                    Walk::Restart => continue 'table,
                    Walk::Hit(hit) => return Ok(LookupResult::Hit(hit)),
                    Walk::End { gap, sealed, moved } => (gap, sealed, moved),
                };
                let mut next = self.table.next_of(&segment);
                match gap {
                    Some(gap) if !sealed && !moved => return Ok(LookupResult::Absent(gap)),
                    // The key may have been moved, but could still be inserted here.
                    Some(gap) if !sealed && purpose == Purpose::Change => {
                        mark!("linear lookup: sealed an end");
                        let old = self.span().cas(segment.slot(gap.index), EMPTY, SEALED).await?;
                        if old != EMPTY && old != SEALED {
                            continue;
                        }
                    }
                    // A path without an empty slot does not show whether keys are inserted into a next table by now:
                    // only the root does.
                    None if !moved && next.is_none() => {
                        mark!("linear lookup: no end");
                        let geometry = self.table.sync(self.span(), self.pin.epoch()).await?;
                        if geometry.current.generation > segment.generation {
                            continue 'table;
                        }
                        // None for a table into which entries are still moved.
                        next = self.table.next_of(&segment);
                        if next.is_none() {
                            return Ok(LookupResult::Full);
                        }
                    }
                    _ => {}
                }
                match next {
                    Some(next) => {
                        mark!("linear lookup: on to the next table");
                        segment = next;
                    }
                    None => {
                        mark!("linear lookup: next table unknown");
                        attempts += 1;
                        if attempts > MAX_ATTEMPTS {
                            let what = "slots are sealed or moved, but the table is not being moved".to_owned();
                            return Err(PoolError::Corrupt { at: segment.start, what }.into());
                        }
                        self.table.sync(self.span(), self.pin.epoch()).await?;
                        continue 'table;
                    }
                }
            }
        }
    }

    /// Returns the key's home slot, and the number of slots to READ from there.
    pub(super) fn first_window(&self, segment: &Segment) -> (u64, u64) {
        let home = segment.home(self.hash);
        let cluster = self.table.own.clusters.borrow().next(segment.generation, home);
        let read = self.table.own.sizes.slots(self.table.load(segment), cluster);
        (home, read.min(segment.slots() - home))
    }

    /// Records that the first empty slot from the key's home on is this one.
    pub(super) fn note_end(&self, segment: &Segment, index: u64) {
        let home = segment.home(self.hash);
        if index > home {
            self.table.own.clusters.borrow_mut().saw(segment.generation, home, index);
        }
    }

    async fn walk(&mut self, segment: &Segment, piggyback: &mut PiggybackedWrite) -> Result<Walk, IndexError> {
        let (home, first) = self.first_window(segment);
        let (mut walked, mut moved, mut torn) = (0, false, 0);
        while walked < segment.slots() {
            let at = segment.after(home, walked);
            let left = (segment.slots() - at).min(segment.slots() - walked);
            let next = || self.table.own.sizes.slots(self.table.load(segment), None).min(left);
            let count = if walked == 0 { first } else { next() };
            let Some(mut slots) = self.read_slots(segment, at, count, piggyback).await? else {
                return Ok(Walk::Restart);
            };
            match self.scan(segment, at, count, &mut slots, &mut moved).await? {
                Scan::Hit(hit) => return Ok(Walk::Hit(hit)),
                Scan::End { at: index, sealed } => {
                    self.note_end(segment, index);
                    let tag = tag_behind(segment, &slots, index - at);
                    return Ok(Walk::End { gap: Some(Gap { segment: *segment, index, tag }), sealed, moved });
                }
                Scan::Torn(whole) => {
                    mark!("linear lookup: torn record");
                    torn += 1;
                    if torn > MAX_ATTEMPTS {
                        let what = "a record's words do not belong together".to_owned();
                        return Err(PoolError::Corrupt { at: segment.slot(at + whole), what }.into());
                    }
                    walked += whole;
                }
                Scan::Again => {}
                Scan::On => walked += count,
            }
        }
        Ok(Walk::End { gap: None, sealed: false, moved })
    }

    /// READs slots; `None` if the table has been replaced, so that the slots may hold anything.
    async fn read_slots(
        &mut self,
        segment: &Segment,
        at: u64,
        count: u64,
        piggyback: &mut PiggybackedWrite,
    ) -> Result<Option<Buf>, IndexError> {
        let (ptr, len) = (segment.slot(at), count as usize * segment.width);
        if (self.counted || !self.table.is_sync_due(self.pin.epoch()))
            && let Some(slots) = self.span().read_behind_now(Class::Index, piggyback, ptr, len)
        {
            if !std::mem::replace(&mut self.counted, true) {
                self.table.count_alone();
            }
            return Ok(Some(slots));
        }
        let mut batch = self.pin.span().batch();
        let sync = match std::mem::replace(&mut self.counted, true) {
            false => self.table.count_operation(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((block, buf)) = piggyback.take() {
            batch.write(block, buf);
        }
        let ticket = batch.read(ptr, len);
        let mut done = batch.post().await?;
        if let Some(sync) = sync {
            self.table.finish_sync(&sync, &mut done)?;
            if !self.table.is_checked(self.pin.epoch()) {
                self.table.sync(self.span(), self.pin.epoch()).await?;
            }
            if self.table.geometry().current.generation > segment.generation {
                return Ok(None);
            }
        }
        Ok(Some(done.buf(ticket)))
    }

    async fn scan(
        &mut self,
        segment: &Segment,
        at: u64,
        count: u64,
        slots: &mut Buf,
        moved: &mut bool,
    ) -> Result<Scan, IndexError> {
        let (result, candidates) = self.scan_slots(segment, at, count, slots, moved)?;
        if candidates.is_empty() || matches!(result, Scan::Hit(_)) {
            return Ok(result);
        }
        Ok(match self.verify(segment, at, candidates, slots).await? {
            Scan::On => result,
            found => found,
        })
    }

    /// Evaluates slots that were READ: the result, and the candidates in front of it.
    pub(super) fn scan_slots(
        &self,
        segment: &Segment,
        at: u64,
        count: u64,
        slots: &mut Buf,
        moved: &mut bool,
    ) -> Result<(Scan, Candidates), IndexError> {
        let mine = signature(self.hash);
        let step = segment.width / 8;
        let mut candidates = Candidates::new();
        let mut result = Scan::On;
        for i in 0..count {
            let first = i as usize * step;
            let Some(words) = slots.words().get(first..first + step) else { break };
            let head = words.first().copied().unwrap_or_default();
            match Slot::decode(head) {
                Slot::Empty => {
                    result = Scan::End { at: at + i, sealed: false };
                    break;
                }
                Slot::Sealed => {
                    result = Scan::End { at: at + i, sealed: true };
                    break;
                }
                Slot::Moved => *moved = true,
                Slot::Dead | Slot::Reserved(_) => {}
                Slot::Tiny { key, value, .. } => {
                    let start = first * 8;
                    let range = start + key..start + key + value;
                    if slots.bytes().get(start..range.start) == Some(self.key) {
                        let tag = tag_behind(segment, slots, i);
                        result = Scan::Hit(self.hit(segment, (at + i, head, tag), slots, range));
                        break;
                    }
                }
                Slot::Inline { tag, key, value, signature } => {
                    if signature != mine || key != self.key.len() {
                        continue;
                    }
                    let words = words.get(1..).unwrap_or_default();
                    if !whole(tag, key + value, words) && !planted(Fault::LinearTorn) {
                        result = Scan::Torn(i);
                        break;
                    }
                    let tag = tag_behind(segment, slots, i);
                    let start = (first + 1) * 8;
                    if let Some(bytes) = slots.bytes_mut().get_mut(start..start + (step - 1) * 8) {
                        gather(bytes, key + value);
                    }
                    if slots.bytes().get(start..start + key) == Some(self.key) {
                        let range = start + key..start + key + value;
                        result = Scan::Hit(self.hit(segment, (at + i, head, tag), slots, range));
                        break;
                    }
                }
                Slot::Heap { ptr, units, signature, .. } => {
                    if signature == mine && !self.rejected.contains(&ptr) {
                        candidates.push(Candidate { index: at + i, head, ptr, units });
                    }
                }
                Slot::Vacant { .. } | Slot::Unknown => {
                    let what = format!("a slot holds {head:#018x}");
                    return Err(PoolError::Corrupt { at: segment.slot(at + i), what }.into());
                }
            }
        }
        Ok((result, candidates))
    }

    fn hit(
        &self,
        segment: &Segment,
        (index, head, tag): (u64, u64, u8),
        slots: &mut Buf,
        value: std::ops::Range<usize>,
    ) -> Hit {
        let value = Value::fetched(std::mem::take(slots), value);
        Hit { segment: *segment, index, head, tag, block: None, value }
    }

    /// READs the candidates' blocks in one batch, and compares the keys.
    async fn verify(
        &mut self,
        segment: &Segment,
        first: u64,
        candidates: Candidates,
        slots: &Buf,
    ) -> Result<Scan, IndexError> {
        let asked = candidates.into_iter().map(|it @ Candidate { ptr, units, .. }| (it, ptr, units as usize * UNIT));
        let mut blocks = CandidateBlocks::read(self.pin.span(), asked).await?;
        while let Some((Candidate { index, head, .. }, ptr, found)) = blocks.next(self.hash, self.key).await? {
            match found {
                KeyMatch::Other => self.rejected.push(ptr),
                KeyMatch::Own(own) => {
                    let tag = tag_behind(segment, slots, index - first);
                    let block = Some((ptr, own.len()));
                    let value = own.into_value();
                    return Ok(Scan::Hit(Hit { segment: *segment, index, head, tag, block, value }));
                }
                KeyMatch::Unsound => {
                    let still = |now| matches!(Slot::decode(now), Slot::Heap { ptr: of, .. } if of == ptr);
                    cold(check_slot_changed(self.span(), segment.slot(index), ptr, still)).await?;
                    return Ok(Scan::Again);
                }
            }
        }
        Ok(Scan::On)
    }
}

/// Returns a tag that none of the words behind the head of the `i`-th slot has, as they were read.
fn tag_behind(segment: &Segment, slots: &Buf, i: u64) -> u8 {
    let step = segment.width / 8;
    let first = i as usize * step;
    unused_tag(slots.words().get(first + 1..first + step).unwrap_or_default())
}
