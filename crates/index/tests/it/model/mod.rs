//! The model-based suite on every kind of index in every world, and tests of errors and damage.

mod amid;
mod crashed;
mod damage;
mod errors;
mod names;
mod order;

use farindex_fabric::memory::Delivery;
use farindex_testkit::is_thorough;
use farindex_testkit::suite::{Scale, suite};
use farindex_testkit::test_runs::shipped;
use farindex_testkit::world::World;

const SCALE: Scale = Scale { random: 3000, resizes: 6, coroutines: 6, longest: false, coalesced: false, seed: 1 };

/// Runs the suite on every kind; with a third of the random operations, and one resize less, unless the run is a thorough one.
fn on_every_kind(world: impl Fn() -> World, scale: Scale) {
    for index in shipped() {
        let kind = index.config().kind();
        println!("{kind}");
        // The tables of these grow in smaller steps, or are smaller at first.
        let more = match (kind, scale.longest) {
            ("race", longest) => 3 + u64::from(longest),
            ("sephash", true) => 3,
            ("shard", true) => 1,
            _ => 0,
        };
        let (random, less) = if is_thorough() { (scale.random, 0) } else { (scale.random / 3, 1) };
        let scale = Scale { random, resizes: scale.resizes + more - less, ..scale };
        world().run(|ctx| suite(ctx, index.smallest(), scale));
    }
}

#[test]
fn every_kind_in_memory() {
    on_every_kind(|| World::memory(1, 160 << 20, Delivery::Immediate), Scale { longest: true, ..SCALE });
}

#[test]
fn every_kind_in_memory_interleaved() {
    on_every_kind(|| World::memory(1, 48 << 20, Delivery::Deferred), Scale { coroutines: 24, seed: 2, ..SCALE });
}

#[test]
fn every_kind_on_three_nodes() {
    on_every_kind(|| World::memory(3, 32 << 20, Delivery::Deferred), Scale { seed: 3, ..SCALE });
}

#[test]
fn every_kind_in_a_mapped_file() {
    on_every_kind(|| World::shm(48 << 20), Scale { seed: 4, ..SCALE });
}

#[test]
fn every_kind_in_the_simulator() {
    on_every_kind(|| World::calm(5, 48 << 20), Scale { random: 1000, coroutines: 24, seed: 5, ..SCALE });
}

#[test]
fn every_kind_behind_a_lock_table() {
    let scale = Scale { coroutines: 12, coalesced: true, seed: 6, ..SCALE };
    on_every_kind(|| World::memory(1, 48 << 20, Delivery::Deferred), scale);
}
