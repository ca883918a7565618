//! SepHash's cost in verbs and bytes, asserted exactly (docs/protocols/sephash.md, "Cost").

use farindex_fabric::memory::Delivery;
use farindex_fabric::{Counters, Meter, NodeId, OpKind};
use farindex_index::sephash::Config;
use farindex_index::{Insert, PointIndex, PoolIndex, Remove, SepHash, Update, Upsert};
use farindex_pool::{PoolOptions, marks};
use farindex_testkit::world::{Ctx, Member, World};

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

/// The first READs of all keys are one batch; so are the blocks. What the filter does not settle goes on alone.
#[test]
fn many_gets_are_a_batch_of_filters_and_ranges_and_one_of_blocks() {
    World::memory(1, 32 << 20, Delivery::Immediate).run(async |ctx| {
        let (_member, index) = filled(&ctx).await;
        let (mut keys, mut alone) = (Vec::new(), Counters::default());
        for (ages, round_trips, reads) in [(0..400, 2, 4), (5000..5100, 1, 3)] {
            let mut from = ages.start;
            for _ in 0..8 {
                let fits = |cost: &Counters| (cost.round_trips, cost.reads) == (round_trips, reads);
                let (found, cost) = with_cost(&index, from..ages.end, fits).await;
                keys.push(found);
                alone += &cost;
                from = found + 1;
            }
        }
        let bytes: Vec<_> = keys.iter().map(|i| key(*i)).collect();
        let asked: Vec<&[u8]> = bytes.iter().map(|key| &key[..]).collect();
        let endpoint = index.session().endpoint();
        let before = endpoint.meter();
        let values = index.get_many(&asked).await.unwrap();
        let cost = *(endpoint.meter() - before).of(OpKind::Get);
        let present: Vec<_> = values.iter().map(Option::is_some).collect();
        assert_eq!((cost.ops, present), (16, [[true; 8], [false; 8]].concat()));
        // The same READs as alone, in two batches.
        let expected = Counters { round_trips: 2, block_round_trips: 1, batches: 2, ..alone };
        assert_eq!(cost.total, expected);
        // A key in the CurSegment takes a batch more, and one for its block.
        let (young, _) = with_cost(&index, 460..500, |cost| cost.round_trips == 3).await;
        let before = endpoint.meter();
        let values = index.get_many(&[&key(young), &key(keys[0])]).await.unwrap();
        let cost = *(endpoint.meter() - before).of(OpKind::Get);
        assert!(values.iter().all(Option::is_some));
        assert_eq!((cost.ops, cost.total.batches), (2, 4), "{cost:?}");
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

/// A merge or a split, with what was recorded of it.
struct Resize {
    cost: Counters,
    splits: bool,
    /// It gives the entries the next four bits of their hashes.
    renews: bool,
    /// It has doubled the directory.
    doubles: bool,
}

/// Blocks of every size that is used later, so that hardly any merge takes a chunk from the pool.
async fn refill_free_list(member: &Member) {
    let session = &member.session;
    let span = session.span(OpKind::Other);
    for bytes in (64..=8192).step_by(64) {
        let at = session.alloc(&span, NodeId::new(0), bytes).await.unwrap();
        session.free(&span, at, bytes).await.unwrap();
    }
}

/// Every resize until there have been so many splits, by appends of keys that nobody else has: nothing is dropped.
async fn resizes(index: &SepHash, splits: usize) -> Vec<Resize> {
    let endpoint = index.session().endpoint();
    let chunks = || {
        let directory = index.tables()[0].directory();
        (0..8).filter(|chunk| directory.mirror().chunk(*chunk).is_some()).count()
    };
    let mut done: Vec<Resize> = Vec::new();
    for next in 0.. {
        if done.iter().filter(|resize| resize.splits).count() == splits {
            break;
        }
        // The epoch is advanced in between, so that no resize includes a heartbeat.
        index.session().maintain().await.unwrap();
        assert!((0..9).filter(|_| index.session().maintenance_due()).count() <= 1);
        let (meter, known) = (endpoint.meter(), chunks());
        marks::take();
        index.upsert(&key(next), b"12345678").await.unwrap();
        let passed = marks::take();
        let cost = *(endpoint.meter() - meter).of(OpKind::Maintenance);
        let splits = passed.contains_key("split");
        if splits || passed.contains_key("merge") {
            let cost = Counters { batches: 0, ..cost.total };
            let renews = passed.contains_key("split: headers read");
            done.push(Resize { cost, splits, renews, doubles: chunks() > known });
        }
    }
    done
}

/// Behind the probe that finds the segment full: {intent, lock, both segments}; [keys of entries that share both
/// fingerprints;] what is new; what makes it seen. Every fourth split reads headers in between, and the first to need a
/// larger directory reads the root, writes zeros and links them.
#[test]
fn a_merge_takes_four_round_trips_and_a_split_five_at_most() {
    World::memory(1, 128 << 20, Delivery::Deferred).run(async |ctx: Ctx| {
        let pool = ctx.pool(&PoolOptions { chunk_size: Some(64 << 10), ..PoolOptions::default() }).await;
        let member = ctx.join(&pool).await;
        refill_free_list(&member).await;
        let index = SepHash::create(&member.session, "budgets", &Config { ratio: 4, ..config() }).await.unwrap();
        let all = resizes(&index, 40).await;
        let mut refills = 0;
        for Resize { cost, splits, renews, doubles } in &all {
            // Blocks are taken from the pool by CAS, now and then.
            if cost.cas != 2 + u64::from(*doubles) {
                refills += 1;
                continue;
            }
            let looks = cost.block_round_trips;
            assert!(looks <= 1 + u64::from(*renews) && (!renews || looks >= 1), "{cost:?}");
            let directory = if *doubles { 3 } else { 0 };
            assert_eq!(cost.round_trips, 1 + 3 + looks + directory, "{cost:?}");
            assert!(cost.round_trips - 1 - directory <= if *renews { 5 } else { 4 }, "{cost:?}");
            if *doubles {
                continue;
            }
            // The probe's three, the CurSegment, and the MainSegment unless it is the first merge.
            let reads = cost.reads - cost.block_reads;
            assert!(reads == 5 || reads == 4 && std::ptr::eq(cost, &all[0].cost), "{cost:?}");
            // Intent, MainSegment, CurSegMeta; a split: the other MainSegment, the CurSegment, its word, the emptied
            // slots.
            let writes = if *splits { 7 } else { 3 };
            assert_eq!((cost.writes, cost.cas, cost.faa), (writes, 2, if *splits { 3 } else { 1 }), "{cost:?}");
        }
        assert!(refills * 4 <= all.len(), "{refills} of {}", all.len());
        let count = |of: fn(&Resize) -> bool| all.iter().filter(|resize| of(resize)).count();
        assert!(count(|resize| !resize.splits) >= 40);
        assert!(count(|resize| resize.renews && !resize.doubles) >= 4);
        assert!(count(|resize| resize.splits && !resize.renews && !resize.doubles) >= 10);
        assert!(count(|resize| resize.doubles) >= 2);
        assert!(count(|resize| resize.cost.block_round_trips == 0) > 0);
    });
}
