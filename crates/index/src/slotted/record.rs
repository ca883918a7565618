//! Writing a record into a slot: one CAS of a head word.
//!
//! A record that fits the head word is stored there. Every other record is in a block when its head is CASed in. If the
//! record fits the words behind the head, and no other client uses them, the writer then moves it there: WRITE of the
//! words, and CAS of the head from *heap* to *inline*, in one batch. So no client ever waits for the writer of a slot,
//! and a writer that crashes leaves a complete entry.

use super::geometry::signature;
use super::slot::{self, DEAD, Slot, Stamp};
use crate::IndexError;
use crate::block;
use crate::keyhash::KeyHash;
use crate::marks::mark;
use farindex_fabric::{Buf, NodeId, RemotePtr, Span};
use farindex_pool::{Pin, PoolError, Session};
use smallvec::SmallVec;

/// Words behind a head: those of the usual width need no allocation.
pub(crate) type InlineWords = SmallVec<[u64; 3]>;
/// A block that is written in an operation's first batch.
pub(crate) type PiggybackedWrite = Option<(RemotePtr, Buf)>;

/// A record to be written.
pub(crate) struct Record<'a> {
    pub(crate) hash: KeyHash,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Its block and the block's length, unless it fits a head word.
    pub(crate) block: Option<(RemotePtr, usize)>,
}

impl<'a> Record<'a> {
    /// Prepares a record, for an operation that is not pinned. If it needs a block, allocates the block on this node; the
    /// block has yet to be written.
    pub(crate) async fn new(
        session: &Session,
        span: &Span,
        node: NodeId,
        parts: (KeyHash, &'a [u8], &'a [u8]),
    ) -> Result<(Self, PiggybackedWrite), IndexError> {
        Self::in_block(session, parts, async |len| session.alloc(span, node, len).await).await
    }

    /// Like [`new`](Self::new) without waiting: for an operation that is pinned.
    pub(crate) async fn new_now(
        session: &Session,
        span: &Span,
        node: NodeId,
        parts: (KeyHash, &'a [u8], &'a [u8]),
    ) -> Result<(Self, PiggybackedWrite), IndexError> {
        Self::in_block(session, parts, async |len| session.alloc_now(span, node, len).await).await
    }

    async fn in_block(
        session: &Session,
        (hash, key, value): (KeyHash, &'a [u8], &'a [u8]),
        alloc: impl AsyncFnOnce(u64) -> Result<RemotePtr, PoolError>,
    ) -> Result<(Self, PiggybackedWrite), IndexError> {
        if key.len() + value.len() <= slot::TINY {
            return Ok((Record { hash, key, value, block: None }, None));
        }
        let len = block::block_len(key.len(), value.len());
        let ptr = alloc(len as u64).await?;
        let along = Some((ptr, block::encode(session.endpoint(), hash, key, value)));
        Ok((Record { hash, key, value, block: Some((ptr, len)) }, along))
    }

    /// Frees the record's block, which may have been written, but which no slot points to.
    pub(crate) fn discard(&self, session: &Session) {
        if let Some((ptr, len)) = self.block {
            session.discard(ptr, len as u64);
        }
    }

    /// May the record go behind the head that replaces `old`, in a slot of `width` bytes?
    pub(crate) fn goes_inline(&self, width: usize, old: Slot, epoch: u64) -> bool {
        self.block.is_some()
            && self.key.len() + self.value.len() <= slot::capacity(width)
            && old.yields_its_words(epoch)
    }

    /// Returns the record's head, in place of `old`, for an operation that is pinned at `epoch`.
    pub(crate) fn head(&self, old: Slot, inline: bool, epoch: u64) -> u64 {
        let stamp = if inline { Stamp::CLAIMED } else { old.stamp_after(epoch) };
        match self.block {
            Some((ptr, len)) => slot::heap(ptr, len, signature(self.hash), stamp),
            None => slot::tiny(self.key, self.value, stamp).unwrap_or(DEAD),
        }
    }

    /// Moves the record from its block to the words behind its head, which are claimed, and of which none has this tag. If
    /// another client has changed the slot in the meantime, the record stays in its block.
    pub(crate) async fn settle_inline(
        &self,
        pin: &Pin<'_>,
        at: RemotePtr,
        head: u64,
        tag: u8,
    ) -> Result<(), IndexError> {
        let mut batch = pin.span().batch();
        batch.write_words(at.add(8), &slot::words(tag, self.key, self.value));
        let inline = slot::inline(tag, self.key.len(), self.value.len(), signature(self.hash));
        let swapped = batch.cas(at, head, inline);
        if batch.post().await?.old(swapped) != head {
            mark!("slot inline: overtaken");
        } else if let Some((ptr, len)) = self.block {
            pin.retire(ptr, len as u64);
        }
        Ok(())
    }
}
