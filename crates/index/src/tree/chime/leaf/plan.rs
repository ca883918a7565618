//! Plans: the WRITEs of an operation, in the order in which they take effect.

use super::entry::{Entry, HomeSet, Item, Placed, Seed};
use super::hints::Hints;
use super::image::{Image, Words};
use super::layout::Layout;
use std::ops::Range;

/// One WRITE to a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Offset in the node in bytes.
    pub offset: usize,
    /// The words.
    pub words: Vec<u64>,
}

/// What an operation writes. The WRITEs are posted in this order in one batch (G4), behind them the
/// [hints](super::layout::HINTS_OFFSET), and behind those the CAS or FAA that releases the lock (N6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The WRITEs, in posting order.
    pub writes: Vec<Write>,
    /// The hints after the operation.
    pub hints: Hints,
}

impl Plan {
    /// Appends another plan for the same leaf.
    pub fn then(&mut self, next: Plan) {
        self.writes.extend(next.writes);
        self.hints = next.hints;
    }
    /// Returns the number of bytes that the plan writes, hints excluded.
    pub fn bytes(&self) -> usize {
        self.writes.iter().map(|write| write.words.len() * 8).sum()
    }
}

/// A plan in the making: every change is applied to the image, and then written from there.
pub(super) struct Draft<'a> {
    pub(super) image: &'a mut Image,
    layout: Layout,
    seed: Seed,
    plan: Plan,
}

impl<'a> Draft<'a> {
    pub(super) fn new(image: &'a mut Image, seed: Seed, hints: Hints) -> Draft<'a> {
        let layout = image.layout();
        Draft { image, layout, seed, plan: Plan { writes: Vec::new(), hints } }
    }
    pub(super) fn finish(self) -> Plan {
        self.plan
    }

    /// Changes an entry's state: what it holds, and the keys of which it is the home.
    fn change(&mut self, position: usize, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.image.entry(position) {
            change(&mut entry);
            self.image.set_state(position, entry.checked(position, self.seed).state);
        }
    }
    pub(super) fn change_home(&mut self, home: usize, change: impl FnOnce(&mut HomeSet)) {
        self.change(home, |entry| {
            let mut set = entry.state.home_set();
            change(&mut set);
            entry.state = entry.state.with_home(set);
        });
    }
    /// Adds a key at a position to its home's set, or takes it out.
    pub(super) fn cover(&mut self, placed: &Placed, position: usize, covered: bool) {
        let distance = self.layout.distance(placed.home, position);
        let change = if covered { HomeSet::add } else { HomeSet::remove };
        self.change_home(placed.home, |set| change(set, placed.hash, placed.inline, distance));
    }
    pub(super) fn set_data(&mut self, position: usize, item: Item) {
        self.image.set_data(position, item);
    }
    /// Makes the entry hold an item, whose data words are there; or makes it vacant.
    pub(super) fn set_occupied(&mut self, position: usize, holds: Option<Item>) {
        self.change(position, |entry| entry.state = entry.state.with_occupancy(holds));
        self.plan.hints = self.plan.hints.after_change(self.image, position);
    }
    /// Says that word1 is about to turn into the other form.
    pub(super) fn set_turning(&mut self, position: usize) {
        self.change(position, |entry| entry.state = entry.state.with_turning());
    }

    /// Writes a range of words as they are now.
    pub(super) fn write(&mut self, range: Range<usize>) {
        self.plan.writes.extend(self.image.write(range));
    }
    pub(super) fn write_data(&mut self, position: usize) {
        let at = self.layout.entry_word(position);
        self.write(at..at + 2);
    }
    pub(super) fn write_state(&mut self, position: usize) {
        let at = self.layout.state_word(position);
        self.write(at..at + 1);
    }
    /// Writes a home's state and the words of another entry that `range` names, in no order: in one WRITE from the one
    /// to the other, if all words between them are known, otherwise in two. Only the lock's holder writes to a leaf, so
    /// the words between them are rewritten as they are.
    pub(super) fn write_with_home(&mut self, home: usize, range: Range<usize>) {
        let at = self.layout.state_word(home);
        match self.image.write(at..range.end) {
            Some(write) if at < range.start => self.plan.writes.push(write),
            _ => {
                self.write(range);
                self.write(at..at + 1);
            }
        }
    }
    pub(super) fn data_range(&self, position: usize) -> Range<usize> {
        let at = self.layout.entry_word(position);
        at..at + 2
    }
    pub(super) fn state_range(&self, position: usize) -> Range<usize> {
        let at = self.layout.state_word(position);
        at..at + 1
    }
}
