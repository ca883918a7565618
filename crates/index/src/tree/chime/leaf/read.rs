//! What readers verify. A reader holds no lock, and its READ may be torn at every word.

use super::entry::{Entry, HomeSet, Item, Key, Placed};
use super::faults::{Fault, planted};
use super::header::{Expected, SiblingWord};
use super::image::Words;
use super::layout::Layout;
use smallvec::SmallVec;

/// What a READ of a neighbourhood says about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The entry at this position held the inline key, with this value or block, at a moment of the READ.
    Hit {
        /// The position.
        position: usize,
        /// What it held.
        item: Item,
    },
    /// The entries at these positions had the key's hash; if none of their blocks holds the key, then the key was
    /// absent at a moment of the READ.
    Candidates(SmallVec<[(usize, u64); 2]>),
    /// The key was absent at a moment of the READ.
    Miss,
    /// The words are of different states, or not all known: read again.
    Torn,
    /// A metadata replica has another right sibling, or the leaf is dead: the leaf was split or merged, or its memory
    /// belongs to another node. The caller reads the header.
    Moved(SiblingWord),
}

/// Compares the keys that a neighbourhood's entries hold with the set in the home's state (H4).
pub fn home_sets_agree(found: HomeSet, published: HomeSet) -> bool {
    if planted(Fault::NoHopComparison) {
        return true;
    }
    found.hop == published.hop && (found.digest == published.digest || planted(Fault::NoDigest))
}

/// Compares a metadata replica with what the reader expects.
pub fn replica_agrees(replica: SiblingWord, expected: &Expected) -> bool {
    replica == expected.sibling
}

/// Returns the keys of this home in its neighbourhood as the entries hold them; `None` if an entry is not known.
fn found_set(words: &impl Words, home: usize) -> Option<HomeSet> {
    let layout = words.layout();
    let mut found = HomeSet::default();
    for (distance, position) in layout.positions(home).enumerate() {
        if let Some(item) = words.entry(position)?.item() {
            add_if_home(&mut found, layout, home, item, distance);
        }
    }
    Some(found)
}

fn add_if_home(found: &mut HomeSet, layout: Layout, home: usize, item: Item, distance: usize) {
    let placed = Placed::of(item.key, layout);
    if placed.home == home {
        found.add(placed.hash, placed.inline, distance);
    }
}

/// Does the home's state match the entries of its neighbourhood? `false` if one is not known.
pub(super) fn home_set_matches(words: &impl Words, home: usize) -> bool {
    let published = words.entry(home).map(|entry| entry.state.home_set());
    published.zip(found_set(words, home)).is_some_and(|(published, found)| found == published)
}

/// Returns the first known replica that does not agree.
fn disagreeing_replica(words: &impl Words, expected: &Expected) -> Option<SiblingWord> {
    let layout = words.layout();
    let replicas = (0..layout.groups()).filter_map(|group| words.word(layout.replica_word(group)));
    replicas.map(SiblingWord::from_bits).find(|replica| !replica_agrees(*replica, expected))
}

/// Looks up a key in the words of its neighbourhood ([`Layout::neighbourhood_ranges`]), or of more.
///
/// A hit needs the entry alone (R1). Everything else needs every entry of the neighbourhood, and the home's set (R2). A
/// leaf in which a client has stopped within a change therefore still serves the inline keys that it holds.
pub fn look_up(words: &impl Words, expected: &Expected, key: Key) -> Lookup {
    let layout = words.layout();
    let placed = Placed::of(key, layout);
    let mut candidates = SmallVec::new();
    let mut found = HomeSet::default();
    let mut torn = false;
    for (distance, position) in layout.positions(placed.home).enumerate() {
        let sound = words.entry(position).filter(|entry| entry.check_holds(position, expected.seed));
        let Some(entry) = sound else {
            torn = true;
            continue;
        };
        let Some(item) = entry.item() else { continue };
        if item.key == key {
            if key.inline {
                return Lookup::Hit { position, item };
            }
            candidates.push((position, item.word1));
        }
        add_if_home(&mut found, layout, placed.home, item, distance);
    }
    if let Some(replica) = disagreeing_replica(words, expected) {
        return Lookup::Moved(replica);
    }
    let published = words.entry(placed.home).map(|entry| entry.state.home_set());
    if torn || !published.is_some_and(|published| home_sets_agree(found, published)) {
        return Lookup::Torn;
    }
    if candidates.is_empty() { Lookup::Miss } else { Lookup::Candidates(candidates) }
}

/// Verifies one entry that was read alone, speculatively; returns what it held at a moment of the READ.
pub fn verify_entry(entry: &Entry, position: usize, expected: &Expected) -> Option<Item> {
    entry.item().filter(|_| entry.check_holds(position, expected.seed))
}

/// What a READ of a whole leaf says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scan {
    /// Each item was there at a moment of the READ, and every key that is not listed was absent at one. The moments may
    /// differ from home to home. Positions ascend.
    Items(Vec<(usize, Item)>),
    /// As in [`Lookup::Torn`].
    Torn,
    /// As in [`Lookup::Moved`].
    Moved(SiblingWord),
}

/// Verifies all entries and all homes of a leaf that was read whole.
pub fn scan(words: &impl Words, expected: &Expected) -> Scan {
    let layout = words.layout();
    if let Some(replica) = disagreeing_replica(words, expected) {
        return Scan::Moved(replica);
    }
    let mut items = Vec::new();
    let mut found = vec![HomeSet::default(); layout.span()];
    let mut published = Vec::with_capacity(layout.span());
    for position in 0..layout.span() {
        let Some(entry) = words.entry(position).filter(|entry| entry.check_holds(position, expected.seed)) else {
            return Scan::Torn;
        };
        published.push(entry.state.home_set());
        let Some(item) = entry.item() else { continue };
        let placed = Placed::of(item.key, layout);
        let distance = layout.distance(placed.home, position);
        if distance >= layout.neighbourhood() {
            return Scan::Torn;
        }
        found[placed.home].add(placed.hash, placed.inline, distance);
        items.push((position, item));
    }
    let agree = found.into_iter().zip(published).all(|(found, published)| home_sets_agree(found, published));
    if agree { Scan::Items(items) } else { Scan::Torn }
}
