//! How long a write waits for locks of a client that lives and does not release them.

use super::Tree;
use super::hand_over::{VALUE, key};
use farindex_fabric::{NodeId, RemotePtr};
use farindex_index::{IndexError, Insert, Lifecycle};
use farindex_pool::{PoolOptions, intent};
use farindex_testkit::world::{Member, World};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(100);

/// The locks that intents name.
async fn named(member: &Member) -> Vec<RemotePtr> {
    let named = intent::intents(&member.session, &member.span(), NodeId::new(0)).await.expect("the intents");
    named.iter().map(|found| found.intent.lock.at).collect()
}

/// Carries an operation out until it holds the lock of a second node, and drops it there: that lock stays held. `None`: so it
/// went.
async fn until_second_lock<T>(member: &Member, operation: impl Future<Output = T>) -> Option<T> {
    let (mut operation, mut first, before) = (pin!(operation), None, named(member).await);
    loop {
        let polled = poll_fn(|cx| Poll::Ready(operation.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        // What it has posted completes, and it does not learn that yet.
        member.endpoint.sleep(Duration::from_micros(50)).await;
        let lock = named(member).await.into_iter().find(|lock| !before.contains(lock));
        if lock.is_some_and(|lock| *first.get_or_insert(lock) != lock) {
            return None;
        }
    }
}

/// Carries an operation out while its client renews its lease.
async fn with_heartbeats<T>(member: &Member, operation: impl Future<Output = T>) -> T {
    let heartbeat = async {
        loop {
            member.client.tick(&member.endpoint).await.expect("a heartbeat");
            member.endpoint.sleep(LEASE / 8).await;
        }
    };
    let (mut operation, mut heartbeat) = (pin!(operation), pin!(heartbeat));
    poll_fn(|cx| {
        let beat: Poll<()> = heartbeat.as_mut().poll(cx);
        assert!(beat.is_pending());
        operation.as_mut().poll(cx)
    })
    .await
}

/// A leaf was split, its separator is missing, and the locks of the new leaf and of the parent are held. A write to the new
/// leaf misses the separator each time that it comes there, and cannot add it.
pub(crate) fn a_write_that_misses_a_separator_waits_for_its_own_lock_alone<T: Tree>() {
    World::calm(1, 4 << 20).run(async move |ctx| {
        let options = PoolOptions { lease: LEASE, ..PoolOptions::default() };
        let member = ctx.join(&ctx.pool(&options).await).await;
        let index = T::create(&member.session, "tree", &T::smallest()).await.expect("an index");
        let mut last = 0;
        // The first one with two locks splits a leaf and locks the parent.
        while let Some(inserted) = until_second_lock(&member, index.insert(&key(last), VALUE)).await {
            assert_eq!(inserted, Ok(Insert::Inserted));
            last += 1;
        }
        // By the leaf that was split to the new one.
        assert_eq!(until_second_lock(&member, index.insert(&key(last), VALUE)).await, None);
        let began = member.endpoint.now();
        let inserted = with_heartbeats(&member, index.insert(&key(last), VALUE)).await;
        let took = member.endpoint.now() - began;
        assert!(matches!(inserted, Err(IndexError::Locked { .. })), "{inserted:?}");
        assert!(took > LEASE * 2 && took < LEASE * 4, "{took:?}");
    });
}

/// Drops an operation when an intent of its client names a lock. Returns the lock, if the batch that took it did.
async fn until_lock<T>(member: &Member, operation: impl Future<Output = T>) -> RemotePtr {
    let mut operation = pin!(operation);
    loop {
        let polled = poll_fn(|cx| Poll::Ready(operation.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "the operation ends before it has a lock");
        member.endpoint.sleep(Duration::from_micros(50)).await;
        if let Some(lock) = named(member).await.pop() {
            return lock;
        }
    }
}

/// See docs/bugs/228: while clients that live try to take a lock, nobody can tell that its holder was evicted. So an operation
/// that has waited for long only looks.
pub(crate) fn who_waits_for_long_declares_no_intent<T: Tree>() {
    World::calm(1, 4 << 20).run(async move |ctx| {
        let options = PoolOptions { lease: LEASE, ..PoolOptions::default() };
        let pool = ctx.pool(&options).await;
        let (holder, other) = (ctx.join(&pool).await, ctx.join(&pool).await);
        let index = T::create(&holder.session, "tree", &T::smallest()).await.expect("an index");
        assert_eq!(index.insert(&key(1), VALUE).await, Ok(Insert::Inserted));
        let theirs = T::open(&other.session, "tree").await.expect("the index");
        let key = key(1);
        let lock = until_lock(&holder, index.update(&key, VALUE)).await;

        let began = other.endpoint.now();
        let (mut looks, mut tries) = (0, 0);
        let mut update = pin!(with_heartbeats(&holder, with_heartbeats(&other, theirs.update(&key, VALUE))));
        let updated = loop {
            if let Poll::Ready(updated) = poll_fn(|cx| Poll::Ready(update.as_mut().poll(cx))).await {
                break updated;
            }
            let names = named(&holder).await.into_iter().filter(|at| *at == lock).count();
            if other.endpoint.now() - began > LEASE / 8 {
                looks += 1;
                tries += usize::from(names > 1);
            }
        };
        assert!(matches!(updated, Err(IndexError::Locked { .. })), "{updated:?}");
        assert!(looks > 1000, "{looks}");
        assert_eq!(tries, 0, "at so many of {looks} looks the other client tries to take the lock");
    });
}
