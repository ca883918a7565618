//! What steers a search for memory that was given back: counters in the node, and where this session's last search ended.
//!
//! Invariants: hints, all of them. What is free, descriptors say, and it is taken by CAS.

use super::classes;
use std::cell::Cell;

/// Descriptors fetched by one READ.
pub(super) const SCAN: u64 = 64;
/// Descriptors that a search for free chunks looks at before it takes unused ones.
const LOOK: u64 = 4 * SCAN;
/// Blocks that make such a READ worth while, and bytes of them.
const ENOUGH: u64 = 16;
const ENOUGH_BYTES: u64 = 32 << 10;
/// However many there are.
pub(super) const ALL: u64 = u64::MAX;

/// Where the scans of one session go on: for blocks that were given back, and for free chunks.
#[derive(Default)]
pub(crate) struct Hints {
    pub(super) blocks: Cell<u64>,
    pub(super) chunks: Cell<u64>,
}

/// The counters that steer a refill. They are hints: a client that dies may leave them a little off.
pub(crate) struct Counters {
    pub(crate) cursor: u64,
    pub(crate) free_chunks: u64,
    pub(crate) returned: u64,
}

impl Counters {
    /// Descriptors to look at for `count` free chunks before unused ones are taken. What that costs must not grow with the node:
    /// it pays where a READ of descriptors is likely to show one.
    pub(super) fn worth(&self, count: u64, thorough: bool) -> u64 {
        let likely = self.free_chunks >= count && self.free_chunks.saturating_mul(SCAN) >= self.cursor;
        if thorough { ALL } else { LOOK * u64::from(likely) }
    }
    /// Have so many blocks of the class been given back that a READ of descriptors is likely to show enough of them? With fewer, an unused
    /// chunk is nearer. Enough is a dozen or so of small blocks; of large ones, which would lie idle, what comes to [`ENOUGH_BYTES`].
    pub(crate) fn many_returned(&self, class: usize) -> bool {
        let enough = (ENOUGH_BYTES / classes::bytes(class).max(1)).clamp(1, ENOUGH);
        self.returned >= 2 * enough && self.returned.saturating_mul(SCAN) >= self.cursor.saturating_mul(enough)
    }
}

/// A counter that has been taken below zero counts as empty.
pub(super) fn at_least_zero(counter: u64) -> u64 {
    if counter > i64::MAX as u64 { 0 } else { counter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worth_a_search_depends_on_the_size_of_the_node() {
        let class = |bytes| classes::of(bytes, 64 << 10).unwrap_or_default();
        let returned =
            |bytes, cursor, returned| Counters { cursor, free_chunks: 0, returned }.many_returned(class(bytes));
        assert_eq!([31, 32].map(|blocks| returned(64, 100, blocks)), [false, true]);
        assert_eq!([32, 2499, 2500].map(|blocks| returned(64, 10_000, blocks)), [false, false, true]);
        assert_eq!([2499, 2500].map(|blocks| returned(2048, 10_000, blocks)), [false, true]);
        assert_eq!([1, 2].map(|blocks| returned(32 << 10, 100, blocks)), [false, true]);
        assert_eq!([156, 157].map(|blocks| returned(32 << 10, 10_000, blocks)), [false, true]);
        let worth = |cursor, free_chunks, count| Counters { cursor, free_chunks, returned: 0 }.worth(count, false);
        assert_eq!([worth(64, 1, 1), worth(65, 1, 1), worth(64, 1, 2), worth(64, 0, 1)], [LOOK, 0, 0, 0]);
        assert_eq!([worth(6400, 99, 1), worth(6400, 100, 1), worth(6400, 100, 50)], [0, LOOK, LOOK]);
        assert_eq!(Counters { cursor: 6400, free_chunks: 0, returned: 0 }.worth(1, true), ALL);
    }
}
