//! Inserts, updates, upserts and replacements are one operation: a lookup, and a change that its [`Mode`] decides from the
//! lookup's result. A removal is the same without a new value.

use crate::IndexError;
use crate::faults::{Fault, planted};
use crate::traits::{Insert, PointIndex, Remove, RemoveIf, Replace, Update, Upsert};
use farindex_fabric::OpKind;

/// The condition on the value of a present key under which an operation changes the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard<'a> {
    /// None.
    Any,
    /// The key has exactly this value.
    Equals(&'a [u8]),
}

impl<'a> Guard<'a> {
    /// Begins to check the values that an operation finds, one for each attempt.
    pub(crate) fn begin(self) -> Check<'a> {
        Check { guard: self, compared: false }
    }
    pub(crate) fn admits(self, value: &[u8]) -> bool {
        match self {
            Guard::Any => true,
            Guard::Equals(expected) => expected == value,
        }
    }
}

/// The guard of an operation that looks up its key again when a CAS has failed. Each value that it finds is compared anew:
/// that the CAS failed says that the key may have another one.
pub(crate) struct Check<'a> {
    guard: Guard<'a>,
    compared: bool,
}

impl Check<'_> {
    /// May the operation change a key that has this value?
    pub(crate) fn admits(&mut self, value: &[u8]) -> bool {
        let again = std::mem::replace(&mut self.compared, true);
        self.guard.admits(value) || again && planted(Fault::ComparedOnce)
    }
}

/// What a write does if the key is present, and if it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode<'a> {
    Insert,
    Update(Guard<'a>),
    Upsert,
}

impl<'a> Mode<'a> {
    /// An update, whatever the value is.
    pub(crate) const UPDATE: Mode<'static> = Mode::Update(Guard::Any);

    /// Returns the kind of operation that the meter counts: a replacement is an update.
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Mode::Insert => OpKind::Insert,
            Mode::Update(_) => OpKind::Update,
            Mode::Upsert => OpKind::Upsert,
        }
    }
    /// Does it leave an absent key absent?
    pub(crate) fn is_update(self) -> bool {
        matches!(self, Mode::Update(_))
    }
    /// The condition under which it changes a present key. An insert never does.
    pub(crate) fn guard(self) -> Guard<'a> {
        match self {
            Mode::Update(guard) => guard,
            Mode::Insert | Mode::Upsert => Guard::Any,
        }
    }
}

/// Effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrote {
    Inserted,
    Updated,
    /// None: the key is present, and an insert needs an absent key.
    Exists,
    /// None: the key is absent, and an update needs a present key.
    Absent,
    /// None: the key has another value than the guard demands.
    Differs,
}

impl From<Wrote> for Insert {
    fn from(wrote: Wrote) -> Self {
        if wrote == Wrote::Exists { Insert::Exists } else { Insert::Inserted }
    }
}

impl From<Wrote> for Update {
    fn from(wrote: Wrote) -> Self {
        if wrote == Wrote::Absent { Update::Absent } else { Update::Updated }
    }
}

impl From<Wrote> for Upsert {
    fn from(wrote: Wrote) -> Self {
        if wrote == Wrote::Updated { Upsert::Updated } else { Upsert::Inserted }
    }
}

impl From<Wrote> for Replace {
    fn from(wrote: Wrote) -> Self {
        match wrote {
            Wrote::Absent => Replace::Absent,
            Wrote::Differs => Replace::Differs,
            Wrote::Inserted | Wrote::Updated | Wrote::Exists => Replace::Replaced,
        }
    }
}

impl From<Wrote> for RemoveIf {
    fn from(wrote: Wrote) -> Self {
        match wrote {
            Wrote::Absent => RemoveIf::Absent,
            Wrote::Differs => RemoveIf::Differs,
            Wrote::Inserted | Wrote::Updated | Wrote::Exists => RemoveIf::Removed,
        }
    }
}

/// Of a removal without a condition.
impl From<RemoveIf> for Remove {
    fn from(removed: RemoveIf) -> Self {
        if removed == RemoveIf::Removed { Remove::Removed } else { Remove::Absent }
    }
}

/// Carries out upserts one after the other, for kinds that prepare none of them together.
pub async fn upsert_each(index: &impl PointIndex, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
    let mut outcomes = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        outcomes.push(index.upsert(key, value).await);
    }
    outcomes
}
