//! Writes: in place, by the owner, without the leaf's lock; under the lock where the shape of the tree changes.
//!
//! ```text
//! [READ leaf, WRITE block]                         no copy of the leaf
//! [READ blocks that have the key's hash]           entries with blocks only
//! [WRITE block, WRITE slot, WRITE checksum and bitmap]
//! ```
//!
//! Invariants: D3 and D4 in `docs/protocols/dex.md`. An operation has the leaf's turn, and is inside, from before it looks at
//! the leaf until its WRITEs have completed. If it is cancelled meanwhile, or a verb fails, it keeps both for ever: nobody
//! knows when its WRITEs land (N7).

use super::Dex;
use super::offload::{CHANGE, WAY};
use super::ownership::{Gate, Inside};
use super::wire::{Ask, Outcome};
use super::write_back::{InFlight, used_words};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::marks::mark;
use crate::tree::change::{Change, Puts, is_time_to_merge};
use crate::tree::descend::{Found, Separator};
use crate::tree::edit::Steps;
use crate::tree::faults::{Fault, planted};
use crate::tree::local_locks::Turn;
use crate::tree::node::{Header, Node};
use crate::tree::path_cache::{Dirty, Seen};
use crate::tree::retry::{Retry, Step, Trouble};
use crate::tree::sherman::write::Planned;
use crate::tree::skeleton::{Leaves, Tree, Unread, WayRight};
use crate::write::Wrote;
use farindex_fabric::{RemotePtr, Span, cold};
use farindex_pool::{Pin, Waited};

/// READs of a leaf in the middle of a change, before the operation waits.
const READS: u32 = 4;

/// How a round has ended.
enum Round {
    Wrote {
        wrote: Wrote,
        few: bool,
    },
    /// The leaf was split: try again.
    Split,
    /// Another operation of this compute node has the turn at this leaf.
    Queued(RemotePtr),
}

/// A write, which lets other compute nodes have what it became the owner of when it ends, however that is.
pub(super) struct Ended<'o>(pub(super) &'o Dex);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.own.used();
    }
}

impl Puts for Dex {
    fn tree(&self) -> &Tree {
        &self.far.tree
    }
    async fn change(&self, span: Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError> {
        let _ended = Ended(self);
        let (mut retry, mut full, mut span) = (Retry::default(), 0, Some(span));
        let (mut missing, mut turn, mut backoff) = (Vec::new(), None, Backoff::default());
        let mut closed = Waited::default();
        let (wrote, few) = loop {
            let inside = match self.enter(key) {
                Gate::Inside(inside) => inside,
                Gate::Foreign => {
                    turn = None;
                    closed = Waited::default();
                    cold(self.acquire(key)).await?;
                    // What it has got is kept for it for a moment only.
                    backoff = Backoff::default();
                    continue;
                }
                gate => {
                    turn = None;
                    if matches!(gate, Gate::Expired) {
                        self.session.client().tick(self.session.endpoint()).await?;
                    }
                    drop(gate);
                    self.check_closed(&mut closed)?;
                    backoff.wait(&self.session).await;
                    continue;
                }
            };
            closed = Waited::default();
            let pin = self.tree().pin(span.take().unwrap_or_else(|| self.tree().maintenance())).await?;
            let round = self.round(&pin, (inside, &mut turn), (key, change), &retry, &mut missing).await;
            // Nothing is pinned between rounds, so that memory comes back while this one waits.
            if let Ok(Ok(Round::Queued(_))) = &round {
                span = Some(pin.into_span());
            } else {
                drop(pin);
                turn = None;
            }
            match round {
                Ok(Ok(Round::Wrote { wrote, few })) => break (wrote, few),
                Ok(Ok(Round::Split)) => {}
                Ok(Ok(Round::Queued(at))) => turn = Some(self.turn(at).await?),
                Ok(Err(trouble)) => cold(self.tree().settle(self, &mut retry, trouble)).await?,
                Err(error) => {
                    // Others need not wait while this one waits for memory.
                    self.own.used();
                    cold(self.tree().wait_for_room(&mut full, error)).await?;
                }
            }
            if !missing.is_empty() {
                turn = None;
                cold(self.tree().add_missing(self, &mut retry, &mut missing)).await?;
            }
        };
        // The write has taken effect: what else fails is no failure of it, but for a failed verb.
        if self.writes_back()
            && let Err(error @ IndexError::Fabric(_)) = cold(self.evict_due()).await
        {
            return Err(error);
        }
        match cold(self.tidy(key, few, (retry, missing))).await {
            Err(error @ IndexError::Fabric(_)) => Err(error),
            _ => Ok(wrote),
        }
    }
}

impl Dex {
    /// Fails if the gate has been closed for two leases without a break.
    pub(super) fn check_closed(&self, closed: &mut Waited) -> Result<(), IndexError> {
        let waited = closed.look(&self.session);
        if waited <= self.session.pool().lease() * 2 {
            return Ok(());
        }
        let (at, holder) = (self.tree().anchor, "an operation of this compute node, which was cancelled".to_owned());
        Err(IndexError::Locked { at, waited_ms: waited.as_millis() as u64, holder })
    }

    async fn round<'t>(
        &'t self,
        pin: &Pin<'_>,
        (mut inside, turn): (Inside<'t>, &mut Option<Turn<'t, ()>>),
        (key, change): (&[u8], &Change<'_>),
        retry: &Retry,
        missing: &mut Vec<Separator>,
    ) -> Step<Round> {
        let (tree, span) = (self.tree(), pin.span());
        let found = match self.descend_to_write(span, (key, change), (retry, &inside), missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut at = found.at;
        let mut way = WayRight::from(at);
        let (leaf, cached, long) = loop {
            if turn.as_ref().is_none_or(|turn| turn.at() != at) {
                // One turn at a time (H1).
                *turn = None;
                *turn = self.try_turn(at);
                if turn.is_none() {
                    return Ok(Ok(Round::Queued(at)));
                }
            }
            let copy = self.copy_of(at);
            if (copy.is_none() || planted(Fault::CallKeepsCopy))
                && at == found.at
                && let Some(ask) = self.offloads_change(&inside, &found, (key, change), retry)
            {
                let held = if planted(Fault::CallWithoutTurn) { turn.take().and(None) } else { turn.take() };
                let in_flight = InFlight::new((held, inside));
                let Some((_, owner)) = in_flight.held() else { return Ok(Ok(Round::Split)) };
                let reply = cold(self.change_by_call(span, ask, at, (key, owner))).await?;
                let Some((held, owner)) = in_flight.landed() else { return Ok(Ok(Round::Split)) };
                (*turn, inside) = (held, owner);
                match reply.map(|reply| (reply.outcome, reply.entries)) {
                    Some((Outcome::Wrote { present }, entries)) => {
                        mark!("dex: memory node changed a leaf");
                        let few = matches!(change, Change::Remove(_)) && is_time_to_merge(entries, self.far.leaf.span);
                        let wrote = if present { Wrote::Updated } else { Wrote::Inserted };
                        return Ok(Ok(Round::Wrote { wrote, few }));
                    }
                    Some((Outcome::Nothing { present }, _)) => {
                        if let Some(wrote) = change.nothing(present) {
                            return Ok(Ok(Round::Wrote { wrote, few: false }));
                        }
                    }
                    _ => {
                        mark!("dex: memory node left a change to its caller");
                    }
                }
                if turn.is_none() {
                    return Ok(Ok(Round::Split));
                }
            }
            let (leaf, cached, long) = match copy {
                Some((leaf, long)) => (leaf, true, long),
                None => match self.read_to_write(span, at, key, change).await? {
                    Ok(leaf) => (leaf, false, None),
                    Err(Unread::Changing) => return Ok(Err(Trouble::Unsound(at))),
                    Err(_) if at == found.at && found.cached => return Ok(Err(found.stale())),
                    Err(_) => return Ok(Err(Trouble::Unsound(at))),
                },
            };
            if leaf.is_dead() {
                return Ok(Err(if at == found.at { tree.gone(&found) } else { found.stale() }));
            }
            if leaf.is_locked() && !planted(Fault::OverHeldLock) {
                return Ok(Err(Trouble::Held { at, seen: 0 }));
            }
            let range = found.range().filter(|_| at == found.at);
            let low = range.as_ref().map(|(low, _)| (low.as_slice(), low.as_slice().cmp(key)));
            if tree.compare(span, leaf.low(), key, low).await?.is_gt() {
                return Ok(Err(found.stale()));
            }
            let high = range.as_ref().and_then(|(_, high)| high.as_ref());
            let high = high.map(|high| (high.as_slice(), high.as_slice().cmp(key)));
            if tree.compare(span, leaf.high(), key, high).await?.is_gt() {
                break (leaf, cached, long);
            }
            mark!("dex: moved right to write");
            let next = leaf.sibling();
            if next.is_null() {
                return Ok(Err(found.stale()));
            }
            match (&found.parent, found.cached) {
                (Some((parent, _)), true) => tree.cache.remove(parent.at),
                _ => {
                    if let Some(key) = tree.fence_key(span, leaf.high()).await? {
                        missing.push(Separator { level: 1, child: next, key });
                    }
                }
            }
            at = way.to(next)?;
        };
        if let Some(bound) = self.bound_inside(span, &inside, &leaf, &found).await?.map(<[u8]>::to_vec)
            && !planted(Fault::AcrossBound)
        {
            mark!("dex: leaf of two owners was split");
            let _held = self.clean(span, &[at], (turn.take(), inside)).await?;
            return cold(self.split_own(pin, at, Some(&bound), missing)).await;
        }
        let present = self.far.find(span, &leaf, key).await?;
        let keeps = cached || self.admits();
        let long = if keeps && !cached { self.long_fences(span, &leaf, &found).await? } else { long };
        if let Some(wrote) = change.refused(present.as_ref()) {
            if keeps && !cached {
                self.keep(&leaf, long, &found);
            }
            if self.writes_back() {
                self.confirm().await?;
            }
            return Ok(Ok(Round::Wrote { wrote, few: false }));
        }
        let (before, dirty) = (used_words(&leaf), self.dirty_of(at));
        let mut leaf = leaf;
        let Some(Planned { edit, few }) = self.far.plan(&mut leaf, key, change, present.as_ref()) else {
            let _held = self.clean(span, &[at], (turn.take(), inside)).await?;
            return cold(self.split_own(pin, at, None, missing)).await;
        };
        let wrote = if present.is_some() { Wrote::Updated } else { Wrote::Inserted };
        if keeps && self.may_stay(change, present.as_ref()) {
            let now = self.session.endpoint().now();
            let first = || Dirty::new(&before, now);
            let mut dirty = dirty.clone().unwrap_or_else(first);
            dirty.add(&before, &leaf, present.as_ref().map(|present| present.slot));
            let since = dirty.since();
            if self.keep_dirty(&leaf, long.clone(), &found, dirty) {
                mark!("write-back: change stays in the cache");
                if self.is_due(since) {
                    drop(self.clean(span, &[at], (turn.take(), inside)).await?);
                }
                self.confirm().await?;
                return Ok(Ok(Round::Wrote { wrote, few }));
            }
        }
        if dirty.is_some() {
            // Far memory gets what was acknowledged before, and then this change.
            (*turn, inside) = self.clean(span, &[at], (turn.take(), inside)).await?;
        }
        let mut steps = Steps::default();
        steps.write(self.far.unwritten(key, change));
        steps.edit(at, edit);
        let in_flight = InFlight::new((turn.take(), inside));
        if !planted(Fault::CopyDuringWrite) {
            self.own.cache.remove(at);
        }
        // Lookups wait for the new copy: it is there sooner than a READ of theirs would end.
        let flag = if keeps { self.own.cache.look_at_leaf(at) } else { Seen::Nothing(None) };
        if !(planted(Fault::CacheOnly) && cached) {
            let mut batch = tree.begin_steps(span, at, steps).await?;
            if self.calls && !self.session.endpoint().capabilities().cpu_atomic && !planted(Fault::CallOvertakesWrites)
            {
                // What a READ has returned is there for calls, too; a WRITE that has completed need not be (O2).
                batch.read(at, 8);
            }
            batch.post().await?;
        }
        if keeps {
            self.keep(&leaf, long, &found);
        } else {
            self.own.cache.remove(at);
        }
        drop(flag);
        drop(in_flight.landed());
        present.iter().for_each(|present| present.retire(pin));
        Ok(Ok(Round::Wrote { wrote, few }))
    }

    /// Descends to the leaf of a key that is to be changed; a memory node may find the rest of the way.
    async fn descend_to_write(
        &self,
        span: &Span,
        (key, change): (&[u8], &Change<'_>),
        (retry, inside): (&Retry, &Inside<'_>),
        missing: &mut Vec<Separator>,
    ) -> Step<Found> {
        let costs = if self.change_to_ask(key, change).is_some() { CHANGE } else { WAY };
        let found = match self.descend_or_call(span, key, (retry, Some(inside)), costs, missing).await? {
            Ok(found) if found.level > 0 => found,
            ended => return Ok(ended),
        };
        if let Some(leaf) = cold(self.locate_by_call(span, &found, key)).await? {
            mark!("dex: memory node found a leaf");
            return Ok(Ok(leaf));
        }
        self.tree().descend(span, retry.goal(key), 0, retry.fresh, missing).await
    }

    /// What the memory node is to be asked, if it is to change the leaf where a descent has ended.
    fn offloads_change(
        &self,
        inside: &Inside<'_>,
        found: &Found,
        (key, change): (&[u8], &Change<'_>),
        retry: &Retry,
    ) -> Option<Ask> {
        let ask = self.change_to_ask(key, change).filter(|_| !retry.fresh)?;
        match &found.parent {
            Some((parent, i)) => self.chooses_call(inside, parent, *i, CHANGE).then_some(ask),
            // A memory node has found it, so that a call is cheaper.
            None => Some(ask),
        }
    }

    /// READs a leaf until it is sound, and WRITEs the block of a change with it.
    async fn read_to_write(
        &self,
        span: &Span,
        at: RemotePtr,
        key: &[u8],
        change: &Change<'_>,
    ) -> Result<Result<Node, Unread>, IndexError> {
        let mut why = Unread::Foreign;
        for _ in 0..READS {
            let mut batch = span.batch();
            if let Some((ptr, buf)) = self.far.unwritten(key, change) {
                batch.write(ptr, buf);
            }
            let read = batch.read(at, self.leaf_len());
            let words = batch.post().await?.buf(read);
            why = match self.leaf(span, at, words) {
                Ok(leaf) => return Ok(Ok(leaf)),
                Err(why) => why,
            };
        }
        Ok(Err(why))
    }

    /// Splits a leaf under its lock: at a bound of the partition, or in the middle.
    async fn split_own(
        &self,
        pin: &Pin<'_>,
        at: RemotePtr,
        bound: Option<&[u8]>,
        missing: &mut Vec<Separator>,
    ) -> Step<Round> {
        let (tree, span) = (self.tree(), pin.span());
        self.own.cache.remove(at);
        let locked = match tree.lock(pin, at, (self.far.leaf, 0), |_| {}).await? {
            Ok(locked) => locked,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let locked = match bound {
            None => locked,
            Some(bound) => {
                // The other owner may have split it meanwhile.
                let (locked, (low, high)) = tree.compare_range(span, locked, bound, None).await?;
                if !(low.is_lt() && high.is_gt()) {
                    tree.release(span, locked, Default::default()).await?;
                    return Ok(Ok(Round::Split));
                }
                locked
            }
        };
        missing.extend(tree.split_at(&self.far, pin, locked, bound).await?);
        Ok(Ok(Round::Split))
    }
}
