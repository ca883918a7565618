//! Inserts, updates and upserts are one operation: a lookup, and a change that its [`Mode`] decides from the lookup's
//! result.

use crate::traits::{Insert, Update, Upsert};
use farindex_fabric::OpKind;

/// What a write does if the key is present, and if it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Insert,
    Update,
    Upsert,
}

impl Mode {
    /// Returns the kind of operation that the meter counts.
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Mode::Insert => OpKind::Insert,
            Mode::Update => OpKind::Update,
            Mode::Upsert => OpKind::Upsert,
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
