//! What CHIME costs in verbs, asserted exactly. Keys are chosen by their home, so that it is known which entries they
//! take.

use crate::trees::costs::{BLOCK, Budget, INLINE, LEN, budget, fill, key};
use farindex_fabric::{OpKind, OpStats};
use farindex_index::chime::leaf::{Key, Layout};
use farindex_index::chime::{Config, Speculation};
use farindex_index::{Chime, Insert, OrderedIndex, PointIndex, Remove, Upsert};
use farindex_testkit::alone::{cost_of, with_index};
use std::ops::Bound;

/// Bytes of a neighbourhood with a replica, of a header, of a leaf, and of an inner node.
const NEAR: u64 = 8 * 24 + 8;
const HEAD: u64 = 64;
const LEAF: u64 = 1664;
const INNER: u64 = 1024;
/// An intent.
const INTENT: u64 = 64;

/// The default leaves, in an index without a seed.
fn layout() -> Layout {
    Layout::new(64, 8, 0).expect("a layout")
}

fn home(key: [u8; 8]) -> usize {
    layout().home(Key::inline(key))
}

/// Keys of 8 bytes with this home, ascending from `first` on.
fn keys_of(wanted: usize, first: u64) -> impl Iterator<Item = [u8; 8]> {
    (first..).map(key).filter(move |key| home(*key) == wanted)
}

fn some_key(wanted: usize) -> [u8; 8] {
    keys_of(wanted, 0).next().expect("keys of every home")
}

/// Reads the root into the cache.
async fn warm(index: &Chime) {
    assert!(index.get(b"absent").await.is_ok_and(|value| value.is_none()));
}

async fn insert(index: &Chime, key: &[u8]) {
    assert_eq!(index.insert(key, INLINE).await, Ok(Insert::Inserted));
}

async fn cost_of_get(index: &Chime, key: &[u8], value: Option<&[u8]>) -> Budget {
    let cost = cost_of(index.session().endpoint(), OpKind::Get, async || {
        assert_eq!(index.get(key).await.expect("a lookup").as_deref(), value);
    });
    budget(&cost.await)
}

/// The cost of a write, and that of what it owes the tree.
async fn cost_of_write(index: &Chime, kind: OpKind, key: &[u8], value: &[u8]) -> (Budget, Budget) {
    let before = index.session().endpoint().meter();
    match kind {
        OpKind::Insert => drop(index.insert(key, value).await.expect("an insert")),
        OpKind::Update => drop(index.update(key, value).await.expect("an update")),
        OpKind::Upsert => drop(index.upsert(key, value).await.expect("an upsert")),
        _ => drop(index.remove(key).await.expect("a removal")),
    }
    let cost = index.session().endpoint().meter() - before;
    let of = |kind| -> OpStats { *cost.of(kind) };
    assert_eq!(of(kind).ops, 1);
    (budget(&of(kind)), budget(&of(OpKind::Maintenance)))
}

/// A neighbourhood that wraps around takes two READs of the same bytes.
#[test]
fn a_lookup_reads_one_neighbourhood_and_one_block() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        fill(index, 5000).await;
        let mut wrapped = 0;
        for i in 0..2000 {
            let pieces = 1 + u64::from(home(key(i)) > 64 - 8);
            wrapped += pieces - 1;
            let value = (i % 2 == 0).then_some(INLINE);
            assert_eq!(cost_of_get(index, &key(i), value).await, [1, 0, pieces, 0, 0, NEAR, 0], "key {i}");
        }
        assert!(wrapped > 100);
        for wanted in [3, 60] {
            let key = keys_of(wanted, 3000).next().expect("a key");
            index.upsert(&key, BLOCK).await.expect("an upsert");
            let pieces = 1 + u64::from(wanted > 64 - 8);
            assert_eq!(cost_of_get(index, &key, Some(BLOCK)).await, [2, 1, pieces + 1, 0, 0, NEAR + 64, 0]);
        }
    });
}

/// A name of another length than 8 is compared in its block, and one that is absent needs none.
#[test]
fn a_lookup_of_a_name_reads_a_block_if_its_hash_is_there() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        let name = (0..).map(|i| format!("name {i:05}")).find(|name| {
            let hash = farindex_index::chime::leaf::hash_key(name.as_bytes(), 0);
            layout().home(Key::hashed(hash)) == 20
        });
        let name = name.expect("a name");
        warm(index).await;
        assert_eq!(cost_of_get(index, b"absent", None).await[..3], [1, 0, 1]);
        insert(index, name.as_bytes()).await;
        assert_eq!(cost_of_get(index, name.as_bytes(), Some(INLINE)).await, [2, 1, 2, 0, 0, NEAR + 64, 0]);
        use OpKind::{Insert, Remove, Update, Upsert};
        let costs: &[(OpKind, Budget)] = &[
            (Insert, [3, 1, 3, 2, 3, HEAD + NEAR + 64, INTENT + 64]),
            (Update, [3, 1, 3, 3, 3, HEAD + NEAR + 64, INTENT + 64 + 16]),
            (Upsert, [3, 1, 3, 3, 3, HEAD + NEAR + 64, INTENT + 64 + 16]),
            (Remove, [3, 1, 3, 3, 3, HEAD + NEAR + 64, INTENT + 8 + 8]),
            (Remove, [2, 0, 2, 1, 3, HEAD + NEAR, INTENT]),
            (Update, [2, 0, 2, 2, 3, HEAD + NEAR, INTENT + 64]),
            (Upsert, [2, 0, 2, 5, 3, HEAD + NEAR, INTENT + 64 + 24 + 8]),
        ];
        for (kind, costs) in costs {
            assert_eq!(cost_of_write(index, *kind, name.as_bytes(), INLINE).await.0, *costs, "{kind:?}");
        }
    });
}

/// Without replicas, a lookup READs the header in the same batch.
#[test]
fn a_lookup_without_replicas_reads_the_header_too() {
    with_index(LEN, Config { replicas: false, ..Config::default() }, async |index: &Chime| {
        fill(index, 5000).await;
        for i in 100..200 {
            let pieces = 1 + u64::from(home(key(i)) > 64 - 8);
            let value = (i % 2 == 0).then_some(INLINE);
            assert_eq!(cost_of_get(index, &key(i), value).await, [1, 0, 1 + pieces, 0, 0, HEAD + NEAR, 0], "key {i}");
        }
    });
}

/// The right sibling of a parent's last child is the first child of the next node: if no copy of that is there, the lookup
/// READs the header.
#[test]
fn each_level_that_is_not_cached_takes_one_read_more() {
    for (keys, height) in [(10, 1), (5000, 2)] {
        with_index(LEN, Config::default(), async move |index: &Chime| {
            fill(index, keys).await;
            for i in (0..keys * 2).step_by(7) {
                index.forget();
                let (pieces, value) = (1 + u64::from(home(key(i)) > 64 - 8), (i % 2 == 0).then_some(INLINE));
                let cost = cost_of_get(index, &key(i), value).await;
                let header = u64::from(cost[2] > height + pieces);
                let bytes = height * INNER + header * HEAD + NEAR;
                assert_eq!(cost, [height + 1, 0, height + header + pieces, 0, 0, bytes, 0], "key {i}");
                // Leaves hold about 32 keys, and a parent has 30 children at least.
                let last_children = 2 * keys / 32 / 30;
                assert!(header == 0 || last_children > 0, "key {i}");
                let again = [1, 0, header + pieces, 0, 0, header * HEAD + NEAR, 0];
                assert_eq!(cost_of_get(index, &key(i), value).await, again, "key {i}");
            }
        });
    }
}

/// An entry whose position is known is READ alone. If it is not there any more, the neighbourhood is READ as well.
#[test]
fn a_lookup_that_speculates_reads_one_entry() {
    with_index(LEN, Config { speculation: Speculation::On, ..Config::default() }, async |index: &Chime| {
        fill(index, 5000).await;
        let (found, with_block, gone) = (key(500), key(502), key(504));
        assert_eq!(cost_of_get(index, &found, Some(INLINE)).await, [1, 0, 1, 0, 0, 24, 0]);
        assert_eq!(index.upsert(&with_block, BLOCK).await, Ok(Upsert::Updated));
        assert_eq!(cost_of_get(index, &with_block, Some(BLOCK)).await, [2, 1, 2, 0, 0, 24 + 64, 0]);
        assert_eq!(index.remove(&gone).await, Ok(Remove::Removed));
        let pieces = 1 + u64::from(home(gone) > 64 - 8);
        let tried = index.speculation();
        assert_eq!(cost_of_get(index, &gone, None).await, [2, 0, 1 + pieces, 0, 0, 24 + NEAR, 0]);
        assert_eq!(cost_of_get(index, &gone, None).await, [1, 0, pieces, 0, 0, NEAR, 0]);
        let counts = index.speculation();
        assert_eq!((counts.tried - tried.tried, counts.right - tried.right), (1, 0));
    });
}

/// One batch locks the leaf and READs header and neighbourhood, another one changes it and releases the lock: WRITE intent
/// (64 bytes), CAS, READ, READ; WRITE data (16), WRITE state (8), WRITE hints (8), CAS, CAS.
#[test]
fn a_write_takes_two_round_trips_and_one_more_to_compare_a_block() {
    use OpKind::{Insert, Remove, Update, Upsert};
    const LOCK: u64 = HEAD + NEAR;
    let inline: &[(OpKind, Budget)] = &[
        (Insert, [2, 0, 2, 4, 3, LOCK, INTENT + 16 + 8 + 8]),
        // Nothing changes: it is there.
        (Insert, [2, 0, 2, 1, 3, LOCK, INTENT]),
        // Value and state.
        (Update, [2, 0, 2, 2, 3, LOCK, INTENT + 16]),
        (Upsert, [2, 0, 2, 2, 3, LOCK, INTENT + 16]),
        // State and hints.
        (Remove, [2, 0, 2, 3, 3, LOCK, INTENT + 8 + 8]),
        (Remove, [2, 0, 2, 1, 3, LOCK, INTENT]),
        (Update, [2, 0, 2, 1, 3, LOCK, INTENT]),
        (Upsert, [2, 0, 2, 4, 3, LOCK, INTENT + 16 + 8 + 8]),
        (Remove, [2, 0, 2, 3, 3, LOCK, INTENT + 8 + 8]),
    ];
    // With the WRITE of a block of 64 bytes in the first batch.
    let block: &[(OpKind, Budget)] = &[
        (Insert, [2, 0, 2, 5, 3, LOCK, INTENT + 64 + 16 + 8 + 8]),
        (Insert, [3, 1, 3, 2, 3, LOCK + 64, INTENT + 64]),
        (Update, [3, 1, 3, 3, 3, LOCK + 64, INTENT + 64 + 16]),
        (Upsert, [3, 1, 3, 3, 3, LOCK + 64, INTENT + 64 + 16]),
        (Remove, [3, 1, 3, 3, 3, LOCK + 64, INTENT + 8 + 8]),
        (Remove, [2, 0, 2, 1, 3, LOCK, INTENT]),
        (Update, [2, 0, 2, 2, 3, LOCK, INTENT + 64]),
        (Upsert, [2, 0, 2, 5, 3, LOCK, INTENT + 64 + 16 + 8 + 8]),
        (Remove, [3, 1, 3, 3, 3, LOCK + 64, INTENT + 8 + 8]),
    ];
    for wanted in [10, 60] {
        with_index(LEN, Config::default(), async |index: &Chime| {
            warm(index).await;
            let key = some_key(wanted);
            // A neighbourhood that wraps around takes one READ more.
            let more = u64::from(wanted > 64 - 8);
            for (value, operations) in [(INLINE, inline), (BLOCK, block)] {
                for (number, (kind, costs)) in operations.iter().enumerate() {
                    let mut costs = *costs;
                    costs[2] += more;
                    let (cost, _) = cost_of_write(index, *kind, &key, value).await;
                    assert_eq!(cost, costs, "{number}: {kind:?} of {} bytes", value.len());
                }
            }
        });
    }
}

/// Three WRITEs of one word: *turning*, the value or block, the state.
#[test]
fn an_update_that_turns_an_entry_takes_three_writes() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        let key = some_key(10);
        insert(index, &key).await;
        let turned = [2, 0, 2, 5, 3, HEAD + NEAR, INTENT + 64 + 24];
        assert_eq!(cost_of_write(index, OpKind::Update, &key, BLOCK).await.0, turned);
        let back = [3, 1, 3, 4, 3, HEAD + NEAR + 64, INTENT + 24];
        assert_eq!(cost_of_write(index, OpKind::Update, &key, INLINE).await.0, back);
        assert_eq!(cost_of_write(index, OpKind::Upsert, &key, BLOCK).await.0, turned);
        assert_eq!(cost_of_write(index, OpKind::Upsert, &key, INLINE).await.0, back);
    });
}

/// An entry that is not the home takes the home's state along: with the data words, if the words between them are known.
#[test]
fn an_insert_beside_its_home_writes_the_homes_state() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        for (wanted, writes, bytes, reads) in
            [(10, 4, 24 + 8 + 8, 2), (15, 4, 32 + 8 + 8, 2), (63, 5, 16 + 8 + 8 + 8, 3)]
        {
            let keys: Vec<_> = keys_of(wanted, 0).take(2).collect();
            insert(index, &keys[0]).await;
            let (cost, _) = cost_of_write(index, OpKind::Insert, &keys[1], INLINE).await;
            assert_eq!(cost, [2, 0, reads, writes, 3, HEAD + NEAR, INTENT + bytes], "home {wanted}");
            // Its state, the home's state, hints.
            let (cost, _) = cost_of_write(index, OpKind::Remove, &keys[1], INLINE).await;
            assert_eq!(cost, [2, 0, reads, 4, 3, HEAD + NEAR, INTENT + 24], "home {wanted}");
        }
    });
}

/// Takes the entries 10 to 17: one key of home 10, the others of home 11. Returns another key of home 10.
async fn crowd(index: &Chime) -> [u8; 8] {
    let mut keys = keys_of(10, 0);
    insert(index, &keys.next().expect("a key")).await;
    for key in keys_of(11, 0).take(7) {
        insert(index, &key).await;
    }
    keys.next().expect("a key")
}

/// The vacancy bitmap names entry 18, which is READ with its group's replica and the entries between them. The key at 11
/// hops to it: WRITE data (16), state (8), the old state (8); then the insert: the home's state with the data (24), state
/// (8), hints (8).
#[test]
fn an_insert_into_a_full_neighbourhood_takes_three_round_trips() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        let key = crowd(index).await;
        let written = INTENT + 16 + 8 + 8 + 24 + 8 + 8;
        let (cost, more) = cost_of_write(index, OpKind::Insert, &key, INLINE).await;
        assert_eq!((cost, more), ([3, 0, 3, 7, 3, HEAD + NEAR + 80, written], [0; 7]));
    });
}

/// The whole leaf in the batch of the lock. A removal needs no vacancy.
#[test]
fn writes_without_the_vacancy_bitmap_read_the_whole_leaf() {
    with_index(LEN, Config { vacancy_bitmap: false, ..Config::default() }, async |index: &Chime| {
        let key = crowd(index).await;
        let written = INTENT + 16 + 8 + 8 + 24 + 8 + 8;
        let (cost, _) = cost_of_write(index, OpKind::Insert, &key, INLINE).await;
        assert_eq!(cost, [2, 0, 2, 7, 3, LEAF, written]);
        let (cost, _) = cost_of_write(index, OpKind::Update, &key, INLINE).await;
        assert_eq!(cost, [2, 0, 2, 2, 3, LEAF, INTENT + 16]);
        let (cost, _) = cost_of_write(index, OpKind::Remove, &key, INLINE).await;
        assert_eq!(cost, [2, 0, 2, 4, 3, HEAD + NEAR, INTENT + 24]);
    });
}

/// The ninth key of a home, where none of the eight can hop. READ of a vacancy; READ of all entries; WRITE of the new
/// header, of all entries, of the old header, of the new entries, of those that stay. Then, counted as maintenance: the parent is locked and READ,
/// the child's header is READ, the separator is added (3 round trips); the parent is READ into the cache again (1); the
/// insert is done again (2).
#[test]
fn a_split_adds_eight_round_trips_to_an_insert() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        let mut keys = keys_of(10, 0);
        for key in keys.by_ref().take(8) {
            insert(index, &key).await;
        }
        let key = keys.next().expect("a key");
        let (own, more) = cost_of_write(index, OpKind::Insert, &key, INLINE).await;
        let entries = LEAF - HEAD;
        let written = INTENT + LEAF + entries + (HEAD - 8) + entries;
        // The new leaf becomes free.
        assert_eq!(own, [4, 0, 4, 6, 4, HEAD + NEAR + 80 + entries, written]);
        let (separator, again) = (INTENT + 16 + 16, INTENT + 16 + 8 + 8);
        assert_eq!(more, [6, 0, 5, 7, 6, 2 * INNER + 48 + HEAD + NEAR, separator + again]);
    });
}

/// Two leaves with four and five entries, and one more in the left leaf: four of these five are left. The parent is READ,
/// the left leaf is locked and READ, the right one is READ, and frozen; all WRITEs are one batch (5 round trips). Then the
/// parent is READ, locked and changed (3), and the root is looked at, whether it can be lowered (3).
#[test]
fn a_merge_adds_eleven_round_trips_to_a_removal() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        let keys: Vec<_> = keys_of(10, 0).take(9).collect();
        for key in &keys {
            insert(index, key).await;
        }
        let other = (0..).map(key).find(|key| home(*key) == 20 && *key < keys[3]).expect("a key of the left leaf");
        insert(index, &other).await;
        let (own, more) = cost_of_write(index, OpKind::Remove, &keys[0], INLINE).await;
        assert_eq!(own, [2, 0, 2, 3, 3, HEAD + NEAR, INTENT + 16]);
        assert_eq!(more, [11, 0, 9, 17, 10, 3 * LEAF + 5 * INNER, 4072]);
    });
}

/// A leaf is drained next to a neighbour that is too full to be merged with: a merge is tried when 20, 16, 12, 8, 4 and no
/// entries are left. A try READs the parent, locks and READs the leaf in two READs, READs the neighbour, and releases the
/// lock.
#[test]
fn a_merge_that_does_not_fit_is_tried_six_times() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        // The ninth key of a home splits the leaf.
        let keys: Vec<_> = keys_of(10, 1000).take(9).collect();
        for key in &keys {
            insert(index, key).await;
        }
        // Beyond the last one, and below the first one.
        for i in 0..45 {
            insert(index, &key(100_000 + i)).await;
        }
        for i in 0..20 {
            insert(index, &key(i)).await;
        }
        let mut tries = Vec::new();
        let below = (0..20).map(key).chain(keys.iter().copied().take(4));
        for (left, key) in (0..24).rev().zip(below) {
            let (own, more) = cost_of_write(index, OpKind::Remove, &key, INLINE).await;
            assert_eq!(own[0], 2);
            if more != [0; 7] {
                assert_eq!(more, [4, 0, 4, 1, 3, INNER + 2 * LEAF, INTENT], "{left} are left");
                tries.push(left);
            }
        }
        assert_eq!(tries, [20, 16, 12, 8, 4, 0]);
    });
}

/// Leaves that are half full hold about 32 entries. The leaves of one parent are READ whole, in one batch.
#[test]
fn a_scan_reads_the_leaves_of_one_parent_in_one_round_trip() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        fill(index, 5000).await;
        // At most 32 leaves, and those of one parent.
        let expected = [(0, 1, 1, 1), (0, 100, 1, 4), (300, 100, 1, 4), (0, 1000, 3, 37), (0, 5000, 7, 177)];
        for (from, limit, trips, leaves) in expected {
            let before = index.session().endpoint().meter();
            let found = index.scan((Bound::Included(&key(from)), Bound::Unbounded), limit).await.expect("a scan");
            assert_eq!(found.len(), limit);
            let cost = *(index.session().endpoint().meter() - before).of(OpKind::Scan);
            let costs = [trips, 0, leaves, 0, 0, leaves * LEAF, 0];
            assert_eq!(budget(&cost), costs, "{limit} entries from {from} on");
        }
    });
}

/// Each key takes a READ of its neighbourhood, or two where that wraps around.
#[test]
fn lookups_of_many_keys_are_a_batch_of_neighbourhoods_and_one_of_blocks() {
    with_index(LEN, Config::default(), async |index: &Chime| {
        fill(index, 5000).await;
        for i in 3000..4000 {
            assert_eq!(index.upsert(&key(i * 2), BLOCK).await, Ok(Upsert::Updated));
        }
        for (from, step, blocks) in [(0, 20, 0), (3000, 5, 128)] {
            let keys: Vec<_> = (0..128).map(|i| key((from + i * step) * 2)).collect();
            let reads = 128 + keys.iter().filter(|key| home(**key) > 64 - 8).count() as u64;
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let before = index.session().endpoint().meter();
            let values = index.get_many(&keys).await.expect("values");
            assert!(values.iter().all(Option::is_some));
            let cost = *(index.session().endpoint().meter() - before).of(OpKind::Get);
            let trips = 1 + u64::from(blocks > 0);
            let bytes = 128 * NEAR + blocks * 64;
            assert_eq!(budget(&cost), [trips, trips - 1, reads + blocks, 0, 0, bytes, 0]);
        }
    });
}
