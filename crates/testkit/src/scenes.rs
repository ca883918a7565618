//! Scenes: moments that a fault needs, prepared, where workloads drawn at random meet them once in ten thousand seeds or
//! never. Everything else is the adversary's, as ever.
//!
//! A table of [`BUCKETS`] level-1 buckets, each about a fifth full, is on a simulated cluster whose READs are torn and take
//! as long as whole steps of others. Each scene says what its clients do, and what must hold in the end.

use crate::cluster::tearing;
use farindex_fabric::{Endpoint, OpKind};
use farindex_index::shard::bucket::Level;
use farindex_index::shard::slot::Slot;
use farindex_index::shard::{Config, Shard};
use farindex_index::{HashIndex, IndexError, Insert, PoolIndex};
use farindex_pool::audit::Audit;
use farindex_pool::{Client, Pool, PoolError, PoolOptions, Session};
use farindex_sim::{Config as SimConfig, Dice, ODDS, Sim};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BUCKETS: u64 = 8;
const PRELOADED: u32 = 100;
/// Stream of draws: beside those of the cluster.
const SCENE: u64 = 5000;

type Failures = Rc<RefCell<Vec<String>>>;

/// One client's hands.
struct Hand {
    client: Arc<Client>,
    endpoint: Endpoint,
    index: Shard,
}

fn key(i: u32) -> [u8; 4] {
    i.to_le_bytes()
}

fn value(i: u32) -> [u8; 40] {
    [i as u8; 40]
}

impl Hand {
    async fn of(pool: &Pool, me: &farindex_sim::Client) -> Result<Hand, IndexError> {
        let endpoint = me.connect();
        let client = Client::register(pool, me.identity(), &endpoint).await?;
        let session = Rc::new(client.session(endpoint.clone()));
        let index = Shard::open(&session, "scene").await?;
        Ok(Hand { client, endpoint, index })
    }

    fn session(&self) -> &Rc<Session> {
        self.index.session()
    }

    /// Makes the table grow by one segment.
    async fn grow(&self, spare: u32) -> Result<(), IndexError> {
        let table = &self.index.tables()[0];
        let slots = table.geometry().slots() as i64;
        table.note(slots.saturating_sub_unsigned(table.count()));
        self.index.insert(&key(spare), &value(spare)).await?;
        Ok(())
    }

    async fn leave(self) -> Result<(), IndexError> {
        let Hand { client, endpoint, index } = self;
        drop(index);
        Ok(client.close(&endpoint).await?)
    }
}

/// The stage of a scene.
struct Stage {
    sim: Sim,
    pool: Pool,
    dice: Dice,
    failures: Failures,
}

impl Stage {
    /// Sets the table up.
    fn new(seed: u64) -> Result<Stage, String> {
        let mut dice = Dice::new(seed, SCENE);
        let swarm = tearing(&mut dice);
        let sim = Sim::new(seed, SimConfig { swarm: Some(swarm), node_len: 2 << 20, ..SimConfig::default() });
        let sim = sim.map_err(|error| error.to_string())?;
        let (fabric, harness) = (sim.fabric(), sim.harness());
        let made = sim.block_on(async move {
            let options = PoolOptions { client_slots: 8, lease: Duration::from_secs(120), chunk_size: Some(16 << 10) };
            let endpoint = harness.connect();
            let pool = Pool::create(fabric, &endpoint, &options).await?;
            let client = Client::register(&pool, harness.identity(), &endpoint).await?;
            let session = Rc::new(client.session(endpoint.clone()));
            let bits = u64::from(BUCKETS.trailing_zeros());
            let config = Config { initial_bits: bits, threshold: 1.0, alpha: 0.0, ..Config::default() };
            let index = Shard::create(&session, "scene", &config).await?;
            for i in 0..PRELOADED {
                index.insert(&key(i), &value(i)).await?;
            }
            drop((index, session));
            client.close(&endpoint).await?;
            Ok::<_, IndexError>(pool)
        });
        let pool = made.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())?;
        Ok(Stage { sim, pool, dice, failures: Failures::default() })
    }

    /// The harness does something, while nobody else is there.
    fn alone<T: 'static, F: Future<Output = Result<T, IndexError>> + 'static>(
        &self,
        what: impl FnOnce(Pool, farindex_sim::Client) -> F,
    ) -> Result<T, String> {
        let done = self.sim.block_on(what(self.pool.clone(), self.sim.harness()));
        done.map_err(|ended| ended.to_string())?.map_err(|error| error.to_string())
    }

    /// One more client, which comes a little later than the others.
    fn act<F>(&mut self, freezes: u32, what: impl FnOnce(Hand) -> F + 'static)
    where
        F: Future<Output = Result<Hand, IndexError>> + 'static,
    {
        let (me, pool) = (self.sim.client(), self.pool.clone());
        me.freezes(freezes, 17);
        let (actor, failures) = (me.clone(), Rc::clone(&self.failures));
        let late = Duration::from_nanos(self.dice.tail(17));
        self.sim.spawn(&me, async move {
            let act = async {
                let hand = Hand::of(&pool, &actor).await?;
                hand.endpoint.sleep(late).await;
                what(hand).await?.leave().await
            };
            if let Err(error) = act.await {
                failures.borrow_mut().push(error.to_string());
            }
        });
    }

    /// Lets everybody act, and looks at the table when all is over: what was wrong first.
    fn play(self, acknowledged: Rc<RefCell<Vec<u32>>>) -> Option<String> {
        let ended = self.sim.run();
        if !ended.is_done() {
            return Some(ended.to_string());
        }
        self.sim.settle();
        let looked = self.alone(async move |pool, harness| {
            let hand = Hand::of(&pool, &harness).await?;
            let mut problems = Vec::new();
            let acknowledged = acknowledged.borrow().clone();
            for i in (0..PRELOADED).chain(acknowledged) {
                match hand.index.get(&key(i)).await? {
                    Some(found) if *found == value(i) => {}
                    found => problems.push(format!("key {i} was put in, and now there is {found:?}")),
                }
            }
            let mut audit = Audit::begin(hand.session(), &hand.session().span(OpKind::Other)).await?;
            problems.extend(hand.index.audit(&mut audit, true).await?.problems);
            hand.leave().await?;
            Ok(problems)
        });
        let mut failures = self.failures.take();
        match looked {
            Ok(problems) => failures.extend(problems),
            Err(error) => failures.push(error),
        }
        failures.into_iter().next()
    }
}

/// A client takes the second fresh slot of every bucket for the first one, as a READ that is torn by a recycling may show
/// it, bars it, and loses the lock; then the table grows, and the buckets are split, while slow clients insert that have
/// seen the first one fresh.
pub(crate) fn barred_behind_a_fresh_slot(seed: u64) -> Option<String> {
    let mut stage = match Stage::new(seed) {
        Ok(stage) => stage,
        Err(what) => return Some(what),
    };
    let acknowledged: Rc<RefCell<Vec<u32>>> = Rc::default();
    for writer in 1..=4 {
        let acknowledged = Rc::clone(&acknowledged);
        stage.act(ODDS / 8, move |hand| async move {
            for i in 0..12 {
                let i = writer * 1000 + i;
                if hand.index.insert(&key(i), &value(i)).await? == Insert::Inserted {
                    acknowledged.borrow_mut().push(i);
                }
            }
            Ok(hand)
        });
    }
    stage.act(0, |hand| async move {
        let span = hand.session().span(OpKind::Other);
        let geometry = hand.index.tables()[0].geometry();
        for bucket in 0..BUCKETS {
            let at = geometry.bucket(Level::One, bucket);
            let words = span.read(at, Level::One.bytes()).await?;
            let mut fresh = words.words().iter().enumerate().filter_map(|(i, word)| match Slot::decode(*word) {
                Slot::Fresh(of, stamp) if i > 7 => Some((i, *word, Slot::Barrier(of, stamp).over(*word))),
                _ => None,
            });
            if let Some((i, word, barrier)) = fresh.nth(1) {
                span.cas(at.add(i as u64 * 8), word, barrier).await?;
            }
        }
        hand.grow(9000).await?;
        for i in 0..PRELOADED {
            hand.index.get(&key(i)).await?;
        }
        Ok(hand)
    });
    stage.play(acknowledged)
}

/// The table has grown, everybody knows it, and no bucket has been split: so the splits free at once what they vacate.
/// Clients that all insert the same keys come.
pub(crate) fn the_same_keys_amid_splits(seed: u64) -> Option<String> {
    let mut stage = match Stage::new(seed) {
        Ok(stage) => stage,
        Err(what) => return Some(what),
    };
    let grown = stage.alone(async |pool, harness| {
        let hand = Hand::of(&pool, &harness).await?;
        hand.grow(9000).await?;
        for _ in 0..6 {
            hand.client.tick(&hand.endpoint).await?;
        }
        hand.leave().await
    });
    if let Err(what) = grown {
        return Some(what);
    }
    let acknowledged: Rc<RefCell<Vec<u32>>> = Rc::default();
    for _ in 0..4 {
        let acknowledged = Rc::clone(&acknowledged);
        stage.act(0, move |hand| async move {
            for i in 1000..1024 {
                if hand.index.insert(&key(i), &value(i)).await? == Insert::Inserted {
                    acknowledged.borrow_mut().push(i);
                }
            }
            Ok(hand)
        });
    }
    stage.play(acknowledged)
}

/// One bit of one value turns over in far memory, which is beyond the contract: whoever reads the key is told, or gets
/// the value that was written. Nobody gets another one.
pub(crate) fn a_bit_turns_over(seed: u64) -> Option<String> {
    let mut stage = match Stage::new(seed) {
        Ok(stage) => stage,
        Err(what) => return Some(what),
    };
    let place = stage.alone(async |pool, harness| {
        let hand = Hand::of(&pool, &harness).await?;
        let at = hand.index.tables()[0].geometry().bucket(Level::One, 0);
        let words = hand.session().span(OpKind::Other).read(at, Level::One.bytes()).await?;
        let block = words.words().iter().find_map(|word| match Slot::decode(*word) {
            Slot::Live(entry) => Some(entry.ptr),
            _ => None,
        });
        hand.leave().await?;
        Ok(block)
    });
    let block = match place {
        Ok(Some(block)) => block,
        Ok(None) => return Some("the first bucket is empty".to_owned()),
        Err(what) => return Some(what),
    };
    // Key and value lie at bytes 16 to 60: these words are the value's alone.
    let word = block.add(stage.dice.within(3, 6) * 8);
    stage.sim.poke(word, stage.sim.peek(word).unwrap_or_default() ^ 1 << stage.dice.below(64));
    let told = stage.alone(async |pool, harness| {
        let hand = Hand::of(&pool, &harness).await?;
        let (mut told, mut wrong) = (0, None);
        for i in 0..PRELOADED {
            match hand.index.get(&key(i)).await {
                Ok(Some(found)) if *found == value(i) => {}
                Ok(found) => wrong = Some(format!("key {i} reads {found:?}")),
                Err(IndexError::Pool(PoolError::Corrupt { .. })) => told += 1,
                Err(error) => return Err(error),
            }
        }
        hand.leave().await?;
        Ok(wrong.or((told != 1).then(|| format!("{told} keys were told that their block is damaged, not one"))))
    });
    told.unwrap_or_else(Some)
}
