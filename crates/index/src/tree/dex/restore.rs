//! Leaves that a crashed owner has left in the middle of a change.
//!
//! Invariants (proof: lemma "crash" of docs/protocols/dex.md):
//!
//! * Only one client derives such a leaf from what is there: it holds the lock of the leaf.
//! * Meanwhile no owner changes the leaf without its lock: the client is the owner itself, or holds the record of an owner that has
//!   crashed, or nobody has owned the leaf since the lock was taken. Who becomes its owner later READs the leaf first, and finds
//!   it locked, or as it was derived.

use super::Dex;
use super::proposal::{lock_of, lock_words};
use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::tree::change::Puts;
use crate::tree::dropped::Taken;
use crate::tree::edit::Edit;
use crate::tree::node::Node;
use crate::tree::skeleton::{CHANGE, Locked};
use farindex_fabric::{RemotePtr, Span};
use farindex_pool::{Claim, Pin};

impl Dex {
    /// Takes the lock of a leaf that is in no state and that no owner changes, and derives the leaf from what a former owner has
    /// left.
    pub(super) async fn restore(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<(), IndexError> {
        self.restore_if(pin, at, async || Ok(true)).await
    }

    /// Restores a leaf of a partition without an owner that is alive, where there is no memory to become its owner. Returns
    /// whether that may have helped.
    pub(super) async fn restore_unowned(&self, pin: &Pin<'_>, at: RemotePtr, low: &[u8]) -> Result<bool, IndexError> {
        if self.is_abandoned(pin.span(), low).await? {
            mark!("dex: leaf that nobody owns was restored");
            self.restore_if(pin, at, async || self.is_abandoned(pin.span(), low).await).await?;
            return Ok(true);
        }
        let (_, map) = self.latest_map(pin.span()).await?;
        let owner = map.find(low).0.owner();
        if owner.is_null() || Some(owner) == self.own.record() {
            return Ok(false);
        }
        let claim = self.session.claim(pin.span(), lock_of(owner), None, self.uid, [CHANGE, 0, 0, 0]).await?;
        // A client that lives changes the leaf, and may be held up (bug 218).
        let Claim::Taken(taken) = claim else { return Ok(matches!(claim, Claim::Unsteady)) };
        // The record stays as it is, and the next one that needs it claims it again.
        let lock = taken.into_held();
        let restored = self.restore(pin, at).await;
        lock.abandon(pin.span()).await?;
        restored.map(|()| true)
    }

    /// Does nobody own this key, or a compute node that has left, in a partition where a former owner has crashed?
    async fn is_abandoned(&self, span: &Span, key: &[u8]) -> Result<bool, IndexError> {
        let (_, map) = self.latest_map(span).await?;
        let (partition, _) = map.find(key);
        let owner = partition.owner();
        if !partition.unclean || owner.is_null() {
            return Ok(partition.unclean);
        }
        let (free, _) = lock_words(self.tree().tag, owner);
        Ok(read_word(span, owner).await? == free)
    }

    /// Restores a leaf, if that is still right when its lock is held.
    async fn restore_if(
        &self,
        pin: &Pin<'_>,
        at: RemotePtr,
        is_right: impl AsyncFnOnce() -> Result<bool, IndexError>,
    ) -> Result<(), IndexError> {
        let tree = self.tree();
        let taken = tree.take_lock(pin, at, |batch| batch.read(at, self.far.leaf.len())).await?;
        let Ok(Taken { mut done, reads, cell }) = taken else { return Ok(()) };
        let locked = Locked { node: Node { at, layout: self.far.leaf, buf: done.buf(reads) }, cell };
        let edit = async {
            if !is_right().await? {
                return Ok(Edit::default());
            }
            mark!("dex: leaf in the middle of a crashed owner's change was restored");
            tree.restore_node(&self.far, pin, at, 0).await
        };
        let edit = edit.await;
        let (locked, edit) = tree.or_release(pin.span(), locked, edit).await?;
        tree.release(pin.span(), locked, edit).await
    }
}
