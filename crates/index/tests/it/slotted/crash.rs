//! A loader crashes, and nothing is repaired: what it has acknowledged is visited once, and counted once.

use crate::slotted::kinds::{Kind, counted, join, key, value, walk};
use farindex_index::Lifecycle;
use farindex_index::{Cuckoo, IndexError, Insert, Linear};
use farindex_pool::{Pool, PoolOptions};
use farindex_sim::{Config as SimConfig, CrashOutcome, Sim, Swarm};
use farindex_testkit::sweep_step;
use std::cell::Cell;
use std::rc::Rc;

const KEYS: u32 = 180;
const CRASH_OUTCOMES: [CrashOutcome; 3] = [CrashOutcome::Landed, CrashOutcome::Lost, CrashOutcome::Prefix];

/// Puts keys in, from the smallest table on.
async fn load<I: Kind>(pool: Pool, me: farindex_sim::Client, acknowledged: Rc<Cell<u32>>) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = I::open(&session, "loaded").await?;
    for i in 0..KEYS {
        assert_eq!(index.insert(&key(i), &value(i, "value")).await?, Insert::Inserted);
        acknowledged.set(i + 1);
    }
    Ok(())
}

async fn look<I: Kind>(pool: Pool, me: farindex_sim::Client, acknowledged: u32) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let index = I::open(&session, "loaded").await?;
    let counted = counted(&index).await?;
    assert!(
        (acknowledged..=acknowledged + 1).contains(&(counted[0] as u32)),
        "{counted:?} entries, {acknowledged} were acknowledged"
    );
    let visited = walk(&index).await?;
    for i in 0..acknowledged {
        assert_eq!(visited.get(&key(i)), Some(&value(i, "value")), "key {i} of {acknowledged}");
    }
    // The next one was not acknowledged.
    let last = visited.get(&key(acknowledged));
    assert!(last.is_none_or(|last| *last == value(acknowledged, "value")));
    let all = visited.len() as u64;
    assert_eq!(all, u64::from(acknowledged) + u64::from(last.is_some()));
    assert_eq!(counted, [all; 2]);
    Ok(())
}

/// Runs a loader that crashes at this verb of its own, if it gets that far.
fn crashes_at<I: Kind>(verb: u64, crash_outcome: CrashOutcome) -> bool {
    let config = SimConfig { node_len: 4 << 20, swarm: Some(Swarm::calm()), ..SimConfig::default() };
    let sim = Sim::new(0, config).expect("a world");
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options = PoolOptions { chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
    let made = sim.block_on(async move {
        let endpoint = harness.connect();
        let pool = Pool::create(fabric, &endpoint, &options).await?;
        let client = farindex_pool::Client::register(&pool, harness.identity(), &endpoint).await?;
        let session = Rc::new(client.session(endpoint.clone()));
        drop(I::create(&session, "loaded", &I::config(1)).await?);
        drop(session);
        client.close(&endpoint).await?;
        Ok::<_, IndexError>(pool)
    });
    let pool = made.expect("done").expect("a pool");
    let (loader, survivor) = (sim.client(), sim.client());
    loader.crash_at(verb, crash_outcome);
    let acknowledged = Rc::new(Cell::new(0));
    let loaded = sim.spawn(&loader, load::<I>(pool.clone(), loader.clone(), Rc::clone(&acknowledged)));
    sim.run().assert_done();
    if let Some(loaded) = loaded.take() {
        loaded.expect("it is loaded");
    }
    let looked = sim.spawn(&survivor, look::<I>(pool, survivor.clone(), acknowledged.get()));
    sim.run().assert_done();
    let looked = looked.take().expect("it runs");
    looked.unwrap_or_else(|error| panic!("verb {verb}, {crash_outcome:?}: {error}"));
    loader.has_crashed()
}

fn walk_visits_each_key_once_after_a_crash<I: Kind>() {
    let every = sweep_step(17);
    for (i, crash_outcome) in CRASH_OUTCOMES.into_iter().enumerate() {
        let verbs = (1 + i as u64..).step_by(every).take_while(|verb| crashes_at::<I>(*verb, crash_outcome));
        assert!(verbs.count() as u64 * every as u64 > u64::from(KEYS), "it did not crash");
    }
}

#[test]
fn linear_walk_visits_each_key_once_after_a_crash() {
    walk_visits_each_key_once_after_a_crash::<Linear>();
}

#[test]
fn cuckoo_walk_visits_each_key_once_after_a_crash() {
    walk_visits_each_key_once_after_a_crash::<Cuckoo>();
}
