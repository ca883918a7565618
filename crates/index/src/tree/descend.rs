//! Descents: from the root, through copies of inner nodes, to the node that a key belongs to.
//!
//! Invariants: a descent believes nothing that it has not read: the node at its end tells by its own range whether the
//! copies that led there still hold. A key beyond a node's high key is looked for in the right sibling (B1). A dead node
//! counts only behind the left sibling that points to it (B3).

use super::faults::{Fault, planted};
use super::fence::Key;
use super::inner::{Inner, Side};
use super::node::Header;
use super::path_cache::Way;
use super::retry::{Step, Trouble};
use super::skeleton::{Tree, Unread, WayRight};
use crate::IndexError;
use crate::marks::mark;
use farindex_fabric::{OpKind, RemotePtr, Span};
use std::sync::Arc;

/// Steps to the right on one level before a descent through copies begins again from the root. Through far memory there is
/// no such bound: where separators are missing, no other way leads there (bug 230).
const RIGHT_STEPS: u32 = 64;

/// A separator that is missing in some node of a level.
#[derive(Debug)]
pub(super) struct Separator {
    /// Level of the node that it belongs to.
    pub(super) level: u8,
    pub(super) child: RemotePtr,
    pub(super) key: Vec<u8>,
}

/// A dead node whose separator stays: the way to what lies behind it is that of its left neighbour, down to its level.
#[derive(Clone, Debug)]
struct Detour {
    low: Vec<u8>,
    level: u8,
}

/// The dead nodes that stand in an operation's way: one of a level at most, the one that was met last.
#[derive(Clone, Debug, Default)]
pub(super) struct Detours(Vec<Detour>);

impl Detours {
    /// Goes around the dead node of this level with this low key.
    pub(super) fn add(&mut self, low: &[u8], level: u8) {
        self.remove(level);
        self.0.push(Detour { low: low.to_vec(), level });
    }
    /// There is no such node any more.
    pub(super) fn remove(&mut self, level: u8) {
        self.0.retain(|detour| detour.level != level);
    }
    /// Those around nodes above this level.
    pub(super) fn above(&self, level: u8) -> Detours {
        Detours(self.0.iter().filter(|detour| detour.level > level).cloned().collect())
    }
}

/// What a descent looks for.
#[derive(Clone, Copy)]
pub(super) struct Goal<'a> {
    key: &'a [u8],
    side: Side,
    detours: &'a [Detour],
}

impl<'a> From<(&'a [u8], Side)> for Goal<'a> {
    fn from((key, side): (&'a [u8], Side)) -> Self {
        Goal { key, side, detours: &[] }
    }
}

impl<'a> Goal<'a> {
    /// The node of this key, around dead nodes.
    pub(super) fn around((key, side): (&'a [u8], Side), detours: &'a Detours) -> Self {
        Goal { key, side, detours: &detours.0 }
    }
    /// Where the way goes on from a node of this level: to the left of all dead nodes below. So a descent never has to go back to
    /// the left, and what was passed on the left is reached by right siblings.
    fn at_level(&self, level: u8) -> (&'a [u8], Side) {
        let below = self.detours.iter().filter(|detour| detour.level < level);
        match below.map(|detour| detour.low.as_slice()).min() {
            Some(low) if low <= self.key => (low, Side::Below),
            _ => (self.key, self.side),
        }
    }
}

/// Where a descent has ended.
pub(super) struct Found {
    pub(super) at: RemotePtr,
    pub(super) level: u8,
    /// The parent and the position in it; `None` for the root.
    pub(super) parent: Option<(Arc<Inner>, usize)>,
    /// Was the parent a copy that is older than this operation?
    pub(super) cached: bool,
}

impl Found {
    /// The parent to forget if the node is not the right one.
    pub(super) fn stale(&self) -> Trouble {
        Trouble::Stale(self.parent.as_ref().filter(|_| self.cached).map(|(parent, _)| parent.at))
    }
    /// The range of the node as its parent knows it.
    pub(super) fn range(&self) -> Option<(Key, Option<Key>)> {
        self.parent.as_ref().map(|(parent, i)| (parent.key(*i), parent.high_of(*i)))
    }
}

impl Tree {
    /// Descends to the node of this level that the key belongs to, without reading that node. Right siblings that no
    /// parent names are added to `missing`.
    pub(super) async fn descend(
        &self,
        span: &Span,
        goal: impl Into<Goal<'_>>,
        level: u8,
        fresh: bool,
        missing: &mut Vec<Separator>,
    ) -> Step<Found> {
        self.descend_until(span, goal, level, fresh, missing, |_, _| false).await
    }

    /// Descends as [`descend`](Self::descend) does, but ends above that level at an inner node of which there is no copy, if
    /// `ends` says so of its parent and the position in it.
    pub(super) async fn descend_until(
        &self,
        span: &Span,
        goal: impl Into<Goal<'_>>,
        level: u8,
        fresh: bool,
        missing: &mut Vec<Separator>,
        mut ends: impl FnMut(&Inner, usize) -> bool,
    ) -> Step<Found> {
        let goal = goal.into();
        let fresh = fresh || !goal.detours.is_empty();
        let way = if fresh { None } else { self.cache.way((goal.key, goal.side), level) };
        if let Some(Way { parent, position, root_level }) = way {
            self.height.set(root_level);
            return Ok(Ok(Found { at: parent.child(position), level, parent: Some((parent, position)), cached: true }));
        }
        let (mut at, mut want) = (self.root, None);
        // The node whose word led here: its address, if it was an old copy.
        let mut led: (Option<RemotePtr>, bool) = (None, false);
        let mut steps = 0;
        // High key of the node on the left.
        let mut passed: Option<Key> = None;
        loop {
            let (node, cached) = match self.inner(span, (at, led.0), want, fresh).await? {
                Ok(found) => found,
                Err(trouble) => return Ok(Err(if led.1 { Trouble::Stale(led.0) } else { trouble })),
            };
            if at == self.root {
                self.height.set(node.level);
            }
            let (key, side) = goal.at_level(node.level);
            if node.is_above(key, side) {
                return Ok(Err(Trouble::Stale(led.0.filter(|_| led.1).or(cached.then_some(at)))));
            }
            let by_sibling = steps > 0;
            if node.dead && (!by_sibling || node.len() == 0) {
                let dead = || Trouble::Dead { at, level: node.level, low: node.low.to_vec() };
                let trouble = if by_sibling { Trouble::UnsoundInner(at) } else { dead() };
                return Ok(Err(if led.1 { Trouble::Stale(led.0) } else { trouble }));
            }
            if node.is_below(key, side) {
                mark!("tree: moved right");
                if let (Some(high), false) = (&node.high, cached || led.1) {
                    missing.push(Separator { level: node.level + 1, child: node.sibling, key: high.to_vec() });
                }
                steps += 1;
                // Every step goes to a larger key: no way is endless.
                let high = node.high.as_deref();
                if high <= passed.as_deref() || node.sibling.is_null() || (steps > RIGHT_STEPS && !fresh) {
                    return Ok(Err(Trouble::Stale(led.0)));
                }
                passed = high.map(Key::from_slice);
                (led, at, want) = ((Some(at), cached), node.sibling, Some(node.level));
                continue;
            }
            if node.level == level {
                return Ok(Ok(Found { at, level, parent: None, cached }));
            }
            if node.level < level {
                // The tree has become lower.
                return Ok(Err(if cached { Trouble::Stale(Some(at)) } else { Trouble::NoLevel }));
            }
            let i = node.find(key, side);
            let child = node.child(i);
            if node.level == level + 1 {
                return Ok(Ok(Found { at: child, level, parent: Some((node, i)), cached }));
            }
            if !fresh && !self.cache.has(child) && ends(&node, i) {
                return Ok(Ok(Found { at: child, level: node.level - 1, parent: Some((node, i)), cached }));
            }
            (led, at, want, steps, passed) = ((Some(at), cached), child, Some(node.level - 1), 0, None);
        }
    }

    /// READs the node that a key belongs to, beginning where a descent has ended. `read` READs a node until it is sound;
    /// `first` is the node at the beginning, if that has been read.
    pub(super) async fn node_of<N: Header>(
        &self,
        span: &Span,
        found: &Found,
        key: &[u8],
        mut first: Option<N>,
        missing: &mut Vec<Separator>,
        read: impl AsyncFn(RemotePtr) -> Result<Result<N, Unread>, IndexError>,
    ) -> Step<N> {
        let (mut at, mut left): (_, Option<RemotePtr>) = (found.at, None);
        let mut way = WayRight::from(at);
        loop {
            let read = match first.take() {
                Some(node) => Ok(node),
                None => read(at).await?,
            };
            let node = match read {
                Ok(node) => node,
                Err(Unread::Dead) => {
                    // Its left sibling is about to take its range over, or to give it away.
                    return Ok(Err(left.map_or_else(|| self.gone(found), |at| Trouble::Held { at, seen: 0 })));
                }
                Err(why) if why == Unread::Changing || left.is_some() || !found.cached => {
                    return Ok(Err(Trouble::Unsound(at)));
                }
                Err(_) => return Ok(Err(found.stale())),
            };
            if node.is_dead() && left.is_none() {
                return Ok(Err(self.gone(found)));
            }
            let range = if left.is_some() { None } else { found.range() };
            let low = range.as_ref().map(|(low, _)| (low.as_slice(), low.as_slice().cmp(key)));
            if self.compare(span, node.low(), key, low).await?.is_gt() {
                return Ok(Err(found.stale()));
            }
            let high = range.as_ref().and_then(|(_, high)| high.as_ref());
            let high = high.map(|high| (high.as_slice(), high.as_slice().cmp(key)));
            let stays = planted(Fault::NoMoveRight) && span.kind() == OpKind::Get;
            if stays || self.compare(span, node.high(), key, high).await?.is_gt() {
                return Ok(Ok(node));
            }
            mark!("tree: node has been split");
            let next = node.sibling();
            if next.is_null() {
                return Ok(Err(found.stale()));
            }
            match (&found.parent, found.cached) {
                (Some((parent, _)), true) => self.cache.remove(parent.at),
                _ => {
                    if let Some(key) = self.fence_key(span, node.high()).await? {
                        missing.push(Separator { level: found.level + 1, child: next, key });
                    }
                }
            }
            (left, at) = (Some(at), way.to(next)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way on these levels, one after the other.
    fn way(goal: (&str, Side), detours: &Detours, levels: &[u8]) -> Vec<(String, Side)> {
        let goal = Goal::around((goal.0.as_bytes(), goal.1), detours);
        let on_level = |level: &u8| {
            let (key, side) = goal.at_level(*level);
            (String::from_utf8_lossy(key).into_owned(), side)
        };
        levels.iter().map(on_level).collect()
    }

    fn is_way(found: &[(String, Side)], expected: &[(&str, Side)]) -> bool {
        found.iter().map(|(key, side)| (key.as_str(), *side)).eq(expected.iter().copied())
    }

    #[test]
    fn a_way_goes_to_the_left_of_all_dead_nodes_below() {
        use Side::{At, Below};
        let mut detours = Detours::default();
        assert!(is_way(&way(("k5", At), &detours, &[1, 0]), &[("k5", At), ("k5", At)]));
        detours.add(b"k4", 0);
        detours.add(b"k3", 1);
        let found = way(("k5", At), &detours, &[2, 1, 0]);
        assert!(is_way(&found, &[("k3", Below), ("k4", Below), ("k5", At)]), "{found:?}");
        // It goes to the right only: also where the lower node is the one on the left.
        detours.add(b"k2", 0);
        let found = way(("k5", At), &detours, &[2, 1, 0]);
        assert!(is_way(&found, &[("k2", Below), ("k2", Below), ("k5", At)]), "{found:?}");
        // To the left neighbour of the dead node of level 0, and to its parent.
        detours.add(b"k4", 0);
        let found = way(("k4", Below), &detours.above(0), &[2, 1, 0]);
        assert!(is_way(&found, &[("k3", Below), ("k4", Below), ("k4", Below)]), "{found:?}");
        let found = way(("k4", At), &detours.above(0), &[2, 1]);
        assert!(is_way(&found, &[("k3", Below), ("k4", At)]), "{found:?}");
        detours.remove(1);
        assert!(is_way(&way(("k4", At), &detours.above(0), &[2]), &[("k4", At)]));
    }
}
