//! Finding a key: Algorithm 2, in a table that others change and move.
//!
//! A lookup walks from the key's home to the first slot that is empty, and READs several slots at once. A key that is found
//! was there when its head word was read. One that is not found was absent at some moment of the lookup, unless the walk met
//! slots that were sealed or moved: then it goes on in the next table (docs/protocols/linear.md has the argument).

use super::{Linear, Table};
use crate::backoff::Backoff;
use crate::block::{self, Decoded, Header, UNIT};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::slotted::geometry::{Segment, signature};
use crate::slotted::record::{InlineWords, PiggybackedWrite};
use crate::slotted::slot::{EMPTY, SEALED, Slot, gather, whole};
use crate::{IndexError, Value};
use farindex_fabric::{Buf, RemotePtr, Span};
use farindex_pool::{Pin, PoolError};
use smallvec::SmallVec;

/// How often in a row a record may come torn, or a sealed slot be met without a next table, before memory is called damaged.
const PATIENCE: u32 = 1000;

/// A key that was found.
pub(super) struct Hit {
    pub(super) segment: Segment,
    pub(super) index: u64,
    pub(super) head: u64,
    pub(super) behind: InlineWords,
    /// Its block and the block's length, if it lies out of band.
    pub(super) block: Option<(RemotePtr, u64)>,
    pub(super) value: Value,
}

/// The empty slot where an absent key would go.
pub(super) struct Gap {
    pub(super) segment: Segment,
    pub(super) index: u64,
    pub(super) behind: InlineWords,
}

/// What a lookup is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Its answer.
    Read,
    /// A change of what it finds: then what it finds in the next table is not in this one as well, nor can come into it.
    Change,
}

/// What a lookup found.
pub(super) enum LookupResult {
    Hit(Hit),
    Absent(Gap),
    /// The key is absent, and no slot is empty.
    Full,
}

/// What a walk through one segment found.
enum Walk {
    Hit(Hit),
    /// It came to the first slot that is or was empty, if there is any.
    End {
        gap: Option<Gap>,
        sealed: bool,
        moved: bool,
    },
    /// The root came with the first batch, and shows another table.
    Restart,
}

/// How far the slots of one READ led.
pub(super) enum Scan {
    Hit(Hit),
    End {
        at: u64,
        sealed: bool,
    },
    /// So many slots are done with; the next one was torn.
    Torn(u64),
    /// A block was not what it should be; its slot has changed.
    Again,
    On,
}

/// A head that may be the key's.
pub(super) struct Candidate {
    pub(super) index: u64,
    head: u64,
    pub(super) ptr: RemotePtr,
    pub(super) units: u64,
}

/// Usually one, and no reason to allocate.
pub(super) type Candidates = SmallVec<[Candidate; 2]>;

/// One operation on one key.
pub(super) struct Op<'a> {
    pub(super) linear: &'a Linear,
    pub(super) table: &'a Table,
    pub(super) pin: Pin<'a>,
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    /// Blocks of other keys. Under the pin they stay what they are.
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

    /// Looks for the key. `along` is a block that is written in the lookup's first batch.
    pub(super) async fn look(
        &mut self,
        purpose: Purpose,
        along: &mut PiggybackedWrite,
    ) -> Result<LookupResult, IndexError> {
        let mut astray = 0;
        'table: loop {
            let mut segment = self.table.geometry().current;
            loop {
                let (gap, sealed, moved) = match self.walk(&segment, along).await? {
                    Walk::Restart => continue 'table,
                    Walk::Hit(hit) => return Ok(LookupResult::Hit(hit)),
                    Walk::End { gap, sealed, moved } => (gap, sealed, moved),
                };
                let mut next = self.table.next_of(&segment);
                match gap {
                    Some(gap) if !sealed && !moved => return Ok(LookupResult::Absent(gap)),
                    // The key may have been moved, but could still be put in here.
                    Some(gap) if !sealed && purpose == Purpose::Change => {
                        mark!("linear lookup: sealed an end");
                        let old = self.span().cas(segment.slot(gap.index), EMPTY, SEALED).await?;
                        if old != EMPTY && old != SEALED {
                            continue;
                        }
                    }
                    // Nothing of a path without an end tells that keys come into a next table by now: only the root does.
                    None if !moved && next.is_none() => {
                        mark!("linear lookup: no end");
                        let geometry = self.table.sync(self.span(), self.pin.epoch()).await?;
                        if geometry.current.generation > segment.generation {
                            continue 'table;
                        }
                        // None for a table that is itself still being moved into.
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
                        mark!("linear lookup: behind");
                        astray += 1;
                        if astray > PATIENCE {
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

    /// The key's home, and how many slots to READ from there.
    pub(super) fn first_window(&self, segment: &Segment) -> (u64, u64) {
        let home = segment.home(self.hash);
        let cluster = self.table.own.clusters.borrow().next(segment.generation, home);
        let read = self.table.own.sizes.slots(self.table.load(segment), cluster);
        (home, read.min(segment.slots() - home))
    }

    /// The first empty slot from the key's home on is this one.
    pub(super) fn saw_end(&self, segment: &Segment, index: u64) {
        let home = segment.home(self.hash);
        if index > home {
            self.table.own.clusters.borrow_mut().saw(segment.generation, home, index);
        }
    }

    async fn walk(&mut self, segment: &Segment, along: &mut PiggybackedWrite) -> Result<Walk, IndexError> {
        let (home, first) = self.first_window(segment);
        let (mut walked, mut moved, mut torn) = (0, false, 0);
        while walked < segment.slots() {
            let at = segment.after(home, walked);
            let left = (segment.slots() - at).min(segment.slots() - walked);
            let next = || self.table.own.sizes.slots(self.table.load(segment), None).min(left);
            let count = if walked == 0 { first } else { next() };
            let Some(mut slots) = self.read_slots(segment, at, count, along).await? else { return Ok(Walk::Restart) };
            match self.scan(segment, at, count, &mut slots, &mut moved).await? {
                Scan::Hit(hit) => return Ok(Walk::Hit(hit)),
                Scan::End { at: index, sealed } => {
                    self.saw_end(segment, index);
                    let behind = behind(segment, &slots, index - at);
                    return Ok(Walk::End { gap: Some(Gap { segment: *segment, index, behind }), sealed, moved });
                }
                Scan::Torn(whole) => {
                    mark!("linear lookup: torn record");
                    torn += 1;
                    if torn > PATIENCE {
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

    /// READs slots; `None` if the table has moved on, and they may be anything.
    async fn read_slots(
        &mut self,
        segment: &Segment,
        at: u64,
        count: u64,
        along: &mut PiggybackedWrite,
    ) -> Result<Option<Buf>, IndexError> {
        let mut batch = self.pin.span().batch();
        let sync = match std::mem::replace(&mut self.counted, true) {
            false => self.table.count_operation(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((ptr, buf)) = along.take() {
            batch.write(ptr, buf);
        }
        let ticket = batch.read(segment.slot(at), count as usize * segment.width);
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
        let (led, candidates) = self.sift(segment, at, count, slots, moved)?;
        if candidates.is_empty() || matches!(led, Scan::Hit(_)) {
            return Ok(led);
        }
        Ok(match self.verify(segment, at, candidates, slots).await? {
            Scan::On => led,
            found => found,
        })
    }

    /// How far slots that were READ lead, and which of those before may be the key's.
    pub(super) fn sift(
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
        let mut led = Scan::On;
        for i in 0..count {
            let first = i as usize * step;
            let Some(words) = slots.words().get(first..first + step) else { break };
            let head = words.first().copied().unwrap_or_default();
            match Slot::decode(head) {
                Slot::Empty => {
                    led = Scan::End { at: at + i, sealed: false };
                    break;
                }
                Slot::Sealed => {
                    led = Scan::End { at: at + i, sealed: true };
                    break;
                }
                Slot::Moved => *moved = true,
                Slot::Dead | Slot::Reserved(_) => {}
                Slot::Tiny { key, value, .. } => {
                    let start = first * 8;
                    let range = start + key..start + key + value;
                    if slots.bytes().get(start..range.start) == Some(self.key) {
                        led = Scan::Hit(self.hit(segment, at, i, head, slots, range));
                        break;
                    }
                }
                Slot::Inline { tag, key, value, signature } => {
                    if signature != mine || key != self.key.len() {
                        continue;
                    }
                    let words = words.get(1..).unwrap_or_default();
                    if !whole(tag, key + value, words) && !planted(Fault::LinearTorn) {
                        led = Scan::Torn(i);
                        break;
                    }
                    let behind = behind(segment, slots, i);
                    let start = (first + 1) * 8;
                    if let Some(bytes) = slots.bytes_mut().get_mut(start..start + (step - 1) * 8) {
                        gather(bytes, key + value);
                    }
                    if slots.bytes().get(start..start + key) == Some(self.key) {
                        let hit = self.hit(segment, at, i, head, slots, start + key..start + key + value);
                        led = Scan::Hit(Hit { behind, ..hit });
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
        Ok((led, candidates))
    }

    fn hit(
        &self,
        segment: &Segment,
        at: u64,
        i: u64,
        head: u64,
        slots: &mut Buf,
        value: std::ops::Range<usize>,
    ) -> Hit {
        let behind = behind(segment, slots, i);
        let taken = std::mem::replace(slots, self.span().endpoint().buf(0));
        Hit { segment: *segment, index: at + i, head, behind, block: None, value: Value::fetched(taken, value) }
    }

    /// Reads the candidates' blocks, all in one batch, and compares the keys.
    async fn verify(
        &mut self,
        segment: &Segment,
        first: u64,
        candidates: Candidates,
        slots: &Buf,
    ) -> Result<Scan, IndexError> {
        let span = self.pin.span();
        let mut batch = span.block_batch();
        let asked: SmallVec<[_; 2]> = candidates
            .into_iter()
            .map(|candidate| {
                let ticket = batch.read(candidate.ptr, candidate.units as usize * UNIT);
                (candidate, ticket)
            })
            .collect();
        let mut done = batch.post().await?;
        for (Candidate { index, head, ptr, .. }, ticket) in asked {
            let buf = done.buf(ticket);
            let (buf, decoded) = match block::decode(&buf) {
                Decoded::Longer(len) => {
                    if Header::decode(buf.words()).is_none_or(|header| header.hash != self.hash) {
                        self.rejected.push(ptr);
                        continue;
                    }
                    let whole = Box::pin(block::read_tail(span, ptr, &buf, len)).await?;
                    let decoded = block::decode(&whole);
                    (whole, decoded)
                }
                decoded => (buf, decoded),
            };
            let Decoded::Sound(header, key, value) = decoded else {
                return Box::pin(self.unsound(segment.slot(index), ptr)).await;
            };
            if buf.bytes().get(key) != Some(self.key) {
                self.rejected.push(ptr);
                continue;
            }
            let behind = behind(segment, slots, index - first);
            let block = Some((ptr, header.block_len() as u64));
            return Ok(Scan::Hit(Hit {
                segment: *segment,
                index,
                head,
                behind,
                block,
                value: Value::fetched(buf, value),
            }));
        }
        Ok(Scan::On)
    }

    /// A block that does not decode. Under the pin it cannot have been reused, so if the slot still points to it, it is
    /// damaged.
    async fn unsound(&mut self, at: RemotePtr, ptr: RemotePtr) -> Result<Scan, IndexError> {
        let now = self.span().read(at, 8).await?;
        let now = now.words().first().copied().unwrap_or_default();
        if matches!(Slot::decode(now), Slot::Heap { ptr: still, .. } if still == ptr) {
            let what = "the key-value block has a wrong checksum".to_owned();
            return Err(PoolError::Corrupt { at: ptr, what }.into());
        }
        Ok(Scan::Again)
    }
}

/// The words behind the head of the `i`-th slot that was read.
fn behind(segment: &Segment, slots: &Buf, i: u64) -> InlineWords {
    let step = segment.width / 8;
    let first = i as usize * step;
    slots.words().get(first + 1..first + step).unwrap_or_default().iter().copied().collect()
}
