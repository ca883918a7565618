//! Write-back: an owner's change of a leaf that is in the cache stays there for a while (section 5 of the paper).
//!
//! Invariants (`docs/protocols/dex.md`, "Write-back"):
//!
//! * **W5** Of every leaf that the compute node owns, far memory has all, or the newest copy is in the cache, marked dirty, and the
//!   leaf is listed here, from before it is dirty until after it is not.
//! * **W6** A dirty leaf is written back by the operation that has its turn and counts as in progress, or while the gate is closed.
//!   Nobody changes the leaf meanwhile. If the operation is cancelled, or a verb fails, it keeps both for ever (N7).
//! * **W7** Far memory has all of a leaf before the compute node gives up its range, takes its lock, or changes it by verbs.

use super::Dex;
use super::ownership::{Gate, Inside, Ownership};
use crate::backoff::Backoff;
use crate::marks::mark;
use crate::traits::{Entry, KeyBounds};
use crate::tree::change::{Change, Present, Puts};
use crate::tree::descend::Found;
use crate::tree::fence::Key;
use crate::tree::local_locks::{Arrival, Turn};
use crate::tree::lookups::{Answer, LooksUp};
use crate::tree::node::{Layout, Node, USED};
use crate::tree::path_cache::{Dirty, Leaf, LeafCopy, LongFences};
use crate::{IndexError, Value};
use farindex_fabric::{Endpoint, OpKind, RemotePtr, Span, cold};
use farindex_pool::Waited;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Leaves that share a batch, when many are written back.
const LEAVES: usize = 64;
/// Pause between two looks at the lease.
const PAUSE: Duration = Duration::from_micros(50);

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// When it is in far memory: a crash of a compute node loses nothing.
    #[default]
    WriteThrough,
    /// When it is in the compute node's cache, if the leaf is there: a crash of the compute node loses what it has acknowledged
    /// within the setting `dirty_ms` and the time between two heartbeats. Lookups need ownership, as writes do.
    WriteBack,
}

/// How dirty leaves are written back.
pub(super) struct WriteBack {
    pub(super) leaf: Layout,
    /// May memory nodes be asked for what has been written?
    pub(super) calls: bool,
    /// For how long a leaf may be dirty.
    pub(super) age: Duration,
    /// How many leaves may be dirty.
    pub(super) most: usize,
}

/// A leaf of which far memory does not have all.
#[derive(Debug, Clone)]
pub(super) struct DirtyLeaf {
    pub(super) high: Option<Key>,
    at: RemotePtr,
    since: Duration,
}

/// The dirty leaves by their low keys. Their ranges do not change while they are dirty.
#[derive(Default)]
pub(super) struct DirtyLeaves {
    by_low: Mutex<BTreeMap<Key, DirtyLeaf>>,
    count: AtomicUsize,
}

impl DirtyLeaves {
    fn leaves(&self) -> MutexGuard<'_, BTreeMap<Key, DirtyLeaf>> {
        // No code panics while it holds this mutex.
        self.by_low.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
    /// Lists a leaf; returns whether it was not listed.
    fn insert(&self, low: Key, leaf: DirtyLeaf) -> bool {
        let mut leaves = self.leaves();
        let at = leaf.at;
        let new = leaves.insert(low, leaf).is_none_or(|old| old.at != at);
        self.count.store(leaves.len(), Ordering::SeqCst);
        new
    }
    fn remove(&self, low: &[u8], at: RemotePtr) {
        let mut leaves = self.leaves();
        if leaves.get(low).is_some_and(|leaf| leaf.at == at) {
            leaves.remove(low);
        }
        self.count.store(leaves.len(), Ordering::SeqCst);
    }
    /// Removes a leaf that is not dirty.
    fn unlist(&self, at: RemotePtr) {
        if !self.is_empty() {
            let mut leaves = self.leaves();
            leaves.retain(|_, leaf| leaf.at != at);
            self.count.store(leaves.len(), Ordering::SeqCst);
        }
    }
    fn clear(&self) {
        let mut leaves = self.leaves();
        leaves.clear();
        self.count.store(0, Ordering::SeqCst);
    }
    /// The addresses of those that are wanted.
    pub(super) fn list(&self, wanted: impl Fn(&[u8], &DirtyLeaf) -> bool) -> Vec<RemotePtr> {
        if self.is_empty() {
            return Vec::new();
        }
        self.leaves().iter().filter(|(low, leaf)| wanted(low, leaf)).map(|(_, leaf)| leaf.at).collect()
    }
    /// The dirty leaf that a key belongs to.
    fn covering(&self, key: &[u8]) -> Option<RemotePtr> {
        if self.is_empty() {
            return None;
        }
        let leaves = self.leaves();
        let below = (Bound::Unbounded, Bound::Included(key));
        let (_, leaf) = leaves.range::<[u8], _>(below).next_back()?;
        leaf.high.as_ref().is_none_or(|high| **high > *key).then_some(leaf.at)
    }
    /// The low key of the first dirty leaf that reaches beyond a key.
    fn first_beyond(&self, key: &[u8]) -> Option<Key> {
        if self.covering(key).is_some() {
            return Some(Key::from_slice(key));
        }
        let leaves = self.leaves();
        let above = (Bound::Excluded(key), Bound::Unbounded);
        leaves.range::<[u8], _>(above).next().map(|(low, _)| low.clone())
    }
}

/// What an operation must have as long as its WRITEs may land.
pub(super) struct InFlight<T>(Option<T>);

impl<T> InFlight<T> {
    pub(super) fn new(held: T) -> Self {
        InFlight(Some(held))
    }
    pub(super) fn held(&self) -> Option<&T> {
        self.0.as_ref()
    }
    /// Nothing is in flight any more.
    pub(super) fn landed(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            mark!("dex: operation ended in the middle of a write");
            std::mem::forget(held);
        }
    }
}

fn dirty_copy(own: &Ownership, at: RemotePtr) -> Option<LeafCopy> {
    own.cache.leaf(at).filter(|copy| copy.leaf().is_some_and(|leaf| leaf.dirty().is_some()))
}

impl Ownership {
    /// Writes these leaves back, as far as they are dirty. The caller keeps others from changing them (W6), and its pin keeps
    /// their memory from other uses if the index is dropped meanwhile.
    async fn write_leaves(&self, span: &Span, leaves: &[RemotePtr]) -> Result<(), IndexError> {
        let mut copies = Vec::with_capacity(leaves.len());
        for at in leaves {
            match dirty_copy(self, *at) {
                Some(copy) => copies.push((*at, copy)),
                None => self.dirty.unlist(*at),
            }
        }
        let dirty = || copies.iter().filter_map(|(at, copy)| Some((*at, copy.leaf()?, copy.leaf()?.dirty()?)));
        if copies.is_empty() {
            return Ok(());
        }
        if span.read(self.anchor, 8).await?.words() != [self.tag] {
            // The index was dropped.
            dirty().for_each(|(_, _, dirty)| dirty.set_written());
            self.dirty.clear();
            return Err(IndexError::Dropped);
        }
        let mut batch = span.batch();
        for (at, leaf, dirty) in dirty() {
            dirty.post(&mut batch, at, leaf.words(), self.write_back.leaf);
            if self.write_back.calls && !span.endpoint().capabilities().cpu_atomic {
                // What a READ has returned is there for calls, too (O2).
                batch.read(at, 8);
            }
        }
        batch.post().await?;
        mark!("write-back: dirty leaves were written back");
        for (at, leaf, low) in copies.iter().filter_map(|(at, copy)| {
            let leaf = copy.leaf()?;
            Some((*at, leaf, leaf.range()?.0))
        }) {
            leaf.dirty().into_iter().for_each(Dirty::set_written);
            self.dirty.remove(&low, at);
        }
        Ok(())
    }

    /// Writes these leaves back, as far as they are dirty, and returns what excludes others from them. It is kept for ever if a
    /// verb fails.
    async fn write_holding<T>(&self, span: &Span, leaves: &[RemotePtr], held: T) -> Result<T, IndexError> {
        let in_flight = InFlight::new(held);
        match self.write_leaves(span, leaves).await {
            Ok(()) => in_flight.landed().ok_or(IndexError::Dropped),
            Err(IndexError::Dropped) => {
                // Nothing was posted.
                drop(in_flight.landed());
                Err(IndexError::Dropped)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes these leaves back while the gate is closed, and no operation is in progress.
    pub(super) async fn flush_closed(&self, endpoint: &Endpoint, leaves: &[RemotePtr]) -> Result<(), IndexError> {
        if leaves.is_empty() {
            return Ok(());
        }
        let Some(client) = self.client() else { return Ok(()) };
        let session = client.session(endpoint.clone());
        mark!("write-back: dirty leaves were written back before their range was given away");
        for leaves in leaves.chunks(LEAVES) {
            let pin = session.pin(endpoint.span(OpKind::Maintenance))?;
            drop(self.write_holding(pin.span(), leaves, self.begin_closed()).await?);
        }
        Ok(())
    }

    /// Takes the turns at those of these leaves at which nobody has it.
    fn free_turns(&self, leaves: &[RemotePtr]) -> (Vec<Turn<'_, ()>>, Vec<RemotePtr>) {
        let turn = |at: &RemotePtr| match self.turns.arrive(*at, 0) {
            Arrival::Turn(turn) => Some((turn, *at)),
            Arrival::Wait(_) => None,
        };
        leaves.iter().filter_map(turn).unzip()
    }

    /// Writes these leaves back, but for those at which another operation has the turn.
    async fn flush_free(
        &self,
        span: impl Fn() -> Result<Span, IndexError>,
        leaves: &[RemotePtr],
    ) -> Result<(), IndexError> {
        for leaves in leaves.chunks(LEAVES) {
            let Some(active) = self.begin() else { return Ok(()) };
            let (turns, leaves) = self.free_turns(leaves);
            let span = span()?;
            drop(self.write_holding(&span, &leaves, (turns, active)).await?);
        }
        Ok(())
    }

    /// Writes back what has been dirty for long enough; everything, if no handle is open any more. Then gives up the owner
    /// record.
    pub(super) async fn write_back_due(&self, endpoint: &Endpoint) -> Result<(), IndexError> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let Some(client) = self.client() else { return Ok(()) };
        let (now, all) = (endpoint.now(), self.is_closed());
        let due = self.dirty.list(|_, leaf| all || now.saturating_sub(leaf.since) >= self.write_back.age);
        let session = client.session(endpoint.clone());
        let pin = session.pin(endpoint.span(OpKind::Maintenance))?;
        self.flush_free(|| Ok(endpoint.span(OpKind::Maintenance)), &due).await?;
        drop(pin);
        self.give_up_unused(endpoint);
        Ok(())
    }
}

impl Dex {
    pub(super) fn writes_back(&self) -> bool {
        self.config.durability == Durability::WriteBack
    }

    /// Waits until it is certain that this client has kept its lease up to now. So what this compute node owns was its own up to
    /// now, if it has not given it away.
    pub(super) async fn confirm(&self) -> Result<(), IndexError> {
        let (client, endpoint) = (self.session.client(), self.session.endpoint());
        while !client.keeps_lease(endpoint.now()) {
            mark!("write-back: waited for a heartbeat before an answer");
            client.tick(endpoint).await?;
            endpoint.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// What far memory does not have of a leaf, if it is dirty. The caller has the leaf's turn.
    pub(super) fn dirty_of(&self, at: RemotePtr) -> Option<Dirty> {
        if !self.writes_back() || self.own.dirty.is_empty() {
            return None;
        }
        dirty_copy(&self.own, at)?.leaf()?.dirty().cloned()
    }

    /// May this change stay in the cache? Only one of entries that lie in the leaf: then no block is linked or retired by it.
    pub(super) fn may_stay(&self, change: &Change<'_>, present: Option<&Present>) -> bool {
        let inline = matches!(change, Change::Remove(_) | Change::Put { len: 0, .. });
        self.writes_back() && inline && present.is_none_or(|present| present.block.1 == 0)
    }

    /// Puts a changed leaf into the cache, of which far memory does not have all; false if there is no room. The caller has the
    /// leaf's turn.
    pub(super) fn keep_dirty(&self, leaf: &Node, long: Option<Arc<LongFences>>, found: &Found, dirty: Dirty) -> bool {
        let since = dirty.since();
        let copy = Leaf::changed(leaf.buf.words(), long, dirty);
        let Some((low, high)) = copy.range() else { return false };
        let new = self.own.dirty.insert(low.clone(), DirtyLeaf { high, at: leaf.at, since });
        let parent = found.parent.as_ref().map_or(RemotePtr::NULL, |(parent, _)| parent.at);
        let kept = self.own.cache.put_leaf(leaf.at, copy, parent);
        if !kept && new {
            self.own.dirty.remove(&low, leaf.at);
        }
        kept
    }

    /// Is a leaf that is dirty since then to be written back at once?
    pub(super) fn is_due(&self, since: Duration) -> bool {
        let age = self.session.endpoint().now().saturating_sub(since);
        age >= self.own.write_back.age || self.own.dirty.count.load(Ordering::SeqCst) > self.own.write_back.most
    }

    /// Writes a leaf back if it is dirty. What the operation holds, which excludes others from the leaf, it keeps for ever if
    /// this fails.
    pub(super) async fn clean<T>(&self, span: &Span, leaves: &[RemotePtr], held: T) -> Result<T, IndexError> {
        if self.own.dirty.is_empty() {
            return Ok(held);
        }
        cold(self.own.write_holding(span, leaves, held)).await
    }

    /// Writes every leaf to far memory that this compute node has changed in its cache alone. What it has acknowledged before
    /// this was called is not lost any more if it crashes.
    pub async fn flush(&self) -> Result<(), IndexError> {
        if !self.writes_back() {
            return Ok(());
        }
        let all = self.own.dirty.list(|_, _| true);
        {
            let pin = self.tree().pin(self.tree().maintenance()).await?;
            self.own.flush_free(|| Ok(self.tree().maintenance()), &all).await?;
            drop(pin);
        }
        let (mut backoff, mut closed) = (Backoff::default(), Waited::default());
        for at in all {
            while dirty_copy(&self.own, at).is_some() {
                let turn = self.turn(at).await?;
                let Some(active) = self.own.begin() else {
                    // What is given away is written back.
                    drop(turn);
                    self.check_closed(&mut closed)?;
                    backoff.wait(&self.session).await;
                    continue;
                };
                closed = Waited::default();
                let pin = self.tree().pin(self.tree().maintenance()).await?;
                drop(self.clean(pin.span(), &[at], (turn, active)).await?);
            }
        }
        Ok(())
    }

    /// Writes a dirty leaf back that was to be evicted, and evicts it: the operation that needed room does that.
    pub(super) async fn evict_due(&self) -> Result<(), IndexError> {
        let Some(at) = self.own.cache.take_due() else { return Ok(()) };
        let (Some(active), Some(turn)) = (self.own.begin(), self.try_turn(at)) else { return Ok(()) };
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        let _held = self.clean(pin.span(), &[at], (active, turn)).await?;
        if dirty_copy(&self.own, at).is_none() {
            mark!("write-back: dirty leaf was written back and evicted");
            self.own.cache.remove(at);
        }
        Ok(())
    }

    /// What the copy of a dirty leaf says about its key. The caller is inside. `None`: far memory has all of the key's leaf.
    pub(super) fn answer_of_dirty(&self, key: &[u8]) -> Option<Answer> {
        let at = self.own.dirty.covering(key)?;
        let copy = self.own.cache.leaf(at)?;
        let leaf = copy.leaf().filter(|leaf| leaf.holds(key))?;
        Some(self.far.answer_in(at, leaf.words(), key))
    }

    /// The low key of the first dirty leaf that reaches beyond a key; that key itself if its own leaf is dirty.
    pub(super) fn first_dirty(&self, key: &[u8]) -> Option<Key> {
        if self.own.dirty.is_empty() { None } else { self.own.dirty.first_beyond(key) }
    }

    /// Begins an operation on a key, as its owner. Nothing may be pinned.
    async fn inside(&self, key: &[u8]) -> Result<Inside<'_>, IndexError> {
        let (mut backoff, mut closed) = (Backoff::default(), Waited::default());
        loop {
            match self.enter(key) {
                Gate::Inside(inside) => return Ok(inside),
                Gate::Foreign => {
                    closed = Waited::default();
                    cold(self.acquire(key)).await?;
                }
                Gate::Expired => {
                    self.session.client().tick(self.session.endpoint()).await?;
                    self.check_closed(&mut closed)?;
                    backoff.wait(&self.session).await;
                }
                Gate::Closed => {
                    self.check_closed(&mut closed)?;
                    backoff.wait(&self.session).await;
                }
            }
        }
    }

    /// Looks a key up as its owner. At a moment at which this compute node owns the key, and the key's leaf is not dirty, far
    /// memory has the newest state of it; so what a READ returns afterwards is no older.
    pub(super) async fn look_up_owned(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let _ended = super::write::Ended(self);
        loop {
            drop(self.inside(key).await?);
            let pin = self.tree().pin(self.session.span(OpKind::Get)).await?;
            let Gate::Inside(inside) = self.enter(key) else { continue };
            let answer = self.answer_of_copy(key).or_else(|| self.answer_of_dirty(key));
            drop(inside);
            let value = match answer {
                Some(answer) => self.value_of(pin.span(), answer, key).await?,
                None => {
                    let value = self.look_up_in_far_memory(pin, key).await?;
                    self.evict_due().await?;
                    value
                }
            };
            self.confirm().await?;
            return Ok(value);
        }
    }

    /// What the leaves of these keys say, those of foreign keys left out: from copies, and all other leaves in one batch.
    pub(super) async fn answers_owned(&self, span: &Span, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>, IndexError> {
        let (mut answers, mut far) = (Vec::with_capacity(keys.len()), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            answers.push(match self.enter(key) {
                Gate::Inside(_inside) => {
                    let answer = self.answer_of_copy(key).or_else(|| self.answer_of_dirty(key));
                    if answer.is_none() {
                        far.push(number);
                    }
                    answer
                }
                _ => None,
            });
        }
        if !far.is_empty() {
            let wanted: Vec<_> = far.iter().filter_map(|number| keys.get(*number).copied()).collect();
            let found = self.far.answers(span, &wanted).await?;
            for (number, found) in far.into_iter().zip(found) {
                if let Some(answer) = answers.get_mut(number) {
                    *answer = found;
                }
            }
        }
        self.confirm().await?;
        Ok(answers)
    }

    /// Scans as the owner, one partition after the other.
    pub(super) async fn scan_owned(&self, (from, to): KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let _ended = super::write::Ended(self);
        let (mut from, mut entries) = (from.map(<[u8]>::to_vec), Vec::new());
        while limit > entries.len() && !super::partitions::is_empty((from.as_ref().map(Vec::as_slice), to)) {
            let key = match &from {
                Bound::Included(key) | Bound::Excluded(key) => key.as_slice(),
                Bound::Unbounded => &[],
            };
            let high = self.inside(key).await?.range().1.map(<[u8]>::to_vec);
            let ends_here = match (&high, to) {
                (None, _) => true,
                (Some(high), Bound::Included(to)) => to < high.as_slice(),
                (Some(high), Bound::Excluded(to)) => to <= high.as_slice(),
                (Some(_), Bound::Unbounded) => false,
            };
            let end = match &high {
                Some(high) if !ends_here => Bound::Excluded(high.as_slice()),
                _ => to,
            };
            let (bounds, left) = ((from.as_ref().map(Vec::as_slice), end), limit - entries.len());
            let part = self.tree().scan_range(self, bounds, left, self.config.leaf_span / 2).await?;
            self.confirm().await?;
            // Others need not wait for a partition that was scanned.
            self.own.used();
            entries.extend(part);
            match high {
                Some(high) if !ends_here => from = Bound::Included(high),
                _ => break,
            }
        }
        self.evict_due().await?;
        Ok(entries)
    }
}

/// The bitmap of used slots of a leaf.
pub(super) fn used_words(leaf: &Node) -> [u64; 4] {
    let mut used = [0; 4];
    let words = leaf.buf.words().get(USED..leaf.layout.inline()).unwrap_or_default();
    used.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
    used
}
