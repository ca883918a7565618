//! The model-based suite on SepHash.

use crate::common::World;
use crate::suite::{Scale, suite};
use farindex_fabric::memory::Delivery;
use farindex_index::{Coalesced, SepHash};

const SCALE: Scale = Scale { random: 3000, resizes: 6, coroutines: 6, longest: false, seed: 1 };

#[test]
fn in_memory() {
    let world = World::memory(1, 160 << 20, Delivery::Immediate);
    world.run(|ctx| suite::<SepHash>(ctx, Scale { resizes: 9, longest: true, ..SCALE }));
}

#[test]
fn in_memory_interleaved() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<SepHash>(ctx, Scale { coroutines: 24, seed: 2, ..SCALE }));
}

#[test]
fn on_three_nodes() {
    let world = World::memory(3, 32 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<SepHash>(ctx, Scale { seed: 3, ..SCALE }));
}

#[test]
fn in_a_mapped_file() {
    let world = World::shm(48 << 20);
    world.run(|ctx| suite::<SepHash>(ctx, Scale { seed: 4, ..SCALE }));
}

#[test]
fn in_the_simulator() {
    let world = World::calm(5, 48 << 20);
    world.run(|ctx| suite::<SepHash>(ctx, Scale { random: 1000, coroutines: 24, seed: 5, ..SCALE }));
}

#[test]
fn behind_a_lock_table() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Coalesced<SepHash>>(ctx, Scale { coroutines: 12, seed: 6, ..SCALE }));
}
