//! Budgets: how many round trips an operation takes where nothing interferes, as `docs/protocols` states it.
//!
//! In a quiet run ([`Setup::quiet`](crate::Setup::quiet)) one client works alone, on an index with its default settings, and
//! no verb is late, torn or lost. Then nearly every operation keeps to the budget of its kind. The others pay for what is
//! stated apart: a cold cache, growth, a synchronization, another key with the same fingerprint. So there is a limit for
//! them too, and a least share of those that keep to it.

use crate::workload::Op;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Round trips of each operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The kind of index.
    pub kind: &'static str,
    /// Of a get of one key.
    pub get: u64,
    /// Of an insert of an absent key.
    pub insert: u64,
    /// Of an upsert.
    pub upsert: u64,
    /// Of an update, a removal, and those that expect a value.
    pub change: u64,
    /// More for the first operation of a client in an epoch: DEX READs the anchor (D8).
    pub epoch: u64,
}

/// Of 100 operations so many keep to the budget, at least.
const LEAST: u64 = 80;
/// No operation takes more round trips: those that split, merge, grow or displace, with whatever is not cached.
const MOST: u64 = 20;

/// One row for each kind, with records out of band.
pub const BUDGETS: [Budget; 8] = [
    Budget { kind: "shard", get: 2, insert: 2, upsert: 3, change: 3, epoch: 0 },
    Budget { kind: "race", get: 2, insert: 3, upsert: 3, change: 3, epoch: 0 },
    Budget { kind: "sephash", get: 3, insert: 4, upsert: 2, change: 4, epoch: 0 },
    Budget { kind: "linear", get: 2, insert: 3, upsert: 3, change: 3, epoch: 0 },
    Budget { kind: "cuckoo", get: 2, insert: 4, upsert: 4, change: 3, epoch: 0 },
    Budget { kind: "sherman", get: 2, insert: 3, upsert: 3, change: 3, epoch: 0 },
    Budget { kind: "chime", get: 3, insert: 4, upsert: 4, change: 4, epoch: 0 },
    Budget { kind: "dex", get: 2, insert: 4, upsert: 4, change: 4, epoch: 1 },
];

impl Budget {
    /// The budget of a kind of index.
    pub fn of(kind: &str) -> Option<Budget> {
        BUDGETS.into_iter().find(|budget| budget.kind == kind)
    }
    fn round_trips(&self, op: Op) -> u64 {
        match op {
            Op::Get => self.get,
            Op::Insert => self.insert,
            Op::Upsert => self.upsert,
            Op::Update | Op::Remove | Op::Replace | Op::RemoveIf => self.change,
        }
    }
}

/// What the operations of a quiet run have cost.
#[derive(Debug)]
pub(crate) struct Costs {
    budget: Budget,
    operations: Cell<u64>,
    kept: Cell<u64>,
    most: Cell<u64>,
    epoch: Cell<u64>,
    beyond: RefCell<BTreeMap<String, u64>>,
}

impl Costs {
    pub(crate) fn new(budget: Budget) -> Self {
        let (operations, kept, most, epoch) = Default::default();
        Costs { budget, operations, kept, most, epoch, beyond: Default::default() }
    }
    /// An operation has taken so many round trips. `epoch` is the one that the client, which is alone, knows afterwards.
    pub(crate) fn add(&self, op: Op, round_trips: u64, epoch: u64) {
        let first = self.epoch.replace(epoch) != epoch;
        self.operations.set(self.operations.get() + 1);
        self.most.set(self.most.get().max(round_trips));
        if round_trips <= self.budget.round_trips(op) + u64::from(first) * self.budget.epoch {
            self.kept.set(self.kept.get() + 1);
        } else {
            *self.beyond.borrow_mut().entry(format!("{op:?} in {round_trips}")).or_default() += 1;
        }
    }
    /// Operations, and those that kept to their budgets.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.operations.get(), self.kept.get(), self.most.get())
    }
    /// What is wrong, if anything is.
    pub(crate) fn judge(&self) -> Option<String> {
        let (operations, kept, most) = self.counts();
        let wrong = kept * 100 < operations * LEAST || most > MOST;
        wrong.then(|| {
            let beyond = self.beyond.borrow();
            format!("budget: {kept} of {operations} operations keep to {:?}; beyond it: {beyond:?}", self.budget)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BUDGETS, Budget, Costs, MOST};
    use crate::test_runs::shipped;
    use crate::workload::Op;

    #[test]
    fn every_shipped_kind_has_a_budget() {
        let kinds: Vec<_> =
            shipped().iter().map(|index| index.config().kind()).filter(|kind| *kind != "blink").collect();
        assert_eq!(kinds, BUDGETS.map(|budget| budget.kind));
    }

    #[test]
    fn a_fifth_of_the_operations_may_exceed_the_budget_and_none_the_limit() {
        let budget = Budget::of("race").expect("a budget");
        let costs = |beyond: u64, most: u64| {
            let costs = Costs::new(budget);
            (0..100 - beyond).for_each(|_| costs.add(Op::Get, budget.get, 1));
            (0..beyond).for_each(|_| costs.add(Op::Get, most, 1));
            costs.judge()
        };
        assert_eq!(costs(20, budget.get + 1), None);
        assert_eq!(costs(20, MOST), None);
        assert!(costs(21, budget.get + 1).is_some());
        assert!(costs(1, MOST + 1).is_some());
    }

    #[test]
    fn the_first_operation_of_an_epoch_may_take_more_where_that_is_stated() {
        let judged = |kind: &str, epochs: fn(u64) -> u64| {
            let budget = Budget::of(kind).expect("a budget");
            let costs = Costs::new(budget);
            (1..100).for_each(|i| costs.add(Op::Get, budget.get + 1, epochs(i)));
            costs.judge().is_none()
        };
        assert_eq!((judged("dex", |i| i), judged("dex", |i| i / 2), judged("race", |i| i)), (true, false, false));
    }
}
