//! Moving a region of a table to the next table: the part that all kinds have in common.
//!
//! Invariants: only the holder of the region's lock changes frozen slots of the region, and the holder has an intent
//! that names the lock. Entries are copied from frozen slots. So a client that takes over from a crashed one copies the
//! same entries.
//!
//! 1. *Freeze*, by CAS: free slots are sealed, entries are frozen. READ again, until nothing changes any more.
//! 2. *Copy*: as the kind does it.
//! 3. *Release*: frozen entries are marked as moved; the region is marked as done.

use super::geometry::{DONE, LOCKED, REGION, Segment};
use super::intents;
use super::slot::{self, FROZEN, MOVED, SEALED, Slot, Stamp, frozen, gather};
use crate::IndexError;
use crate::block::{self, Decoded, HEADER_LEN, Header, UNIT};
use crate::faults::{Fault, planted};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::recovery::{HeldLock, Refused, acquire, claim_and_recover, release_on_error};
use farindex_fabric::{Batch, Buf, RemotePtr, Span};
use farindex_pool::{Intent, IntentCell, Pin, PoolError};
use std::future::Future;

/// The state of a region after an attempt to move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    /// It has been moved.
    Done,
    /// Another client is moving it.
    Busy,
}

/// An entry that is being moved.
pub(crate) struct Entry {
    /// Its slot.
    pub(crate) source: u64,
    pub(crate) hash: KeyHash,
    pub(crate) form: Form,
    /// The block that is retired when the entry has been moved.
    pub(crate) leaves: Option<(RemotePtr, u64)>,
}

/// What is copied of an entry.
pub(crate) enum Form {
    /// The same key and value in the head, or the same block.
    Head(u64),
    /// A record behind the head.
    Inline { key: Vec<u8>, value: Vec<u8> },
}

pub(crate) fn corrupt(at: RemotePtr, what: &str) -> IndexError {
    PoolError::Corrupt { at, what: what.to_owned() }.into()
}

/// Moves regions of a table, under a pin.
pub(crate) trait RegionMigrator {
    /// Returns the pin.
    fn pin(&self) -> &Pin<'_>;
    /// Returns the uid of the index, which goes into intents.
    fn index(&self) -> u64;
    /// Moves a region whose lock is held. `seen` is what was read of it.
    fn move_under_lock(
        &self,
        from: Segment,
        to: Segment,
        region: u64,
        cell: &IntentCell<'_>,
        seen: Buf,
    ) -> impl Future<Output = Result<(), IndexError>>;

    /// Is this region's lock held?
    async fn is_held(&self, segment: Segment, region: u64) -> Result<bool, IndexError> {
        let word = self.pin().span().read(segment.lock(region).at, 8).await?;
        Ok(word.words().first() == Some(&LOCKED))
    }

    /// Moves a region, unless it has been moved or another client is moving it.
    async fn move_region(&self, from: Segment, to: Segment, region: u64) -> Result<Region, IndexError> {
        let (lock, span) = (from.lock(region), self.pin().span());
        let cell = self.pin().session().intent_cell(lock.at.node()).await?;
        let what = [intents::MOVE, region, from.generation, 0];
        let intent = Intent { index: self.index(), lock, what };
        let read = |batch: &mut Batch<'_>| batch.read(from.slot(region * REGION), REGION as usize * from.width);
        match acquire(span, &cell, &intent, (0, LOCKED), read).await? {
            Ok((mut done, read)) => {
                let seen = done.buf(read);
                drop(done);
                self.move_locked(from, to, region, &cell, seen).await.map(|()| Region::Done)
            }
            Err(Refused { word: DONE, .. }) => Ok(Region::Done),
            Err(_) => Ok(Region::Busy),
        }
    }

    /// Claims a region's lock if its holder has crashed, and moves the region. Returns the lock if its holder may be
    /// alive.
    async fn try_recover_lock(&self, from: Segment, to: Segment, region: u64) -> Result<Option<HeldLock>, IndexError> {
        let what = [intents::RECOVER, region, from.generation, 0];
        let recover = async |_, cell: &IntentCell<'_>| {
            mark!("table recovery: region claimed");
            let slots = from.slot(region * REGION);
            let seen = self.pin().span().read(slots, REGION as usize * from.width).await?;
            self.move_locked(from, to, region, cell, seen).await
        };
        claim_and_recover(self.pin(), self.index(), from.lock(region), what, recover).await
    }

    /// Moves a region whose lock is held. An error does not leave the lock held. Only after a failed verb is the state
    /// unknown (N7).
    async fn move_locked(
        &self,
        from: Segment,
        to: Segment,
        region: u64,
        cell: &IntentCell<'_>,
        seen: Buf,
    ) -> Result<(), IndexError> {
        let done = self.move_under_lock(from, to, region, cell, seen).await;
        release_on_error(done, async || release(self.pin().span(), &from, region, cell).await).await
    }
}

/// Releases the lock of a region that has not been moved.
pub(crate) async fn release(
    span: &Span,
    segment: &Segment,
    region: u64,
    cell: &IntentCell<'_>,
) -> Result<(), IndexError> {
    let mut batch = span.batch();
    batch.cas(segment.lock(region).at, LOCKED, 0);
    cell.clear(&mut batch);
    batch.post().await?;
    cell.cleared();
    Ok(())
}

/// Marks entries as moved, and their region as done; retires the blocks that they no longer use.
pub(crate) async fn finish(
    pin: &Pin<'_>,
    from: &Segment,
    region: u64,
    cell: &IntentCell<'_>,
    entries: &[Entry],
) -> Result<(), IndexError> {
    let mut batch = pin.span().batch();
    for entry in entries {
        batch.write_words(from.slot(entry.source), &[MOVED]);
    }
    batch.cas(from.lock(region).at, LOCKED, DONE);
    cell.clear(&mut batch);
    batch.post().await?;
    cell.cleared();
    for (ptr, len) in entries.iter().filter_map(|entry| entry.leaves) {
        pin.retire(ptr, len);
    }
    Ok(())
}

/// Freezes every slot of the region; returns the words of the frozen slots.
pub(crate) async fn freeze(span: &Span, from: &Segment, region: u64, mut seen: Buf) -> Result<Buf, IndexError> {
    let first = region * REGION;
    loop {
        let mut batch = span.batch();
        for (index, slot) in (first..).zip(seen.words().chunks_exact(from.width / 8)) {
            let head = slot.first().copied().unwrap_or_default();
            match Slot::decode(head) {
                Slot::Empty if planted(Fault::LinearUnsealed) => {}
                Slot::Empty | Slot::Vacant { .. } => drop(batch.cas(from.slot(index), head, SEALED)),
                Slot::Tiny { .. } | Slot::Inline { .. } | Slot::Heap { .. } if !frozen(head) => {
                    batch.cas(from.slot(index), head, head | FROZEN);
                }
                Slot::Unknown | Slot::Reserved(_) => {
                    return Err(corrupt(from.slot(index), &format!("a slot of a whole table holds {head:#018x}")));
                }
                _ => {}
            }
        }
        if batch.is_empty() {
            return Ok(seen);
        }
        let again = batch.read(from.slot(first), REGION as usize * from.width);
        seen = batch.post().await?.buf(again);
    }
}

/// Returns the frozen entries of a region, and the form in which each is copied. A record that fits behind a head goes
/// there. `seed` is the seed of the index's key hash.
pub(crate) async fn entries(
    pin: &Pin<'_>,
    seed: u64,
    from: &Segment,
    region: u64,
    mut still: Buf,
) -> Result<Vec<Entry>, IndexError> {
    let step = from.width / 8;
    let stamp = Stamp::of_pin(pin.epoch());
    let fits = slot::capacity(from.width);
    let (mut entries, mut blocks) = (Vec::new(), Vec::new());
    let mut batch = pin.span().block_batch();
    for (i, source) in (region * REGION..(region + 1) * REGION).enumerate() {
        let first = i * step;
        let head = still.words().get(first).copied().unwrap_or_default();
        match Slot::decode(head) {
            Slot::Tiny { key, .. } => {
                let key = still.bytes().get(first * 8..first * 8 + key).unwrap_or_default();
                let form = Form::Head(slot::restamped(head, stamp));
                entries.push(Entry { source, hash: KeyHash::of(key, seed), form, leaves: None });
            }
            Slot::Inline { tag, key, value, .. } => {
                let words = still.words_mut().get_mut(first + 1..first + step).unwrap_or_default();
                if !slot::whole(tag, key + value, words) {
                    return Err(corrupt(from.slot(source), "the words of a record are of different records"));
                }
                let bytes = still.bytes_mut().get_mut((first + 1) * 8..(first + step) * 8).unwrap_or_default();
                gather(bytes, key + value);
                let (key, rest) = bytes.split_at_checked(key).unwrap_or_default();
                let value = rest.get(..value).unwrap_or_default();
                let form = Form::Inline { key: key.to_vec(), value: value.to_vec() };
                entries.push(Entry { source, hash: KeyHash::of(key, seed), form, leaves: None });
            }
            Slot::Heap { ptr, units, .. } => {
                let len = units as usize * UNIT;
                // The whole block is READ only if its record may fit behind a head.
                let whole = len < block::block_len(fits, 0) + UNIT && fits > 0;
                blocks.push((source, head, ptr, batch.read(ptr, if whole { len } else { HEADER_LEN })));
            }
            _ => {}
        }
    }
    let mut done = batch.post().await?;
    for (source, head, ptr, ticket) in blocks {
        let buf = done.buf(ticket);
        let header = Header::decode(buf.words());
        let header = header.ok_or_else(|| corrupt(ptr, "a block's header is invalid"))?;
        let entry = match block::decode(&buf) {
            Decoded::Sound(_, key, value) if header.key_len + header.value_len <= fits => {
                let part = |range: std::ops::Range<usize>| buf.bytes().get(range).unwrap_or_default().to_vec();
                let form = Form::Inline { key: part(key), value: part(value) };
                let leaves = Some((ptr, header.block_len() as u64));
                Entry { source, hash: header.hash, form, leaves }
            }
            _ => {
                let form = Form::Head(slot::restamped(head, stamp));
                Entry { source, hash: header.hash, form, leaves: None }
            }
        };
        entries.push(entry);
    }
    Ok(entries)
}
