//! The promise of scans, which is weaker than linearizability, and its check.
//!
//! # The promise
//!
//! An ordered index promises of every scan that completes:
//!
//! 1. **Shape.** The returned keys ascend strictly, so each key appears at most once. They lie within the scan's
//!    bounds, and there are no more of them than its limit.
//! 2. **Coverage.** A scan covers its whole range. If it stopped at its limit, it covers the range up to the last
//!    returned key.
//! 3. **Content.** For each key that a scan covers there is a moment between its invocation and its response at which
//!    the key had the returned value, or, if the scan did not return the key, at which the key was absent.
//! 4. **No snapshot.** The moments of different keys are independent of each other.
//!
//! So a key that is present during the whole interval of a scan is returned, and a returned value was the key's value
//! at some moment of the interval. Two scans may see two writes in opposite orders.
//!
//! Each bound is inclusive, exclusive or absent. A caller that stops a scan early after `n` pairs has made a scan with
//! limit `n`. A scan without a response (its client crashed) promises nothing.
//!
//! # The check
//!
//! Content is checked exactly: a scan adds one read to the part of each key that it covers, and the point operations on
//! that key together with these reads must be linearizable. A violation is therefore certain: *no* order of the point
//! operations has such a moment. Shape is checked here. The pairs of a scan whose shape is broken are still checked,
//! but its coverage is unknown, so the keys that it left out are not.

use std::ops::Bound;

use crate::history::{Call, History, Operation, Outcome};

/// A violation of the promised shape. `position` is the pair's position in the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanFault {
    /// A key is not above the key before it.
    #[error("pair {position} is not above the pair before it")]
    OutOfOrder {
        /// Position in the result.
        position: usize,
    },
    /// A key is outside the bounds.
    #[error("pair {position} is outside the bounds")]
    OutOfBounds {
        /// Position in the result.
        position: usize,
    },
    /// The scan returned more pairs than its limit.
    #[error("{returned} pairs returned where the limit is {limit}")]
    TooMany {
        /// Number of returned pairs.
        returned: usize,
        /// The limit.
        limit: u64,
    },
}

/// A scan with a malformed result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanViolation {
    /// The scan's position in the history.
    pub operation: usize,
    /// Its first fault.
    pub fault: ScanFault,
}

/// Returns all scans with malformed results, each with its first fault.
pub(crate) fn malformed(history: &History) -> Vec<ScanViolation> {
    let operations = history.operations().iter().enumerate();
    operations.filter_map(|(operation, it)| fault(it).map(|fault| ScanViolation { operation, fault })).collect()
}

/// The pairs that a completed scan returned; empty for other operations.
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

/// The keys that a well-formed, completed scan covers.
pub(crate) struct Cover<'h> {
    from: Bound<&'h [u8]>,
    to: Bound<&'h [u8]>,
    pairs: &'h [(Vec<u8>, Vec<u8>)],
}

impl<'h> Cover<'h> {
    /// Returns the cover, or `None` if it is empty. The range is never inverted, so that a `BTreeMap` accepts
    /// [`Self::range`].
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

    /// Returns whether the scan returned the key. The pairs are in order, because only well-formed scans have a cover.
    pub(crate) fn returned(&self, key: &[u8]) -> bool {
        self.pairs.binary_search_by(|(returned, _)| returned.as_slice().cmp(key)).is_ok()
    }
}
