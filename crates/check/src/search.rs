//! The search for a linearization, after Wing and Gong (1993) and Lowe (2017).
//!
//! Invariants:
//!
//! 1. the search is exact: `Linearizable` comes with a linearization, `Violation` means that every order was excluded,
//!    and an exhausted budget is `Unknown`, never a verdict;
//! 2. it does not recurse: the heap alone bounds its depth;
//! 3. a *configuration* (the set of linearized operations, and the state) is entered at most once.
//!
//! Pseudocode:
//!
//! ```text
//! enter(configuration):
//!     linearize every read that may be next and agrees with the state, until there is none             (R1)
//!     linearize an update whose readers may all be next, if the old token is unobserved; repeat R1     (R5)
//!     if all completed operations are linearized: done
//!     if a configuration at least as good was entered before: go back                                  (R2)
//!     for each operation that may be next and agrees with the state, earliest response first:          (R3, R4)
//!         linearize it; enter the result
//!     go back
//! ```
//!
//! An operation *may be next* if it was invoked before the frontier, which is the earliest response among the
//! operations not yet linearized, and its predecessor in a chain, if it has one, is linearized. Each rule excludes no
//! linearization:
//!
//! * **R1.** Take any linearization of the rest and move the read to its front. The read agrees with the state there
//!   and does not change the state for the others. It may be next, so no remaining operation has to come before it.
//! * **R2.** At least as good means: the same completed operations are linearized, the state is the same, and of each
//!   class of pending operations no more are used. Every continuation of the worse configuration is a continuation of
//!   the better one.
//! * **R3.** Of equal completed operations that may be next, only the one that responds first is tried, instead of those
//!   whose successors in a chain, if any, are equal to them and respond later. Take a linearization in which such a `b`
//!   comes next, and `a`, which responds first, at a later place. Let `a` take the place of `b`, and each of `b` and its
//!   successors in front of that later place the next one's; the last of them takes that of `a`. The states stay the same,
//!   since all of them are equal; `a` may be next; and the chain of `b` keeps its order. Nothing that must follow one of
//!   these comes too early: it was invoked after the response of `a`, which is earlier than theirs, and so it was behind
//!   the place of `a`. Equal pending operations differ only in their invocation, so they are used in order of invocation.
//!   The rules never use a pending operation that changes nothing.
//! * **R4.** The search keeps a state's token (its value) while another completed operation not yet linearized observes
//!   it and no operation is left that can produce it again.
//! * **R5.** A token is *unobserved* if no operation left distinguishes it: none requires it, and none excludes it. (An
//!   operation of unknown outcome counts.) States that differ only in unobserved tokens have the same future, and R2
//!   does not distinguish them. An *update* replaces the token and nothing else. Let the state's token be unobserved,
//!   and let an update and every remaining operation that distinguishes its token be allowed next, where the latter are
//!   reads that observe it. Take any linearization of the rest and move these operations to its front, the update first.
//!   At the places that they leave, the state differs only in the token: it carries the one that the update has replaced
//!   there, which is the state's or that of a write that may come before the update. Nothing excludes that one, by the
//!   rule's last condition; what observes it is not there; and the observers of the update's token have moved too. At
//!   the front, one unobserved token replaces another. Without this rule, `k` overlapping updates make 2^k
//!   configurations.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use crate::model::{Entry, Model, Tightened};
use crate::plan::{NONE, Plan, excluded};

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Configurations that the search may enter. This also bounds memory, because each is stored.
    pub steps: u64,
    /// The moment at which the search stops.
    pub deadline: Option<Instant>,
}

impl Budget {
    /// A budget of steps without a deadline, so that the answer does not depend on the machine.
    pub fn steps(steps: u64) -> Self {
        Self { steps, deadline: None }
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The entries in an order that explains all outcomes, without the pending operations that it does not need.
    Linearizable(Vec<usize>),
    /// There is no such order.
    Violation,
    /// The budget ran out.
    Unknown,
}

/// A search's answer and cost.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The answer.
    pub answer: Answer,
    /// Configurations entered.
    pub steps: u64,
    /// The longest partial linearization found, if it was requested and there is no full one.
    pub longest: Vec<usize>,
}

/// Searches for a linearization of the entries of one part.
pub fn search<M: Model>(model: &M, entries: &[Entry<M::Op>], budget: Budget) -> Outcome {
    let mut tight = entries.to_vec();
    match model.tighten(&mut tight) {
        Tightened::Consistent => Search::new(model, &tight, false).run(budget),
        Tightened::Contradiction => Outcome { answer: Answer::Violation, steps: 0, longest: Vec::new() },
    }
}

/// Like [`search`], and also returns the longest partial linearization, which costs time on long histories. It does not
/// tighten intervals, so that the search itself finds the contradiction.
pub fn search_longest<M: Model>(model: &M, entries: &[Entry<M::Op>], budget: Budget) -> Outcome {
    Search::new(model, entries, true).run(budget)
}

/// One bit for each slot.
type Bits = SmallVec<[u64; 2]>;
/// For each class of pending operations how many were used.
type Used = SmallVec<[u32; 4]>;

/// An operation to linearize next.
#[derive(Clone, Copy)]
enum Choice {
    /// A completed operation, by number.
    Completed(u32),
    /// The next of a class of pending operations.
    Pending(u32),
}

/// A configuration to return to, and what remains to be tried there: the choices from `next` up to the next frame's
/// `choices` (or the end).
struct Frame<S> {
    frontier: u32,
    bits: Bits,
    state: S,
    trail: usize,
    choices: usize,
    next: usize,
}

struct Search<'m, M: Model> {
    model: &'m M,
    plan: Plan<M::Op>,
    // The configuration.
    frontier: u32,
    /// Slots of operations at or above the frontier that are linearized.
    bits: Bits,
    state: M::State,
    used: Used,
    // Derived from the configuration.
    /// By slot: the operation that was invoked before the frontier and is not below it, or `NONE`.
    active: Vec<u32>,
    observers: Vec<u32>,
    producers: Vec<u32>,
    watchers: Vec<u32>,
    excluders: Vec<u32>,
    /// The linearized operations, in order.
    trail: Vec<Choice>,
    frames: Vec<Frame<M::State>>,
    choices: Vec<Choice>,
    /// For each set of completed operations and state: the minimal uses of pending operations.
    seen: HashMap<(u32, Bits, M::State), SmallVec<[Used; 1]>>,
    /// By kind: the last step that visited it. Finds equal candidates (R3).
    kind_visited: Vec<u64>,
    steps: u64,
    longest: Option<Vec<Choice>>,
    candidates: Vec<u32>,
}

impl<'m, M: Model> Search<'m, M> {
    fn new(model: &'m M, entries: &[Entry<M::Op>], want_longest: bool) -> Self {
        let plan = Plan::new(model, entries);
        let mut search = Self {
            frontier: 0,
            bits: smallvec![0; plan.slot_count.div_ceil(64)],
            state: model.init(),
            used: smallvec![0; plan.classes.len()],
            active: vec![NONE; plan.slot_count],
            observers: plan.observers.clone(),
            producers: plan.producers.clone(),
            watchers: plan.watchers.clone(),
            excluders: plan.excluders.clone(),
            trail: Vec::new(),
            frames: Vec::new(),
            choices: Vec::new(),
            seen: HashMap::new(),
            kind_visited: vec![0; plan.kind_count],
            steps: 0,
            longest: want_longest.then(Vec::new),
            candidates: Vec::new(),
            model,
            plan,
        };
        search.admit_arrivals(0);
        search
    }

    fn run(mut self, budget: Budget) -> Outcome {
        let answer = self.solve(budget);
        let longest = self.longest.take().unwrap_or_default();
        Outcome { answer, steps: self.steps, longest: self.entries_of(&longest) }
    }

    fn solve(&mut self, budget: Budget) -> Answer {
        loop {
            // At this point the configuration is the first one, or an operation was linearized to make it.
            self.take_forced();
            self.note_longest();
            if self.frontier as usize == self.plan.ops.len() {
                return Answer::Linearizable(self.entries_of(&self.trail));
            }
            self.steps += 1;
            if self.steps > budget.steps || self.past_deadline(budget) {
                return Answer::Unknown;
            }
            if self.is_new() {
                self.push_frame();
            }
            if !self.next_choice() {
                return Answer::Violation;
            }
        }
    }

    /// Checks the deadline, once in a number of steps.
    fn past_deadline(&self, budget: Budget) -> bool {
        const STEPS_PER_CHECK: u64 = 1024;
        self.steps.is_multiple_of(STEPS_PER_CHECK) && budget.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns to the last configuration with an untried choice and linearizes that choice. Returns `false` if there is
    /// none.
    fn next_choice(&mut self) -> bool {
        while let Some(frame) = self.frames.last_mut() {
            if let Some(&choice) = self.choices.get(frame.next) {
                frame.next += 1;
                self.restore();
                self.linearize(choice);
                return true;
            }
            self.choices.truncate(frame.choices);
            self.frames.pop();
        }
        false
    }

    /// Linearizes what needs no choice (rules R1 and R5).
    fn take_forced(&mut self) {
        self.take_reads();
        while let Some(number) = self.free_update() {
            self.linearize(Choice::Completed(number));
            self.take_reads();
        }
    }

    /// Finds an update that rule R5 linearizes at once. R1 then takes its readers.
    fn free_update(&self) -> Option<u32> {
        if !self.token_is_unobserved() {
            return None;
        }
        let open = |slot: usize| self.open(slot);
        (0..self.active.len()).filter_map(open).find(|&number| {
            let op = &self.plan.ops[number as usize];
            if !self.model.is_update(op) || self.model.step(&self.state, op).is_none() {
                return false;
            }
            let Some(token) = self.model.produces(op) else {
                return false;
            };
            let left = self.watchers.get(token as usize).copied().unwrap_or(0) as usize;
            let reads_it = |&number: &u32| {
                let number = number as usize;
                self.plan.reads[number] && self.model.observes(&self.plan.ops[number]) == Some(token)
            };
            (left == 0 || left == (0..self.active.len()).filter_map(open).filter(reads_it).count())
                && !self.may_replace_excluded(number)
        })
    }

    /// Returns whether an operation left excludes a token that an update may replace, apart from the state's.
    fn may_replace_excluded(&self, update: u32) -> bool {
        if self.excluders.iter().all(|&left| left == 0) {
            return false;
        }
        let is_excluded = |op: &M::Op| {
            let token = self.model.produces(op);
            token.is_some_and(|token| self.excluders.get(token as usize).is_some_and(|&left| left > 0))
        };
        let active = (0..self.active.len()).filter(|&slot| !self.bit(slot)).map(|slot| self.active[slot]);
        // What is invoked later, but before the update responds.
        let later = self.arrived_at(self.frontier as usize)..self.plan.arrived[update as usize];
        let later = later.map(|arrival| self.plan.arrivals[arrival as usize]);
        let mut completed = active.chain(later).filter(|&number| number != NONE && number != update);
        let mut pending = self.plan.classes.iter().zip(&self.used);
        completed.any(|number| is_excluded(&self.plan.ops[number as usize]))
            || pending.any(|(class, &used)| class.members.len() > used as usize && is_excluded(&class.op))
    }

    /// Returns whether the state has a token that no operation left distinguishes.
    fn token_is_unobserved(&self) -> bool {
        let token = self.model.token(&self.state);
        token.is_some_and(|token| self.watchers.get(token as usize).is_none_or(|&left| left == 0))
    }

    /// Applies rule R1 and moves the frontier.
    fn take_reads(&mut self) {
        loop {
            self.advance();
            let mut found = false;
            for slot in 0..self.active.len() {
                let Some(number) = self.open(slot).filter(|&number| self.plan.reads[number as usize]) else { continue };
                if self.model.step(&self.state, &self.plan.ops[number as usize]).is_some() {
                    self.linearize(Choice::Completed(number));
                    found = true;
                }
            }
            if !found {
                return;
            }
        }
    }

    /// Applies rule R2: stores the configuration unless one at least as good is known. Returns whether it was stored.
    fn is_new(&mut self) -> bool {
        let state = if self.token_is_unobserved() { self.model.forget(&self.state) } else { self.state.clone() };
        let key = (self.frontier, self.bits.clone(), state);
        match self.seen.entry(key) {
            Slot::Vacant(vacant) => {
                vacant.insert(smallvec![self.used.clone()]);
                true
            }
            Slot::Occupied(mut occupied) => {
                let used = &self.used;
                let no_worse = |a: &Used, b: &Used| a.iter().zip(b).all(|(a, b)| a <= b);
                let known = occupied.get_mut();
                if known.iter().any(|other| no_worse(other, used)) {
                    return false;
                }
                known.retain(|other| !no_worse(used, other));
                known.push(used.clone());
                true
            }
        }
    }

    /// Collects the operations that may be next. Reads are no candidates: R1 took those that agree with the state.
    fn push_frame(&mut self) {
        let choices = self.choices.len();
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let open = (0..self.active.len()).filter_map(|slot| self.open(slot));
        candidates.extend(open.filter(|&number| !self.plan.reads[number as usize]));
        // Numbers ascend with responses, so the operation with the earliest response is tried first.
        candidates.sort_unstable();
        for &number in &candidates {
            let kind = self.plan.kinds[number as usize] as usize;
            if self.kind_visited[kind] == self.steps && self.plan.uniform[number as usize] {
                continue;
            }
            self.kind_visited[kind] = self.steps;
            let op = &self.plan.ops[number as usize];
            let next = self.model.step(&self.state, op);
            if next.is_some_and(|next| self.may_become(&next, self.model.observes(op))) {
                self.choices.push(Choice::Completed(number));
            }
        }
        self.candidates = candidates;
        let frontier = self.plan.responses[self.frontier as usize];
        for (class, pending) in self.plan.classes.iter().enumerate() {
            let member = pending.members.get(self.used[class] as usize);
            if member.is_none_or(|&(invoked, _)| invoked > frontier) {
                continue;
            }
            let next = self.model.step(&self.state, &pending.op);
            if next.is_some_and(|next| next != self.state && self.may_become(&next, None)) {
                self.choices.push(Choice::Pending(class as u32));
            }
        }
        self.frames.push(Frame {
            frontier: self.frontier,
            bits: self.bits.clone(),
            state: self.state.clone(),
            trail: self.trail.len(),
            choices,
            next: choices,
        });
    }

    /// Applies rule R4. The operation that leads to `next` does not produce the old token, because otherwise `next`
    /// would carry it, so it need not be subtracted from the producers. If it is a completed one, it is counted among the
    /// observers of the token that it has `observed`.
    fn may_become(&self, next: &M::State, observed: Option<u32>) -> bool {
        // A partial linearization continues as far as possible, even where no full linearization follows.
        if self.longest.is_some() {
            return true;
        }
        let Some(token) = self.model.token(&self.state) else {
            return true;
        };
        let left = |counts: &[u32]| counts.get(token as usize).copied().unwrap_or(0);
        let others = left(&self.observers).saturating_sub(u32::from(observed == Some(token)));
        self.model.token(next) == Some(token) || others == 0 || left(&self.producers) > 0
    }

    /// Makes the top frame's configuration the current one.
    fn restore(&mut self) {
        let Some(frame) = self.frames.last() else {
            return;
        };
        let (frontier, trail) = (frame.frontier, frame.trail);
        self.bits.clone_from(&frame.bits);
        self.state.clone_from(&frame.state);
        while self.trail.len() > trail {
            if let Some(choice) = self.trail.pop() {
                self.count(choice, 1);
                if let Choice::Pending(class) = choice {
                    self.used[class as usize] -= 1;
                }
            }
        }
        while self.frontier > frontier {
            self.frontier -= 1;
            let number = self.frontier as usize;
            // The reverse of `advance`: the last arrivals leave first, because they may have taken the freed slot.
            for arrival in self.plan.arrived[number]..self.arrived_at(number + 1) {
                let arrival = self.plan.arrivals[arrival as usize] as usize;
                self.active[self.plan.slots[arrival] as usize] = NONE;
            }
            self.active[self.plan.slots[number] as usize] = number as u32;
        }
    }

    /// Linearizes an operation that may be next and agrees with the state.
    fn linearize(&mut self, choice: Choice) {
        let op = match choice {
            Choice::Completed(number) => {
                let slot = self.plan.slots[number as usize] as usize;
                self.bits[slot / 64] |= 1 << (slot % 64);
                &self.plan.ops[number as usize]
            }
            Choice::Pending(class) => {
                self.used[class as usize] += 1;
                &self.plan.classes[class as usize].op
            }
        };
        if let Some(next) = self.model.step(&self.state, op) {
            self.state = next;
        }
        self.count(choice, -1);
        self.trail.push(choice);
    }

    /// Adds to the counts of operations not yet linearized.
    fn count(&mut self, choice: Choice, by: i32) {
        let op = match choice {
            Choice::Completed(number) => &self.plan.ops[number as usize],
            Choice::Pending(class) => &self.plan.classes[class as usize].op,
        };
        let add = |counts: &mut [u32], token: Option<u32>| {
            if let Some(count) = token.and_then(|token| counts.get_mut(token as usize)) {
                *count = count.wrapping_add_signed(by);
            }
        };
        add(&mut self.producers, self.model.produces(op));
        add(&mut self.watchers, self.model.distinguishes(op));
        add(&mut self.excluders, excluded(self.model, op));
        // Pending operations require nothing: they need not be linearized.
        if let Choice::Completed(_) = choice {
            add(&mut self.observers, self.model.observes(op));
        }
    }

    /// Moves the frontier past linearized operations.
    fn advance(&mut self) {
        while let Some(&slot) = self.plan.slots.get(self.frontier as usize) {
            let slot = slot as usize;
            if !self.bit(slot) {
                return;
            }
            self.bits[slot / 64] &= !(1 << (slot % 64));
            self.active[slot] = NONE;
            self.frontier += 1;
            self.admit_arrivals(self.plan.arrived[self.frontier as usize - 1]);
        }
    }

    /// Activates the operations that are invoked before the frontier, from the given arrival on.
    fn admit_arrivals(&mut self, from: u32) {
        for arrival in from..self.arrived_at(self.frontier as usize) {
            let number = self.plan.arrivals[arrival as usize];
            self.active[self.plan.slots[number as usize] as usize] = number;
        }
    }

    /// The number of operations that are invoked before the given frontier; all of them if it is past the last one.
    fn arrived_at(&self, frontier: usize) -> u32 {
        self.plan.arrived.get(frontier).copied().unwrap_or(self.plan.ops.len() as u32)
    }

    /// The completed operation in this slot, if it may be next.
    fn open(&self, slot: usize) -> Option<u32> {
        let number = self.active[slot];
        let may_be_next = number != NONE && !self.bit(slot) && {
            let before = self.plan.predecessors[number as usize];
            before == NONE || self.is_linearized(before)
        };
        may_be_next.then_some(number)
    }

    fn is_linearized(&self, number: u32) -> bool {
        let slot = || self.plan.slots[number as usize] as usize;
        number < self.frontier || self.active[slot()] == number && self.bit(slot())
    }

    fn bit(&self, slot: usize) -> bool {
        self.bits[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn note_longest(&mut self) {
        // Most completed operations; among those, fewest pending ones.
        let merit = |trail: &[Choice]| {
            let completed = trail.iter().filter(|choice| matches!(choice, Choice::Completed(_))).count();
            (completed, std::cmp::Reverse(trail.len()))
        };
        if let Some(longest) = &mut self.longest
            && merit(&self.trail) > merit(longest)
        {
            longest.clone_from(&self.trail);
        }
    }

    /// Converts a trail to entries. Members of a class are used in order, so counting identifies each.
    fn entries_of(&self, trail: &[Choice]) -> Vec<usize> {
        let mut used = vec![0usize; self.plan.classes.len()];
        let entry = |choice: &Choice| match *choice {
            Choice::Completed(number) => self.plan.entries[number as usize],
            Choice::Pending(class) => {
                let class = class as usize;
                used[class] += 1;
                self.plan.classes[class].members[used[class] - 1].1
            }
        };
        trail.iter().map(entry).collect()
    }
}
