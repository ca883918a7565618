//! Write-back: what it costs, when a leaf is written back, what a crash loses.

use farindex_fabric::OpKind;
use farindex_fabric::memory::Delivery;
use farindex_index::dex::{Config, Durability};
use farindex_index::{Dex, Lifecycle, OrderedIndex, PointIndex, PoolIndex, Remove, Upsert};
use farindex_pool::PoolOptions;
use farindex_testkit::alone::cost_of;
use farindex_testkit::world::{Ctx, Member, World};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

const CONFIG: Config = Config {
    leaf_span: 59,
    inner_span: 59,
    cache_bytes: 64 << 20,
    leaf_admission: 100,
    moves: farindex_index::dex::Moves::Partition,
    foreign: farindex_index::dex::Foreign::Acquire,
    offload: farindex_index::dex::Offload::Never,
    subtree_levels: 0,
    durability: Durability::WriteBack,
    dirty_ms: 60_000,
};

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

async fn two(ctx: &Ctx) -> (Member, Member) {
    let pool = ctx.pool(&PoolOptions::default()).await;
    (ctx.join(&pool).await, ctx.join(&pool).await)
}

/// A tree with the keys 0 to 199, which far memory has; all leaves are in the cache.
async fn filled(member: &Member, config: Config) -> Dex {
    let index = Dex::create(&member.session, "dex", &config).await.expect("an index");
    for i in 0..200 {
        assert_eq!(index.upsert(&key(i), &key(i)).await, Ok(Upsert::Inserted));
    }
    for i in 0..200 {
        assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), Some(&key(i)[..]));
    }
    index.flush().await.expect("all is written back");
    index
}

/// Runs an operation of one member while another one sends heartbeats.
async fn while_ticking<T>(other: &Member, operation: impl Future<Output = T>) -> T {
    let mut operation = pin!(operation);
    loop {
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(operation.as_mut().poll(cx))).await {
            return done;
        }
        other.client.tick(&other.endpoint).await.expect("a heartbeat");
    }
}

#[test]
fn a_write_to_a_cached_leaf_takes_no_verb_and_is_written_back_once() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let (member, _) = two(&ctx).await;
        let index = filled(&member, CONFIG).await;
        let endpoint = member.session.endpoint();
        let nothing = |cost: &farindex_fabric::OpStats| {
            let total = cost.total;
            assert_eq!((total.reads, total.writes, total.cas, total.faa), (0, 0, 0, 0));
        };
        for (i, value) in [(7, 1), (7, 2), (8, 3)] {
            nothing(
                &cost_of(endpoint, OpKind::Upsert, async || {
                    assert_eq!(index.upsert(&key(i), &key(value)).await, Ok(Upsert::Updated));
                })
                .await,
            );
        }
        nothing(
            &cost_of(endpoint, OpKind::Remove, async || {
                assert_eq!(index.remove(&key(9)).await, Ok(Remove::Removed));
            })
            .await,
        );
        assert_eq!(index.get(&key(7)).await.expect("a lookup").as_deref(), Some(&key(2)[..]));
        // The slots with the bitmap, and checksum and bitmap; that the index is there was READ before.
        let before = endpoint.meter();
        index.flush().await.expect("it is written back");
        let total = (endpoint.meter() - before).of(OpKind::Maintenance).total;
        assert_eq!((total.reads, total.writes, total.cas), (1, 2, 0));
        let before = endpoint.meter();
        index.flush().await.expect("there is nothing to write");
        assert_eq!((endpoint.meter() - before).of(OpKind::Maintenance).total.writes, 0);
    });
}

/// The slot of a key that was removed is given to another one: the bitmap without it is written first.
#[test]
fn a_slot_that_has_another_key_is_taken_out_of_the_bitmap_before_it_is_written() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let (member, _) = two(&ctx).await;
        let index = filled(&member, CONFIG).await;
        assert_eq!(index.remove(&key(9)).await, Ok(Remove::Removed));
        assert_eq!(index.remove(&key(10)).await, Ok(Remove::Removed));
        assert_eq!(index.upsert(&key(10), &key(1)).await, Ok(Upsert::Inserted));
        let before = member.session.endpoint().meter();
        index.flush().await.expect("it is written back");
        let total = (member.session.endpoint().meter() - before).of(OpKind::Maintenance).total;
        assert_eq!((total.reads, total.writes), (1, 3));
        index.forget();
        for (i, value) in [(8, Some(8)), (9, None), (10, Some(1)), (11, Some(11))] {
            let found = index.get(&key(i)).await.expect("a lookup");
            assert_eq!(found.as_deref(), value.map(key).as_ref().map(|value| &value[..]), "key {i}");
        }
    });
}

#[test]
fn a_lookup_of_another_compute_node_finds_what_only_the_owners_cache_has() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let (first, second) = two(&ctx).await;
        let index = filled(&first, CONFIG).await;
        for i in 0..200 {
            assert_eq!(index.upsert(&key(i), &key(i + 1)).await, Ok(Upsert::Updated));
        }
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        let found = while_ticking(&first, other.get(&key(50))).await.expect("a lookup");
        assert_eq!(found.as_deref(), Some(&key(51)[..]));
        let all = (Bound::Unbounded, Bound::Unbounded);
        let scanned = while_ticking(&first, other.scan(all, usize::MAX)).await.expect("a scan");
        let values: Vec<_> = scanned.iter().map(|entry| entry.value.to_vec()).collect();
        assert_eq!(values, (1..201).map(|i| key(i).to_vec()).collect::<Vec<_>>());
        // And back.
        assert_eq!(while_ticking(&first, other.upsert(&key(50), &key(7))).await, Ok(Upsert::Updated));
        let found = while_ticking(&second, index.get_many(&[&key(49), &key(50)])).await.expect("lookups");
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [Some(&key(50)[..]), Some(&key(7)[..])]);
    });
}

#[test]
fn a_heartbeat_writes_back_what_was_dirty_for_long_enough() {
    World::calm(1, 8 << 20).run(async |ctx| {
        let (member, _) = two(&ctx).await;
        let index = filled(&member, Config { dirty_ms: 5, ..CONFIG }).await;
        let endpoint = member.session.endpoint();
        let written = async || {
            let before = member.endpoint.meter();
            member.client.tick(&member.endpoint).await.expect("a heartbeat");
            (member.endpoint.meter() - before).of(OpKind::Maintenance).total.writes
        };
        let idle = written().await;
        assert_eq!(index.upsert(&key(7), &key(8)).await, Ok(Upsert::Updated));
        assert_eq!(written().await, idle);
        endpoint.sleep(Duration::from_millis(6)).await;
        assert_eq!(written().await, idle + 2);
        assert_eq!(written().await, idle);
    });
}

/// The last handle is closed while leaves are dirty: closing the client writes them back.
#[test]
fn what_is_dirty_when_a_client_closes_is_written_back() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let (first, second) = two(&ctx).await;
        let index = filled(&first, CONFIG).await;
        assert_eq!(index.upsert(&key(7), &key(8)).await, Ok(Upsert::Updated));
        drop(index);
        first.close_while_ticking(&[&second]).await;
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        assert_eq!(other.get(&key(7)).await.expect("a lookup").as_deref(), Some(&key(8)[..]));
        assert_eq!(other.partitions(), 1);
    });
}

/// A value in a block goes through, and so does what its leaf had in the cache alone before.
#[test]
fn an_entry_with_a_block_goes_through() {
    World::memory(1, 8 << 20, Delivery::Immediate).run(async |ctx| {
        let (member, _) = two(&ctx).await;
        let index = filled(&member, CONFIG).await;
        assert_eq!(index.upsert(&key(7), &key(8)).await, Ok(Upsert::Updated));
        assert_eq!(index.upsert(&key(8), b"a longer value").await, Ok(Upsert::Updated));
        let before = member.session.endpoint().meter();
        index.flush().await.expect("there is nothing to write");
        assert_eq!((member.session.endpoint().meter() - before).of(OpKind::Maintenance).total.writes, 0);
        index.forget();
        assert_eq!(index.get(&key(7)).await.expect("a lookup").as_deref(), Some(&key(8)[..]));
        assert_eq!(index.get(&key(8)).await.expect("a lookup").as_deref(), Some(&b"a longer value"[..]));
    });
}
