//! What a batch of SHARD lookups READs first: the level-1 bucket of each key.
//!
//! Invariant: a lookup that continues by itself begins with the bucket that was read for it, under its own pin.

use super::Shard;
use super::bucket::{Level, Snapshot};
use super::geometry::Geometry;
use super::lookup::{LookupResult, Op};
use super::slot::Slot;
use crate::block::UNIT;
use crate::extendible::directory::Guards;
use crate::many::{BatchedLookup, Judged};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Done, OpKind, RemotePtr, Span, Ticket};
use std::rc::Rc;

/// The READ of a level-1 bucket.
pub(super) struct BucketRead {
    geometry: Rc<Geometry>,
    bucket: u64,
    at: RemotePtr,
    read: Ticket,
}

impl<'a> BatchedLookup<'a> for Op<'a> {
    type Index = Shard;
    type Reads = BucketRead;

    async fn begin(shard: &'a Shard, key: &'a [u8]) -> Result<Self, IndexError> {
        let (hash, table, pin) = shard.begin(OpKind::Get, key)?;
        let mut op = Op::new(shard, table, pin, hash, key);
        op.look_at_root().await?;
        Ok(op)
    }

    fn span(&self) -> &Span {
        self.pin.span()
    }

    fn ask(&self, batch: &mut Batch<'_>, _: &mut Guards<'a>) -> BucketRead {
        let geometry = self.table.geometry();
        let bucket = geometry.home(self.places.hash.bits(), geometry.version);
        let at = geometry.bucket(Level::One, bucket);
        BucketRead { geometry, bucket, at, read: batch.read(at, Level::One.bytes()) }
    }

    fn judge(
        &mut self,
        BucketRead { geometry, bucket, at, read }: BucketRead,
        done: &mut Done,
    ) -> Result<Judged, IndexError> {
        let snapshot = Snapshot::new(at, done.buf(read));
        // If the first of several candidates is another key's, the lookup continues by itself.
        let candidate = self.candidates(&snapshot, self.places.first_pattern(&geometry)).into_iter().next();
        self.ready = Some((geometry.version, bucket, snapshot));
        Ok(match candidate.map(|candidate| Slot::decode(candidate.word)) {
            Some(Slot::Live(entry)) => Judged::Block(entry.ptr, entry.len as usize * UNIT),
            _ => Judged::Open,
        })
    }

    async fn finish(mut self) -> Result<Option<Value>, IndexError> {
        mark!("many: alone");
        Ok(match self.look(&mut None).await? {
            LookupResult::Hit(hit) => Some(hit.block.into_value()),
            LookupResult::Absent(_) => None,
        })
    }
}
