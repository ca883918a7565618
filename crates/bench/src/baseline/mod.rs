//! Baselines: what an index is compared with.
//!
//! * [`Raw`]: the verbs of an index without the index, on the same fabric; its throughput is the fabric's limit with as
//!   many clients, and an index's efficiency is its own as a share of that. Its batches travel together as an index's
//!   do; [`in_full_messages`] has it show what the fabric carries at most.
//! * [`LocalMap`]: a well-known concurrent map in local memory, for orientation.
//! * [`LocalSkipList`]: a well-known concurrent ordered map in local memory, for orientation.
//! * [`LocalWords`]: ordered maps in local memory with keys and values of one word, such as the fastest known one
//!   ([`Masstree`]): what a tree whose nodes are all cached is compared with.
//! * [`Null`]: nothing at all, so that what is measured is the driver.

mod dashmap;
mod null;
mod raw;
mod shape;
mod skiplist;
mod words;

pub use dashmap::LocalMap;
pub use null::Null;
pub use raw::{Raw, RawIndex, RawSettings};
pub use shape::{Area, Shape, ShapeVerb, Shapes, VerbShape};
pub use skiplist::LocalSkipList;
pub use words::{LocalWords, Masstree, WordMap};

use crate::driver::{Outcome, Plan};

/// Clients of each thread with which the raw reference fills its messages: a message holds half of them, so that both
/// sides work at once.
const FILLING: usize = 256;

/// The plan with which the raw reference shows what the fabric carries in full messages.
pub fn in_full_messages(plan: &Plan) -> Plan {
    // A client that asks for several keys at once has as many batches in flight.
    let each = (FILLING / plan.many.max(1)).max(1);
    Plan { clients: plan.clients.max(each * plan.threads), ..plan.clone() }
}

/// Throughput of an index as a share of the raw reference's on the same operations: the time that the bare verbs take,
/// over the time that the index takes. `None` if either was not measured.
pub fn efficiency(index: &Outcome, raw: &Outcome) -> Option<f64> {
    let (index, raw) = (index.measured.throughput(), raw.measured.throughput());
    (index > 0.0 && raw > 0.0).then(|| index / raw)
}
