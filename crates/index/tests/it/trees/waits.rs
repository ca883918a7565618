//! How long a write waits for locks of a client that lives and does not release them.

use super::Tree;
use super::hand_over::{VALUE, key};
use farindex_fabric::{NodeId, RemotePtr};
use farindex_index::{IndexError, Insert};
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
