//! Commands: a compute node takes a range of keys, or gives it back; a list says who owns what.

use farindex_fabric::memory::Delivery;
use farindex_index::dex::{Config, Foreign};
use farindex_index::{AnyIndex, IndexError, PointIndex, Upsert};
use farindex_pool::PoolOptions;
use farindex_testkit::world::{Member, World};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// Owners of the partitions of an index: the low key, and whether the compute node that asks owns it; `None` for nobody.
async fn owners(index: &AnyIndex) -> Vec<(Vec<u8>, Option<bool>)> {
    let list = index.partitions().await.expect("partitions");
    assert!(list.windows(2).all(|pair| pair[0].high.as_deref() == Some(&*pair[1].low)) && list[0].low.is_empty());
    list.into_iter().map(|part| (part.low, part.owner.map(|_| part.is_own))).collect()
}

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// Runs a command while the heartbeats of these clients go on.
async fn with_heartbeats<T>(members: &[&Member], command: impl Future<Output = T>) -> T {
    let mut command = pin!(command);
    loop {
        if let Some(done) = poll_once(command.as_mut()).await {
            return done;
        }
        for member in members {
            member.session.client().tick(member.session.endpoint()).await.expect("a heartbeat");
            member.session.endpoint().sleep(Duration::from_micros(10)).await;
        }
    }
}

#[test]
fn a_compute_node_that_joins_takes_a_range_and_one_that_leaves_gives_it_back() {
    World::memory(1, 4 << 20, Delivery::Immediate).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let config = Config { foreign: Foreign::Refuse, leaf_span: 4, ..Config::default() };
        let a = AnyIndex::create(&first.session, "dex", &config.into()).await.expect("an index");
        let b = AnyIndex::open(&second.session, "dex").await.expect("the index");
        assert_eq!(owners(&a).await, [(vec![], None)]);
        let key = |i: u64| i.to_be_bytes();
        for i in 0..100 {
            assert_eq!(a.upsert(&key(i), b"1").await, Ok(Upsert::Inserted));
        }
        // It joins: a range of a live owner, the setting `foreign` notwithstanding.
        let (low, high) = (key(20), key(40));
        let range = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        with_heartbeats(&[&first, &second], b.own(range)).await.expect("the range");
        let divided = [(vec![], Some(false)), (low.to_vec(), Some(true)), (high.to_vec(), Some(false))];
        assert_eq!(owners(&b).await, divided);
        for i in 0..100 {
            let (owner, other) = if (20..40).contains(&i) { (&b, &a) } else { (&a, &b) };
            assert!(matches!(other.upsert(&key(i), b"2").await, Err(IndexError::NotOwner { .. })), "key {i}");
            assert_eq!(owner.upsert(&key(i), b"2").await, Ok(Upsert::Updated));
            assert_eq!(other.get(&key(i)).await.expect("a lookup").as_deref(), Some(&b"2"[..]));
        }
        // It gives a part back, which nobody owns then; the first write takes it.
        let middle = key(30);
        let part = (Bound::Excluded(&middle[..]), Bound::Unbounded);
        with_heartbeats(&[&first, &second], b.give_up(part)).await.expect("given back");
        let behind = [&middle[..], &[0]].concat();
        let given = [(vec![], Some(false)), (low.to_vec(), Some(true)), (behind, None), (high.to_vec(), Some(false))];
        assert_eq!(owners(&b).await, given);
        assert_eq!(a.upsert(&key(35), b"3").await, Ok(Upsert::Updated));
        // It leaves, and the other one takes everything.
        with_heartbeats(&[&first, &second], b.give_up(ALL)).await.expect("given back");
        assert!(owners(&b).await.iter().all(|(_, own)| *own != Some(true)));
        with_heartbeats(&[&first, &second], a.own(ALL)).await.expect("all keys");
        assert_eq!(owners(&a).await, [(vec![], Some(true))]);
        assert_eq!(a.get(&key(35)).await.expect("a lookup").as_deref(), Some(&b"3"[..]));
        // A range without keys is nobody's, and no other kind is divided.
        a.own((Bound::Excluded(b"b"), Bound::Excluded(b"a"))).await.expect("no keys");
        let hash = AnyIndex::create(&first.session, "hash", &Default::default()).await.expect("an index");
        assert_eq!(hash.own(ALL).await, Err(IndexError::NotPartitioned { kind: "shard" }));
        assert!(matches!(hash.partitions().await, Err(IndexError::NotPartitioned { .. })));
    });
}

/// Polls some work once.
async fn poll_once<T>(mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A command has one part of its range, and waits for the owner of the other one. Meanwhile it gives nothing away (D6): else two
/// commands could take their parts from each other for long.
#[test]
fn a_command_keeps_what_it_has_got_of_its_range() {
    World::calm(1, 4 << 20).run(async |ctx| {
        let pool = ctx.pool(&PoolOptions::default()).await;
        let (first, second, third) = (ctx.join(&pool).await, ctx.join(&pool).await, ctx.join(&pool).await);
        let config = Config { leaf_span: 4, ..Config::default() };
        let a = AnyIndex::create(&first.session, "dex", &config.into()).await.expect("an index");
        let b = AnyIndex::open(&second.session, "dex").await.expect("the index");
        let c = AnyIndex::open(&third.session, "dex").await.expect("the index");
        let key = |i: u64| i.to_be_bytes();
        for i in 0..100 {
            assert_eq!(a.upsert(&key(i), b"1").await, Ok(Upsert::Inserted));
        }
        let middle = key(50);
        let upper = (Bound::Included(&middle[..]), Bound::Unbounded);
        with_heartbeats(&[&first, &second, &third], c.own(upper)).await.expect("the range");
        let beat = async |members: &[&Member]| {
            for member in members {
                member.client.tick(&member.endpoint).await.expect("a heartbeat");
            }
            first.endpoint.sleep(Duration::from_millis(1)).await;
        };
        let mut command = pin!(b.own(ALL));
        while owners(&b).await != [(vec![], Some(true)), (middle.to_vec(), Some(false))] {
            assert_eq!(poll_once(command.as_mut()).await, None, "the other owner has not answered");
            beat(&[&first, &second]).await;
        }
        let low = key(10);
        let mut write = pin!(a.upsert(&low, b"2"));
        for _ in 0..40 {
            assert_eq!(poll_once(command.as_mut()).await, None, "the other owner has not answered");
            assert_eq!(poll_once(write.as_mut()).await, None, "the command keeps its range");
            beat(&[&first, &second]).await;
        }
        let done = with_heartbeats(&[&first, &second, &third], command).await;
        assert_eq!(done, Ok(()));
        let wrote = with_heartbeats(&[&first, &second, &third], write).await;
        assert_eq!(wrote, Ok(Upsert::Updated));
    });
}
