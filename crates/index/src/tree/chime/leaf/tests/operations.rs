//! Random operations against a map.

use super::*;
use crate::tree::chime::leaf::faults::{Fault, plant};

/// Splits the leaf at the median of the keys that are full, inserts the key, and goes on with one of the two.
fn split_and_insert(leaf: &mut Leaf, rng: &mut Rng, id: Id, value: u64, full: &[usize]) -> Result<(), String> {
    let mut image = leaf.whole();
    let items = image.items().ok_or("whole")?;
    let mut ids: Vec<Id> = full.iter().filter_map(|at| items[*at]).map(|item| id_of(&item)).collect();
    ids.sort_unstable();
    let pivot = ids[ids.len() / 2];
    let right_node = Node { address: rng.next() >> 16, low: [pivot, 1], ..leaf.node };
    let left_node = Node { sibling: right_node.address, high: [pivot, 1], ..leaf.node };
    let split = split::split(&mut image, &left_node, &right_node, |_, item| id_of(item) >= pivot).ok_or("split")?;
    let before = leaf.node.expected();
    split.commit.iter().for_each(|write| land(&mut leaf.memory, write));
    leaf.apply(&split.rest);
    assert_eq!(leaf.memory, image.whole().ok_or("whole")?);
    if leaf.position_before(&before, id) != Lookup::Moved(left_node.sibling_word()) {
        return Err("a reader of the old leaf does not notice the split".to_owned());
    }
    leaf.node = left_node;
    let memory = split.right.whole().ok_or("whole")?.to_vec();
    let right_model = leaf.model.split_off(&pivot);
    let mut right = Leaf { layout: leaf.layout, node: right_node, memory, model: right_model };
    leaf.check(true)?;
    right.check(true)?;
    let target = if id < pivot { &mut *leaf } else { &mut right };
    let Insert::Done { plan, .. } = target.plan_insert(id, value) else {
        return Err("no room after a split".to_owned());
    };
    target.apply(&plan);
    target.model.insert(id, value);
    leaf.check(false)?;
    right.check(false)?;
    if rng.one_in(2) {
        *leaf = right;
    }
    Ok(())
}

impl Leaf {
    fn position_before(&self, expected: &Expected, id: Id) -> Lookup {
        look_up(&self.whole(), expected, key(id))
    }
}

/// Merges a right neighbour with some keys into the leaf, if they fit.
fn merge(leaf: &mut Leaf, rng: &mut Rng, universe: u64) -> Result<bool, String> {
    let absent = (0..universe).filter(|id| !leaf.model.contains_key(id));
    let ids: Vec<Id> = absent.filter(|_| rng.one_in(4)).take(leaf.layout.span() / 4).collect();
    let items: Vec<Item> = ids.iter().map(|id| item(*id, 1)).collect();
    let after = Node { sibling: rng.next() & 0xFFFF, high: [rng.next(), 1], ..leaf.node };
    let mut image = leaf.whole();
    let Some(absorb) = split::absorb(&mut image, &leaf.node, &after, &items) else {
        assert_eq!(image.whole(), Some(&leaf.memory[..]));
        return Ok(false);
    };
    leaf.apply(&absorb.copies);
    leaf.apply(&absorb.commit);
    leaf.node = after;
    leaf.model.extend(ids.iter().map(|id| (*id, 1)));
    assert_eq!(Some(&leaf.memory[..]), image.whole());
    leaf.check(true)?;
    let mut right = Leaf::new(leaf.layout, Node { address: 0x3000, ..leaf.node });
    right.apply(&retire(leaf.layout, leaf.node.sibling));
    let moved = Lookup::Moved(SiblingWord::new(leaf.node.sibling, true));
    assert!((0..universe).all(|id| right.look_up(id) == moved));
    Ok(true)
}

/// Counts of what happened.
#[derive(Debug, Default)]
struct Counts {
    inserts: usize,
    hops: usize,
    wraps: usize,
    splits: usize,
    merges: usize,
}

fn run(span: usize, h: usize, operations: usize, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Rng((span * 100 + h) as u64);
    let mut leaf = Leaf::new(layout(span, h), node(0x77, 0, u64::MAX));
    let universe = (span * 2) as u64;
    for value in 0..operations as u64 {
        let value = value & 0xFFFF;
        let id = rng.below(universe as usize) as u64;
        let kinds = if rng.one_in(40) { 12 } else { 10 };
        match rng.below(kinds) {
            0..5 => match leaf.plan_insert(id, value) {
                Insert::Done { plan, position } => {
                    let home = leaf.layout.home(key(id));
                    let (wraps, moves) = (position < home, plan.writes.len() > 3);
                    assert!(moves || plan.writes.len() == 2 + usize::from(wraps), "{plan:?}");
                    leaf.apply(&plan);
                    if leaf.model.insert(id, value).is_some() {
                        return Err(format!("key {id} was inserted twice"));
                    }
                    counts.inserts += 1;
                    counts.hops += usize::from(moves);
                    counts.wraps += usize::from(wraps);
                }
                Insert::Exists(_) if leaf.model.contains_key(&id) => {}
                Insert::Full(full) if !leaf.model.contains_key(&id) => {
                    split_and_insert(&mut leaf, &mut rng, id, value, &full)?;
                    counts.splits += 1;
                }
                other => return Err(format!("insert of {id}: {other:?}, present {:?}", leaf.model.get(&id))),
            },
            5..7 => match leaf.plan_update(id, value) {
                Some(plan) => {
                    let turned = plan.writes.len() == 3;
                    let before = leaf.model.get(&id).ok_or("updated an absent key")?;
                    assert_eq!(turned, item(id, *before).block != item(id, value).block, "{plan:?}");
                    assert!(turned || plan.writes.len() == 1);
                    leaf.apply(&plan);
                    *leaf.model.get_mut(&id).ok_or("updated an absent key")? = value;
                }
                None if leaf.model.contains_key(&id) => return Err(format!("key {id} is not there")),
                None => {}
            },
            7..10 => match leaf.plan_remove(id) {
                Some(plan) => {
                    assert!(plan.writes.len() <= 2);
                    leaf.apply(&plan);
                    leaf.model.remove(&id).ok_or("removed an absent key")?;
                }
                None if leaf.model.contains_key(&id) => return Err(format!("key {id} is not there")),
                None => {}
            },
            _ => counts.merges += usize::from(merge(&mut leaf, &mut rng, universe)?),
        }
        leaf.check(false)?;
        let id = rng.below(universe as usize) as u64;
        match (leaf.look_up(id), leaf.model.get(&id)) {
            (Lookup::Hit { item: found, .. }, Some(value)) if found == item(id, *value) => {}
            (Lookup::Candidates(found), value) => {
                let wanted = value.map(|value| item(id, *value).word1);
                if wanted.is_some_and(|word1| found.iter().all(|(_, other)| *other != word1)) {
                    return Err(format!("candidates {found:?}, expected {wanted:?}"));
                }
            }
            (Lookup::Miss, None) => {}
            (other, value) => return Err(format!("lookup of {id}: {other:?}, expected {value:?}")),
        }
    }
    Ok(())
}

const SHAPES: [(usize, usize); 12] =
    [(8, 2), (8, 8), (9, 4), (13, 8), (16, 3), (16, 16), (33, 4), (40, 8), (64, 8), (64, 16), (100, 16), (128, 2)];

#[test]
fn leaf_agrees_with_a_map_under_random_operations() {
    let mut counts = Counts::default();
    for (span, h) in SHAPES {
        run(span, h, 3000, &mut counts).unwrap_or_else(|error| panic!("span {span}, neighbourhood {h}: {error}"));
    }
    let Counts { inserts, hops, wraps, splits, merges } = counts;
    assert!(inserts > 8000 && hops > 300 && wraps > 300 && splits > 300 && merges > 40, "{counts:?}");
}

#[test]
fn insert_that_stops_at_the_first_vacancy_duplicates_keys() {
    plant(&[Fault::FirstVacancy]);
    let found = SHAPES.into_iter().any(|(span, h)| run(span, h, 3000, &mut Counts::default()).is_err());
    plant(&[]);
    assert!(found);
}

#[test]
fn build_makes_a_leaf_or_names_the_item_that_does_not_fit() {
    let (layout, node) = (layout(32, 4), node(5, 0, 1));
    let items: Vec<Item> = (0..24).map(|id| item(id, id)).collect();
    match build(layout, &node, 0, &items) {
        Ok(image) => assert_eq!(Leaf::held(&image).map(|held| held.len()), Ok(24)),
        Err(number) => assert!(number > 4),
    }
    let image = build(layout, &node, 0, &items[..8]).expect("eight fit");
    let model = (0..8).map(|id| (id, id)).collect();
    let leaf = Leaf { layout, node, memory: image.whole().expect("whole").to_vec(), model };
    assert_eq!(leaf.check(true), Ok(()));
    assert_eq!(recover::write_whole(&image).map(|write| write.words), Some(leaf.memory));
    assert_eq!(build(layout, &node, 0, &[items[0], items[2], items[0]]).err(), Some(2));
}

#[test]
fn hints_that_promise_too_much_or_too_little_cost_a_read_and_nothing_else() {
    let mut rng = Rng(4);
    let mut leaf = Leaf::new(layout(64, 8), node(0x77, 0, 1));
    for id in 0..48 {
        leaf.memory[layout::HINTS_OFFSET / 8] = Hints::from_bits(rng.next()).bits();
        let Insert::Done { plan, .. } = leaf.plan_insert(id, 1) else { continue };
        plan.writes.iter().for_each(|write| land(&mut leaf.memory, write));
        leaf.model.insert(id, 1);
    }
    assert!(leaf.model.len() > 40);
    let recovered = recover(&mut leaf.whole(), &leaf.node, |_, _| true).expect("sound");
    leaf.apply(&recovered.plan);
    assert_eq!(leaf.check(true), Ok(()));
}

#[test]
fn entries_under_another_seed_or_at_another_position_are_not_accepted() {
    let mut leaf = Leaf::new(layout(16, 4), node(0x77, 0, 1));
    let Insert::Done { plan, position } = leaf.plan_insert(2, 9) else { panic!("no room") };
    leaf.apply(&plan);
    let entry = leaf.whole().entry(position).expect("known");
    let expected = leaf.node.expected();
    assert_eq!(verify_entry(&entry, position, &expected), Some(item(2, 9)));
    assert_eq!(verify_entry(&entry, position + 1, &expected), None);
    for other in [
        Node { tag: 1, ..leaf.node },
        Node { address: 1, ..leaf.node },
        Node { sibling: 1, ..leaf.node },
        Node { low: [0, 0], ..leaf.node },
        Node { high: [0, 0], ..leaf.node },
    ] {
        assert_eq!(verify_entry(&entry, position, &other.expected()), None, "{other:?}");
    }
    let torn = Image::new(leaf.layout);
    assert_eq!(look_up(&torn, &expected, key(2)), Lookup::Torn);
    assert_eq!(scan(&torn, &expected), Scan::Torn);
}
