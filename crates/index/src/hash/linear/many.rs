//! Many lookups at once (Algorithm 1): the READs of all of them in one batch, so that one doorbell posts them and one
//! completion tells of all.
//!
//! Invariants: each key's answer is what [`HashIndex::get`](crate::HashIndex::get) would say at some moment of the call; keys are
//! looked up independently of each other.

use super::Linear;
use super::geometry::Segment;
use super::lookup::{Candidate, Looked, Op, Purpose, Scan};
use crate::block::{self, Decoded, UNIT};
use crate::keyhash::KeyHash;
use crate::marks::mark;
use crate::{IndexError, Value};
use farindex_fabric::{Batch, Buf, OpKind, Ticket};

/// Lookups that share a batch, at most.
const TOGETHER: usize = 128;

/// What the first READ of a lookup fetches.
struct Window {
    segment: Segment,
    at: u64,
    count: u64,
    read: Ticket,
}

/// What is known of one key.
enum Known {
    /// Nothing yet: it has to be looked up alone.
    Open,
    /// Its value, or that it is absent.
    Is(Option<Value>),
}

impl Linear {
    /// Looks up all keys; the answers come in the order of the keys.
    pub(super) async fn look_up_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(TOGETHER) {
            self.look_up_together(keys, &mut values).await?;
        }
        Ok(values)
    }

    async fn look_up_together(&self, keys: &[&[u8]], values: &mut Vec<Option<Value>>) -> Result<(), IndexError> {
        let mut ops = Vec::with_capacity(keys.len());
        for key in keys {
            self.check_lengths(key, &[])?;
            let hash = KeyHash::of(key);
            let pin = self.session.pin(self.session.span(OpKind::Get))?;
            let mut op = Op::new(self, self.table(hash), pin, hash, key);
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
        let (mut known, mut candidates) = (Vec::with_capacity(keys.len()), Vec::new());
        for (i, (op, window)) in ops.iter().zip(&windows).enumerate() {
            let (now, candidate) = op.judge(window, done.buf(window.read))?;
            known.push(now);
            candidates.extend(candidate.map(|candidate| (i, candidate)));
        }
        drop(done);
        let mut batch = first.span().block_batch();
        let read = |(i, candidate): (usize, Candidate)| (i, batch.read(candidate.ptr, candidate.units as usize * UNIT));
        let asked: Vec<_> = candidates.into_iter().map(read).collect();
        let mut done = batch.post().await?;
        for (i, ticket) in asked {
            let buf = done.buf(ticket);
            if let (Decoded::Sound(_, key, value), Some(op), Some(known)) =
                (block::decode(&buf), ops.get(i), known.get_mut(i))
                && buf.bytes().get(key) == Some(op.key)
            {
                *known = Known::Is(Some(Value::fetched(buf, value)));
            }
        }
        drop(done);
        for (mut op, known) in ops.into_iter().zip(known) {
            values.push(match known {
                Known::Is(value) => value,
                Known::Open => {
                    mark!("linear many: alone");
                    match op.look(Purpose::Read, &mut None).await? {
                        Looked::Hit(hit) => Some(hit.value),
                        Looked::Absent(_) | Looked::Full => None,
                    }
                }
            });
        }
        Ok(())
    }
}

impl Op<'_> {
    fn window(&self, batch: &mut Batch<'_>) -> Window {
        let segment = self.table.geometry().current;
        let (at, count) = self.first_window(&segment);
        let read = batch.read(segment.slot(at), count as usize * segment.width);
        Window { segment, at, count, read }
    }

    /// What the first READ says, and the one slot whose block may be the key's.
    fn judge(&self, window: &Window, mut slots: Buf) -> Result<(Known, Option<Candidate>), IndexError> {
        let Window { segment, at, count, .. } = window;
        let mut moved = false;
        let (led, mut candidates) = self.sift(segment, *at, *count, &mut slots, &mut moved)?;
        Ok(match led {
            Scan::Hit(hit) => (Known::Is(Some(hit.value)), None),
            // With more than one, or with slots to come, it is looked up alone if the block is another key's.
            _ if !candidates.is_empty() => (Known::Open, Some(candidates.swap_remove(0))),
            Scan::End { at, sealed: false } if !moved => {
                self.saw_end(segment, at);
                (Known::Is(None), None)
            }
            _ => (Known::Open, None),
        })
    }
}
