//! Insert, with hops; update; remove. The caller holds the leaf's lock.

use super::entry::{Item, Placed, Seed};
use super::faults::{Fault, planted};
use super::hints::Hints;
use super::image::{Image, Words};
use super::plan::{Draft, Plan};
use super::read::home_set_matches;

/// What came of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Insert {
    /// The image holds the item now.
    Done {
        /// What to write.
        plan: Plan,
        /// The item's position.
        position: usize,
    },
    /// The key is there already, at this position.
    Exists(usize),
    /// These entries have the key's hash, and the caller has not said that they hold other keys.
    Candidates(Vec<usize>),
    /// Entries are not known: the caller must add so many (`1`) from this position on (`0`), around the end.
    NeedsMore(usize, usize),
    /// No entry can hop so that one of the key's neighbourhood becomes vacant. Here are the positions of that
    /// neighbourhood: all of its entries are occupied. A split between any two of their keys makes one of them vacant
    /// in the left node and one in the right node, so that the item then fits without a hop.
    Full(Vec<usize>),
    /// This entry's check fails, or the entries do not match their home: the leaf must be recovered.
    Unsound(usize),
}

/// What came of an update or a remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The image has changed; this is what to write.
    Done(Plan),
    /// The entry is not occupied, or its check fails.
    Unsound,
    /// Entries are not known: the caller must add this one.
    NeedsMore(usize),
}

/// Inserts an item into a partial image, which must hold the entries of [`Hints::insert_range`]. `others` are the
/// positions of entries that have the hash of the item's key and were found to hold other keys. The image changes only
/// if the outcome is [`Insert::Done`].
///
/// The plan has two WRITEs, or three where the neighbourhood wraps around, and three or four for each hop.
pub fn insert(image: &mut Image, seed: Seed, hints: Hints, item: Item, others: &[usize]) -> Insert {
    let layout = image.layout();
    let (span, h) = (layout.span(), layout.neighbourhood());
    let placed = Placed::of(item.key, layout);
    let mut candidates = Vec::new();
    let mut vacancy = None;
    for distance in 0..span {
        if distance >= h && vacancy.is_some() || planted(Fault::FirstVacancy) && vacancy.is_some() {
            break;
        }
        let position = layout.behind(placed.home, distance);
        let Some(entry) = image.entry(position) else {
            return needs_more(image, hints, placed.home, distance);
        };
        if !entry.check_holds(position, seed) {
            return Insert::Unsound(position);
        }
        match entry.item() {
            None => vacancy = vacancy.or(Some(distance)),
            Some(held) if distance < h && held.key == item.key => {
                if item.key.inline {
                    return Insert::Exists(position);
                }
                candidates.extend((!others.contains(&position)).then_some(position));
            }
            Some(_) => {}
        }
    }
    if !candidates.is_empty() {
        return Insert::Candidates(candidates);
    }
    if !planted(Fault::FirstVacancy) && !home_set_matches(image, placed.home) {
        return Insert::Unsound(placed.home);
    }
    let full = || Insert::Full(layout.positions(placed.home).collect());
    let Some(mut distance) = vacancy else { return full() };
    let mut hops = Vec::new();
    while distance >= h {
        match hop(image, placed.home, distance) {
            Some(from) => {
                hops.push((from, distance));
                distance = from;
            }
            None => return full(),
        }
    }
    let mut draft = Draft::new(image, seed, hints);
    for (from, to) in hops {
        move_entry(&mut draft, layout.behind(placed.home, from), layout.behind(placed.home, to));
    }
    let position = layout.behind(placed.home, distance);
    place(&mut draft, &placed, item, position);
    Insert::Done { plan: draft.finish(), position }
}

/// What to add where the entry `distance` behind the home is not known.
fn needs_more(image: &Image, hints: Hints, home: usize, distance: usize) -> Insert {
    let layout = image.layout();
    let (_, wanted) = hints.insert_range(layout, home);
    // The hints are wrong if there was no vacancy where they promised one.
    let count = if wanted > distance { wanted - distance } else { layout.span() - distance };
    Insert::NeedsMore(layout.behind(home, distance), count)
}

/// Finds the entry that can hop to the vacancy `distance` behind `base`: the farthest of the `H - 1` entries before it
/// whose own home is less than `H` away. All distances are from `base`.
fn hop(image: &Image, base: usize, distance: usize) -> Option<usize> {
    let layout = image.layout();
    (distance + 1 - layout.neighbourhood()..distance).find(|from| {
        let key = image.entry(layout.behind(base, *from)).and_then(|entry| entry.item()).map(|item| item.key);
        let home = key.map(|key| layout.home(key));
        home.is_some_and(|home| {
            layout.distance(home, layout.behind(base, *from)) + (distance - from) < layout.neighbourhood()
        })
    })
}

/// Moves an entry to a vacant one of its neighbourhood: the copy is there before the original goes (H2).
fn move_entry(draft: &mut Draft<'_>, from: usize, to: usize) {
    let layout = draft.image.layout();
    let Some(item) = draft.image.entry(from).and_then(|entry| entry.item()) else { return };
    let placed = Placed::of(item.key, layout);
    draft.set_data(to, item);
    draft.write_data(to);
    draft.set_occupied(to, Some(item));
    draft.write_state(to);
    draft.set_occupied(from, None);
    draft.cover(&placed, from, false);
    draft.cover(&placed, to, true);
    match placed.home == from {
        true => draft.write_state(from),
        // Both before and after, the home covers the key: the two state words are in no order.
        false => draft.write_with_home(placed.home, draft.state_range(from)),
    }
}

/// Fills a vacant entry of the item's neighbourhood: data words and the home's set first, the entry's state last (H2,
/// H3).
fn place(draft: &mut Draft<'_>, placed: &Placed, item: Item, position: usize) {
    draft.set_data(position, item);
    if placed.home == position {
        draft.write_data(position);
        draft.cover(placed, position, true);
    } else if planted(Fault::HomeLast) {
        draft.write_data(position);
        draft.set_occupied(position, Some(item));
        draft.write_state(position);
        draft.cover(placed, position, true);
        return draft.write_state(placed.home);
    } else {
        draft.cover(placed, position, true);
        draft.write_with_home(placed.home, draft.data_range(position));
    }
    draft.set_occupied(position, Some(item));
    draft.write_state(position);
}

/// Changes the value or block of an entry in one WRITE of two words, or, where one turns into the other, in three WRITEs
/// of a word (H2). The image must hold the entry.
pub fn update(image: &mut Image, seed: Seed, hints: Hints, position: usize, word1: u64, block: bool) -> Change {
    let Some(entry) = image.entry(position) else { return Change::NeedsMore(position) };
    let (Some(item), true) = (entry.item(), entry.check_holds(position, seed)) else { return Change::Unsound };
    let mut draft = Draft::new(image, seed, hints);
    let (state, new) = (draft.state_range(position), Item { word1, block, ..item });
    if item.block == block {
        draft.set_data(position, new);
        draft.set_occupied(position, Some(new));
        draft.write(state.start - 1..state.end);
    } else {
        draft.set_turning(position);
        draft.write_state(position);
        draft.set_data(position, new);
        draft.write(state.start - 1..state.start);
        draft.set_occupied(position, Some(new));
        draft.write_state(position);
    }
    Change::Done(draft.finish())
}

/// Empties an entry: its own state first, its home's set afterwards (H3). The image must hold both.
pub fn remove(image: &mut Image, seed: Seed, hints: Hints, position: usize) -> Change {
    let layout = image.layout();
    let Some(entry) = image.entry(position) else { return Change::NeedsMore(position) };
    let (Some(item), true) = (entry.item(), entry.check_holds(position, seed)) else { return Change::Unsound };
    let placed = Placed::of(item.key, layout);
    match image.entry(placed.home) {
        None => return Change::NeedsMore(placed.home),
        Some(home) if !home.check_holds(placed.home, seed) => return Change::Unsound,
        Some(_) if layout.distance(placed.home, position) >= layout.neighbourhood() => return Change::Unsound,
        Some(_) => {}
    }
    let mut draft = Draft::new(image, seed, hints);
    draft.set_occupied(position, None);
    if placed.home == position {
        draft.cover(&placed, position, false);
        draft.write_state(position);
    } else {
        draft.write_state(position);
        draft.cover(&placed, position, false);
        draft.write_state(placed.home);
    }
    Change::Done(draft.finish())
}
