//! Inserts into a full table, while a client that lives makes the next one and takes very long.

use crate::slotted::kinds::{Kind, join, key};
use farindex_fabric::OpKind;
use farindex_index::root_sync::RootState;
use farindex_index::{Cuckoo, IndexError, Lifecycle, Linear};
use farindex_pool::{Intent, Lock, Pool, PoolOptions, Session};
use farindex_sim::{Config as SimConfig, Sim, Swarm};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);

/// Names itself as the resizer, and sends heartbeats for ten leases.
async fn hold<I: Kind>(pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = I::create(&session, "held", &I::config(1)).await?;
    let (root, span, endpoint) = (index.root(), session.span(OpKind::Other), session.endpoint());
    let cell = session.intent_cell(root.node()).await?;
    let free = span.read(root, 8).await?.words()[0];
    let held = RootState(free).resized_by(session.client().slot()).0;
    let mut batch = span.batch();
    let lock = Lock { at: root, mask: RootState::RESIZER };
    cell.declare(&mut batch, &Intent { index: index.uid(), lock, what: [5, 0, 0, 0] });
    let taken = batch.cas(root, free, held);
    assert_eq!(batch.post().await?.old(taken), free);
    let until = endpoint.now() + LEASE * 10;
    while endpoint.now() < until {
        session.client().tick(endpoint).await?;
        endpoint.sleep(LEASE / 8).await;
    }
    let mut batch = span.batch();
    batch.cas(root, held, free);
    cell.clear(&mut batch);
    batch.post().await?;
    cell.cleared();
    Ok(())
}

/// Sends heartbeats of a client, for five leases.
async fn beat(me: farindex_sim::Client, of: Rc<RefCell<Option<Rc<Session>>>>) -> Result<(), IndexError> {
    let endpoint = me.connect();
    for _ in 0..40 {
        endpoint.sleep(LEASE / 8).await;
        let session = of.borrow().clone();
        if let Some(session) = session {
            session.client().tick(&endpoint).await?;
        }
    }
    Ok(())
}

/// Inserts until an insert fails; returns how long that one took.
async fn fill<I: Kind>(
    pool: Pool,
    me: farindex_sim::Client,
    joined: Rc<RefCell<Option<Rc<Session>>>>,
) -> Result<(Duration, IndexError), IndexError> {
    let session = join(&pool, &me).await?;
    joined.replace(Some(Rc::clone(&session)));
    let endpoint = session.endpoint();
    endpoint.sleep(LEASE / 4).await;
    let index = I::open(&session, "held").await?;
    let mut i = 0;
    loop {
        let began = endpoint.now();
        if let Err(error) = index.insert(&key(i), b"").await {
            return Ok((endpoint.now() - began, error));
        }
        assert!(i < 1000, "the table has grown");
        i += 1;
    }
}

fn insert_fails_in_time<I: Kind>() {
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), lease: LEASE, ..PoolOptions::unseeded() };
    let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = made.expect("done").expect("a pool");
    let (holder, other) = (sim.client(), sim.client());
    let held = sim.spawn(&holder, hold::<I>(pool.clone(), holder.clone()));
    let joined = Rc::default();
    let beats = sim.spawn(&other, beat(other.clone(), Rc::clone(&joined)));
    let filled = sim.spawn(&other, fill::<I>(pool, other.clone(), joined));
    sim.run().assert_done();
    beats.take().expect("it runs").expect("it keeps its lease");
    held.take().expect("it runs").expect("it was held");
    let (took, error) = filled.take().expect("it runs").expect("it was opened");
    assert!(matches!(error, IndexError::Locked { .. }), "{error}");
    assert!((LEASE * 2..LEASE * 3).contains(&took), "{took:?}");
}

#[test]
fn linear_insert_does_not_wait_for_ever_for_a_larger_table() {
    insert_fails_in_time::<Linear>();
}

#[test]
fn cuckoo_insert_does_not_wait_for_ever_for_a_larger_table() {
    insert_fails_in_time::<Cuckoo>();
}
