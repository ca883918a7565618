//! Inserts, updates and upserts are one operation: a search, and what its [`Mode`] says of what it has found.

use crate::traits::{Insert, Update, Upsert};
use farindex_fabric::OpKind;

/// What a write does with a key that is present, and with one that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Insert,
    Update,
    Upsert,
}

impl Mode {
    /// As the meter counts it.
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Mode::Insert => OpKind::Insert,
            Mode::Update => OpKind::Update,
            Mode::Upsert => OpKind::Upsert,
        }
    }
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrote {
    Inserted,
    Updated,
    /// Nothing: the key is present, and was to be absent.
    Exists,
    /// Nothing: the key is absent, and was to be present.
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
