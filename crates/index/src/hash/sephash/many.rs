//! What a batch of SepHash lookups READs first: filter, entries of the MainSegment and next slot of each key.
//!
//! Invariant: a lookup continues by itself if the key may be in its CurSegment, or if this compute node did not know
//! the segment well enough. It then begins with what was read for it, under its own pin.

use super::SepHash;
use super::probe::{Asked, Judged as Probed, Need, Op, Probe};
use crate::block::UNIT;
use crate::extendible::directory::Guards;
use crate::many::{BatchedLookup, Candidates, Judged};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Done, OpKind, Span};

/// A lookup, and what its first READs have shown.
pub(super) struct Lookup<'a> {
    op: Op<'a>,
    probe: Option<Probe>,
}

impl<'a> BatchedLookup<'a> for Lookup<'a> {
    type Index = SepHash;
    /// None if the directory's copy does not know the key's segment.
    type Reads = Option<Asked>;

    fn begin(index: &'a SepHash, key: &'a [u8]) -> Result<Self, IndexError> {
        let (hash, table, pin) = index.begin(OpKind::Get, key)?;
        Ok(Lookup { op: Op::new(index, table, pin, hash, key, None), probe: None })
    }

    fn span(&self) -> &Span {
        self.op.span()
    }

    fn ask(&self, batch: &mut Batch<'_>, guards: &mut Guards<'a>) -> Option<Asked> {
        let segment = self.op.known()?;
        guards.add(&self.op.table.directory, batch, self.op.pin.epoch());
        Some(self.op.ask(batch, segment, Need { main: true, window: false }))
    }

    fn judge(
        &mut self,
        asked: Option<Asked>,
        done: &mut Done,
        candidates: &mut Candidates,
    ) -> Result<Judged, IndexError> {
        let Some(asked) = asked else { return Ok(Judged::Open) };
        let Probed::Probe(probe) = self.op.judge(&asked, done)? else { return Ok(Judged::Open) };
        let is_old = self.op.is_old(&probe);
        if is_old {
            probe.found.iter().for_each(|(_, item)| candidates.add(item.entry.ptr, item.entry.units() * UNIT));
        }
        let judged = if is_old && probe.found.is_empty() { Judged::Answer(None) } else { Judged::Open };
        self.probe = Some(probe);
        Ok(judged)
    }

    async fn finish(self) -> Result<Option<Value>, IndexError> {
        mark!("sephash many: alone");
        let Lookup { op, mut probe } = self;
        let index = op.index;
        let attempt = async |op: &mut Op<'_>| match probe.take() {
            Some(probe) => op.examine(&probe).await,
            None => op.get().await,
        };
        let hit = index.run_from(&mut Some(op), attempt).await?;
        Ok(hit.map(|hit| hit.block.into_value()))
    }
}
