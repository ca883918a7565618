//! Cost in verbs, asserted exactly: every situation has a budget, and an operation keeps to it on any fabric.

use crate::ground::ground;
use farindex_fabric::{OpKind, OpStats};
use farindex_index::{Insert, PointIndex, Remove, Shard, Update, Upsert, shard};
use farindex_testkit::alone::{cost_of, with_index_on};

fn with_shard(bytes: u64, config: shard::Config, body: impl AsyncFnOnce(&Shard)) {
    with_index_on(ground(bytes), config, body);
}

/// Rare synchronization, so that the operations measured here come without.
fn config() -> shard::Config {
    shard::Config { alpha: 50.0, ..shard::Config::default() }
}

#[derive(Debug, PartialEq, Eq)]
struct Budget {
    round_trips: u64,
    block_round_trips: u64,
    reads: u64,
    writes: u64,
    cas: u64,
    faa: u64,
    bytes_read: u64,
    bytes_written: u64,
}

fn budget(cost: &OpStats) -> Budget {
    Budget {
        round_trips: cost.round_trips,
        block_round_trips: cost.block_round_trips,
        reads: cost.reads,
        writes: cost.writes,
        cas: cost.cas,
        faa: cost.faa,
        bytes_read: cost.bytes_read,
        bytes_written: cost.bytes_written,
    }
}

const NOTHING: Budget = Budget {
    round_trips: 0,
    block_round_trips: 0,
    reads: 0,
    writes: 0,
    cas: 0,
    faa: 0,
    bytes_read: 0,
    bytes_written: 0,
};

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// A few keys, so that allocation and directory are warm; and lookups, since a worker that knows little of the others
/// synchronizes often.
async fn warm(shard: &Shard) {
    for i in 0..300 {
        assert_eq!(shard.get(&key(i + 1_000_000)).await, Ok(None));
    }
    for i in 0..10 {
        assert_eq!(shard.insert(&key(i), b"12345678").await, Ok(Insert::Inserted));
    }
}

#[test]
fn an_insert_is_write_and_read_then_cas() {
    with_shard(16 << 20, config(), async |shard| {
        warm(shard).await;
        let endpoint = shard.session().endpoint();
        let expected =
            Budget { round_trips: 2, reads: 1, writes: 1, cas: 1, bytes_read: 512, bytes_written: 64, ..NOTHING };
        let cost = cost_of(endpoint, OpKind::Insert, async || {
            assert_eq!(shard.insert(&key(100), b"12345678").await, Ok(Insert::Inserted));
        });
        assert_eq!(budget(&cost.await), expected);
        let cost = cost_of(endpoint, OpKind::Upsert, async || {
            assert_eq!(shard.upsert(&key(101), b"12345678").await, Ok(Upsert::Inserted));
        });
        assert_eq!(budget(&cost.await), expected);
    });
}

#[test]
fn a_get_is_bucket_then_block() {
    with_shard(16 << 20, config(), async |shard| {
        warm(shard).await;
        let endpoint = shard.session().endpoint();
        let cost = cost_of(endpoint, OpKind::Get, async || {
            assert!(shard.get(&key(3)).await.is_ok_and(|value| value.is_some()));
        });
        let expected = Budget { round_trips: 2, block_round_trips: 1, reads: 2, bytes_read: 512 + 64, ..NOTHING };
        assert_eq!(budget(&cost.await), expected);
        let cost = cost_of(endpoint, OpKind::Get, async || {
            assert_eq!(shard.get(&key(1000)).await, Ok(None));
        });
        assert_eq!(budget(&cost.await), Budget { round_trips: 1, reads: 1, bytes_read: 512, ..NOTHING });
    });
}

#[test]
fn a_long_value_takes_one_read_more() {
    with_shard(64 << 20, config(), async |shard| {
        warm(shard).await;
        let value = vec![7; 1 << 20];
        assert_eq!(shard.upsert(b"long", &value).await, Ok(Upsert::Inserted));
        let cost = cost_of(shard.session().endpoint(), OpKind::Get, async || {
            assert_eq!(shard.get(b"long").await.map(|found| found.map(|v| v.to_vec())), Ok(Some(value)));
        });
        let cost = cost.await;
        assert_eq!((cost.round_trips, cost.block_round_trips, cost.reads), (3, 2, 3));
    });
}

#[test]
fn an_update_and_a_removal_are_bucket_block_cas() {
    with_shard(16 << 20, config(), async |shard| {
        warm(shard).await;
        let endpoint = shard.session().endpoint();
        let update = Budget {
            round_trips: 3,
            block_round_trips: 1,
            reads: 2,
            writes: 1,
            cas: 1,
            faa: 0,
            bytes_read: 512 + 64,
            bytes_written: 64,
        };
        let cost = cost_of(endpoint, OpKind::Update, async || {
            assert_eq!(shard.update(&key(3), b"87654321").await, Ok(Update::Updated));
        });
        assert_eq!(budget(&cost.await), update);
        let cost = cost_of(endpoint, OpKind::Upsert, async || {
            assert_eq!(shard.upsert(&key(3), b"87654321").await, Ok(Upsert::Updated));
        });
        assert_eq!(budget(&cost.await), update);
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(shard.remove(&key(3)).await, Ok(Remove::Removed));
        });
        assert_eq!(budget(&cost.await), Budget { writes: 0, bytes_written: 0, ..update });
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(shard.remove(&key(3)).await, Ok(Remove::Absent));
        });
        assert_eq!(budget(&cost.await), Budget { round_trips: 1, reads: 1, bytes_read: 512, ..NOTHING });
    });
}

/// Figure 10b: two round trips more, for the first operation on a bucket; also where sids are renewed (every fourth
/// time), and whether the key stays or moves. Two more than that where the worker READs no parents any more: after 64 lookups in
/// a row that have found their buckets split.
#[test]
fn moving_a_bucket_takes_two_round_trips_more() {
    with_shard(32 << 20, shard::Config { initial_bits: 2, ..config() }, async |shard| {
        let endpoint = shard.session().endpoint();
        let table = &shard.tables()[0];
        let mut inserted = 0;
        for resizes in 1..=6 {
            while table.geometry().version < resizes {
                assert_eq!(shard.insert(&key(inserted), b"").await, Ok(Insert::Inserted));
                inserted += 1;
                if table.crowded() {
                    // The next insert may find the table grown.
                    break;
                }
            }
            let version = table.geometry().version;
            // Every key once, and then once more, when no bucket is left to be moved.
            let mut costs = Vec::new();
            for _ in 0..2 {
                let mut round = Vec::new();
                for i in 0..inserted {
                    let cost = cost_of(endpoint, OpKind::Get, async || {
                        assert!(shard.get(&key(i)).await.is_ok_and(|value| value.is_some()));
                    });
                    let cost = cost.await;
                    round.push(cost.round_trips - cost.block_round_trips);
                }
                costs.push(round);
            }
            let (mut moved, mut split) = (0, 0);
            for (first, second) in costs[0].iter().zip(&costs[1]) {
                // In level 2 there may be more buckets to move.
                assert!(*second <= 2, "nothing is left to be moved, but {second} round trips");
                if *second == 1 {
                    assert!(
                        matches!(first, 1 | 3) || *first == 5 && split >= 64,
                        "{first} round trips in version {version}"
                    );
                    moved += u64::from(*first > 1);
                }
                split = if *first > 1 { 0 } else { split + 1 };
            }
            assert!(moved > 0);
            println!("version {version}: {inserted} keys, {moved} buckets moved by gets");
        }
        assert!(table.geometry().version >= 5);
    });
}

#[test]
fn many_upserts_are_two_batches_and_a_cas_for_each() {
    with_shard(16 << 20, config(), async |shard| {
        warm(shard).await;
        let endpoint = shard.session().endpoint();
        let keys: Vec<_> = (0..10).chain(1000..1005).map(key).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &b"other"[..])).collect();
        let before = endpoint.meter();
        let outcomes = shard.upsert_many(&pairs).await;
        let cost = *(endpoint.meter() - before).of(OpKind::Upsert);
        let (there, absent) = outcomes.split_at(10);
        assert!(there.iter().all(|outcome| *outcome == Ok(Upsert::Updated)));
        assert!(absent.iter().all(|outcome| *outcome == Ok(Upsert::Inserted)));
        let expected = Budget {
            round_trips: 2 + 15,
            block_round_trips: 1,
            reads: 15 + 10,
            writes: 15,
            cas: 15,
            bytes_read: 15 * 512 + 10 * 64,
            bytes_written: 15 * 64,
            ..NOTHING
        };
        assert_eq!((cost.ops, budget(&cost)), (15, expected));
    });
}

#[test]
fn many_gets_are_a_batch_of_buckets_and_one_of_blocks() {
    with_shard(16 << 20, config(), async |shard| {
        warm(shard).await;
        let endpoint = shard.session().endpoint();
        let keys: Vec<_> = (0..10).chain(1000..1005).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let before = endpoint.meter();
        let values = shard.get_many(&keys).await.expect("answers");
        let cost = *(endpoint.meter() - before).of(OpKind::Get);
        assert_eq!(
            values.iter().map(Option::is_some).collect::<Vec<_>>(),
            [[true; 10].as_slice(), &[false; 5]].concat()
        );
        let bytes_read = 15 * 512 + 10 * 64;
        let expected = Budget { round_trips: 2, block_round_trips: 1, reads: 15 + 10, bytes_read, ..NOTHING };
        assert_eq!((cost.ops, budget(&cost)), (15, expected));
    });
}
