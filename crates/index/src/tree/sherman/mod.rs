//! Sherman: a B+ tree whose inner nodes are cached on compute nodes, and whose leaves are read whole.
//!
//! Q. Wang, Y. Lu, J. Shu: *Sherman: A Write-Optimized Distributed B+Tree Index on Disaggregated Memory*, SIGMOD 2022, as
//! the papers of CHIME (section 2.2) and DEX (section 2.3) describe it. Protocol and deviations: `docs/protocols/tree.md`.
//!
//! A lookup READs one leaf. A write locks the leaf and READs it in one batch, and WRITEs the changed words and releases
//! the lock in a second one. Keys and values of 8 bytes each lie in the leaf; other entries are the hash of the key and a
//! pointer to a key-value block.

pub(in crate::tree) mod read;
pub(in crate::tree) mod write;

use super::anchor::{ANCHOR_LEN, Anchor};
use super::cache::{Copies, Lookups};
use super::change::Puts;
use super::edit::Edit;
use super::entries::{Slot, SlotKey, SlotValue, place};
use super::faults::{Fault, planted};
use super::fence::Fence;
use super::hand_over::LeafLocks;
use super::lookups::LooksUp;
use super::node::{Header, Layout, MAX_SPAN, Node};
use super::skeleton::{Leaves, Merged, Slots, Tree, Unread};
use crate::audit::OnDamage;
use crate::handle::{Handle, has_handle};
use crate::kind::Settings;
use crate::maintenance::fetch_blocks;
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{
    Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
use crate::visit::Entries;
use crate::write::{Guard, Mode, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{Buf, NodeId, OpKind, RemotePtr, Span, apart};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of a Sherman tree.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Entries of a leaf, at most: 4 to 256. The default makes a leaf of 1 KiB.
    pub leaf_span: usize,
    /// Children of an inner node, at most: 5 to 256. The default makes a node of 1 KiB.
    pub inner_span: usize,
    /// Bytes of local memory for inner nodes, for each compute node: 64 KiB or more.
    pub cache_bytes: u64,
    /// Do operations of one compute node that write to the same leaf wait for each other, and hand its lock over?
    pub hand_over: bool,
    /// How a reader of a leaf knows that it has not read it in the middle of a change.
    pub variant: Variant,
}

/// How a reader of a leaf knows that it has not read it in the middle of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// By a checksum, which is linearizable.
    #[default]
    Repaired,
    /// By the published versions: one at each end of the leaf, and one at each end of each entry. They miss keys that are
    /// there, and return values that belong to other keys; the checks must detect that.
    #[cfg(feature = "published")]
    Published,
}

impl Default for Config {
    fn default() -> Self {
        Config { leaf_span: 59, inner_span: 59, cache_bytes: 100 << 20, hand_over: true, variant: Variant::Repaired }
    }
}

impl Settings for Config {
    const VERSION: u32 = 2;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if !(4..=MAX_SPAN).contains(&self.leaf_span) {
            return bad(format!("a leaf_span of {}: it takes 4 to {MAX_SPAN}", self.leaf_span));
        }
        if !(5..=MAX_SPAN).contains(&self.inner_span) {
            return bad(format!("an inner_span of {}: it takes 5 to {MAX_SPAN}", self.inner_span));
        }
        if self.cache_bytes < 64 << 10 {
            return bad(format!("cache_bytes of {}: it takes 65536 or more", self.cache_bytes));
        }
        Ok(())
    }

    fn loses_data(&self) -> bool {
        self.variant != Variant::Repaired
    }
}

impl Config {
    pub(in crate::tree) fn layouts(&self) -> (Layout, Layout) {
        let leaf = Layout { span: self.leaf_span, versions: self.loses_data() };
        (Layout::new(self.inner_span), leaf)
    }
}

/// A Sherman tree, as one worker thread uses it.
pub struct Sherman {
    handle: Handle<Config, Anchor>,
    pub(in crate::tree) tree: Tree,
    pub(in crate::tree) leaf: Layout,
    /// Where operations of this compute node wait for each other, if locks are handed over.
    locks: Option<Arc<LeafLocks<Node>>>,
}
has_handle!(Sherman, Handle<Config, Anchor>);

impl Sherman {
    /// Opens a tree whose copies of inner nodes are in another cache, and whose locks are not handed over.
    pub(in crate::tree) fn with_copies(handle: Handle<Config, Anchor>, copies: Copies) -> Self {
        let (inner, leaf) = handle.config.layouts();
        let tree = Tree::with_copies(&handle, inner, copies);
        Sherman { handle, tree, leaf, locks: None }
    }

    /// Returns the node cache's hits and misses by level, from level 1 up; the threads of a compute node share them.
    pub fn lookups(&self) -> Vec<Lookups> {
        self.tree.cache.lookups()
    }
    /// Merges neighbouring nodes as far as they fit well; returns the number of merges. Removals merge on their own, but
    /// leave what stands in their way.
    pub async fn compact(&self) -> Result<u64, IndexError> {
        let merged = self.tree.compact(self).await?;
        self.reclaim().await?;
        Ok(merged)
    }
    /// Forgets all copies of inner nodes.
    pub fn forget(&self) {
        self.tree.cache.clear();
    }
}

impl Leaves for Sherman {
    type Leaf = Node;

    fn leaf_len(&self) -> usize {
        self.leaf.len()
    }
    fn leaf(&self, span: &Span, at: RemotePtr, buf: Buf) -> Result<Node, Unread> {
        let node = Node { at, layout: self.leaf, buf };
        let torn = planted(Fault::TornRead) && span.kind() == OpKind::Get;
        let sound = match self.leaf.has_versions() {
            true => node.versions_agree(self.tree.tag),
            false => torn || self.tree.is_sound(&node),
        };
        if sound && node.level() == 0 { Ok(node) } else { Err(self.tree.why_unread(at, node.word(0))) }
    }
    fn words(leaf: &Node) -> &Buf {
        &leaf.buf
    }
    fn into_words(leaf: Node) -> Buf {
        leaf.buf
    }
    fn slots(&self, leaf: &Node) -> Vec<Slot> {
        let slot = |number: usize| {
            let (offset, (word0, word1)) = (leaf.layout.slot(number) * 8, leaf.slot(number));
            let (key, value) = match leaf.is_inline(number) {
                true => (SlotKey::Inline(offset..offset + 8), SlotValue::Inline(offset + 8..offset + 16)),
                false => {
                    let (at, units) = place(word1);
                    (SlotKey::Hash(word0), SlotValue::Block(at, units))
                }
            };
            Slot { number, offset, key, value }
        };
        leaf.used().filter(|slot| leaf.is_whole(*slot)).map(slot).collect()
    }
    fn slot_hash(&self, key: &[u8]) -> u64 {
        self.hash(key).bits()
    }
    async fn merge_leaves(&self, pin: &Pin<'_>, left: RemotePtr, right: RemotePtr) -> Result<Merged, IndexError> {
        self.tree.merge_nodes(self, pin, (left, right), 0).await
    }
    async fn restore_leaf(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Edit, IndexError> {
        self.tree.restore_node(self, pin, at, 0).await
    }
    async fn explain_unread(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<bool, IndexError> {
        self.tree.check_under_lock(self, pin, at).await
    }
}

/// Leaves have the format of inner nodes.
impl Slots for Sherman {
    fn layout(&self) -> Layout {
        self.leaf
    }
    async fn keys(&self, span: &Span, node: &Node) -> Result<Vec<(usize, Vec<u8>)>, IndexError> {
        let (mut keys, mut slots, mut places) = (Vec::with_capacity(node.count()), Vec::new(), Vec::new());
        for slot in node.used() {
            let (key, word1) = node.slot(slot);
            if node.is_inline(slot) {
                keys.push((slot, key.to_le_bytes().to_vec()));
            } else {
                slots.push(slot);
                places.push(place(word1));
            }
        }
        for ((slot, (at, _)), block) in slots.into_iter().zip(&places).zip(fetch_blocks(span, &places).await?) {
            let block =
                block.map_err(|what| IndexError::corrupt(*at, format!("an entry of a leaf points to {what}")))?;
            keys.push((slot, block.key().to_vec()));
        }
        Ok(keys)
    }
}

impl TablePerNode for Sherman {
    type Settings = Config;
    type Table = Anchor;
    type Shared = ();
    const KIND: u32 = 6;
    const NAME: &'static str = "sherman";
    const FORMAT: u32 = 1;
    const ROOT_LEN: usize = ANCHOR_LEN as usize;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        let (inner, leaf) = new.config.layouts();
        let first = |at| {
            let low = Fence::new(&[], RemotePtr::NULL);
            let mut first = Node::new(at, leaf, new.session.endpoint().buf(leaf.len()), (new.index_tag, 0), low);
            first.seal(new.index_tag);
            first.buf
        };
        Anchor::create(new, node, (inner, leaf.len()), first).await
    }

    async fn free_new_table(new: &Creation<'_, Config>, anchor: RemotePtr) -> Result<(), IndexError> {
        let (inner, leaf) = new.config.layouts();
        Anchor::free_new(new, anchor, (inner, leaf.len())).await
    }

    async fn prepare(_: &Span, _: &Config) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, at: RemotePtr) -> Result<Anchor, IndexError> {
        Anchor::open(of, at).await
    }

    fn from_handle(handle: Handle<Config, Anchor>) -> Self {
        let (inner, leaf) = handle.config.layouts();
        let tree = Tree::new(&handle, inner, handle.config.cache_bytes);
        let share = || handle.session.client().share(handle.uid, LeafLocks::default);
        let locks = handle.config.hand_over.then(share);
        Sherman { handle, tree, leaf, locks }
    }

    fn root_of(anchor: &Anchor) -> RemotePtr {
        anchor.at
    }

    async fn mark_root_dropped(span: &Span, anchor: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        Anchor::mark_dropped(span, anchor, index_tag).await
    }

    async fn free_table(&self, span: &Span, anchor: &Anchor) -> Result<(), IndexError> {
        if anchor.at.is_null() { Ok(()) } else { self.tree.free_entries(self, span).await }
    }

    fn resizes(&self) -> u64 {
        u64::from(self.tree.height.get())
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        self.tree.recover_tree(self).await.map(|(recovered, _)| recovered)
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.tree.audit_entries(self, audit, alone, |key| self.hash(key)).await
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        self.tree.visit_entries(self, entries, damaged).await
    }
}

impl PointIndex for Sherman {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        apart(self.look_up(key)).await
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        apart(self.look_up_many(keys)).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        apart(self.put(Mode::Insert, key, value)).await.map(Insert::from)
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        apart(self.put(Mode::UPDATE, key, value)).await.map(Update::from)
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        apart(self.put(Mode::Upsert, key, value)).await.map(Upsert::from)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        apart(self.delete(key, Guard::Any)).await.map(Remove::from)
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let mode = Mode::Update(Guard::Equals(expected));
        apart(self.put(mode, key, value)).await.map(Replace::from)
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        apart(self.delete(key, Guard::Equals(expected))).await
    }
    fn cache_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.tree.cache.bytes()
    }
}

impl OrderedIndex for Sherman {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        // Leaves are half full at least, as a rule.
        apart(self.tree.scan_range(self, bounds, limit, self.config.leaf_span / 2)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        assert!(Config::default().check().is_ok());
        for bad in [
            Config { leaf_span: 3, ..Config::default() },
            Config { inner_span: 4, ..Config::default() },
            Config { inner_span: 257, ..Config::default() },
            Config { cache_bytes: 1000, ..Config::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn default_nodes_have_one_kibibyte() {
        let (inner, leaf) = Config::default().layouts();
        assert_eq!((inner.len(), leaf.len()), (1024, 1024));
    }
}
