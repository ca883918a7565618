//! Writes: lock a leaf and READ a neighbourhood of it, change that, release it.
//!
//! ```text
//! [WRITE intent, CAS lock, READ header, READ neighbourhood, WRITE block]    one round trip
//! [READ more entries]                                                       an insert whose neighbourhood is full
//! [READ blocks that have the key's hash]                                    keys of other lengths than 8 only
//! [WRITE entries, WRITE hints, CAS release, CAS intent]
//! ```
//!
//! An insert takes effect when its entry's state is written, a removal likewise, an update when the first of the two
//! words is (H2). One that changes nothing takes effect when it reads the leaf under its lock.

use super::Chime;
use super::held::{Held, read_more};
use super::leaf::layout::{HEADER_LEN, HINTS_OFFSET};
use super::leaf::{
    self, Change, Hints, Image, Insert, Item, Lookup, Plan, Words, Write, insert, look_up, remove, update,
};
use super::read::Place;
use crate::IndexError;
use crate::block;
use crate::marks::mark;
use crate::recovery::acquire;
use crate::tree::descend::Separator;
use crate::tree::edit::Edit;
use crate::tree::entries::{place, place_word};
use crate::tree::faults::{Fault, planted};
use crate::tree::node::{Header, magic};
use crate::tree::skeleton::{CHANGE, Locked, Retry, Step, Trouble, unsound};
use crate::write::{Mode, Wrote};
use farindex_fabric::{Batch, OpKind, RemotePtr, Span, cold};
use farindex_pool::{Intent, Pin};
use std::cell::Cell;

/// What is to become of a key.
enum Put<'a> {
    Value {
        mode: Mode,
        value: &'a [u8],
        /// The new block and its bytes; null for a value that lies in the leaf.
        block: RemotePtr,
        len: u64,
        /// Has the block been written?
        written: Cell<bool>,
    },
    Nothing,
}

/// An entry that is in the leaf already.
struct Present {
    position: usize,
    /// Its block and that block's bytes; null for a value that lies in the leaf.
    block: (RemotePtr, u64),
}

/// How a round has ended.
enum Round {
    Wrote {
        wrote: Wrote,
        few: bool,
    },
    /// The leaf was split: try again.
    Split,
}

/// What is known of a key under the lock.
enum KeyState {
    Present(Present),
    /// It is absent; these positions have other keys with its hash.
    Absent(Vec<usize>),
}

impl Chime {
    /// Inserts, updates or upserts.
    pub(super) async fn put(&self, mode: Mode, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let span = self.session.span(mode.kind());
        let (mut block, mut len) = (RemotePtr::NULL, 0);
        if key.len() != 8 || value.len() != 8 {
            len = block::block_len(key.len(), value.len()) as u64;
            block = self.session.alloc(&span, self.tree.place(), len).await?;
        }
        let change = Put::Value { mode, value, block, len, written: Cell::new(false) };
        let wrote = self.change(span, key, &change).await;
        match &wrote {
            // After a failed verb it may be linked all the same (N7).
            Ok(Wrote::Inserted | Wrote::Updated) | Err(IndexError::Fabric(_)) => {}
            _ if len > 0 => self.session.discard(block, len),
            _ => {}
        }
        wrote
    }

    pub(super) async fn delete(&self, key: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, &[])?;
        self.change(self.session.span(OpKind::Remove), key, &Put::Nothing).await
    }

    async fn change(&self, span: Span, key: &[u8], change: &Put<'_>) -> Result<Wrote, IndexError> {
        let (mut retry, mut full, mut span) = (Retry::default(), 0, Some(span));
        let (mut missing, place) = (Vec::new(), self.place(key));
        let (wrote, few) = loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.tree.maintenance()))?;
            let round = self.round(&pin, (key, place), change, &retry, &mut missing).await;
            // Nothing is pinned between rounds, so that memory comes back while this one waits.
            drop(pin);
            match round {
                Ok(Ok(Round::Wrote { wrote, few })) => break (wrote, few),
                Ok(Ok(Round::Split)) => {}
                Ok(Err(trouble)) => cold(self.tree.settle(self, &mut retry, trouble)).await?,
                Err(error) => self.tree.wait_for_room(&mut full, error).await?,
            }
            if !missing.is_empty() {
                cold(self.tree.add_separators(self, std::mem::take(&mut missing))).await?;
            }
        };
        // The write has taken effect: what else fails is no failure of it, but for a failed verb.
        match cold(self.tidy(key, few, missing)).await {
            Err(error @ IndexError::Fabric(_)) => Err(error),
            _ => Ok(wrote),
        }
    }

    /// Does what a write owes the tree: separators that it has missed, a merge of a leaf with few entries.
    async fn tidy(&self, key: &[u8], few: bool, missing: Vec<Separator>) -> Result<(), IndexError> {
        if few {
            self.tree.merge(self, 0, key).await?;
        }
        if !missing.is_empty() {
            self.tree.add_separators(self, missing).await?;
        }
        self.reclaim().await
    }

    async fn round(
        &self,
        pin: &Pin<'_>,
        (key, place): (&[u8], Place),
        change: &Put<'_>,
        retry: &Retry,
        missing: &mut Vec<Separator>,
    ) -> Step<Round> {
        let span = pin.span();
        let found = match self.tree.descend(span, retry.goal(key), 0, retry.fresh, missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let whole = !self.config.vacancy_bitmap && matches!(change, Put::Value { .. });
        let ranges = match whole {
            true => std::iter::once(HEADER_LEN..self.layout.node_len()).collect(),
            false => self.layout.neighbourhood_ranges(place.home),
        };
        let mut at = found.at;
        let locked = loop {
            let locked = self.lock(pin, at, &ranges, |batch| {
                if let Put::Value { value, block, len, written, .. } = change
                    && *len > 0
                    && !written.replace(true)
                {
                    batch.write(*block, block::encode(self.session.endpoint(), self.hash(key), key, value));
                }
            });
            let locked = match locked.await? {
                Ok(locked) => locked,
                Err(Trouble::Stale(None)) if at == found.at => return Ok(Err(self.tree.gone(&found))),
                Err(trouble) => return Ok(Err(trouble)),
            };
            let range = if at == found.at { found.range() } else { None };
            let (locked, (low, high)) = self.tree.compare_range(span, locked, key, range).await?;
            if low.is_le() && high.is_gt() || planted(Fault::NoRangeCheck) {
                break locked;
            }
            mark!("chime: moved right to lock");
            let (next, fence) = (locked.node.sibling(), locked.node.high());
            self.tree.release(span, locked, Edit::default()).await?;
            if low.is_gt() || next.is_null() {
                return Ok(Err(found.stale()));
            }
            match (&found.parent, found.cached) {
                (Some((parent, _)), true) => self.tree.cache.remove(parent.at),
                _ => {
                    if let Some(key) = self.tree.fence_key(span, fence).await? {
                        missing.push(Separator { level: 1, child: next, key });
                    }
                }
            }
            at = next;
        };
        self.change_locked(pin, locked, (key, place), change, missing).await.map(Ok)
    }

    /// Locks a leaf and READs its header and some ranges, in one batch; `also` adds WRITEs that are to be complete by then.
    pub(super) async fn lock<'p>(
        &self,
        pin: &Pin<'p>,
        at: RemotePtr,
        ranges: &super::leaf::Ranges,
        also: impl FnOnce(&mut Batch<'_>),
    ) -> Step<Locked<'p, Held>> {
        let span = pin.span();
        let free = magic(self.tree.tag, at);
        let cell = pin.session().intent_cell(at.node()).await?;
        let intent = Intent { index: self.uid, lock: self.tree.lock_of(at), what: [CHANGE, 0, 0, 0] };
        let taken = acquire(span, &cell, &intent, (free, free | 1), |batch| {
            let header = batch.read(at, HEADER_LEN);
            let posted = Self::post_ranges(batch, at, ranges);
            also(batch);
            (header, posted)
        });
        let mut image = Image::new(self.layout);
        match taken.await? {
            Ok((mut done, (header, posted))) => {
                image.add(0, done.buf(header).words());
                for (start, ticket) in posted {
                    image.add(start, done.buf(ticket).words());
                }
            }
            Err(word) if word == free | 1 => {
                mark!("tree: lock is held");
                return Ok(Err(Trouble::Held(at)));
            }
            Err(_) => return Ok(Err(Trouble::Stale(None))),
        }
        match super::leaf::Node::read(&image, self.tree.tag, at.to_bits()) {
            Some(node) => Ok(Ok(Locked { node: Held { at, image, node }, cell })),
            None => {
                let node = super::held::unverified(at, image);
                let of_level = node.level() == 0;
                self.tree.release(span, Locked { node, cell }, Edit::default()).await?;
                // An inner node lies there by now.
                if of_level { Err(unsound(at)) } else { Ok(Err(Trouble::Stale(None))) }
            }
        }
    }

    /// Changes a leaf under its lock, and releases it. After a failed verb the lock stays held (N7): the client is evicted
    /// before another one goes on.
    async fn change_locked(
        &self,
        pin: &Pin<'_>,
        locked: Locked<'_, Held>,
        (key, place): (&[u8], Place),
        change: &Put<'_>,
        missing: &mut Vec<Separator>,
    ) -> Result<Round, IndexError> {
        let span = pin.span();
        let state = self.find(span, &locked.node, (key, place)).await;
        let (mut locked, mut state) = self.tree.or_release(span, locked, state).await?;
        if let (Put::Value { mode: Mode::Insert | Mode::Upsert, .. }, KeyState::Present(present)) = (change, &state)
            && leaf::faults::planted(leaf::faults::Fault::FirstVacancy)
            && self.has_vacancy_before(&locked.node, place, present.position)
        {
            state = KeyState::Absent(Vec::new());
        }
        let nothing = match (change, &state) {
            (Put::Value { mode: Mode::Insert, .. }, KeyState::Present(_)) => Some(Wrote::Exists),
            (Put::Value { mode: Mode::Update, .. } | Put::Nothing, KeyState::Absent(_)) => Some(Wrote::Absent),
            _ => None,
        };
        if let Some(wrote) = nothing {
            self.tree.release(span, locked, Edit::default()).await?;
            return Ok(Round::Wrote { wrote, few: false });
        }
        let (seed, hints) = (locked.node.node.seed(), locked.node.image.hints().unwrap_or(Hints::from_bits(0)));
        let planned = match (change, &state) {
            (Put::Nothing, KeyState::Present(present)) => {
                planned(locked.node.at, remove(&mut locked.node.image, seed, hints, present.position))
            }
            (Put::Value { value, block, len, .. }, KeyState::Present(present)) => {
                let item = item(place, value, (*block, *len));
                let update = update(&mut locked.node.image, seed, hints, present.position, item.word1, item.block);
                planned(locked.node.at, update)
            }
            (Put::Value { value, block, len, .. }, KeyState::Absent(others)) => {
                let item = item(place, value, (*block, *len));
                self.plan_insert(pin, &mut locked.node, item, others).await
            }
            (Put::Nothing, KeyState::Absent(_)) => Ok(None),
        };
        let (locked, planned) = self.tree.or_release(span, locked, planned).await?;
        let Some(plan) = planned else {
            missing.extend(self.split_leaf(pin, locked).await?);
            return Ok(Round::Split);
        };
        let few = matches!(change, Put::Nothing) && self.seems_few(plan.hints);
        let mut edit = edit_of(plan.writes);
        if plan.hints != hints {
            edit.put_words(HINTS_OFFSET / 8, [plan.hints.bits()]);
        }
        self.tree.release(span, locked, edit).await?;
        match state {
            KeyState::Present(Present { block: (block, len), .. }) => {
                if len > 0 {
                    pin.retire(block, len);
                }
                Ok(Round::Wrote { wrote: Wrote::Updated, few })
            }
            KeyState::Absent(_) => Ok(Round::Wrote { wrote: Wrote::Inserted, few }),
        }
    }

    /// Finds the entry of a key in a locked leaf.
    async fn find(&self, span: &Span, leaf: &Held, (key, place): (&[u8], Place)) -> Result<KeyState, IndexError> {
        match look_up(&leaf.image, &leaf.node.expected(), place.key) {
            Lookup::Hit { position, item: Item { block: false, .. } } => {
                Ok(KeyState::Present(Present { position, block: (RemotePtr::NULL, 0) }))
            }
            Lookup::Hit { position, item } => self.present(span, &[(position, item.word1)], key).await,
            Lookup::Candidates(found) => self.present(span, &found, key).await,
            Lookup::Miss => Ok(KeyState::Absent(Vec::new())),
            Lookup::Torn | Lookup::Moved(_) => Err(unsound(leaf.at)),
        }
    }

    async fn present(&self, span: &Span, found: &[(usize, u64)], key: &[u8]) -> Result<KeyState, IndexError> {
        Ok(match self.block_of(span, found, key).await? {
            Some((position, block)) => {
                let at = found.iter().find(|(at, _)| *at == position).map(|(_, word1)| place(*word1).0);
                KeyState::Present(Present { position, block: (at.unwrap_or(RemotePtr::NULL), block.len()) })
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
                    read_more(pin, leaf.at, &mut leaf.image, &self.layout.entries(from, count)).await?;
                }
                Insert::Exists(_) | Insert::Candidates(_) | Insert::Unsound(_) => return Err(unsound(leaf.at)),
            }
        }
    }

    /// Does a leaf with these hints seem to have a quarter of its entries at most? A bit of the vacancy bitmap of a large
    /// leaf stands for several entries; so now and then only.
    fn seems_few(&self, hints: Hints) -> bool {
        let span = self.layout.span();
        let vacant = (0..span).filter(|position| hints.may_be_vacant(self.layout, *position)).count();
        let turn = self.tree.turn.get();
        self.tree.turn.set(turn.wrapping_add(1));
        vacant >= span - span / 4 && (span <= 64 || turn.is_multiple_of(span as u64 / 16))
    }
}

fn planned(at: RemotePtr, change: Change) -> Result<Option<Plan>, IndexError> {
    match change {
        Change::Done(plan) => Ok(Some(plan)),
        Change::Unsound | Change::NeedsMore(_) => Err(unsound(at)),
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
