//! Scenarios for the versions by which readers of Sherman's leaves believe what they have read, as published: one client
//! writes, another one reads the same leaf, and every READ is torn.

use crate::cluster::tearing;
use crate::index_under_test::NAME;
use farindex_index::sherman::{Config, Variant};
use farindex_index::{IndexError, Lifecycle, PointIndex, PoolIndex, Sherman};
use farindex_pool::{Client, Pool, PoolOptions};
use farindex_sim::{Config as SimConfig, Sim, SimRng};
use std::rc::Rc;
use std::time::Duration;

/// What the writer does, and which level of versions the reader relies on meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// The value of a key changes, and the key is there all the time. A reader that finds the entry in the middle of its
    /// change skips it.
    ChangedValue,
    /// Two keys take turns in one slot of a leaf. A reader finds both versions of the entry the same, and between them
    /// the key of one entry with the value of another.
    SharedSlot,
    /// Leaves split and merge, and the entries of some keys only move. A reader finds both versions of the leaf the same,
    /// and between them the range before the change with the entries behind it.
    Split,
}

/// Changes by the writer, and lookups by the reader.
const WRITES: u64 = 60;
const READS: u64 = 120;
/// Keys that are there all the time, above those that come and go: the upper half of a leaf moves when it splits.
const STEADY: std::ops::Range<u64> = 100..104;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// The only value of a key, but for that of [`Scenario::ChangedValue`].
fn value(i: u64) -> [u8; 8] {
    (!i).to_be_bytes()
}

async fn open(pool: &Pool, me: &farindex_sim::Client, config: Option<Config>) -> Result<Sherman, IndexError> {
    let endpoint = me.connect();
    let client = Client::register(pool, me.identity(), &endpoint).await?;
    let session = Rc::new(client.session(endpoint));
    match config {
        Some(config) => Sherman::create(&session, NAME, &config).await,
        None => Sherman::open(&session, NAME).await,
    }
}

impl Scenario {
    /// Plays it, and says what was wrong.
    pub fn play(self, seed: u64, variant: Variant) -> Option<String> {
        let what = match self {
            Scenario::ChangedValue | Scenario::Split => "times a key was not found that was there",
            Scenario::SharedSlot => "times a key had the value of another one",
        };
        match self.count(seed, variant) {
            Ok(0) => None,
            Ok(wrong) => Some(format!("{wrong} {what}")),
            Err(error) => Some(error),
        }
    }

    /// Lets both clients work; how many lookups were wrong.
    fn count(self, seed: u64, variant: Variant) -> Result<u64, String> {
        let swarm = Some(tearing(&mut SimRng::new(seed, 0)));
        let config = SimConfig { node_len: 2 << 20, swarm, ..SimConfig::default() };
        let sim = Sim::new(seed, config).map_err(|error| error.to_string())?;
        let (harness, fabric) = (sim.harness(), sim.fabric());
        let made = sim.block_on(async move {
            let lease = Duration::from_secs(120);
            let options = PoolOptions { client_slots: 4, lease, chunk_size: Some(16 << 10), ..PoolOptions::unseeded() };
            let pool = Pool::create(fabric, &harness.connect(), &options).await?;
            let config = Config { leaf_span: 8, inner_span: 8, variant, ..Config::default() };
            let index = open(&pool, &harness, Some(config)).await?;
            for i in STEADY {
                index.insert(&key(i), &value(i)).await?;
            }
            Ok::<_, IndexError>(pool)
        });
        let pool = made.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())?;
        let (writer, reader) = (sim.client(), sim.client());
        let wrote = sim.spawn(&writer, self.write(pool.clone(), writer.clone()));
        let read = sim.spawn(&reader, self.read(pool, reader.clone(), seed));
        let ended = sim.run();
        if !ended.is_done() {
            return Err(ended.to_string());
        }
        let ended = || "a client did not come to its end".to_owned();
        wrote.take().ok_or_else(ended)?.map_err(|error| error.to_string())?;
        read.take().ok_or_else(ended)?.map_err(|error| error.to_string())
    }

    async fn write(self, pool: Pool, me: farindex_sim::Client) -> Result<(), IndexError> {
        let index = open(&pool, &me, None).await?;
        for i in 0..WRITES {
            match self {
                Scenario::ChangedValue => drop(index.update(&key(STEADY.start), &value(i)).await?),
                Scenario::SharedSlot => {
                    index.insert(&key(i % 2), &value(i % 2)).await?;
                    index.remove(&key(i % 2)).await?;
                }
                // Ten keys more split the leaf, and ten keys less merge both again.
                Scenario::Split if i / 10 % 2 == 0 => drop(index.insert(&key(i % 10), b"").await?),
                Scenario::Split => drop(index.remove(&key(i % 10)).await?),
            }
        }
        Ok(())
    }

    async fn read(self, pool: Pool, me: farindex_sim::Client, seed: u64) -> Result<u64, IndexError> {
        let index = open(&pool, &me, None).await?;
        let (mut rng, mut wrong) = (SimRng::new(seed, 1), 0);
        for _ in 0..READS {
            let i = match self {
                Scenario::ChangedValue => STEADY.start,
                Scenario::SharedSlot => rng.below(2),
                Scenario::Split => rng.within(STEADY.start, STEADY.end - 1),
            };
            let found = index.get(&key(i)).await?;
            wrong += u64::from(match self {
                Scenario::SharedSlot => found.is_some_and(|found| *found != value(i)),
                Scenario::ChangedValue | Scenario::Split => found.is_none(),
            });
        }
        Ok(wrong)
    }
}
