//! SepHash's cost in verbs and bytes, asserted exactly (docs/protocols/sephash.md, "Cost").

use crate::common::{Ctx, Member, World};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Counters, Meter, OpKind};
use farindex_index::sephash::Config;
use farindex_index::{HashIndex, Insert, Remove, SepHash, Update, Upsert};
use farindex_pool::PoolOptions;

/// The paper's sizes, and one segment: 113 writes make a generation.
fn config() -> Config {
    Config { initial_depth: 0, ..Config::default() }
}

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

async fn cost_of(index: &SepHash, kind: OpKind, body: impl AsyncFnOnce()) -> Counters {
    let endpoint = index.session().endpoint();
    let before: Meter = endpoint.meter();
    body().await;
    let cost = *(endpoint.meter() - before).of(kind);
    assert_eq!((cost.ops, cost.abandoned), (1, 0));
    Counters { batches: 0, ..cost.total }
}

/// 500 keys that nobody else has; so MainSegment has 452 entries, and CurSegment 48.
async fn filled(ctx: &Ctx) -> (Member, SepHash) {
    let pool = ctx.pool(&PoolOptions::default()).await;
    let member = ctx.join(&pool).await;
    let index = SepHash::create(&member.session, "budgets", &config()).await.unwrap();
    for i in 0..500 {
        assert_eq!(index.upsert(&key(i), b"12345678").await, Ok(Upsert::Written));
    }
    (member, index)
}

/// A key of this age for which a lookup finds nothing in the filter, or something.
async fn with_cost(index: &SepHash, keys: std::ops::Range<u64>, fits: impl Fn(&Counters) -> bool) -> (u64, Counters) {
    for i in keys {
        let cost = cost_of(index, OpKind::Get, async || drop(index.get(&key(i)).await.unwrap())).await;
        if fits(&cost) {
            return (i, cost);
        }
    }
    panic!("no lookup costs that");
}

#[test]
fn an_upsert_is_write_and_read_then_cas_and_two_writes_that_nobody_waits_for() {
    World::memory(1, 32 << 20, Delivery::Deferred).run(async |ctx| {
        let (_member, index) = filled(&ctx).await;
        let cost = cost_of(&index, OpKind::Upsert, async || {
            assert_eq!(index.upsert(&key(1000), b"12345678").await, Ok(Upsert::Written));
        });
        let expected = Counters {
            round_trips: 2,
            reads: 3,
            writes: 3,
            cas: 1,
            bytes_read: 64 + 144 + 8,
            bytes_written: 64 + 8 + 40,
            detached: 1,
            ..Counters::default()
        };
        assert_eq!(cost.await, expected);
    });
}

#[test]
fn writes_that_are_waited_for_cost_a_round_trip_more() {
    World::memory(1, 32 << 20, Delivery::Deferred).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        let config = Config { zero_wait: false, ..config() };
        let index = SepHash::create(&member.session, "budgets", &config).await.unwrap();
        index.upsert(&key(0), b"").await.unwrap();
        let cost = cost_of(&index, OpKind::Upsert, async || assert!(index.upsert(&key(1), b"").await.is_ok())).await;
        assert_eq!((cost.round_trips, cost.detached, cost.writes), (3, 0, 3));
    });
}

#[test]
fn a_get_is_filter_and_range_then_block() {
    World::memory(1, 32 << 20, Delivery::Immediate).run(async |ctx| {
        let (_member, index) = filled(&ctx).await;
        let (_, cost) = with_cost(&index, 0..400, |cost| cost.round_trips == 2 && cost.reads == 4).await;
        assert_eq!((cost.block_round_trips, cost.block_reads, cost.verbs()), (1, 1, 4));
        let range = cost.bytes_read - (8 + 64 + 64);
        assert!(range.is_multiple_of(8) && range <= 5 * 72, "{range} bytes of MainSegment");
        // In the CurSegment: the CurSegment is READ, then the block.
        let (_, cost) = with_cost(&index, 460..500, |cost| cost.round_trips == 3).await;
        // 48 entries and the next one lie in 7 groups.
        assert!(cost.bytes_read - 7 * 72 - 8 - 8 - 64 - 64 <= 5 * 72 + 64, "{cost:?}");
        // Absent: one round trip, if the filter says so and no fingerprint matches.
        let (_, cost) = with_cost(&index, 5000..5100, |cost| cost.round_trips == 1).await;
        assert_eq!(cost.reads, 3);
    });
}

#[test]
fn outcomes_that_are_true_cost_the_range_and_the_block() {
    World::memory(1, 32 << 20, Delivery::Deferred).run(async |ctx| {
        let (_member, index) = filled(&ctx).await;
        // Of keys whose fingerprints nobody shares.
        let (absent, _) = with_cost(&index, 5000..5100, |cost| cost.round_trips == 1).await;
        let mut present = Vec::new();
        let mut from = 0;
        while present.len() < 2 {
            let (found, _) = with_cost(&index, from..400, |cost| cost.round_trips == 2 && cost.reads == 4).await;
            present.push(found);
            from = found + 1;
        }
        let cost = cost_of(&index, OpKind::Insert, async || {
            assert_eq!(index.insert(&key(absent), b"12345678").await, Ok(Insert::Inserted));
        });
        let cost = cost.await;
        assert_eq!((cost.round_trips, cost.reads, cost.writes, cost.cas, cost.detached), (2, 4, 3, 1, 1));
        let cost = cost_of(&index, OpKind::Update, async || {
            assert_eq!(index.update(&key(present[0]), b"87654321").await, Ok(Update::Updated));
        });
        let cost = cost.await;
        assert_eq!((cost.round_trips, cost.reads, cost.writes, cost.cas), (3, 5, 3, 1));
        let cost = cost_of(&index, OpKind::Remove, async || {
            assert_eq!(index.remove(&key(present[1])).await, Ok(Remove::Removed));
        });
        let cost = cost.await;
        assert_eq!((cost.round_trips, cost.reads, cost.writes, cost.cas), (3, 5, 3, 1));
    });
}

#[test]
fn a_merge_takes_four_round_trips_and_a_split_five_at_most() {
    World::memory(1, 64 << 20, Delivery::Deferred).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let member = ctx.join(&pool).await;
        // 113 entries and two of them: every third merge splits.
        let index = SepHash::create(&member.session, "budgets", &Config { ratio: 2, ..config() }).await.unwrap();
        let (mut merges, mut splits, mut next) = (0, 0, 0);
        while splits < 6 {
            let before = index.session().endpoint().meter();
            let resizes = index.resizes();
            index.upsert(&key(next), b"12345678").await.unwrap();
            next += 1;
            let cost = *(index.session().endpoint().meter() - before).of(OpKind::Maintenance);
            if cost.cas < 2 {
                continue;
            }
            // One round trip finds that the segment is full; a new size class takes a chunk, and a deeper directory one more.
            let split = index.resizes() > resizes;
            splits += u64::from(split);
            merges += u64::from(!split);
            let flow = cost.round_trips - 1;
            assert!(flow <= 5 + 2 * 8, "{cost:?}");
            if !split {
                assert!(flow >= 3, "{cost:?}");
            }
        }
        assert!(merges >= 6);
    });
}
