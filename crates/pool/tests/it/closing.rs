//! Closing a client: for how long it waits for other clients, and what it leaks.

use crate::common::{CHUNK, NODE, Rig, Rng, Shuffle, block_on, region, small};
use farindex_fabric::memory::Delivery;
use farindex_fabric::{Executor, Fabric, OpKind};
use farindex_pool::audit::Audit;
use farindex_pool::client::CLOSE_TIMEOUT;
use farindex_pool::layout::HOME;
use farindex_pool::leaks::Leaks;
use farindex_pool::{Client, Intent, Lock, Pool, PoolError, PoolOptions};
use farindex_sim::{Config, Preset, Sim};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: u64 = 64;
const LEASE: Duration = Duration::from_secs(5);

async fn create(me: &farindex_sim::Client, fabric: Arc<farindex_sim::SimFabric>) -> Result<Pool, PoolError> {
    Pool::create(fabric, &me.connect(), &PoolOptions { lease: LEASE, ..PoolOptions::default() }).await
}

/// Registers a client that retires one block, and closes it; returns how long closing took.
async fn retire_and_close(pool: &Pool, me: &farindex_sim::Client) -> Result<Duration, PoolError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = client.session(endpoint.clone());
    let block = session.alloc(&session.span(OpKind::Other), NODE, BYTES).await?;
    session.pin(session.span(OpKind::Other))?.retire(block, BYTES);
    drop(session);
    let began = endpoint.now();
    client.close(&endpoint).await?;
    Ok(endpoint.now() - began)
}

/// Checks that no client is registered, that none has counted a leak, and that nothing is leaked.
async fn check_without_leaks(pool: &Pool, me: &farindex_sim::Client) -> Result<(), PoolError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = client.session(endpoint.clone());
    let span = session.span(OpKind::Other);
    let leaks = Leaks::read(&span).await?;
    let report = Audit::begin(&session, &span).await?.settle(&session, &span).await?;
    assert_eq!((leaks.any(), report.alone, report.lost), (false, true, 0));
    Ok(())
}

/// The network is so slow that the grace period takes longer than [`CLOSE_TIMEOUT`].
#[test]
fn close_waits_for_as_long_as_the_epoch_advances() {
    let model = Preset { read_ns: 300_000_000, ..Preset::shard() };
    let config = Config { node_len: 4 << 20, model: Some(model), ..Config::default() };
    let sim = Sim::new(1, config).expect("a world");
    let (me, fabric) = (sim.harness(), sim.fabric());
    let closed = sim.block_on(async move {
        let pool = create(&me, fabric).await?;
        let took = retire_and_close(&pool, &me).await?;
        check_without_leaks(&pool, &me).await?;
        Ok::<_, PoolError>(took)
    });
    let took = closed.expect("it ends").expect("sound");
    assert!((CLOSE_TIMEOUT..LEASE).contains(&took), "{took:?}");
}

/// An operation of another client lasts longer than [`CLOSE_TIMEOUT`], and that client sends heartbeats.
#[test]
fn close_waits_for_a_live_client_longer_than_for_a_silent_one() {
    let operation = CLOSE_TIMEOUT * 3;
    let sim = Sim::new(1, Config { node_len: 4 << 20, ..Config::default() }).expect("a world");
    let (me, other, fabric) = (sim.harness(), sim.client(), sim.fabric());
    let creating = {
        let me = me.clone();
        async move { create(&me, fabric).await }
    };
    let pool = sim.block_on(creating).expect("it ends").expect("a pool");
    let (pinned, closed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let working = {
        let (pool, other, pinned, closed) = (pool.clone(), other.clone(), Rc::clone(&pinned), Rc::clone(&closed));
        async move {
            let endpoint = other.connect();
            let client = Client::register(&pool, other.identity(), &endpoint).await.expect("registers");
            let session = client.session(endpoint.clone());
            let until = endpoint.now() + operation;
            let mut pin = Some(session.pin(session.span(OpKind::Other)).expect("the lease holds"));
            pinned.set(true);
            while !closed.get() {
                client.tick(&endpoint).await.expect("the lease holds");
                endpoint.sleep(Duration::from_millis(10)).await;
                pin = pin.filter(|_| endpoint.now() < until);
            }
            drop(pin);
            drop(session);
            client.close(&endpoint).await.expect("closes");
            pinned.set(false);
        }
    };
    sim.spawn(&other, working);
    let closing = async move {
        let endpoint = me.connect();
        while !pinned.get() {
            endpoint.sleep(Duration::from_millis(1)).await;
        }
        let took = retire_and_close(&pool, &me).await?;
        closed.set(true);
        while pinned.get() {
            endpoint.sleep(Duration::from_millis(1)).await;
        }
        check_without_leaks(&pool, &me).await?;
        Ok::<_, PoolError>(took)
    };
    let took = sim.block_on(closing).expect("it ends").expect("sound");
    assert!((CLOSE_TIMEOUT * 2..LEASE).contains(&took), "{took:?}");
}

/// A client without heartbeats, on a fabric that cannot tell whether it crashed, delays reclamation. It does not delay
/// the end of another program, which leaks free memory only: the next audit reclaims it.
#[test]
fn close_has_a_time_limit_and_leaks_free_memory_only() {
    let lease = Duration::from_secs(4);
    let rig = Rig::with(1, region(8, 8), &PoolOptions { lease, ..small() });
    let (silent, member) = (rig.join(), rig.join());
    let session = member.session();
    let object = member.alloc(&session, 64).expect("room");
    member.retire(&session, object, 64);
    drop(session);
    let slot = member.client.slot();
    let began = Instant::now();
    member.close();
    let took = began.elapsed();
    assert!((CLOSE_TIMEOUT..CLOSE_TIMEOUT * 2).contains(&took), "{took:?}");
    // It has left, and the other client's lease has not changed.
    silent.tick();
    silent.close();
    let next = rig.join();
    assert_eq!(next.client.slot(), 0, "no other client is registered");
    assert_eq!(rig.peek(rig.pool.geometry(HOME).client(slot), 1)[0] & 0xFF, 0, "its slot is free");
    let session = next.session();
    let span = session.span(OpKind::Maintenance);
    let audit =
        || next.run(async { Audit::begin(&session, &span).await?.settle(&session, &span).await }).expect("an audit");
    let report = audit();
    assert_eq!((report.alone, report.lost), (true, 1));
    let begun = next.run(Audit::begin(&session, &span)).expect("an audit");
    next.run(begun.reclaim(&session, &span)).expect("reclaimed");
    assert_eq!(audit().lost, 0);
}

/// A lock is released, and its intent cleared, by verbs that nobody waits for, on a connection that may not be served. As long as
/// they can land, the slot belongs to the client: others would take the intent for one of a crashed client.
#[test]
fn close_waits_for_an_intent_that_is_being_cleared() {
    for lands in [true, false] {
        let rig = Rig::new(8);
        let member = rig.join();
        let deferred =
            rig.fabric.with_delivery(Delivery::Deferred).connect(member.client.identity()).expect("connects");
        let session = member.client.session(deferred.clone());
        let (at, span) = (rig.pool.geometry(NODE).chunk(NODE, 0), session.span(OpKind::Other));
        let intent = Intent { index: 5, lock: Lock { at, mask: 1 }, what: [1, 0, 0, 0] };
        let cell = block_on(&deferred, session.intent_cell(NODE)).expect("a cell");
        let mut batch = span.batch();
        cell.declare(&mut batch, &intent);
        batch.cas(at, 0, 1);
        block_on(&deferred, batch.post()).expect("locked");
        let mut batch = span.batch();
        batch.cas(at, 1, 0);
        cell.into_transfer().clear_detached(batch);
        drop((span, session));
        let (slot, client) = (rig.pool.geometry(HOME).client(member.client.slot()), member.client);
        if lands {
            let both = Shuffle { endpoints: vec![member.endpoint.clone(), deferred], rng: RefCell::new(Rng::new(1)) };
            Executor::new().block_on(&both, client.close(&member.endpoint)).expect("closes");
        } else {
            block_on(&member.endpoint, client.close(&member.endpoint)).expect("closes");
        }
        let (is_held, is_taken) = (rig.peek(at, 1)[0] == 1, rig.peek(slot, 1)[0] & 0xFF != 0);
        assert_eq!((is_held, is_taken), (!lands, !lands));
    }
}

/// A session retires all memory of a full pool and closes before anything of it is free. Another session of its client finds it.
#[test]
fn a_session_in_a_full_pool_gets_what_a_closed_one_has_retired() {
    let rig = Rig::new(8);
    let member = rig.join();
    let closes = member.session();
    let mut all = Vec::new();
    while let Ok(ptr) = member.alloc(&closes, CHUNK / 2) {
        all.push(ptr);
    }
    assert!(all.len() > 8, "{}", all.len());
    let other = member.session();
    assert!(matches!(member.alloc(&other, CHUNK / 2), Err(PoolError::Full { .. })));
    all.into_iter().for_each(|ptr| member.retire(&closes, ptr, CHUNK / 2));
    drop(closes);
    member.alloc(&other, CHUNK / 2).expect("what the closed session has retired");
}
