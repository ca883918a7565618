//! The path cache on its own: a toy tree, random descents and changes, and the invariants after each of them.

use super::check::check;
use super::cooling::{CoolingMap, SLOTS};
use super::frame::Content;
use super::table::{Look, Place, Table};
use crate::tree::faults::{Fault, plant};
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A node of a tree whose addresses say where they are: level, and number in the level.
struct Toy {
    level: u8,
    children: Vec<u64>,
    bytes: u64,
}

impl Content for Toy {
    fn heap_bytes(&self) -> u64 {
        self.bytes
    }
    fn level(&self) -> u8 {
        self.level
    }
    fn children(&self) -> usize {
        self.children.len()
    }
    fn child(&self, i: usize) -> u64 {
        self.children[i]
    }
}

const FANOUT: u64 = 6;
const TOP: u8 = 3;

fn address(level: u8, number: u64) -> u64 {
    (u64::from(level) << 32 | number << 8) + 64
}
fn node(level: u8, number: u64) -> Toy {
    let children = (0..if level == 0 { 0 } else { FANOUT }).map(|i| address(level - 1, number * FANOUT + i));
    Toy { level, children: children.collect(), bytes: 200 }
}
fn table(limit: u64) -> Table<Toy> {
    Table::new(address(TOP, 0), limit, (8, 12))
}

/// Descends to a leaf, READing what is not there; returns how many nodes were read.
fn descend(table: &Table<Toy>, leaf: u64, node: &impl Fn(u8, u64) -> Toy) -> usize {
    let mut read = 0;
    let mut here = table.root();
    if here.is_none() {
        (read, here) = (1, { table.put(address(TOP, 0), node(TOP, 0), None).then(|| table.root()).flatten() });
    }
    for level in (0..TOP).rev() {
        let Some(parent) = here.as_ref().and_then(|here| here.as_ref()) else { return read };
        assert!(!parent.is_stale() || level + 1 < TOP, "no copy of the root is old");
        let number = leaf / FANOUT.pow(level.into());
        let Some(i) = parent.node.children.iter().position(|child| *child == address(level, number)) else {
            return read;
        };
        let mut child = table.child(parent, i);
        if child.as_ref().and_then(|child| child.as_ref()).is_none_or(|child| child.is_stale()) {
            read += 1;
            table.put(address(level, number), node(level, number), Some(parent.at));
            child = table.child(parent, i);
        }
        here = child;
    }
    read
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// One random operation.
fn step(table: &Table<Toy>, random: &mut Random) {
    let leaves = FANOUT.pow(TOP.into());
    match random.below(10) {
        0 => _ = table.remove(address(0, random.below(leaves))),
        1 => {
            let level = 1 + random.below(u64::from(TOP) - 1) as u8;
            table.invalidate(address(level, random.below(FANOUT.pow((TOP - level).into()))));
        }
        // The node has another form: some children have gone, others stand elsewhere.
        2 => {
            let level = 1 + random.below(u64::from(TOP) - 1) as u8;
            let mut changed = node(level, random.below(FANOUT.pow((TOP - level).into())));
            let number = changed.children[0];
            changed.children.retain(|child| *child == number || random.below(4) > 0);
            changed.children.rotate_left(1);
            let up = (number >> 8 & 0xFF_FFFF) / FANOUT;
            table.put(address(level, up), changed, Some(address(level + 1, up / FANOUT)));
        }
        3 if random.below(20) == 0 => table.retain(|node| node.level > 0),
        _ => _ = descend(table, random.below(leaves), &node),
    }
}

/// Random use of a small cache; returns what was found wrong.
fn random_use(seed: u64, steps: u32) -> Result<(), String> {
    let (limit, mut random) = (12_000 + seed % 5 * 4000, Random(seed));
    let table = table(limit);
    let own = table.budget.used();
    for _ in 0..steps {
        step(&table, &mut random);
        if table.budget.used() > limit {
            return Err(format!("{} bytes of {limit}", table.budget.used()));
        }
        check(&table, own)?;
    }
    table.retain(|_| false);
    assert_eq!(table.budget.used(), own, "all bytes come back");
    Ok(())
}

#[test]
fn invariants_hold_under_random_use() {
    for seed in 0..12 {
        assert_eq!(random_use(seed, 1500), Ok(()), "seed {seed}");
    }
}

#[test]
fn invariants_hold_after_several_threads_have_used_it() {
    let steps = if cfg!(miri) { 100 } else { 20_000 };
    let limit = 20_000;
    let table = table(limit);
    let own = table.budget.used();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let table = &table;
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..steps {
                    step(table, &mut random);
                    assert!(table.budget.used() <= limit);
                }
            });
        }
    });
    assert_eq!(check(&table, own), Ok(()));
    table.retain(|_| false);
    assert_eq!(table.budget.used(), own, "all bytes come back");
}

#[test]
fn faults_break_the_invariants() {
    for fault in [Fault::ParentEvictedFirst, Fault::LeftSwizzled] {
        plant(&[fault]);
        let found = (0..12).find_map(|seed| random_use(seed, 1500).err());
        plant(&[]);
        assert!(found.is_some(), "{fault:?}");
    }
}

#[test]
fn paths_stay_swizzled_and_hot_leaves_stay() {
    let table = table(36_000);
    let mut random = Random(7);
    let (mut read, mut hot_read) = (0, 0);
    for i in 0..4000 {
        read += descend(&table, random.below(FANOUT.pow(TOP.into())), &node);
        if i % 2 == 0 {
            hot_read += descend(&table, i / 2 % 4, &node);
        }
    }
    assert!(read > 1000, "the cache is too large for this test: {read}");
    assert!(hot_read * 10 < 2000, "four hot leaves were read {hot_read} times in 2000 lookups");
}

#[test]
fn a_parent_is_not_evicted_before_its_children() {
    let table = table(1 << 20);
    let leaves = FANOUT.pow(TOP.into());
    for leaf in 0..leaves {
        descend(&table, leaf, &node);
    }
    // Everything is cooled again and again, and nothing is found in between.
    while let Some(frame) = table.sample() {
        let (level, at) = (frame.node.level, frame.at);
        let mut chosen = frame;
        while let Some(child) = chosen.some_child(0) {
            chosen = child;
        }
        table.cool(&chosen, false);
        drop(chosen);
        let there: HashMap<u64, bool> =
            table.frames().iter().map(|(frame, _)| (frame.at, frame.is_cooling())).collect();
        assert!(level == 0 || there.contains_key(&at) || table.frames().iter().all(|(child, _)| child.is_cooling()));
        for (frame, place) in table.frames() {
            if let Place::Slot(parent, _) = place {
                assert!(parent.is_some_and(|parent| there.get(&parent) == Some(&false)), "{:x}", frame.at);
            }
        }
    }
}

#[test]
fn the_oldest_node_of_a_full_bucket_leaves_the_cooling_map() {
    let map = CoolingMap::new(SLOTS);
    for at in 1..=SLOTS as u64 {
        assert_eq!(map.push(at * 64), None);
    }
    assert_eq!(map.push(640), Some(64));
    assert!(map.remove(192) && !map.remove(192));
    assert_eq!(map.nodes(), [128, 256, 320, 384, 640]);
    assert_eq!((map.pop(9), map.pop(9)), (Some(128), Some(256)));
    assert_eq!(map.push(704), None);
    assert_eq!(map.nodes(), [320, 384, 640, 704]);
}

#[test]
fn an_io_flag_is_for_one_operation_and_its_end_wakes_the_others() {
    let table = table(1 << 20);
    let at = address(TOP, 0);
    let Look::Free(Some(flag)) = table.look(at) else { panic!("nobody READs the node") };
    let mut waits: Vec<_> = (0..3)
        .map(|_| match table.look(at) {
            Look::Busy(wait) => Box::pin(wait),
            _ => panic!("the node is being READ"),
        })
        .collect();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
    // The operation is cancelled.
    drop(flag);
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx) == Poll::Ready(())));
    let Look::Free(Some(flag)) = table.look(at) else { panic!("nobody READs the node") };
    table.put(at, node(TOP, 0), None);
    assert!(matches!(table.look(at), Look::Found(_)));
    let mut wait = pin!(table.busy(at).expect("a flag"));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    drop(flag);
    assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(()));
    assert!(table.busy(at).is_none());
}

#[test]
fn a_new_copy_of_a_parent_keeps_the_children_that_it_still_names() {
    let table = table(1 << 20);
    let own = table.budget.used();
    for leaf in 0..FANOUT * FANOUT {
        descend(&table, leaf, &node);
    }
    let parent = address(1, 0);
    table.invalidate(parent);
    assert!(table.get(parent).is_none(), "an old copy leads nobody");
    let mut changed = node(1, 0);
    changed.children.remove(2);
    assert!(table.put(parent, changed, Some(address(2, 0))));
    assert_eq!(check(&table, own), Ok(()));
    let places: HashMap<u64, Place> = table.frames().iter().map(|(frame, place)| (frame.at, *place)).collect();
    assert_eq!(places[&address(0, 1)], Place::Slot(Some(parent), 1));
    assert_eq!(places[&address(0, 3)], Place::Slot(Some(parent), 2));
    assert_eq!(places[&address(0, 2)], Place::Nowhere, "it stays in the cache, for its new parent");
}
