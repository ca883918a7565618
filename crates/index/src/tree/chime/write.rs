//! Writes: what becomes of a leaf under its lock, of which a neighbourhood was READ. `change` has the rest.
//!
//! ```text
//! [WRITE intent, CAS lock, READ header, READ neighbourhood, WRITE block]    one round trip
//! [READ neighbourhood]                                                      a lock that was handed over without it
//! [READ more entries]                                                       an insert whose neighbourhood is full
//! [READ blocks that have the key's hash]                                    keys of other lengths than 8 only
//! [WRITE entries, WRITE hints, CAS release, CAS intent]
//! ```
//!
//! An insert takes effect when its entry's state is written, a removal likewise, an update when the first of the two
//! words is (H2). One that changes nothing takes effect when it reads the leaf under its lock.

use super::Chime;
use super::held::{Held, read_more, unverified};
use super::leaf::layout::{HEADER_LEN, HINTS_OFFSET};
use super::leaf::{
    self, Hints, Image, Insert, Item, Lookup, Plan, Ranges, Words, Write, insert, look_up, remove, update,
};
use super::read::Place;
use crate::IndexError;
use crate::marks::mark;
use crate::tree::change::{Change, Done, Present, Puts, Writes, is_time_to_merge};
use crate::tree::descend::Separator;
use crate::tree::dropped::Taken;
use crate::tree::edit::{Edit, Steps};
use crate::tree::entries::{place, place_word};
use crate::tree::hand_over::{HandsOver, LeafLocks, TurnOf};
use crate::tree::lookups::{Candidates, LooksUp};
use crate::tree::node::Header;
use crate::tree::retry::{Step, Trouble};
use crate::tree::skeleton::{Locked, Tree, unsound};
use crate::write::{Mode, Wrote};
use farindex_fabric::{Batch, RemotePtr, Span, cold};
use farindex_pool::Pin;
use smallvec::SmallVec;
use std::ops::Range;

/// What is known of a key under the lock.
enum KeyState {
    Present(Present),
    /// It is absent; these positions have other keys with its hash.
    Absent(Vec<usize>),
}

impl Puts for Chime {
    fn tree(&self) -> &Tree {
        &self.tree
    }
    async fn change(&self, span: Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError> {
        self.change_by_lock(span, key, change).await
    }
}

impl Writes for Chime {
    type Held = Held;

    fn locks(&self) -> Option<&LeafLocks<Held>> {
        self.locks.as_deref()
    }
    /// The key's home, or all entries.
    fn wish(&self, key: &[u8], change: &Change<'_>) -> usize {
        let whole = !self.config.vacancy_bitmap && matches!(change, Change::Put { .. });
        if whole { self.layout.span() } else { self.layout.home(self.key_of(key)) }
    }
    async fn lock_leaf<'p>(
        &self,
        pin: &Pin<'p>,
        at: RemotePtr,
        wish: usize,
        also: impl FnOnce(&mut Batch<'_>),
    ) -> Step<Locked<'p, Held>> {
        self.lock(pin, at, &needed(self.layout, wish), also).await
    }
    fn take_over(&self, _: RemotePtr, held: Held) -> Held {
        held
    }

    async fn change_locked(
        &self,
        pin: &Pin<'_>,
        mut locked: Locked<'_, Held>,
        key: &[u8],
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
        turn: TurnOf<'_, Held>,
    ) -> Result<Done, IndexError> {
        let (span, place) = (pin.span(), self.place(key));
        let unknown = locked.node.unknown(self.wish(key, change));
        if !unknown.is_empty() {
            mark!("chime: neighbourhood is READ under a lock that was handed over");
            read_more(pin, &mut locked.node, &unknown).await?;
        }
        let state = self.find(span, &locked.node, (key, place)).await;
        let (mut locked, mut state) = self.tree.or_release(span, locked, state).await?;
        if let (Change::Put { mode: Mode::Insert | Mode::Upsert, .. }, KeyState::Present(present)) = (change, &state)
            && leaf::faults::planted(leaf::faults::Fault::FirstVacancy)
            && self.has_vacancy_before(&locked.node, place, present.slot)
        {
            state = KeyState::Absent(Vec::new());
        }
        let present = match &state {
            KeyState::Present(present) => Some(present),
            KeyState::Absent(_) => None,
        };
        if let Some(wrote) = change.refused(present) {
            self.tree.release_to_next(span, locked, Steps::default(), turn).await?;
            return Ok(Done::Wrote { wrote, few: false });
        }
        let (seed, hints) = (locked.node.node.seed(), locked.node.image.hints().unwrap_or(Hints::from_bits(0)));
        let planned = match (change, &state) {
            (Change::Remove(_), KeyState::Present(present)) => {
                planned(locked.node.at, remove(&mut locked.node.image, seed, hints, present.slot))
            }
            (Change::Put { value, block, len, .. }, KeyState::Present(present)) => {
                let item = item(place, value, (*block, *len));
                let update = update(&mut locked.node.image, seed, hints, present.slot, item.word1, item.block);
                planned(locked.node.at, update)
            }
            (Change::Put { value, block, len, .. }, KeyState::Absent(others)) => {
                let item = item(place, value, (*block, *len));
                self.plan_insert(pin, &mut locked.node, item, others).await
            }
            (Change::Remove(_), KeyState::Absent(_)) => Ok(None),
        };
        let (mut locked, planned) = self.tree.or_release(span, locked, planned).await?;
        let Some(plan) = planned else {
            missing.extend(cold(self.split_leaf(pin, locked)).await?);
            return Ok(Done::Split);
        };
        let few = matches!(change, Change::Remove(_)) && self.tries_to_merge(plan.hints);
        let mut edit = edit_of(plan.writes);
        if plan.hints != hints {
            locked.node.image.add(HINTS_OFFSET, &[plan.hints.bits()]);
            edit.put_words(HINTS_OFFSET / 8, [plan.hints.bits()]);
        }
        let mut steps = Steps::default();
        steps.write(self.unwritten(key, change));
        steps.edit(locked.node.at, edit);
        self.tree.release_to_next(span, locked, steps, turn).await?;
        let wrote = match state {
            KeyState::Present(present) => {
                present.retire(pin);
                Wrote::Updated
            }
            KeyState::Absent(_) => Wrote::Inserted,
        };
        Ok(Done::Wrote { wrote, few })
    }
}

/// A leaf is handed over as far as it is known.
impl HandsOver for Held {
    type Kept = Held;

    fn needs(&self, wish: usize) -> Ranges {
        needed(self.image.layout(), wish)
    }
    fn knows(&self, range: &Range<usize>) -> bool {
        (range.start / 8..range.end / 8).all(|index| self.image.word(index).is_some())
    }
    fn add(&mut self, offset: usize, words: &[u64]) {
        self.image.add(offset, words);
    }
    fn keep(self) -> Held {
        self
    }
}

/// What a change needs of a leaf in addition to the header: the neighbourhood of a home, or all entries.
fn needed(layout: leaf::Layout, wish: usize) -> Ranges {
    match wish < layout.span() {
        true => layout.neighbourhood_ranges(wish),
        false => std::iter::once(HEADER_LEN..layout.node_len()).collect(),
    }
}

impl Chime {
    /// Locks a leaf and READs its header and some ranges, in one batch; `also` adds WRITEs that are to be complete by then.
    pub(super) async fn lock<'p>(
        &self,
        pin: &Pin<'p>,
        at: RemotePtr,
        ranges: &Ranges,
        also: impl FnOnce(&mut Batch<'_>),
    ) -> Step<Locked<'p, Held>> {
        let taken = self.tree.take_lock(pin, at, |batch| {
            let header = batch.read(at, HEADER_LEN);
            let posted = Self::post_ranges(batch, at, ranges);
            also(batch);
            (header, posted)
        });
        let Taken { mut done, reads: (header, posted), cell } = match taken.await? {
            Ok(taken) => taken,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut image = Image::new(self.layout);
        image.add(0, done.buf(header).words());
        for (start, ticket) in posted {
            image.add(start, done.buf(ticket).words());
        }
        drop(done);
        match leaf::Node::read(&image, self.tree.tag, at.to_bits()) {
            Some(node) => Ok(Ok(Locked { node: Held { at, image, node }, cell })),
            None => {
                let node = unverified(at, image);
                let of_level = node.level() == 0;
                self.tree.release(pin.span(), Locked { node, cell }, Edit::default()).await?;
                // An inner node lies there by now.
                if of_level { Err(unsound(at)) } else { Ok(Err(Trouble::Stale(None))) }
            }
        }
    }

    /// Finds the entry of a key in a locked leaf.
    async fn find(&self, span: &Span, leaf: &Held, (key, place): (&[u8], Place)) -> Result<KeyState, IndexError> {
        match look_up(&leaf.image, &leaf.node.expected(), place.key) {
            Lookup::Hit { position, item: Item { block: false, word1, .. } } => {
                Ok(KeyState::Present(Present::inline(position, word1)))
            }
            Lookup::Hit { position, item } => {
                self.present(span, &SmallVec::from_slice(&[(position, item.word1)]), key).await
            }
            Lookup::Candidates(found) => self.present(span, &found, key).await,
            Lookup::Miss => Ok(KeyState::Absent(Vec::new())),
            Lookup::Torn | Lookup::Moved(_) => Err(unsound(leaf.at)),
        }
    }

    async fn present(&self, span: &Span, found: &Candidates, key: &[u8]) -> Result<KeyState, IndexError> {
        Ok(match self.block_of(span, found, key).await? {
            Some((position, block)) => {
                let at = found.iter().find(|(at, _)| *at == position).map(|(_, word1)| place(*word1).0);
                KeyState::Present(Present::of_block(position, at.unwrap_or(RemotePtr::NULL), block))
            }
            None => KeyState::Absent(found.iter().map(|(position, _)| *position).collect()),
        })
    }

    /// Is an entry vacant between a key's home and this position?
    fn has_vacancy_before(&self, leaf: &Held, place: Place, position: usize) -> bool {
        let mut before = self.layout.positions(place.home).take_while(|other| *other != position);
        before.any(|other| leaf.image.entry(other).is_some_and(|entry| entry.item().is_none()))
    }

    /// Plans an insert, and READs what that takes; `None` if the leaf must be split.
    async fn plan_insert(
        &self,
        pin: &Pin<'_>,
        leaf: &mut Held,
        item: Item,
        others: &[usize],
    ) -> Result<Option<Plan>, IndexError> {
        let (seed, hints) = (leaf.node.seed(), leaf.image.hints().unwrap_or(Hints::from_bits(0)));
        loop {
            match insert(&mut leaf.image, seed, hints, item, others) {
                Insert::Done { plan, .. } => return Ok(Some(plan)),
                Insert::Full(_) => return Ok(None),
                Insert::NeedsMore(from, count) => {
                    mark!("chime: insert READs beyond the neighbourhood");
                    read_more(pin, leaf, &self.layout.entries(from, count)).await?;
                }
                Insert::Exists(_) | Insert::Candidates(_) | Insert::Unsound(_) => return Err(unsound(leaf.at)),
            }
        }
    }

    /// Does a removal that leaves a leaf with these hints try to merge it? A bit of the vacancy bitmap of a large leaf stands
    /// for several entries, and does not tell how many are left: so there now and then, while it may be a quarter.
    fn tries_to_merge(&self, hints: Hints) -> bool {
        let span = self.layout.span();
        let left = (0..span).filter(|position| !hints.may_be_vacant(self.layout, *position)).count();
        if span <= 64 {
            return is_time_to_merge(left, span);
        }
        let turn = self.tree.turn.get();
        self.tree.turn.set(turn.wrapping_add(1));
        left <= span / 4 && turn.is_multiple_of(span as u64 / 16)
    }
}

fn planned(at: RemotePtr, change: leaf::Change) -> Result<Option<Plan>, IndexError> {
    match change {
        leaf::Change::Done(plan) => Ok(Some(plan)),
        leaf::Change::Unsound | leaf::Change::NeedsMore(_) => Err(unsound(at)),
    }
}

/// The item of a key with this value, or with this block and its bytes.
fn item(place_of: Place, value: &[u8], (block, len): (RemotePtr, u64)) -> Item {
    match <[u8; 8]>::try_from(value) {
        Ok(value) if len == 0 => Item { key: place_of.key, word1: u64::from_le_bytes(value), block: false },
        _ => Item { key: place_of.key, word1: place_word(block, len), block: true },
    }
}

/// An edit of these WRITEs.
pub(super) fn edit_of(writes: impl IntoIterator<Item = Write>) -> Edit {
    let mut edit = Edit::default();
    writes.into_iter().for_each(|write| edit.put_words(write.offset / 8, write.words));
    edit
}
