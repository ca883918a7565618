//! What DEX costs in verbs, asserted exactly, where the compute node owns the keys.

use crate::trees::costs::{BLOCK, Budget, INLINE, LEN, budget, fill, key};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{MemoryFabric, OpKind};
use farindex_index::tree::faults::{Fault, plant};
use farindex_index::{Dex, Insert, OrderedIndex, PointIndex, Remove, Update, dex::Config};
use farindex_testkit::alone::{cost_of, with_index, with_index_on};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

const ADMITS: Config =
    Config { leaf_admission: 100, ..Config { leaf_span: 59, inner_span: 59, cache_bytes: 64 << 20, ..DEFAULT } };
const DEFAULT: Config = Config {
    leaf_span: 59,
    inner_span: 59,
    cache_bytes: 64 << 20,
    leaf_admission: 10,
    moves: farindex_index::dex::Moves::Partition,
    foreign: farindex_index::dex::Foreign::Acquire,
    offload: farindex_index::dex::Offload::Auto,
    subtree_levels: 0,
    durability: farindex_index::dex::Durability::WriteThrough,
    dirty_ms: 100,
};
const NOTHING: Budget = [0; 7];

#[test]
fn a_lookup_in_a_cached_leaf_takes_no_verb_and_in_another_one_a_read() {
    with_index(LEN, ADMITS, async |index: &Dex| {
        fill(index, 5000).await;
        assert!(index.get(&key(500)).await.is_ok_and(|value| value.is_some()));
        let endpoint = index.session().endpoint();
        for (i, value) in [(500, Some(INLINE)), (501, None)] {
            let cost = cost_of(endpoint, OpKind::Get, async || {
                assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), value);
            });
            assert_eq!(budget(&cost.await), NOTHING, "key {i}");
        }
        let many = cost_of(endpoint, OpKind::Get, async || {
            let (a, b) = (key(500), key(501));
            let values = index.get_many(&[&a[..], &b[..]]).await.expect("lookups");
            assert_eq!(values.iter().map(Option::as_deref).collect::<Vec<_>>(), [Some(INLINE), None]);
        });
        assert_eq!(budget(&many.await), NOTHING);
        index.forget();
        assert!(index.lookups().iter().all(|level| level.hits > 0));
        // The inner nodes are READ as well: there are two levels of them.
        for costs in [[3, 0, 3, 0, 0, 3 * 1024, 0], NOTHING] {
            let cost = cost_of(endpoint, OpKind::Get, async || {
                assert!(index.get(&key(500)).await.is_ok_and(|value| value.is_some()));
            });
            assert_eq!(budget(&cost.await), costs);
        }
    });
}

/// P-Sherman: a lookup is one READ of a leaf, an update in place a READ and a batch of WRITEs, and nothing takes an atomic.
#[test]
fn p_sherman_reads_a_leaf_each_time_and_takes_no_atomics() {
    let config = Config { leaf_span: 59, inner_span: 59, cache_bytes: 64 << 20, ..Config::p_sherman() };
    with_index(LEN, config, async |index: &Dex| {
        fill(index, 5000).await;
        let endpoint = index.session().endpoint();
        for _ in 0..2 {
            let cost = cost_of(endpoint, OpKind::Get, async || {
                assert!(index.get(&key(500)).await.is_ok_and(|value| value.is_some()));
            });
            assert_eq!(budget(&cost.await), [1, 0, 1, 0, 0, 1024, 0]);
            // WRITE value (8), WRITE checksum (8).
            let cost = cost_of(endpoint, OpKind::Update, async || {
                assert_eq!(index.update(&key(500), INLINE).await, Ok(Update::Updated));
            });
            assert_eq!(budget(&cost.await), [2, 0, 1, 2, 0, 1024, 16]);
        }
    });
}

/// WRITE slot (16 bytes), WRITE checksum and bitmap (16); for a value in place WRITE value (8), WRITE checksum (8).
#[test]
fn a_write_to_a_cached_leaf_takes_one_round_trip() {
    with_index(LEN, ADMITS, async |index: &Dex| {
        fill(index, 5000).await;
        let absent = key(501);
        assert_eq!(index.get(&absent).await, Ok(None));
        let endpoint = index.session().endpoint();
        let insert = async |expected: Insert, costs: Budget| {
            let cost = cost_of(endpoint, OpKind::Insert, async || {
                assert_eq!(index.insert(&absent, INLINE).await, Ok(expected));
            });
            assert_eq!(budget(&cost.await), costs);
        };
        insert(Insert::Inserted, [1, 0, 0, 2, 0, 0, 32]).await;
        insert(Insert::Exists, NOTHING).await;
        let cost = cost_of(endpoint, OpKind::Update, async || {
            assert_eq!(index.update(&absent, INLINE).await, Ok(Update::Updated));
        });
        assert_eq!(budget(&cost.await), [1, 0, 0, 2, 0, 0, 16]);
        // The block, the slot, the bitmaps of inline and of used slots with the checksum.
        let cost = cost_of(endpoint, OpKind::Update, async || {
            assert_eq!(index.update(&absent, BLOCK).await, Ok(Update::Updated));
        });
        let [trips, _, reads, _, atomics, ..] = budget(&cost.await);
        assert_eq!((trips, reads, atomics), (1, 0, 0));
        // The block of the key's hash is compared.
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(index.remove(&absent).await, Ok(Remove::Removed));
        });
        let [trips, _, reads, _, atomics, ..] = budget(&cost.await);
        assert_eq!((trips, reads, atomics), (2, 1, 0));
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(index.remove(&absent).await, Ok(Remove::Absent));
        });
        assert_eq!(budget(&cost.await), NOTHING);
    });
}

/// Two lookups of a leaf that is nowhere in the cache: one READs the path, the other one waits for it. Without the I/O flag
/// both READ it.
#[test]
fn two_lookups_at_a_time_read_a_missing_path_once() {
    for (faults, reads) in [(&[][..], 3), (&[Fault::NoIoFlag][..], 6)] {
        // As on a network, verbs take time.
        let fabric = MemoryFabric::new(1, LEN).expect("memory").with_delivery(Delivery::Deferred);
        with_index_on(Arc::new(fabric), ADMITS, async |index: &Dex| {
            fill(index, 5000).await;
            index.forget();
            let endpoint = index.session().endpoint();
            let before = endpoint.meter();
            plant(faults);
            let (a, b) = (key(500), key(502));
            let both = poll_both(index.get(&a), index.get(&b)).await;
            plant(&[]);
            assert_eq!(both.map(|value| value.expect("a lookup").as_deref() == Some(INLINE)), [true, true]);
            assert_eq!((endpoint.meter() - before).of(OpKind::Get).total.reads, reads, "{faults:?}");
        });
    }
}

/// Polls two futures in turn until both are ready.
async fn poll_both<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> [T; 2] {
    let (mut a, mut b, mut values) = (pin!(a), pin!(b), (None, None));
    poll_fn(|cx| {
        if values.0.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            values.0 = Some(value);
        }
        if values.1.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            values.1 = Some(value);
        }
        match (values.0.take(), values.1.take()) {
            (Some(a), Some(b)) => Poll::Ready([a, b]),
            unfinished => {
                values = unfinished;
                Poll::Pending
            }
        }
    })
    .await
}

/// The copies of leaves lead a scan past the READs: 0 verbs for all of them, and one batch for those that are missing.
#[test]
fn a_scan_reads_only_the_leaves_without_copies() {
    with_index(LEN, ADMITS, async |index: &Dex| {
        fill(index, 5000).await;
        let endpoint = index.session().endpoint();
        let scan = async |costs: Budget| {
            let cost = cost_of(endpoint, OpKind::Scan, async || {
                let bounds = (Bound::Included(&key(1000)[..]), Bound::Unbounded);
                let entries = index.scan(bounds, 100).await.expect("a scan");
                let keys: Vec<_> = entries.iter().map(|entry| entry.key.to_vec()).collect();
                assert_eq!(keys, (500..600).map(|i| key(i * 2).to_vec()).collect::<Vec<_>>());
            });
            assert_eq!(budget(&cost.await), costs);
        };
        scan(NOTHING).await;
        // Leaves have 29 or 30 entries: the first four are READ ahead.
        index.forget();
        assert!(index.get(&key(1000)).await.is_ok_and(|value| value.is_some()));
        scan([1, 0, 3, 0, 0, 3 * 1024, 0]).await;
    });
}
