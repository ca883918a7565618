//! Why a part is not linearizable: few operations that already contradict each other.
//!
//! Invariants:
//!
//! 1. the entries of a [`Core`] have no linearization, and that was decided by the exact search (or by a refutation),
//!    not assumed;
//! 2. if the core had been reached from a linearizable part, the core would be linearizable. So the core convicts the
//!    part, not an artefact of the shrinking.
//!
//! Removing a write would break invariant 2: a read of its value would be left without a cause. These steps keep it:
//!
//! * **Cutting at a response.** Operations invoked later are dropped and those that respond later become pending. In a
//!   linearization of the whole, take the beginning up to the last operation that responds by the cut. What was
//!   invoked after the cut cannot be in it, so it is a linearization of the rest.
//! * **Dropping a read.** Reads change nothing; a linearization without one is a linearization of the others.
//! * **Relaxing a write**: making it pending, so that it may take effect at any later time, or never. Every
//!   linearization from before remains one.
//!
//! Relaxed writes need not be shown: the contradiction stands *whatever* they do. Only those that a shown operation
//! read from, or that the longest partial linearization uses, are kept in sight as context.

use std::fmt;

use crate::check::Promise;
use crate::history::History;
use crate::model::{Entry, KeyOp, MapModel, Model};
use crate::search::{Answer, Budget, search, search_longest};
use crate::text;

/// A small contradiction, ready to be read. Operations are named by their position in the history.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operations that contradict each other, by invocation.
    pub operations: Vec<usize>,
    /// Writes whose exact timing does not matter, but from which the above read.
    pub context: Vec<usize>,
    /// How many more writes of the key there are in the prefix; none of them can change anything, whatever they do.
    pub irrelevant_writes: usize,
    /// How many operations of the key are invoked by the first moment at which the contradiction is complete.
    pub prefix: usize,
    /// The longest order of the above that explains its answers.
    pub longest: Vec<usize>,
    /// The operation that must come next and cannot.
    pub unplaced: Option<usize>,
    /// All of this as text, with an aligned timeline.
    pub text: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Entries without a linearization; the completed ones are the contradiction, the pending ones its surroundings.
pub(crate) struct Core<O> {
    pub(crate) entries: Vec<Entry<O>>,
    pub(crate) prefix: usize,
}

/// A single trial of shrinking is given up after this many configurations. A trial that is given up leaves the core
/// larger than it could be, never wrong.
const TRIAL_STEPS: u64 = 200_000;
/// Configurations that all trials of one explanation may enter together.
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
    let outcome = search_longest(&MapModel, &core.entries, Budget { steps: TRIAL_STEPS, ..budget });
    let entries = &core.entries;
    let mut shown: Vec<usize> = (0..entries.len()).filter(|&index| entries[index].responded.is_some()).collect();
    shown.sort_by_key(|&index| (entries[index].invoked, entries[index].responded));
    // Every completed operation that the longest attempt leaves out is unplaced; the one that responds first is the
    // one that the attempt could not go past.
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

/// Trials, with a common budget.
struct Trials<'m, M: Model> {
    model: &'m M,
    budget: Budget,
    steps_left: u64,
}

impl<M: Model> Trials<'_, M> {
    /// Whether the entries certainly have no linearization.
    fn convicts(&mut self, entries: &[Entry<M::Op>]) -> bool {
        if self.model.refute(entries).is_some() {
            return true;
        }
        let steps = TRIAL_STEPS.min(self.steps_left);
        let outcome = search(self.model, entries, Budget { steps, ..self.budget });
        self.steps_left = self.steps_left.saturating_sub(outcome.steps);
        outcome.answer == Answer::Violation
    }
}

/// Shrinks a part that has no linearization. The result is as large as the part where the budget is too small.
pub(crate) fn shrink<M: Model>(model: &M, entries: &[Entry<M::Op>], budget: Budget) -> Core<M::Op> {
    let mut trials = Trials { model, budget, steps_left: SHRINK_STEPS };
    let cut = cut(&mut trials, entries);
    let prefix = cut.len();
    let mut core = focus(&mut trials, &cut).unwrap_or(cut);
    relax_piecewise(&mut trials, &mut core);
    Core { entries: core, prefix }
}

/// The shortest prefix in violation, by bisection: a prefix of a linearizable history is linearizable.
fn cut<M: Model>(trials: &mut Trials<'_, M>, entries: &[Entry<M::Op>]) -> Vec<Entry<M::Op>> {
    let mut stamps: Vec<u64> = entries.iter().filter_map(|entry| entry.responded).collect();
    stamps.sort_unstable();
    stamps.dedup();
    let mut best = entries.to_vec();
    // Searching prefixes of a long history is dear. Where the cheap proof holds for the whole, it alone judges the
    // prefixes, at the price of a prefix that may be a little longer than need be.
    let refutable = trials.model.refute(entries).is_some();
    let (mut low, mut high) = (0, stamps.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let prefix = prefix(trials.model, entries, stamps[middle]);
        let convicted = if refutable { trials.model.refute(&prefix).is_some() } else { trials.convicts(&prefix) };
        if convicted {
            best = prefix;
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    best
}

/// Cuts right after the responses at a stamp. An invocation at that stamp comes before them and so stays.
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

/// What is left of an entry that is dropped if it is a read and relaxed if it is not.
fn relaxed<M: Model>(model: &M, entry: &Entry<M::Op>) -> Option<Entry<M::Op>> {
    (!model.is_read(&entry.op)).then(|| Entry { responded: None, ..entry.clone() })
}

/// Relaxes the entries that `keep` does not want.
fn only<M: Model>(model: &M, entries: &[Entry<M::Op>], keep: impl Fn(usize) -> bool) -> Vec<Entry<M::Op>> {
    let mut rest: Vec<_> = entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| if keep(index) { Some(entry.clone()) } else { relaxed(model, entry) })
        .collect();
    model.simplify(&mut rest);
    rest
}

/// Finds a much smaller contradiction at once: the one that a refutation names, or the last few operations before the
/// contradiction is complete, twice as many at each attempt.
fn focus<M: Model>(trials: &mut Trials<'_, M>, entries: &[Entry<M::Op>]) -> Option<Vec<Entry<M::Op>>> {
    if let Some(named) = trials.model.refute(entries) {
        let rest = only(trials.model, entries, |index| named.contains(&index));
        if trials.convicts(&rest) {
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
        let rest = only(trials.model, entries, |index| keep[index]);
        if trials.convicts(&rest) {
            return Some(rest);
        }
        count *= 2;
    }
    None
}

/// Delta debugging over the completed entries: relaxes chunks, halving the chunk when nothing goes any more.
fn relax_piecewise<M: Model>(trials: &mut Trials<'_, M>, core: &mut Vec<Entry<M::Op>>) {
    let completed = |core: &[Entry<M::Op>]| -> Vec<usize> {
        (0..core.len()).filter(|&index| core[index].responded.is_some()).collect()
    };
    let mut chunk = completed(core).len().div_ceil(2);
    while chunk > 0 && trials.steps_left > 0 {
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
            let rest = only(trials.model, core, |index| {
                core[index].responded.is_none() || tried.binary_search(&index).is_err()
            });
            if trials.convicts(&rest) {
                *core = rest;
                progress = true;
            } else {
                start += chunk;
            }
        }
        // At single entries, go round until nothing can be relaxed.
        if chunk > 1 || !progress {
            chunk /= 2;
        }
    }
}
