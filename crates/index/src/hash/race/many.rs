//! Lookup of many keys at once: one batch READs the buckets of all keys, another one the blocks of their candidates.
//!
//! Invariants: each key's answer is what [`PointIndex::get`](crate::PointIndex::get) would say at some moment of the
//! call; keys are looked up independently of each other. A lookup that continues alone begins with the buckets that
//! were read for it, under its own pin.

use super::Race;
use super::lookup::{LookupPurpose, LookupResult, Op};
use super::slot::{Entry, State};
use crate::extendible::directory::Guards;
use crate::many::{self, Known, Wanted};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::OpKind;

impl Race {
    /// Looks up keys that share a batch, and adds their values.
    pub(super) async fn look_up_together(
        &self,
        keys: &[&[u8]],
        values: &mut Vec<Option<Value>>,
    ) -> Result<(), IndexError> {
        let mut ops = Vec::with_capacity(keys.len());
        for key in keys {
            let (hash, table, pin) = self.begin(OpKind::Get, key)?;
            ops.push(Op::new(self, table, pin, hash, key));
        }
        // The first operation's span counts the shared batches.
        let Some(first) = ops.first() else { return Ok(()) };
        let (mut batch, mut guards) = (first.span().batch(), Guards::default());
        let mut asked = Vec::with_capacity(ops.len());
        for op in &ops {
            asked.push(op.table.find(op.hash.bits()).map(|segment_ref| {
                guards.add(op.table.directory(), &mut batch, op.pin.epoch());
                (segment_ref, op.read_parts(&mut batch, segment_ref))
            }));
        }
        let mut done = batch.post().await?;
        guards.finish(&mut done)?;
        let mut wanted = Vec::new();
        for (key, (op, asked)) in ops.iter_mut().zip(asked).enumerate() {
            let Some((segment_ref, parts)) = asked else { continue };
            op.guarded = true;
            let view = op.view(segment_ref, parts, &mut done);
            // An entry that is frozen says less than a live one. With more than one, the key is looked up alone if this
            // block is another's.
            let candidate = op.candidates(&view, |state| state == State::Live).into_iter().next();
            if let Some(entry) = candidate.and_then(|(_, word)| Entry::decode(word)) {
                wanted.push(Wanted { key, ptr: entry.ptr, len: entry.block_len() });
            }
            op.ready = Some((segment_ref, view));
        }
        drop(done);
        let mut answers: Vec<_> = keys.iter().map(|_| None).collect();
        if let Some(first) = ops.first() {
            for (key, value) in many::read_wanted(first.span(), wanted, keys).await? {
                answers[key] = Some(value);
            }
        }
        let known = ops.into_iter().zip(answers).map(|(op, answer)| match answer {
            Some(value) => Known::Is(Some(value)),
            None => Known::Open(op),
        });
        let alone = async |mut op: Op<'_>| {
            mark!("race many: alone");
            Ok(match op.look(&mut None, LookupPurpose::Read).await? {
                LookupResult::Hit(hit) => Some(Value::fetched(hit.buf, hit.value)),
                LookupResult::Absent(_) => None,
            })
        };
        many::finish(known.collect(), alone, values).await
    }
}
