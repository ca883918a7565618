//! Splits, merges and recovery of leaves, and what the skeleton needs to know of them.
//!
//! ```text
//! split(L)     under the lock of L: READ the rest of L, allocate R
//!              [WRITE R, WRITE L's entries under the new seed, WRITE L's header (commit), WRITE L's entries, release L]
//! merge(L, R)  under the lock of L, whose right sibling is R:
//!              [CAS R.lock free -> dead, READ R]
//!              [WRITE copies of R's entries into L]
//!              [WRITE R's sibling word: dead (commit), WRITE R's entries: none]
//!              [WRITE L: sibling, high key, entries under the new seed, release L]
//! ```
//!
//! Invariants: S1 and S2 of [`leaf`](super::leaf).

use super::Chime;
use super::held::{Held, Whole, read_more, state};
use super::leaf::layout::HEADER_LEN;
use super::leaf::{self, Image, Item, Layout, Ranges, absorb, hash_key, recover, retire};
use super::write::edit_of;
use crate::IndexError;
use crate::maintenance::fetch_blocks;
use crate::marks::mark;
use crate::tree::descend::Separator;
use crate::tree::edit::{Edit, Steps};
use crate::tree::entries::{Slot, SlotKey, SlotValue, place};
use crate::tree::faults::{Fault, planted};
use crate::tree::fence::{Fence, shortest_separator};
use crate::tree::node::{Head, Header, SIBLING};
use crate::tree::separators::Fresh;
use crate::tree::skeleton::{Leaves, Locked, Merged, Unread, unsound};
use farindex_fabric::{Buf, RemotePtr, Span};
use farindex_pool::Pin;
use std::collections::HashMap;

impl Chime {
    /// READs what is not known of a locked leaf.
    async fn read_rest(&self, pin: &Pin<'_>, leaf: &mut Held) -> Result<(), IndexError> {
        let rest: Ranges = std::iter::once(HEADER_LEN..self.layout.node_len()).collect();
        read_more(pin, leaf, &rest).await
    }

    /// READs the keys of items.
    async fn keys_of(
        &self,
        span: &Span,
        items: impl Iterator<Item = (usize, Item)>,
    ) -> Result<HashMap<usize, Vec<u8>>, IndexError> {
        let (mut keys, mut positions, mut places) = (HashMap::new(), Vec::new(), Vec::new());
        for (position, item) in items {
            if item.key.inline {
                keys.insert(position, item.key.word0.to_le_bytes().to_vec());
            } else {
                positions.push(position);
                places.push(place(item.word1));
            }
        }
        for ((position, (at, _)), block) in positions.into_iter().zip(&places).zip(fetch_blocks(span, &places).await?) {
            let block =
                block.map_err(|what| IndexError::corrupt(*at, format!("an entry of a leaf points to {what}")))?;
            keys.insert(position, block.key().to_vec());
        }
        Ok(keys)
    }

    /// Splits a leaf whose lock is held, releases it, and returns the separator that is missing now.
    pub(super) async fn split_leaf(
        &self,
        pin: &Pin<'_>,
        mut locked: Locked<'_, Held>,
    ) -> Result<Option<Separator>, IndexError> {
        let span = pin.span();
        let mut fresh = Fresh::default();
        let planned = self.plan_split(pin, &mut locked.node, &mut fresh).await;
        if planned.is_err() {
            self.tree.discard(&fresh);
        }
        let (locked, (steps, separator)) = self.tree.or_release(span, locked, planned).await?;
        mark!("chime: leaf was split");
        self.tree.carry_out(span, locked, steps).await?;
        Ok(Some(separator))
    }

    async fn plan_split(
        &self,
        pin: &Pin<'_>,
        held: &mut Held,
        fresh: &mut Fresh,
    ) -> Result<(Steps, Separator), IndexError> {
        let span = pin.span();
        self.read_rest(pin, held).await?;
        let items = held.image.items().ok_or_else(|| unsound(held.at))?;
        let occupied = items.iter().enumerate().filter_map(|(position, item)| Some((position, (*item)?)));
        let keys = self.keys_of(span, occupied).await?;
        let mut sorted: Vec<&[u8]> = keys.values().map(Vec::as_slice).collect();
        sorted.sort_unstable();
        let (left, right) = sorted.split_at(sorted.len() / 2);
        let (Some(last), Some(first)) = (left.last(), right.first()) else {
            return Err(IndexError::corrupt(held.at, "a full leaf has less than two entries"));
        };
        let key = shortest_separator(last, first);
        let (at, low) = self.tree.allocate_node(span, self.layout.node_len(), key, fresh).await?;
        let (tag, before) = (self.tree.tag, &held.node);
        let right = leaf::Node { address: at.to_bits(), low: [low.word, low.tag], ..*before };
        let left = state((tag, held.at), at, (held.low(), low));
        let moves = |position: usize, _: &Item| keys.get(&position).is_some_and(|own| own.as_slice() >= key);
        let split = leaf::split(&mut held.image, &left, &right, moves).ok_or_else(|| unsound(held.at))?;
        let mut steps = Steps::default();
        let mut commit = edit_of(split.commit);
        if planted(Fault::CommitFirst) {
            steps.edit(held.at, std::mem::take(&mut commit));
        }
        steps.write(std::mem::take(&mut fresh.writes));
        steps.edit(at, edit_of([split.header]));
        steps.edit(held.at, commit);
        steps.edit(at, edit_of([split.entries]));
        steps.edit(held.at, edit_of(split.rest.writes));
        steps.revive(at);
        let separator = Separator { level: 1, child: at, key: key.to_vec() };
        Ok((steps, separator))
    }

    async fn write_all(&self, span: &Span, at: RemotePtr, writes: Vec<leaf::Write>) -> Result<(), IndexError> {
        let mut batch = span.batch();
        for write in &writes {
            batch.write_words(at.add(write.offset as u64), &write.words);
        }
        batch.post().await?;
        Ok(())
    }

    /// Freezes the right neighbour of a locked leaf, if both fit well into one: returns its items and its state.
    async fn freeze_small(
        &self,
        span: &Span,
        left: &Whole,
        right: RemotePtr,
    ) -> Result<Option<(Vec<Item>, leaf::Node)>, IndexError> {
        let most = self.layout.span() * 5 / 8;
        // A hint: it may change until it is frozen.
        let Ok(seen) = self.tree.read_leaf(self, span, right).await? else { return Ok(None) };
        if left.items.len() + seen.items.len() > most {
            return Ok(None);
        }
        if planted(Fault::MergeWithoutFreeze) {
            return Ok(self.items_of(seen));
        }
        let Some(words) = self.tree.freeze_words(span, right, self.layout.node_len()).await? else { return Ok(None) };
        let whole = Whole::verify((self.tree.tag, right), self.layout, words, |_| Unread::Foreign);
        whole.map(|whole| self.items_of(whole)).map_err(|_| unsound(right))
    }

    fn items_of(&self, whole: Whole) -> Option<(Vec<Item>, leaf::Node)> {
        let node = state((self.tree.tag, whole.at), whole.sibling(), (whole.low(), whole.high()));
        Some((whole.items.into_iter().map(|(_, item)| item).collect(), node))
    }

    async fn merge_locked(
        &self,
        span: &Span,
        leaf: &mut Held,
        right: RemotePtr,
    ) -> Result<Option<(Steps, Fence)>, IndexError> {
        let words = leaf.image.whole().ok_or_else(|| unsound(leaf.at))?;
        let words = self.session.endpoint().buf_from_words(words);
        let whole = Whole::verify((self.tree.tag, leaf.at), self.layout, words, |_| Unread::Foreign);
        let whole = whole.map_err(|_| unsound(leaf.at))?;
        let Some((items, node)) = self.freeze_small(span, &whole, right).await? else { return Ok(None) };
        let after = leaf::Node { sibling: node.sibling, high: node.high, ..leaf.node };
        let Some(merged) = absorb(&mut leaf.image, &leaf.node, &after, &items) else {
            mark!("chime: leaves of a merge do not fit");
            self.tree.revive(span, right).await?;
            return Ok(None);
        };
        let mut steps = Steps::default();
        steps.edit(leaf.at, edit_of(merged.copies.writes));
        if !planted(Fault::NoRetire) {
            steps.edit(right, edit_of(retire(self.layout, node.sibling).writes));
        }
        steps.edit(leaf.at, edit_of(merged.commit.writes));
        Ok(Some((steps, Fence { word: node.low[0], tag: node.low[1] })))
    }

    /// Finishes or undoes what a crashed client had begun with the right sibling of a leaf, and returns the sibling and the
    /// high key that the leaf is to have.
    async fn settle_sibling(
        &self,
        span: &Span,
        image: &Image,
        keys: &HashMap<usize, Vec<u8>>,
    ) -> Result<(RemotePtr, Fence), IndexError> {
        let sibling =
            leaf::SiblingWord::read(image).map_or(RemotePtr::NULL, |word| RemotePtr::from_slot(word.sibling()));
        if sibling.is_null() {
            return Ok((sibling, Fence::INFINITE));
        }
        let words = span.read(sibling, self.layout.node_len()).await?;
        let head = Head { at: sibling, buf: words };
        let (low, high, next) = (head.low(), head.high(), head.sibling());
        if !head.is_dead() {
            return Ok((sibling, low));
        }
        if leaf::SiblingWord::from_bits(head.word(SIBLING)).dead() {
            mark!("chime: merge of a crashed client was finished");
            self.write_all(span, sibling, retire(self.layout, next.to_slot().unwrap_or_default()).writes).await?;
            return Ok((next, high));
        }
        // It was frozen for a merge, and nothing was taken from it yet; or it is the new node of a split.
        let node = state((self.tree.tag, sibling), next, (low, high));
        if Whole::verify((self.tree.tag, sibling), self.layout, head.buf, |_| Unread::Foreign).is_err() {
            mark!("chime: split of a crashed client was finished");
            let low = self.tree.fence_key(span, low).await?.unwrap_or_default();
            let moves = |position: usize, _: &Item| keys.get(&position).is_some_and(|key| *key >= low);
            let entries = leaf::rebuild(image, &node, moves).ok_or_else(|| unsound(sibling))?;
            self.write_all(span, sibling, vec![entries]).await?;
        }
        self.tree.revive(span, sibling).await?;
        Ok((sibling, low))
    }
}

impl Leaves for Chime {
    type Leaf = Whole;

    fn leaf_len(&self) -> usize {
        self.layout.node_len()
    }
    fn leaf(&self, _: &Span, at: RemotePtr, words: Buf) -> Result<Whole, Unread> {
        Whole::verify((self.tree.tag, at), self.layout, words, |lock| self.tree.why_unread(at, lock))
    }
    fn words(leaf: &Whole) -> &Buf {
        &leaf.buf
    }
    fn into_words(leaf: Whole) -> Buf {
        leaf.buf
    }
    fn slots(&self, leaf: &Whole) -> Vec<Slot> {
        let slot = |(position, item): &(usize, Item)| {
            let offset = Layout::entry_offset(leaf.layout, *position);
            let key = match item.key.inline {
                true => SlotKey::Inline(offset..offset + 8),
                false => SlotKey::Hash(item.key.word0),
            };
            let value = match item.block {
                false => SlotValue::Inline(offset + 8..offset + 16),
                true => {
                    let (at, units) = place(item.word1);
                    SlotValue::Block(at, units)
                }
            };
            Slot { number: *position, offset, key, value }
        };
        leaf.items.iter().map(slot).collect()
    }
    fn slot_hash(&self, key: &[u8]) -> u64 {
        hash_key(key, self.layout.hash_seed())
    }

    async fn merge_leaves(&self, pin: &Pin<'_>, left: RemotePtr, right: RemotePtr) -> Result<Merged, IndexError> {
        let span = pin.span();
        let rest: Ranges = std::iter::once(HEADER_LEN..self.layout.node_len()).collect();
        let Ok(mut locked) = self.lock(pin, left, &rest, |_| {}).await? else { return Ok(Merged::No) };
        if locked.node.sibling() != right {
            self.tree.release(span, locked, Edit::default()).await?;
            return Ok(Merged::NotNeighbours);
        }
        let merged = self.merge_locked(span, &mut locked.node, right).await;
        let (locked, merged) = self.tree.or_release(span, locked, merged).await?;
        let (steps, low) = merged.unzip();
        self.tree.carry_out(span, locked, steps.unwrap_or_default()).await?;
        Ok(low.map_or(Merged::No, Merged::Yes))
    }

    async fn restore_leaf(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Edit, IndexError> {
        let span = pin.span();
        let mut image = Image::new(self.layout);
        image.add(0, span.read(at, self.layout.node_len()).await?.words());
        let items = image.items().ok_or_else(|| unsound(at))?;
        let occupied = items.iter().enumerate().filter_map(|(position, item)| Some((position, (*item)?)));
        let keys = self.keys_of(span, occupied).await?;
        let (sibling, high) = self.settle_sibling(span, &image, &keys).await?;
        let node = leaf::Node::after_crash(&image, self.tree.tag, at.to_bits(), [high.word, high.tag]);
        let node = node.ok_or_else(|| unsound(at))?;
        let node = leaf::Node { sibling: sibling.to_slot().unwrap_or_default(), ..node };
        let low = Fence { word: node.low[0], tag: node.low[1] };
        let low = self.tree.fence_key(span, low).await?.unwrap_or_default();
        let high = self.tree.fence_key(span, high).await?;
        let keep = |position: usize, _: &Item| {
            keys.get(&position).is_some_and(|key| *key >= low && high.as_ref().is_none_or(|high| key < high))
        };
        match recover(&mut image, &node, keep) {
            Ok(recovered) => Ok(edit_of(recovered.plan.writes)),
            Err(damage) => Err(IndexError::corrupt(at, format!("a leaf that no crash explains: {damage:?}"))),
        }
    }
    async fn explain_unread(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<bool, IndexError> {
        self.tree.check_under_lock(self, pin, at).await
    }
}
