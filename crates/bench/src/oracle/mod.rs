//! The oracle: decides whether an answer is right.
//!
//! An answer is judged in two ways. Every *value* must be one that was written under its key
//! ([`Values`](crate::workload::Values)), whatever else goes on. *Presence* must fit what this run has done:
//!
//! * **Nothing is ever removed** (the mix has no `remove`): keys `0..loaded` and every key whose insert was
//!   acknowledged are present, for ever. A get that misses one is wrong, an update that finds it absent, an upsert that
//!   inserts it. Inserts append new numbers, so an insert that finds its key is wrong.
//! * **Keys come and go**: a [`Ledger`] knows, for each key, whether an insert, upsert or removal is under way and what
//!   the acknowledged ones add up to. An operation during which no such other was under way has exactly one right
//!   outcome, and gets it checked. Where they overlap, any single outcome may be right; but insertions and removals of
//!   one key that took effect alternate, so their sum must be 0 or 1 as soon as nothing is under way. Blind upserts do
//!   not say whether they inserted: behind one that overlapped with others the key's presence is not known, until an
//!   operation that nothing overlaps reports it.
//! * **Keys that no client inserts** ([`ABSENT`](crate::workload::ABSENT)) are absent.
//! * An operation that ended in an error may have taken effect or not. From then on nothing is said about the presence
//!   of its key.
//!
//! * **Scans** are judged as [`SortedKeys`] describes: shape, origin and presence of what they return.
//!
//! After the measured phase an audit reads the whole key space while nothing changes, so whatever was lost and not read
//! meanwhile is found then. With several processes at work on the same keys ([`Oracle::alone`] is false) only values
//! and keys that no client inserts are judged.

mod frontier;
mod ledger;
mod scan;

pub use frontier::Frontier;
pub(crate) use frontier::MAX_CLIENTS;
pub use ledger::{Ledger, Window};
pub use scan::{Scanning, SortedKeys};

use crate::workload::{Mix, Op, ValueFault};
use std::fmt;

/// What an operation did about the presence of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The key was there.
    Present,
    /// The key was not there.
    Absent,
    /// The key was not there, and is now.
    Added,
    /// The key was there, and is not now.
    Taken,
    /// The key is there now; whether it was is not said.
    Written,
}

impl Effect {
    /// Was the key there when the operation took effect? `None` if that is not said.
    pub const fn was_present(self) -> Option<bool> {
        match self {
            Effect::Present | Effect::Taken => Some(true),
            Effect::Absent | Effect::Added => Some(false),
            Effect::Written => None,
        }
    }
    /// Is it there behind the operation?
    pub const fn is_present(self) -> bool {
        matches!(self, Effect::Present | Effect::Added | Effect::Written)
    }
}

/// Why an answer is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongAnswer {
    /// The key must have been there.
    Missing,
    /// The key cannot have been there.
    Phantom,
    /// Insertions and removals that were acknowledged do not alternate.
    Unbalanced {
        /// Insertions less removals, the key's state at the beginning included.
        balance: i64,
    },
    /// The value is not one of this key's.
    Value(ValueFault),
    /// A scan's key is not above the one before it.
    OutOfOrder {
        /// Position in the answer.
        position: usize,
    },
    /// A scan's key is below the first bound.
    OutOfBounds {
        /// Position in the answer.
        position: usize,
    },
    /// A scan returned more entries than its limit.
    TooManyEntries {
        /// Number of entries returned.
        returned: usize,
        /// The limit.
        limit: usize,
    },
}

impl WrongAnswer {
    /// Name, as records use it.
    pub const fn name(self) -> &'static str {
        match self {
            WrongAnswer::Missing => "missing",
            WrongAnswer::Phantom => "phantom",
            WrongAnswer::Unbalanced { .. } => "unbalanced",
            WrongAnswer::Value(ValueFault::Length { .. }) => "length",
            WrongAnswer::Value(ValueFault::Foreign) => "foreign value",
            WrongAnswer::Value(ValueFault::Torn { .. }) => "torn value",
            WrongAnswer::OutOfOrder { .. } => "scan out of order",
            WrongAnswer::OutOfBounds { .. } => "scan out of bounds",
            WrongAnswer::TooManyEntries { .. } => "scan beyond its limit",
        }
    }
}

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrongAnswer::Missing => write!(f, "a key that must be present was not found"),
            WrongAnswer::Phantom => write!(f, "a key that must be absent was found"),
            WrongAnswer::Unbalanced { balance } => {
                write!(f, "acknowledged insertions less removals of one key come to {balance}, which must be 0 or 1")
            }
            WrongAnswer::Value(fault) => fault.fmt(f),
            WrongAnswer::OutOfOrder { position } => {
                write!(f, "key {position} of a scan is not above the key before it")
            }
            WrongAnswer::OutOfBounds { position } => write!(f, "key {position} of a scan is below its first bound"),
            WrongAnswer::TooManyEntries { returned, limit } => {
                write!(f, "a scan returned {returned} entries where its limit is {limit}")
            }
        }
    }
}

/// What is known about the key space.
#[derive(Debug)]
pub struct Oracle {
    frontier: Frontier,
    ledger: Option<Ledger>,
    alone: bool,
}

impl Oracle {
    /// For this mix. `loaded` of the `keys` keys are loaded first; `in_place` says that they are there already.
    pub fn new(mix: &Mix, keys: u64, loaded: u64, in_place: bool, alone: bool) -> Self {
        let ledger = mix.has(Op::Remove).then(|| Ledger::new(keys, if in_place { loaded } else { 0 }));
        Oracle { frontier: Frontier::new(loaded), ledger, alone }
    }
    /// Is this run the only one that changes these keys?
    pub fn alone(&self) -> bool {
        self.alone
    }
    /// Numbers below this may be read: the key space, new keys included as far as their inserts were acknowledged.
    pub fn known(&self) -> u64 {
        self.ledger.as_ref().map_or_else(|| self.frontier.acknowledged(), Ledger::keys)
    }
    /// Do inserts append new keys, rather than bring back old ones?
    pub fn appends(&self) -> bool {
        self.ledger.is_none()
    }
    /// The number of a new key; `None` while too many earlier ones are not acknowledged.
    pub fn claim(&self) -> Option<u64> {
        self.frontier.claim()
    }
    /// The new key with this number is not inserted after all. Only where no client ever looks for a new key.
    pub fn skip(&self, number: u64) {
        self.frontier.acknowledge(number);
    }
    /// Numbers from here on are of keys that no client of this run has begun to insert.
    pub fn claimed(&self) -> u64 {
        self.ledger.as_ref().map_or_else(|| self.frontier.claimed(), Ledger::keys)
    }
    /// Present keys, as far as known; exact while nothing is under way.
    pub fn entries(&self) -> u64 {
        self.ledger.as_ref().map_or_else(|| self.frontier.acknowledged(), Ledger::entries)
    }

    /// An operation on key `number` begins; `changes` says that it may add or take the key.
    #[inline]
    pub fn begin(&self, number: u64, changes: bool) -> Window {
        self.ledger.as_ref().map_or_else(Window::default, |ledger| ledger.begin(number, changes))
    }

    /// It has ended, with this effect. `fresh` says that its key is a new one, inserted for the first time; that key is
    /// acknowledged by this.
    #[inline]
    pub fn end(&self, number: u64, window: Window, fresh: bool, effect: Effect) -> Result<(), WrongAnswer> {
        let verdict = match &self.ledger {
            Some(ledger) => ledger.end(number, window, effect),
            None => {
                if fresh {
                    // If it was there before, it is there all the same.
                    self.frontier.acknowledge(number);
                }
                match (fresh, effect.was_present()) {
                    (_, None) | (false, Some(true)) | (true, Some(false)) => Ok(()),
                    _ if self.frontier.is_unknown(number) => Ok(()),
                    (true, Some(true)) => Err(WrongAnswer::Phantom),
                    (false, Some(false)) => Err(WrongAnswer::Missing),
                }
            }
        };
        if self.alone { verdict } else { Ok(()) }
    }

    /// It has ended in an error: nothing is known about the key any more.
    pub fn fail(&self, number: u64, window: Window, changes: bool) {
        match &self.ledger {
            Some(ledger) => ledger.fail(number, window),
            None if changes => self.frontier.mark_unknown(number),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nobody_removes_are_present_for_ever() {
        let oracle = Oracle::new(&Mix::single(Op::Insert), 10, 10, false, true);
        let end = |number, fresh, effect| oracle.end(number, oracle.begin(number, fresh), fresh, effect);
        assert_eq!(end(3, false, Effect::Absent), Err(WrongAnswer::Missing));
        assert_eq!(end(3, false, Effect::Added), Err(WrongAnswer::Missing));
        assert_eq!(end(3, false, Effect::Present), Ok(()));
        assert_eq!((oracle.claim(), oracle.known()), (Some(10), 10));
        assert_eq!(end(10, true, Effect::Present), Err(WrongAnswer::Phantom));
        assert_eq!((oracle.claim(), oracle.known()), (Some(11), 11));
        assert_eq!(end(11, true, Effect::Added), Ok(()));
        assert_eq!(oracle.known(), 12);
        oracle.fail(5, Window::default(), true);
        assert_eq!(end(5, false, Effect::Absent), Ok(()), "nothing is said about a key after an error");
    }
}
