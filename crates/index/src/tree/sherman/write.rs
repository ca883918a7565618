//! Writes: lock a leaf and READ it, change it, release it.
//!
//! ```text
//! [WRITE intent, CAS lock, READ leaf, WRITE block]                  one round trip
//! [READ blocks that have the key's hash]                            entries with blocks only
//! [WRITE slot, WRITE checksum and bitmap, CAS release, CAS intent]
//! ```
//!
//! A write takes effect when the leaf's checksum is written (W2). One that changes nothing takes effect when it reads the
//! leaf under its lock.

use super::Sherman;
use super::read::Candidates;
use crate::IndexError;
use crate::block;
use crate::marks::mark;
use crate::tree::descend::Separator;
use crate::tree::edit::{Edit, Steps};
use crate::tree::entries::{place, place_word};
use crate::tree::faults::{Fault, planted};
use crate::tree::hand_over::{Handed, InHand, Place, Queued};
use crate::tree::local_locks::Turn;
use crate::tree::node::{Header, Node};
use crate::tree::skeleton::{Locked, Retry, Step, Trouble};
use crate::write::{Mode, Wrote};
use farindex_fabric::{Buf, OpKind, RemotePtr, cold};
use farindex_pool::Pin;
use std::cell::Cell;

/// What is to become of a key.
enum Change<'a> {
    Put {
        mode: Mode,
        value: &'a [u8],
        /// The new block and its bytes; null for an inline entry.
        block: RemotePtr,
        len: u64,
        /// Has the block been written?
        written: Cell<bool>,
    },
    Remove,
}

/// An entry that is in the leaf already.
struct Present {
    slot: usize,
    /// Its block and that block's bytes; null for an inline entry.
    block: (RemotePtr, u64),
}

/// How a round has ended.
enum Round<'t> {
    Wrote {
        wrote: Wrote,
        few: bool,
    },
    /// The leaf was split: try again.
    Split,
    /// Other operations of this compute node are ahead at the leaf: wait, and try again.
    Queued(Queued<'t>),
}

/// What a holder of a lock keeps of the leaf for the next one: all of it.
fn whole(leaf: &Node) -> Box<[u64]> {
    leaf.buf.words().into()
}

impl Sherman {
    /// Inserts, updates or upserts.
    pub(super) async fn put(&self, mode: Mode, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let span = self.session.span(mode.kind());
        let (mut block, mut len) = (RemotePtr::NULL, 0);
        if key.len() != 8 || value.len() != 8 {
            len = block::block_len(key.len(), value.len()) as u64;
            block = self.session.alloc(&span, self.tree.place(), len).await?;
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

    pub(super) async fn delete(&self, key: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, &[])?;
        self.change(self.session.span(OpKind::Remove), key, &Change::Remove).await
    }

    async fn change(&self, span: farindex_fabric::Span, key: &[u8], change: &Change<'_>) -> Result<Wrote, IndexError> {
        let (mut retry, mut full, mut span) = (Retry::default(), 0, Some(span));
        let (mut missing, mut place) = (Vec::new(), Place::default());
        let (wrote, few) = loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.tree.maintenance()))?;
            let round = self.round(&pin, key, change, &retry, &mut missing, &mut place).await;
            // Nothing is pinned between rounds, so that memory comes back while this one waits.
            if let Ok(Ok(Round::Queued(_))) = &round {
                span = Some(pin.into_span());
            } else {
                drop(pin);
            }
            if !matches!(&round, Ok(Err(Trouble::Held(_)))) {
                // While another compute node has the lock, one operation of this one looks for it.
                place.end_turn();
            }
            match round {
                Ok(Ok(Round::Wrote { wrote, few })) => break (wrote, few),
                Ok(Ok(Round::Split)) => {}
                Ok(Ok(Round::Queued(queued))) => place = queued.wait().await,
                Ok(Err(trouble)) => self.tree.settle(self, &mut retry, trouble).await?,
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

    async fn round<'t>(
        &'t self,
        pin: &Pin<'_>,
        key: &[u8],
        change: &Change<'_>,
        retry: &Retry,
        missing: &mut Vec<Separator>,
        place: &mut Place<'t>,
    ) -> Step<Round<'t>> {
        let span = pin.span();
        if let Some(InHand { at, cell, words, range }) = place.take_handed(pin.session()) {
            let buf = self.session.endpoint().buf_from_words(&words);
            let locked = Locked { node: Node { at, layout: self.leaf, buf }, cell };
            let (locked, (low, high)) = self.tree.compare_range(span, locked, key, range).await?;
            if low.is_le() && high.is_gt() {
                return self.change_locked(pin, locked, key, change, missing, place.take_turn()).await.map(Ok);
            }
            mark!("sherman: handed leaf was split");
            self.tree.release_to_next(span, locked, Steps::default(), whole, place.take_turn()).await?;
        }
        let found = match self.tree.descend(span, retry.goal(key), 0, retry.fresh, missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut at = found.at;
        let locked = loop {
            let range = || (at == found.at).then(|| found.range()).flatten();
            if let Err(queued) = place.arrive(&self.tree, self.locks.as_deref(), at, range) {
                return Ok(Ok(Round::Queued(queued)));
            }
            let locked = self.tree.lock(pin, at, (self.leaf, 0), |batch| {
                for (ptr, buf) in self.unwritten(key, change) {
                    batch.write(ptr, buf);
                }
            });
            let locked = match locked.await? {
                Ok(locked) => locked,
                Err(Trouble::Stale(None)) if at == found.at => return Ok(Err(self.tree.gone(&found))),
                Err(trouble) => return Ok(Err(trouble)),
            };
            let (locked, (low, high)) = self.tree.compare_range(span, locked, key, range()).await?;
            if low.is_le() && high.is_gt() || planted(Fault::NoRangeCheck) {
                break locked;
            }
            mark!("sherman: moved right to lock");
            let (next, fence) = (locked.node.sibling(), locked.node.high());
            self.tree.release_to_next(span, locked, Steps::default(), whole, place.take_turn()).await?;
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
        self.change_locked(pin, locked, key, change, missing, place.take_turn()).await.map(Ok)
    }

    /// Changes a leaf under its lock, and releases it. After a failed verb the lock stays held (N7): the client is evicted
    /// before another one goes on.
    async fn change_locked(
        &self,
        pin: &Pin<'_>,
        locked: Locked<'_>,
        key: &[u8],
        change: &Change<'_>,
        missing: &mut Vec<Separator>,
        turn: Option<Turn<'_, Handed>>,
    ) -> Result<Round<'static>, IndexError> {
        let span = pin.span();
        let present = self.find(span, &locked, key).await;
        let (locked, present) = self.tree.or_release(span, locked, present).await?;
        let nothing = match (change, &present) {
            (Change::Put { mode: Mode::Insert, .. }, Some(_)) => Some(Wrote::Exists),
            (Change::Put { mode: Mode::Update, .. } | Change::Remove, None) => Some(Wrote::Absent),
            _ => None,
        };
        if let Some(wrote) = nothing {
            self.tree.release_to_next(span, locked, Steps::default(), whole, turn).await?;
            return Ok(Round::Wrote { wrote, few: false });
        }
        let (mut node, mut edit) = (locked, Edit::default());
        match change {
            Change::Remove => {
                if let Some(present) = &present {
                    node.node.set_used(present.slot, false);
                    edit.put_used(&node.node);
                }
            }
            Change::Put { value, block, len, .. } => {
                let inline = *len == 0;
                let words = match (<[u8; 8]>::try_from(key), <[u8; 8]>::try_from(*value)) {
                    (Ok(key), Ok(value)) if inline => (u64::from_le_bytes(key), u64::from_le_bytes(value)),
                    _ => (self.hash(key).bits(), place_word(*block, *len)),
                };
                let image = &mut node.node;
                let in_place = present.as_ref().filter(|present| image.is_inline(present.slot) == inline);
                if let Some(present) = in_place {
                    image.fill(present.slot, words);
                    let (at, len) = image.layout.value_words(present.slot);
                    edit.put(image, at, len);
                } else {
                    let Some(slot) = image.vacant().next() else {
                        missing.extend(self.tree.split(self, pin, node).await?);
                        return Ok(Round::Split);
                    };
                    image.fill(slot, words);
                    edit.put_slot(image, slot);
                    if image.is_inline(slot) != inline {
                        image.set_inline(slot, inline);
                        edit.put_inline(image);
                    }
                    image.set_used(slot, true);
                    if let Some(present) = &present {
                        mark!("sherman: entry changed between inline and block");
                        image.set_used(present.slot, false);
                    }
                    edit.put_used(image);
                }
            }
        }
        let few = matches!(change, Change::Remove) && node.node.count() <= node.node.layout.span / 4;
        edit.seal(&mut node.node, self.tree.tag);
        let mut steps = Steps::default();
        steps.write(self.unwritten(key, change));
        steps.edit(node.node.at, edit);
        self.tree.release_to_next(span, node, steps, whole, turn).await?;
        if let Some(Present { block: (block, len), .. }) = present.as_ref().filter(|present| present.block.1 > 0) {
            pin.retire(*block, *len);
        }
        let wrote = if present.is_some() { Wrote::Updated } else { Wrote::Inserted };
        Ok(Round::Wrote { wrote, few })
    }

    /// The WRITE of the new block, if no batch that takes the lock has had it.
    fn unwritten(&self, key: &[u8], change: &Change<'_>) -> Vec<(RemotePtr, Buf)> {
        match change {
            Change::Put { value, block, len, written, .. } if *len > 0 && !written.replace(true) => {
                vec![(*block, block::encode(self.session.endpoint(), self.hash(key), key, value))]
            }
            _ => Vec::new(),
        }
    }

    /// Finds the entry of a key in a locked leaf.
    async fn find(
        &self,
        span: &farindex_fabric::Span,
        locked: &Locked<'_>,
        key: &[u8],
    ) -> Result<Option<Present>, IndexError> {
        match self.candidates(&locked.node, key) {
            Candidates::Inline(slot) => Ok(Some(Present { slot, block: (RemotePtr::NULL, 0) })),
            Candidates::Blocks(slots) => {
                let found = self.block_of(span, &locked.node, &slots, key).await?;
                Ok(found.map(|(slot, block)| Present { slot, block: (place(locked.node.slot(slot).1).0, block.len()) }))
            }
        }
    }
}
