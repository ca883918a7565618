//! The model-based suite, instantiated for every index on every fabric, and what goes wrong on purpose.

#[path = "../common/mod.rs"]
mod common;
mod crashed;
mod damage;
mod errors;
mod race;
mod shard_audit;
mod shard_faults;
mod suite;

use common::World;
use farindex_fabric::memory::Delivery;
use farindex_index::{Coalesced, Cuckoo, Linear, Shard};
use suite::{Scale, suite};

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

#[test]
fn linear_in_memory() {
    let world = World::memory(1, 160 << 20, Delivery::Immediate);
    world.run(|ctx| suite::<Linear>(ctx, Scale { longest: true, ..SCALE }));
}

#[test]
fn linear_in_memory_interleaved() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Linear>(ctx, Scale { coroutines: 24, seed: 2, ..SCALE }));
}

#[test]
fn linear_on_three_nodes() {
    let world = World::memory(3, 32 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Linear>(ctx, Scale { seed: 3, ..SCALE }));
}

#[test]
fn linear_in_a_mapped_file() {
    let world = World::shm(48 << 20);
    world.run(|ctx| suite::<Linear>(ctx, Scale { seed: 4, ..SCALE }));
}

#[test]
fn linear_in_the_simulator() {
    let world = World::calm(5, 48 << 20);
    world.run(|ctx| suite::<Linear>(ctx, Scale { random: 1000, coroutines: 24, seed: 5, ..SCALE }));
}

#[test]
fn coalesced_linear_in_memory() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Coalesced<Linear>>(ctx, Scale { coroutines: 12, seed: 6, ..SCALE }));
}

#[test]
fn cuckoo_in_memory() {
    let world = World::memory(1, 160 << 20, Delivery::Immediate);
    world.run(|ctx| suite::<Cuckoo>(ctx, Scale { longest: true, ..SCALE }));
}

#[test]
fn cuckoo_in_memory_interleaved() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Cuckoo>(ctx, Scale { coroutines: 24, seed: 2, ..SCALE }));
}

#[test]
fn cuckoo_on_three_nodes() {
    let world = World::memory(3, 32 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Cuckoo>(ctx, Scale { seed: 3, ..SCALE }));
}

#[test]
fn cuckoo_in_a_mapped_file() {
    let world = World::shm(48 << 20);
    world.run(|ctx| suite::<Cuckoo>(ctx, Scale { seed: 4, ..SCALE }));
}

#[test]
fn cuckoo_in_the_simulator() {
    let world = World::calm(5, 48 << 20);
    world.run(|ctx| suite::<Cuckoo>(ctx, Scale { random: 1000, coroutines: 24, seed: 5, ..SCALE }));
}

#[test]
fn coalesced_cuckoo_in_memory() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Coalesced<Cuckoo>>(ctx, Scale { coroutines: 12, seed: 6, ..SCALE }));
}

use farindex_index::tree::blink::BLink;

#[test]
fn blink_in_memory() {
    let world = World::memory(1, 160 << 20, Delivery::Immediate);
    world.run(|ctx| suite::<BLink>(ctx, Scale { longest: true, ..SCALE }));
}

#[test]
fn blink_in_memory_interleaved() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<BLink>(ctx, Scale { coroutines: 24, seed: 2, ..SCALE }));
}

#[test]
fn blink_on_three_nodes() {
    let world = World::memory(3, 32 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<BLink>(ctx, Scale { seed: 3, ..SCALE }));
}

#[test]
fn blink_in_a_mapped_file() {
    let world = World::shm(48 << 20);
    world.run(|ctx| suite::<BLink>(ctx, Scale { seed: 4, ..SCALE }));
}

#[test]
fn blink_in_the_simulator() {
    let world = World::calm(5, 48 << 20);
    world.run(|ctx| suite::<BLink>(ctx, Scale { random: 1000, coroutines: 24, seed: 5, ..SCALE }));
}

#[test]
fn coalesced_blink_in_memory() {
    let world = World::memory(1, 48 << 20, Delivery::Deferred);
    world.run(|ctx| suite::<Coalesced<BLink>>(ctx, Scale { coroutines: 12, seed: 6, ..SCALE }));
}
