//! Recovery of a leaf whose lock holder crashed, and building leaves.

use super::entry::{HomeSet, Item, Placed};
use super::faults::{Fault, planted};
use super::header::Node;
use super::hints::Hints;
use super::image::{Image, Words};
use super::insert::{Insert, insert};
use super::layout::{HEADER_WORDS, Layout, SIBLING};
use super::plan::{Plan, Write};
use std::collections::HashMap;

/// The sets of all homes. An item out of its neighbourhood is left out.
pub(super) fn home_sets(layout: Layout, items: &[Option<Item>]) -> Vec<HomeSet> {
    let mut sets = vec![HomeSet::default(); layout.span()];
    for (position, item) in items.iter().enumerate() {
        let Some(placed) = item.map(|item| Placed::of(item.key, layout)) else { continue };
        let distance = layout.distance(placed.home, position);
        if distance < layout.neighbourhood() {
            sets[placed.home].add(placed.hash, placed.inline, distance);
        }
    }
    sets
}

/// Brings a whole image to a state of the leaf, and returns what to write: everything but the lock.
pub(super) fn rewrite(image: &mut Image, items: &[Option<Item>], node: &Node) -> Plan {
    let hints = image.fill(items, node);
    Plan { writes: image.write(SIBLING..image.layout().words()).into_iter().collect(), hints }
}

/// A leaf that was recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// What to write: the whole node but for the lock.
    pub plan: Plan,
    /// Positions of the second copies of keys, which a hop left behind.
    pub folded: Vec<usize>,
    /// Positions of entries that the caller did not want to keep.
    pub dropped: Vec<usize>,
    /// Positions of entries whose checks did not hold, and were computed again. After one crash there is one at most,
    /// where an update was torn; more only where a split, a merge or a recovery changes the seed.
    pub rechecked: Vec<usize>,
}

/// Rebuilds the entries of the new right node of a split that a crash has cut off, from those of the left node: all that
/// `moves` names, at the same positions. `None` if the image is not whole, or holds nothing that moves: then the right
/// node was complete.
pub fn rebuild(left: &Image, right: &Node, moves: impl Fn(usize, &Item) -> bool) -> Option<Write> {
    let mut go = left.items()?;
    for (position, item) in go.iter_mut().enumerate() {
        *item = item.filter(|item| moves(position, item));
    }
    let mut new = Image::new(left.layout());
    new.fill(&go, right);
    let body = HEADER_WORDS..left.layout().words();
    go.iter().any(Option::is_some).then(|| new.write(body)).flatten()
}

/// A leaf that cannot be recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// The image is not whole.
    Incomplete,
    /// Occupied entries that are not in the neighbourhood of their home. No crash causes this.
    Misplaced(Vec<usize>),
}

/// Rebuilds a leaf from its occupied entries alone: checks, hop bitmaps, digests, replicas and hints are all derived
/// from them.
///
/// `image` is the whole leaf as the crash left it; the function brings it to the recovered state. `node` is that
/// state's [identity](Node::after_crash). `keep` says which entries belong there: those whose key lies between the low
/// and the high key. A split that is committed leaves others, and so does a merge that is not.
pub fn recover(
    image: &mut Image,
    node: &Node,
    mut keep: impl FnMut(usize, &Item) -> bool,
) -> Result<Recovered, Damage> {
    let layout = image.layout();
    let (seed, before) = (node.seed(), image.hints());
    let mut items = image.items().ok_or(Damage::Incomplete)?;
    let mut recovered = Recovered {
        plan: Plan { writes: Vec::new(), hints: Hints::from_bits(0) },
        folded: Vec::new(),
        dropped: Vec::new(),
        rechecked: Vec::new(),
    };
    let mut misplaced = Vec::new();
    // The form of a key and what identifies it: the key itself, or its block.
    let mut kept: HashMap<(bool, u64), usize> = HashMap::new();
    for position in 0..layout.span() {
        let (Some(entry), Some(item)) = (image.entry(position), items[position]) else { continue };
        let sound = entry.check_holds(position, seed);
        // The block of an update that has turned the entry (H2).
        let item = Item { block: item.block != (!sound && entry.state.turning()), ..item };
        items[position] = Some(item);
        if !keep(position, &item) {
            recovered.dropped.push(position);
            items[position] = None;
            continue;
        }
        if layout.distance(layout.home(item.key), position) >= layout.neighbourhood() {
            misplaced.push(position);
            continue;
        }
        let identity = (item.key.inline, if item.key.inline { item.key.word0 } else { item.word1 });
        if let Some(other) = kept.insert(identity, position) {
            // Two copies are equal, but for damage: prefer the one whose check holds.
            let (folded, stays) = if sound { (other, position) } else { (position, other) };
            kept.insert(identity, stays);
            recovered.rechecked.retain(|at| *at != folded);
            recovered.folded.push(folded);
            items[folded] = None;
        } else if !sound {
            recovered.rechecked.push(position);
        }
    }
    if !misplaced.is_empty() {
        return Err(Damage::Misplaced(misplaced));
    }
    recovered.plan = rewrite(image, &items, node);
    if let (true, Some(before)) = (planted(Fault::StaleVacancy), before) {
        recovered.plan.hints = before;
        image.set(super::layout::HINTS, before.bits());
    }
    Ok(recovered)
}

/// Builds a new leaf of these items; `lock` is its lock word. On error, the number of the first item that did not fit,
/// or that is there twice.
pub fn build(layout: Layout, node: &Node, lock: u64, items: &[Item]) -> Result<Image, usize> {
    let mut image = Image::empty(layout, node, lock);
    let seed = node.seed();
    for (number, item) in items.iter().enumerate() {
        let hints = image.hints().ok_or(number)?;
        let others: Vec<usize> = if item.key.inline { Vec::new() } else { (0..layout.span()).collect() };
        match insert(&mut image, seed, hints, *item, &others) {
            Insert::Done { plan, .. } => image.set(super::layout::HINTS, plan.hints.bits()),
            _ => return Err(number),
        }
    }
    let held = image.items().unwrap_or_default();
    image.set(super::layout::HINTS, Hints::of(layout, &held).bits());
    Ok(image)
}

/// A WRITE of the whole image, for a new leaf; `None` if a word is not known.
pub fn write_whole(image: &Image) -> Option<Write> {
    image.write(0..image.layout().words())
}
