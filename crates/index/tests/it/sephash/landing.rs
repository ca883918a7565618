//! Slots that a crashed client has taken and has not landed.

use farindex_fabric::{NodeId, OpKind};
use farindex_index::audit::Damage;
use farindex_index::sephash::Config;
use farindex_index::{IndexError, Insert, Lifecycle, PointIndex, PoolIndex, SepHash};
use farindex_pool::{Client, Pool, PoolOptions, Session, marks};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use farindex_testkit::is_thorough;
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

/// A world with an empty index in a pool.
fn world(node_len: u64, cur_bytes: u64) -> (Sim, Pool) {
    let config = SimConfig { node_len, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), lease: LEASE, ..PoolOptions::unseeded() };
    let made = sim.block_on(async move {
        let endpoint = harness.connect();
        let pool = Pool::create(fabric, &endpoint, &options).await?;
        let client = Client::register(&pool, harness.identity(), &endpoint).await?;
        let session = Rc::new(client.session(endpoint.clone()));
        let config = Config { initial_depth: 0, cur_bytes, ..Config::default() };
        drop(SepHash::create(&session, "landing", &config).await?);
        drop(session);
        client.close(&endpoint).await?;
        Ok::<_, IndexError>(pool)
    });
    (sim, made.expect("done").expect("a pool"))
}

/// Crashes at this verb; returns whether it got that far, and the marks of an insert of another client.
fn crashed_at(verb: u64) -> (bool, marks::Marks) {
    let (sim, pool) = world(4 << 20, Config::default().cur_bytes);
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

/// Inserts so many keys, and crashes at this verb of one more.
async fn crash_behind(pool: Pool, me: farindex_sim::Client, keys: u8, verb: u64) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = SepHash::open(&session, "landing").await?;
    for key in 0..keys {
        index.insert(&[key], b"").await?;
    }
    me.crash_at(me.verbs() + verb, CrashOutcome::Prefix);
    index.insert(&[keys], b"").await?;
    me.crash_at(u64::MAX, CrashOutcome::Lost);
    Ok(())
}

/// Takes all memory of the pool, and crashes.
async fn fill(pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let span = session.span(OpKind::Other);
    for bytes in [16 << 10, 1 << 10, 64] {
        while session.alloc_now(&span, NodeId::new(0), bytes).await.is_ok() {}
    }
    me.crash(CrashOutcome::Landed);
    session.endpoint().sleep(LEASE).await;
    Ok(())
}

/// Recovers the index, and crashes at this verb.
async fn recover(pool: Pool, me: farindex_sim::Client, verb: u64) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = SepHash::open(&session, "landing").await?;
    me.crash_at(me.verbs() + verb, CrashOutcome::Prefix);
    index.recover().await?;
    me.crash_at(u64::MAX, CrashOutcome::Lost);
    Ok(())
}

/// Recovers the index; returns the keys that a walk finds and a get does not.
async fn missed(pool: Pool, me: farindex_sim::Client) -> Result<Vec<Vec<u8>>, IndexError> {
    let session = join(&pool, &me).await?;
    let index = SepHash::open(&session, "landing").await?;
    index.recover().await?;
    let mut keys = Vec::new();
    let each = async |key: &[u8], _: farindex_index::Value| {
        keys.push(key.to_vec());
        Ok(())
    };
    index.visit(each, &mut Damage::fail).await?;
    let mut missed = Vec::new();
    for key in keys {
        if index.get(&key).await?.is_none() {
            missed.push(key);
        }
    }
    Ok(missed)
}

/// A client crashes while it inserts into the last slot of a segment, and the next one while it lands that slot. The pool is full,
/// so the segment cannot be merged, and is restored. Whatever has landed is found then.
#[test]
fn a_last_slot_that_two_clients_have_not_landed_is_found_in_a_full_pool() {
    let mut restored = 0;
    let all = if is_thorough() { 5..10 } else { 6..7 };
    for (keys, first) in all.flat_map(|keys| (1..12).map(move |verb| (keys, verb))) {
        for second in 1.. {
            let (sim, pool) = world(512 << 10, 64);
            let [one, two, three, four] = std::array::from_fn(|_| sim.client());
            drop(sim.spawn(&one, crash_behind(pool.clone(), one.clone(), keys, first)));
            sim.run().assert_done();
            drop(sim.spawn(&two, fill(pool.clone(), two.clone())));
            sim.run().assert_done();
            drop(sim.spawn(&three, recover(pool.clone(), three.clone(), second)));
            sim.run().assert_done();
            marks::take();
            let missed = sim.spawn(&four, missed(pool, four.clone()));
            sim.run().assert_done();
            assert_eq!(missed.take().expect("it runs"), Ok(vec![]), "{keys} keys, verbs {first} and {second}");
            restored += usize::from(marks::take().contains_key("sephash recovery: no room to merge"));
            if !one.has_crashed() || !three.has_crashed() {
                break;
            }
        }
    }
    println!("{restored} segments restored");
    assert!(restored > 0, "no segment was restored");
}
