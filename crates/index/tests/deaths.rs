//! Clients that die while they create or drop an index, at every verb: the others go on, and nothing is lost for good.

use farindex_fabric::OpKind;
use farindex_index::shard::Config;
use farindex_index::{HashIndex, IndexError, Insert, PoolIndex, Shard};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session, catalog};
use farindex_sim::{Config as SimConfig, Fate, Sim};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(50);

/// What the client is at when it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Create,
    Drop,
}

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<(Arc<Client>, Rc<Session>), IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = Rc::new(client.session(endpoint));
    Ok((client, session))
}

async fn fill(index: &Shard, keys: std::ops::Range<u32>) -> Result<(), IndexError> {
    for key in keys {
        assert_eq!(index.insert(&key.to_le_bytes(), b"value").await?, Insert::Inserted);
    }
    Ok(())
}

async fn make(session: &Rc<Session>, name: &str) -> Result<Shard, IndexError> {
    let config = Config { initial_bits: 1, threshold: 0.3, ..Config::default() };
    Shard::create(session, name, &config).await
}

async fn victim(pool: Pool, me: farindex_sim::Client, doing: Doing) -> Result<(), IndexError> {
    let (_client, session) = join(&pool, &me).await?;
    match doing {
        Doing::Create => fill(&make(&session, "new").await?, 0..20).await,
        Doing::Drop => Shard::drop_index(&session, "old").await,
    }
}

/// Somebody else, who needs the catalog as well.
async fn survivor(pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
    let (client, session) = join(&pool, &me).await?;
    for i in 0..60 {
        client.tick(session.endpoint()).await?;
        session.endpoint().sleep(LEASE / 20).await;
        if i == 2 {
            fill(&make(&session, "other").await?, 0..20).await?;
        }
    }
    drop(session);
    client.close(&me.connect()).await?;
    Ok(())
}

async fn reach_all(session: &Rc<Session>, audit: &mut Audit) -> Result<Vec<String>, IndexError> {
    let span = session.span(OpKind::Maintenance);
    let mut problems = Vec::new();
    for info in catalog::list(session.pool(), &span).await? {
        let index = Shard::open_info(session, &info).await?;
        problems.extend(index.audit(audit, true).await?.problems);
        audit.reach(info.root, session.pool().nodes().len() as u64 * 8, "a list of roots");
    }
    Ok(problems)
}

async fn look_after(pool: Pool, me: farindex_sim::Client, doing: Doing) -> Result<u64, IndexError> {
    let (client, session) = join(&pool, &me).await?;
    client.outlive(session.endpoint()).await?;
    let finished = Shard::finish_drops(&session).await?;
    let span = session.span(OpKind::Maintenance);
    let names: Vec<_> = catalog::list(&pool, &span).await?.into_iter().map(|info| info.name).collect();
    for info in catalog::list(&pool, &span).await? {
        Shard::open_info(&session, &info).await?.mend().await?;
    }
    session.maintain().await?;
    let mut audit = Audit::begin(&session, &span).await?;
    assert_eq!(reach_all(&session, &mut audit).await?, [""; 0]);
    assert!(audit.reclaim(&session, &span).await?.alone);
    let mut audit = Audit::begin(&session, &span).await?;
    reach_all(&session, &mut audit).await?;
    let report = audit.settle(&session, &span).await?;
    assert_eq!((report.problems, report.lost, report.alone), (vec![], 0, true));
    // Whatever has become of it, the name can be used.
    match (doing, names.iter().any(|name| name == "new")) {
        (Doing::Create, true) => Shard::drop_index(&session, "new").await?,
        (Doing::Create, false) => fill(&make(&session, "new").await?, 0..100).await?,
        (Doing::Drop, _) if names.iter().any(|name| name == "old") => {
            let index = Shard::open(&session, "old").await?;
            assert!(index.get(&7_u32.to_le_bytes()).await?.is_some());
        }
        (Doing::Drop, _) => fill(&make(&session, "old").await?, 0..100).await?,
    }
    let other = Shard::open(&session, "other").await?;
    assert!(other.get(&7_u32.to_le_bytes()).await?.is_some());
    Ok(finished)
}

/// `None` if it did not die.
fn run(seed: u64, doing: Doing, verb: u64, fate: Fate) -> Option<u64> {
    let config = SimConfig { nodes: 2, node_len: 2 << 20, tells_deaths: seed % 2 == 1, ..SimConfig::default() };
    let sim = Sim::new(seed, config).expect("a world");
    let harness = sim.harness();
    let fabric = sim.fabric();
    let setting_up = async move {
        let options = PoolOptions { client_slots: 4, lease: LEASE, chunk_size: Some(16 << 10) };
        let pool = Pool::create(fabric, &harness.connect(), &options).await?;
        let (client, session) = join(&pool, &harness).await?;
        fill(&make(&session, "old").await?, 0..150).await?;
        drop(session);
        client.close(&harness.connect()).await?;
        Ok::<_, IndexError>(pool)
    };
    let pool = sim.block_on(setting_up).expect("done").expect("made");
    let (dying, living) = (sim.client(), sim.client());
    dying.die_at(verb, fate);
    let died = sim.spawn(&dying, victim(pool.clone(), dying.clone(), doing));
    let lived = sim.spawn(&living, survivor(pool.clone(), living.clone()));
    sim.run().assert_done();
    sim.settle();
    match lived.take().expect("it survives") {
        Ok(()) => {}
        // So slow a network is beyond so short a lease.
        Err(IndexError::Pool(PoolError::LeaseLost) | IndexError::Fabric(farindex_fabric::FabricError::Revoked)) => {
            return Some(0);
        }
        Err(error) => panic!("seed {seed}, {doing:?}, verb {verb}, {fate:?}: {error}"),
    }
    let is_dead = dying.is_dead();
    drop(died);
    let looked = sim.block_on(look_after(pool, sim.harness(), doing));
    let finished = looked.expect("done").unwrap_or_else(|error| {
        panic!("seed {seed}, {doing:?}, verb {verb}, {fate:?}: {error}");
    });
    is_dead.then_some(finished)
}

#[test]
fn a_death_at_every_verb_of_a_creation_or_a_drop() {
    let every = std::env::var("FARINDEX_EVERY").ok().and_then(|every| every.parse().ok()).unwrap_or(7);
    let (mut deaths, mut finished) = (0, 0);
    for (i, doing) in [Doing::Create, Doing::Drop].into_iter().enumerate() {
        for (j, fate) in [Fate::Lost, Fate::Landed, Fate::Prefix].into_iter().enumerate() {
            for verb in (1 + (i + 3 * j) as u64 % every as u64..400).step_by(every) {
                let Some(drops) = run(verb % 5, doing, verb, fate) else { break };
                deaths += 1;
                finished += drops;
            }
        }
    }
    println!("{deaths} deaths, {finished} drops finished by others");
    assert!(deaths > 20 && finished > 5, "{deaths} deaths, {finished} drops finished by others");
}
