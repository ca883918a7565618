//! The model-based suite, instantiated for every index on every fabric, and what goes wrong on purpose.

#[path = "../common/mod.rs"]
mod common;
mod errors;
mod shard_faults;
mod suite;

use common::World;
use farindex_fabric::memory::Delivery;
use farindex_index::{Coalesced, IndexAudit, IndexError, Shard, Value, shard};
use farindex_pool::Session;
use farindex_pool::audit::Audit;
use std::rc::Rc;
use std::sync::Arc;
use suite::{Scale, Subject, suite};

/// The smallest SHARD.
pub(crate) fn smallest() -> shard::Config {
    shard::Config { initial_bits: 0, ..shard::Config::default() }
}

impl Subject for Shard {
    async fn create(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        Shard::create(session, name, &smallest()).await
    }
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        Shard::open(session, name).await
    }
    async fn drop_named(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        Shard::drop_index(session, name).await
    }
    async fn audit(&self, audit: &mut Audit) -> Result<IndexAudit, IndexError> {
        Shard::audit(self, audit, true).await
    }
    async fn for_each(&self, each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>) -> Result<u64, IndexError> {
        Shard::for_each(self, each).await
    }
    fn resizes(&self) -> u64 {
        self.tables().iter().map(|table| table.geometry().version).max().unwrap_or(0)
    }
}

/// The same behind a local lock table.
impl Subject for Coalesced<Shard> {
    async fn create(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        let index = <Shard as Subject>::create(session, name).await?;
        let uid = index.uid();
        Ok(Coalesced::new(index, Arc::default(), uid))
    }
    async fn open(session: &Rc<Session>, name: &str) -> Result<Self, IndexError> {
        let index = Shard::open(session, name).await?;
        let uid = index.uid();
        Ok(Coalesced::new(index, Arc::default(), uid))
    }
    async fn drop_named(session: &Rc<Session>, name: &str) -> Result<(), IndexError> {
        Shard::drop_index(session, name).await
    }
    async fn audit(&self, audit: &mut Audit) -> Result<IndexAudit, IndexError> {
        Subject::audit(self.inner(), audit).await
    }
    async fn for_each(&self, each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>) -> Result<u64, IndexError> {
        Subject::for_each(self.inner(), each).await
    }
    fn resizes(&self) -> u64 {
        self.inner().resizes()
    }
}

const SCALE: Scale = Scale { random: 3000, resizes: 6, coroutines: 6, longest: false, seed: 1 };

#[test]
fn shard_in_memory() {
    let world = World::memory(1, 160 << 20, Delivery::Immediate);
    world.run(|ctx| suite::<Shard>(ctx, Scale { resizes: 7, longest: true, ..SCALE }));
}

#[test]
fn shard_in_memory_interleaved() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Shard>(ctx, Scale { coroutines: 24, seed: 2, ..SCALE }));
}

#[test]
fn shard_on_three_nodes() {
    let world = World::memory(3, 32 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Shard>(ctx, Scale { seed: 3, ..SCALE }));
}

#[test]
fn shard_in_a_mapped_file() {
    let world = World::shm(48 << 20);
    world.run(|ctx| suite::<Shard>(ctx, Scale { seed: 4, ..SCALE }));
}

#[test]
fn shard_in_the_simulator() {
    let world = World::calm(5, 48 << 20);
    world.run(|ctx| suite::<Shard>(ctx, Scale { random: 1000, coroutines: 24, seed: 5, ..SCALE }));
}

#[test]
fn coalesced_shard_in_memory() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Coalesced<Shard>>(ctx, Scale { coroutines: 12, seed: 6, ..SCALE }));
}
