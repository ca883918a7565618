//! Owners that live, and are held up in the middle of an operation: who waits for them fails in a bounded time.

use super::crashed::fill;
use super::owners::while_ticking;
use super::tear;
use farindex_index::dex::Config;
use farindex_index::{Dex, IndexError, Lifecycle, PointIndex, PoolIndex, Upsert};
use farindex_pool::PoolOptions;
use farindex_testkit::world::{Member, World, join_all};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(20);
const KEY: &[u8] = b"key";

/// The result of what ends first.
async fn first_of<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        done => done,
    })
    .await
}

/// The result of an operation, if it ends within ten leases.
async fn in_time<T>(member: &Member, work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        member.endpoint.sleep(LEASE * 10).await;
        None
    };
    first_of(async { Some(work.await) }, late).await
}

/// An owner is held up in the middle of a change, and lives. Who READs the leaf has no memory for a proposal (docs/bugs/218).
#[test]
fn a_lookup_in_a_full_pool_does_not_wait_for_ever() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await];
        let index = Dex::create(&members[0].session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(&[0; 8], b"a value!").await, Ok(Upsert::Inserted));
        tear(&members[0], (b"a value!", b"changed!")).await;
        let reader = &members[1];
        fill(reader).await;
        let reads = Dex::open(&reader.session, "dex").await.expect("the index");
        let read = while_ticking(&members, in_time(reader, reads.get(&[0; 8]))).await;
        let holder = members[0].client.slot().to_string();
        let Some(Err(IndexError::Locked { holder: named, .. })) = &read else { panic!("{read:?}") };
        assert!(named.contains(&holder), "{named}");
        drop(index);
    });
}

/// What a compute node proposes to an owner that is held up follows an old map again and again, because a third one changes other
/// partitions. To be refused is no sign that the owner will give anything away (docs/bugs/219).
#[test]
fn an_owner_that_is_held_up_is_found_while_others_change_the_map() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
        let index = Dex::create(&members[0].session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(KEY, b"1").await, Ok(Upsert::Inserted));
        let asks = Dex::open(&members[1].session, "dex").await.expect("the index");
        let third = Dex::open(&members[2].session, "dex").await.expect("the index");
        let work = async || {
            let far = (Bound::Included(&b"x"[..]), Bound::Unbounded);
            third.own(far).await.expect("a range");
            let mut held_up = Box::pin(index.upsert(KEY, b"2"));
            for _ in 0..2 {
                assert!(poll_fn(|cx| Poll::Ready(held_up.as_mut().poll(cx))).await.is_pending());
            }
            let (failed, changes) = (&Cell::new(false), &Cell::new(0));
            let asked = async {
                let asked = in_time(&members[1], asks.upsert(KEY, b"3")).await;
                failed.set(true);
                assert!(matches!(asked, Some(Err(IndexError::Locked { .. }))), "{asked:?}");
            };
            let change = async {
                while !failed.get() {
                    third.give_up(far).await.expect("a range");
                    third.upsert(b"z", b"4").await.expect("what nobody owns");
                    changes.set(changes.get() + 1);
                }
            };
            let both: [Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(asked), Box::pin(change)];
            join_all(both).await;
            assert!(changes.get() > 10, "{} changes", changes.get());
            // Who has asked is free to ask others, while the owner is still held up.
            third.give_up(far).await.expect("a range");
            third.upsert(b"z", b"4").await.expect("what nobody owns");
            let began = members[1].endpoint.now();
            while asks.upsert(b"z", b"5").await.is_err() {
                assert!(members[1].endpoint.now() - began < LEASE * 10, "it can ask nobody else");
                members[1].endpoint.sleep(LEASE / 8).await;
            }
            assert_eq!(held_up.await, Ok(Upsert::Updated));
            assert_eq!(asks.upsert(KEY, b"5").await, Ok(Upsert::Updated));
        };
        while_ticking(&members, work()).await;
    });
}
