//! What a scan promises, which is weaker than linearizability.
//!
//! A scan is not one moment. It promises:
//!
//! 1. *shape*: keys strictly ascending (so each at most once), within its bounds, and no more than its limit;
//! 2. *content*: for each key that it covers there is a moment between its invocation and its response at which the key
//!    was as the scan says: it had the returned value, or, where the key was not returned, it was absent.
//!
//! It covers its range up to the last returned key if it stopped at its limit, and else all of its range. From 2 follows
//! that a key that was present throughout the interval is returned, and that a returned value was there at some moment
//! of it. Nothing ties the moments of different keys to each other, so two scans may see two writes in opposite orders.
//!
//! Content is checked exactly: a scan adds one read to each covered key's part, and the point operations of that key
//! together with these reads must be linearizable. A violation is therefore certain: in *no* possible order of the
//! point operations was there such a moment. Shape is checked here. A scan whose shape is broken still owes the pairs
//! it returned, but what it covers is unknown, so nothing is concluded from keys that it left out.

use std::ops::Bound;

use crate::history::{Call, History, Operation, Outcome};

/// How a scan's answer is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanFault {
    /// A key that is not above the one before it.
    #[error("pair {position} is not above the pair before it")]
    OutOfOrder {
        /// Position in the answer.
        position: usize,
    },
    /// A key that was not asked for.
    #[error("pair {position} is outside the bounds")]
    OutOfBounds {
        /// Position in the answer.
        position: usize,
    },
    /// More pairs than asked for.
    #[error("{returned} pairs returned where the limit is {limit}")]
    TooMany {
        /// How many pairs came.
        returned: usize,
        /// How many were asked for.
        limit: u64,
    },
}

/// A scan with a malformed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanViolation {
    /// The scan's position in the history.
    pub operation: usize,
    /// What is wrong with it.
    pub fault: ScanFault,
}

/// All scans with malformed answers, each with its first fault.
pub(crate) fn malformed(history: &History) -> Vec<ScanViolation> {
    let operations = history.operations().iter().enumerate();
    operations.filter_map(|(operation, it)| fault(it).map(|fault| ScanViolation { operation, fault })).collect()
}

/// The pairs that a completed scan returned; nothing for other operations.
pub(crate) fn pairs(operation: &Operation) -> &[(Vec<u8>, Vec<u8>)] {
    match operation.response.as_ref().map(|response| &response.outcome) {
        Some(Outcome::Pairs(pairs)) => pairs,
        _ => &[],
    }
}

fn fault(operation: &Operation) -> Option<ScanFault> {
    let Call::Scan { from, to, limit } = &operation.call else {
        return None;
    };
    let pairs = pairs(operation);
    if let Some(limit) = *limit
        && pairs.len() as u64 > limit
    {
        return Some(ScanFault::TooMany { returned: pairs.len(), limit });
    }
    pairs.iter().enumerate().find_map(|(position, (key, _))| {
        if position > 0 && pairs[position - 1].0 >= *key {
            Some(ScanFault::OutOfOrder { position })
        } else if !above(from, key) || !below(to, key) {
            Some(ScanFault::OutOfBounds { position })
        } else {
            None
        }
    })
}

fn above(from: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match from {
        Bound::Included(bound) => key >= bound.as_slice(),
        Bound::Excluded(bound) => key > bound.as_slice(),
        Bound::Unbounded => true,
    }
}

fn below(to: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match to {
        Bound::Included(bound) => key <= bound.as_slice(),
        Bound::Excluded(bound) => key < bound.as_slice(),
        Bound::Unbounded => true,
    }
}

/// The keys about which a well-formed, completed scan says something.
pub(crate) struct Cover<'h> {
    from: Bound<&'h [u8]>,
    to: Bound<&'h [u8]>,
    pairs: &'h [(Vec<u8>, Vec<u8>)],
}

impl<'h> Cover<'h> {
    /// `None` where nothing is covered. The range is never inverted, so that [`Self::range`] suits a `BTreeMap`.
    pub(crate) fn of(operation: &'h Operation) -> Option<Self> {
        let Call::Scan { from, to, limit } = &operation.call else {
            return None;
        };
        if operation.response.is_none() || fault(operation).is_some() {
            return None;
        }
        let pairs = pairs(operation);
        let stopped_at_limit = limit.is_some_and(|limit| pairs.len() as u64 >= limit);
        let from = from.as_ref().map(Vec::as_slice);
        let to = if stopped_at_limit {
            // A limit of 0 covers nothing: no last pair.
            Bound::Included(pairs.last()?.0.as_slice())
        } else {
            to.as_ref().map(Vec::as_slice)
        };
        let empty = match (from, to) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        };
        (!empty).then_some(Self { from, to, pairs })
    }

    /// The covered range.
    pub(crate) fn range(&self) -> (Bound<&'h [u8]>, Bound<&'h [u8]>) {
        (self.from, self.to)
    }

    /// Whether the scan returned the key. The pairs are in order: only well-formed scans have a cover.
    pub(crate) fn returned(&self, key: &[u8]) -> bool {
        self.pairs.binary_search_by(|(returned, _)| returned.as_slice().cmp(key)).is_ok()
    }
}
