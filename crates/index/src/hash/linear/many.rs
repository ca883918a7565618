//! What a batch of linear-probing lookups READs first: the slots from each key's home on (Algorithm 1).

use super::Linear;
use super::lookup::{LookupResult, Op, Purpose, Scan};
use crate::block::UNIT;
use crate::extendible::directory::Guards;
use crate::faults::{Fault, planted};
use crate::many::{BatchedLookup, Candidates, Judged};
use crate::marks::mark;
use crate::slotted::geometry::Segment;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Done, OpKind, Span, Ticket};

/// The first READ of a lookup: `count` slots from slot `at` on.
pub(super) struct Window {
    segment: Segment,
    at: u64,
    count: u64,
    read: Ticket,
}

impl<'a> BatchedLookup<'a> for Op<'a> {
    type Index = Linear;
    type Reads = Window;

    fn begin(linear: &'a Linear, key: &'a [u8]) -> Result<Self, IndexError> {
        let (hash, table, pin) = linear.begin(OpKind::Get, key)?;
        let mut op = Op::new(linear, table, pin, hash, key);
        op.counted = true;
        Ok(op)
    }

    async fn look_at_root(&mut self) -> Result<(), IndexError> {
        if !self.table.is_checked(self.pin.epoch()) {
            self.table.sync(self.span(), self.pin.epoch()).await?;
        }
        Ok(())
    }

    fn span(&self) -> &Span {
        self.pin.span()
    }

    fn ask(&self, batch: &mut Batch<'_>, _: &mut Guards<'a>) -> Window {
        let segment = self.table.geometry().current;
        let (at, count) = self.first_window(&segment);
        let read = batch.read(segment.slot(at), count as usize * segment.width);
        Window { segment, at, count, read }
    }

    fn judge(&mut self, window: Window, done: &mut Done, candidates: &mut Candidates) -> Result<Judged, IndexError> {
        let Window { segment, at, count, read } = window;
        let mut moved = false;
        let (scan, found) = self.scan_slots(&segment, at, count, &mut done.buf(read), &mut moved)?;
        Ok(match scan {
            Scan::Hit(hit) => Judged::Answer(Some(hit.value)),
            _ if !found.is_empty() => {
                found.iter().for_each(|it| candidates.add(it.ptr, it.units as usize * UNIT));
                Judged::Open
            }
            Scan::End { at, sealed: false } if !moved || planted(Fault::LinearMovedEnd) => {
                self.note_end(&segment, at);
                Judged::Answer(None)
            }
            Scan::End { sealed: false, .. } => {
                mark!("linear many: moved slots in front of an end");
                Judged::Open
            }
            _ => Judged::Open,
        })
    }

    async fn finish(mut self) -> Result<Option<Value>, IndexError> {
        mark!("linear many: alone");
        Ok(match self.look(Purpose::Read, &mut None).await? {
            LookupResult::Hit(hit) => Some(hit.value),
            LookupResult::Absent(_) | LookupResult::Full => None,
        })
    }
}
