//! Sherman: a B+ tree whose inner nodes are cached on compute nodes, and whose leaves are read whole.
//!
//! Q. Wang, Y. Lu, J. Shu: *Sherman: A Write-Optimized Distributed B+Tree Index on Disaggregated Memory*, SIGMOD 2022, as
//! the papers of CHIME (section 2.2) and DEX (section 2.3) describe it. Protocol and deviations: `docs/protocols/tree.md`.
//!
//! A lookup READs one leaf. A write locks the leaf and READs it in one batch, and WRITEs the changed words and releases
//! the lock in a second one. Keys and values of 8 bytes each lie in the leaf; other entries are the hash of the key and a
//! pointer to a key-value block.

mod read;
mod scan;
mod walk;
mod write;

use super::cache::{Lookups, NodeCache};
use super::faults::{Fault, planted};
use super::fence::Fence;
use super::node::{HIGH, Header, Layout, MAX_SPAN, Node};
use super::skeleton::{Edit, Leaves, Merged, Slots, Tree};
use crate::audit::OnDamage;
use crate::handle::{Handle, has_handle};
use crate::kind::Settings;
use crate::maintenance::fetch_blocks;
use crate::table_per_node::{Creation, Opening, TablePerNode, index_tag};
use crate::traits::{Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, Update, Upsert};
use crate::write::{Mode, Wrote};
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{Buf, NodeId, OpKind, RemotePtr, Span};
use farindex_pool::Pin;
use farindex_pool::audit::Audit;
use farindex_pool::layout::HOME;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of an anchor: index tag, address of the root, zeros.
const ANCHOR_LEN: u64 = 64;

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
}

impl Default for Config {
    fn default() -> Self {
        Config { leaf_span: 59, inner_span: 59, cache_bytes: 100 << 20 }
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

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
}

impl Config {
    fn layouts(&self) -> (Layout, Layout) {
        (Layout { span: self.inner_span }, Layout { span: self.leaf_span })
    }
}

/// Where a tree begins; null on every memory node but the first.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    at: RemotePtr,
    root: RemotePtr,
}

/// A Sherman tree, as one worker thread uses it.
pub struct Sherman {
    handle: Handle<Config, Anchor>,
    tree: Tree,
    leaf: Layout,
}
has_handle!(Sherman, Handle<Config, Anchor>);

impl Sherman {
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
    fn leaf(&self, span: &Span, at: RemotePtr, buf: Buf) -> Option<Node> {
        let node = Node { at, layout: self.leaf, buf };
        let torn = planted(Fault::TornRead) && span.kind() == OpKind::Get;
        ((torn || self.tree.is_sound(&node)) && node.level() == 0).then_some(node)
    }
    async fn merge_leaves(&self, pin: &Pin<'_>, left: RemotePtr, right: RemotePtr) -> Result<Merged, IndexError> {
        self.tree.merge_nodes(self, pin, (left, right), 0).await
    }
    async fn restore_leaf(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Edit, IndexError> {
        self.tree.restore_node(self, pin, at, 0).await
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
            let (key, place) = node.slot(slot);
            if node.is_inline(slot) {
                keys.push((slot, key.to_le_bytes().to_vec()));
            } else {
                slots.push(slot);
                places.push(read::place(place));
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
        if node != HOME {
            return Ok(RemotePtr::NULL);
        }
        let (session, span, tag) = (new.session, new.span, new.index_tag);
        let (inner, leaf) = new.config.layouts();
        let mut allocated = Vec::new();
        let allocation = async {
            for len in [ANCHOR_LEN, inner.len() as u64, leaf.len() as u64] {
                allocated.push((session.alloc(span, HOME, len).await?, len));
            }
            Ok::<_, IndexError>(())
        };
        if let Err(error) = allocation.await {
            for (ptr, len) in allocated {
                session.free(span, ptr, len).await?;
            }
            return Err(error);
        }
        let &[(anchor, _), (root_at, _), (leaf_at, _)] = &allocated[..] else { return Ok(RemotePtr::NULL) };
        let low = Fence::new(&[], RemotePtr::NULL);
        let mut first = Node::new(leaf_at, leaf, session.endpoint().buf(leaf.len()), (tag, 0), low);
        let mut root = Node::new(root_at, inner, session.endpoint().buf(inner.len()), (tag, 1), low);
        let separator = low.separator(leaf_at, 0);
        root.fill(0, (separator.word, separator.tag));
        root.set_used(0, true);
        first.set_fence(HIGH, Fence::INFINITE);
        first.seal(tag);
        root.seal(tag);
        let mut batch = span.batch();
        batch.write(leaf_at, first.buf);
        batch.write(root_at, root.buf);
        batch.write_words(anchor, &[tag, root_at.to_bits(), 0, 0, 0, 0, 0, 0]);
        batch.post().await?;
        Ok(anchor)
    }

    async fn free_new_table(new: &Creation<'_, Config>, anchor: RemotePtr) -> Result<(), IndexError> {
        if anchor.is_null() {
            return Ok(());
        }
        let (session, span) = (new.session, new.span);
        let (inner, leaf) = new.config.layouts();
        let root = RemotePtr::from_bits(crate::maintenance::read_word(span, anchor.add(8)).await?);
        let buf = span.read(root, inner.len()).await?;
        let root_node = Node { at: root, layout: inner, buf };
        for slot in root_node.used() {
            session.free(span, root_node.separator(slot).child(), leaf.len() as u64).await?;
        }
        session.free(span, root, inner.len() as u64).await?;
        Ok(session.free(span, anchor, ANCHOR_LEN).await?)
    }

    async fn prepare(_: &Span, _: &Config) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, at: RemotePtr) -> Result<Anchor, IndexError> {
        if at.is_null() {
            return Ok(Anchor { at, root: RemotePtr::NULL });
        }
        let anchor = of.pin.span().read(at, 16).await?;
        match anchor.words() {
            &[tag, root] if tag == of.index_tag => Ok(Anchor { at, root: RemotePtr::from_bits(root) }),
            _ => Err(IndexError::Dropped),
        }
    }

    fn from_handle(handle: Handle<Config, Anchor>) -> Self {
        let (inner, leaf) = handle.config.layouts();
        let anchor = handle.tables.first().copied().unwrap_or(Anchor { at: RemotePtr::NULL, root: RemotePtr::NULL });
        let (bytes, node_len) = (handle.config.cache_bytes, inner.len() as u64);
        let tree = Tree {
            session: Rc::clone(&handle.session),
            uid: handle.uid,
            tag: index_tag(&handle.session, handle.uid),
            anchor: anchor.at,
            root: anchor.root,
            inner,
            cache: handle.session.client().share(handle.uid, || NodeCache::new(bytes, node_len)),
            height: Cell::new(0),
            dropping: Cell::new(false),
            turn: Cell::new(handle.session.client().slot()),
        };
        Sherman { handle, tree, leaf }
    }

    fn root_of(anchor: &Anchor) -> RemotePtr {
        anchor.at
    }

    async fn mark_root_dropped(span: &Span, anchor: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        if !anchor.is_null() {
            span.cas(anchor, index_tag, !index_tag).await?;
        }
        Ok(())
    }

    async fn free_table(&self, span: &Span, anchor: &Anchor) -> Result<(), IndexError> {
        if anchor.at.is_null() { Ok(()) } else { self.free_all(span).await }
    }

    fn resizes(&self) -> u64 {
        u64::from(self.tree.height.get())
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        self.recover_all().await
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.audit_all(audit, alone).await
    }

    async fn visit(
        &self,
        each: impl AsyncFnMut(&[u8], Value) -> Result<(), IndexError>,
        damaged: OnDamage<'_>,
    ) -> Result<u64, IndexError> {
        self.visit_all(each, damaged).await
    }
}

impl PointIndex for Sherman {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.look_up(key).await
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        self.look_up_many(keys).await
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        self.put(Mode::Insert, key, value).await.map(Insert::from)
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        self.put(Mode::Update, key, value).await.map(Update::from)
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.put(Mode::Upsert, key, value).await.map(Upsert::from)
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        let wrote = self.delete(key).await?;
        Ok(if wrote == Wrote::Absent { Remove::Absent } else { Remove::Removed })
    }
    fn cache_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.tree.cache.bytes()
    }
}

impl OrderedIndex for Sherman {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        self.scan_range(bounds, limit).await
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
