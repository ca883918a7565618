//! Combines several writes of one key into one.
//!
//! Invariants: a [`Plan`] has the same effect on a key, present or absent, as its members one after the other.
//! [`outcomes`] returns the outcome that each member would have had.

/// Kind of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// See [`PointIndex::insert`](crate::PointIndex::insert).
    Insert,
    /// See [`PointIndex::update`](crate::PointIndex::update).
    Update,
    /// See [`PointIndex::upsert`](crate::PointIndex::upsert).
    Upsert,
    /// See [`PointIndex::remove`](crate::PointIndex::remove).
    Remove,
}

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Absent before, present now.
    Inserted,
    /// Present, and unchanged.
    Exists,
    /// Present, with the new value.
    Updated,
    /// Absent, and still so.
    Absent,
    /// Present before, absent now.
    Removed,
}

/// The remote operation that a group runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// An insert.
    Insert,
    /// An update.
    Update,
    /// An upsert.
    Upsert,
    /// A removal.
    Remove,
}

/// State of the key after a group, under one hypothesis about its state before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// As before.
    Unchanged,
    /// With the value of this member.
    Value(usize),
    /// It was present, and is absent now.
    Removed,
}

impl What {
    /// Returns the outcome of one write, and whether the key is present afterwards.
    fn apply(self, present: bool) -> (Outcome, bool) {
        match (self, present) {
            (What::Insert | What::Upsert, false) => (Outcome::Inserted, true),
            (What::Insert, true) => (Outcome::Exists, true),
            (What::Update | What::Upsert, true) => (Outcome::Updated, true),
            (What::Update | What::Remove, false) => (Outcome::Absent, false),
            (What::Remove, true) => (Outcome::Removed, false),
        }
    }

    /// Returns the remote operation for this write alone.
    pub fn alone(self) -> Remote {
        match self {
            What::Insert => Remote::Insert,
            What::Update => Remote::Update,
            What::Upsert => Remote::Upsert,
            What::Remove => Remote::Remove,
        }
    }
}

/// One remote operation that replaces several writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of writes that it replaces: the first ones.
    pub len: usize,
    /// The remote operation.
    pub remote: Remote,
    /// The member whose value it writes.
    pub member: usize,
}

impl Plan {
    /// Plans the longest prefix of these writes, of which `first` is the first, that one operation can replace.
    pub fn of(first: What, others: impl Iterator<Item = What>) -> Plan {
        let mut plan = Plan { len: 1, remote: first.alone(), member: 0 };
        let mut ends = [Run::new(true), Run::new(false)];
        for (i, what) in std::iter::once(first).chain(others).enumerate() {
            ends.iter_mut().for_each(|run| run.step(i, what));
            let folded = match ends.map(|run| run.end()) {
                [End::Value(one), End::Value(two)] if one == two => Some((Remote::Upsert, one)),
                [End::Value(member), End::Unchanged] => Some((Remote::Update, member)),
                [End::Unchanged, End::Value(member)] => Some((Remote::Insert, member)),
                [End::Removed, End::Unchanged] => Some((Remote::Remove, 0)),
                _ => None,
            };
            if let Some((remote, member)) = folded {
                plan = Plan { len: i + 1, remote, member };
            }
        }
        plan
    }
}

/// A key's state during a group, under one hypothesis about its state before.
#[derive(Clone, Copy)]
struct Run {
    was: bool,
    present: bool,
    value: Option<usize>,
}

impl Run {
    fn new(was: bool) -> Self {
        Run { was, present: was, value: None }
    }
    fn step(&mut self, i: usize, what: What) {
        let (outcome, present) = what.apply(self.present);
        self.present = present;
        if matches!(outcome, Outcome::Inserted | Outcome::Updated) {
            self.value = Some(i);
        }
    }
    fn end(self) -> End {
        match (self.was, self.present, self.value) {
            (true, false, _) => End::Removed,
            (_, true, Some(member)) => End::Value(member),
            _ => End::Unchanged,
        }
    }
}

/// Returns the outcome of each write of a group, if the key was `present` before.
pub(super) fn outcomes(mut present: bool, writes: impl Iterator<Item = What>) -> impl Iterator<Item = Outcome> {
    writes.map(move |what| {
        let outcome;
        (outcome, present) = what.apply(present);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [What; 4] = [What::Insert, What::Update, What::Upsert, What::Remove];

    /// Tries every group of up to six writes, on both states of the key.
    #[test]
    fn plan_has_the_effect_of_its_members() {
        for count in 1..=6u32 {
            for number in 0..4usize.pow(count) {
                let group: Vec<What> = (0..count).map(|i| ALL[number / 4usize.pow(i) % 4]).collect();
                let plan = Plan::of(group[0], group[1..].iter().copied());
                for was in [false, true] {
                    // The key's value: a member's number, or MAX for the value before.
                    let mut value = was.then_some(usize::MAX);
                    for (i, what) in group[..plan.len].iter().enumerate() {
                        value = after(*what, value, i);
                    }
                    let remote = ALL.into_iter().find(|what| what.alone() == plan.remote).expect("one of four");
                    assert_eq!(after(remote, was.then_some(usize::MAX), plan.member), value, "{group:?} {plan:?}");
                }
            }
        }
    }

    fn after(what: What, value: Option<usize>, i: usize) -> Option<usize> {
        match what {
            What::Insert => value.or(Some(i)),
            What::Update => value.map(|_| i),
            What::Upsert => Some(i),
            What::Remove => None,
        }
    }

    #[test]
    fn plan_folds_all_but_updates_before_inserts() {
        let plan = |group: &[What]| Plan::of(group[0], group[1..].iter().copied());
        let (insert, update, upsert, remove) = (What::Insert, What::Update, What::Upsert, What::Remove);
        assert_eq!(plan(&[upsert, upsert, upsert]), Plan { len: 3, remote: Remote::Upsert, member: 2 });
        assert_eq!(plan(&[update, insert]), Plan { len: 1, remote: Remote::Update, member: 0 });
        assert_eq!(plan(&[update, insert, update]), Plan { len: 3, remote: Remote::Upsert, member: 2 });
        assert_eq!(plan(&[update, insert, remove]), Plan { len: 3, remote: Remote::Remove, member: 0 });
        assert_eq!(plan(&[insert, insert]), Plan { len: 2, remote: Remote::Insert, member: 0 });
        assert_eq!(plan(&[remove, insert]), Plan { len: 2, remote: Remote::Upsert, member: 1 });
        let reported: Vec<_> = outcomes(true, [remove, update, insert, upsert, insert].into_iter()).collect();
        let expected = [Outcome::Removed, Outcome::Absent, Outcome::Inserted, Outcome::Updated, Outcome::Exists];
        assert_eq!(reported, expected);
    }
}
