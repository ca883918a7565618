//! What operations have posted and left: while it may land, no memory is reused that it may change. See
//! `docs/bugs/234-pool-pin-ends-although-a-verb-may-land.md`.

use crate::common::{Member, NODE, Rig};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Driver, Fabric, OpKind};
use farindex_pool::audit::Audit;
use farindex_pool::faults::{Fault, plant};
use farindex_pool::layout::{HOME, header, header_word};
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session, clients};
use farindex_sim::{Config, ODDS, Sim};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

const BYTES: u64 = 1000;

/// By how much the epoch has advanced after many heartbeats of both.
fn advance(rig: &Rig, members: [&Member; 2]) -> u64 {
    let epoch = || rig.peek(header_word(HOME, header::EPOCH), 1)[0];
    let before = epoch();
    for _ in 0..10 {
        members.iter().for_each(|member| member.tick());
    }
    epoch() - before
}

/// An operation is given up while its CAS is in flight. Returns by how much the epoch advances before the CAS lands, and after.
fn given_up(faults: &[Fault], change: bool) -> (u64, u64) {
    let rig = Rig::new(8);
    let (writer, other) = (rig.join(), rig.join());
    let late = rig.fabric.with_delivery(Delivery::Deferred).connect(writer.client.identity()).expect("connects");
    let session = writer.client.session(late.clone());
    let block = other.alloc(&other.session(), BYTES).expect("room");
    plant(faults);
    {
        let pin = session.pin(session.span(OpKind::Other)).expect("the lease holds");
        let mut batch = pin.span().batch();
        match change {
            true => batch.cas(block, 0, 1),
            false => batch.read(block, 8),
        };
        let mut posted = pin!(batch.post());
        assert!(posted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    plant(&[]);
    let before = advance(&rig, [&writer, &other]);
    while late.progress() {}
    (before, advance(&rig, [&writer, &other]))
}

#[test]
fn epoch_waits_for_the_verbs_of_an_operation_that_was_given_up() {
    let (before, after) = given_up(&[], true);
    assert!(before <= 1 && after > 5, "{before}, then {after}");
    let (before, _) = given_up(&[Fault::UnpinsEarly], true);
    assert!(before > 5, "the planted fault changes nothing");
}

#[test]
fn epoch_does_not_wait_for_reads_that_were_given_up() {
    let (before, _) = given_up(&[], false);
    assert!(before > 5, "{before}");
}

/// The session ends before what it has left, and so does its endpoint: then nobody knows when that lands.
#[test]
fn epoch_waits_for_a_client_whose_endpoint_ended_with_a_verb_in_flight() {
    let rig = Rig::new(8);
    let (writer, other) = (rig.join(), rig.join());
    let block = other.alloc(&other.session(), BYTES).expect("room");
    let late = rig.fabric.with_delivery(Delivery::Deferred).connect(writer.client.identity()).expect("connects");
    let session = writer.client.session(late.clone());
    {
        let span = session.span(OpKind::Other);
        let mut posted = pin!(span.cas(block, 0, 1));
        assert!(posted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop((session, late));
    assert!(advance(&rig, [&writer, &other]) <= 1);
    let freed = {
        let session = writer.session();
        let span = session.span(OpKind::Other);
        writer.run(async { Audit::begin(&session, &span).await?.reclaim(&session, &span).await })
    };
    assert!(!freed.expect("no verb fails").alone);
}

const LEASE: Duration = Duration::from_millis(50);

async fn join(pool: &Pool, fabric: &dyn Fabric) -> Result<Session, PoolError> {
    let identity = fabric.new_identity();
    let endpoint = fabric.connect(&identity)?;
    let client = Client::register(pool, identity, &endpoint).await?;
    Ok(client.session(endpoint))
}

async fn ticks(sessions: [&Session; 2]) -> Result<u64, PoolError> {
    let before = sessions[0].client().epoch();
    for session in (0..10).flat_map(|_| sessions) {
        session.client().tick(session.endpoint()).await?;
    }
    Ok(sessions[0].client().epoch() - before)
}

/// Its CAS fails, and may land at any time: until the client is revoked.
#[test]
fn epoch_waits_for_a_client_one_of_whose_changes_has_failed() {
    let sim = Sim::new(1, Config { node_len: 4 << 20, ..Config::default() }).expect("a world");
    let (me, fabric) = (sim.client(), sim.fabric());
    let task = {
        let me = me.clone();
        async move {
            let options = PoolOptions { lease: LEASE, ..PoolOptions::default() };
            let pool = Pool::create(fabric.clone(), &me.connect(), &options).await?;
            let (failing, other) = (join(&pool, &*fabric).await?, join(&pool, &*fabric).await?);
            let block = other.alloc(&other.span(OpKind::Other), NODE, BYTES).await?;
            assert!(ticks([&failing, &other]).await? > 5);

            let pin = failing.pin(failing.span(OpKind::Other))?;
            me.error_odds(ODDS);
            pin.span().read(block, 8).await.expect_err("fails");
            me.error_odds(0);
            drop(pin);
            assert!(ticks([&failing, &other]).await? > 5, "a READ that has failed changes nothing");

            let pin = failing.pin(failing.span(OpKind::Other))?;
            me.error_odds(ODDS);
            pin.span().cas(block, 0, 1).await.expect_err("fails");
            me.error_odds(0);
            drop(pin);
            assert!(ticks([&failing, &other]).await? <= 1);

            // Its last word is that it goes, and its slot stays until it was revoked.
            let (client, endpoint) = (failing.client().clone(), failing.endpoint().clone());
            drop(failing);
            client.close(&endpoint).await?;
            assert_eq!(clients(&pool, &other.span(OpKind::Other)).await?.len(), 2);
            other.client().wait_and_evict_expired(other.endpoint()).await?;
            assert_eq!(clients(&pool, &other.span(OpKind::Other)).await?.len(), 1);
            assert!(ticks([&other, &other]).await? > 5);
            Ok::<_, PoolError>(())
        }
    };
    let spawned = sim.spawn(&me, task);
    let outcome = sim.run();
    spawned.take().unwrap_or_else(|| panic!("{outcome}")).expect("nothing else fails");
}
