//! Many lookups at once (Algorithm 1).
//!
//! Invariants: each key's answer is what [`PointIndex::get`](crate::PointIndex::get) would say at some moment of the call; keys are
//! looked up independently of each other.

use super::Linear;
use super::lookup::{Candidate, LookupResult, Op, Purpose, Scan};
use crate::block::UNIT;
use crate::many::{self, Known, Wanted};
use crate::marks::mark;
use crate::slotted::geometry::Segment;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Buf, OpKind, Ticket};

/// What the first READ of a lookup fetches.
struct Window {
    segment: Segment,
    at: u64,
    count: u64,
    read: Ticket,
}

impl Linear {
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
            if !op.table.is_checked(op.pin.epoch()) {
                op.table.sync(op.span(), op.pin.epoch()).await?;
            }
            op.counted = true;
            ops.push(op);
        }
        // What they share is on the first one's account.
        let Some(first) = ops.first() else { return Ok(()) };
        let mut batch = first.span().batch();
        let windows: Vec<_> = ops.iter().map(|op| op.window(&mut batch)).collect();
        let mut done = batch.post().await?;
        let (mut answers, mut wanted) = (Vec::with_capacity(keys.len()), Vec::new());
        for (key, (op, window)) in ops.iter().zip(&windows).enumerate() {
            let (answer, candidate) = op.judge(window, done.buf(window.read))?;
            answers.push(answer);
            let want = |Candidate { ptr, units, .. }| Wanted { key, ptr, len: units as usize * UNIT };
            wanted.extend(candidate.map(want));
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
            mark!("linear many: alone");
            Ok(match op.look(Purpose::Read, &mut None).await? {
                LookupResult::Hit(hit) => Some(hit.value),
                LookupResult::Absent(_) | LookupResult::Full => None,
            })
        };
        many::finish(known.collect(), alone, values).await
    }
}

/// A key's value, or that it is absent; `None` if that is not known yet.
type Answer = Option<Option<Value>>;

impl Op<'_> {
    fn window(&self, batch: &mut Batch<'_>) -> Window {
        let segment = self.table.geometry().current;
        let (at, count) = self.first_window(&segment);
        let read = batch.read(segment.slot(at), count as usize * segment.width);
        Window { segment, at, count, read }
    }

    /// What the first READ says, and the one slot whose block may be the key's.
    fn judge(&self, window: &Window, mut slots: Buf) -> Result<(Answer, Option<Candidate>), IndexError> {
        let Window { segment, at, count, .. } = window;
        let mut moved = false;
        let (led, mut candidates) = self.sift(segment, *at, *count, &mut slots, &mut moved)?;
        Ok(match led {
            Scan::Hit(hit) => (Some(Some(hit.value)), None),
            // With more than one, or with slots to come, it is looked up alone if the block is another key's.
            _ if !candidates.is_empty() => (None, Some(candidates.swap_remove(0))),
            Scan::End { at, sealed: false } if !moved => {
                self.saw_end(segment, at);
                (Some(None), None)
            }
            _ => (None, None),
        })
    }
}
