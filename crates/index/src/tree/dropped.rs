//! How clients learn that a tree was dropped.
//!
//! A drop marks the anchor, waits until the operations that were running have ended, and frees what it finds in the tree.
//!
//! Invariant **B5**: a client that changes the tree has READ the anchor without that mark in the epoch of its pin, or in a later one. So
//! a drop that has waited for the operations in progress has the tree for itself. Locks are taken by
//! [`take_lock`](Tree::take_lock) alone, which READs the anchor in the same batch where that is due; what changes the tree without
//! taking a lock begins with [`pin`](Tree::pin), or [`check_open`](Tree::check_open).

use super::faults::{Fault, planted};
use super::node::magic;
use super::skeleton::{CHANGE, Tree, Trouble};
use crate::IndexError;
use crate::maintenance::{first_word, read_word};
use crate::marks::mark;
use crate::recovery::acquire;
use farindex_fabric::{Batch, Done, RemotePtr, Span, Ticket};
use farindex_pool::{Intent, IntentCell, Pin};

/// The lock of a node was taken, and READs behind that have completed.
pub(super) struct Taken<'p, T> {
    pub(super) done: Done,
    pub(super) reads: T,
    pub(super) cell: IntentCell<'p>,
}

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
            (reads, self.is_check_due(pin.epoch()).then(|| batch.read(self.anchor, 8)))
        });
        match taken.await? {
            Ok((mut done, (reads, anchor))) => match self.hear_open(&mut done, anchor, pin.epoch()) {
                Ok(()) => Ok(Ok(Taken { done, reads, cell })),
                Err(error) => {
                    self.release_dropped(span, at, &cell).await?;
                    Err(error)
                }
            },
            Err(word) if word == free | 1 => {
                mark!("tree: lock is held");
                Ok(Err(Trouble::Held(at)))
            }
            Err(_) => Ok(Err(Trouble::Stale(None))),
        }
    }
    fn hear_open(&self, done: &mut Done, anchor: Option<Ticket>, epoch: u64) -> Result<(), IndexError> {
        anchor.map_or(Ok(()), |anchor| self.learn_open(first_word(&done.buf(anchor)), epoch))
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
        Ok(())
    }
}
