//! Histories: what clients asked of a key-value store, when, and what they were told.
//!
//! Invariants of a [`History`], established by [`History::new`] and never broken afterwards:
//!
//! 1. no operation responds before it is invoked;
//! 2. an outcome fits its operation (a `Get` never answers `Removed`).
//!
//! **Order of events.** An invocation or a response is an event with a stamp. Events are ordered by stamp; at equal
//! stamps every invocation comes before every response. So an operation that responds at 10 and another invoked at 10
//! count as concurrent: an equal stamp never proves an order. That can hide a violation and never invents one, so a
//! clock that repeats itself weakens the check, even between successive operations of one client. A simulator whose
//! virtual time stands still between events should stamp through [`Stamps`], which never repeats.
//!
//! **Pending operations.** An operation without a response is *pending*: its client died, was cut off, or was told of
//! an error that leaves the effect unknown. It may take effect at any moment after its invocation, once, or never. Its
//! client may go on: later operations of the same client say nothing about a pending one. An error that proves that
//! nothing was changed is not pending; such an operation is left out of the history.
//!
//! **Clients.** The check uses only the stamps. A client may therefore have several operations in flight (one for
//! each of its coroutines); its number serves to read and draw the history.
//!
//! **Beginning.** Every key is absent at first. A store that was loaded beforehand is described by writes of a loading
//! client which end before the first measured invocation.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a client asked for. Keys and values are arbitrary byte strings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Read the value of a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Store a value if the key is absent.
    Insert {
        /// The key.
        key: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Replace the value if the key is present.
    Update {
        /// The key.
        key: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Store a value in either case.
    Upsert {
        /// The key.
        key: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// Delete the key.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
    /// Read the pairs from a bound upwards.
    Scan {
        /// Where to begin.
        from: Bound<Vec<u8>>,
        /// Where to end; `Unbounded` where the store has no such argument.
        to: Bound<Vec<u8>>,
        /// The most pairs to return; `None` is all of them.
        limit: Option<u64>,
    },
}

impl Call {
    /// The one key that the call concerns; `None` for a scan.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Call::Get { key }
            | Call::Insert { key, .. }
            | Call::Update { key, .. }
            | Call::Upsert { key, .. }
            | Call::Remove { key } => Some(key),
            Call::Scan { .. } => None,
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
            Call::Scan { .. } => "scan",
        }
    }

    /// Whether the store may answer this call so.
    pub fn admits(&self, outcome: &Outcome) -> bool {
        use Outcome::*;
        matches!(
            (self, outcome),
            (Call::Get { .. }, Value(_))
                | (Call::Insert { .. }, Inserted | Exists)
                | (Call::Update { .. }, Updated | Absent)
                | (Call::Upsert { .. }, Inserted | Updated | Written)
                | (Call::Remove { .. }, Removed | Absent)
                | (Call::Scan { .. }, Pairs(_))
        )
    }
}

/// What the store answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// `Get`: the value, or `None` where the key was absent.
    Value(Option<Vec<u8>>),
    /// `Insert`, `Upsert`: the key was absent and now has the value.
    Inserted,
    /// `Insert`: the key was present and stays as it was.
    Exists,
    /// `Update`, `Upsert`: the key was present and now has the new value.
    Updated,
    /// `Update`, `Remove`: the key was absent and stays so.
    Absent,
    /// `Upsert`: the key now has the value; whether it was present before is not reported.
    Written,
    /// `Remove`: the key was present and is gone.
    Removed,
    /// `Scan`: the pairs, as returned.
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
            Outcome::Written => "written",
            Outcome::Removed => "removed",
            Outcome::Pairs(_) => "pairs",
        }
    }
}

/// The end of an operation that has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Response {
    /// When the client had the answer.
    pub at: u64,
    /// The answer.
    pub outcome: Outcome,
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Who asked.
    pub client: u64,
    /// What was asked.
    pub call: Call,
    /// When it was asked.
    pub invoked: u64,
    /// The answer; `None` makes the operation pending.
    pub response: Option<Response>,
}

/// Why a list of operations is no history. The index is the operation's position in the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Invariant 1 is broken.
    #[error("operation {index} responds at {responded}, before its invocation at {invoked}")]
    RespondsBeforeInvoked {
        /// Which operation.
        index: usize,
        /// Its invocation.
        invoked: u64,
        /// Its response.
        responded: u64,
    },
    /// Invariant 2 is broken.
    #[error("operation {index}: a {call} cannot answer \"{outcome}\"")]
    OutcomeMismatch {
        /// Which operation.
        index: usize,
        /// The call's name.
        call: &'static str,
        /// The outcome's name.
        outcome: &'static str,
    },
    /// More operations than the checker can number.
    #[error("{0} operations are more than a history can hold")]
    TooLong(usize),
    /// A recorder was asked for its history while clients could still add to it.
    #[error("{0} client logs are still open; drop them first")]
    OpenLogs(usize),
}

/// A validated list of operations. Reports name operations by their position in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
}

/// Event positions are 32-bit and each operation has two events.
const OPERATIONS_MAX: usize = (u32::MAX / 4) as usize;

impl History {
    /// Takes operations in any order; the order is kept, and means nothing.
    pub fn new(operations: Vec<Operation>) -> Result<Self, HistoryError> {
        if operations.len() > OPERATIONS_MAX {
            return Err(HistoryError::TooLong(operations.len()));
        }
        for (index, operation) in operations.iter().enumerate() {
            validate(index, operation)?;
        }
        Ok(Self { operations })
    }

    /// The operations, in the order they were given.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Gives the operations back.
    pub fn into_operations(self) -> Vec<Operation> {
        self.operations
    }

    /// How many operations each client has.
    pub fn clients(&self) -> BTreeMap<u64, usize> {
        let mut clients = BTreeMap::new();
        for operation in &self.operations {
            *clients.entry(operation.client).or_default() += 1;
        }
        clients
    }
}

/// The invariants of one operation; `index` only names it in the error.
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

/// Turns a clock that may stand still into stamps that never repeat.
///
/// Each stamp is the time given, or one more than the last stamp where that is later. A single-threaded simulator
/// that stamps every event through one `Stamps` records the order in which it executed them, which is a real order:
/// what it executed earlier cannot have been influenced by what it executed later.
#[derive(Debug, Default)]
pub struct Stamps {
    /// The smallest stamp that may be given next.
    next: AtomicU64,
}

impl Stamps {
    /// Stamps from 0 upwards.
    pub fn new() -> Self {
        Self::default()
    }

    /// A stamp of at least `now`, larger than every earlier one.
    pub fn at(&self, now: u64) -> u64 {
        // SeqCst: the stamps stand for the order of events across threads, and nothing here is hot enough to argue
        // for less. The closure always returns `Some`, so both arms carry the previous value.
        let previous =
            self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |next| Some(next.max(now).saturating_add(1)));
        match previous {
            Ok(next) | Err(next) => next.max(now),
        }
    }

    /// The next number of a plain counter, for runs without a clock.
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
    fn a_history_refuses_what_cannot_have_happened() {
        let get = |invoked, at, outcome| Operation {
            client: 0,
            call: Call::Get { key: vec![] },
            invoked,
            response: Some(Response { at, outcome }),
        };
        let backwards = History::new(vec![get(5, 4, Outcome::Value(None))]);
        assert!(matches!(backwards, Err(HistoryError::RespondsBeforeInvoked { index: 0, .. })));
        let misfit = History::new(vec![get(1, 1, Outcome::Value(None)), get(5, 6, Outcome::Removed)]);
        assert!(matches!(misfit, Err(HistoryError::OutcomeMismatch { index: 1, .. })));
    }
}
