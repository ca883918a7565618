//! Removing as published: for checkers to convict.
//!
//! A removal clears all slots of its key from the last to the first, and each slot is free at once. The paper argues that
//! the entry in front is the newest. But an insert that has seen the front taken can put the key further back while it is
//! being removed in front, and return; what it put shows once the front is cleared, although others have been told of a
//! later state before. And a slot that is free again at once lets two inserts of one key go to two slots.
//!
//! Inserts need no other form: the stamp of these free slots never makes one look again.

use super::bucket::{Level, Snapshot};
use super::lookup::{Candidates, LookupResult, Op, Verified};
use super::slot::{Slot, Stamp};
use crate::{IndexError, Remove};

impl Op<'_> {
    /// Removes the key from every slot of its level-1 bucket; from levels 2 and 3 as the repaired form does.
    pub(super) async fn remove_published(&mut self) -> Result<Remove, IndexError> {
        let mut removed = Remove::Absent;
        loop {
            let hit = match self.look(&mut None).await? {
                LookupResult::Absent(_) => return Ok(removed),
                LookupResult::Hit(hit) => hit,
            };
            let geometry = self.table.geometry();
            let at = geometry.bucket(Level::One, geometry.home(self.places.hash.bits(), geometry.version));
            let seen = Snapshot::new(at, self.span().read(at, Level::One.bytes()).await?);
            let mut candidates = self.candidates(&seen, self.places.first_pattern(&geometry));
            let mut hits = Vec::new();
            while let Some(last) = candidates.pop() {
                if let Verified::Hit(hit) = self.verify(Candidates::from_iter([last])).await? {
                    hits.push(hit);
                }
            }
            if hits.is_empty() {
                let dead = Slot::Dead(0, Stamp::of_pin(self.pin.epoch()));
                if self.replace(&hit, dead).await? {
                    return Ok(Remove::Removed);
                }
                continue;
            }
            let mut all = true;
            for hit in hits {
                if self.replace(&hit, Slot::Fresh(seen.version(), Stamp::NEVER)).await? {
                    removed = Remove::Removed;
                } else {
                    all = false;
                }
            }
            if all {
                return Ok(removed);
            }
        }
    }
}
