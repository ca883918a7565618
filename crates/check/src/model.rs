//! Sequential models: what an operation may do when no other operation runs at the same time.
//!
//! The search is exact only if a [`Model`] keeps these invariants:
//!
//! 1. `step` is a function of state and operation. An operation with a known outcome is one operation, and an operation
//!    whose outcome is unknown is another one. `step` refuses the latter where it would change nothing, because leaving
//!    it out has the same result;
//! 2. an operation for which `is_read` holds never changes a state that admits it;
//! 3. an operation that `observes` a token is admitted only by states that carry the token;
//! 4. a step after which a state newly carries a token is a step of an operation that `produces` the token;
//! 5. states that differ only in their tokens admit the same operations, except for those that distinguish the tokens,
//!    and the states after them differ only in their tokens, if at all;
//! 6. an operation for which `is_update` holds changes the token and nothing else, always to the one that it
//!    `produces`, is admitted only by states that carry some token, and distinguishes none;
//! 7. `forget` changes the token and nothing else, to the same token for all states that differ only in it;
//! 8. `simplify`, `tighten` and `refute` change no verdict, and `tighten` changes nothing but intervals.

use std::fmt::Debug;
use std::hash::Hash;

use crate::history::History;

/// The number of something that a state carries and an operation can observe; in a map, a value. Numbers are dense,
/// because the search keeps a table of them.
pub type Token = u32;

/// One operation on one part of the store, as the search sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<O> {
    /// The operation's position in the history.
    pub source: usize,
    /// Whether it is one of the reads into which a scan is split.
    pub from_scan: bool,
    /// When it was invoked.
    pub invoked: u64,
    /// When it responded. `None`: the operation is pending, so it may take effect at any later time, or never.
    pub responded: Option<u64>,
    /// What it does.
    pub op: O,
    /// Its place in a chain of operations that take effect one after the other; `None` also for pending operations, which
    /// may leave their place.
    pub link: Option<Link>,
}

/// The place of an entry in a chain. Of two completed entries of one chain, the one with the lower place takes effect
/// first. If entries are left out, the order of the others remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The chain's number in its part.
    pub chain: u32,
    /// The place in the chain.
    pub place: u32,
}

/// The neighbours in the chains of these entries: the earlier and the later one of each pair, by position, in ascending
/// order of places.
pub(crate) fn neighbours<O>(entries: &[Entry<O>]) -> Vec<(usize, usize)> {
    let completed = entries.iter().enumerate().filter(|(_, entry)| entry.responded.is_some());
    let mut links: Vec<(Link, usize)> = completed.filter_map(|(index, entry)| Some((entry.link?, index))).collect();
    links.sort_unstable();
    let pairs = links.windows(2).filter(|pair| pair[0].0.chain == pair[1].0.chain);
    pairs.map(|pair| (pair[0].1, pair[1].1)).collect()
}

/// The operations on one independent part of the store. A history is linearizable if and only if each part is
/// (linearizability is local). This makes long histories tractable.
#[derive(Clone, Debug)]
pub struct Part<O> {
    /// The part's key.
    pub key: Vec<u8>,
    /// The operations on it, in no particular order.
    pub entries: Vec<Entry<O>>,
}

/// A sequential specification. Its provided methods only make the search faster.
pub trait Model {
    /// The state of one part.
    type State: Clone + Eq + Hash + Debug;
    /// An operation with its outcome. Equal operations are interchangeable.
    type Op: Clone + Eq + Hash + Debug;

    /// The state before any operation.
    fn init(&self) -> Self::State;

    /// The state after `op`, or `None` if `op` cannot have this outcome in this state.
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

    /// The token that `op` requires.
    fn observes(&self, op: &Self::Op) -> Option<Token> {
        let _ = op;
        None
    }

    /// The token on which it depends whether a state that carries one admits `op`: the one that it observes, or one that
    /// the state must not carry.
    fn distinguishes(&self, op: &Self::Op) -> Option<Token> {
        self.observes(op)
    }

    /// The token that `op` may produce.
    fn produces(&self, op: &Self::Op) -> Option<Token> {
        let _ = op;
        None
    }

    /// Whether `op` replaces the token and changes nothing else.
    fn is_update(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }

    /// The state with its token replaced by one that stands for all tokens that no operation left distinguishes.
    fn forget(&self, state: &Self::State) -> Self::State {
        state.clone()
    }

    /// Rewrites operations so that more of them are equal, where no operation of the list distinguishes them.
    fn simplify(&self, entries: &mut [Entry<Self::Op>]) {
        let _ = entries;
    }

    /// Shortens intervals where this excludes no linearization, so that the search has fewer choices.
    fn tighten(&self, entries: &mut [Entry<Self::Op>]) -> Tightened {
        let _ = entries;
        Tightened::Consistent
    }

    /// Searches for a cheap proof that no linearization exists. Returns the positions of entries that contradict each
    /// other; `None` proves nothing.
    fn refute(&self, entries: &[Entry<Self::Op>]) -> Option<Vec<usize>> {
        let _ = entries;
        None
    }
}

/// The result of [`Model::tighten`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tightened {
    /// No contradiction was found.
    Consistent,
    /// There is no linearization.
    Contradiction,
}
