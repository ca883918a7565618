//! The model of a key-value map: one part for each key.
//!
//! The provided methods of [`Model`] that make the search faster are implemented in modules `partition`, `tighten` and
//! `zones`.

use crate::history::History;
use crate::key_op;
pub use crate::key_op::{Effect, Guard, KeyOp, UNREAD, ValueId};
use crate::model::{Entry, Model, Part, Tightened, Token};
use crate::{partition, tighten, zones};

/// A map from byte strings to byte strings, one part for each key. The state of a part is the number of the key's
/// value, or `None` if the key is absent.
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
            Guard::Other(value) => state.is_some_and(|held| held != value),
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

    fn distinguishes(&self, op: &KeyOp) -> Option<Token> {
        match op.guard {
            Guard::Holds(value) | Guard::Other(value) => Some(value),
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

    fn simplify(&self, entries: &mut [Entry<KeyOp>]) {
        key_op::renumber(entries);
    }

    fn tighten(&self, entries: &mut [Entry<KeyOp>]) -> Tightened {
        tighten::tighten(entries)
    }

    fn refute(&self, entries: &[Entry<KeyOp>]) -> Option<Vec<usize>> {
        zones::refute(entries)
    }
}
