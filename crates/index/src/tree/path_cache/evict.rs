//! Room for new copies: nodes drawn at random are made cooling, cooling ones are evicted (5.1 and 5.2 of the paper); inner
//! nodes hand that on to their children (5.3).

use super::frame::{Charge, Content, Frame};
use super::hooks::{Fault, mark, planted};
use super::table::Table;
use std::sync::Arc;

/// Nodes that are sampled at a time.
const SAMPLED: usize = 2;
/// Rounds of sampling, before there is no room: each one evicts a node, as a rule.
const ROUNDS: usize = 32;

impl<N: Content> Table<N> {
    /// Takes bytes of the budget, for which other nodes are evicted.
    pub(super) fn room(&self, bytes: u64) -> Option<Charge> {
        if !self.budget.has_room(bytes) {
            return None;
        }
        for _ in 0..ROUNDS {
            if let Some(charge) = self.budget.charge(bytes) {
                return Some(charge);
            }
            for _ in 0..SAMPLED {
                if let Some(frame) = self.sample() {
                    self.cool_path(frame);
                }
            }
            if let Some(charge) = self.budget.charge(bytes) {
                return Some(charge);
            }
            if let Some(oldest) = self.cooling.pop(self.draw()) {
                mark!("path cache: a cooling node was evicted");
                self.evict(oldest);
            }
        }
        None
    }

    /// Makes a frame cooling; or a child of it that is swizzled, or a child of that, and so on.
    fn cool_path(&self, mut frame: Arc<Frame<N>>) {
        if planted(Fault::ParentEvictedFirst) {
            return self.cool(&frame, true);
        }
        // A child is one level below its parent.
        while let Some(child) = frame.some_child(self.draw() as u32 as usize) {
            mark!("path cache: a parent handed its cooling on to a child");
            frame = child;
        }
        self.cool(&frame, false);
    }
}
