//! Writes: lock a leaf, change it, and release it or hand it over. What every leaf design does alike.
//!
//! ```text
//! [WRITE intent, CAS lock, READ leaf, WRITE block]    one round trip; none if the lock was handed over
//! ...                                                 what the leaf design does under the lock
//! [WRITEs, CAS release, CAS intent]                   one round trip
//! ```
//!
//! Invariants: a write changes a leaf only if the key lies in the range that the leaf has under its lock (B1). Nothing is
//! pinned while an operation waits.

use super::anchor::Anchor;
use super::descend::Separator;
use super::edit::Steps;
use super::faults::{Fault, planted};
use super::hand_over::{HandsOver, InHand, LeafLocks, Place, Queued, TurnOf};
use super::node::Header;
use super::retry::{Retry, Step, Trouble};
use super::skeleton::{Leaves, Locked, Tree, WayRight};
use crate::IndexError;
use crate::Value;
use crate::block::{self, Block};
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::table_per_node::TablePerNode;
use crate::traits::RemoveIf;
use crate::write::{Guard, Mode, Wrote};
use farindex_fabric::{Batch, Buf, OpKind, RemotePtr, Span, cold};
use farindex_pool::Pin;
use std::cell::Cell;

/// What is to become of a key.
pub(super) enum Change<'a> {
    Put {
        mode: Mode<'a>,
        value: &'a [u8],
        /// The new block and its bytes; null if key and value have 8 bytes each, and lie in the leaf.
        block: RemotePtr,
        len: u64,
        /// Has the block been written?
        written: Cell<bool>,
    },
    Remove(Guard<'a>),
}

impl Change<'_> {
    /// The condition on the value of a present key under which the key changes.
    pub(super) fn guard(&self) -> Guard<'_> {
        match self {
            Change::Put { mode, .. } => mode.guard(),
            Change::Remove(guard) => *guard,
        }
    }
    /// The outcome if nothing changes, given the entry that is there.
    pub(super) fn refused(&self, present: Option<&Present>) -> Option<Wrote> {
        let differs = present.is_some_and(|present| !present.value.is_admitted_by(self.guard()));
        if differs && !planted(Fault::Uncompared) { Some(Wrote::Differs) } else { self.nothing(present.is_some()) }
    }
    /// The outcome if nothing changes, whatever the value is; `present` says whether the key is there.
    pub(super) fn nothing(&self, present: bool) -> Option<Wrote> {
        match self {
            Change::Put { mode: Mode::Insert, .. } if present => Some(Wrote::Exists),
            Change::Put { mode: Mode::Update(_), .. } | Change::Remove(_) if !present => Some(Wrote::Absent),
            _ => None,
        }
    }
}

/// An entry that is in the leaf already.
pub(super) struct Present {
    pub(super) slot: usize,
    /// Its block and that block's bytes; null if the entry has none.
    pub(super) block: (RemotePtr, u64),
    /// Its value.
    pub(super) value: EntryValue,
}

/// The value of an entry, as its leaf and its block hold it.
pub(super) enum EntryValue {
    Inline(u64),
    Block(Value),
}

impl EntryValue {
    fn is_admitted_by(&self, guard: Guard<'_>) -> bool {
        match self {
            EntryValue::Inline(word) => guard.admits(&word.to_le_bytes()),
            EntryValue::Block(value) => guard.admits(value),
        }
    }
}

impl Present {
    /// An entry without a block.
    pub(super) fn inline(slot: usize, value: u64) -> Present {
        Present { slot, block: (RemotePtr::NULL, 0), value: EntryValue::Inline(value) }
    }
    /// An entry with the block at this address.
    pub(super) fn of_block(slot: usize, at: RemotePtr, block: Block) -> Present {
        Present { slot, block: (at, block.len()), value: EntryValue::Block(block.into_value()) }
    }
    /// Retires the block, which nothing points to any more.
    pub(super) fn retire(&self, pin: &Pin<'_>) {
        let (block, len) = self.block;
        if len > 0 {
            pin.retire(block, len);
        }
    }
}

/// What came of the work under a lock.
pub(super) enum Done {
    Wrote {
        wrote: Wrote,
        /// Has the leaf few entries, so that it is [time to merge](is_time_to_merge) it?
        few: bool,
    },
    /// The leaf was split: try again.
    Split,
}

/// Is it time to try to merge a leaf, of whose entries a removal has left so many? From a third of the leaf down, whenever a
/// sixteenth of it has gone: a merge that did not fit is not tried again at every removal.
pub(super) fn is_time_to_merge(left: usize, span: usize) -> bool {
    left <= span / 3 && left.is_multiple_of(span.div_ceil(16))
}

/// How a round has ended.
pub(super) enum Round<'t, N: HandsOver> {
    Done(Done),
    /// Other operations of this compute node are ahead at the leaf: wait, and try again.
    Queued(Queued<'t, N>),
}

/// Writes, however a leaf is changed.
pub(super) trait Puts: Leaves + TablePerNode<Table = Anchor> {
    fn tree(&self) -> &Tree;
    /// Changes a key.
    async fn change(&self, span: Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError>;

    /// Inserts, updates, upserts or replaces.
    async fn put(&self, mode: Mode<'_>, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let span = self.session.span(mode.kind());
        let (mut block, mut len) = (RemotePtr::NULL, 0);
        if key.len() != 8 || value.len() != 8 {
            len = block::block_len(key.len(), value.len()) as u64;
            block = self.session.alloc(&span, self.tree().place(), len).await?;
        }
        let change = Change::Put { mode, value, block, len, written: Cell::new(false) };
        let wrote = self.change(span, key, &change).await;
        match &wrote {
            // After a failed verb it may be linked all the same (N7).
            Ok(Wrote::Inserted | Wrote::Updated) | Err(IndexError::Fabric(_)) => {}
            _ if len > 0 => self.session.discard(block, len),
            _ => {}
        }
        wrote
    }

    /// Removes a key if the guard admits its value.
    async fn delete(&self, key: &[u8], guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        self.check_lengths(key, &[])?;
        self.change(self.session.span(OpKind::Remove), key, &Change::Remove(guard)).await.map(RemoveIf::from)
    }

    /// Does what a write owes the tree: separators that it has missed, a merge of a leaf with few entries.
    async fn tidy(
        &self,
        key: &[u8],
        few: bool,
        (mut retry, mut missing): (Retry, Vec<Separator>),
    ) -> Result<(), IndexError> {
        if few {
            self.tree().merge(self, 0, key).await?;
        }
        if !missing.is_empty() {
            self.tree().add_missing(self, &mut retry, &mut missing).await?;
        }
        self.reclaim().await
    }

    /// The WRITE of the new block, if no batch has had it.
    fn unwritten(&self, key: &[u8], change: &Change<'_>) -> Option<(RemotePtr, Buf)> {
        match change {
            Change::Put { value, block, len, written, .. } if *len > 0 && !written.replace(true) => {
                Some((*block, block::encode(self.session.endpoint(), self.hash(key), key, value)))
            }
            _ => None,
        }
    }
}

/// Writes under the lock of a leaf.
pub(super) trait Writes: Puts {
    /// A leaf under its lock, as far as it was read.
    type Held: HandsOver;

    /// Where operations of this compute node wait for each other, if locks are handed over.
    fn locks(&self) -> Option<&LeafLocks<Self::Held>>;
    /// What a change of this key READs of a leaf, as [`HandsOver::needs`] takes it.
    fn wish(&self, key: &[u8], change: &Change<'_>) -> usize;
    /// Locks a leaf and READs what the change needs, in one batch; `also` adds WRITEs that are to be complete by then.
    async fn lock_leaf<'p>(
        &self,
        pin: &Pin<'p>,
        at: RemotePtr,
        wish: usize,
        also: impl FnOnce(&mut Batch<'_>),
    ) -> Step<Locked<'p, Self::Held>>;
    /// Makes a leaf of what the last holder of its lock has kept.
    fn take_over(&self, at: RemotePtr, kept: <Self::Held as HandsOver>::Kept) -> Self::Held;
    /// Changes a leaf under its lock, and releases it. After a failed verb the lock stays held (N7): the client is evicted
    /// before another one goes on.
    async fn change_locked(
        &self,
        pin: &Pin<'_>,
        locked: Locked<'_, Self::Held>,
        key: &[u8],
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
        turn: TurnOf<'_, Self::Held>,
    ) -> Result<Done, IndexError>;

    /// Changes a key: [`Puts::change`].
    async fn change_by_lock(&self, span: Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError> {
        let tree = self.tree();
        let (mut retry, mut full, mut span) = (Retry::default(), 0, Some(span));
        let (mut missing, mut place) = (Vec::new(), Place::new(self.wish(key, change)));
        let (wrote, few) = loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| tree.maintenance()))?;
            let round = self.round(&pin, key, change, &retry, &mut missing, &mut place).await;
            // Nothing is pinned between rounds, so that memory comes back while this one waits.
            if let Ok(Ok(Round::Queued(_))) = &round {
                span = Some(pin.into_span());
            } else {
                drop(pin);
            }
            if !matches!(&round, Ok(Err(Trouble::Held { .. }))) {
                // While another compute node has the lock, one operation of this one looks for it.
                place.end_turn();
            }
            match round {
                Ok(Ok(Round::Done(Done::Wrote { wrote, few }))) => break (wrote, few),
                Ok(Ok(Round::Done(Done::Split))) => {}
                Ok(Ok(Round::Queued(queued))) => place = queued.wait(&place).await,
                Ok(Err(trouble)) => cold(tree.settle(self, &mut retry, trouble)).await?,
                Err(error) => cold(tree.wait_for_room(&mut full, error)).await?,
            }
            if !missing.is_empty() {
                cold(tree.add_missing(self, &mut retry, &mut missing)).await?;
            }
        };
        // The write has taken effect: what else fails is no failure of it, but for a failed verb.
        match cold(self.tidy(key, few, (retry, missing))).await {
            Err(error @ IndexError::Fabric(_)) => Err(error),
            _ => Ok(wrote),
        }
    }

    async fn round<'t>(
        &'t self,
        pin: &Pin<'_>,
        key: &[u8],
        change: &Change<'_>,
        retry: &Retry,
        missing: &mut Vec<Separator>,
        place: &mut Place<'t, Self::Held>,
    ) -> Step<Round<'t, Self::Held>> {
        let (tree, span) = (self.tree(), pin.span());
        if let Some(InHand { at, cell, kept, range }) = place.take_handed(pin.session()) {
            if !pin.session().client().keeps_lease(pin.session().endpoint().now()) {
                // Another client may have evicted this one, and have the lock by now. Then no verb succeeds (bug 225).
                mark!("tree: lock was handed over by a client that may have been evicted");
                read_word(span, at).await?;
            }
            if let Err(error) = tree.check_open(span, pin.epoch()).await {
                cold(tree.release_dropped(span, at, &cell)).await?;
                return Err(error);
            }
            let locked = Locked { node: self.take_over(at, kept), cell };
            let (locked, (low, high)) = tree.compare_range(span, locked, key, range).await?;
            if low.is_le() && high.is_gt() {
                let done = self.change_locked(pin, locked, key, change, missing, place.take_turn()).await?;
                return Ok(Ok(Round::Done(done)));
            }
            mark!("tree: handed leaf was split");
            tree.release_to_next(span, locked, Steps::default(), place.take_turn()).await?;
        }
        let found = match tree.descend(span, retry.goal(key), 0, retry.fresh, missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut at = found.at;
        let mut way = WayRight::from(at);
        let locked = loop {
            let range = || (at == found.at).then(|| found.range()).flatten();
            if let Err(queued) = place.arrive(tree, self.locks(), at, range) {
                return Ok(Ok(Round::Queued(queued)));
            }
            let locked = self.lock_leaf(pin, at, place.wish(), |batch| {
                if let Some((ptr, buf)) = self.unwritten(key, change) {
                    batch.write(ptr, buf);
                }
            });
            let locked = match locked.await? {
                Ok(locked) => locked,
                Err(Trouble::Stale(None)) if at == found.at => return Ok(Err(tree.gone(&found))),
                Err(trouble) => return Ok(Err(trouble)),
            };
            let (locked, (low, high)) = tree.compare_range(span, locked, key, range()).await?;
            if low.is_le() && high.is_gt() || planted(Fault::NoRangeCheck) {
                break locked;
            }
            mark!("tree: moved right to lock a leaf");
            let (next, fence) = (locked.node.sibling(), locked.node.high());
            tree.release_to_next(span, locked, Steps::default(), place.take_turn()).await?;
            if low.is_gt() || next.is_null() {
                return Ok(Err(found.stale()));
            }
            match (&found.parent, found.cached) {
                (Some((parent, _)), true) => tree.cache.remove(parent.at),
                _ => {
                    if let Some(key) = cold(tree.fence_key(span, fence)).await? {
                        missing.push(Separator { level: 1, child: next, key });
                    }
                }
            }
            at = way.to(next)?;
        };
        let done = self.change_locked(pin, locked, key, change, missing, place.take_turn()).await?;
        Ok(Ok(Round::Done(done)))
    }
}
