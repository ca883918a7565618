//! How clients learn that a tree was dropped.
//!
//! A drop marks the anchor, waits until the operations that were running have ended, and frees what it finds in the tree.
//!
//! Invariant **B5**: an operation that changes the tree, or answers from it, has READ the anchor without that mark in the epoch
//! of its pin, or in a later one. So a drop that has waited for the operations in progress has the tree for itself. Where that
//! is due, the anchor is READ in the batch that takes a lock ([`take_lock`](Tree::take_lock) alone does that) or READs a leaf
//! ([`post_open`](Tree::post_open), [`read_open`](Tree::read_open)); what does neither begins with [`pin`](Tree::pin), or
//! [`check_open`](Tree::check_open).

use super::faults::{Fault, planted};
use super::node::magic;
use super::retry::Trouble;
use super::skeleton::{CHANGE, Leaves, Tree, Unread};
use crate::IndexError;
use crate::maintenance::{first_word, read_word};
use crate::marks::mark;
use crate::recovery::{Refused, acquire};
use farindex_fabric::{Batch, Buf, Done, RemotePtr, Span, Ticket, cold};
use farindex_pool::{Intent, IntentCell, Pin};

/// The lock of a node was taken, and READs behind that have completed.
pub(super) struct Taken<'p, T> {
    pub(super) done: Done,
    pub(super) reads: T,
    pub(super) cell: IntentCell<'p>,
}

/// A READ of the anchor, in a batch that READs nodes; and the epoch that the client knew when it was added.
struct Check(Option<(Ticket, u64)>);

impl Tree {
    /// Pins an operation. [`IndexError::Dropped`] if the index was dropped before it began.
    pub(super) async fn pin(&self, span: Span) -> Result<Pin<'_>, IndexError> {
        let pin = self.session.pin(span)?;
        self.check_open(pin.span(), pin.epoch()).await?;
        Ok(pin)
    }

    /// [`IndexError::Dropped`] if the index was dropped before this client knew this epoch; it knows it by now. One READ for
    /// each epoch.
    pub(super) async fn check_open(&self, span: &Span, epoch: u64) -> Result<(), IndexError> {
        if self.is_check_due(epoch) { self.learn_open(read_word(span, self.anchor).await?, epoch) } else { Ok(()) }
    }
    /// The epoch that the client knows.
    pub(super) fn epoch(&self) -> u64 {
        self.session.client().epoch()
    }
    fn add_check(&self, batch: &mut Batch<'_>, epoch: u64) -> Check {
        Check(self.is_check_due(epoch).then(|| (batch.read(self.anchor, 8), epoch)))
    }
    fn hear(&self, done: &mut Done, Check(check): Check) -> Result<(), IndexError> {
        check.map_or(Ok(()), |(anchor, epoch)| self.learn_open(first_word(&done.buf(anchor)), epoch))
    }
    /// Posts a batch that READs leaves, and READs the anchor in it where that is due. For lookups, scans and walks: who has begun
    /// to change something must not be told in the middle of it.
    pub(super) async fn post_open(&self, mut batch: Batch<'_>) -> Result<Done, IndexError> {
        let check = self.add_check(&mut batch, self.epoch());
        let mut done = batch.post().await?;
        self.hear(&mut done, check)?;
        Ok(done)
    }
    /// READs a part of a leaf, as [`post_open`](Self::post_open) does.
    pub(super) async fn read_open(&self, span: &Span, at: RemotePtr, len: usize) -> Result<Buf, IndexError> {
        if self.is_check_due(self.epoch()) {
            return cold(self.read_checked(span, at, len)).await;
        }
        Ok(span.read(at, len).await?)
    }
    async fn read_checked(&self, span: &Span, at: RemotePtr, len: usize) -> Result<Buf, IndexError> {
        let mut batch = span.batch();
        let leaf = batch.read(at, len);
        Ok(self.post_open(batch).await?.buf(leaf))
    }
    /// READs a leaf until its words are those of one state, as [`read_open`](Self::read_open) does.
    pub(super) async fn read_leaf_open<L: Leaves>(
        &self,
        leaves: &L,
        span: &Span,
        at: RemotePtr,
    ) -> Result<Result<L::Leaf, Unread>, IndexError> {
        let read = async || Ok(leaves.leaf(span, at, self.read_open(span, at, leaves.leaf_len()).await?));
        self.read_until(read).await
    }
    fn is_check_due(&self, epoch: u64) -> bool {
        self.open_at.get() < epoch && !planted(Fault::DropUnseen)
    }
    fn learn_open(&self, tag: u64, epoch: u64) -> Result<(), IndexError> {
        self.check_anchor(tag)?;
        self.open_at.set(self.open_at.get().max(epoch));
        Ok(())
    }

    /// [`IndexError::Dropped`] if the index is no longer there.
    pub(super) async fn check_dropped(&self) -> Result<(), IndexError> {
        self.check_anchor(read_word(&self.maintenance(), self.anchor).await?)
    }
    fn check_anchor(&self, tag: u64) -> Result<(), IndexError> {
        match tag == self.tag || self.dropping.get() && tag == !self.tag {
            true => Ok(()),
            false => Err(IndexError::Dropped),
        }
    }

    /// Takes the lock of a node, and READs in the same batch. [`IndexError::Dropped`] if the index was dropped before the pin.
    pub(super) async fn take_lock<'s, 'p, T>(
        &self,
        pin: &'s Pin<'p>,
        at: RemotePtr,
        reads: impl FnOnce(&mut Batch<'s>) -> T,
    ) -> Result<Result<Taken<'p, T>, Trouble>, IndexError> {
        let (span, free) = (pin.span(), magic(self.tag, at));
        let cell = pin.session().intent_cell(at.node()).await?;
        let intent = Intent { index: self.uid, lock: self.lock_of(at), what: [CHANGE, 0, 0, 0] };
        let taken = acquire(span, &cell, &intent, (free, free | 1), |batch| {
            let reads = reads(batch);
            (reads, self.add_check(batch, pin.epoch()))
        });
        match taken.await? {
            Ok((mut done, (reads, check))) => match self.hear(&mut done, check) {
                Ok(()) => Ok(Ok(Taken { done, reads, cell })),
                Err(error) => {
                    self.release_dropped(span, at, &cell).await?;
                    Err(error)
                }
            },
            Err(Refused { word, seen }) if word == free | 1 => {
                mark!("tree: lock is held");
                Ok(Err(Trouble::Held { at, seen }))
            }
            Err(_) => Ok(Err(Trouble::Stale(None))),
        }
    }

    /// Makes the root's children usable again, the first of which is dead. Nothing lies to the left of it, so a client that was
    /// making the root higher or lower has crashed, or was given up. For the client that drops the tree, when no other one works
    /// on it.
    pub(super) async fn undo_root_change(&self, leaves: &impl Leaves) -> Result<(), IndexError> {
        mark!("tree: a drop made children of the root usable again");
        let pin = self.session.pin(self.maintenance())?;
        self.recover_node(leaves, &pin, self.root).await?;
        let root = self.read_once(pin.span(), self.root, self.inner).await?;
        self.revive_children(pin.span(), &root).await
    }

    /// Releases a lock of an index that was dropped. Where the node's memory is something else by now, this changes nothing.
    pub(super) async fn release_dropped(
        &self,
        span: &Span,
        at: RemotePtr,
        cell: &IntentCell<'_>,
    ) -> Result<(), IndexError> {
        mark!("tree: lock of an index that was dropped");
        let mut batch = span.batch();
        self.add_release(&mut batch, at);
        cell.clear(&mut batch);
        batch.post().await?;
        cell.cleared();
        Ok(())
    }
}
