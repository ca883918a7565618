//! Hints for the search for freed memory: counters in the node's header, and where this session's last search ended.
//!
//! Invariants: nothing here decides what is free. The descriptors do, and memory is taken by CAS.

use super::classes;
use std::cell::Cell;

/// Descriptors that one READ returns.
pub(super) const SCAN: u64 = 64;
/// Descriptors that a search for free chunks examines before it takes unused chunks.
const SEARCH_LIMIT: u64 = 4 * SCAN;
/// A READ of descriptors is worthwhile if it is likely to show so many blocks, or so many bytes of blocks.
const ENOUGH: u64 = 16;
const ENOUGH_BYTES: u64 = 32 << 10;
/// No limit on the number of descriptors.
pub(super) const ALL: u64 = u64::MAX;

/// Where the next search of a session continues, for freed blocks and for free chunks.
#[derive(Default)]
pub(crate) struct Hints {
    pub(super) blocks: Cell<u64>,
    pub(super) chunks: Cell<u64>,
}

/// The counters that guide a refill. They are hints: a crashed client may leave them inexact.
pub(crate) struct Counters {
    pub(crate) cursor: u64,
    pub(crate) free_chunks: u64,
    pub(crate) returned: u64,
}

impl Counters {
    /// Number of descriptors to examine for `count` free chunks before unused chunks are taken. The cost must not grow
    /// with the size of the node, so there is a search only if one READ of descriptors is likely to show a free chunk.
    pub(super) fn search_limit(&self, count: u64, thorough: bool) -> u64 {
        let likely = self.free_chunks >= count && self.free_chunks.saturating_mul(SCAN) >= self.cursor;
        if thorough { ALL } else { SEARCH_LIMIT * u64::from(likely) }
    }
    /// Returns whether so many blocks of the class were freed that one READ of descriptors is likely to show enough of
    /// them. Otherwise an unused chunk is cheaper. Enough is [`ENOUGH`] small blocks, or [`ENOUGH_BYTES`] of large
    /// ones, because more large blocks would stay unused.
    pub(crate) fn many_returned(&self, class: usize) -> bool {
        let enough = (ENOUGH_BYTES / classes::bytes(class).max(1)).clamp(1, ENOUGH);
        self.returned >= 2 * enough && self.returned.saturating_mul(SCAN) >= self.cursor.saturating_mul(enough)
    }
}

/// A counter; 0 if it was decremented below zero.
pub(super) fn at_least_zero(counter: u64) -> u64 {
    if counter > i64::MAX as u64 { 0 } else { counter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_limits_depend_on_the_size_of_the_node() {
        let class = |bytes| classes::of(bytes, 64 << 10).unwrap_or_default();
        let returned =
            |bytes, cursor, returned| Counters { cursor, free_chunks: 0, returned }.many_returned(class(bytes));
        assert_eq!([31, 32].map(|blocks| returned(64, 100, blocks)), [false, true]);
        assert_eq!([32, 2499, 2500].map(|blocks| returned(64, 10_000, blocks)), [false, false, true]);
        assert_eq!([2499, 2500].map(|blocks| returned(2048, 10_000, blocks)), [false, true]);
        assert_eq!([1, 2].map(|blocks| returned(32 << 10, 100, blocks)), [false, true]);
        assert_eq!([156, 157].map(|blocks| returned(32 << 10, 10_000, blocks)), [false, true]);
        let worth =
            |cursor, free_chunks, count| Counters { cursor, free_chunks, returned: 0 }.search_limit(count, false);
        assert_eq!([worth(64, 1, 1), worth(65, 1, 1), worth(64, 1, 2), worth(64, 0, 1)], [SEARCH_LIMIT, 0, 0, 0]);
        assert_eq!([worth(6400, 99, 1), worth(6400, 100, 1), worth(6400, 100, 50)], [0, SEARCH_LIMIT, SEARCH_LIMIT]);
        assert_eq!(Counters { cursor: 6400, free_chunks: 0, returned: 0 }.search_limit(1, true), ALL);
    }
}
