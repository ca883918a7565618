//! Lookup of many keys at once: one batch READs filters, ranges and next slots of all keys, another one the blocks of
//! their candidates.
//!
//! Invariants: each key's answer is what [`PointIndex::get`](crate::PointIndex::get) would say at some moment of the
//! call; keys are looked up independently of each other. A key that may be in its CurSegment, or whose segment this
//! compute node did not know well enough, is looked up further alone, under its own pin, and from what was read for it.

use super::SepHash;
use super::probe::{Judged, Need, Op, Probe};
use crate::block::UNIT;
use crate::extendible::directory::Guards;
use crate::many::{self, Known, Wanted};
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::OpKind;

impl SepHash {
    /// Looks up keys that share a batch, and adds their values.
    pub(super) async fn look_up_together(
        &self,
        keys: &[&[u8]],
        values: &mut Vec<Option<Value>>,
    ) -> Result<(), IndexError> {
        let mut ops = Vec::with_capacity(keys.len());
        for key in keys {
            let (hash, table, pin) = self.begin(OpKind::Get, key)?;
            ops.push(Op::new(self, table, pin, hash, key, None));
        }
        // The first operation's span counts the shared batches.
        let Some(first) = ops.first() else { return Ok(()) };
        let (mut batch, mut guards) = (first.span().batch(), Guards::default());
        let mut asked = Vec::with_capacity(ops.len());
        for op in &ops {
            asked.push(op.known().map(|segment| {
                guards.add(&op.table.directory, &mut batch, op.pin.epoch());
                op.ask(&mut batch, segment, Need { main: true, window: false })
            }));
        }
        let mut done = batch.post().await?;
        guards.finish(&mut done)?;
        let mut probes: Vec<Option<Probe>> = Vec::with_capacity(ops.len());
        for (op, asked) in ops.iter_mut().zip(asked) {
            probes.push(match asked.map(|asked| op.judge(&asked, &mut done)).transpose()? {
                Some(Judged::Probe(probe)) => Some(probe),
                _ => None,
            });
        }
        drop(done);
        let (mut answers, mut wanted) = (Vec::with_capacity(ops.len()), Vec::new());
        for (key, (op, probe)) in ops.iter().zip(&probes).enumerate() {
            answers.push(match probe {
                Some(probe) if op.is_old(probe) => match probe.found.first() {
                    // With more than one, it is looked up alone if this block is another key's.
                    Some((_, item)) => {
                        wanted.push(Wanted { key, ptr: item.entry.ptr, len: item.entry.units() * UNIT });
                        None
                    }
                    None => Some(None),
                },
                _ => None,
            });
        }
        if let Some(first) = ops.first() {
            for (key, value) in many::read_wanted(first.span(), wanted, keys).await? {
                answers[key] = Some(Some(value));
            }
        }
        let known = ops.into_iter().zip(probes).zip(answers).map(|(open, answer)| match answer {
            Some(value) => Known::Is(value),
            None => Known::Open(open),
        });
        let alone = async |(op, mut probe): (Op<'_>, Option<Probe>)| {
            mark!("sephash many: alone");
            let attempt = async |op: &mut Op<'_>| match probe.take() {
                Some(probe) => op.examine(&probe).await,
                None => op.get().await,
            };
            let hit = self.run_from(&mut Some(op), attempt).await?;
            Ok(hit.map(|hit| Value::fetched(hit.buf, hit.value)))
        };
        many::finish(known.collect(), alone, values).await
    }
}
