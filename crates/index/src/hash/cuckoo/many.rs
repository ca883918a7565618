//! Many lookups at once (Algorithm 1).
//!
//! Invariants: each key's answer is what [`PointIndex::get`](crate::PointIndex::get) would say at some moment of the call; keys are
//! looked up independently of each other.

use super::Cuckoo;
use super::lookup::{Candidate, Op, Scope};
use crate::many::{self, Known, Wanted};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Buf, OpKind};

impl Cuckoo {
    /// Looks up keys that share a batch, and adds their values.
    pub(super) async fn look_up_together(
        &self,
        keys: &[&[u8]],
        values: &mut Vec<Option<Value>>,
    ) -> Result<(), IndexError> {
        let begun = keys.iter().map(|key| self.begin(OpKind::Get, key)).collect::<Result<Vec<_>, _>>()?;
        let mut ops = Vec::with_capacity(keys.len());
        for (key, (hash, table, pin)) in keys.iter().zip(&begun) {
            let mut op = Op::new(self, table, pin, *hash, key);
            if !op.table.is_checked(pin.epoch()) {
                op.table.sync(op.span(), pin.epoch()).await?;
            }
            op.counted = true;
            ops.push(op);
        }
        // What they share is on the first one's account.
        let Some(first) = ops.first() else { return Ok(()) };
        let mut batch = first.span().batch();
        let mut asked = Vec::with_capacity(ops.len());
        for op in &ops {
            let spots = op.spots();
            let len = op.table.own.bucket_bytes();
            let tickets: Vec<_> = spots.iter().take(op.step(&spots)).map(|spot| batch.read(spot.at(), len)).collect();
            asked.push((spots, tickets));
        }
        let mut done = batch.post().await?;
        let (mut answers, mut wanted) = (Vec::with_capacity(keys.len()), Vec::new());
        for (key, (op, (spots, tickets))) in ops.iter().zip(asked).enumerate() {
            let mut bufs: Vec<Buf> = tickets.into_iter().map(|ticket| done.buf(ticket)).collect();
            let mut seen = op.sift(&spots[..bufs.len()], &mut bufs, Scope::First)?;
            let all = bufs.len() == spots.len();
            answers.push(match seen.hits.pop() {
                Some(hit) => Some(Some(hit.value)),
                None if all && !seen.torn && !seen.stale && seen.candidates.is_empty() => Some(None),
                // With more than one, or with places to come, it is looked up alone if the block is another key's.
                None => {
                    let want = |candidate: &Candidate| Wanted { key, ptr: candidate.ptr, len: candidate.len() };
                    wanted.extend(seen.candidates.first().map(want));
                    None
                }
            });
        }
        drop(done);
        for (key, value) in many::read_wanted(first.span(), wanted, keys).await? {
            answers[key] = Some(Some(value));
        }
        let known = ops.into_iter().zip(answers).map(|(op, answer)| match answer {
            Some(value) => Known::Is(value),
            None => Known::Open(op),
        });
        let alone = async |mut op: Op<'_>| {
            mark!("cuckoo many: alone");
            Ok(op.find().await?.map(|hit| hit.value))
        };
        many::finish(known.collect(), alone, values).await
    }
}
