//! Histories: the operations that clients invoked on a key-value store, their outcomes, and when.
//!
//! Invariants of a [`History`], established by [`History::new`] and never broken afterwards:
//!
//! 1. no operation responds before it is invoked;
//! 2. an outcome fits its operation (a `Get` never returns `Removed`).
//!
//! **Order of events.** An invocation or a response is an event with a stamp. Events are ordered by stamp; at equal
//! stamps every invocation comes before every response. So an operation that responds at 10 and another invoked at 10
//! count as concurrent: an equal stamp never proves an order. An equal stamp can hide a violation, but it never creates
//! one. So a clock that repeats stamps weakens the check, even between successive operations of one client. A simulator
//! whose virtual time does not advance between events should stamp through [`Stamps`], which never repeats.
//!
//! **Pending operations.** An operation without a response is *pending*: its client crashed, was disconnected, or got
//! an error that leaves the effect unknown. It may take effect at any moment after its invocation, once, or never. Its
//! client may continue: later operations of the same client give no information about a pending one. An operation that
//! failed with an error that proves that it had no effect is not pending; it is left out of the history.
//!
//! **Clients.** The check uses only the stamps. A client may therefore have several operations in flight (one for
//! each of its coroutines); its number only serves to read and draw the history.
//!
//! **Groups.** Operations of one client that have the same group number are parts of one call, and the call promises that
//! they take effect in the order in which the history lists them. The promise is checked for operations on one key that
//! completed; an operation that failed may take effect later than those behind it.
//!
//! **Beginning.** Every key is absent at first. A store that was loaded beforehand is described by writes of a loading
//! client which end before the first measured invocation.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

/// A client's call. Keys and values are arbitrary byte strings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Reads the value of a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Stores a value if the key is absent.
    Insert {
        /// The key.
        key: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Replaces the value if the key is present.
    Update {
        /// The key.
        key: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Stores a value, whether the key is present or absent.
    Upsert {
        /// The key.
        key: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Deletes the key.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
    /// Replaces the value if the key has an expected one: a compare-and-swap.
    Replace {
        /// The key.
        key: Vec<u8>,
        /// The value that the key must have.
        expected: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Deletes the key if it has an expected value.
    RemoveIf {
        /// The key.
        key: Vec<u8>,
        /// The value that the key must have.
        expected: Vec<u8>,
    },
    /// Reads the pairs of a range in ascending order of keys.
    Scan {
        /// The lower bound.
        from: Bound<Vec<u8>>,
        /// The upper bound; `Unbounded` if the store has no such argument.
        to: Bound<Vec<u8>>,
        /// The maximum number of pairs to return; `None` means all. A scan that its caller stopped after `n` pairs has
        /// the limit `n`.
        limit: Option<u64>,
    },
}

impl Call {
    /// A scan from a lower to an upper bound. `limit`: the maximum number of pairs.
    pub fn scan(from: Bound<&[u8]>, to: Bound<&[u8]>, limit: Option<u64>) -> Self {
        Call::Scan { from: from.map(<[u8]>::to_vec), to: to.map(<[u8]>::to_vec), limit }
    }

    /// The key of a point operation; `None` for a scan.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Call::Get { key }
            | Call::Insert { key, .. }
            | Call::Update { key, .. }
            | Call::Upsert { key, .. }
            | Call::Remove { key }
            | Call::Replace { key, .. }
            | Call::RemoveIf { key, .. } => Some(key),
            Call::Scan { .. } => None,
        }
    }

    /// Is it a scan whose limit is 0, or between whose bounds no key lies? A store can answer that without looking.
    pub(crate) fn asks_for_nothing(&self) -> bool {
        let Call::Scan { from, to, limit } = self else { return false };
        let no_key_between = match (from, to) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        };
        *limit == Some(0) || no_key_between
    }

    /// The value that it stores, if it stores one.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Call::Insert { value, .. }
            | Call::Update { value, .. }
            | Call::Upsert { value, .. }
            | Call::Replace { value, .. } => Some(value),
            Call::Get { .. } | Call::Remove { .. } | Call::RemoveIf { .. } | Call::Scan { .. } => None,
        }
    }

    /// The value that the key must have for it to change anything, if it expects one.
    pub fn expected(&self) -> Option<&[u8]> {
        match self {
            Call::Replace { expected, .. } | Call::RemoveIf { expected, .. } => Some(expected),
            _ => None,
        }
    }

    /// The call's name in the history format and in explanations.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Get { .. } => "get",
            Call::Insert { .. } => "insert",
            Call::Update { .. } => "update",
            Call::Upsert { .. } => "upsert",
            Call::Remove { .. } => "remove",
            Call::Replace { .. } => "replace",
            Call::RemoveIf { .. } => "remove_if",
            Call::Scan { .. } => "scan",
        }
    }

    /// Returns whether this call can have this outcome.
    pub fn admits(&self, outcome: &Outcome) -> bool {
        use Outcome::*;
        matches!(
            (self, outcome),
            (Call::Get { .. }, Value(_))
                | (Call::Insert { .. }, Inserted | Exists)
                | (Call::Update { .. }, Updated | Absent)
                | (Call::Upsert { .. }, Inserted | Updated | Written)
                | (Call::Remove { .. }, Removed | Absent)
                | (Call::Replace { .. }, Replaced | Differs | Absent)
                | (Call::RemoveIf { .. }, Removed | Differs | Absent)
                | (Call::Scan { .. }, Pairs(_))
        )
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// `Get`: the value, or `None` if the key was absent.
    Value(Option<Vec<u8>>),
    /// `Insert`, `Upsert`: the key was absent and now has the value.
    Inserted,
    /// `Insert`: the key was present; nothing changed.
    Exists,
    /// `Update`, `Upsert`: the key was present and now has the new value.
    Updated,
    /// `Update`, `Remove`, `Replace`, `RemoveIf`: the key was absent; nothing changed.
    Absent,
    /// `Replace`, `RemoveIf`: the key was present with another value than the expected one; nothing changed.
    Differs,
    /// `Replace`: the key had the expected value and now has the new one.
    Replaced,
    /// `Upsert`: the key now has the value; whether it was present before is not reported.
    Written,
    /// `Remove`, `RemoveIf`: the key was present, with the expected value if there is one, and is now absent.
    Removed,
    /// `Scan`: the pairs of keys and values, in the order in which they were returned.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Outcome {
    /// The outcome's name in the history format and in explanations.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Value(_) => "value",
            Outcome::Inserted => "inserted",
            Outcome::Exists => "exists",
            Outcome::Updated => "updated",
            Outcome::Absent => "absent",
            Outcome::Differs => "differs",
            Outcome::Replaced => "replaced",
            Outcome::Written => "written",
            Outcome::Removed => "removed",
            Outcome::Pairs(_) => "pairs",
        }
    }
}

/// The response of a completed operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Response {
    /// When the client received it.
    pub at: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The client's number.
    pub client: u64,
    /// The call.
    pub call: Call,
    /// When it was invoked.
    pub invoked: u64,
    /// The response; `None` if the operation is pending.
    pub response: Option<Response>,
    /// The client's operations with the same group take effect in the order in which the history lists them.
    pub group: Option<u64>,
}

/// The reason why a list of operations is not a valid history. `index` is the operation's position in the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Invariant 1 is broken.
    #[error("operation {index} responds at {responded}, before its invocation at {invoked}")]
    RespondsBeforeInvoked {
        /// The operation.
        index: usize,
        /// Its invocation.
        invoked: u64,
        /// Its response.
        responded: u64,
    },
    /// Invariant 2 is broken.
    #[error("operation {index}: a {call} cannot have the outcome \"{outcome}\"")]
    OutcomeMismatch {
        /// The operation.
        index: usize,
        /// The call's name.
        call: &'static str,
        /// The outcome's name.
        outcome: &'static str,
    },
    /// There are more operations than the checker can number.
    #[error("{0} operations are more than a history can hold")]
    TooLong(usize),
    /// The recorder's history was requested while client logs were open.
    #[error("{0} client logs are still open; drop them first")]
    OpenLogs(usize),
}

/// A validated list of operations. Reports name operations by their position in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
}

/// Event positions are 32-bit and each operation has two events.
const OPERATIONS_MAX: usize = (u32::MAX / 4) as usize;

impl History {
    /// Validates a list of operations. Their order is kept, and has a meaning only within a group.
    pub fn new(operations: Vec<Operation>) -> Result<Self, HistoryError> {
        if operations.len() > OPERATIONS_MAX {
            return Err(HistoryError::TooLong(operations.len()));
        }
        for (index, operation) in operations.iter().enumerate() {
            validate(index, operation)?;
        }
        Ok(Self { operations })
    }

    /// The operations, in the order in which they were given.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Returns the list of operations.
    pub fn into_operations(self) -> Vec<Operation> {
        self.operations
    }

    /// Returns the number of operations of each client.
    pub fn clients(&self) -> BTreeMap<u64, usize> {
        let mut clients = BTreeMap::new();
        for operation in &self.operations {
            *clients.entry(operation.client).or_default() += 1;
        }
        clients
    }
}

/// Checks the invariants of one operation; `index` only names it in the error.
pub(crate) fn validate(index: usize, operation: &Operation) -> Result<(), HistoryError> {
    let Some(response) = &operation.response else {
        return Ok(());
    };
    if response.at < operation.invoked {
        return Err(HistoryError::RespondsBeforeInvoked { index, invoked: operation.invoked, responded: response.at });
    }
    if !operation.call.admits(&response.outcome) {
        return Err(HistoryError::OutcomeMismatch {
            index,
            call: operation.call.name(),
            outcome: response.outcome.name(),
        });
    }
    Ok(())
}

/// Makes stamps that never repeat from a clock that may not advance between events.
///
/// Each stamp is the given time, or one more than the last stamp if that is later. A single-threaded simulator that
/// stamps every event through one `Stamps` records the order of execution, which is a valid order of the events: later
/// events cannot influence earlier ones.
#[derive(Debug, Default)]
pub struct Stamps {
    /// The smallest stamp that may be returned next.
    next: AtomicU64,
}

impl Stamps {
    /// Creates a source of stamps that begins at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a stamp of at least `now`, larger than every earlier one.
    pub fn at(&self, now: u64) -> u64 {
        // SeqCst: the stamps define the order of events across threads, and this code is not performance-critical. The
        // closure always returns `Some`, so both arms carry the previous value.
        let previous =
            self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |next| Some(next.max(now).saturating_add(1)));
        match previous {
            Ok(next) | Err(next) => next.max(now),
        }
    }

    /// Returns the next number of a plain counter, for runs without a clock.
    pub fn tick(&self) -> u64 {
        self.at(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_follow_the_clock_and_never_repeat() {
        let stamps = Stamps::new();
        assert_eq!([stamps.at(5), stamps.at(5), stamps.at(3), stamps.at(9)], [5, 6, 7, 9]);
        assert_eq!(stamps.tick(), 10);
    }

    #[test]
    fn history_rejects_invalid_operations() {
        let get = |invoked, at, outcome| Operation {
            client: 0,
            call: Call::Get { key: vec![] },
            invoked,
            response: Some(Response { at, outcome }),
            group: None,
        };
        let backwards = History::new(vec![get(5, 4, Outcome::Value(None))]);
        assert!(matches!(backwards, Err(HistoryError::RespondsBeforeInvoked { index: 0, .. })));
        let misfit = History::new(vec![get(1, 1, Outcome::Value(None)), get(5, 6, Outcome::Removed)]);
        assert!(matches!(misfit, Err(HistoryError::OutcomeMismatch { index: 1, .. })));
    }
}
