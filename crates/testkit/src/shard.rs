//! SHARD on trial: small tables that grow all the time, and for the protocol as published one that stands still.

use crate::{Setup, Subject};
use farindex_index::coalesce::Fault;
use farindex_index::shard::{Config, Variant};
use farindex_index::{Coalesced, Coalescer, IndexAudit, IndexError, Shard};
use farindex_pool::Session;
use farindex_pool::audit::Audit;
use farindex_sim::Dice;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// What a variant is tried with: the published removal needs keys that come and go in a table that stands still.
pub fn trial(variant: Variant) -> (Setup, ShardUnderTest) {
    match variant {
        Variant::Repaired => (Setup::default(), ShardUnderTest::repaired()),
        Variant::Published => (come_and_go(), ShardUnderTest::still(variant)),
    }
}

/// A few keys that come and go in a table that stands still.
pub fn come_and_go() -> Setup {
    let none = (0, 0);
    Setup { hot_keys: (1, 3), crowd_keys: none, cold_keys: (0, 12), overflowing: 0, tight: 0, ..Setup::default() }
}

/// SHARD with settings of the seed.
#[derive(Debug, Clone)]
pub struct ShardUnderTest {
    config: Config,
    /// Does the table grow? Removals as published are not made for being split at the same time.
    grows: bool,
}

impl ShardUnderTest {
    /// As shipped, growing.
    pub fn repaired() -> Self {
        ShardUnderTest { config: Config::default(), grows: true }
    }
    /// A table that is large enough from the beginning.
    pub fn still(variant: Variant) -> Self {
        ShardUnderTest {
            config: Config { initial_bits: 3, threshold: 1.0, variant, ..Config::default() },
            grows: false,
        }
    }
}

impl Subject for ShardUnderTest {
    type Index = Shard;

    fn draw(&self, dice: &mut Dice) -> Self {
        if !self.grows {
            return self.clone();
        }
        let config = Config {
            initial_bits: dice.pick(&[0, 0, 0, 1, 3]).unwrap_or_default(),
            threshold: dice.pick(&[0.05, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0]).unwrap_or(0.8),
            alpha: dice.pick(&[0.0, 0.1, 1.0, 10.0]).unwrap_or(0.1),
            ..self.config
        };
        ShardUnderTest { config, ..*self }
    }
    fn describe(&self) -> String {
        format!("{:?}", self.config)
    }
    async fn create(&self, session: &Rc<Session>) -> Result<Shard, IndexError> {
        Shard::create(session, "tried", &self.config).await
    }
    async fn open(&self, session: &Rc<Session>) -> Result<Shard, IndexError> {
        Shard::open(session, "tried").await
    }
    async fn audit(&self, index: &Shard, audit: &mut Audit) -> Result<IndexAudit, IndexError> {
        index.audit(audit, true).await
    }
    async fn mend(&self, index: &Shard) -> Result<u64, IndexError> {
        index.mend().await
    }
    /// The count of entries is a hint that steers growth: a wrong one must do no harm.
    fn shake(&self, index: &Shard, dice: &mut Dice) {
        if !self.grows {
            return;
        }
        let Some(table) = dice.pick(&[0, 0, 1]).and_then(|i| index.tables().get(i)) else { return };
        let geometry = table.geometry();
        if geometry.version + geometry.initial_bits() < 8 {
            let wanted = (self.config.threshold * geometry.slots() as f64) as i64 + 2;
            table.note(wanted.saturating_sub_unsigned(table.count()).max(0));
        }
    }
    fn crowd_bits(&self, dice: &mut Dice) -> u32 {
        dice.pick(&[0, 2, 4, 5, 7]).unwrap_or_default()
    }
}

/// SHARD behind a local lock table for each client.
#[derive(Clone)]
pub struct CoalescedShardUnderTest {
    shard: ShardUnderTest,
    fault: Fault,
    /// By client slot: one table for all coroutines of a client.
    tables: Arc<Mutex<BTreeMap<u64, Arc<Coalescer>>>>,
}

impl CoalescedShardUnderTest {
    /// With a fault of the table, or none.
    pub fn new(fault: Fault) -> Self {
        CoalescedShardUnderTest { shard: ShardUnderTest::repaired(), fault, tables: Arc::default() }
    }
    /// As shipped.
    pub fn shipped() -> Self {
        Self::new(Fault::None)
    }
    fn behind(&self, session: &Session, index: Shard) -> Coalesced<Shard> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let table = tables.entry(session.client().slot()).or_insert_with(|| Arc::new(Coalescer::new(self.fault)));
        let uid = index.uid();
        Coalesced::new(index, Arc::clone(table), uid)
    }
}

impl Subject for CoalescedShardUnderTest {
    type Index = Coalesced<Shard>;

    fn draw(&self, dice: &mut Dice) -> Self {
        // Tables of its own for each seed.
        CoalescedShardUnderTest { shard: self.shard.draw(dice), fault: self.fault, tables: Arc::default() }
    }
    fn describe(&self) -> String {
        format!("{}, coalesced with fault {:?}", self.shard.describe(), self.fault)
    }
    async fn create(&self, session: &Rc<Session>) -> Result<Self::Index, IndexError> {
        let index = self.shard.create(session).await?;
        Ok(self.behind(session, index))
    }
    async fn open(&self, session: &Rc<Session>) -> Result<Self::Index, IndexError> {
        let index = self.shard.open(session).await?;
        Ok(self.behind(session, index))
    }
    async fn audit(&self, index: &Self::Index, audit: &mut Audit) -> Result<IndexAudit, IndexError> {
        index.inner().audit(audit, true).await
    }
    async fn mend(&self, index: &Self::Index) -> Result<u64, IndexError> {
        self.shard.mend(index.inner()).await
    }
    fn shake(&self, index: &Self::Index, dice: &mut Dice) {
        self.shard.shake(index.inner(), dice);
    }
    fn crowd_bits(&self, dice: &mut Dice) -> u32 {
        self.shard.crowd_bits(dice)
    }
}
