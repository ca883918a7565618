//! Splits a history into one part for each key.
//!
//! Invariants:
//!
//! 1. each completed operation on a key, and each pending one that could change it, is in exactly the part of its key;
//! 2. a completed scan is, in the part of each key that it covers, one read of what it returned for that key, with the
//!    interval of the scan. This is the promise of a scan's content (see [`crate::scan`]): each key is read at some
//!    moment of the interval, independent of the other keys;
//! 3. the completed operations of a group on one key are a chain of its part;
//! 4. a read of absence by a scan is left out if the key cannot be present yet, because it would always hold.

use std::collections::{BTreeMap, HashMap};

use crate::history::{History, Operation, Outcome};
use crate::key_op::{Effect, KeyOp, ValueId, key_op, renumber};
use crate::model::{Entry, Link, Part};
use crate::scan;

/// A part under construction. Values are numbered in order of appearance.
#[derive(Default)]
struct PartBuilder<'h> {
    numbers: HashMap<&'h [u8], ValueId>,
    entries: Vec<Entry<KeyOp>>,
    /// The first moment at which the key may be present.
    writable_from: Option<u64>,
    /// The chain of each client's group, and how many places of it are taken.
    chains: HashMap<(u64, u64), Link>,
}

impl<'h> PartBuilder<'h> {
    fn number(&mut self, value: &'h [u8]) -> ValueId {
        let next = self.numbers.len() as ValueId + 1;
        *self.numbers.entry(value).or_insert(next)
    }

    fn push(&mut self, source: usize, operation: &Operation, from_scan: bool, op: KeyOp) {
        if matches!(op.effect, Effect::Set(_)) {
            let earliest = self.writable_from.unwrap_or(u64::MAX);
            self.writable_from = Some(earliest.min(operation.invoked));
        }
        let responded = operation.response.as_ref().map(|response| response.at);
        // A pending operation may take effect after those behind it.
        let group = operation.group.filter(|_| responded.is_some() && !from_scan);
        let link = group.map(|group| self.next_link(operation.client, group));
        self.entries.push(Entry { source, from_scan, invoked: operation.invoked, responded, op, link });
    }

    fn next_link(&mut self, client: u64, group: u64) -> Link {
        let chain = self.chains.len() as u32;
        let next = self.chains.entry((client, group)).or_insert(Link { chain, place: 0 });
        next.place += 1;
        *next
    }
}

/// The parts of a history, ordered by key.
pub(crate) fn by_key(history: &History) -> Vec<Part<KeyOp>> {
    let mut parts: BTreeMap<&[u8], PartBuilder<'_>> = BTreeMap::new();
    for (source, operation) in history.operations().iter().enumerate() {
        let Some(key) = operation.call.key() else {
            continue;
        };
        let part = parts.entry(key).or_default();
        let outcome = operation.response.as_ref().map(|response| &response.outcome);
        // Numbering and pushing both borrow the part, so they are two steps.
        if let Some(op) = number_in(part, operation, outcome) {
            part.push(source, operation, false, op);
        }
    }
    add_scans(history, &mut parts);
    parts
        .into_iter()
        .filter(|(_, part)| !part.entries.is_empty())
        .map(|(key, mut part)| {
            renumber(&mut part.entries);
            Part { key: key.to_vec(), entries: part.entries }
        })
        .collect()
}

fn number_in<'h>(part: &mut PartBuilder<'h>, operation: &'h Operation, outcome: Option<&'h Outcome>) -> Option<KeyOp> {
    key_op(&operation.call, outcome, |value| part.number(value))
}

/// Adds the reads into which scans are split (invariants 2 and 4).
fn add_scans<'h>(history: &'h History, parts: &mut BTreeMap<&'h [u8], PartBuilder<'h>>) {
    // The returned pairs come first, because they may name keys that no operation wrote.
    for (source, operation) in history.operations().iter().enumerate() {
        for (key, value) in scan::pairs(operation) {
            let part = parts.entry(key).or_default();
            let seen = part.number(value);
            part.push(source, operation, true, KeyOp::read(Some(seen)));
        }
    }
    for (source, operation) in history.operations().iter().enumerate() {
        let Some(cover) = scan::Cover::of(operation) else {
            continue;
        };
        let responded = operation.response.as_ref().map_or(0, |response| response.at);
        for (key, part) in parts.range_mut::<[u8], _>(cover.range()) {
            // An invocation at the stamp of the response counts as concurrent, so it may come first.
            let may_be_present = part.writable_from.is_some_and(|from| from <= responded);
            if may_be_present && !cover.returned(key) {
                part.push(source, operation, true, KeyOp::read(None));
            }
        }
    }
}
