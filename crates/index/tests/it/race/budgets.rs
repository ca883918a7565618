//! Cost in verbs, asserted exactly. Table 3 of SHARD's paper has 2.03 round trips for a search, 3.03 for an update and
//! a deletion, and
//! 12.79 for an insert, resizes included; SepHash's Table 1 counts 2.0 READs of buckets for a search.

use farindex_fabric::{OpKind, OpStats};
use farindex_index::race::{Config, segment};
use farindex_index::{Insert, PointIndex, Race, Remove, Update, Upsert};
use farindex_testkit::alone::{cost_of, with_index};

/// Round trips, those for blocks, READs, WRITEs, CASes, FAAs, bytes read, bytes written.
fn budget(cost: &OpStats) -> [u64; 8] {
    let all = &cost.total;
    let of_blocks = all.block_round_trips;
    [all.round_trips, of_blocks, all.reads, all.writes, all.cas, all.faa, all.bytes_read, all.bytes_written]
}

/// Two combined buckets, as both papers have it (144 bytes each).
const BUCKETS: u64 = 2 * segment::COMBINED_LEN as u64;
const BLOCK: u64 = 64;

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Keys from here on whose main buckets are not in one group, and whose fingerprints are all different.
async fn warm(race: &Race) -> Vec<[u8; 8]> {
    let shape = race.tables()[0].shape();
    let mut fingerprints = std::collections::BTreeSet::new();
    let usual = |key: &[u8; 8]| {
        let hash = race.hash(key);
        let [first, second] = shape.mains(hash);
        first / 2 != second / 2 && fingerprints.insert(farindex_index::race::slot::fingerprint(hash))
    };
    let keys: Vec<_> = (0..).map(key).filter(usual).take(40).collect();
    for key in &keys[..20] {
        assert_eq!(race.insert(key, b"12345678").await, Ok(Insert::Inserted));
        assert_eq!(race.get(key).await.map(|value| value.is_some()), Ok(true));
    }
    keys
}

#[test]
fn an_insert_is_three_round_trips() {
    with_index(16 << 20, Config::default(), async |race: &Race| {
        let keys = warm(race).await;
        let endpoint = race.session().endpoint();
        // {WRITE block, READ x 2}, {CAS, READ x 2, READ of the state}, CAS.
        let expected = [3, 0, 5, 1, 2, 0, 2 * BUCKETS + 8, BLOCK];
        let cost = cost_of(endpoint, OpKind::Insert, async || {
            assert_eq!(race.insert(&keys[20], b"12345678").await, Ok(Insert::Inserted));
        });
        assert_eq!(budget(&cost.await), expected);
        let cost = cost_of(endpoint, OpKind::Upsert, async || {
            assert_eq!(race.upsert(&keys[21], b"12345678").await, Ok(Upsert::Inserted));
        });
        assert_eq!(budget(&cost.await), expected);
        // The key is there: its block is read.
        let cost = cost_of(endpoint, OpKind::Insert, async || {
            assert_eq!(race.insert(&keys[20], b"12345678").await, Ok(Insert::Exists));
        });
        assert_eq!(budget(&cost.await), [2, 1, 3, 1, 0, 0, BUCKETS + BLOCK, BLOCK]);
    });
}

#[test]
fn a_search_is_buckets_then_block() {
    with_index(16 << 20, Config::default(), async |race: &Race| {
        let keys = warm(race).await;
        let endpoint = race.session().endpoint();
        let cost = cost_of(endpoint, OpKind::Get, async || {
            assert!(race.get(&keys[3]).await.is_ok_and(|value| value.is_some()));
        });
        assert_eq!(budget(&cost.await), [2, 1, 3, 0, 0, 0, BUCKETS + BLOCK, 0]);
        // Absence takes the segment's state.
        let cost = cost_of(endpoint, OpKind::Get, async || {
            assert_eq!(race.get(&keys[30]).await, Ok(None));
        });
        assert_eq!(budget(&cost.await), [2, 0, 3, 0, 0, 0, BUCKETS + 8, 0]);
    });
}

#[test]
fn many_searches_are_a_batch_of_buckets_and_one_of_blocks() {
    with_index(16 << 20, Config::default(), async |race: &Race| {
        let keys = warm(race).await;
        let endpoint = race.session().endpoint();
        let cost = async |range: std::ops::Range<usize>| {
            let asked: Vec<&[u8]> = keys[range].iter().map(|key| &key[..]).collect();
            let before = endpoint.meter();
            let values = race.get_many(&asked).await.expect("answers");
            let cost = *(endpoint.meter() - before).of(OpKind::Get);
            assert_eq!(cost.ops, asked.len() as u64);
            (values.iter().filter(|value| value.is_some()).count(), cost.total.batches, budget(&cost))
        };
        assert_eq!(cost(3..13).await, (10, 2, [2, 1, 30, 0, 0, 0, 10 * (BUCKETS + BLOCK), 0]));
        // Each absence takes the segment's state, behind the buckets that were read for it.
        let (found, batches, cost) = cost(18..22).await;
        let bytes_read = 4 * BUCKETS + 2 * BLOCK + 2 * 8;
        assert_eq!((found, batches, cost[2..].to_vec()), (2, 4, vec![8 + 2 + 2, 0, 0, 0, bytes_read, 0]));
    });
}

#[test]
fn an_update_and_a_removal_are_buckets_block_cas() {
    with_index(16 << 20, Config::default(), async |race: &Race| {
        let keys = warm(race).await;
        let endpoint = race.session().endpoint();
        let update = [3, 1, 3, 1, 1, 0, BUCKETS + BLOCK, BLOCK];
        let cost = cost_of(endpoint, OpKind::Update, async || {
            assert_eq!(race.update(&keys[3], b"87654321").await, Ok(Update::Updated));
        });
        assert_eq!(budget(&cost.await), update);
        let cost = cost_of(endpoint, OpKind::Upsert, async || {
            assert_eq!(race.upsert(&keys[3], b"87654321").await, Ok(Upsert::Updated));
        });
        assert_eq!(budget(&cost.await), update);
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(race.remove(&keys[3]).await, Ok(Remove::Removed));
        });
        assert_eq!(budget(&cost.await), [3, 1, 3, 0, 1, 0, BUCKETS + BLOCK, 0]);
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(race.remove(&keys[3]).await, Ok(Remove::Absent));
        });
        assert_eq!(budget(&cost.await), [2, 0, 3, 0, 0, 0, BUCKETS + 8, 0]);
    });
}

/// A block of 63 units or more takes one READ more; the segment of the papers takes what they say, and a unit.
#[test]
fn long_blocks_and_a_split() {
    with_index(64 << 20, Config { initial_depth: 1, ..Config::default() }, async |race: &Race| {
        let endpoint = race.session().endpoint();
        assert_eq!(race.tables()[0].shape().bytes(), 64 * 3 * 72 + 64);
        let value = vec![7; 1 << 20];
        assert_eq!(race.upsert(b"long", &value).await, Ok(Upsert::Inserted));
        let cost = cost_of(endpoint, OpKind::Get, async || {
            assert_eq!(race.get(b"long").await.map(|found| found.map(|v| v.to_vec())), Ok(Some(value)));
        });
        let cost = cost.await;
        assert_eq!((cost.round_trips, cost.block_round_trips, cost.reads), (3, 2, 4));
        // The first insert that finds no room pays for the whole split.
        let (mut split, mut inserted) = (None, 0);
        while split.is_none() {
            let cost = cost_of(endpoint, OpKind::Insert, async || {
                assert_eq!(race.insert(&key(inserted), b"").await, Ok(Insert::Inserted));
            });
            let cost = cost.await;
            inserted += 1;
            split = (race.resizes() > 0).then_some(cost);
            assert!(inserted < 3072, "it does not grow");
        }
        let cost = split.expect("a split");
        println!("a split after {inserted} keys: {cost:?}");
        // Every entry of the segment has its header read, and half of them are frozen.
        let entries = inserted / 2;
        assert!(cost.reads > entries / 2 && cost.cas > entries / 4 && cost.round_trips < 60, "{cost:?}");
        assert_eq!(cost.bytes_written / 13_888, 1, "one segment, headers, emptied slots, a block: {cost:?}");
    });
}
