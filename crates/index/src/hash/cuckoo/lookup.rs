//! Finding a key: three buckets, in an order that its entry cannot evade.
//!
//! An entry moves forward only, in the order of [`spots`], and is put where it goes before it is taken from where it was. So who
//! READs a key's spots in this order and does not find it has seen a moment at which it was absent. Who is going to change it
//! READs them in the opposite order: what is found once then, and not frozen, is the key's only entry
//! (docs/protocols/cuckoo.md).

use super::places::{Spot, Spots, WAYS, spots};
use super::{Cuckoo, Lookup, Table};
use crate::IndexError;
use crate::Value;
use crate::backoff::Backoff;
use crate::block::{self, Decoded, Header, UNIT};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::slotted::geometry::signature;
use crate::slotted::record::{InlineWords, PiggybackedWrite};
use crate::slotted::slot::{Slot, frozen, gather, whole};
use farindex_fabric::{Buf, RemotePtr, Span};
use farindex_pool::{Pin, PoolError};
use smallvec::SmallVec;

/// How often in a row a record may come torn, or a sealed slot be met without a next table, before memory is called damaged.
const PATIENCE: u32 = 1000;

/// A key that was found.
pub(super) struct Hit {
    pub(super) spot: Spot,
    pub(super) index: u64,
    pub(super) head: u64,
    pub(super) behind: InlineWords,
    /// Its block and the block's length, if it lies out of band.
    pub(super) block: Option<(RemotePtr, u64)>,
    pub(super) value: Value,
}

/// A slot that another entry may go into.
pub(super) struct Free {
    pub(super) spot: Spot,
    pub(super) index: u64,
    pub(super) head: u64,
    pub(super) behind: InlineWords,
}

/// A head that may be the key's.
pub(super) struct Candidate {
    spot: Spot,
    index: u64,
    head: u64,
    pub(super) ptr: RemotePtr,
    pub(super) units: u64,
    behind: InlineWords,
}

impl Candidate {
    /// Bytes to READ of its block.
    pub(super) fn len(&self) -> usize {
        self.units as usize * UNIT
    }
}

/// What buckets that were READ hold, as far as the key goes.
#[derive(Default)]
pub(super) struct Seen {
    /// Entries of the key, in the order of the READs.
    pub(super) hits: SmallVec<[Hit; 1]>,
    pub(super) candidates: SmallVec<[Candidate; 2]>,
    /// Some of it was read before it was written, or is another's by now.
    pub(super) torn: bool,
    /// A slot says that there is a newer table than this worker knows.
    pub(super) stale: bool,
    /// Slots for another entry, where nobody but a mover has to wait.
    pub(super) free: Vec<Free>,
}

/// What to look for in buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The key, once.
    First,
    /// Every entry of the key.
    All,
    /// The same, and slots that are free.
    Room,
}

/// One operation on one key.
pub(super) struct Op<'a> {
    pub(super) cuckoo: &'a Cuckoo,
    pub(super) table: &'a Table,
    pub(super) pin: &'a Pin<'a>,
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    /// Blocks of other keys. Under the pin they stay what they are.
    rejected: SmallVec<[RemotePtr; 4]>,
    pub(super) backoff: Backoff,
    pub(super) counted: bool,
    tries: u32,
}

impl<'a> Op<'a> {
    pub(super) fn new(cuckoo: &'a Cuckoo, table: &'a Table, pin: &'a Pin<'a>, hash: KeyHash, key: &'a [u8]) -> Self {
        let (rejected, backoff) = (SmallVec::new(), Backoff::default());
        Op { cuckoo, table, pin, key, hash, rejected, backoff, counted: false, tries: 0 }
    }

    pub(super) fn span(&self) -> &'a Span {
        self.pin.span()
    }

    pub(super) fn spots(&self) -> Spots {
        spots(self.table, self.hash)
    }

    /// Once more.
    pub(super) fn again(&mut self) -> Result<(), IndexError> {
        self.tries += 1;
        if self.tries > PATIENCE {
            let what = "a key's places do not come to make sense".to_owned();
            return Err(PoolError::Corrupt { at: self.table.root(), what }.into());
        }
        Ok(())
    }

    /// Spots that one batch READs, and then the next one.
    pub(super) fn step(&self, spots: &Spots) -> usize {
        match self.cuckoo.config.lookup {
            Lookup::Parallel => spots.len(),
            Lookup::Sequential => spots.len() / WAYS,
        }
    }

    /// Finds the key, or a moment at which it was absent.
    pub(super) async fn find(&mut self) -> Result<Option<Hit>, IndexError> {
        loop {
            let spots = self.spots();
            let step = self.step(&spots);
            if let Some(found) = self.find_in(&spots, step).await? {
                return Ok(found);
            }
        }
    }

    /// The same of spots that lie in their order; `None` if other spots have to be looked at.
    pub(super) async fn find_in(&mut self, spots: &[Spot], step: usize) -> Result<Option<Option<Hit>>, IndexError> {
        for spots in spots.chunks(step) {
            let Some(mut bufs) = self.read(spots, &mut None).await? else { return Ok(None) };
            let mut seen = self.sift(spots, &mut bufs, Scope::First)?;
            self.verify(&mut seen, Scope::First).await?;
            if let Some(hit) = seen.hits.pop() {
                return Ok(Some(Some(hit)));
            }
            if !self.makes_sense(&seen).await? {
                return Ok(None);
            }
        }
        Ok(Some(None))
    }

    /// Finds the one entry of the key that may be changed. None is no proof that it is absent.
    pub(super) async fn find_to_change(&mut self, along: &mut PiggybackedWrite) -> Result<Option<Hit>, IndexError> {
        loop {
            let mut spots = self.spots();
            spots.reverse();
            let Some(mut bufs) = self.read(&spots, along).await? else { continue };
            let mut seen = self.sift(&spots, &mut bufs, Scope::All)?;
            self.verify(&mut seen, Scope::All).await?;
            if !self.makes_sense(&seen).await? {
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
                        self.let_move(spot, frozen(head)).await?;
                    }
                }
            }
        }
    }

    /// Does what was seen need no second look? Learns of the newer table if there is one.
    pub(super) async fn makes_sense(&mut self, seen: &Seen) -> Result<bool, IndexError> {
        if seen.stale && !planted(Fault::CuckooUnseen) {
            mark!("cuckoo lookup: a newer table");
            self.again()?;
            Box::pin(self.table.sync(self.span(), self.pin.epoch())).await?;
            return Ok(false);
        }
        if seen.torn {
            mark!("cuckoo lookup: torn record");
            self.again()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// The key's entry is on its way: waits.
    async fn let_move(&mut self, spot: Spot, frozen: bool) -> Result<(), IndexError> {
        mark!("cuckoo change: waits for a move");
        if !frozen {
            self.backoff.wait(self.pin.session()).await;
            return Ok(());
        }
        let mover = self.cuckoo.mover(self.table, self.pin);
        mover.await_region(&mut self.backoff, spot.segment, spot.region()).await
    }

    /// READs buckets, in this order; `None` if the table has moved on, and they may be anything.
    pub(super) async fn read(
        &mut self,
        spots: &[Spot],
        along: &mut PiggybackedWrite,
    ) -> Result<Option<Vec<Buf>>, IndexError> {
        let mut batch = self.pin.span().batch();
        let sync = match std::mem::replace(&mut self.counted, true) {
            false => self.table.count_operation(&mut batch, self.pin.epoch()),
            true => None,
        };
        if let Some((ptr, buf)) = along.take() {
            batch.write(ptr, buf);
        }
        let len = self.table.own.bucket_bytes();
        let tickets: SmallVec<[_; 6]> = spots.iter().map(|spot| batch.read(spot.at(), len)).collect();
        let mut done = batch.post().await?;
        if let Some(sync) = sync {
            self.table.finish_sync(&sync, &mut done)?;
            if !self.table.is_checked(self.pin.epoch()) {
                Box::pin(self.table.sync(self.span(), self.pin.epoch())).await?;
            }
            let oldest = spots.iter().map(|spot| spot.segment.generation).min().unwrap_or_default();
            if self.table.geometry().current.generation > oldest {
                return Ok(None);
            }
        }
        Ok(Some(tickets.into_iter().map(|ticket| done.buf(ticket)).collect()))
    }

    /// What the buckets hold; blocks have yet to be read.
    pub(super) fn sift(&self, spots: &[Spot], bufs: &mut [Buf], scope: Scope) -> Result<Seen, IndexError> {
        let mut seen = Seen::default();
        let step = self.table.own.width / 8;
        // By place: has everything been moved out of the older table's bucket?
        let mut closed = [true; WAYS];
        for (spot, buf) in spots.iter().zip(bufs) {
            let left = buf.words().iter().step_by(step).map(|head| Slot::decode(*head));
            let gone = left.filter(|slot| matches!(slot, Slot::Sealed | Slot::Moved)).count();
            match spot.older {
                true => closed[spot.place] = gone == self.table.own.associativity as usize,
                false => seen.stale |= gone > 0,
            }
            // A bucket of the next table is its mover's until everything has been moved there.
            if scope == Scope::Room && (spot.older || closed[spot.place]) {
                seen.free.extend(free_in(spot, buf, step));
            }
            if scope != Scope::First || seen.hits.is_empty() {
                self.sift_bucket(spot, buf, step, &mut seen)?;
            }
        }
        Ok(seen)
    }

    /// The key's entry in a bucket, and those that may be the key's.
    fn sift_bucket(&self, spot: &Spot, buf: &mut Buf, step: usize, seen: &mut Seen) -> Result<(), IndexError> {
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

    /// Reads the candidates' blocks, all in one batch, and compares the keys.
    pub(super) async fn verify(&mut self, seen: &mut Seen, scope: Scope) -> Result<(), IndexError> {
        let candidates = std::mem::take(&mut seen.candidates);
        if candidates.is_empty() || scope == Scope::First && !seen.hits.is_empty() {
            return Ok(());
        }
        let span = self.pin.span();
        let mut batch = span.block_batch();
        let asked: SmallVec<[_; 2]> = candidates
            .into_iter()
            .map(|candidate| {
                let ticket = batch.read(candidate.ptr, candidate.len());
                (candidate, ticket)
            })
            .collect();
        let mut done = batch.post().await?;
        for (Candidate { spot, index, head, ptr, behind, .. }, ticket) in asked {
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
                Box::pin(self.unsound(spot.segment.slot(index), ptr)).await?;
                seen.torn = true;
                continue;
            };
            if buf.bytes().get(key) != Some(self.key) {
                self.rejected.push(ptr);
                continue;
            }
            let block = Some((ptr, header.block_len() as u64));
            seen.hits.push(Hit { spot, index, head, behind, block, value: Value::fetched(buf, value) });
        }
        Ok(())
    }

    /// A block that does not decode. Under the pin it cannot have been reused, so if the slot still points to it, it is
    /// damaged.
    async fn unsound(&mut self, at: RemotePtr, ptr: RemotePtr) -> Result<(), IndexError> {
        let now = self.span().read(at, 8).await?;
        let now = now.words().first().copied().unwrap_or_default();
        if matches!(Slot::decode(now), Slot::Heap { ptr: still, .. } if still == ptr) {
            let what = "the key-value block has a wrong checksum".to_owned();
            return Err(PoolError::Corrupt { at: ptr, what }.into());
        }
        Ok(())
    }
}

/// The words behind the head of the slot that begins at this word.
fn behind(buf: &Buf, first: usize, step: usize) -> InlineWords {
    buf.words().get(first + 1..first + step).unwrap_or_default().iter().copied().collect()
}

/// The free slots of a bucket.
fn free_in(spot: &Spot, buf: &Buf, step: usize) -> Vec<Free> {
    let slots = (spot.first..).zip(buf.words().chunks_exact(step));
    let free = slots.filter_map(|(index, words)| {
        let (head, behind) = words.split_first()?;
        let free = matches!(Slot::decode(*head), Slot::Empty | Slot::Vacant { .. });
        free.then(|| Free { spot: *spot, index, head: *head, behind: behind.iter().copied().collect() })
    });
    free.collect()
}
