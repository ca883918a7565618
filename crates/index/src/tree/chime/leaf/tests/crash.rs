//! Crashes: any prefix of a plan with any words of the next WRITE, and recovery.

use super::*;
use crate::tree::chime::leaf::faults::{Fault, plant};

/// Calls `then` with the memory after every prefix of the WRITEs, and after that with some sets of words of the next.
fn crashes(memory: &[u64], writes: &[Write], rng: &mut Rng, mut then: impl FnMut(Vec<u64>, &mut Rng)) {
    let mut memory = memory.to_vec();
    for write in writes {
        let few = write.words.len() <= 3;
        for subset in 0..if few { 1 << write.words.len() } else { 8 } {
            let mut torn = memory.clone();
            let dense = rng.below(4);
            for (i, word) in write.words.iter().enumerate() {
                if if few { subset >> i & 1 == 1 } else { rng.below(4) <= dense } {
                    torn[write.offset / 8 + i] = *word;
                }
            }
            then(torn, rng);
        }
        land(&mut memory, write);
    }
    then(memory, rng);
}

fn recovered(memory: Vec<u64>, layout: Layout, node: Node, keep: &dyn Fn(&Item) -> bool) -> (Leaf, Recovered) {
    let mut leaf = Leaf { layout, node, memory, model: BTreeMap::new() };
    let done = recover(&mut leaf.whole(), &node, |_, item| keep(item)).expect("no damage");
    leaf.apply(&done.plan);
    (leaf, done)
}

/// Recovers, once more after a crash of the recovery itself, and compares with one of two models.
fn check(
    memory: Vec<u64>,
    layout: Layout,
    node: Node,
    keep: &dyn Fn(&Item) -> bool,
    models: [&BTreeMap<Id, u64>; 2],
    rng: &mut Rng,
) -> Result<(), String> {
    let (mut leaf, done) = recovered(memory.clone(), layout, node, keep);
    leaf.model = Leaf::held(&leaf.whole())?;
    leaf.check(true)?;
    if models.iter().all(|model| **model != leaf.model) {
        return Err(format!("recovered {:?}, expected one of {models:?}", leaf.model));
    }
    let mut twice = Vec::new();
    let mut again = rng.below(8);
    crashes(&memory, &done.plan.writes, rng, |memory, _| {
        if again == 0 {
            twice.push(memory);
        }
        again = again.wrapping_sub(1);
    });
    for memory in twice {
        let (mut second, _) = recovered(memory, layout, node, keep);
        second.model = leaf.model.clone();
        second.check(true)?;
    }
    Ok(())
}

fn run(span: usize, h: usize, operations: usize) -> Result<usize, String> {
    let mut rng = Rng((span + h) as u64);
    let (layout, mut count) = (layout(span, h), 0);
    let mut leaf = Leaf::new(layout, node(0x77, 0, u64::MAX));
    let universe = span * 2;
    for value in 1..=operations as u64 {
        let id = rng.below(universe) as u64;
        let plan = match rng.below(8) {
            0..5 => match leaf.plan_insert(id, value) {
                Insert::Done { plan, .. } => Some(plan),
                Insert::Full(_) => {
                    leaf.model.keys().nth(rng.below(leaf.model.len())).and_then(|id| leaf.plan_remove(*id))
                }
                _ => leaf.plan_update(id, value),
            },
            5 => leaf.plan_update(id, value),
            _ => leaf.plan_remove(id),
        };
        let Some(plan) = plan else { continue };
        let mut after = leaf.clone();
        after.apply(&plan);
        after.model = Leaf::held(&after.whole())?;
        let (models, node) = ([&leaf.model, &after.model], leaf.node);
        let mut outcome = Ok(());
        crashes(&leaf.memory, &plan.writes, &mut rng, |memory, rng| {
            count += 1;
            if outcome.is_ok() {
                outcome = check(memory, layout, node, &|_| true, models, rng);
            }
        });
        outcome?;
        leaf = after;
    }
    Ok(count)
}

const SHAPES: [(usize, usize); 6] = [(8, 2), (8, 4), (13, 4), (16, 8), (33, 3), (64, 16)];

#[test]
fn every_crash_within_an_operation_recovers_to_before_or_after() {
    let mut count = 0;
    for (span, h) in SHAPES {
        count += run(span, h, 400).unwrap_or_else(|error| panic!("span {span}, neighbourhood {h}: {error}"));
    }
    assert!(count > 10_000, "{count}");
}

#[test]
fn recovery_that_leaves_the_hints_is_detected() {
    plant(&[Fault::StaleVacancy]);
    let found = SHAPES.into_iter().any(|(span, h)| run(span, h, 400).is_err());
    plant(&[]);
    assert!(found);
}

fn filled(layout: Layout, rng: &mut Rng, node: Node, ids: std::ops::Range<Id>) -> Leaf {
    let mut leaf = Leaf::new(layout, node);
    for id in ids {
        if let (false, Insert::Done { plan, .. }) = (rng.one_in(3), leaf.plan_insert(id, id)) {
            leaf.apply(&plan);
            leaf.model.insert(id, id);
        }
    }
    leaf
}

#[test]
fn a_crash_within_a_split_recovers_by_the_sibling_word() {
    let mut rng = Rng(1);
    for (span, h) in SHAPES {
        let layout = layout(span, h);
        for _ in 0..20 {
            let leaf = filled(layout, &mut rng, node(0x77, 0, 1 << 20), 0..span as u64);
            let pivot = rng.below(span) as u64;
            let right_node = Node { address: 0x2000, low: [pivot, 1], ..leaf.node };
            let left_node = Node { sibling: right_node.address, high: [pivot, 1], ..leaf.node };
            let moves = |_: usize, item: &Item| id_of(item) >= pivot;
            let done = split(&mut leaf.whole(), &left_node, &right_node, moves).expect("whole");
            let mut stay = leaf.model.clone();
            let go = stay.split_off(&pivot);
            if go.is_empty() {
                continue;
            }
            assert_eq!(Leaf::held(&done.right).as_ref(), Ok(&go));
            // Both nodes in one memory, the right one behind the left one.
            let words = layout.words();
            let at_right = |write: &Write| Write { offset: write.offset + words * 8, words: write.words.clone() };
            let mut writes = vec![at_right(&done.header)];
            writes.extend(done.commit);
            writes.push(at_right(&done.entries));
            writes.extend(done.rest.writes);
            let unlinked = vec![0x5EED; words];
            crashes(&[leaf.memory.clone(), unlinked].concat(), &writes, &mut rng, |memory, rng| {
                let (memory, right) = (memory[..words].to_vec(), &memory[words..]);
                let committed = memory[layout::SIBLING_OFFSET / 8] == left_node.sibling_word().bits();
                let (expected, high, model) =
                    if committed { (left_node, pivot, &stay) } else { (leaf.node, 1 << 20, &leaf.model) };
                let mut image = Image::new(layout);
                image.add(0, &memory);
                // S1: from the commit on, no entry passes under the old seed.
                let passes = |at| image.entry(at).is_some_and(|entry| entry.check_holds(at, leaf.seed()));
                assert!(!committed || !(0..span).any(passes));
                if committed {
                    let mut whole = Leaf { layout, node: right_node, memory: right.to_vec(), model: go.clone() };
                    if !matches!(scan(&whole.whole(), &right_node.expected()), Scan::Items(_)) {
                        land(&mut whole.memory, &rebuild(&image, &right_node, moves).expect("entries that move"));
                    }
                    assert_eq!(whole.check(true), Ok(()));
                }
                let node = Node::after_crash(&image, leaf.node.tag, leaf.node.address, [high, 1]).expect("whole");
                assert_eq!(node, expected);
                let outcome = check(memory, layout, node, &|item| id_of(item) < high, [model; 2], rng);
                assert_eq!(outcome, Ok(()), "committed {committed}");
            });
        }
    }
}

#[test]
fn a_crash_within_a_merge_recovers_by_the_sibling() {
    let (mut rng, mut merges) = (Rng(2), 0);
    for (span, h) in SHAPES {
        let layout = layout(span, h);
        for _ in 0..20 {
            let middle = span as u64 / 4;
            let right_node = Node { address: 0x2000, ..node(0x77, middle, 1 << 20) };
            let leaf = filled(layout, &mut rng, node(0x2000, 0, middle), 0..middle);
            let right = filled(layout, &mut rng, right_node, middle..middle * 2);
            let after = Node { sibling: 0x77, high: right_node.high, ..leaf.node };
            let items: Vec<Item> = right.whole().items().expect("whole").into_iter().flatten().collect();
            let Some(absorb) = absorb(&mut leaf.whole(), &leaf.node, &after, &items) else { continue };
            merges += 1;
            crashes(&leaf.memory, &absorb.copies.writes, &mut rng, |memory, rng| {
                let keep = |item: &Item| id_of(item) < middle;
                assert_eq!(check(memory, layout, leaf.node, &keep, [&leaf.model; 2], rng), Ok(()));
            });
            let mut copied = leaf.clone();
            copied.apply(&absorb.copies);
            let mut all = leaf.model.clone();
            all.extend(right.model);
            // The right node is dead now: the merge is committed, wherever the crash was.
            crashes(&copied.memory, &absorb.commit.writes, &mut rng, |memory, rng| {
                assert_eq!(check(memory, layout, after, &|_| true, [&all; 2], rng), Ok(()));
            });
        }
    }
    assert!(merges > 60, "{merges}");
}

#[test]
fn recovery_names_what_no_crash_causes() {
    let leaf = filled(layout(16, 4), &mut Rng(3), node(1, 0, 2), 0..8);
    let mut image = Image::new(leaf.layout);
    assert_eq!(recover(&mut image, &leaf.node, |_, _| true), Err(Damage::Incomplete));
    let mut image = leaf.whole();
    let (id, _) = leaf.model.first_key_value().expect("a key");
    let from = leaf.position_of(*id).expect("present");
    let away = leaf.layout.behind(leaf.layout.home(key(*id)), 9);
    let entry = image.entry(from).expect("known");
    image.set_data(away, entry.item().expect("occupied"));
    image.set_state(away, entry.state);
    assert_eq!(recover(&mut image, &leaf.node, |_, _| true), Err(Damage::Misplaced(vec![away])));
}
