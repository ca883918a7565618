//! Operations on one key as the search sees them: a guard and an effect on numbered values.

use std::collections::HashMap;

use crate::history::{Call, Outcome};
use crate::model::Entry;

/// The number of a value within one part. All values that no operation reads or compares are [`UNREAD`]: no outcome
/// distinguishes them, so states that differ only in them have the same future.
pub type ValueId = u32;

/// The number of every value that no operation of the part reads or compares.
pub const UNREAD: ValueId = 0;

/// The condition under which an operation is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// No condition.
    Any,
    /// The key is absent.
    Absent,
    /// The key is present.
    Present,
    /// The key has this value.
    Holds(ValueId),
    /// The key is present with another value.
    Other(ValueId),
}

/// The change that an admitted operation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// No change.
    Keep,
    /// Gives the key this value.
    Set(ValueId),
    /// Removes the key.
    Clear,
}

/// An operation on one key together with its outcome, as a guard and an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyOp {
    /// The condition under which it is admitted.
    pub guard: Guard,
    /// The change that it makes then.
    pub effect: Effect,
}

impl KeyOp {
    /// A read that returned `seen`.
    pub fn read(seen: Option<ValueId>) -> Self {
        let guard = seen.map_or(Guard::Absent, Guard::Holds);
        Self { guard, effect: Effect::Keep }
    }
}

/// Converts a call and its outcome to a guard and an effect. Returns `None` if they give no information about one key
/// (a scan, or a pending operation that changes nothing). `number` numbers values.
pub(crate) fn key_op<'h>(
    call: &'h Call,
    outcome: Option<&'h Outcome>,
    mut number: impl FnMut(&'h [u8]) -> ValueId,
) -> Option<KeyOp> {
    use Effect::{Clear, Keep};
    use Guard::{Absent, Any, Holds, Other, Present};
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
        // One that stores what it expects is a read, and one without an outcome is nothing.
        (Call::Replace { expected, value, .. }, None | Some(Outcome::Replaced)) if expected == value => {
            outcome.map(|_| KeyOp::read(Some(number(expected))))
        }
        (Call::Replace { expected, value, .. }, None | Some(Outcome::Replaced)) => {
            op(Holds(number(expected)), Effect::Set(number(value)))
        }
        (Call::RemoveIf { expected, .. }, None | Some(Outcome::Removed)) => op(Holds(number(expected)), Clear),
        (Call::Replace { expected, .. } | Call::RemoveIf { expected, .. }, Some(Outcome::Differs)) => {
            op(Other(number(expected)), Keep)
        }
        (Call::Replace { .. } | Call::RemoveIf { .. }, Some(_)) => op(Absent, Keep),
        // `History` admits no other outcome of a get.
        (Call::Get { .. }, Some(_)) => None,
    }
}

/// Renumbers values densely, with [`UNREAD`] for those that no operation reads or compares. A pending read returned
/// nothing, so it observes nothing; a pending operation that changes the key may take effect at its value only.
pub(crate) fn renumber(entries: &mut [Entry<KeyOp>]) {
    let mut numbers: HashMap<ValueId, ValueId> = HashMap::new();
    for entry in entries.iter().filter(|entry| entry.responded.is_some() || entry.op.effect != Effect::Keep) {
        if let Guard::Holds(value) | Guard::Other(value) = entry.op.guard {
            let next = numbers.len() as ValueId + 1;
            numbers.entry(value).or_insert(next);
        }
    }
    let number = |value: ValueId| numbers.get(&value).copied().unwrap_or(UNREAD);
    for entry in entries {
        if let Guard::Holds(value) | Guard::Other(value) = &mut entry.op.guard {
            *value = number(*value);
        }
        if let Effect::Set(value) = &mut entry.op.effect {
            *value = number(*value);
        }
    }
}
