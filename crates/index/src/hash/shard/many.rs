//! Many lookups at once: level-1 buckets in one batch, then the blocks that may be the keys' in another.
//!
//! Invariants: each key's answer is what [`PointIndex::get`](crate::PointIndex::get) would say at some moment of the
//! call; keys are looked up independently of each other. A lookup that goes on alone begins with the bucket that was
//! read for it, under its own pin.

use super::Shard;
use super::bucket::{Level, Snapshot};
use super::lookup::{LookupResult, Op};
use super::slot::Slot;
use crate::block::UNIT;
use crate::many::{self, Known, Wanted};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::OpKind;

impl Shard {
    /// Looks up keys that share a batch, and adds their values.
    pub(super) async fn look_up_together(
        &self,
        keys: &[&[u8]],
        values: &mut Vec<Option<Value>>,
    ) -> Result<(), IndexError> {
        let mut ops = Vec::with_capacity(keys.len());
        for key in keys {
            let (hash, table, pin) = self.begin(OpKind::Get, key)?;
            let mut op = Op::new(self, table, pin, hash, key);
            op.look_at_root().await?;
            ops.push(op);
        }
        // The meter counts the shared batches for the first key.
        let Some(first) = ops.first() else { return Ok(()) };
        let mut batch = first.span().batch();
        let asked: Vec<_> = ops
            .iter()
            .map(|op| {
                let geometry = op.table.geometry();
                let bucket = geometry.home(op.places.hash.bits(), geometry.version);
                let at = geometry.bucket(Level::One, bucket);
                (geometry, bucket, at, batch.read(at, Level::One.bytes()))
            })
            .collect();
        let mut done = batch.post().await?;
        let (mut read, mut wanted) = (Vec::with_capacity(keys.len()), Vec::new());
        for (key, (op, (geometry, bucket, at, ticket))) in ops.iter().zip(asked).enumerate() {
            let snapshot = Snapshot::new(at, done.buf(ticket));
            let candidates = op.candidates(&snapshot, op.places.first_pattern(&geometry));
            // If there are more candidates, and this block belongs to another key, the key is looked up alone.
            if let Some(Slot::Live(entry)) = candidates.first().map(|candidate| Slot::decode(candidate.word)) {
                wanted.push(Wanted { key, ptr: entry.ptr, len: entry.len as usize * UNIT });
            }
            read.push((geometry.version, bucket, snapshot));
        }
        drop(done);
        let mut answers: Vec<_> = keys.iter().map(|_| None).collect();
        for (key, value) in many::read_wanted(first.span(), wanted, keys).await? {
            answers[key] = Some(value);
        }
        let known = ops.into_iter().zip(read).zip(answers).map(|((mut op, read), answer)| match answer {
            Some(value) => Known::Is(Some(value)),
            None => {
                op.ready = Some(read);
                Known::Open(op)
            }
        });
        let alone = async |mut op: Op<'_>| {
            mark!("many: alone");
            Ok(match op.look(&mut None).await? {
                LookupResult::Hit(hit) => Some(Value::fetched(hit.buf, hit.value)),
                LookupResult::Absent(_) => None,
            })
        };
        many::finish(known.collect(), alone, values).await
    }
}
