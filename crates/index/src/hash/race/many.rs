//! What a batch of RACE lookups READs first: the buckets of each key.
//!
//! Invariant: a lookup that continues by itself begins with the buckets that were read for it, under its own pin.

use super::Race;
use super::lookup::{LookupPurpose, LookupResult, Op, Parts};
use super::segment::SegmentRef;
use super::slot::{Entry, State};
use crate::extendible::directory::Guards;
use crate::many::{BatchedLookup, Candidates, Judged};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Done, OpKind, Span};

impl<'a> BatchedLookup<'a> for Op<'a> {
    type Index = Race;
    /// None if the directory's copy does not know the key's segment.
    type Reads = Option<(SegmentRef, Parts)>;

    fn begin(race: &'a Race, key: &'a [u8]) -> Result<Self, IndexError> {
        let (hash, table, pin) = race.begin(OpKind::Get, key)?;
        Ok(Op::new(race, table, pin, hash, key))
    }

    fn span(&self) -> &Span {
        self.pin.span()
    }

    fn ask(&self, batch: &mut Batch<'_>, guards: &mut Guards<'a>) -> Self::Reads {
        let segment_ref = self.table.find(self.hash.bits())?;
        guards.add(self.table.directory(), batch, self.pin.epoch());
        Some((segment_ref, self.read_parts(batch, segment_ref)))
    }

    fn judge(
        &mut self,
        reads: Self::Reads,
        done: &mut Done,
        candidates: &mut Candidates,
    ) -> Result<Judged, IndexError> {
        let Some((segment_ref, parts)) = reads else { return Ok(Judged::Open) };
        self.guarded = true;
        let view = self.view(segment_ref, parts, done);
        // A frozen entry proves less than a live one.
        let live = self.candidates(&view, |state| state == State::Live);
        self.ready = Some((segment_ref, view));
        for entry in live.iter().filter_map(|(_, word)| Entry::decode(*word)) {
            candidates.add(entry.ptr, entry.block_len());
        }
        Ok(Judged::Open)
    }

    async fn finish(mut self) -> Result<Option<Value>, IndexError> {
        mark!("race many: alone");
        Ok(match self.look(&mut None, LookupPurpose::Read).await? {
            LookupResult::Hit(hit) => Some(hit.block.into_value()),
            LookupResult::Absent(_) => None,
        })
    }
}
