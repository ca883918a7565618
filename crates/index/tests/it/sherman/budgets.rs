//! What Sherman costs in verbs, asserted exactly.

use crate::trees::costs::{BLOCK, Budget, INLINE, LEN, budget, fill, key};
use farindex_fabric::OpKind;
use farindex_index::{Insert, OrderedIndex, PointIndex, Remove, Sherman, Upsert, sherman::Config};
use farindex_testkit::alone::{cost_of, with_index};
use std::ops::Bound;

#[test]
fn a_lookup_reads_one_leaf_and_one_block() {
    with_index(LEN, Config::default(), async |index: &Sherman| {
        fill(index, 5000).await;
        assert_eq!(index.upsert(&key(100), BLOCK).await, Ok(Upsert::Updated));
        let expected = [
            (500, Some(INLINE), [1, 0, 1, 0, 0, 1024, 0]),
            (501, None, [1, 0, 1, 0, 0, 1024, 0]),
            (100, Some(BLOCK), [2, 1, 2, 0, 0, 1024 + 64, 0]),
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
fn each_level_that_is_not_cached_takes_one_read_more() {
    for (keys, height) in [(10, 1), (5000, 2)] {
        with_index(LEN, Config::default(), async move |index: &Sherman| {
            fill(index, keys).await;
            index.forget();
            for uncached in [height, 0] {
                let cost = cost_of(index.session().endpoint(), OpKind::Get, async || {
                    assert!(index.get(&key(4)).await.is_ok_and(|value| value.is_some()));
                });
                let reads = 1 + uncached;
                assert_eq!(budget(&cost.await), [reads, 0, reads, 0, 0, reads * 1024, 0]);
            }
        });
    }
}

/// One batch locks the leaf and READs it, another one changes it and releases the lock: WRITE intent (64 bytes), CAS,
/// READ; WRITE slot (16), WRITE checksum and bitmap (16), CAS, CAS. A slot that held an entry of the other kind before takes
/// one more WRITE (8).
#[test]
fn a_write_takes_two_round_trips_and_one_more_to_compare_a_block() {
    with_index(LEN, Config::default(), async |index: &Sherman| {
        fill(index, 5000).await;
        let endpoint = index.session().endpoint();
        use OpKind::{Insert, Remove, Update, Upsert};
        let inline: &[(OpKind, u64, Budget)] = &[
            (Insert, 1, [2, 0, 1, 3, 3, 1024, 64 + 32]),
            // Nothing changes: it is there.
            (Insert, 1, [2, 0, 1, 1, 3, 1024, 64]),
            // The value and the checksum.
            (Update, 1, [2, 0, 1, 3, 3, 1024, 64 + 16]),
            (Update, 3, [2, 0, 1, 1, 3, 1024, 64]),
            (Upsert, 3, [2, 0, 1, 3, 3, 1024, 64 + 32]),
            (Upsert, 3, [2, 0, 1, 3, 3, 1024, 64 + 16]),
            // The checksum and the bitmap.
            (Remove, 1, [2, 0, 1, 2, 3, 1024, 64 + 16]),
            (Remove, 1, [2, 0, 1, 1, 3, 1024, 64]),
            (Remove, 3, [2, 0, 1, 2, 3, 1024, 64 + 16]),
        ];
        // With the WRITE of a block of 64 bytes in the first batch; the slots held inline entries before.
        let block: &[(OpKind, u64, Budget)] = &[
            (Insert, 1, [2, 0, 1, 5, 3, 1024, 128 + 40]),
            (Insert, 1, [3, 1, 2, 2, 3, 1024 + 64, 128]),
            (Update, 1, [3, 1, 2, 4, 3, 1024 + 64, 128 + 16]),
            (Update, 3, [2, 0, 1, 2, 3, 1024, 128]),
            (Upsert, 3, [2, 0, 1, 5, 3, 1024, 128 + 40]),
            (Upsert, 3, [3, 1, 2, 4, 3, 1024 + 64, 128 + 16]),
            (Remove, 1, [3, 1, 2, 2, 3, 1024 + 64, 64 + 16]),
            (Remove, 1, [2, 0, 1, 1, 3, 1024, 64]),
            (Remove, 3, [3, 1, 2, 2, 3, 1024 + 64, 64 + 16]),
        ];
        for (value, operations) in [(INLINE, inline), (BLOCK, block)] {
            for (number, (kind, i, costs)) in operations.iter().enumerate() {
                let key = key(i + 1000);
                let cost = cost_of(endpoint, *kind, async || match kind {
                    Insert => drop(index.insert(&key, value).await.expect("an insert")),
                    Update => drop(index.update(&key, value).await.expect("an update")),
                    Upsert => drop(index.upsert(&key, value).await.expect("an upsert")),
                    _ => drop(index.remove(&key).await.expect("a removal")),
                });
                assert_eq!(budget(&cost.await), *costs, "{number}: {kind:?} of {} bytes", value.len());
            }
        }
    });
}

/// Leaves that are half full hold 29 entries. A scan that begins inside of one may need another leaf than it has asked
/// for.
#[test]
fn a_scan_reads_the_leaves_of_one_parent_in_one_round_trip() {
    with_index(LEN, Config::default(), async |index: &Sherman| {
        fill(index, 5000).await;
        let leaf = 29 * 2;
        let expected = [
            (0, 1, [1, 0, 1, 0, 0, 1024, 0]),
            (0, 100, [1, 0, 4, 0, 0, 4 * 1024, 0]),
            (10 * leaf, 100, [1, 0, 4, 0, 0, 4 * 1024, 0]),
            (10 * leaf + 28 * 2, 1, [1, 0, 1, 0, 0, 1024, 0]),
            (10 * leaf + 28 * 2, 100, [2, 0, 5, 0, 0, 5 * 1024, 0]),
        ];
        for (from, limit, costs) in expected {
            let before = index.session().endpoint().meter();
            let found = index.scan((Bound::Included(&key(from)), Bound::Unbounded), limit).await.expect("a scan");
            assert_eq!(found.len(), limit);
            let cost = *(index.session().endpoint().meter() - before).of(OpKind::Scan);
            assert_eq!(budget(&cost), costs, "{limit} entries from {from} on");
        }
        let before = index.session().endpoint().meter();
        let found = index.scan((Bound::Unbounded, Bound::Unbounded), 5000).await.expect("a scan");
        assert_eq!(found.len(), 5000);
        let cost = *(index.session().endpoint().meter() - before).of(OpKind::Scan);
        println!("a scan of 5,000 entries: {:?}", budget(&cost));
        // At most 32 leaves, and those of one parent.
        assert!(cost.total.round_trips <= 8 && cost.total.reads <= 5000 / 29 + 1, "{cost:?}");
    });
}

#[test]
fn lookups_of_many_keys_are_a_batch_of_leaves_and_one_of_blocks() {
    with_index(LEN, Config::default(), async |index: &Sherman| {
        fill(index, 5000).await;
        for i in 3000..4000 {
            assert_eq!(index.upsert(&key(i * 2), BLOCK).await, Ok(Upsert::Updated));
        }
        // Each leaf is READ once.
        let expected =
            [(0, 20, [1, 0, 88, 0, 0, 88 * 1024, 0]), (3000, 5, [2, 1, 23 + 128, 0, 0, 23 * 1024 + 128 * 64, 0])];
        for (from, step, costs) in expected {
            let keys: Vec<_> = (0..128).map(|i| key((from + i * step) * 2)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let before = index.session().endpoint().meter();
            let values = index.get_many(&keys).await.expect("values");
            assert!(values.iter().all(Option::is_some));
            let cost = *(index.session().endpoint().meter() - before).of(OpKind::Get);
            assert_eq!(budget(&cost), costs);
        }
    });
}

/// The insert that finds its leaf full WRITEs a new leaf with its own second batch. Then, counted as maintenance: the
/// parent is locked and READ, the child is READ, the separator is added (3 round trips); the parent is READ into the
/// cache again (1); the insert is done again (2).
#[test]
fn a_split_adds_six_round_trips_to_an_insert() {
    with_index(LEN, Config::default(), async |index: &Sherman| {
        fill(index, 1000).await;
        let mut splits = 0;
        for i in 0..70 {
            let before = index.session().endpoint().meter();
            assert_eq!(index.insert(&key(2000 + i), INLINE).await, Ok(Insert::Inserted));
            let cost = index.session().endpoint().meter() - before;
            let (own, more) = (budget(cost.of(OpKind::Insert)), budget(cost.of(OpKind::Maintenance)));
            if more == [0; 7] {
                assert_eq!(own, [2, 0, 1, 4, 3, 1024, 64 + 40]);
            } else {
                // The new leaf becomes free.
                assert_eq!(own, [2, 0, 1, 4, 4, 1024, 64 + 1024 + 40]);
                // Of the new leaf, only the header is READ.
                assert_eq!(more, [6, 0, 4, 3 + 4, 6, 3 * 1024 + 48, 64 + 32 + 64 + 40]);
                splits += 1;
            }
        }
        assert_eq!(splits, 2);
    });
}

/// A leaf is drained next to a neighbour that is too full to be merged with: a merge is tried when 16, 12, 8, 4 and no
/// entries are left. A try READs root and parent, locks and READs the leaf, READs the neighbour, and releases the lock.
#[test]
fn a_merge_that_does_not_fit_is_tried_five_times() {
    with_index(LEN, Config::default(), async |index: &Sherman| {
        fill(index, 5000).await;
        let (drained, full) = (29 * 10..29 * 11, 29 * 11..29 * 12);
        for i in full {
            assert_eq!(index.insert(&key(i * 2 + 1), INLINE).await, Ok(Insert::Inserted));
        }
        let mut tries = Vec::new();
        for (left, i) in (0..29).rev().map(|left| (left, drained.start + left)) {
            let before = index.session().endpoint().meter();
            assert_eq!(index.remove(&key(i * 2)).await, Ok(Remove::Removed));
            let more = budget((index.session().endpoint().meter() - before).of(OpKind::Maintenance));
            if more != [0; 7] {
                assert_eq!(more, [5, 0, 4, 1, 3, 4 * 1024, 64], "{left} are left");
                tries.push(left);
            }
        }
        assert_eq!(tries, [16, 12, 8, 4, 0]);
    });
}
