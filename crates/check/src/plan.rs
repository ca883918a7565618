//! The tables that the search uses, computed once for each part.
//!
//! Invariants:
//!
//! 1. completed operations are numbered by response, so number `n` must be linearized before any operation that is
//!    invoked after `n` responds;
//! 2. two operations whose intervals overlap have different slots, and slots are few: as many as operations of the
//!    part ever overlap. So the set of linearized operations is the frontier (every number below it) and one bit for
//!    each slot, independent of the length of the history and of its slowest operation;
//! 3. an operation's predecessor is the operation before it in its chain. It is *uniform* if all that follow it in its chain
//!    are equal to it, and each responds behind the one before it. Others are not interchangeable with those of their kind;
//! 4. pending operations have neither number nor slot: they are grouped into classes of equal operations, and within
//!    a class the earliest invoked comes first.

use std::collections::HashMap;

use crate::model::{Entry, Model, Token, neighbours};
use crate::order::Positions;

/// Stands for no operation.
pub(crate) const NONE: u32 = u32::MAX;

/// Pending operations that are equal.
pub(crate) struct Class<O> {
    pub(crate) op: O,
    /// Invocation position and entry, ascending.
    pub(crate) members: Vec<(u32, usize)>,
}

/// The tables of one part.
pub(crate) struct Plan<O> {
    /// By number: the operation.
    pub(crate) ops: Vec<O>,
    /// By number: the entry.
    pub(crate) entries: Vec<usize>,
    /// By number: the kind, which is equal for equal operations.
    pub(crate) kinds: Vec<u32>,
    /// By number: whether it is uniform.
    pub(crate) uniform: Vec<bool>,
    /// By number: whether it is a read.
    pub(crate) reads: Vec<bool>,
    /// By number: the predecessor, or `NONE`.
    pub(crate) predecessors: Vec<u32>,
    /// By number: the slot.
    pub(crate) slots: Vec<u32>,
    /// By number: the response position.
    pub(crate) responses: Vec<u32>,
    /// Numbers in order of invocation.
    pub(crate) arrivals: Vec<u32>,
    /// By number: the number of arrivals before its response.
    pub(crate) arrived: Vec<u32>,
    /// Number of slots.
    pub(crate) slot_count: usize,
    /// Classes of pending operations.
    pub(crate) classes: Vec<Class<O>>,
    /// By token: the number of operations that can produce it.
    pub(crate) producers: Vec<u32>,
    /// By token: the number of completed operations that observe it.
    pub(crate) observers: Vec<u32>,
    /// By token: the number of operations that distinguish it.
    pub(crate) watchers: Vec<u32>,
    /// By token: the number of operations that distinguish it and do not observe it.
    pub(crate) excluders: Vec<u32>,
    /// Number of kinds.
    pub(crate) kind_count: usize,
}

impl<O: Clone + Eq + std::hash::Hash> Plan<O> {
    /// Computes the tables for the entries of one part.
    pub(crate) fn new<M: Model<Op = O>>(model: &M, entries: &[Entry<O>]) -> Self {
        let positions = Positions::of(entries);
        let mut by_response: Vec<(u32, usize)> =
            (0..entries.len()).filter_map(|index| Some((positions.responded(index)?, index))).collect();
        by_response.sort_unstable();
        let mut kind_numbers: HashMap<&O, u32> = HashMap::new();
        let mut plan = Self {
            ops: by_response.iter().map(|&(_, entry)| entries[entry].op.clone()).collect(),
            entries: by_response.iter().map(|&(_, entry)| entry).collect(),
            kinds: Vec::with_capacity(by_response.len()),
            uniform: vec![true; by_response.len()],
            reads: Vec::with_capacity(by_response.len()),
            predecessors: vec![NONE; by_response.len()],
            slots: vec![0; by_response.len()],
            responses: by_response.iter().map(|&(response, _)| response).collect(),
            arrivals: (0..by_response.len() as u32).collect(),
            arrived: vec![0; by_response.len()],
            slot_count: 0,
            classes: classes(model, entries, &positions),
            producers: Vec::new(),
            observers: Vec::new(),
            watchers: Vec::new(),
            excluders: Vec::new(),
            kind_count: 0,
        };
        for &(_, entry) in &by_response {
            let op = &entries[entry].op;
            let next = kind_numbers.len() as u32;
            plan.kinds.push(*kind_numbers.entry(op).or_insert(next));
            plan.reads.push(model.is_read(op));
        }
        plan.kind_count = kind_numbers.len();
        plan.link(entries);
        let invoked = |number: u32| positions.invoked(plan.entries[number as usize]);
        plan.arrivals.sort_unstable_by_key(|&number| invoked(number));
        plan.assign_slots(&positions);
        plan.count_tokens(model);
        plan
    }

    /// Enters the chains of completed operations.
    fn link(&mut self, entries: &[Entry<O>]) {
        let pairs = neighbours(entries);
        if pairs.is_empty() {
            return;
        }
        let mut numbers = vec![NONE; entries.len()];
        for (number, &entry) in self.entries.iter().enumerate() {
            numbers[entry] = number as u32;
        }
        // The last pair of a chain first: whatever follows is known then.
        for (first, next) in pairs.into_iter().rev() {
            let (first, next) = (numbers[first] as usize, numbers[next] as usize);
            self.predecessors[next] = first as u32;
            self.uniform[first] = self.uniform[next] && self.kinds[first] == self.kinds[next] && first < next;
        }
    }

    /// Assigns slots in the order of events: an invocation takes a free slot, and its response frees it.
    fn assign_slots(&mut self, positions: &Positions) {
        let mut free: Vec<u32> = Vec::new();
        let mut arrived = 0;
        for number in 0..self.ops.len() {
            while let Some(&arrival) = self.arrivals.get(arrived) {
                let arrival = arrival as usize;
                if positions.invoked(self.entries[arrival]) > self.responses[number] {
                    break;
                }
                self.slots[arrival] = free.pop().unwrap_or_else(|| {
                    self.slot_count += 1;
                    self.slot_count as u32 - 1
                });
                arrived += 1;
            }
            self.arrived[number] = arrived as u32;
            free.push(self.slots[number]);
        }
    }

    fn count_tokens<M: Model<Op = O>>(&mut self, model: &M) {
        let Self { ops, classes, producers, observers, watchers, excluders, .. } = self;
        for op in ops.iter() {
            count(producers, model.produces(op), 1);
            count(observers, model.observes(op), 1);
            count(watchers, model.distinguishes(op), 1);
            count(excluders, excluded(model, op), 1);
        }
        for class in classes {
            let members = class.members.len() as u32;
            count(producers, model.produces(&class.op), members);
            count(watchers, model.distinguishes(&class.op), members);
            count(excluders, excluded(model, &class.op), members);
        }
        // All tables are indexed by every token that one of them contains.
        let length = producers.len().max(watchers.len());
        for table in [producers, observers, watchers, excluders] {
            table.resize(length, 0);
        }
    }
}

/// The token that an operation distinguishes and does not observe.
pub(crate) fn excluded<M: Model>(model: &M, op: &M::Op) -> Option<Token> {
    model.distinguishes(op).filter(|token| model.observes(op) != Some(*token))
}

fn count(counts: &mut Vec<u32>, token: Option<Token>, by: u32) {
    if let Some(token) = token {
        let token = token as usize;
        if counts.len() <= token {
            counts.resize(token + 1, 0);
        }
        counts[token] += by;
    }
}

fn classes<M: Model>(model: &M, entries: &[Entry<M::Op>], positions: &Positions) -> Vec<Class<M::Op>> {
    let mut numbers: HashMap<&M::Op, usize> = HashMap::new();
    let mut classes: Vec<Class<M::Op>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        // A pending read has no effect and returned nothing.
        if entry.responded.is_some() || model.is_read(&entry.op) {
            continue;
        }
        let number = *numbers.entry(&entry.op).or_insert(classes.len());
        if number == classes.len() {
            classes.push(Class { op: entry.op.clone(), members: Vec::new() });
        }
        classes[number].members.push((positions.invoked(index), index));
    }
    for class in &mut classes {
        class.members.sort_unstable();
    }
    classes
}
