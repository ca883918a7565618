//! Slots that a crashed client has taken and has not landed.

use farindex_fabric::OpKind;
use farindex_index::sephash::Config;
use farindex_index::{IndexError, Insert, Lifecycle, PointIndex, PoolIndex, SepHash};
use farindex_pool::{Client, Pool, PoolOptions, Session, marks};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use std::rc::Rc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);
/// The mark of a wait for the epoch that has begun again.
const AGAIN: &str = "sephash: several crashed clients delay the epoch";

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<Rc<Session>, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}

/// Inserts two keys, and crashes at this verb of the second one.
async fn crash_inserting(pool: Pool, me: farindex_sim::Client, verb: u64) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = SepHash::open(&session, "landing").await?;
    assert_eq!(index.insert(b"first", b"").await?, Insert::Inserted);
    session.endpoint().sleep(LEASE / 32).await;
    me.crash_at(me.verbs() + verb, CrashOutcome::Prefix);
    index.insert(b"second", b"").await?;
    me.crash_at(u64::MAX, CrashOutcome::Lost);
    Ok(())
}

/// Is pinned, and sends heartbeats, for nearly three leases; and crashes then.
async fn delay(pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
    // In a later slot than the other one: a tick evicts the first client that delays the epoch.
    me.connect().sleep(LEASE / 64).await;
    let session = join(&pool, &me).await?;
    let _pin = session.pin(session.span(OpKind::Other))?;
    for _ in 0..23 {
        session.client().tick(session.endpoint()).await?;
        session.endpoint().sleep(LEASE / 8).await;
    }
    me.crash(CrashOutcome::Landed);
    session.endpoint().sleep(LEASE).await;
    Ok(())
}

async fn insert(pool: Pool, me: farindex_sim::Client) -> Result<Insert, IndexError> {
    let session = join(&pool, &me).await?;
    session.endpoint().sleep(LEASE / 16).await;
    let index = SepHash::open(&session, "landing").await?;
    index.insert(b"third", b"").await
}

/// Crashes at this verb; returns whether it got that far, and the marks of an insert of another client.
fn crashed_at(verb: u64) -> (bool, marks::Marks) {
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), lease: LEASE, ..PoolOptions::unseeded() };
    let made = sim.block_on(async move {
        let endpoint = harness.connect();
        let pool = Pool::create(fabric, &endpoint, &options).await?;
        let client = Client::register(&pool, harness.identity(), &endpoint).await?;
        let session = Rc::new(client.session(endpoint.clone()));
        drop(SepHash::create(&session, "landing", &Config { initial_depth: 0, ..Config::default() }).await?);
        drop(session);
        client.close(&endpoint).await?;
        Ok::<_, IndexError>(pool)
    });
    let pool = made.expect("done").expect("a pool");
    let (crashing, delaying, other) = (sim.client(), sim.client(), sim.client());
    sim.spawn(&delaying, delay(pool.clone(), delaying.clone()));
    sim.spawn(&crashing, crash_inserting(pool.clone(), crashing.clone(), verb));
    marks::take();
    let inserted = sim.spawn(&other, insert(pool, other.clone()));
    sim.run().assert_done();
    let inserted = inserted.take().expect("it runs");
    assert_eq!(inserted, Ok(Insert::Inserted), "verb {verb}");
    (crashing.has_crashed(), marks::take())
}

/// A client crashes between taking a slot and landing it. Another client, which was pinned all the time, crashes later,
/// so that the epoch stands still for longer than three leases: docs/bugs/172.
#[test]
fn a_slot_is_landed_after_clients_that_crash_one_after_the_other() {
    let mut waited = 0;
    for verb in 1.. {
        let (crashed, marks) = crashed_at(verb);
        if !crashed {
            break;
        }
        waited += usize::from(marks.contains_key(AGAIN));
    }
    assert!(waited > 0, "no crash has left a slot");
}
