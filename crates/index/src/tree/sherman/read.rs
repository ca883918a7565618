//! Lookups: one READ of a leaf, and one of a key-value block.
//!
//! A lookup takes effect at a moment of the READ of the leaf that the key belongs to (W2, B1).

use super::Sherman;
use crate::block::{CandidateBlocks, KeyMatch, UNIT, bad_checksum};
use crate::marks::mark;
use crate::tree::descend::{Found, Separator};
use crate::tree::entries::place;
use crate::tree::node::Node;
use crate::tree::skeleton::{Leaves, Retry, Step};
use crate::{IndexError, Value, join};
use farindex_fabric::{Buf, OpKind, Span};
use std::collections::HashMap;

/// Keys whose leaves are READ in one batch.
const MANY: usize = 128;

/// Entries of a leaf that may be a key's.
pub(super) enum Candidates {
    /// The key's slot: an inline entry.
    Inline(usize),
    /// Slots with blocks that have the key's hash.
    Blocks(Vec<usize>),
}

impl Sherman {
    pub(super) fn candidates(&self, node: &Node, key: &[u8]) -> Candidates {
        let slots = || node.used().filter(|slot| node.is_whole(*slot));
        if let Ok(bytes) = <[u8; 8]>::try_from(key) {
            let word = u64::from_le_bytes(bytes);
            if let Some(slot) = slots().find(|slot| node.is_inline(*slot) && node.slot(*slot).0 == word) {
                return Candidates::Inline(slot);
            }
        }
        let hash = self.hash(key).bits();
        Candidates::Blocks(slots().filter(|slot| !node.is_inline(*slot) && node.slot(*slot).0 == hash).collect())
    }

    pub(super) async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let (mut retry, mut span) = (Retry::default(), Some(self.session.span(OpKind::Get)));
        loop {
            let pin = self.session.pin(span.take().unwrap_or_else(|| self.tree.maintenance()))?;
            let attempt = self.look_up_once(pin.span(), key, &retry).await?;
            drop(pin);
            match attempt {
                Ok(value) => return Ok(value),
                Err(trouble) => self.tree.settle(self, &mut retry, trouble).await?,
            }
        }
    }

    /// READs the leaf that a key belongs to. `first` are the words of the leaf where the descent has ended, if they have
    /// been read.
    pub(super) async fn leaf_of(
        &self,
        span: &Span,
        found: &Found,
        key: &[u8],
        first: Option<Buf>,
        missing: &mut Vec<Separator>,
    ) -> Step<Node> {
        let first = first.and_then(|buf| self.leaf(span, found.at, buf).ok());
        let read = async |at| self.tree.read_leaf(self, span, at).await;
        self.tree.node_of(span, found, key, first, missing, read).await
    }

    async fn look_up_once(&self, span: &Span, key: &[u8], retry: &Retry) -> Step<Option<Value>> {
        let mut missing = Vec::new();
        let found = match self.tree.descend(span, retry.goal(key), 0, retry.fresh, &mut missing).await? {
            Ok(found) => found,
            Err(trouble) => return Ok(Err(trouble)),
        };
        match self.leaf_of(span, &found, key, None, &mut missing).await? {
            Ok(node) => Ok(Ok(self.value_in(span, node, key).await?)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    /// Returns the value of a key in its leaf.
    async fn value_in(&self, span: &Span, node: Node, key: &[u8]) -> Result<Option<Value>, IndexError> {
        match self.candidates(&node, key) {
            Candidates::Inline(slot) => {
                let at = (node.layout.slot(slot) + 1) * 8;
                Ok(Some(Value::fetched(node.buf, at..at + 8)))
            }
            Candidates::Blocks(slots) => match self.block_of(span, &node, &slots, key).await? {
                Some((_, block)) => Ok(Some(block.into_value())),
                None => Ok(None),
            },
        }
    }

    /// READs the blocks of these slots, all in one batch, and returns the one that is the key's.
    pub(super) async fn block_of(
        &self,
        span: &Span,
        node: &Node,
        slots: &[usize],
        key: &[u8],
    ) -> Result<Option<(usize, crate::block::Block)>, IndexError> {
        if slots.is_empty() {
            return Ok(None);
        }
        let wanted = slots.iter().map(|slot| {
            let (at, units) = place(node.slot(*slot).1);
            (*slot, at, units as usize * UNIT)
        });
        let mut blocks = CandidateBlocks::read(span, wanted).await?;
        let hash = self.hash(key);
        while let Some((slot, at, found)) = blocks.next(hash, key).await? {
            match found {
                KeyMatch::Own(block) => return Ok(Some((slot, block))),
                KeyMatch::Other => {}
                // Under the pin a block of a leaf that was read is not reused.
                KeyMatch::Unsound => return Err(bad_checksum(at)),
            }
        }
        Ok(None)
    }

    pub(super) async fn look_up_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        for part in keys.chunks(MANY) {
            values.extend(self.look_up_part(part).await?);
        }
        Ok(values)
    }

    /// Looks keys up whose leaves the copies of inner nodes lead to: all leaves in one batch, all blocks in another. A
    /// key that takes more is looked up on its own.
    async fn look_up_part(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        keys.iter().try_for_each(|key| self.check_lengths(key, &[]))?;
        let pin = self.session.pin(self.session.span(OpKind::Get))?;
        let (span, mut missing) = (pin.span(), Vec::new());
        let (mut found, mut places) = (Vec::with_capacity(keys.len()), HashMap::new());
        let mut batch = span.batch();
        for key in keys {
            let at = self.tree.descend(span, Retry::default().goal(key), 0, false, &mut missing).await?.ok();
            if let Some(at) = &at {
                places.entry(at.at).or_insert_with(|| batch.read(at.at, self.leaf.len()));
            }
            found.push(at);
        }
        let mut done = batch.post().await?;
        let mut leaves: HashMap<_, _> = places.into_iter().map(|(at, ticket)| (at, done.buf(ticket))).collect();
        let mut pending = Vec::new();
        for (key, found) in keys.iter().zip(&found) {
            let node = match found {
                Some(found) => {
                    let buf = leaves.get(&found.at).map(|buf| self.session.endpoint().buf_from_words(buf.words()));
                    self.leaf_of(span, found, key, buf, &mut missing).await?.ok()
                }
                None => None,
            };
            pending.push(node);
        }
        leaves.clear();
        drop(done);
        let wanted = keys.iter().zip(pending).map(|(key, node)| node.map(|node| (self.candidates(&node, key), node)));
        let wanted: Vec<_> = wanted.collect();
        let blocks = wanted.iter().flatten().flat_map(|(candidates, node)| match candidates {
            Candidates::Blocks(slots) => slots.iter().map(|slot| place(node.slot(*slot).1)).collect(),
            Candidates::Inline(_) => Vec::new(),
        });
        let blocks: Vec<_> = blocks.map(|(at, units)| ((), at, units as usize * UNIT)).collect();
        let mut blocks = if blocks.is_empty() { None } else { Some(CandidateBlocks::read(span, blocks).await?) };
        let mut values = Vec::with_capacity(keys.len());
        for (key, wanted) in keys.iter().zip(wanted) {
            values.push(match (wanted, &mut blocks) {
                (Some((Candidates::Inline(slot), node)), _) => {
                    let at = (node.layout.slot(slot) + 1) * 8;
                    Some(Some(Value::fetched(node.buf, at..at + 8)))
                }
                (Some((Candidates::Blocks(slots), _)), Some(blocks)) => {
                    let (hash, mut value) = (self.hash(key), None);
                    for _ in slots {
                        match blocks.next(hash, key).await? {
                            Some((_, _, KeyMatch::Own(block))) => value = Some(block.into_value()),
                            Some((_, at, KeyMatch::Unsound)) => return Err(bad_checksum(at)),
                            Some((_, _, KeyMatch::Other)) | None => {}
                        }
                    }
                    Some(value)
                }
                (Some(_), None) => Some(None),
                (None, _) => None,
            });
        }
        drop(blocks);
        // Nothing is pinned while a key waits for other clients.
        drop(pin);
        let values = keys.iter().zip(values).map(|(key, value)| async move {
            match value {
                Some(value) => Ok(value),
                None => {
                    mark!("sherman many: alone");
                    self.look_up(key).await
                }
            }
        });
        join::try_join_all(values).await
    }
}
