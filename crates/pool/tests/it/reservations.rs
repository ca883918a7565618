//! Creations that were given up while their verbs are in flight: whatever of them lands, and whenever, takes nothing from the
//! creations after them. See `docs/bugs/233-pool-catalog-lock-is-released-although-a-write-may-still-land.md`.

use crate::common::{Member, NODE, Rig};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Driver, Endpoint, Fabric, OpKind, RemotePtr};
use farindex_pool::audit::Audit;
use farindex_pool::catalog::{self, IndexInfo, KindTag};
use farindex_pool::faults::{Fault, plant};
use farindex_pool::layout::{HOME, header, header_word, reserved_for};
use farindex_pool::{PoolError, Session};
use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

async fn add(session: &Session, name: &str) -> Result<IndexInfo, PoolError> {
    let span = session.span(OpKind::Other);
    let uid = catalog::new_uid(&span, 0).await?;
    let kind = KindTag { kind: 3, version: 1, config_version: 1 };
    catalog::add(session, &span, name, uid, kind, RemotePtr::new(NODE, 4096), &[7; 64]).await
}

fn all(member: &Member) -> Vec<IndexInfo> {
    let session = member.session();
    let span = session.span(OpKind::Other);
    member.run(catalog::list(session.pool(), &span)).expect("listed")
}

/// Lets `task` run until its batch number `batch` is in flight, and drops it then. The batch lands when the endpoint next
/// makes progress. Returns whether there was such a batch.
fn give_up_at<T>(batch: usize, endpoint: &Endpoint, task: impl Future<Output = T>) -> bool {
    let mut task = pin!(task);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..batch {
        if task.as_mut().poll(&mut cx).is_ready() {
            return false;
        }
        endpoint.progress();
    }
    task.as_mut().poll(&mut cx).is_pending()
}

/// Gives a creation of the name "late" up at each of its batches. Then `test` runs, and ends with what is to land.
fn at_each_batch(test: impl Fn(&Rig, &Member, &Endpoint, &str)) {
    let mut at = 0;
    loop {
        let rig = Rig::new(8);
        let member = rig.join();
        let endpoint =
            rig.fabric.with_delivery(Delivery::Deferred).connect(member.client.identity()).expect("connects");
        let session = member.client.session(endpoint.clone());
        if !give_up_at(at, &endpoint, add(&session, "late")) {
            break;
        }
        test(&rig, &member, &endpoint, &format!("given up at batch {at}"));
        at += 1;
    }
    assert!(at > 5, "{at} batches");
}

/// A creation is given up at each of its batches, the next one has this name, and then the rest of the first one lands.
/// Returns how many times the catalog was another one afterwards.
fn late_landings_that_show(next: &str) -> usize {
    let shown = Cell::new(0);
    at_each_batch(|rig, member, late, when| {
        let session = member.session();
        let added = member.run(add(&session, next));
        // The state of the first one may have been written.
        let is_there = matches!(added, Err(PoolError::IndexExists(_)));
        assert!(added.is_ok() || is_there && next == "late", "{when}: {added:?}");
        let before = all(member);
        while late.progress() {}
        shown.set(shown.get() + usize::from(all(member) != before));
        // Nobody has the lock.
        member.run(add(&session, "one more")).expect("added");
        assert_eq!(rig.peek(header_word(HOME, header::CATALOG_LOCK), 1), [0], "{when}");
    });
    shown.get()
}

#[test]
fn creation_that_lands_late_takes_nothing_from_the_next_one() {
    for next in ["next", "late"] {
        assert_eq!(late_landings_that_show(next), 0);
        plant(&[Fault::KeepsReservations]);
        let shown = late_landings_that_show(next);
        plant(&[]);
        assert!(shown > 0, "a reservation that stays open is not noticed");
    }
}

/// An atomic that releases the lock lands when another operation of this client has it.
#[test]
fn release_that_lands_late_releases_no_other_taking() {
    let lock = |rig: &Rig| rig.peek(header_word(HOME, header::CATALOG_LOCK), 1)[0];
    let landed = Cell::new(0);
    at_each_batch(|rig, member, late, when| {
        let was = lock(rig);
        let endpoint =
            rig.fabric.with_delivery(Delivery::Deferred).connect(member.client.identity()).expect("connects");
        let session = member.client.session(endpoint.clone());
        let mut task = pin!(add(&session, "next"));
        let mut cx = Context::from_waker(Waker::noop());
        while [0, was].contains(&lock(rig)) {
            assert!(task.as_mut().poll(&mut cx).is_pending(), "{when}");
            endpoint.progress();
        }
        let taken = lock(rig);
        while late.progress() {}
        assert_eq!(lock(rig), taken, "{when}");
        landed.set(landed.get() + usize::from(was != 0));
        let mut added = task.as_mut().poll(&mut cx);
        while added.is_pending() {
            endpoint.progress();
            added = task.as_mut().poll(&mut cx);
        }
        assert!(matches!(added, Poll::Ready(Ok(_))), "{when}: {added:?}");
        assert_eq!(lock(rig), 0, "{when}");
    });
    assert!(landed.get() > 3, "the lock was held {} times", landed.get());
}

/// Reclaims as the only client.
fn reclaim(member: &Member) -> bool {
    let session = member.session();
    let span = session.span(OpKind::Other);
    let reclaimed = member.run(async { Audit::begin(&session, &span).await?.reclaim(&session, &span).await });
    reclaimed.expect("no verb fails").alone
}

#[test]
fn entry_that_was_left_is_free_when_its_client_has_gone() {
    let reserved = |rig: &Rig| {
        let state = |i| rig.peek(rig.pool.geometry(HOME).entry(i), 1)[0];
        (0..64).filter(|i| reserved_for(state(*i)).is_some()).count()
    };
    let left = Cell::new(0);
    at_each_batch(|rig, member, late, when| {
        member.run(add(&member.session(), "next")).expect("added");
        let many = reserved(rig);
        left.set(left.get() + many);
        // The session that was given up may still write, so its client frees nothing.
        assert!(!reclaim(member), "{when}");
        while late.progress() {}
        assert!(reserved(rig) >= many, "{when}");
        // The client leaves without its last word. Another one evicts it.
        let next = rig.join();
        next.run(next.client.wait_and_evict_expired(&next.endpoint)).expect("evicted");
        assert!(reclaim(&next), "{when}");
        assert_eq!(reserved(rig), 0, "{when}");
        assert!(all(&next).iter().any(|info| info.name == "next"), "{when}");
    });
    assert!(left.get() > 0, "nothing was left");
}
