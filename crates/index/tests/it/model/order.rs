//! Upserts of many keys take effect one after the other, in the order of the call.

use farindex_fabric::memory::Delivery;
use farindex_index::{AnyIndex, IndexConfig, KINDS, PointIndex};
use farindex_pool::PoolOptions;
use farindex_testkit::world::{Ctx, World, join_all};
use std::cell::Cell;

const KEYS: u64 = 12;
const ROUNDS: u64 = 60;

/// One client writes the number of the round to all keys, in this order. The other one reads the last key and then the first
/// one. Returns how often the first one was in an earlier round.
async fn reversals(ctx: Ctx, config: IndexConfig, order: Vec<u64>) -> u64 {
    let pool = ctx.pool(&PoolOptions::default()).await;
    let (one, other) = (ctx.join(&pool).await, ctx.join(&pool).await);
    let writer = AnyIndex::create(&one.session, "order", &config).await.expect("an index");
    let reader = AnyIndex::open(&other.session, "order").await.expect("the index");
    let done = Cell::new(false);
    let write = async {
        for round in 1..=ROUNDS {
            let pairs: Vec<_> = order.iter().map(|key| (key.to_be_bytes(), round.to_be_bytes())).collect();
            let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            for outcome in writer.upsert_many(&pairs).await {
                outcome.expect("an upsert");
            }
        }
        done.set(true);
        0
    };
    let read = async {
        let mut found = 0;
        while !done.get() {
            let mut behind = 0;
            for key in [KEYS - 1, 0] {
                let value = reader.get(&key.to_be_bytes()).await.expect("an answer");
                let round = value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().expect("eight bytes")));
                found += u64::from(round < behind);
                behind = round;
            }
        }
        found
    };
    let work: [std::pin::Pin<Box<dyn Future<Output = u64>>>; 2] = [Box::pin(write), Box::pin(read)];
    join_all(work).await.into_iter().sum()
}

#[test]
fn many_upserts_take_effect_in_their_order() {
    for kind in KINDS {
        for orderly in [true, false] {
            let config = IndexConfig::of_kind(kind.name).expect("a kind");
            let order: Vec<u64> = if orderly { (0..KEYS).collect() } else { (0..KEYS).rev().collect() };
            World::memory(1, 48 << 20, Delivery::Deferred).run(async move |ctx| {
                let found = reversals(ctx, config, order).await;
                // In the other order there are some: the reader can see them.
                assert_eq!(found == 0, orderly, "{}: {found} reversals", kind.name);
            });
        }
    }
}
