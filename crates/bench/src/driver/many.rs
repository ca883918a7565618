//! Gets of several keys in one call.
//!
//! Invariant: each key is an operation that is judged and counted as a get of its own is; one latency is that of a call.

use super::Worker;
use super::client::{TIMED_SHIFT, Tally, judge, target};
use super::shared::Phase;
use super::worker::Context;
use crate::workload::{Op, Stream};
use farindex_index::PointIndex;
use std::ops::Range;

/// Asks for the keys of these operations, of which all are gets, in one call.
pub(crate) async fn get<W: Worker>(
    context: &Context<W>,
    (phase, part): (Phase, usize),
    ordinals: Range<u64>,
    stream: &mut Stream,
    tally: &mut Tally,
) {
    let shared = &*context.shared;
    let mut timed = false;
    let mut asked = Vec::with_capacity(shared.plan.many);
    let mut bytes = Vec::with_capacity(shared.plan.many * shared.keys.size());
    for ordinal in ordinals {
        timed |= phase == Phase::Measured && stream.op() >> TIMED_SHIFT == 0;
        let Some(target) = target(shared, (phase, part), Op::Get, stream, ordinal).await else { return };
        let end = bytes.len();
        bytes.resize(end + shared.keys.size(), 0);
        shared.keys.write(target.number, bytes.get_mut(end..).unwrap_or_default());
        asked.push((target, shared.oracle.begin(target.number, false)));
    }
    tally.counts[Op::Get as usize] += asked.len() as u64;
    let keys: Vec<&[u8]> = bytes.chunks_exact(shared.keys.size()).collect();
    let started = timed.then(|| context.worker.now());
    let answer = context.worker.index().get_many(&keys).await;
    if let Some(started) = started {
        context.timed(Op::Get, started, answer.is_ok());
    }
    match answer {
        Ok(values) if context.worker.answers() => {
            for ((target, window), value) in asked.into_iter().zip(values) {
                if let Err(wrong) = judge(shared, Op::Get, target, window, &value.into()) {
                    context.wrong(phase, Op::Get, target.number, wrong);
                }
            }
        }
        Ok(_) => {}
        Err(error) => {
            for (target, window) in asked {
                shared.oracle.fail(target.number, window, false);
                context.failed(phase, Op::Get, target.number, &error);
            }
        }
    }
}
