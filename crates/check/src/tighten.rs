//! Shortens intervals without excluding a linearization.
//!
//! Invariants:
//!
//! 1. an order of the entries is a linearization with the tightened intervals if and only if it is one with the given
//!    intervals;
//! 2. `Contradiction` is a proof that there is no linearization.
//!
//! The search branches over operations that overlap, so each overlap that is removed saves work. With fifty clients on
//! one key this decides whether the search ends at all in practice. The argument is that of [`crate::zones`]: a value
//! that exactly one operation writes, and that an operation reads, is held for one contiguous period (*stretch*).
//!
//! * The writer comes before each reader: it responds no later than the first of them, and they are invoked no earlier
//!   than it. A pending writer whose value was read has taken effect, so it gets a response.
//! * An operation that found the value and replaced or removed it comes after all others of the cluster: it is invoked no
//!   earlier than the last of them, and they respond no later than it. It belongs to two clusters if it has replaced the
//!   value by another one that was read, and takes effect between the two stretches; each gives it bounds.
//! * Let `w` be held at least from `first` to `last` (a forward cluster). A unit that cannot share a moment with `w`
//!   (the cluster of another value, or an operation that contradicts `w`) comes entirely before or entirely after the
//!   stretch. If one of its operations is invoked after `first`, it is after: none of its operations takes effect
//!   before `last`. If one responds before `last`, it is before: all of them take effect before `first`.
//!
//! * Neighbours in a chain: the later one is invoked no earlier than the earlier one, which responds no later than it.
//!
//! New stamps are those of the events that force them: a new invocation has the stamp of an invocation, and a new
//! response that of a response. So the order of events at equal stamps stays valid.

use crate::key_op::{Effect, Guard, KeyOp, UNREAD, ValueId};
use crate::model::{Entry, Tightened, neighbours};
use crate::zones;

/// Maximum number of rounds. Each round can enable the next; the gain decreases quickly.
const ROUNDS_MAX: usize = 8;

/// The cluster of a value, or a single operation, in stamps.
#[derive(Clone, Copy)]
struct Unit {
    last_invoked: u64,
    first_responded: Option<u64>,
}

/// The period, in stamps, during which a value is held at least.
#[derive(Clone, Copy)]
struct Stretch {
    value: ValueId,
    first: u64,
    last: u64,
}

/// Tightens the intervals of the operations on one key.
pub(crate) fn tighten(entries: &mut [Entry<KeyOp>]) -> Tightened {
    for _ in 0..ROUNDS_MAX {
        // Zones that contradict each other would make the stretches below overlap.
        let inverted = |entry: &Entry<KeyOp>| entry.responded.is_some_and(|at| at < entry.invoked);
        if entries.iter().any(inverted) || zones::refute(entries).is_some() {
            return Tightened::Contradiction;
        }
        if !round(entries) {
            break;
        }
    }
    Tightened::Consistent
}

fn round(entries: &mut [Entry<KeyOp>]) -> bool {
    let clusters = zones::Clusters::of(entries);
    let mut stretches: Vec<Stretch> = clusters
        .intervals()
        .filter_map(|(value, first, last)| (first < last).then_some(Stretch { value, first, last }))
        .collect();
    stretches.sort_unstable_by_key(|stretch| stretch.first);
    let mut changed = tighten_chains(entries);
    for index in 0..entries.len() {
        // A pending read returned nothing; it must not get a response.
        if entries[index].responded.is_none() && entries[index].op.effect == Effect::Keep {
            continue;
        }
        let own = Unit { last_invoked: entries[index].invoked, first_responded: entries[index].responded };
        let (mut invoked, mut responded) = (own.last_invoked, own.first_responded);
        for value in memberships(&entries[index], &clusters) {
            let interval = value.and_then(|value| clusters.interval(value));
            let unit = interval.map_or(own, |(first, last)| Unit { last_invoked: last, first_responded: Some(first) });
            if let Some(value) = value
                && let Some(writer) = clusters.writer(value)
            {
                if writer == index {
                    responded = earlier(responded, unit.first_responded);
                } else {
                    invoked = invoked.max(entries[writer].invoked);
                }
            }
            match value.and_then(|value| clusters.ender(value)) {
                Some(ender) if ender == index => invoked = invoked.max(unit.last_invoked),
                Some(ender) => responded = earlier(responded, entries[ender].responded),
                None => {}
            }
            if let Some(bound) = after(&stretches, unit, value, &entries[index].op) {
                invoked = invoked.max(bound);
            }
            if let Some(bound) = before(&stretches, unit, value, &entries[index].op) {
                responded = earlier(responded, Some(bound));
            }
        }
        let entry = &mut entries[index];
        changed |= (entry.invoked, entry.responded) != (invoked, responded);
        (entry.invoked, entry.responded) = (invoked, responded);
    }
    changed
}

/// Tightens along the chains, in both directions. Returns whether anything has changed.
fn tighten_chains(entries: &mut [Entry<KeyOp>]) -> bool {
    let (pairs, mut changed) = (neighbours(entries), false);
    for &(first, next) in &pairs {
        if entries[next].invoked < entries[first].invoked {
            (entries[next].invoked, changed) = (entries[first].invoked, true);
        }
    }
    for &(first, next) in pairs.iter().rev() {
        let (first_responds, next_responds) = (entries[first].responded, entries[next].responded);
        if next_responds < first_responds {
            (entries[first].responded, changed) = (next_responds, true);
        }
    }
    changed
}

fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// The values of the clusters that an operation belongs to: one or two; `None` stands for the operation alone.
fn memberships(entry: &Entry<KeyOp>, clusters: &zones::Clusters) -> impl Iterator<Item = Option<ValueId>> {
    let known = |value: &ValueId| *value != UNREAD && clusters.interval(*value).is_some();
    let written = match entry.op.effect {
        Effect::Set(value) => Some(value).filter(known),
        Effect::Keep | Effect::Clear => None,
    };
    let found = match (entry.op.guard, entry.responded) {
        (Guard::Holds(value), Some(_)) => Some(value).filter(known),
        _ => None,
    };
    let alone = written.is_none() && found.is_none();
    [written, found].into_iter().flatten().map(Some).chain(alone.then_some(None))
}

/// Returns the end of the last stretch that the unit must follow. Stretches are disjoint, so of those that begin before
/// the unit's last invocation the latest ends last.
fn after(stretches: &[Stretch], unit: Unit, own: Option<ValueId>, op: &KeyOp) -> Option<u64> {
    let mut count = stretches.partition_point(|stretch| stretch.first < unit.last_invoked);
    if count > 0 && Some(stretches[count - 1].value) == own {
        count -= 1;
    }
    let stretch = stretches[..count].last()?;
    zones::contradicts_others(op).then_some(stretch.last)
}

/// Returns the beginning of the first stretch that the unit must precede.
fn before(stretches: &[Stretch], unit: Unit, own: Option<ValueId>, op: &KeyOp) -> Option<u64> {
    let responded = unit.first_responded?;
    let mut from = stretches.partition_point(|stretch| stretch.last <= responded);
    if stretches.get(from).is_some_and(|stretch| Some(stretch.value) == own) {
        from += 1;
    }
    let stretch = stretches.get(from)?;
    zones::contradicts_others(op).then_some(stretch.first)
}
