//! RACE on trial: small segments that are split all the time; as published, with the settings that bring its errors about.

use crate::Subject;
use farindex_index::Race;
use farindex_index::race::{Config, Variant};
use farindex_sim::Dice;

/// RACE with settings of the seed.
#[derive(Debug, Clone)]
pub struct RaceUnderTest {
    config: Config,
    /// Is the table so small that it grows?
    grows: bool,
}

impl RaceUnderTest {
    /// As shipped, growing.
    pub fn repaired() -> Self {
        RaceUnderTest { config: Config::default(), grows: true }
    }
    /// As published, growing.
    pub fn published() -> Self {
        RaceUnderTest { config: Config { variant: Variant::Published, ..Config::default() }, grows: true }
    }
    /// A table that is large enough from the beginning.
    pub fn still(variant: Variant) -> Self {
        RaceUnderTest { config: Config { initial_depth: 3, groups: 8, variant, ..Config::default() }, grows: false }
    }
}

impl Subject for RaceUnderTest {
    type Index = Race;

    fn draw(&self, dice: &mut Dice) -> Self {
        if !self.grows {
            return self.clone();
        }
        let config = Config {
            initial_depth: dice.pick(&[1, 1, 1, 2, 4]).unwrap_or(1),
            groups: dice.pick(&[1, 1, 1, 2, 4]).unwrap_or(1),
            ..self.config
        };
        RaceUnderTest { config, ..*self }
    }
    fn config(&self) -> Config {
        self.config
    }
    /// A copy of the directory may be lost, or have been behind all the time.
    fn shake(&self, index: &Race, dice: &mut Dice) {
        if let Some(table) = dice.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) {
            table.directory().mirror().forget();
        }
    }
    fn crowd_bits(&self, dice: &mut Dice) -> u32 {
        dice.pick(&[0, 2, 4, 5, 7]).unwrap_or_default()
    }
}

#[cfg(feature = "marks")]
pub use faults::cases;

#[cfg(feature = "marks")]
mod faults {
    use super::RaceUnderTest;
    use crate::convictions::Case;
    use crate::shard::come_and_go;
    use crate::subject::NAME;
    use crate::{Setup, run_seed};
    use farindex_index::faults::{Fault, plant};
    use farindex_index::race::{Config, Variant};
    use farindex_index::{HashIndex, IndexError, PoolIndex, Race};
    use farindex_pool::{Client, Pool, PoolOptions, faults as pool};
    use farindex_sim::{Config as SimConfig, Sim};
    use std::rc::Rc;
    use std::time::Duration;

    /// The first line that tells of something like this.
    fn line(seed: u64, setup: &Setup, subject: &RaceUnderTest, of: impl Fn(&str) -> bool) -> Option<String> {
        let report = run_seed(seed, setup, subject);
        let lines = report.failures.iter().flat_map(|failure| failure.lines());
        lines.map(str::trim).find(|line| of(line)).map(str::to_owned)
    }

    fn variant(guilty: bool) -> Variant {
        if guilty { Variant::Published } else { Variant::Repaired }
    }

    fn planted(name: &'static str, how: &'static str, fault: Fault) -> Case {
        Case::new(name, how, move |seed, guilty| {
            plant(if guilty { std::slice::from_ref(&fault) } else { &[] });
            let found = line(seed, &Setup::default(), &RaceUnderTest::repaired(), |_| true);
            plant(&[]);
            found
        })
    }

    /// RACE on a pool that does not shut out who has expired before it is taken over from.
    fn without_revocation(seed: u64, guilty: bool) -> Option<String> {
        pool::plant(if guilty { &[pool::Fault::NoRevocation] } else { &[] });
        let found = line(seed, &Setup::deadly(), &RaceUnderTest::repaired(), |_| true);
        pool::plant(&[]);
        found
    }

    /// Clients, and keys that each of them adds; nobody else ever does anything with those.
    const CLIENTS: u64 = 4;
    const KEYS: u64 = 60;

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

    async fn add(pool: Pool, me: farindex_sim::Client, client: u64) -> Result<(), IndexError> {
        let index = open(&pool, &me, None).await?;
        for i in 0..KEYS {
            index.insert(&key(client, i), b"").await?;
        }
        Ok(())
    }

    /// Adds keys to a table that grows, and looks for all of them when nobody is at work any more.
    fn look_for_all(seed: u64, variant: Variant) -> Result<u64, String> {
        let config = SimConfig { node_len: 4 << 20, ..SimConfig::default() };
        let sim = Sim::new(seed, config).map_err(|error| error.to_string())?;
        let (harness, fabric) = (sim.harness(), sim.fabric());
        let made = sim.block_on(async move {
            let lease = Duration::from_secs(120);
            let options = PoolOptions { client_slots: CLIENTS + 2, lease, chunk_size: Some(16 << 10) };
            let pool = Pool::create(fabric, &harness.connect(), &options).await?;
            let config = Config { initial_depth: 1, groups: 1, variant, ..Config::default() };
            open(&pool, &harness, Some(config)).await?;
            Ok::<_, IndexError>(pool)
        });
        let pool = made.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())?;
        let adding = |client| {
            let me = sim.client();
            sim.spawn(&me, add(pool.clone(), me.clone(), client))
        };
        let added: Vec<_> = (0..CLIENTS).map(adding).collect();
        let ended = sim.run();
        if !ended.is_done() {
            return Err(ended.to_string());
        }
        for task in added {
            task.take().ok_or("a client did not come to its end")?.map_err(|error| error.to_string())?;
        }
        sim.settle();
        let harness = sim.harness();
        let looked = sim.block_on(async move {
            let index = open(&pool, &harness, None).await?;
            let mut missing = 0;
            for (client, i) in (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |i| (client, i))) {
                missing += u64::from(index.get(&key(client, i)).await?.is_none());
            }
            Ok::<_, IndexError>(missing)
        });
        looked.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())
    }

    /// All of RACE's.
    pub fn cases() -> Vec<Case> {
        let still = |guilty| RaceUnderTest::still(variant(guilty));
        vec![
            Case::new(
                "RACE: an insert is live before it looks for others",
                "Variant::Published",
                move |seed, guilty| {
                    line(seed, &come_and_go(), &still(guilty), |line| line.contains("not linearizable"))
                },
            ),
            Case::new("RACE: the same: a key has two entries for good", "Variant::Published", move |seed, guilty| {
                line(seed, &come_and_go(), &still(guilty), |line| line.contains("have the same key"))
            }),
            Case::new("RACE: a split beside inserts: keys are missing", "Variant::Published", |seed, guilty| {
                match look_for_all(seed, variant(guilty)) {
                    Ok(0) => None,
                    Ok(missing) => Some(format!("{missing} of {} keys are missing", CLIENTS * KEYS)),
                    Err(what) => Some(what),
                }
            }),
            planted(
                "RACE: the directory names a segment that is written later",
                "Fault::EarlySegment",
                Fault::EarlySegment,
            ),
            planted("RACE: a slot points to a block that is written later", "Fault::EarlyPointer", Fault::EarlyPointer),
            planted("RACE: a block's WRITE is not awaited", "Fault::UnawaitedBlock", Fault::UnawaitedBlock),
            Case::new("RACE: a takeover that does not revoke first", "pool::Fault::NoRevocation", without_revocation),
            planted("RACE: a block is reused without waiting for readers", "Fault::NoGrace", Fault::NoGrace),
        ]
    }
}
