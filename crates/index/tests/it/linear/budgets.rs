//! What linear probing costs in verbs, asserted exactly.

use farindex_fabric::{OpKind, OpStats};
use farindex_index::{Insert, Linear, PointIndex, PoolIndex, Remove, Update, linear};
use farindex_testkit::alone::{cost_of, with_index};

/// READs of 256 bytes, and rare looks at the root.
fn config() -> linear::Config {
    linear::Config { slots: 1 << 16, width: 32, read_bytes: 256, alpha: 50.0, ..linear::Config::default() }
}

/// Round trips, of those for blocks; READs, WRITEs, CASes; bytes read and written.
type Budget = [u64; 7];

fn budget(cost: &OpStats) -> Budget {
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

const TINY: &[u8] = b"";
const INLINE: &[u8] = b"12345678";
const HEAP: [u8; 100] = [7; 100];

fn key(i: u32) -> [u8; 5] {
    let [a, b, c, d] = i.to_le_bytes();
    [b'k', a, b, c, d]
}

/// Allocation and root are warm; the root is not looked at for a while.
async fn warm(index: &Linear) {
    for i in 0..300 {
        assert_eq!(index.get(&key(i + 1_000_000)).await, Ok(None));
    }
    for (i, value) in [TINY, INLINE, &HEAP].into_iter().enumerate() {
        assert_eq!(index.insert(&key(i as u32), value).await, Ok(Insert::Inserted));
    }
}

#[test]
fn lookups() {
    with_index(64 << 20, config(), async |index: &Linear| {
        warm(index).await;
        let expected = [
            (0, Some(TINY), [1, 0, 1, 0, 0, 256, 0]),
            (1, Some(INLINE), [1, 0, 1, 0, 0, 256, 0]),
            (2, Some(HEAP.as_slice()), [2, 1, 2, 0, 0, 256 + 128, 0]),
            (77, None, [1, 0, 1, 0, 0, 256, 0]),
        ];
        for (i, value, costs) in expected {
            let cost = cost_of(index.session().endpoint(), OpKind::Get, async || {
                assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), value);
            });
            assert_eq!(budget(&cost.await), costs, "key {i}");
        }
    });
}

#[test]
fn inserts() {
    with_index(64 << 20, config(), async |index: &Linear| {
        warm(index).await;
        let expected = [
            (TINY, [2, 0, 1, 0, 1, 256, 0]),
            // 13 bytes: two words behind the head.
            (INLINE, [3, 0, 1, 2, 2, 256, 64 + 16]),
            (HEAP.as_slice(), [2, 0, 1, 1, 1, 256, 128]),
        ];
        for (i, (value, costs)) in expected.into_iter().enumerate() {
            let key = key(10 + i as u32);
            let cost = cost_of(index.session().endpoint(), OpKind::Insert, async || {
                assert_eq!(index.insert(&key, value).await, Ok(Insert::Inserted));
            });
            assert_eq!(budget(&cost.await), costs, "insert {i}");
        }
    });
}

#[test]
fn updates_and_removals() {
    with_index(64 << 20, config(), async |index: &Linear| {
        warm(index).await;
        let endpoint = index.session().endpoint();
        let update = async |i: u32, value: &[u8]| {
            let cost = cost_of(endpoint, OpKind::Update, async || {
                assert_eq!(index.update(&key(i), value).await, Ok(Update::Updated));
            });
            budget(&cost.await)
        };
        assert_eq!(update(0, TINY).await, [2, 0, 1, 0, 1, 256, 0]);
        // What was in the slot goes out of band, and stays there until two epochs have passed.
        assert_eq!(update(1, INLINE).await, [2, 0, 1, 1, 1, 256, 64]);
        assert_eq!(update(1, INLINE).await, [3, 1, 2, 1, 1, 256 + 64, 64]);
        for _ in 0..4 {
            index.session().maintain().await.expect("the epoch moves on");
        }
        // The first operation of an epoch reads the root along.
        assert!(index.get(&key(0)).await.is_ok_and(|value| value.is_some()));
        assert_eq!(update(1, INLINE).await, [4, 1, 2, 2, 2, 256 + 64, 64 + 16], "into the slot again");
        assert_eq!(update(2, &HEAP).await, [3, 1, 2, 1, 1, 256 + 128, 128]);
        let remove = async |i: u32, outcome: Remove| {
            let cost = cost_of(endpoint, OpKind::Remove, async || {
                assert_eq!(index.remove(&key(i)).await, Ok(outcome));
            });
            budget(&cost.await)
        };
        assert_eq!(remove(0, Remove::Removed).await, [2, 0, 1, 0, 1, 256, 0]);
        assert_eq!(remove(1, Remove::Removed).await, [2, 0, 1, 0, 1, 256, 0]);
        assert_eq!(remove(2, Remove::Removed).await, [3, 1, 2, 0, 1, 256 + 128, 0]);
        assert_eq!(remove(2, Remove::Absent).await, [1, 0, 1, 0, 0, 256, 0]);
    });
}

/// Dead slots go with the table that they are in, which is moved to one as large.
#[test]
fn a_churn_keeps_its_size() {
    let small = linear::Config { slots: 256, width: 32, ..linear::Config::default() };
    with_index(64 << 20, small, async |index: &Linear| {
        for i in 0..20_000u32 {
            assert_eq!(index.insert(&key(i), INLINE).await, Ok(Insert::Inserted));
            if let Some(old) = i.checked_sub(100) {
                assert_eq!(index.remove(&key(old)).await, Ok(Remove::Removed));
            }
        }
        let segment = index.tables()[0].geometry().current;
        println!("20,000 keys came and went: {} moves, {} slots", index.resizes(), segment.slots());
        assert!(index.resizes() > 50 && segment.slots() <= 512, "{segment:?}");
        let session = index.session();
        let info = farindex_pool::catalog::find(session.pool(), &session.span(OpKind::Other), "test").await;
        assert_eq!(info.expect("an index").uid, PoolIndex::uid(index));
    });
}

/// Where tables are moved when a small share of their slots is in use, fewer dead slots are most of those.
#[test]
fn a_churn_keeps_its_size_with_any_threshold() {
    for threshold in [0.05, 0.1, 0.2, 0.3, 0.5, 0.95] {
        let small = linear::Config { slots: 64, width: 32, threshold, ..linear::Config::default() };
        with_index(64 << 20, small, async |index: &Linear| {
            for i in 0..10_000u32 {
                assert_eq!(index.insert(&key(i), INLINE).await, Ok(Insert::Inserted));
                if let Some(old) = i.checked_sub(20) {
                    assert_eq!(index.remove(&key(old)).await, Ok(Remove::Removed));
                }
            }
            let slots = index.tables()[0].geometry().current.slots();
            // Twice as many entries as there are pass for as many dead slots at least.
            let most = (20.0 * 2.0 / threshold) as u64 * 4;
            assert!(slots <= most, "{slots} slots for 20 entries, with a threshold of {threshold}");
        });
    }
}
