//! The suite that every index passes on every fabric, over what UCX picks, over tcp and over shared memory.

use crate::nodes;
use farindex_fabric::Fabric;
use farindex_index::{IndexConfig, dex};
use farindex_testkit::seeds::is_thorough;
use farindex_testkit::suite::{Scale, suite};
use farindex_testkit::test_runs::shipped;
use farindex_testkit::world::World;
use farindex_ucx::Poll;
use std::sync::Arc;

const SCALE: Scale = Scale { random: 600, resizes: 3, coroutines: 6, longest: false, coalesced: false, seed: 21 };

/// The settings with which a kind grows soonest.
fn smallest(kind: &str) -> IndexConfig {
    let index = shipped().into_iter().find(|index| index.config().kind() == kind);
    index.expect("a kind").smallest()
}

fn world(nodes: usize, len: u64) -> (World, Arc<nodes::Whole>) {
    let whole = Arc::new(nodes::Whole(nodes::serve(nodes, len, Poll::Adaptive)));
    (World::Mapped(Arc::clone(&whole) as Arc<dyn Fabric>, Vec::new()), whole)
}

#[test]
fn as_ucx_picks() {
    if nodes::have_ucx() {
        let (alone, whole) = world(1, 160 << 20);
        // Keys and values of any length: 16 MiB too.
        alone.run(|ctx| suite(ctx, smallest("shard"), Scale { longest: true, ..SCALE }));
        nodes::check_transports(&whole.0.fabric);
        let (three, _) = world(3, 32 << 20);
        three.run(|ctx| suite(ctx, smallest("shard"), Scale { seed: 22, ..SCALE }));
        let (coalesced, _) = world(1, 48 << 20);
        coalesced
            .run(|ctx| suite(ctx, smallest("shard"), Scale { coalesced: true, coroutines: 12, seed: 23, ..SCALE }));
    }
}

/// Runs a test of many kinds again over shared memory, which takes a third of the time of tcp on loopback, if that is
/// enough: SHARD's test has each transport, and a thorough run has this one on each. Returns whether it did.
fn over_the_fastest(test: &str) -> bool {
    let enough = !is_thorough() && std::env::var_os("UCX_TLS").is_none();
    if enough {
        nodes::again_over("shm", test);
    }
    enough
}

#[test]
fn every_other_kind() {
    if nodes::have_ucx() && !over_the_fastest("model::every_other_kind") {
        let (one, whole) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("race"), Scale { seed: 24, ..SCALE }));
        nodes::check_transports(&whole.0.fabric);
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("sephash"), Scale { seed: 25, ..SCALE }));
        let (two, _) = world(2, 64 << 20);
        two.run(|ctx| suite(ctx, smallest("linear"), Scale { seed: 26, ..SCALE }));
        let (two, _) = world(2, 64 << 20);
        two.run(|ctx| suite(ctx, smallest("cuckoo"), Scale { seed: 27, ..SCALE }));
    }
}

/// Trees; DEX with memory nodes that finish what may be offloaded, with copies of leaves and without.
#[test]
fn every_tree() {
    if nodes::have_ucx() && !over_the_fastest("model::every_tree") {
        let (two, whole) = world(2, 64 << 20);
        two.run(|ctx| suite(ctx, smallest("sherman"), Scale { seed: 28, ..SCALE }));
        nodes::check_transports(&whole.0.fabric);
        let (one, _) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("chime"), Scale { seed: 29, ..SCALE }));
        let (one, whole) = world(1, 64 << 20);
        one.run(|ctx| suite(ctx, smallest("dex"), Scale { seed: 30, ..SCALE }));
        assert!(nodes::count(&whole.0.metrics, "calls") > 0);
        let IndexConfig::Dex(smallest) = smallest("dex") else { panic!("DEX") };
        let uncached = dex::Config { leaf_admission: 0, subtree_levels: 1, offload: dex::Offload::Always, ..smallest };
        let (two, whole) = world(2, 64 << 20);
        two.run(|ctx| suite(ctx, uncached.into(), Scale { seed: 31, ..SCALE }));
        // Every operation on a key, as a rule.
        assert!(nodes::count(&whole.0.metrics, "calls") > SCALE.random);
    }
}

/// The suite again over one transport. What differs between transports is below all kinds, so only a thorough run repeats
/// every kind.
fn again_over(transport: &str) {
    nodes::again_over(transport, "model::as_ucx_picks");
    if is_thorough() {
        nodes::again_over(transport, "model::every_other_kind");
        nodes::again_over(transport, "model::every_tree");
    }
}

#[test]
fn over_tcp() {
    again_over("tcp");
}

#[test]
fn over_shared_memory() {
    again_over("shm");
}
