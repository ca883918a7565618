//! What a batch of SHARD lookups READs first: the level-1 bucket of each key.
//!
//! Invariant: a lookup that continues by itself begins with the bucket that was read for it, under its own pin.

use super::Shard;
use super::bucket::{Level, Snapshot, ones};
use super::geometry::Geometry;
use super::lookup::{Hit, LookupResult, Op};
use super::slot::{Entry, META, Slot};
use crate::block::{self, Compared, UNIT};
use crate::extendible::directory::Guards;
use crate::many::{BatchedLookup, Candidates, Judged};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Buf, Done, OpKind, RemotePtr, Span, Ticket};
use std::rc::Rc;

/// The READ of a level-1 bucket.
pub(super) struct BucketRead {
    geometry: Rc<Geometry>,
    bucket: u64,
    at: RemotePtr,
    read: Ticket,
}

impl Op<'_> {
    /// Adds the READ of the level-1 bucket to a shared batch.
    pub(super) fn ask_bucket(&self, batch: &mut Batch<'_>) -> BucketRead {
        let geometry = self.table.geometry();
        let bucket = geometry.home(self.places.hash.bits(), geometry.version);
        let at = geometry.bucket(Level::One, bucket);
        BucketRead { geometry, bucket, at, read: batch.read(at, Level::One.bytes()) }
    }

    /// Keeps the bucket for the lookup, and shows its slots that may be the key's, by their numbers.
    pub(super) fn judge_bucket(&mut self, read: BucketRead, done: &mut Done, mut candidate: impl FnMut(usize, Entry)) {
        let BucketRead { geometry, bucket, at, read } = read;
        let snapshot = Snapshot::new(at, done.buf(read));
        for slot in ones(self.unknown(&snapshot, self.places.first_pattern(&geometry))) {
            if let Slot::Live(entry) = Slot::decode(snapshot.word(slot)) {
                candidate(slot, entry);
            }
        }
        self.ready = Some((geometry.version, bucket, snapshot));
    }

    /// The key's place, if what was READ of the block of this slot shows that it is there.
    pub(super) fn judge_block(&mut self, slot: usize, ptr: RemotePtr, buf: Buf) -> Option<Hit> {
        match block::compare(buf, self.places.hash, self.key) {
            Compared::Own(block) => {
                let (.., first) = self.ready.take()?;
                Some(Hit { slot: first.slot(slot), word: first.word(slot), ptr, block, bucket: Some(first) })
            }
            Compared::Other => {
                if let Some((.., first)) = &self.ready {
                    self.rejected.push(first.word(slot) & !META);
                }
                None
            }
            Compared::Open(_) => None,
        }
    }
}

impl<'a> BatchedLookup<'a> for Op<'a> {
    type Index = Shard;
    type Reads = BucketRead;

    fn begin(shard: &'a Shard, key: &'a [u8]) -> Result<Self, IndexError> {
        let (hash, table, pin) = shard.begin(OpKind::Get, key)?;
        Ok(Op::new(shard, table, pin, hash, key))
    }

    async fn look_at_root(&mut self) -> Result<(), IndexError> {
        Op::look_at_root(self).await
    }

    fn span(&self) -> &Span {
        self.pin.span()
    }

    fn ask(&self, batch: &mut Batch<'_>, _: &mut Guards<'a>) -> BucketRead {
        self.ask_bucket(batch)
    }

    fn judge(&mut self, read: BucketRead, done: &mut Done, candidates: &mut Candidates) -> Result<Judged, IndexError> {
        self.judge_bucket(read, done, |_, entry| candidates.add(entry.ptr, entry.len as usize * UNIT));
        Ok(Judged::Open)
    }

    async fn finish(mut self) -> Result<Option<Value>, IndexError> {
        mark!("many: alone");
        Ok(match self.look(&mut None).await? {
            LookupResult::Hit(hit) => Some(hit.block.into_value()),
            LookupResult::Absent(_) => None,
        })
    }
}
