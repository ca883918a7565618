//! A client crashes while it moves records to a larger table, and another one walks over both tables. Chance hardly ever brings
//! a crash in the midst of one copy and a walk right behind it (docs/bugs/154).

use crate::index_under_test::NAME;
use farindex_index::audit::Damage;
use farindex_index::cuckoo::Config;
use farindex_index::{Cuckoo, IndexError, Lifecycle, PointIndex, PoolIndex};
use farindex_pool::{Client, Pool, PoolOptions, Session};
use farindex_sim::{Config as SimConfig, CrashOutcome, ODDS, Sim, Swarm};
use std::rc::Rc;
use std::time::Duration;

/// Records that lie in their slots: so many fill the first table and begin the next.
const KEYS: u64 = 120;
const VALUE: &[u8] = b"ten bytes.";
/// As many records go before the table grows.
const BEFORE: u64 = 44;
/// The crash comes within so many verbs after them.
const VERBS: u64 = 400;

async fn join(pool: &Pool, me: &farindex_sim::Client) -> Result<Rc<Session>, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}

/// Fills the table until it grows, and crashes somewhere there.
async fn fill(pool: Pool, me: farindex_sim::Client, verb: u64) -> Result<(), IndexError> {
    let session = join(&pool, &me).await?;
    let config = Config { slots: 1, width: 32, associativity: 1, threshold: 0.75, ..Config::default() };
    let index = Cuckoo::create(&session, NAME, &config).await?;
    for key in 0..KEYS {
        if key == BEFORE {
            me.crash_at(me.verbs() + verb, CrashOutcome::Drawn);
        }
        index.insert(&key.to_le_bytes(), VALUE).await?;
    }
    Ok(())
}

/// Visits all entries; damage is an error.
async fn walk(pool: Pool, me: farindex_sim::Client) -> Result<u64, IndexError> {
    let session = join(&pool, &me).await?;
    let index = Cuckoo::open(&session, NAME).await?;
    index.visit(async |_, _| Ok(()), &mut Damage::fail).await
}

/// Plays it, and says what the walk found. Leases are long, so that nobody repairs anything meanwhile.
pub(super) fn play(seed: u64) -> Option<String> {
    // Each WRITE takes effect in pieces that are far apart.
    let swarm = Swarm { split: ODDS, tear: ODDS, pieces: 4, gap_ns: 2000, ..Swarm::calm() };
    let sim = Sim::new(seed, SimConfig { node_len: 4 << 20, swarm: Some(swarm), ..SimConfig::default() }).ok()?;
    let (harness, fabric) = (sim.harness(), sim.fabric());
    let options =
        PoolOptions { chunk_size: Some(16 << 10), lease: Duration::from_secs(120), ..PoolOptions::unseeded() };
    let made = sim.block_on(async move { Pool::create(fabric, &harness.connect(), &options).await });
    let pool = made.ok()?.ok()?;
    let (mover, walker) = (sim.client(), sim.client());
    drop(sim.spawn(&mover, fill(pool.clone(), mover.clone(), 1 + seed % VERBS)));
    let ended = sim.run();
    if !ended.is_done() {
        return Some(ended.to_string());
    }
    let walked = sim.spawn(&walker, walk(pool, walker.clone()));
    let ended = sim.run();
    match walked.take() {
        Some(Ok(_)) => None,
        Some(Err(error)) => Some(error.to_string()),
        None => Some(ended.to_string()),
    }
}
