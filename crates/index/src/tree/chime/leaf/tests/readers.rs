//! Readers whose torn READ overlaps several operations, crashes and recoveries.
//!
//! The words of each WRITE land one by one in a random order, WRITE after WRITE. A reader takes the words of a
//! neighbourhood at random moments. The oracle looks at the memory at every moment of the READ: a key is present while
//! an entry holds it.

use super::*;
use crate::tree::chime::leaf::faults::{Fault, plant};

/// The words that land, one a step.
struct Steps(Vec<(usize, u64)>);

impl Steps {
    fn add(&mut self, writes: &[Write], rng: &mut Rng) {
        for write in writes {
            let from = self.0.len();
            self.0.extend(write.words.iter().enumerate().map(|(i, word)| (write.offset / 8 + i, *word)));
            rng.shuffle(&mut self.0[from..]);
        }
    }
}

/// Counts of verified answers.
#[derive(Debug, Default)]
struct Verified {
    reads: usize,
    /// Hits and misses during which the key's neighbourhood changed.
    hits: usize,
    misses: usize,
    torn: usize,
}

/// The moments at which a READ takes each word: random ones, or a few for whole entries.
fn moments(layout: Layout, ranges: &Ranges, steps: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let (a, b) = (rng.below(steps + 1), rng.below(steps + 1));
    let (start, end) = (a.min(b), a.max(b));
    let any = |rng: &mut Rng| start + rng.below(end - start + 1);
    let words = ranges.iter().flat_map(|range| range.start / 8..range.end / 8);
    let mut moments: Vec<(usize, usize)> = if rng.one_in(4) {
        words.map(|index| (any(rng), index)).collect()
    } else {
        let few: Vec<usize> = (0..2 + rng.below(2)).map(|_| any(rng)).collect();
        let entry = |index: usize| {
            (0..layout.span()).position(|at| (0..3).contains(&(index as isize - layout.entry_offset(at) as isize / 8)))
        };
        let mut of_entry = BTreeMap::new();
        words.map(|index| (*of_entry.entry(entry(index)).or_insert_with(|| few[rng.below(few.len())]), index)).collect()
    };
    moments.sort_unstable();
    moments
}

/// The inline values that entries hold for a key at this moment.
fn held(memory: &[u64], layout: Layout, key: Key, values: &mut Vec<u64>) -> bool {
    let before = values.len();
    for position in layout.positions(layout.home(key)) {
        let at = layout.entry_offset(position) / 8;
        let state = entry::State::from_bits(memory[at + 2]);
        if memory[at] == key.word0 && state.occupied() && state.inline() {
            values.push(memory[at + 1]);
        }
    }
    values.len() > before
}

/// One READ of a key's neighbourhood while the steps land: the first and last moment, and what was read. `at_each` sees
/// the memory at every moment of the READ.
fn read_while(
    leaf: &Leaf,
    steps: &[(usize, u64)],
    id: Id,
    rng: &mut Rng,
    mut at_each: impl FnMut(&[u64]),
) -> (usize, usize, Image) {
    let layout = leaf.layout;
    let moments = moments(layout, &layout.neighbourhood_ranges(layout.home(key(id))), steps.len(), rng);
    let (start, end) = (moments[0].0, moments[moments.len() - 1].0);
    let mut memory = leaf.memory.clone();
    steps[..start].iter().for_each(|(index, word)| memory[*index] = *word);
    let mut image = Image::new(layout);
    let mut next = moments.iter().peekable();
    for now in start..=end {
        if now > start {
            let (index, word) = steps[now - 1];
            memory[index] = word;
        }
        at_each(&memory);
        while let Some((_, index)) = next.next_if(|(moment, _)| *moment == now) {
            image.add(index * 8, &memory[*index..=*index]);
        }
    }
    (start, end, image)
}

/// One READ of a key's neighbourhood, and whether what it says is right.
fn read(leaf: &Leaf, steps: &[(usize, u64)], id: Id, rng: &mut Rng, counts: &mut Verified) -> Result<(), String> {
    let (layout, key) = (leaf.layout, key(id));
    let (mut values, mut absent) = (Vec::new(), false);
    let (start, end, image) =
        read_while(leaf, steps, id, rng, |memory| absent |= !held(memory, layout, key, &mut values));
    counts.reads += 1;
    match look_up(&image, &leaf.node.expected(), key) {
        Lookup::Hit { item, .. } if values.contains(&item.word1) => counts.hits += usize::from(start < end),
        Lookup::Miss if absent => counts.misses += usize::from(start < end),
        Lookup::Torn => counts.torn += 1,
        other => return Err(format!("{other:?}, values {values:x?}, absent {absent}, key {id}")),
    }
    Ok(())
}

/// Plans an insert of some absent key that makes this one hop, if there is one.
fn displacing(leaf: &Leaf, id: Id, universe: usize, rng: &mut Rng) -> Option<Plan> {
    let position = leaf.position_of(id)?;
    let first = rng.below(universe);
    (0..universe).map(|i| 2 * ((first + i) % universe) as Id).find_map(|other| {
        let Insert::Done { plan, .. } = leaf.plan_insert(other, 7) else { return None };
        let mut after = leaf.clone();
        after.apply(&plan);
        (after.position_of(id) != Some(position)).then_some(plan)
    })
}

/// Plans to insert a key that is absent, or to update or remove one that is present.
fn planned(leaf: &Leaf, id: Id, value: u64, update: bool) -> Option<Plan> {
    if leaf.position_of(id).is_some() {
        return if update { leaf.plan_update(id, value) } else { leaf.plan_remove(id) };
    }
    match leaf.plan_insert(id, value) {
        Insert::Done { plan, .. } => Some(plan),
        _ => None,
    }
}

/// Four operations that a reader of the bitmap alone takes for none: a key is inserted, it hops, the entry that it
/// leaves is emptied, and another key with the same home comes there.
fn hop_and_refill(mut leaf: Leaf, rng: &mut Rng) -> Option<(Leaf, Vec<Plan>, Id)> {
    let universe = leaf.layout.span() * 4;
    let focus = 2 * rng.below(universe) as Id;
    if let Some(plan) = leaf.plan_remove(focus) {
        leaf.apply(&plan);
    }
    let (mut after, mut plans) = (leaf.clone(), Vec::new());
    let mut then = |after: &mut Leaf, plan: Option<Plan>| {
        after.apply(plan.as_ref()?);
        plans.push(plan?);
        Some(())
    };
    let plan = planned(&after, focus, 1, false);
    then(&mut after, plan)?;
    let position = after.position_of(focus)?;
    let plan = displacing(&after, focus, universe, rng);
    then(&mut after, plan)?;
    if let Some(item) = after.whole().entry(position)?.item() {
        let plan = after.plan_remove(id_of(&item));
        then(&mut after, plan)?;
    }
    let home = after.layout.home(key(focus));
    let absent = |id: &Id| after.layout.home(key(*id)) == home && after.position_of(*id).is_none();
    let other = (0..universe as Id).map(|i| 2 * i).find(absent)?;
    let plan = planned(&after, other, 2, false);
    then(&mut after, plan)?;
    (after.position_of(other)? == position).then_some((leaf, plans, focus))
}

/// Interleaves readers with rounds of up to four operations. Keys are inline.
fn run(seed: u64, reads: usize, counts: &mut Verified) -> Result<(), String> {
    let mut rng = Rng(seed);
    let shapes = [(8, 2), (8, 3), (9, 4), (16, 4), (12, 8)];
    while counts.reads < reads {
        let (span, h) = shapes[rng.below(shapes.len())];
        let mut leaf = Leaf::new(layout(span, h), node(0x77, 0, 1));
        let universe = span + span / 2;
        let draw = |rng: &mut Rng| 2 * rng.below(universe) as Id;
        for id in 0..span as u64 * 3 / 4 {
            if let Insert::Done { plan, .. } = leaf.plan_insert(2 * id, 0) {
                leaf.apply(&plan);
            }
        }
        if let Some((leaf, plans, focus)) = hop_and_refill(leaf.clone(), &mut rng) {
            let mut steps = Steps(Vec::new());
            plans.iter().for_each(|plan| steps.add(&plan.writes, &mut rng));
            for _ in 0..200 {
                read(&leaf, &steps.0, focus, &mut rng, counts)?;
            }
        }
        for _ in 0..10 {
            let (mut steps, mut after, mut ids) = (Steps(Vec::new()), leaf.clone(), Vec::new());
            for _ in 0..1 + rng.below(4) {
                let (id, value) = (draw(&mut rng), rng.next() & 0xFFFF);
                let before: Vec<_> = after.whole().items().unwrap_or_default();
                ids.push(id);
                let plan = match rng.below(4) {
                    0 => displacing(&after, ids[0], universe, &mut rng),
                    kind => planned(&after, id, value, kind == 1),
                };
                let Some(plan) = plan else { continue };
                if rng.one_in(8) {
                    // The client crashes, and the next one recovers the leaf.
                    let mut words = plan.writes[..rng.below(plan.writes.len())].to_vec();
                    let next = &plan.writes[words.len()];
                    words.extend(
                        next.words
                            .iter()
                            .enumerate()
                            .filter(|_| rng.one_in(2))
                            .map(|(i, word)| Write { offset: next.offset + i * 8, words: vec![*word] }),
                    );
                    words.iter().for_each(|write| land(&mut after.memory, write));
                    steps.add(&words, &mut rng);
                    let recovered = recover(&mut after.whole(), &after.node, |_, _| true)
                        .map_err(|damage| format!("{damage:?}"))?;
                    steps.add(&recovered.plan.writes, &mut rng);
                    after.apply(&recovered.plan);
                } else {
                    after.apply(&plan);
                    steps.add(&plan.writes, &mut rng);
                }
                let now: Vec<_> = after.whole().items().unwrap_or_default();
                let moved = before.iter().zip(&now).filter(|(old, new)| old != new).flat_map(|(old, new)| old.or(*new));
                ids.extend(moved.map(|item| id_of(&item)));
            }
            for _ in 0..20 {
                let id = if rng.one_in(4) { draw(&mut rng) } else { ids[rng.below(ids.len())] };
                read(&leaf, &steps.0, id, &mut rng, counts)?;
            }
            leaf = after;
        }
    }
    Ok(())
}

#[test]
fn readers_of_a_changing_neighbourhood_answer_right_or_read_again() {
    let mut counts = Verified::default();
    assert_eq!(run(1, 100_000, &mut counts), Ok(()));
    let Verified { reads, hits, misses, torn } = counts;
    assert!(reads >= 100_000 && hits > 5_000 && misses > 5_000 && torn > 5_000, "{counts:?}");
}

/// Each of these rules is needed: without it, the same test finds a wrong answer.
#[test]
fn every_fault_of_readers_is_detected() {
    for fault in [Fault::NoHopComparison, Fault::NoDigest, Fault::FourBitVersions, Fault::HomeLast] {
        plant(&[fault]);
        let mut counts = Verified::default();
        let outcome = run(2, 1_000_000, &mut counts);
        plant(&[]);
        assert!(outcome.is_err(), "{fault:?}: {counts:?}");
    }
}

/// Reads keys of a leaf that nothing but its range changes. `model` has the keys that are there for a reader with this
/// expectation.
fn read_constant(
    leaf: &Leaf,
    steps: &[(usize, u64)],
    expected: &Expected,
    model: &BTreeMap<Id, u64>,
    ids: &[Id],
    rng: &mut Rng,
    counts: &mut Verified,
) {
    for _ in 0..30 {
        let id = ids[rng.below(ids.len())];
        let (_, _, image) = read_while(leaf, steps, id, rng, |_| ());
        counts.reads += 1;
        match (look_up(&image, expected, key(id)), model.get(&id)) {
            (Lookup::Hit { item: found, .. }, Some(value)) if found == item(id, *value) => counts.hits += 1,
            (Lookup::Miss, None) => counts.misses += 1,
            (Lookup::Torn | Lookup::Moved(_), _) => counts.torn += 1,
            (other, value) => panic!("{other:?}, expected {value:?}"),
        }
    }
}

fn some_leaf(layout: Layout, node: Node, ids: impl Iterator<Item = Id>, rng: &mut Rng) -> Leaf {
    let mut leaf = Leaf::new(layout, node);
    for id in ids {
        if let (false, Insert::Done { plan, .. }) = (rng.one_in(3), leaf.plan_insert(id, id)) {
            leaf.apply(&plan);
            leaf.model.insert(id, id);
        }
    }
    leaf
}

/// The words of a plan, or of a part of it and of the recovery after that.
fn landing(leaf: &Leaf, plan: &Plan, rng: &mut Rng, recovered: impl FnOnce(&mut Image) -> Recovered) -> Steps {
    let mut steps = Steps(Vec::new());
    steps.add(&plan.writes, rng);
    if rng.one_in(2) {
        steps.0.truncate(1 + rng.below(steps.0.len()));
        let mut crashed = leaf.clone();
        steps.0.iter().for_each(|(index, word)| crashed.memory[*index] = *word);
        let recovered = recovered(&mut crashed.whole());
        steps.add(&recovered.plan.writes, rng);
    }
    steps
}

#[test]
fn readers_of_a_leaf_that_is_split_or_merged_miss_no_key() {
    let (mut rng, mut counts) = (Rng(5), Verified::default());
    for round in 0..600 {
        let (span, h) = [(8, 2), (9, 4), (16, 4), (16, 8)][round % 4];
        let (layout, pivot) = (layout(span, h), span as Id);
        let ids: Vec<Id> = (0..span as Id).map(|i| 2 * i).collect();
        let (low, high): (Vec<Id>, Vec<Id>) = ids.iter().partition(|id| **id < pivot);
        let whole = some_leaf(layout, node(0x77, 0, 1 << 20), ids.iter().copied(), &mut rng);
        let right_node = Node { address: 0x2000, low: [pivot, 1], ..whole.node };
        let left_node = Node { sibling: right_node.address, high: [pivot, 1], ..whole.node };
        let done = split(&mut whole.whole(), &left_node, &right_node, |_, item| id_of(item) >= pivot).expect("whole");
        let mut plan = Plan { writes: done.commit, hints: done.rest.hints };
        plan.then(done.rest);
        let steps = landing(&whole, &plan, &mut rng, |image| {
            recover(image, &left_node, |_, item| id_of(item) < pivot).expect("no damage")
        });
        read_constant(&whole, &steps.0, &whole.node.expected(), &whole.model, &ids, &mut rng, &mut counts);
        read_constant(&whole, &steps.0, &left_node.expected(), &whole.model, &low, &mut rng, &mut counts);

        let left = some_leaf(layout, left_node, low.iter().copied().step_by(2), &mut rng);
        let right = some_leaf(layout, right_node, high.iter().copied().step_by(2), &mut rng);
        let items: Vec<Item> = right.whole().items().expect("whole").into_iter().flatten().collect();
        let Some(absorb) = absorb(&mut left.whole(), &left_node, &whole.node, &items) else { continue };
        let steps = landing(&left, &absorb.copies, &mut rng, |image| {
            recover(image, &left_node, |_, item| id_of(item) < pivot).expect("no damage")
        });
        read_constant(&left, &steps.0, &left_node.expected(), &left.model, &low, &mut rng, &mut counts);
        let mut steps = Steps(Vec::new());
        steps.add(&retire(layout, right_node.sibling).writes, &mut rng);
        read_constant(&right, &steps.0, &right_node.expected(), &right.model, &high, &mut rng, &mut counts);
        let mut copied = left.clone();
        copied.apply(&absorb.copies);
        let steps = landing(&copied, &absorb.commit, &mut rng, |image| {
            recover(image, &whole.node, |_, _| true).expect("no damage")
        });
        let mut all = left.model.clone();
        all.extend(&right.model);
        read_constant(&copied, &steps.0, &left_node.expected(), &left.model, &low, &mut rng, &mut counts);
        read_constant(&copied, &steps.0, &whole.node.expected(), &all, &ids, &mut rng, &mut counts);
    }
    let Verified { reads, hits, misses, torn } = counts;
    assert!(reads > 50_000 && hits > 5_000 && misses > 2_000 && torn > 5_000, "{counts:?}");
}
