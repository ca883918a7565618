//! Priority (D13): an operation that has waited for a partition for a lease goes before those of other compute nodes.

use farindex_index::dex::Config;
use farindex_index::{Dex, Lifecycle, PointIndex, PoolIndex, Upsert};
use farindex_pool::PoolOptions;
use farindex_testkit::world::{Member, World, join_all};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(100);
const KEY: &[u8] = b"key";

/// Heartbeats of a client, so many in a lease, until `done` says that it is over.
async fn heartbeats(member: &Member, in_a_lease: u32, done: &Cell<bool>) {
    while !done.get() {
        member.client.tick(&member.endpoint).await.expect("a heartbeat");
        member.endpoint.sleep(LEASE / in_a_lease).await;
    }
}

/// Two compute nodes exchange a partition a hundred times in a lease. A third one needs 2 ms for each step, so what it
/// proposes follows a map that does not count any more (docs/bugs/215).
#[test]
fn a_slow_compute_node_gets_what_two_fast_ones_exchange() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
        let [first, second, slow] = &members;
        let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        let late = Dex::open(&slow.session, "dex").await.expect("the index");
        assert_eq!(index.upsert(KEY, b"0").await, Ok(Upsert::Inserted));
        let (got, exchanges) = (&Cell::new(false), &Cell::new(0));
        // An exchange that has begun takes heartbeats of the others.
        let (done, working) = (&Cell::new(false), &Cell::new(2));
        let exchange = async |index: &Dex| {
            while !got.get() {
                assert_eq!(index.upsert(KEY, b"fast").await, Ok(Upsert::Updated));
                exchanges.set(exchanges.get() + 1);
            }
            working.set(working.get() - 1);
            done.set(working.get() == 0);
        };
        let wait = async || {
            // One that is given up when it has taken priority leaves its word, and the next one takes priority again.
            let given_up = slow.endpoint.now() + LEASE + LEASE / 16;
            let mut write = Box::pin(late.upsert(KEY, b"slow"));
            while slow.endpoint.now() < given_up {
                assert!(poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await.is_pending());
                slow.endpoint.sleep(Duration::from_millis(2)).await;
            }
            drop(write);
            slow.endpoint.sleep(LEASE * 2).await;
            let (began, mut write) = (slow.endpoint.now(), pin!(late.upsert(KEY, b"slow")));
            let wrote = loop {
                match poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
                    Poll::Ready(wrote) => break wrote,
                    // Without priority it would never end.
                    Poll::Pending if slow.endpoint.now() - began > LEASE * 10 => panic!("it does not get the key"),
                    Poll::Pending => slow.endpoint.sleep(Duration::from_millis(2)).await,
                }
            };
            let took = slow.endpoint.now() - began;
            got.set(true);
            assert_eq!(wrote, Ok(Upsert::Updated));
            // It has waited for a lease, so this is about what comes after that.
            assert!(exchanges.get() > 50, "{} exchanges", exchanges.get());
            assert!(took > LEASE && took < LEASE * 3, "{took:?}, {} exchanges", exchanges.get());
        };
        let all: [Pin<Box<dyn Future<Output = ()> + '_>>; 6] = [
            Box::pin(exchange(&index)),
            Box::pin(exchange(&other)),
            Box::pin(wait()),
            Box::pin(heartbeats(first, 1000, done)),
            Box::pin(heartbeats(second, 1000, done)),
            Box::pin(heartbeats(slow, 16, done)),
        ];
        join_all(all).await;
    });
}

/// An operation that has taken priority is given up. The others wait for it for a lease, and then go on.
#[test]
fn others_wait_for_a_lease_for_an_operation_that_was_given_up() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions { lease: LEASE, ..PoolOptions::default() }).await;
        let members = [ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await];
        let [first, second, third] = &members;
        let index = Dex::create(&first.session, "dex", &Config::default()).await.expect("an index");
        assert_eq!(index.upsert(KEY, b"0").await, Ok(Upsert::Inserted));
        let other = Dex::open(&second.session, "dex").await.expect("the index");
        let given_up = Dex::open(&third.session, "dex").await.expect("the index");
        let done = &Cell::new(false);
        let work = async || {
            // An owner in the middle of a write gives nothing away.
            let mut write = Box::pin(index.upsert(KEY, b"1"));
            for _ in 0..2 {
                assert!(poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await.is_pending());
            }
            let mut ahead = Box::pin(other.upsert(KEY, b"2"));
            let asked = async {
                let limit = third.endpoint.sleep(LEASE + LEASE / 4);
                let (mut limit, mut behind) = (pin!(limit), pin!(given_up.upsert(KEY, b"3")));
                poll_fn(|cx| {
                    assert!(ahead.as_mut().poll(cx).is_pending());
                    assert!(behind.as_mut().poll(cx).is_pending());
                    limit.as_mut().poll(cx)
                })
                .await;
            };
            asked.await;
            assert_eq!(write.await, Ok(Upsert::Updated));
            // It has proposed before.
            assert_eq!(ahead.await, Ok(Upsert::Updated));
            let began = first.endpoint.now();
            assert_eq!(index.upsert(KEY, b"4").await, Ok(Upsert::Updated));
            let took = first.endpoint.now() - began;
            assert!(took > LEASE / 2 && took < LEASE * 2, "{took:?}");
            // The word is the same, and this compute node does not wait for it again.
            assert_eq!(other.upsert(KEY, b"5").await, Ok(Upsert::Updated));
            let began = first.endpoint.now();
            assert_eq!(index.upsert(KEY, b"6").await, Ok(Upsert::Updated));
            let took = first.endpoint.now() - began;
            assert!(took < LEASE / 4, "{took:?}");
            done.set(true);
        };
        let all: [Pin<Box<dyn Future<Output = ()> + '_>>; 4] = [
            Box::pin(work()),
            Box::pin(heartbeats(first, 100, done)),
            Box::pin(heartbeats(second, 100, done)),
            Box::pin(heartbeats(third, 100, done)),
        ];
        join_all(all).await;
    });
}
