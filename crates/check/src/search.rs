//! The search for a linearization, after Wing and Gong (1993) and Lowe (2017).
//!
//! Invariants:
//!
//! 1. the search is exact: `Linearizable` comes with a linearization, `Violation` means that every one was excluded,
//!    and running out of budget is `Unknown`, never a verdict;
//! 2. it does not recurse: its depth is bounded by the heap alone;
//! 3. a *configuration* (what is linearized, the state) is entered at most once.
//!
//! Pseudocode:
//!
//! ```text
//! enter(configuration):
//!     linearize every read that may be next and agrees with the state, until none does         (R1)
//!     linearize an update whose readers may all be next, if the old token is dead; repeat R1   (R5)
//!     if all completed operations are linearized: done
//!     if a configuration at least as good was entered before: go back                          (R2)
//!     for each operation that may be next and agrees with the state, earliest response first:  (R3, R4)
//!         linearize it; enter the result
//!     go back
//! ```
//!
//! An operation *may be next* if it was invoked before the frontier, the earliest response among the operations not yet
//! linearized. Why the rules lose nothing:
//!
//! * **R1.** Take any linearization of the rest and move the read to its front. It agrees with the state there and
//!   changes nothing for the others, and nothing not yet linearized has to come before it, since it may be next.
//! * **R2.** At least as good means: the same completed operations, the same state, and of each class of pending
//!   operations no more used up. Whatever can follow the worse configuration can follow the better one.
//! * **R3.** Of equal completed operations that may be next only the one that responds first is tried. In a
//!   linearization that takes a later one first, exchange the two: the states stay the same, the first is allowed
//!   there, and what must follow the second must follow the first all the more. Pending operations that are equal differ
//!   only in the past, so they are used in order of invocation, and the rules never use one that changes nothing.
//! * **R4.** A state's token (its value) is not given up while a completed operation not yet linearized observes
//!   it and no operation is left that could bring it back.

//! * **R5.** A token is *dead* once no completed operation left observes it; states that differ in dead tokens only have
//!   the same future, and R2 does not tell them apart. An *update* replaces the token and nothing else. Let the
//!   state's token be dead, and let an update and every operation left that observes its token be allowed next. Take
//!   any linearization of the rest and move these to its front, the update first. Where they were taken out, the state
//!   differs in the token only, and whoever observed that token has moved along; where they are put in, one dead token
//!   is replaced by another. Without this rule, `k` overlapping updates make 2^k configurations.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use crate::model::{Entry, Model, Tightened};
use crate::plan::Plan;

/// How much a search may do.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Configurations to enter. Bounds memory as well: each is remembered.
    pub steps: u64,
    /// When to give up.
    pub deadline: Option<Instant>,
}

impl Budget {
    /// A budget of steps alone, so that the answer does not depend on the machine.
    pub fn steps(steps: u64) -> Self {
        Self { steps, deadline: None }
    }
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The entries in an order that explains all answers. Pending operations that it does not need are left out.
    Linearizable(Vec<usize>),
    /// There is no such order.
    Violation,
    /// The budget ran out.
    Unknown,
}

/// The answer and its cost.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was found.
    pub answer: Answer,
    /// Configurations entered.
    pub steps: u64,
    /// The longest partial linearization met, if it was asked for and there is no full one.
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

/// As [`search`], and remembers the longest partial linearization, which costs time on long histories. It leaves the
/// intervals as they are: a contradiction is to be met by the search, not proved ahead of it.
pub fn search_longest<M: Model>(model: &M, entries: &[Entry<M::Op>], budget: Budget) -> Outcome {
    Search::new(model, entries, true).run(budget)
}

/// One bit for each slot.
type Bits = SmallVec<[u64; 2]>;
/// For each class of pending operations how many were used.
type Used = SmallVec<[u32; 4]>;

const NOBODY: u32 = u32::MAX;

/// Operation to linearize next.
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
    // What follows from it, kept up to date.
    /// By slot: the operation that was invoked before the frontier and is not below it.
    active: Vec<u32>,
    observers: Vec<u32>,
    producers: Vec<u32>,
    /// What was linearized, in order.
    trail: Vec<Choice>,
    frames: Vec<Frame<M::State>>,
    choices: Vec<Choice>,
    /// For each set of completed operations and state: the minimal uses of pending operations.
    seen: HashMap<(u32, Bits, M::State), SmallVec<[Used; 1]>>,
    /// By kind: the last step that met it. Finds equal candidates (R3).
    kind_met: Vec<u64>,
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
            active: vec![NOBODY; plan.slot_count],
            observers: plan.observers.clone(),
            producers: plan.producers.clone(),
            trail: Vec::new(),
            frames: Vec::new(),
            choices: Vec::new(),
            seen: HashMap::new(),
            kind_met: vec![0; plan.kind_count],
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
            // Here the configuration has just been made by linearizing something, or is the first.
            self.take_forced();
            self.note_longest();
            if self.frontier as usize == self.plan.ops.len() {
                return Answer::Linearizable(self.entries_of(&self.trail));
            }
            self.steps += 1;
            if self.steps > budget.steps || self.late(budget) {
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

    /// Looks at the clock now and then.
    fn late(&self, budget: Budget) -> bool {
        const STEPS_PER_LOOK: u64 = 1024;
        self.steps.is_multiple_of(STEPS_PER_LOOK) && budget.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns to the last configuration with something left to try and linearizes that; `false` if there is none.
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

    /// Rules R1 and R5: what can be linearized without a choice.
    fn take_forced(&mut self) {
        self.take_reads();
        while let Some(number) = self.free_update() {
            self.linearize(Choice::Completed(number));
            self.take_reads();
        }
    }

    /// An operation that rule R5 allows to linearize at once; its readers are then taken by R1.
    fn free_update(&self) -> Option<u32> {
        if !self.token_is_dead() {
            return None;
        }
        let open = |slot: usize| {
            let number = self.active[slot];
            (number != NOBODY && !self.bit(slot)).then_some(number)
        };
        (0..self.active.len()).filter_map(open).find(|&number| {
            let op = &self.plan.ops[number as usize];
            if !self.model.is_update(op) || self.model.step(&self.state, op).is_none() {
                return false;
            }
            let Some(token) = self.model.produces(op) else {
                return false;
            };
            let left = self.observers.get(token as usize).copied().unwrap_or(0) as usize;
            let observes = |&number: &u32| self.model.observes(&self.plan.ops[number as usize]) == Some(token);
            left == 0 || left == (0..self.active.len()).filter_map(open).filter(observes).count()
        })
    }

    /// Whether the state has a token that no completed operation left observes.
    fn token_is_dead(&self) -> bool {
        let token = self.model.token(&self.state);
        token.is_some_and(|token| self.observers.get(token as usize).is_none_or(|&left| left == 0))
    }

    /// Rule R1, and moves the frontier.
    fn take_reads(&mut self) {
        loop {
            self.advance();
            let mut found = false;
            for slot in 0..self.active.len() {
                let number = self.active[slot];
                if number == NOBODY || self.bit(slot) || !self.plan.reads[number as usize] {
                    continue;
                }
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

    /// Rule R2. Remembers the configuration if nothing at least as good is known.
    fn is_new(&mut self) -> bool {
        let state = if self.token_is_dead() { self.model.forget(&self.state) } else { self.state.clone() };
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

    /// Collects what may be next. Reads are no candidates: those that agree with the state were taken by R1.
    fn push_frame(&mut self) {
        let choices = self.choices.len();
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..self.active.len()).filter_map(|slot| {
            let number = self.active[slot];
            let open = number != NOBODY && !self.bit(slot) && !self.plan.reads[number as usize];
            open.then_some(number)
        }));
        // Numbers ascend with responses: what must be done soonest is tried first.
        candidates.sort_unstable();
        for &number in &candidates {
            let kind = self.plan.kinds[number as usize] as usize;
            if self.kind_met[kind] == self.steps {
                continue;
            }
            self.kind_met[kind] = self.steps;
            let next = self.model.step(&self.state, &self.plan.ops[number as usize]);
            if next.is_some_and(|next| self.may_become(&next)) {
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
            if next.is_some_and(|next| next != self.state && self.may_become(&next)) {
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

    /// Rule R4. The operation that leads to `next` does not bring the old token about, or `next` would carry it, so it
    /// need not be subtracted from the producers.
    fn may_become(&self, next: &M::State) -> bool {
        // A partial linearization is to go as far as it can, not to stop where it is known to lead nowhere.
        if self.longest.is_some() {
            return true;
        }
        let Some(token) = self.model.token(&self.state) else {
            return true;
        };
        let missed = |counts: &[u32]| counts.get(token as usize).is_none_or(|&count| count == 0);
        self.model.token(next) == Some(token) || missed(&self.observers) || !missed(&self.producers)
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
            // In reverse of `advance`: what arrived last leaves first, for it may have taken the freed slot.
            for arrival in self.plan.arrived[number]..self.arrived_at(number + 1) {
                let arrival = self.plan.arrivals[arrival as usize] as usize;
                self.active[self.plan.slots[arrival] as usize] = NOBODY;
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
        // Pending operations count as producers only: they need not be linearized.
        if let Choice::Completed(_) = choice {
            add(&mut self.observers, self.model.observes(op));
        }
    }

    /// Moves the frontier over operations that are linearized.
    fn advance(&mut self) {
        while let Some(&slot) = self.plan.slots.get(self.frontier as usize) {
            let slot = slot as usize;
            if !self.bit(slot) {
                return;
            }
            self.bits[slot / 64] &= !(1 << (slot % 64));
            self.active[slot] = NOBODY;
            self.frontier += 1;
            self.admit_arrivals(self.plan.arrived[self.frontier as usize - 1]);
        }
    }

    /// Makes the operations active that are invoked before the frontier, from the given arrival on.
    fn admit_arrivals(&mut self, from: u32) {
        for arrival in from..self.arrived_at(self.frontier as usize) {
            let number = self.plan.arrivals[arrival as usize];
            self.active[self.plan.slots[number as usize] as usize] = number;
        }
    }

    /// How many operations are invoked before the given frontier. Past the last one there is nothing left to arrive.
    fn arrived_at(&self, frontier: usize) -> u32 {
        self.plan.arrived.get(frontier).copied().unwrap_or(self.plan.ops.len() as u32)
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

    /// The entries of a trail. Members of a class are used in order, so counting them finds each.
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
