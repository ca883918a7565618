//! The suite that every index passes on every fabric, on a real device, and the verb budgets' ground: what the meter
//! says is what goes out.

use crate::common::World;
use crate::nodes::{Local, device_or_skip};
use crate::suite::{Scale, suite};
use farindex_fabric::Fabric;
use farindex_index::{Coalesced, Cuckoo, Linear, Race, SepHash, Shard};
use std::sync::Arc;

/// Emulation takes its time.
const SCALE: Scale = Scale { random: 300, resizes: 2, coroutines: 6, longest: false, seed: 11 };

fn world(nodes: usize, len: u64) -> (World, Arc<Local>) {
    let local = Arc::new(Local::new(nodes, len).expect("memory nodes"));
    (World::Mapped(Arc::clone(&local) as Arc<dyn Fabric>, Vec::new()), local)
}

#[test]
fn shard_on_verbs() {
    if device_or_skip() {
        let (world, local) = world(1, 48 << 20);
        world.run(|ctx| suite::<Shard>(ctx, SCALE));
        let counts = local.fabric.wire_counts();
        println!("{counts:?}");
        assert_eq!(counts.doorbells, counts.completions, "every doorbell has one completion");
    }
}

#[test]
fn shard_on_three_nodes_on_verbs() {
    if device_or_skip() {
        let (world, _) = world(3, 32 << 20);
        world.run(|ctx| suite::<Shard>(ctx, Scale { seed: 12, ..SCALE }));
    }
}

#[test]
fn coalesced_shard_on_verbs() {
    if device_or_skip() {
        let (world, _) = world(1, 48 << 20);
        world.run(|ctx| suite::<Coalesced<Shard>>(ctx, Scale { coroutines: 12, seed: 13, ..SCALE }));
    }
}

#[test]
fn every_other_kind_on_verbs() {
    if device_or_skip() {
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite::<Race>(ctx, Scale { seed: 14, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite::<SepHash>(ctx, Scale { seed: 15, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite::<Linear>(ctx, Scale { seed: 16, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite::<Cuckoo>(ctx, Scale { seed: 17, ..SCALE }));
    }
}
