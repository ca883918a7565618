//! G4 and N3: which verbs of a batch to one node wait for which.
//!
//! | a later ... waits for an earlier | WRITE | READ, CAS, FAA, control |
//! |---|---|---|
//! | WRITE | yes | only behind a fence |
//! | READ, CAS, FAA, control | yes | yes |
//!
//! Invariants: what a verb waits for has taken effect in full before the verb begins; cutting a schedule that respects
//! this table at any moment leaves a set of verbs that is closed under it, which is all that N7 asks for.

use farindex_fabric::{Verb, VerbKind};

/// What the table distinguishes.
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

/// How far the schedule of one batch to one node has got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    writes_done: u64,
    fetches_done: u64,
}

impl Order {
    /// Nothing begins before `start`.
    pub(crate) fn new(start: u64) -> Self {
        Order { writes_done: start, fetches_done: start }
    }
    /// The first moment at which the next verb of this class may begin. `overtakes`: a WRITE uses N3, if no fence
    /// forbids it.
    pub(crate) fn earliest(&self, class: Class, fence: bool, overtakes: bool) -> u64 {
        match class {
            Class::Write if overtakes && !fence => self.writes_done,
            _ => self.writes_done.max(self.fetches_done),
        }
    }
    /// A verb of this class has taken effect in full at `end`.
    pub(crate) fn ends(&mut self, class: Class, end: u64) {
        let done = match class {
            Class::Write => &mut self.writes_done,
            Class::Fetch => &mut self.fetches_done,
        };
        *done = end.max(*done);
    }
    /// When all of it has taken effect.
    pub(crate) fn end(&self) -> u64 {
        self.writes_done.max(self.fetches_done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_overtakes_fetches_alone_and_no_fence() {
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
