//! Scenarios of RACE that chance hardly ever produces: all clients in one table that grows, or at one key.

use crate::cluster::tearing;
use crate::index_under_test::NAME;
use farindex_fabric::OpKind;
use farindex_index::race::{Config, Variant};
use farindex_index::{IndexError, Lifecycle, PointIndex, PoolIndex, Race};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolOptions};
use farindex_sim::{Config as SimConfig, ODDS, Sim, SimRng};
use std::rc::Rc;
use std::time::Duration;

/// What all clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Each adds keys of its own to a table that grows. In the end all are there.
    Grow,
    /// The same, and each looks all the time for those that it has added.
    GrowAndLook,
    /// All insert the same key at about the same time, again and again, while other keys are inserted and removed. In
    /// the end each has one entry.
    SameKey,
}

/// Clients, and keys that each of them adds; nobody else ever does anything with those.
const CLIENTS: u64 = 4;
const KEYS: u64 = 60;
/// Keys that all of them put in, and how long they take for one at least.
const ROUNDS: u64 = 12;
const ROUND: Duration = Duration::from_micros(100);

fn key(client: u64, i: u64) -> [u8; 8] {
    (client << 32 | i).to_le_bytes()
}

async fn open(pool: &Pool, me: &farindex_sim::Client, config: Option<Config>) -> Result<Race, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = Rc::new(client.session(endpoint));
    match config {
        Some(config) => Race::create(&session, NAME, &config).await,
        None => Race::open(&session, NAME).await,
    }
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 3] = [Scenario::Grow, Scenario::GrowAndLook, Scenario::SameKey];

    /// Plays it, and says what was wrong.
    pub fn play(self, seed: u64, variant: Variant) -> Option<String> {
        let what = match self {
            Scenario::Grow | Scenario::GrowAndLook => "times a key was not found that was there",
            Scenario::SameKey => "keys have two entries",
        };
        match self.count(seed, variant) {
            Ok(0) => None,
            Ok(wrong) => Some(format!("{wrong} {what}")),
            Err(error) => Some(error),
        }
    }

    /// Lets all clients work on the smallest table, and looks when they have ended; how many times something was wrong.
    fn count(self, seed: u64, variant: Variant) -> Result<u64, String> {
        let mut rng = SimRng::new(seed, CLIENTS);
        let swarm = rng.chance(ODDS / 2).then(|| tearing(&mut rng));
        let config = SimConfig { node_len: 4 << 20, swarm, ..SimConfig::default() };
        let sim = Sim::new(seed, config).map_err(|error| error.to_string())?;
        let (harness, fabric) = (sim.harness(), sim.fabric());
        let made = sim.block_on(async move {
            let lease = Duration::from_secs(120);
            let options =
                PoolOptions { client_slots: CLIENTS + 2, lease, chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
            let pool = Pool::create(fabric, &harness.connect(), &options).await?;
            let config = Config { initial_depth: 1, groups: 1, variant, ..Config::default() };
            open(&pool, &harness, Some(config)).await?;
            Ok::<_, IndexError>(pool)
        });
        let pool = made.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())?;
        let begin = |client| {
            let me = sim.client();
            sim.spawn(&me, self.part(pool.clone(), me.clone(), client, seed))
        };
        let begun: Vec<_> = (0..CLIENTS).map(begin).collect();
        let ended = sim.run();
        if !ended.is_done() {
            return Err(ended.to_string());
        }
        let mut wrong = 0;
        for task in begun {
            wrong += task.take().ok_or("a client did not come to its end")?.map_err(|error| error.to_string())?;
        }
        sim.settle();
        let harness = sim.harness();
        let looked = sim.block_on(async move { self.look(&open(&pool, &harness, None).await?).await });
        Ok(wrong + looked.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())?)
    }

    /// What one client does.
    async fn part(self, pool: Pool, me: farindex_sim::Client, client: u64, seed: u64) -> Result<u64, IndexError> {
        let index = open(&pool, &me, None).await?;
        let mut rng = SimRng::new(seed, client);
        match self {
            Scenario::Grow => add(&index, client, 0, &mut rng).await,
            Scenario::GrowAndLook => add(&index, client, 4, &mut rng).await,
            Scenario::SameKey => insert_same_keys(&index, client, &mut rng).await.map(|()| 0),
        }
    }

    /// What is looked at when nobody is at work any more.
    async fn look(self, index: &Race) -> Result<u64, IndexError> {
        match self {
            Scenario::Grow | Scenario::GrowAndLook => count_missing(index).await,
            Scenario::SameKey => count_duplicate_keys(index).await,
        }
    }
}

/// Adds keys of its own to the table, and looks for so many of them each time; how many were not found.
async fn add(index: &Race, client: u64, looks: u64, rng: &mut SimRng) -> Result<u64, IndexError> {
    let mut missing = 0;
    for i in 0..KEYS {
        index.insert(&key(client, i), b"").await?;
        for _ in 0..looks {
            missing += u64::from(index.get(&key(client, rng.within(0, i))).await?.is_none());
        }
    }
    Ok(missing)
}

async fn count_missing(index: &Race) -> Result<u64, IndexError> {
    let mut missing = 0;
    for (client, i) in (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |i| (client, i))) {
        missing += u64::from(index.get(&key(client, i)).await?.is_none());
    }
    Ok(missing)
}

/// Inserts keys that all clients insert at about the same time, while others come and go: two clients see different
/// slots empty.
async fn insert_same_keys(index: &Race, client: u64, rng: &mut SimRng) -> Result<(), IndexError> {
    let endpoint = index.session().endpoint();
    for round in 0..ROUNDS {
        let at = ROUND * (round as u32 + 1) + Duration::from_nanos(rng.within(0, 8000));
        endpoint.sleep(at.saturating_sub(endpoint.now())).await;
        let mine = key(client + 1, rng.below(4));
        index.upsert(&mine, b"").await?;
        for _ in 0..2 {
            index.upsert(&key(0, round), b"").await?;
        }
        index.remove(&mine).await?;
    }
    Ok(())
}

async fn count_duplicate_keys(index: &Race) -> Result<u64, IndexError> {
    let mut audit = Audit::begin(index.session(), &index.session().span(OpKind::Scan)).await?;
    let problems = index.audit(&mut audit, true).await?.problems;
    Ok(problems.iter().filter(|problem| problem.contains("have the same key")).count() as u64)
}
