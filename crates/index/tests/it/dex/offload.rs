//! Operations that memory nodes finish: what they cost in verbs, asserted exactly, and that they give what READs give.

use crate::trees::costs::{BLOCK, Budget, INLINE, LEN, budget, fill, key};
use farindex_fabric::{Fabric, MemoryFabric, OpKind, OpStats};
use farindex_index::dex::{Config, Durability, Offload};
use farindex_index::{Dex, Insert, OrderedIndex, PointIndex, Remove, Update, Upsert, call_table};
use farindex_testkit::alone::{cost_of, with_index, with_index_on};
use std::ops::Bound;
use std::sync::Arc;

const ALWAYS: Config = Config {
    leaf_span: 59,
    inner_span: 59,
    cache_bytes: 64 << 20,
    leaf_admission: 0,
    moves: farindex_index::dex::Moves::Partition,
    foreign: farindex_index::dex::Foreign::Acquire,
    offload: Offload::Always,
    subtree_levels: 0,
    durability: Durability::WriteThrough,
    dirty_ms: 100,
};
const NOTHING: Budget = [0; 7];

fn fabric() -> Arc<dyn Fabric> {
    let fabric = MemoryFabric::new(1, LEN).expect("memory");
    Arc::new(fabric.with_call_handler(call_table().into_handler()))
}

fn three_nodes() -> Arc<dyn Fabric> {
    let fabric = MemoryFabric::new(3, LEN).expect("memory");
    Arc::new(fabric.with_call_handler(call_table().into_handler()))
}

/// CALLs, and the rest of the verbs.
fn calls(cost: &OpStats) -> (u64, Budget) {
    (cost.total.calls, budget(cost))
}
/// The budget of so many CALLs alone: each is a round trip.
fn alone(calls: u64) -> (u64, Budget) {
    (calls, [calls, 0, 0, 0, 0, 0, 0])
}

/// Forgets all copies of nodes but that of the root, which is never offloaded: its subtree is the whole tree.
async fn forget_all_but_root(index: &Dex) {
    index.forget();
    assert!(index.get(&key(0)).await.is_ok_and(|value| value.is_some()));
}

#[test]
fn a_lookup_below_missing_inner_nodes_takes_one_call() {
    with_index_on(fabric(), ALWAYS, async |index: &Dex| {
        fill(index, 5000).await;
        assert_eq!(index.insert(&key(4001), BLOCK).await, Ok(Insert::Inserted));
        forget_all_but_root(index).await;
        let endpoint = index.session().endpoint();
        for (i, value) in [(500, Some(INLINE)), (501, None), (4001, Some(BLOCK))] {
            let cost = cost_of(endpoint, OpKind::Get, async || {
                assert_eq!(index.get(&key(i)).await.expect("a lookup").as_deref(), value);
            });
            assert_eq!(calls(&cost.await), alone(1), "key {i}");
        }
        let counts = index.offload_counts();
        assert_eq!((counts.beyond, counts.spread, counts.refused), (0, 0, 0));
        assert_eq!(counts.reads, 0);
    });
}

#[test]
fn a_write_below_missing_inner_nodes_takes_two_calls_and_one_at_its_leaf() {
    with_index_on(fabric(), ALWAYS, async |index: &Dex| {
        fill(index, 5000).await;
        forget_all_but_root(index).await;
        let endpoint = index.session().endpoint();
        let absent = key(501);
        let cost = cost_of(endpoint, OpKind::Insert, async || {
            assert_eq!(index.insert(&absent, INLINE).await, Ok(Insert::Inserted));
        });
        assert_eq!(calls(&cost.await), alone(2));
        let cost = cost_of(endpoint, OpKind::Insert, async || {
            assert_eq!(index.insert(&absent, INLINE).await, Ok(Insert::Exists));
        });
        assert_eq!(calls(&cost.await), alone(2));
    });
    // With copies of the inner nodes: those of several memory nodes are READ.
    with_index_on(three_nodes(), ALWAYS, async |index: &Dex| {
        fill(index, 5000).await;
        let (endpoint, absent) = (index.session().endpoint(), key(501));
        assert_eq!(index.insert(&absent, INLINE).await, Ok(Insert::Inserted));
        let cost = cost_of(endpoint, OpKind::Update, async || {
            assert_eq!(index.update(&absent, b"87654321").await, Ok(Update::Updated));
        });
        assert_eq!(calls(&cost.await), alone(1));
        let cost = cost_of(endpoint, OpKind::Upsert, async || {
            assert_eq!(index.upsert(&absent, INLINE).await, Ok(Upsert::Updated));
        });
        assert_eq!(calls(&cost.await), alone(1));
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(index.remove(&absent).await, Ok(Remove::Removed));
        });
        assert_eq!(calls(&cost.await), alone(1));
        let cost = cost_of(endpoint, OpKind::Remove, async || {
            assert_eq!(index.remove(&absent).await, Ok(Remove::Absent));
        });
        assert_eq!(calls(&cost.await), alone(1));
        assert_eq!(index.get(&absent).await, Ok(None));
    });
}

/// What the compute node has a copy of takes no verb; an entry with a block is changed by verbs.
#[test]
fn copies_and_blocks_are_not_offloaded() {
    with_index_on(fabric(), Config { leaf_admission: 100, ..ALWAYS }, async |index: &Dex| {
        fill(index, 100).await;
        let endpoint = index.session().endpoint();
        assert_eq!(index.upsert(&key(3), BLOCK).await, Ok(Upsert::Inserted));
        // It has READ the leaf, and keeps the copy.
        let cost = cost_of(endpoint, OpKind::Get, async || {
            assert_eq!(index.get(&key(2)).await.expect("a lookup").as_deref(), Some(INLINE));
        });
        assert_eq!(calls(&cost.await), (0, NOTHING));
        index.forget();
        assert_eq!(index.upsert(&key(3), INLINE).await, Ok(Upsert::Updated));
        let counts = index.offload_counts();
        assert_eq!((counts.blocks, counts.refused), (1, 0));
        assert_eq!(index.get(&key(3)).await.expect("a lookup").as_deref(), Some(INLINE));
    });
}

#[test]
fn many_leaves_of_a_scan_come_with_one_call() {
    with_index_on(fabric(), ALWAYS, async |index: &Dex| {
        fill(index, 5000).await;
        forget_all_but_root(index).await;
        let (endpoint, from) = (index.session().endpoint(), key(1000));
        // Leaves are half full: 29 or 30 entries. A reply holds 31 leaves of 1 KiB.
        for (limit, trips) in [(1, 1), (800, 1), (870, 1)] {
            let cost = cost_of(endpoint, OpKind::Scan, async || {
                let entries = index.scan((Bound::Included(&from), Bound::Unbounded), limit).await.expect("a scan");
                let expected = (500..).take(limit).map(|i| key(i * 2));
                assert!(entries.iter().map(|entry| entry.key.to_vec()).eq(expected.map(|key| key.to_vec())));
            });
            assert_eq!(calls(&cost.await), alone(trips), "{limit} entries");
        }
    });
}

/// Looks keys up in one operation, and returns what that has cost.
async fn cost_of_many(index: &Dex, keys: impl Iterator<Item = (u64, Option<&[u8]>)>) -> (u64, Budget) {
    let (names, values): (Vec<_>, Vec<_>) = keys.map(|(i, value)| (key(i), value)).unzip();
    let names: Vec<_> = names.iter().map(|name| &name[..]).collect();
    let cost = cost_of(index.session().endpoint(), OpKind::Get, async || {
        let found = index.get_many(&names).await.expect("lookups");
        assert!(found.iter().map(Option::as_deref).eq(values.iter().copied()));
    });
    calls(&cost.await)
}

/// However many keys there are, and however many nodes lead to them.
#[test]
fn lookups_of_many_keys_take_one_call_for_each_memory_node() {
    with_index_on(fabric(), ALWAYS, async |index: &Dex| {
        fill(index, 5000).await;
        assert_eq!(index.insert(&key(4001), BLOCK).await, Ok(Insert::Inserted));
        forget_all_but_root(index).await;
        let keys = || (0..100).map(|i| (i * 97, (i % 2 == 0).then_some(INLINE)));
        let long = || keys().chain([(4001, Some(BLOCK)), (4001, Some(BLOCK))]);
        assert_eq!(cost_of_many(index, long()).await, alone(1));
        let more = (0..128).map(|i| (i * 78, Some(INLINE)));
        assert_eq!(cost_of_many(index, more).await, alone(1));
        let counts = index.offload_counts();
        assert_eq!((counts.refused, counts.moved, counts.busy, counts.spread), (0, 0, 0, 0));
    });
    with_index_on(three_nodes(), ALWAYS, async |index: &Dex| {
        fill(index, 5000).await;
        let keys = || (0..100).map(|i| (i * 100, Some(INLINE)));
        // The inner nodes are READ: their subtrees lie on several memory nodes.
        index.forget();
        let misses = || index.lookups().iter().map(|level| level.misses).sum::<u64>();
        let before = misses();
        let (calls, [_, _, reads, ..]) = cost_of_many(index, keys()).await;
        assert_eq!((calls, reads), (3, misses() - before));
        // Then there are copies of them. A call is a batch of its own; the three are posted together.
        assert_eq!(cost_of_many(index, keys()).await, alone(3));
    });
}

/// A reply has 32 KiB: what has no room in it is READ in the same operation, as leaves and blocks.
#[test]
fn what_a_reply_has_no_room_for_is_read() {
    let value = [7; 1000];
    with_index_on(fabric(), ALWAYS, async |index: &Dex| {
        for i in 0..100 {
            assert_eq!(index.insert(&key(i), &value).await, Ok(Insert::Inserted));
        }
        let keys = || (0..100).map(|i| (i, Some(&value[..])));
        // 32 words of a value, and one before it.
        let (calls, [trips, _, reads, ..]) = cost_of_many(index, keys()).await;
        assert_eq!((calls, trips), (1, 3));
        // 32 values came with the reply.
        let leaves = reads - (100 - 32);
        assert!((1..=4).contains(&leaves), "{reads} READs");
        assert_eq!(cost_of_many(index, keys().take(32)).await, alone(1));
    });
}

/// What a memory node does not know is READ: one CALL for all keys is refused.
#[test]
fn lookups_of_many_keys_need_no_memory_node_that_knows_them() {
    let fabric = MemoryFabric::new(1, LEN).expect("memory");
    let fabric = fabric.with_call_handler(farindex_fabric::CallTable::builtin().into_handler());
    with_index_on(Arc::new(fabric), ALWAYS, async |index: &Dex| {
        fill(index, 1000).await;
        let refused = index.offload_counts().refused;
        let (calls, [.., atomics, _, _]) =
            cost_of_many(index, (0..100).map(|i| (i, (i % 2 == 0).then_some(INLINE)))).await;
        assert_eq!((calls, atomics, index.offload_counts().refused - refused), (1, 0, 1));
    });
}

/// Every operation gives the same, whether memory nodes finish it or not.
#[test]
fn settings_change_no_result() {
    let mut results = Vec::new();
    for (offload, has_calls) in
        [(Offload::Never, true), (Offload::Auto, true), (Offload::Always, true), (Offload::Always, false)]
    {
        let config = Config { offload, leaf_span: 8, inner_span: 6, leaf_admission: 30, ..ALWAYS };
        let mut seen = Vec::new();
        let body = async |index: &Dex| {
            let mut rng = farindex_testkit::world::Rng::new(7);
            for _ in 0..6000 {
                let name = key(rng.below(700));
                let value = if rng.below(4) == 0 { BLOCK.to_vec() } else { rng.word().to_le_bytes().to_vec() };
                seen.push(match rng.below(8) {
                    0 | 1 => format!("{:?}", index.insert(&name, &value).await),
                    2 => format!("{:?}", index.update(&name, &value).await),
                    3 => format!("{:?}", index.upsert(&name, &value).await),
                    4 | 5 => format!("{:?}", index.remove(&name).await),
                    6 => format!("{:?}", index.get(&name).await.expect("a lookup").as_deref()),
                    _ => {
                        let entries = index.scan((Bound::Included(&name), Bound::Unbounded), 40).await.expect("a scan");
                        format!("{:?}", entries.iter().map(|e| (e.key.to_vec(), e.value.to_vec())).collect::<Vec<_>>())
                    }
                });
                if rng.below(50) == 0 {
                    index.forget();
                }
            }
            let counts = index.offload_counts();
            let offloads = offload != Offload::Never && has_calls;
            assert_eq!(counts.finished > 0, offloads, "{offload:?}: {counts:?}");
            assert_eq!(counts.refused, 0);
        };
        if has_calls {
            with_index_on(fabric(), config, body);
        } else {
            with_index(LEN, config, body);
        }
        results.push(seen);
    }
    for other in &results[1..] {
        assert!(results[0] == *other);
    }
}

/// With a setting of 0, nodes are spread over the memory nodes one by one.
#[test]
fn subtrees_lie_on_one_memory_node() {
    for subtree_levels in [0, 1, 2, 4] {
        let config = Config { subtree_levels, leaf_span: 4, inner_span: 5, ..ALWAYS };
        with_index_on(three_nodes(), config, async |index: &Dex| {
            let mut rng = farindex_testkit::world::Rng::new(u64::from(subtree_levels));
            for _ in 0..4000 {
                let name = key(rng.below(1500));
                if rng.below(3) > 0 {
                    assert!(index.upsert(&name, INLINE).await.is_ok());
                } else {
                    assert!(index.remove(&name).await.is_ok());
                }
                if rng.below(100) == 0 {
                    index.forget();
                }
            }
            assert!(index.lookups().len() > 4, "the tree has more levels than a subtree");
            assert_eq!(index.crossing_pointers().await, Ok(0));
            let counts = index.offload_counts();
            assert!(counts.finished > 0 && (counts.spread > 0 || subtree_levels > 2), "{counts:?}");
        });
    }
}

/// A memory node of an older version answers calls, but not those of indexes.
#[test]
fn a_memory_node_without_the_handler_costs_few_calls_and_nothing_else() {
    for (offload, most) in [(Offload::Always, u64::MAX), (Offload::Auto, 100)] {
        let fabric = MemoryFabric::new(1, LEN).expect("memory");
        let fabric = fabric.with_call_handler(farindex_fabric::CallTable::builtin().into_handler());
        with_index_on(Arc::new(fabric), Config { offload, ..ALWAYS }, async |index: &Dex| {
            fill(index, 1000).await;
            let counts = index.offload_counts();
            assert!((1..=most).contains(&counts.refused) && counts.finished == 0, "{counts:?}");
        });
    }
}
