//! Removal as published. It is known to lose data, and exists so that the checkers can detect that.
//!
//! A removal clears all slots of its key from the last to the first, and each slot is free at once. The paper argues
//! that the first entry is the newest. But consider an insert that has seen the first slots taken. It can put the key
//! into a later slot while the key is being removed from an earlier one, and return. Its entry becomes visible when the
//! earlier slot has been cleared, although other clients may already have seen a later state. Also, because a slot is
//! free again at once, two inserts of one key can take two slots.
//!
//! Inserts need no other form: the stamp of these free slots never makes an insert look again.

use super::bucket::{Level, Snapshot};
use super::lookup::{Candidates, LookupResult, Op, Verified};
use super::slot::{Slot, Stamp};
use crate::{IndexError, RemoveIf};

impl Op<'_> {
    /// Removes the key from every slot of its level-1 bucket; from levels 2 and 3 as the repaired form does.
    pub(super) async fn remove_published(&mut self) -> Result<RemoveIf, IndexError> {
        let mut removed = RemoveIf::Absent;
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
                    return Ok(RemoveIf::Removed);
                }
                continue;
            }
            let mut all = true;
            for hit in hits {
                if self.replace(&hit, Slot::Fresh(seen.version(), Stamp::NEVER)).await? {
                    removed = RemoveIf::Removed;
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
