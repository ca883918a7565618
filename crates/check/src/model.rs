//! Sequential models: what an operation may do when nothing else happens at the same time.
//!
//! Invariants that every [`Model`] owes the search (the search is exact only if they hold):
//!
//! 1. `step` is a function of state and operation; an operation with a known answer is one operation, and one whose
//!    answer is unknown is another, which `step` refuses where it would change nothing (leaving it out is the same);
//! 2. an operation for which `is_read` holds never changes a state that admits it;
//! 3. an operation that `observes` a token is admitted only by states that carry the token;
//! 4. a step after which a state newly carries a token is a step of an operation that `produces` the token;
//! 5. states that differ only in their tokens admit the same operations, except for those that observe the tokens, and
//!    the states after them differ only in their tokens, if at all;
//! 6. an operation for which `is_update` holds changes the token and nothing else, always to the one that it
//!    `produces`, is admitted by states that carry some token only, and observes none;
//! 7. `forget` changes the token and nothing else, to the same for all states that differ only in it;
//! 8. `simplify`, `tighten` and `refute` change no verdict, and `tighten` changes nothing but intervals.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::history::{Call, History, Outcome};
use crate::{partition, tighten, zones};

/// A small number for something that a state carries and an operation can observe: here, a value. Numbers are dense,
/// since the search keeps a table of them.
pub type Token = u32;

/// One operation on one part of the store, as the search sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<O> {
    /// The operation's position in the history.
    pub source: usize,
    /// Whether it is one of the many reads that a scan stands for.
    pub from_scan: bool,
    /// When it was invoked.
    pub invoked: u64,
    /// When it responded; `None` is pending, so it may take effect at any later time, or never.
    pub responded: Option<u64>,
    /// What it does.
    pub op: O,
}

/// The operations of one independent part of the store. A history is linearizable exactly if each part is
/// (linearizability is local), which is what makes long histories tractable.
#[derive(Clone, Debug)]
pub struct Part<O> {
    /// The part's key.
    pub key: Vec<u8>,
    /// The operations on it, in no particular order.
    pub entries: Vec<Entry<O>>,
}

/// A sequential specification. The provided methods only make the search faster.
pub trait Model {
    /// The state of one part.
    type State: Clone + Eq + Hash + Debug;
    /// An operation, answer included. Equal operations are interchangeable.
    type Op: Clone + Eq + Hash + Debug;

    /// The state before any operation.
    fn init(&self) -> Self::State;

    /// The state after `op`, or `None` where `op` could not have answered as it did.
    fn step(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;

    /// Splits a history into independent parts.
    fn partition(&self, history: &History) -> Vec<Part<Self::Op>>;

    /// Whether `op` never changes a state.
    fn is_read(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }

    /// The token that a state carries.
    fn token(&self, state: &Self::State) -> Option<Token> {
        let _ = state;
        None
    }

    /// The token without which `op` is not admitted.
    fn observes(&self, op: &Self::Op) -> Option<Token> {
        let _ = op;
        None
    }

    /// The token that `op` may bring about.
    fn produces(&self, op: &Self::Op) -> Option<Token> {
        let _ = op;
        None
    }

    /// Whether `op` replaces the token and changes nothing else.
    fn is_update(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }

    /// The state with its token replaced by one that stands for all that nobody will observe.
    fn forget(&self, state: &Self::State) -> Self::State {
        state.clone()
    }

    /// Rewrites operations so that more of them are equal, where no operation of the list can tell the difference.
    fn simplify(&self, entries: &mut [Entry<Self::Op>]) {
        let _ = entries;
    }

    /// Shortens intervals where that excludes no linearization, so that the search has fewer choices.
    fn tighten(&self, entries: &mut [Entry<Self::Op>]) -> Tightened {
        let _ = entries;
        Tightened::Consistent
    }

    /// A cheap proof that no linearization exists: the positions of entries that contradict each other. `None` proves
    /// nothing.
    fn refute(&self, entries: &[Entry<Self::Op>]) -> Option<Vec<usize>> {
        let _ = entries;
        None
    }
}

/// What [`Model::tighten`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tightened {
    /// Nothing against a linearization.
    Consistent,
    /// There is none.
    Contradiction,
}

/// A value as a number. Values that nobody reads are all [`UNREAD`]: no outcome tells them apart, so states that
/// differ only in them have the same future.
pub type ValueId = u32;

/// The number of every value that no operation of the part reads.
pub const UNREAD: ValueId = 0;

/// What must hold for an operation to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// Nothing.
    Any,
    /// The key is absent.
    Absent,
    /// The key is present.
    Present,
    /// The key has this value.
    Holds(ValueId),
}

/// What an admitted operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing.
    Keep,
    /// Gives the key this value.
    Set(ValueId),
    /// Takes the key away.
    Clear,
}

/// Every operation on one key, whatever its call and answer, is a guard and an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyOp {
    /// When it is admitted.
    pub guard: Guard,
    /// What it does then.
    pub effect: Effect,
}

impl KeyOp {
    /// A read of `seen`.
    pub fn read(seen: Option<ValueId>) -> Self {
        let guard = seen.map_or(Guard::Absent, Guard::Holds);
        Self { guard, effect: Effect::Keep }
    }
}

/// A map from byte strings to byte strings, one part for each key; the state is the value's number, or absence.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapModel;

impl Model for MapModel {
    type State = Option<ValueId>;
    type Op = KeyOp;

    fn init(&self) -> Self::State {
        None
    }

    fn step(&self, state: &Self::State, op: &KeyOp) -> Option<Self::State> {
        let admitted = match op.guard {
            Guard::Any => true,
            Guard::Absent => state.is_none(),
            Guard::Present => state.is_some(),
            Guard::Holds(value) => *state == Some(value),
        };
        admitted.then_some(match op.effect {
            Effect::Keep => *state,
            Effect::Set(value) => Some(value),
            Effect::Clear => None,
        })
    }

    fn partition(&self, history: &History) -> Vec<Part<KeyOp>> {
        partition::by_key(history)
    }

    fn is_read(&self, op: &KeyOp) -> bool {
        op.effect == Effect::Keep
    }

    fn token(&self, state: &Self::State) -> Option<Token> {
        *state
    }

    fn observes(&self, op: &KeyOp) -> Option<Token> {
        match op.guard {
            Guard::Holds(value) => Some(value),
            _ => None,
        }
    }

    fn produces(&self, op: &KeyOp) -> Option<Token> {
        match op.effect {
            Effect::Set(value) => Some(value),
            _ => None,
        }
    }

    fn is_update(&self, op: &KeyOp) -> bool {
        op.guard == Guard::Present && matches!(op.effect, Effect::Set(_))
    }

    fn forget(&self, state: &Self::State) -> Self::State {
        state.map(|_| UNREAD)
    }

    /// Renumbers values densely, with `UNREAD` for those that no *completed* read observes (a pending read tells
    /// nothing, so it observes nothing).
    fn simplify(&self, entries: &mut [Entry<KeyOp>]) {
        let mut numbers: HashMap<ValueId, ValueId> = HashMap::new();
        for entry in entries.iter().filter(|entry| entry.responded.is_some()) {
            if let Guard::Holds(value) = entry.op.guard {
                let next = numbers.len() as ValueId + 1;
                numbers.entry(value).or_insert(next);
            }
        }
        let number = |value: ValueId| numbers.get(&value).copied().unwrap_or(UNREAD);
        for entry in entries {
            if let Guard::Holds(value) = &mut entry.op.guard {
                *value = number(*value);
            }
            if let Effect::Set(value) = &mut entry.op.effect {
                *value = number(*value);
            }
        }
    }

    fn tighten(&self, entries: &mut [Entry<KeyOp>]) -> Tightened {
        tighten::tighten(entries)
    }

    fn refute(&self, entries: &[Entry<KeyOp>]) -> Option<Vec<usize>> {
        zones::refute(entries)
    }
}

/// The guard and the effect of a call with its answer; `None` for a call that tells nothing about one key (a scan, or
/// a pending read). `number` numbers values.
pub(crate) fn key_op(
    call: &Call,
    outcome: Option<&Outcome>,
    mut number: impl FnMut(&[u8]) -> ValueId,
) -> Option<KeyOp> {
    use Effect::{Clear, Keep};
    use Guard::{Absent, Any, Present};
    let op = |guard, effect| Some(KeyOp { guard, effect });
    match (call, outcome) {
        (Call::Scan { .. }, _) | (Call::Get { .. }, None) => None,
        (Call::Get { .. }, Some(Outcome::Value(seen))) => Some(KeyOp::read(seen.as_deref().map(number))),
        // A pending operation is admitted only where it would change something (invariant 1).
        (Call::Insert { value, .. }, None | Some(Outcome::Inserted)) => op(Absent, Effect::Set(number(value))),
        (Call::Insert { .. }, Some(_)) => op(Present, Keep),
        (Call::Update { value, .. }, None | Some(Outcome::Updated)) => op(Present, Effect::Set(number(value))),
        (Call::Update { .. }, Some(_)) => op(Absent, Keep),
        (Call::Upsert { value, .. }, Some(Outcome::Inserted)) => op(Absent, Effect::Set(number(value))),
        (Call::Upsert { value, .. }, Some(Outcome::Updated)) => op(Present, Effect::Set(number(value))),
        (Call::Upsert { value, .. }, _) => op(Any, Effect::Set(number(value))),
        (Call::Remove { .. }, None | Some(Outcome::Removed)) => op(Present, Clear),
        (Call::Remove { .. }, Some(_)) => op(Absent, Keep),
        // `History` admits no other answer to a get; an unfitting one tells nothing.
        (Call::Get { .. }, Some(_)) => None,
    }
}
