//! What steers a search for memory that was given back: counters in the node, and where this session's last search ended.
//!
//! Invariants: hints, all of them. What is free, descriptors say, and it is taken by CAS.

use std::cell::Cell;

/// Descriptors fetched by one READ.
pub(super) const SCAN: u64 = 64;
/// Descriptors that a search for free chunks looks at before it takes unused ones.
const LOOK: u64 = 4 * SCAN;
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
    /// Have so many blocks of the class been given back that a READ of descriptors is likely to show a dozen? With fewer, an unused
    /// chunk is nearer.
    pub(crate) fn many_returned(&self) -> bool {
        self.returned >= (self.cursor / 4).max(32)
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
        let returned = |cursor, returned| Counters { cursor, free_chunks: 0, returned }.many_returned();
        assert_eq!([31, 32].map(|blocks| returned(100, blocks)), [false, true]);
        assert_eq!([32, 2499, 2500].map(|blocks| returned(10_000, blocks)), [false, false, true]);
        let worth = |cursor, free_chunks, count| Counters { cursor, free_chunks, returned: 0 }.worth(count, false);
        assert_eq!([worth(64, 1, 1), worth(65, 1, 1), worth(64, 1, 2), worth(64, 0, 1)], [LOOK, 0, 0, 0]);
        assert_eq!([worth(6400, 99, 1), worth(6400, 100, 1), worth(6400, 100, 50)], [0, LOOK, LOOK]);
        assert_eq!(Counters { cursor: 6400, free_chunks: 0, returned: 0 }.worth(1, true), ALL);
    }
}
