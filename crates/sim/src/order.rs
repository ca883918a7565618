//! G4 and N3: which verbs of a batch to one node wait for which earlier ones.
//!
//! | a later ... waits for an earlier | WRITE | READ, CAS, FAA, control |
//! |---|---|---|
//! | WRITE | yes | only behind a fence |
//! | READ, CAS, FAA, control | yes | yes |
//!
//! Invariants: what a verb waits for has taken effect in full before the verb begins. A schedule that respects this
//! table and is cut at any moment leaves a set of verbs that is closed under the table, as N7 requires.

use farindex_fabric::{Verb, VerbKind};

/// The classes of verbs that the table distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// WRITEs.
    Write,
    /// READs, atomics, and the control path.
    Fetch,
}

impl Class {
    pub(crate) fn of(verb: &Verb) -> Class {
        match verb.kind {
            VerbKind::Write(_) => Class::Write,
            _ => Class::Fetch,
        }
    }
}

/// The schedule of one batch to one node, up to the verb that is scheduled next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    writes_done: u64,
    fetches_done: u64,
}

impl Order {
    /// Creates an empty schedule in which nothing begins before `start`.
    pub(crate) fn new(start: u64) -> Self {
        Order { writes_done: start, fetches_done: start }
    }
    /// Returns the first moment at which the next verb of this class may begin. `overtakes`: a WRITE uses N3 unless a
    /// fence forbids it.
    pub(crate) fn earliest(&self, class: Class, fence: bool, overtakes: bool) -> u64 {
        match class {
            Class::Write if overtakes && !fence => self.writes_done,
            _ => self.writes_done.max(self.fetches_done),
        }
    }
    /// Adds a verb of this class that has taken effect in full at `end`.
    pub(crate) fn ends(&mut self, class: Class, end: u64) {
        let done = match class {
            Class::Write => &mut self.writes_done,
            Class::Fetch => &mut self.fetches_done,
        };
        *done = end.max(*done);
    }
    /// Returns the moment at which all verbs have taken effect.
    pub(crate) fn end(&self) -> u64 {
        self.writes_done.max(self.fetches_done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_lets_a_write_overtake_fetches_but_no_write_and_no_fence() {
        let mut order = Order::new(10);
        order.ends(Class::Write, 20);
        order.ends(Class::Fetch, 50);
        assert_eq!(order.earliest(Class::Write, false, true), 20);
        assert_eq!(order.earliest(Class::Write, true, true), 50);
        assert_eq!(order.earliest(Class::Write, false, false), 50);
        assert_eq!(order.earliest(Class::Fetch, false, true), 50);
        order.ends(Class::Write, 90);
        assert_eq!(order.earliest(Class::Fetch, false, true), 90);
    }
}
