//! RACE on trial: small segments that are split all the time; as published, with the settings that bring its errors about.

use crate::{Setup, Subject};
use farindex_index::Race;
use farindex_index::race::{Config, Variant};
use farindex_sim::Dice;

/// Many who put keys of their own into a small table: somebody comes by whatever is split, at every moment of that.
pub fn crowded() -> Setup {
    let (hot_keys, crowd_keys, cold_keys) = ((1, 3), (0, 0), (100, 250));
    let (clients, coroutines, operations) = ((3, 5), (3, 6), (10, 30));
    Setup { clients, coroutines, operations, hot_keys, crowd_keys, cold_keys, overflowing: 0, ..Setup::default() }
}

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
    /// A table that is large enough for a few keys from the beginning, and so small that others change what an insert chooses its
    /// slot by: two inserts of a key that see the same choose the same slot.
    pub fn still(variant: Variant) -> Self {
        RaceUnderTest { config: Config { initial_depth: 1, groups: 1, variant, ..Config::default() }, grows: false }
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
    use super::{RaceUnderTest, crowded};
    use crate::cluster::tearing;
    use crate::convictions::Case;
    use crate::shard::come_and_go;
    use crate::subject::NAME;
    use crate::{Setup, run_seed};
    use farindex_fabric::OpKind;
    use farindex_index::faults::{Fault, plant};
    use farindex_index::race::{Config, Variant};
    use farindex_index::{HashIndex, IndexError, PoolIndex, Race};
    use farindex_pool::audit::Audit;
    use farindex_pool::{Client, Pool, PoolOptions, faults as pool};
    use farindex_sim::{Config as SimConfig, Dice, ODDS, Sim};
    use std::pin::Pin;
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
            let found = line(seed, &crowded(), &RaceUnderTest::repaired(), |_| true);
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

    /// How many times something was wrong.
    type Count<'a> = Pin<Box<dyn Future<Output = Result<u64, IndexError>> + 'a>>;
    /// What each client does: its index, which one it is, the seed.
    type Work = for<'a> fn(&'a Race, u64, u64) -> Count<'a>;
    /// What is looked at when nobody is at work any more.
    type Look = for<'a> fn(&'a Race) -> Count<'a>;

    async fn work(pool: Pool, me: farindex_sim::Client, client: u64, seed: u64, work: Work) -> Result<u64, IndexError> {
        let index = open(&pool, &me, None).await?;
        work(&index, client, seed).await
    }

    /// Lets all clients work on the smallest table, and looks when they have ended.
    fn together(seed: u64, variant: Variant, of_each: Work, look: Look) -> Result<u64, String> {
        let mut dice = Dice::new(seed, CLIENTS);
        let swarm = dice.chance(ODDS / 2).then(|| tearing(&mut dice));
        let config = SimConfig { node_len: 4 << 20, swarm, ..SimConfig::default() };
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
        let begin = |client| {
            let me = sim.client();
            sim.spawn(&me, work(pool.clone(), me.clone(), client, seed, of_each))
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
        let looked = sim.block_on(async move { look(&open(&pool, &harness, None).await?).await });
        Ok(wrong + looked.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())?)
    }

    /// Adds keys of its own to the table, which grows, and does nothing else.
    async fn add(index: &Race, client: u64) -> Result<u64, IndexError> {
        for i in 0..KEYS {
            index.insert(&key(client, i), b"").await?;
        }
        Ok(0)
    }

    /// The same, and looks all the time whether those that it has added are there.
    async fn add_and_look(index: &Race, client: u64, seed: u64) -> Result<u64, IndexError> {
        let mut dice = Dice::new(seed, client);
        let mut missing = 0;
        for i in 0..KEYS {
            index.insert(&key(client, i), b"").await?;
            for _ in 0..4 {
                missing += u64::from(index.get(&key(client, dice.within(0, i))).await?.is_none());
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

    /// Keys that all clients put in at about the same time, beside some that come and go: two of them see different slots empty.
    async fn meet(index: &Race, client: u64, seed: u64) -> Result<u64, IndexError> {
        let mut dice = Dice::new(seed, client);
        let endpoint = index.session().endpoint();
        for round in 0..ROUNDS {
            let at = ROUND * (round as u32 + 1) + Duration::from_nanos(dice.within(0, 8000));
            endpoint.sleep(at.saturating_sub(endpoint.now())).await;
            let mine = key(client + 1, dice.below(4));
            index.upsert(&mine, b"").await?;
            for _ in 0..2 {
                index.upsert(&key(0, round), b"").await?;
            }
            index.remove(&mine).await?;
        }
        Ok(0)
    }

    async fn count_twins(index: &Race) -> Result<u64, IndexError> {
        let mut audit = Audit::begin(index.session(), &index.session().span(OpKind::Scan)).await?;
        let problems = index.audit(&mut audit, true).await?.problems;
        Ok(problems.iter().filter(|problem| problem.contains("have the same key")).count() as u64)
    }

    fn told(wrong: Result<u64, String>, what: &str) -> Option<String> {
        match wrong {
            Ok(0) => None,
            Ok(count) => Some(format!("{count} {what}")),
            Err(what) => Some(what),
        }
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
            Case::new("RACE: the same: a key has two entries for good", "Variant::Published", |seed, guilty| {
                let meet: Work = |index, client, seed| Box::pin(meet(index, client, seed));
                told(
                    together(seed, variant(guilty), meet, |index| Box::pin(count_twins(index))),
                    "keys have two entries",
                )
            }),
            Case::new("RACE: a split beside inserts: keys are missing", "Variant::Published", |seed, guilty| {
                let add: Work = |index, client, _| Box::pin(add(index, client));
                told(
                    together(seed, variant(guilty), add, |index| Box::pin(count_missing(index))),
                    "of 240 keys are missing",
                )
            }),
            planted(
                "RACE: the directory names a segment that is written later",
                "Fault::EarlySegment",
                Fault::EarlySegment,
            ),
            planted("RACE: an insert into a segment that is being split", "Fault::IntoLocked", Fault::IntoLocked),
            Case::new("RACE: headers prove an absence", "Fault::HeaderProves", |seed, guilty| {
                plant(if guilty { &[Fault::HeaderProves] } else { &[] });
                let look: Work = |index, client, seed| Box::pin(add_and_look(index, client, seed));
                let wrong = together(seed, Variant::Repaired, look, |index| Box::pin(count_missing(index)));
                plant(&[]);
                told(wrong, "times a key was not found that was there")
            }),
            planted("RACE: a slot points to a block that is written later", "Fault::EarlyPointer", Fault::EarlyPointer),
            planted("RACE: a block's WRITE is not awaited", "Fault::UnawaitedBlock", Fault::UnawaitedBlock),
            Case::new("RACE: a takeover that does not revoke first", "pool::Fault::NoRevocation", without_revocation),
            planted("RACE: a block is reused without waiting for readers", "Fault::NoGrace", Fault::NoGrace),
        ]
    }
}
