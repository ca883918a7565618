//! Costs of operations in verbs, for budgets.

use farindex_fabric::OpStats;
use farindex_index::{Insert, PointIndex};

/// Round trips, of those for blocks; READs, WRITEs, CASes; bytes read and written.
pub(crate) type Budget = [u64; 7];

pub(crate) fn budget(cost: &OpStats) -> Budget {
    assert_eq!(cost.faa, 0);
    let OpStats { total, .. } = cost;
    [
        total.round_trips,
        total.block_round_trips,
        total.reads,
        total.writes,
        total.cas,
        total.bytes_read,
        total.bytes_written,
    ]
}

pub(crate) const LEN: u64 = 64 << 20;
pub(crate) const INLINE: &[u8] = b"12345678";
pub(crate) const BLOCK: &[u8] = b"a value of 40 bytes, which takes a block";

pub(crate) fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// Ascending keys, every second one: all leaves but the last are half full, and all inner nodes have been read.
pub(crate) async fn fill(index: &impl PointIndex, keys: u64) {
    for i in 0..keys {
        assert_eq!(index.insert(&key(i * 2), INLINE).await, Ok(Insert::Inserted));
    }
    for i in 0..keys {
        assert_eq!(index.get(&key(i * 2)).await.expect("a lookup").as_deref(), Some(INLINE));
    }
}
