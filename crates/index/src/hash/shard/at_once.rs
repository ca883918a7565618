//! Lookups that wait for nothing: where a READ alone is carried out when it is posted, a get has no state of a future.
//!
//! Invariant: what such a lookup has READ and not answered, it hands to [`Op::look`], which goes on from there: neither
//! the verbs nor their order depend on how far it came.

use super::bucket::{Level, Snapshot};
use super::geometry::Geometry;
use super::lookup::{Candidate, Op};
use super::slot::{META, Slot};
use crate::block::{self, Block, Compared, UNIT};
use farindex_fabric::{Buf, Class, RemotePtr};

/// What a lookup has found without waiting.
pub(super) enum LookedNow {
    /// The key's block.
    Own(Block),
    /// Nothing yet.
    Open,
    /// The only block that may be the key's. What was READ of it does not say whose it is.
    Unsure(Candidate, RemotePtr, Buf),
}

impl Op<'_> {
    /// Looks up the key as far as that takes no waiting: on mapped memory nearly always to the end, without the state of a
    /// future. [`look`](Self::look) goes on from there.
    pub(super) fn look_now(&mut self) -> LookedNow {
        let geometry = self.table.geometry();
        let bucket = geometry.home(self.places.hash.bits(), geometry.version);
        let Some(first) = self.read_first_now(&geometry, bucket, &mut None) else { return LookedNow::Open };
        let slots = self.unknown(&first, self.places.first_pattern(&geometry));
        let mut looked = LookedNow::Open;
        if slots != 0
            && slots & (slots - 1) == 0
            && let (at, word) =
                (first.slot(slots.trailing_zeros() as usize), first.word(slots.trailing_zeros() as usize))
            && let Slot::Live(entry) = Slot::decode(word)
            && let Some(buf) = self.span().read_now(Class::Block, entry.ptr, entry.len as usize * UNIT)
        {
            match block::compare(buf, self.places.hash, self.key) {
                Compared::Own(block) => return LookedNow::Own(block),
                Compared::Other => self.rejected.push(word & !META),
                Compared::Open(buf) => looked = LookedNow::Unsure(Candidate { slot: at, word }, entry.ptr, buf),
            }
        }
        self.ready = Some((geometry.version, bucket, first));
        looked
    }

    /// READs the level-1 bucket at once, behind the WRITE of `along`, if nothing else has to be in its batch.
    #[inline]
    pub(super) fn read_first_now(
        &mut self,
        geometry: &Geometry,
        bucket: u64,
        along: &mut Option<(RemotePtr, Buf)>,
    ) -> Option<Snapshot> {
        let joined = !self.counted && self.table.is_sync_due(self.pin.epoch())
            || geometry.parent(bucket).is_some() && self.table.speculates();
        if joined {
            return None;
        }
        let at = geometry.bucket(Level::One, bucket);
        let words = self.span().read_behind_now(Class::Index, along, at, Level::One.bytes())?;
        if !std::mem::replace(&mut self.counted, true) {
            self.table.count_alone();
        }
        Some(Snapshot::new(at, words))
    }
}
