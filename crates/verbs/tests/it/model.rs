//! The suite that every index passes on every fabric, on a real device, and the verb budgets' ground: what the meter
//! says is what goes out.

use crate::nodes::{Local, device_or_skip};
use farindex_fabric::Fabric;
use farindex_index::{IndexConfig, dex};
use farindex_testkit::suite::{Scale, suite};
use farindex_testkit::test_runs::shipped;
use farindex_testkit::world::World;

use std::sync::Arc;

/// Emulation takes its time.
const SCALE: Scale = Scale { random: 300, resizes: 2, coroutines: 6, longest: false, coalesced: false, seed: 11 };

/// The settings with which a kind grows soonest.
fn smallest(kind: &str) -> IndexConfig {
    let index = shipped().into_iter().find(|index| index.config().kind() == kind);
    index.expect("a kind").smallest()
}

fn world(nodes: usize, len: u64) -> (World, Arc<Local>) {
    let local = Arc::new(Local::new(nodes, len).expect("memory nodes"));
    (World::Mapped(Arc::clone(&local) as Arc<dyn Fabric>, Vec::new()), local)
}

#[test]
fn shard_on_verbs() {
    if device_or_skip() {
        let (world, local) = world(1, 48 << 20);
        world.run(|ctx| suite(ctx, smallest("shard"), SCALE));
        let counts = local.fabric.wire_counts();
        println!("{counts:?}");
        assert!(counts.doorbells < counts.completions, "batches that coroutines post together share a doorbell");
        assert!(counts.completions <= counts.requests, "every batch has one completion");
    }
}

#[test]
fn shard_on_three_nodes_on_verbs() {
    if device_or_skip() {
        let (world, _) = world(3, 32 << 20);
        world.run(|ctx| suite(ctx, smallest("shard"), Scale { seed: 12, ..SCALE }));
    }
}

#[test]
fn coalesced_shard_on_verbs() {
    if device_or_skip() {
        let (world, _) = world(1, 48 << 20);
        world.run(|ctx| suite(ctx, smallest("shard"), Scale { coalesced: true, coroutines: 12, seed: 13, ..SCALE }));
    }
}

#[test]
fn every_other_kind_on_verbs() {
    if device_or_skip() {
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("race"), Scale { seed: 14, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("sephash"), Scale { seed: 15, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("linear"), Scale { seed: 16, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("cuckoo"), Scale { seed: 17, ..SCALE }));
    }
}

/// Trees; DEX with memory nodes that finish what may be offloaded. Their CPUs see WRITEs later than READs do.
#[test]
fn every_tree_on_verbs() {
    if device_or_skip() {
        let (two, _) = world(2, 64 << 20);
        two.run(|ctx| suite(ctx, smallest("sherman"), Scale { seed: 18, ..SCALE }));
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("chime"), Scale { seed: 19, ..SCALE }));
        let IndexConfig::Dex(smallest) = smallest("dex") else { panic!("DEX") };
        for (seed, nodes, leaf_admission, subtree_levels) in [(20, 1, 100, 0), (21, 2, 0, 1)] {
            let config = dex::Config { leaf_admission, subtree_levels, offload: dex::Offload::Always, ..smallest };
            let (world, local) = world(nodes, 64 << 20);
            assert!(local.fabric.capabilities().call && !local.fabric.capabilities().cpu_atomic);
            world.run(|ctx| suite(ctx, config.into(), Scale { seed, ..SCALE }));
        }
    }
}
