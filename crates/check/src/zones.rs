//! Cheap proofs that a key's operations contradict each other, for values that only one operation can have written.
//!
//! Invariants:
//!
//! 1. a refutation is a proof of a violation; the absence of a refutation proves nothing;
//! 2. the named entries contradict each other already, provided that no other entry writes their values.
//!
//! Let an operation read `v`, and let `w` be the only operation that can write it. After `v` is overwritten or removed
//! it never returns, so in every linearization the key holds `v` for one contiguous period. Call `w` and the operations
//! that found `v` the *cluster* of `v`: reads, and operations that replaced or removed exactly `v`. One of the latter
//! takes effect at the end of the period, and so there is one at most. It may write another value, and belongs to the
//! cluster of that one as well. Let `first` be the earliest response in the cluster and `last` its latest invocation. Some
//! operation of the cluster takes effect before `first` and some after `last`. So
//!
//! * if `first < last`, the key holds `v` at every moment from `first` to `last` (a *forward* cluster);
//! * otherwise it holds `v` at some moment from `last` to `first` (a *backward* cluster).
//!
//! A key cannot hold two values at the same moment. So forward clusters must not overlap, and neither a backward
//! cluster nor an operation that contradicts `v` (it found the key absent, removed it, or wrote another value) may lie
//! entirely within the forward cluster of `v`. These are the zones of Gibbons and Korach (Testing shared memories,
//! 1997). For plain reads and writes the conditions are also sufficient; here, where operations depend on presence,
//! they are only necessary, and the search decides.

use crate::key_op::{Effect, Guard, KeyOp, UNREAD, ValueId};
use crate::model::Entry;
use crate::order::Positions;

/// The cluster of one value. Each position is paired with its entry.
#[derive(Clone, Default)]
struct Cluster {
    writers: u32,
    writer: Option<usize>,
    reader: Option<usize>,
    /// An operation that found the value and ended it, and another one.
    enders: [Option<usize>; 2],
    first: Option<(u32, usize)>,
    last: Option<(u32, usize)>,
}

impl Cluster {
    fn add(&mut self, entry: usize, positions: &Positions) {
        let invoked = (positions.invoked(entry), entry);
        self.last = self.last.max(Some(invoked));
        if let Some(responded) = positions.responded(entry) {
            let responded = (responded, entry);
            self.first = Some(self.first.map_or(responded, |first| first.min(responded)));
        }
    }
}

/// The clusters of values that exactly one operation writes and at least one reads, in stamps.
pub(crate) struct Clusters {
    /// By value.
    known: Vec<Option<Known>>,
}

#[derive(Clone, Copy)]
struct Known {
    first: u64,
    last: u64,
    writer: usize,
    ender: Option<usize>,
}

impl Clusters {
    pub(crate) fn of(entries: &[Entry<KeyOp>]) -> Self {
        let clusters = clusters(entries, &Positions::of(entries));
        let known = clusters.iter().enumerate().map(|(value, cluster)| {
            cluster.reader.filter(|_| value != UNREAD as usize && cluster.writers == 1)?;
            let first = entries[cluster.first?.1].responded?;
            let (last, writer, [ender, _]) = (entries[cluster.last?.1].invoked, cluster.writer?, cluster.enders);
            Some(Known { first, last, writer, ender })
        });
        Self { known: known.collect() }
    }

    fn get(&self, value: ValueId) -> Option<Known> {
        self.known.get(value as usize).copied().flatten()
    }

    /// First response and last invocation of a value's cluster.
    pub(crate) fn interval(&self, value: ValueId) -> Option<(u64, u64)> {
        self.get(value).map(|known| (known.first, known.last))
    }

    /// The entry that writes the value.
    pub(crate) fn writer(&self, value: ValueId) -> Option<usize> {
        self.get(value).map(|known| known.writer)
    }

    /// The entry that found the value and replaced or removed it: the last one of its cluster.
    pub(crate) fn ender(&self, value: ValueId) -> Option<usize> {
        self.get(value)?.ender
    }

    /// All clusters, with their intervals.
    pub(crate) fn intervals(&self) -> impl Iterator<Item = (ValueId, u64, u64)> {
        let numbered = self.known.iter().enumerate();
        numbered.filter_map(|(value, known)| known.map(|known| (value as ValueId, known.first, known.last)))
    }
}

/// A forward cluster as an interval of positions.
struct Forward {
    start: u32,
    end: u32,
    value: ValueId,
    entries: [usize; 3],
}

/// Returns the entries of a contradiction, if one is found.
pub(crate) fn refute(entries: &[Entry<KeyOp>]) -> Option<Vec<usize>> {
    let positions = Positions::of(entries);
    let clusters = clusters(entries, &positions);
    if let Some(core) = unwritten_or_too_early(&clusters, &positions) {
        return Some(core);
    }
    if let Some(core) = ended_twice(&clusters) {
        return Some(core);
    }
    let (mut forward, backward) = split(&clusters);
    forward.sort_by_key(|zone| zone.start);
    for pair in forward.windows(2) {
        if pair[1].start < pair[0].end {
            return Some(sorted(pair[0].entries.iter().chain(&pair[1].entries)));
        }
    }
    // From here on the forward zones are disjoint, so only the last one that starts before an interval can contain it.
    let containing = |start: u32, end: u32| {
        let next = forward.partition_point(|zone| zone.start < start);
        let zone = forward.get(next.checked_sub(1)?)?;
        (end < zone.end).then_some(zone)
    };
    for (start, end, members) in backward {
        if let Some(zone) = containing(start, end) {
            return Some(sorted(zone.entries.iter().chain(&members)));
        }
    }
    entries.iter().enumerate().find_map(|(index, entry)| {
        let zone = containing(positions.invoked(index), positions.responded(index)?)?;
        contradicts(&entry.op, zone.value).then(|| sorted(zone.entries.iter().chain(&[index])))
    })
}

fn clusters(entries: &[Entry<KeyOp>], positions: &Positions) -> Vec<Cluster> {
    let mut clusters: Vec<Cluster> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Effect::Set(value) = entry.op.effect {
            let cluster = cluster_of(&mut clusters, value);
            cluster.writers += 1;
            cluster.writer = Some(index);
            cluster.add(index, positions);
        }
        // A pending one has found nothing yet.
        if let (Guard::Holds(value), Some(_)) = (entry.op.guard, entry.responded) {
            let cluster = cluster_of(&mut clusters, value);
            let earlier = cluster.reader.is_some_and(|reader| positions.responded(reader) < positions.responded(index));
            if !earlier {
                cluster.reader = Some(index);
            }
            if entry.op.effect != Effect::Keep {
                cluster.enders = [Some(index), cluster.enders[0]];
            }
            cluster.add(index, positions);
        }
    }
    clusters
}

fn cluster_of(clusters: &mut Vec<Cluster>, value: ValueId) -> &mut Cluster {
    let value = value as usize;
    if clusters.len() <= value {
        clusters.resize(value + 1, Cluster::default());
    }
    &mut clusters[value]
}

/// Finds two operations that both found a value and ended it, although it was written once: a lost update.
fn ended_twice(clusters: &[Cluster]) -> Option<Vec<usize>> {
    let mut known = clusters.iter().enumerate().filter(|(value, _)| *value != UNREAD as usize);
    known.find_map(|(_, cluster)| match (cluster.writer, cluster.enders) {
        (Some(writer), [Some(one), Some(other)]) if cluster.writers == 1 => Some(sorted([writer, one, other].iter())),
        _ => None,
    })
}

/// Finds a read of a value that no operation writes, or whose writer is invoked only after the read has responded.
fn unwritten_or_too_early(clusters: &[Cluster], positions: &Positions) -> Option<Vec<usize>> {
    clusters.iter().find_map(|cluster| {
        let reader = cluster.reader?;
        match cluster.writer {
            None => Some(vec![reader]),
            Some(writer) if cluster.writers == 1 => {
                let too_early = positions.responded(reader)? < positions.invoked(writer);
                too_early.then(|| sorted([reader, writer].iter()))
            }
            Some(_) => None,
        }
    })
}

type Backward = (u32, u32, [usize; 3]);

fn split(clusters: &[Cluster]) -> (Vec<Forward>, Vec<Backward>) {
    let mut forward = Vec::new();
    let mut backward = Vec::new();
    for (value, cluster) in clusters.iter().enumerate() {
        let value = value as ValueId;
        // Without a reader nothing proves that the key ever held the value.
        if value == UNREAD || cluster.writers != 1 || cluster.reader.is_none() {
            continue;
        }
        let (Some(writer), Some(first), Some(last)) = (cluster.writer, cluster.first, cluster.last) else {
            continue;
        };
        let entries = [writer, first.1, last.1];
        if first.0 < last.0 {
            forward.push(Forward { start: first.0, end: last.0, value, entries });
        } else {
            backward.push((last.0, first.0, entries));
        }
    }
    (forward, backward)
}

/// Returns whether the key cannot hold `value` throughout an interval in which `op` takes effect.
fn contradicts(op: &KeyOp, value: ValueId) -> bool {
    let other_guard = match op.guard {
        Guard::Absent => true,
        Guard::Holds(held) => held != value,
        Guard::Other(held) => held == value,
        Guard::Any | Guard::Present => false,
    };
    let other_effect = match op.effect {
        Effect::Keep => false,
        Effect::Set(set) => set != value,
        Effect::Clear => true,
    };
    other_guard || other_effect
}

/// Returns whether `op` contradicts every value except those that it reads or writes itself.
pub(crate) fn contradicts_others(op: &KeyOp) -> bool {
    op.effect != Effect::Keep || matches!(op.guard, Guard::Absent | Guard::Holds(_))
}

fn sorted<'a>(entries: impl Iterator<Item = &'a usize>) -> Vec<usize> {
    let mut entries: Vec<usize> = entries.copied().collect();
    entries.sort_unstable();
    entries.dedup();
    entries
}
