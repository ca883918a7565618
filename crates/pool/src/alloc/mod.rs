//! Allocation by one-sided verbs.
//!
//! Memory is taken in *chunks*. A chunk holds blocks of one size class, or belongs to a *span* of contiguous chunks
//! that holds one large object. A session allocates from its own free list without any verb. It refills the list from
//! the pool: first with blocks that were freed, then with chunks that were freed, then with chunks that were never
//! used. The free list also keeps a few freed spans.
//!
//! Invariants: a block is in exactly one place: reachable from an index, in a session's free list, in a session's
//! retire list (unlinked, and waiting for its grace period), or free in its chunk's bitmap. A chunk below the cursor
//! whose descriptor says `Free` has no owner. Exhaustion is an error that changes nothing.

pub mod bitmap;
pub mod chunks;
pub mod classes;
pub(crate) mod search;

use crate::layout::Geometry;
use classes::CLASSES;
use farindex_fabric::RemotePtr;

/// Most bytes of one class that a free list keeps. If it has more, it returns blocks to the pool, down to half of this.
const KEEP_BYTES: u64 = 32 << 10;
/// Blocks of one class that a free list keeps even if they are more bytes.
const KEEP_BLOCKS: usize = 16;
/// Most bytes of one class that a free list keeps in addition, for the operations in progress.
const BUSY_BYTES: u64 = 256 << 10;

/// Most bytes of spans that a free list keeps. An index whose segments are spans retires one span for each that it
/// allocates; taking a span from the pool costs a search through the descriptors.
const KEEP_SPAN_BYTES: u64 = 512 << 10;
/// A free list keeps at most this fraction of a node in spans, because other sessions cannot use them.
const KEEP_SPAN_SHARE: u64 = 256;

/// A free list keeps at most this fraction of a node in blocks of one class, if that is more.
const KEEP_SHARE: u64 = 1024;

/// Number of blocks of a class that a free list keeps, in a session with so many operations in progress. Their blocks are
/// retired together and their grace periods end together: a list that keeps fewer gives back what they need next. So it is
/// with `demand`, the blocks that are taken from one advance of the epoch to the next, where other clients advance it slowly.
pub(crate) fn keep(class: usize, in_progress: usize, demand: u32, geometry: &Geometry) -> usize {
    let least = BLOCKS_KEPT[class].max(KEEP_BLOCKS) + 2 * low(class, in_progress);
    let demand = 2 * demand as usize;
    // Called for each block that becomes free, and so without a division as a rule.
    if demand <= least {
        return least;
    }
    let share = geometry.chunks.saturating_mul(geometry.chunk_size) / KEEP_SHARE;
    least.max(demand.min((share / classes::bytes(class).max(1)) as usize))
}

/// Number of blocks of a class at which a session refills its free list although it is not empty: as many as its other
/// operations may take meanwhile. Zero if there are no others.
pub(crate) fn low(class: usize, in_progress: usize) -> usize {
    (2 * in_progress.saturating_sub(1)).min(BLOCKS_BUSY[class])
}

/// Blocks of each class that `KEEP_BYTES` hold, and half of `BUSY_BYTES`.
const BLOCKS_KEPT: [usize; CLASSES] = blocks_in(KEEP_BYTES);
const BLOCKS_BUSY: [usize; CLASSES] = blocks_in(BUSY_BYTES / 2);

const fn blocks_in(bytes: u64) -> [usize; CLASSES] {
    let mut blocks = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        blocks[class] = (bytes / classes::bytes(class)) as usize;
        class += 1;
    }
    blocks
}

/// A run of contiguous blocks at the end of a chunk that were never used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) next: RemotePtr,
    pub(crate) left: u64,
}

/// The free blocks and spans of one session on one node.
pub(crate) struct FreeList {
    pub(crate) free: [Vec<RemotePtr>; CLASSES],
    pub(crate) runs: [Option<Run>; CLASSES],
    /// Spans with their numbers of chunks.
    pub(crate) spans: Vec<(RemotePtr, u64)>,
    /// Blocks of each class that operations have taken since retired memory last became free.
    taken: [u32; CLASSES],
    /// What that was before; less if it was long ago.
    demand: [u32; CLASSES],
}

impl Default for FreeList {
    fn default() -> Self {
        let free = std::array::from_fn(|_| Vec::new());
        FreeList { free, runs: [None; CLASSES], spans: Vec::new(), taken: [0; CLASSES], demand: [0; CLASSES] }
    }
}

impl FreeList {
    /// Takes a block of this class for an operation, if there is one.
    pub(crate) fn take(&mut self, class: usize) -> Option<RemotePtr> {
        let taken = self.pop(class);
        if let (Some(count), Some(_)) = (self.taken.get_mut(class), taken) {
            *count = count.saturating_add(1);
        }
        taken
    }

    /// Retired memory has become free: what is taken from now on is for the next time.
    pub(crate) fn note_demand(&mut self) {
        for (demand, taken) in self.demand.iter_mut().zip(&mut self.taken) {
            *demand = std::mem::take(taken).max(*demand / 2);
        }
    }
    /// Blocks of this class that are taken from one time at which retired memory becomes free to the next.
    pub(crate) fn demand(&self, class: usize) -> u32 {
        self.demand.get(class).copied().unwrap_or(0)
    }

    fn pop(&mut self, class: usize) -> Option<RemotePtr> {
        if let Some(ptr) = self.free.get_mut(class)?.pop() {
            return Some(ptr);
        }
        let run = self.runs[class].as_mut()?;
        let ptr = run.next;
        run.next = ptr.add(classes::bytes(class));
        run.left -= 1;
        if run.left == 0 {
            self.runs[class] = None;
        }
        Some(ptr)
    }

    /// Takes a span of so many chunks, if there is one.
    pub(crate) fn take_span(&mut self, chunks: u64) -> Option<RemotePtr> {
        let at = self.spans.iter().rposition(|(_, have)| *have == chunks)?;
        Some(self.spans.swap_remove(at).0)
    }

    /// Returns whether the list can keep a span of so many chunks, on a node with this geometry.
    pub(crate) fn has_room_for_span(&self, chunks: u64, geometry: &Geometry) -> bool {
        let kept = self.spans.iter().map(|(_, have)| have).sum::<u64>();
        let most = (KEEP_SPAN_BYTES / geometry.chunk_size.max(1)).min(geometry.chunks / KEEP_SPAN_SHARE);
        kept.saturating_add(chunks) <= most
    }

    /// Returns whether this span is in the list.
    pub(crate) fn has_span(&self, ptr: RemotePtr) -> bool {
        self.spans.iter().any(|(have, _)| *have == ptr)
    }

    /// Number of blocks of this class.
    pub(crate) fn count(&self, class: usize) -> u64 {
        let free = self.free.get(class).map_or(0, Vec::len) as u64;
        free + self.runs.get(class).copied().flatten().map_or(0, |run| run.left)
    }

    /// Returns whether there is a block of this class.
    pub(crate) fn has(&self, class: usize) -> bool {
        self.count(class) > 0
    }

    /// Returns whether there are neither blocks nor spans.
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty() && (0..CLASSES).all(|class| !self.has(class))
    }

    /// Takes every block; spans stay.
    pub(crate) fn drain(&mut self) -> Vec<(RemotePtr, usize)> {
        let mut all = Vec::new();
        for class in 0..CLASSES {
            while let Some(ptr) = self.pop(class) {
                all.push((ptr, class));
            }
        }
        all
    }
}

/// The place of a block: its chunk, and its number within the chunk. `None` if no block of this class begins there.
pub(crate) fn place(geometry: &Geometry, ptr: RemotePtr, class: usize) -> Option<(u64, u64)> {
    let chunk = geometry.chunk_of(ptr)?;
    let within = (ptr.offset() - geometry.data()) % geometry.chunk_size;
    let bytes = classes::bytes(class);
    let bit = within.checked_div(bytes)?;
    // The bytes after a chunk's last whole block are no block.
    (within.is_multiple_of(bytes) && bit < classes::blocks(class, geometry.chunk_size)).then_some((chunk, bit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn a_list_keeps_what_is_taken_between_two_advances_of_the_epoch() {
        let of = |chunks| Geometry { chunk_size: 64 << 10, chunks, client_slots: 8, intent_cells: 4 };
        let [small, large] = [of(64), of(1 << 14)];
        let least = keep(0, 0, 0, &large);
        assert_eq!(least as u64, KEEP_BYTES / classes::bytes(0));
        assert_eq!(keep(0, 0, 3000, &large), 6000);
        assert_eq!(keep(0, 0, 3000, &small), least, "a small node has nothing to spare");
        assert_eq!(keep(0, 0, u32::MAX, &large) as u64, (1 << 30) / KEEP_SHARE / classes::bytes(0));
        let mut list = FreeList::default();
        list.free[0].extend((0..100).map(|i| RemotePtr::new(NodeId::new(0), 64 * i)));
        assert_eq!((0..40).filter_map(|_| list.take(0)).count(), 40);
        assert_eq!(list.demand(0), 0);
        list.note_demand();
        assert_eq!(list.demand(0), 40);
        list.drain();
        list.note_demand();
        assert_eq!(list.demand(0), 20, "what the pool gets back is no demand");
    }
}
