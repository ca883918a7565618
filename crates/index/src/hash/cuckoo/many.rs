//! What a batch of cuckoo lookups READs first: the buckets of each key's first places (Algorithm 1 of the
//! linear-probing paper).

use super::lookup::{Op, Scope};
use super::places::Spots;
use super::{Cuckoo, Table};
use crate::extendible::directory::Guards;
use crate::keyhash::KeyHash;
use crate::many::{BatchedLookup, Candidates, Judged};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Buf, Done, OpKind, Span, Ticket};
use farindex_pool::Pin;

/// A lookup that has a pin of its own.
pub(super) struct Lookup<'a> {
    cuckoo: &'a Cuckoo,
    table: &'a Table,
    pin: Pin<'a>,
    hash: KeyHash,
    key: &'a [u8],
}

impl Lookup<'_> {
    fn op(&self) -> Op<'_> {
        let mut op = Op::new(self.cuckoo, self.table, &self.pin, self.hash, self.key);
        op.counted = true;
        op
    }
}

impl<'a> BatchedLookup<'a> for Lookup<'a> {
    type Index = Cuckoo;
    /// All places, and the READs of the first ones.
    type Reads = (Spots, Vec<Ticket>);

    fn begin(cuckoo: &'a Cuckoo, key: &'a [u8]) -> Result<Self, IndexError> {
        let (hash, table, pin) = cuckoo.begin(OpKind::Get, key)?;
        Ok(Lookup { cuckoo, table, pin, hash, key })
    }

    /// READs the root where that is due. One READ serves all lookups that are pinned in its epoch.
    async fn prepare(&mut self) -> Result<(), IndexError> {
        if !self.table.is_checked(self.pin.epoch()) {
            self.table.sync(self.pin.span(), self.pin.epoch()).await?;
        }
        Ok(())
    }

    fn span(&self) -> &Span {
        self.pin.span()
    }

    fn ask(&self, batch: &mut Batch<'_>, _: &mut Guards<'a>) -> Self::Reads {
        let op = self.op();
        let (spots, len) = (op.spots(), self.table.own.bucket_bytes());
        let tickets = spots.iter().take(op.step(&spots)).map(|spot| batch.read(spot.at(), len)).collect();
        (spots, tickets)
    }

    fn judge(
        &mut self,
        (spots, tickets): Self::Reads,
        done: &mut Done,
        candidates: &mut Candidates,
    ) -> Result<Judged, IndexError> {
        let mut bufs: Vec<Buf> = tickets.into_iter().map(|ticket| done.buf(ticket)).collect();
        let mut seen = self.op().scan_buckets(&spots[..bufs.len()], &mut bufs, Scope::First)?;
        let all = bufs.len() == spots.len();
        Ok(match seen.hits.pop() {
            Some(hit) => Judged::Answer(Some(hit.value)),
            None if !seen.candidates.is_empty() => {
                seen.candidates.iter().for_each(|candidate| candidates.add(candidate.ptr, candidate.len()));
                Judged::Open
            }
            None if all && !seen.torn && !seen.stale => Judged::Answer(None),
            None => Judged::Open,
        })
    }

    async fn finish(self) -> Result<Option<Value>, IndexError> {
        mark!("cuckoo many: alone");
        Ok(self.op().find().await?.map(|hit| hit.value))
    }
}
