//! The versions by which readers of a leaf believe what they have read, as Sherman publishes them. They prove nothing
//! (N2): a READ may find the version at either end of a change and the words between them of another state, or both
//! versions of one entry in the middle of its change. They exist so that the checkers can detect that.
//!
//! Two levels, each with four bits at both ends of what it guards:
//!
//! ```text
//! behind the bitmaps   front version of the leaf
//!                      slots of four words: front version, the two words of a slot, rear version
//! last word            rear version of the leaf
//! ```
//!
//! * A change of the leaf's range, a split or a merge, renews the versions of the leaf: the front one ahead of its other
//!   WRITEs, the rear one behind them.
//! * A change of an entry renews the versions of its slot, in one WRITE.
//! * A reader that finds different versions of the leaf READs again. It skips an entry with different versions.

use super::node::{Header, Layout, Node, Words, magic};

/// Versions have four bits, as published.
const MASK: u64 = 0xF;

impl Layout {
    /// Word of a slot of a leaf with versions.
    pub(super) const fn versioned_slot(self, slot: usize) -> usize {
        self.slots() + 2 + 4 * slot
    }
    /// Words of the versions of the leaf.
    const fn versions_at(self) -> (usize, usize) {
        (self.slots(), self.len() / 8 - 1)
    }
}

impl<B: Words> Node<B> {
    /// Does a reader believe this slot? Without versions it does: the checksum covers the slot.
    pub(super) fn is_whole(&self, slot: usize) -> bool {
        let at = self.layout.slot(slot);
        !self.layout.has_versions() || self.word(at - 1) == self.word(at + 2)
    }
}

impl Node {
    /// Does a reader believe the leaf: are both of its versions the same, and is it a node of this index at all?
    pub(super) fn versions_agree(&self, tag: u64) -> bool {
        let (front, rear) = self.layout.versions_at();
        let is_node = self.is_dead() || self.word(0) | 1 == magic(tag, self.at) | 1;
        is_node && self.word(front) == self.word(rear)
    }
    /// Renews the versions of a slot that is filled.
    pub(super) fn renew_slot_versions(&mut self, slot: usize) {
        if self.layout.has_versions() {
            let at = self.layout.slot(slot);
            let version = (self.word(at - 1) + 1) & MASK;
            self.set(at - 1, version);
            self.set(at + 2, version);
        }
    }
    /// Renews the versions of a leaf whose range changes; returns their words. `None` without versions.
    pub(super) fn renew_versions(&mut self) -> Option<(usize, usize)> {
        if !self.layout.has_versions() {
            return None;
        }
        let (front, rear) = self.layout.versions_at();
        let version = (self.word(front) + 1) & MASK;
        self.set(front, version);
        self.set(rear, version);
        Some((front, rear))
    }
}
