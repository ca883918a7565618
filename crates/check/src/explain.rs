//! Explains why a part is not linearizable: finds few operations that already contradict each other.
//!
//! Invariants:
//!
//! 1. the entries of a [`Core`] have no linearization, as decided by the exact search or by a refutation;
//! 2. if the part is linearizable, so is every core that the steps below can derive from it. So a core without a
//!    linearization proves that the part has none.
//!
//! Removing a write would break invariant 2, because a read of its value would be left without a writer. These steps
//! keep it:
//!
//! * **Cutting at a response.** Operations invoked later are dropped, and those that respond later become pending. Take
//!   the linearization of the whole up to the last operation that responds by the cut. It contains no operation that
//!   was invoked after the cut, so it is a linearization of the rest.
//! * **Dropping a read.** Reads change nothing; a linearization without one is a linearization of the others.
//! * **Relaxing a write**: making it pending, so that it may take effect at any later time, or never. Every earlier
//!   linearization remains one.
//!
//! Relaxed writes need not be shown: the contradiction holds *whether or not* they take effect. Only those from which a
//! shown operation read, or which the longest partial linearization uses, are kept as context.

use std::fmt;

use crate::history::History;
use crate::map::{KeyOp, MapModel};
use crate::model::{Entry, Model};
use crate::promise::Promise;
use crate::search::{Answer, Budget, search, search_longest};
use crate::text;

/// A small contradiction for a reader. Operations are named by their position in the history.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operations that contradict each other, in order of invocation.
    pub operations: Vec<usize>,
    /// Writes whose exact timing does not matter, but from which `operations` read.
    pub context: Vec<usize>,
    /// Number of other writes of the key in the prefix; they cannot resolve the contradiction.
    pub irrelevant_writes: usize,
    /// Number of operations of the key that are invoked by the first moment at which the contradiction is complete.
    pub prefix: usize,
    /// The longest order of operations above that explains their outcomes.
    pub longest: Vec<usize>,
    /// The operation that must come next and cannot.
    pub unplaced: Option<usize>,
    /// The explanation as text, with an aligned timeline.
    pub text: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Entries without a linearization. The completed ones contradict each other; the pending ones are their context.
pub(crate) struct Core<O> {
    pub(crate) entries: Vec<Entry<O>>,
    pub(crate) prefix: usize,
}

/// Maximum number of configurations of one attempt to shrink. An attempt that reaches it leaves the core larger than
/// necessary, never wrong.
const ATTEMPT_STEPS: u64 = 200_000;
/// Maximum number of configurations of all attempts of one explanation together.
const SHRINK_STEPS: u64 = 20_000_000;

/// Explains a part that was found in violation.
pub(crate) fn explain(
    history: &History,
    key: &[u8],
    promise: Promise,
    entries: &[Entry<KeyOp>],
    budget: Budget,
) -> Explanation {
    let core = shrink(&MapModel, entries, budget);
    let outcome = search_longest(&MapModel, &core.entries, Budget { steps: ATTEMPT_STEPS, ..budget });
    let entries = &core.entries;
    let mut shown: Vec<usize> = (0..entries.len()).filter(|&index| entries[index].responded.is_some()).collect();
    shown.sort_by_key(|&index| (entries[index].invoked, entries[index].responded));
    // Every completed operation that the longest order leaves out is unplaced. The one that responds first is the one
    // that the order could not pass.
    let unplaced = shown.iter().copied().filter(|index| !outcome.longest.contains(index));
    let unplaced = unplaced.min_by_key(|&index| entries[index].responded);
    let is_context = |&index: &usize| {
        let read_from = MapModel
            .produces(&entries[index].op)
            .is_some_and(|value| shown.iter().any(|&other| MapModel.observes(&entries[other].op) == Some(value)));
        entries[index].responded.is_none() && (read_from || outcome.longest.contains(&index))
    };
    let mut context: Vec<usize> = (0..entries.len()).filter(is_context).collect();
    context.sort_by_key(|&index| entries[index].invoked);
    let irrelevant_writes = entries.len() - shown.len() - context.len();
    let view = text::View {
        history,
        key,
        promise,
        entries,
        shown: &shown,
        context: &context,
        longest: &outcome.longest,
        unplaced,
        irrelevant_writes,
        prefix: core.prefix,
    };
    let text = view.to_string();
    let source = |index: &usize| entries[*index].source;
    Explanation {
        operations: shown.iter().map(source).collect(),
        context: context.iter().map(source).collect(),
        irrelevant_writes,
        prefix: core.prefix,
        longest: outcome.longest.iter().map(source).collect(),
        unplaced: unplaced.as_ref().map(source),
        text,
    }
}

/// Attempts to shrink a part, with a common budget.
struct Reducer<'m, M: Model> {
    model: &'m M,
    budget: Budget,
    steps_left: u64,
}

impl<M: Model> Reducer<'_, M> {
    /// Returns whether the entries certainly have no linearization.
    fn is_violation(&mut self, entries: &[Entry<M::Op>]) -> bool {
        if self.model.refute(entries).is_some() {
            return true;
        }
        let steps = ATTEMPT_STEPS.min(self.steps_left);
        let outcome = search(self.model, entries, Budget { steps, ..self.budget });
        self.steps_left = self.steps_left.saturating_sub(outcome.steps);
        outcome.answer == Answer::Violation
    }
}

/// Shrinks a part that has no linearization. If the budget is too small, the result is as large as the part.
pub(crate) fn shrink<M: Model>(model: &M, entries: &[Entry<M::Op>], budget: Budget) -> Core<M::Op> {
    let mut reducer = Reducer { model, budget, steps_left: SHRINK_STEPS };
    let cut = cut(&mut reducer, entries);
    let prefix = cut.len();
    let mut core = focus(&mut reducer, &cut).unwrap_or(cut);
    relax_piecewise(&mut reducer, &mut core);
    Core { entries: core, prefix }
}

/// Finds the shortest prefix without a linearization, by bisection: a prefix of a linearizable history is linearizable.
fn cut<M: Model>(reducer: &mut Reducer<'_, M>, entries: &[Entry<M::Op>]) -> Vec<Entry<M::Op>> {
    let mut stamps: Vec<u64> = entries.iter().filter_map(|entry| entry.responded).collect();
    stamps.sort_unstable();
    stamps.dedup();
    let mut best = entries.to_vec();
    // Searching prefixes of a long history is expensive. If the cheap proof holds for the whole history, it alone
    // decides about the prefixes, and the prefix may be slightly longer than necessary.
    let refutable = reducer.model.refute(entries).is_some();
    let (mut low, mut high) = (0, stamps.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let prefix = prefix(reducer.model, entries, stamps[middle]);
        let violation = if refutable { reducer.model.refute(&prefix).is_some() } else { reducer.is_violation(&prefix) };
        if violation {
            best = prefix;
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    best
}

/// Cuts right after the responses at a stamp. An invocation at that stamp comes before them, so it is kept.
fn prefix<M: Model>(model: &M, entries: &[Entry<M::Op>], stamp: u64) -> Vec<Entry<M::Op>> {
    let before = entries.iter().filter(|entry| entry.invoked <= stamp);
    let mut prefix: Vec<_> = before
        .filter_map(|entry| {
            let responds = entry.responded.is_some_and(|responded| responded <= stamp);
            if responds { Some(entry.clone()) } else { relaxed(model, entry) }
        })
        .collect();
    model.simplify(&mut prefix);
    prefix
}

/// Relaxes an entry: `None` if it is a read, and a pending entry otherwise, which may leave its place in a chain.
fn relaxed<M: Model>(model: &M, entry: &Entry<M::Op>) -> Option<Entry<M::Op>> {
    (!model.is_read(&entry.op)).then(|| Entry { responded: None, link: None, ..entry.clone() })
}

/// Relaxes the entries for which `keep` is false.
fn only<M: Model>(model: &M, entries: &[Entry<M::Op>], keep: impl Fn(usize) -> bool) -> Vec<Entry<M::Op>> {
    let mut rest: Vec<_> = entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| if keep(index) { Some(entry.clone()) } else { relaxed(model, entry) })
        .collect();
    model.simplify(&mut rest);
    rest
}

/// Finds a much smaller contradiction in one step: the one that a refutation names, or the last few operations before
/// the contradiction is complete, with twice as many operations in each attempt.
fn focus<M: Model>(reducer: &mut Reducer<'_, M>, entries: &[Entry<M::Op>]) -> Option<Vec<Entry<M::Op>>> {
    if let Some(named) = reducer.model.refute(entries) {
        let rest = only(reducer.model, entries, |index| named.contains(&index));
        if reducer.is_violation(&rest) {
            return Some(rest);
        }
    }
    let mut by_response: Vec<usize> = (0..entries.len()).filter(|&index| entries[index].responded.is_some()).collect();
    by_response.sort_by_key(|&index| std::cmp::Reverse(entries[index].responded));
    let mut count = 4;
    while count < by_response.len() {
        let mut keep = vec![false; entries.len()];
        for &index in &by_response[..count] {
            keep[index] = true;
        }
        let rest = only(reducer.model, entries, |index| keep[index]);
        if reducer.is_violation(&rest) {
            return Some(rest);
        }
        count *= 2;
    }
    None
}

/// Delta debugging over the completed entries: relaxes chunks of them, and halves the chunk size when no chunk can be
/// relaxed any more.
fn relax_piecewise<M: Model>(reducer: &mut Reducer<'_, M>, core: &mut Vec<Entry<M::Op>>) {
    let completed = |core: &[Entry<M::Op>]| -> Vec<usize> {
        (0..core.len()).filter(|&index| core[index].responded.is_some()).collect()
    };
    let mut chunk = completed(core).len().div_ceil(2);
    while chunk > 0 && reducer.steps_left > 0 {
        let mut progress = false;
        let mut start = 0;
        loop {
            let candidates = completed(core);
            let Some(tried) = candidates.get(start..candidates.len().min(start + chunk)) else {
                break;
            };
            if tried.is_empty() {
                break;
            }
            let rest = only(reducer.model, core, |index| {
                core[index].responded.is_none() || tried.binary_search(&index).is_err()
            });
            if reducer.is_violation(&rest) {
                *core = rest;
                progress = true;
            } else {
                start += chunk;
            }
        }
        // With single entries, repeat until none can be relaxed.
        if chunk > 1 || !progress {
            chunk /= 2;
        }
    }
}
