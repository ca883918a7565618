//! Allocation, one-sided.
//!
//! Memory comes in *chunks*. A chunk holds blocks of one size class, or belongs to a *span* of contiguous chunks that
//! holds one large object. A session takes blocks from its own stock without any verb, and fills the stock
//! from the pool: blocks that others gave back, chunks that were freed, and last the chunks that nobody used yet.
//!
//! A session keeps a few spans that it has freed, too.
//!
//! Invariants: a block is in exactly one place: reachable from an index, in a session's stock, in its limbo (unlinked,
//! waiting for the epoch), or free in its chunk's bitmap. A chunk below the cursor whose descriptor says `Free` belongs to
//! nobody. Exhaustion is an error that leaves everything as it was.

pub mod bitmap;
pub mod chunks;
pub mod classes;
pub(crate) mod search;

use crate::layout::Geometry;
use classes::CLASSES;
use farindex_fabric::RemotePtr;

/// Blocks of one class that a stock keeps at most; what is above goes back to the pool, down to half.
const KEEP_BYTES: u64 = 32 << 10;
const KEEP_BLOCKS: usize = 16;

/// Bytes of spans that a stock keeps at most. An index whose segments are spans retires one for each that it allocates; to take
/// one from the pool costs a look through its chunks.
const KEEP_SPAN_BYTES: u64 = 512 << 10;
/// At most such a part of a node: what one session keeps, others do without.
const KEEP_SPAN_SHARE: u64 = 256;

/// How many blocks of a class a stock may keep.
pub(crate) fn keep(class: usize) -> usize {
    ((KEEP_BYTES / classes::bytes(class).max(1)) as usize).max(KEEP_BLOCKS)
}

/// A run of blocks that were never used, at the end of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) next: RemotePtr,
    pub(crate) left: u64,
}

/// One session's free blocks on one node.
pub(crate) struct FreeList {
    pub(crate) free: [Vec<RemotePtr>; CLASSES],
    pub(crate) runs: [Option<Run>; CLASSES],
    /// Spans, and how many chunks each has.
    pub(crate) spans: Vec<(RemotePtr, u64)>,
}

impl Default for FreeList {
    fn default() -> Self {
        FreeList { free: std::array::from_fn(|_| Vec::new()), runs: [None; CLASSES], spans: Vec::new() }
    }
}

impl FreeList {
    /// A block of this class, if there is one.
    pub(crate) fn take(&mut self, class: usize) -> Option<RemotePtr> {
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

    /// A span of so many chunks, if there is one.
    pub(crate) fn take_span(&mut self, chunks: u64) -> Option<RemotePtr> {
        let at = self.spans.iter().rposition(|(_, have)| *have == chunks)?;
        Some(self.spans.swap_remove(at).0)
    }

    /// May it keep so many chunks more, of a node that has this geometry?
    pub(crate) fn has_room_for_span(&self, chunks: u64, geometry: &Geometry) -> bool {
        let kept = self.spans.iter().map(|(_, have)| have).sum::<u64>();
        let most = (KEEP_SPAN_BYTES / geometry.chunk_size.max(1)).min(geometry.chunks / KEEP_SPAN_SHARE);
        kept.saturating_add(chunks) <= most
    }

    /// Is this span in it?
    pub(crate) fn has_span(&self, ptr: RemotePtr) -> bool {
        self.spans.iter().any(|(have, _)| *have == ptr)
    }

    /// Is there a block of this class?
    pub(crate) fn has(&self, class: usize) -> bool {
        self.free.get(class).is_some_and(|free| !free.is_empty()) || self.runs.get(class).is_some_and(Option::is_some)
    }

    /// Nothing at all?
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty() && (0..CLASSES).all(|class| !self.has(class))
    }

    /// Every block in it; spans stay.
    pub(crate) fn drain(&mut self) -> Vec<(RemotePtr, usize)> {
        let mut all = Vec::new();
        for class in 0..CLASSES {
            while let Some(ptr) = self.take(class) {
                all.push((ptr, class));
            }
        }
        all
    }
}

/// Where a block's bit is: its chunk, and its number within the chunk.
pub(crate) fn place(geometry: &Geometry, ptr: RemotePtr, class: usize) -> Option<(u64, u64)> {
    let chunk = geometry.chunk_of(ptr)?;
    let within = (ptr.offset() - geometry.data()) % geometry.chunk_size;
    let bytes = classes::bytes(class);
    let bit = within.checked_div(bytes)?;
    // What is left over behind a chunk's last whole block is no block.
    (within.is_multiple_of(bytes) && bit < classes::blocks(class, geometry.chunk_size)).then_some((chunk, bit))
}
