//! CHIME: a B+ tree whose leaves are hopscotch hash tables, so that a lookup reads a neighbourhood and not a leaf.
//!
//! X. Luo, J. Shen, P. Zuo, X. Wang, M. R. Lyu, Y. Zhou: *CHIME: A Cache-Efficient and High-Performance Hybrid Index on
//! Disaggregated Memory*, SOSP 2024. Protocol and deviations: `docs/protocols/chime.md`; the skeleton's:
//! `docs/protocols/tree.md`.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`leaf`] | the hopscotch leaf as computation on words: layout, verification, what operations write |
//! | `held` | a leaf as it was read, whole or under its lock |
//! | `read` | lookups |
//! | `write` | inserts, updates, removals |
//! | `shape` | splits, merges, recovery of leaves |
//! | `hotspot` | speculative READs of one entry |

mod held;
mod hotspot;
pub mod leaf;
mod read;
mod shape;
mod write;

pub use hotspot::{Speculation, SpeculationCounts};

use self::held::Held;
use self::hotspot::Hotspots;
use self::leaf::{Image, Key, layout::NEIGHBOURHOODS, layout::SPANS};
use super::anchor::{ANCHOR_LEN, Anchor};
use super::cache::Lookups;
use super::change::Puts;
use super::fence::Fence;
use super::hand_over::LeafLocks;
use super::lookups::LooksUp;
use super::node::{self, MAX_SPAN, magic};
use super::skeleton::Tree;
use crate::audit::OnDamage;
use crate::handle::{Handle, has_handle};
use crate::kind::Settings;
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{
    Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
use crate::visit::Entries;
use crate::write::{Guard, Mode, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{NodeId, RemotePtr, Span, apart};
use farindex_pool::audit::Audit;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of a CHIME tree. The last four are for every client that opens it; the switches bring back, one by one, what
/// the paper's techniques avoid (section 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Entries of a leaf: 8 to 512.
    pub leaf_span: usize,
    /// Entries of a neighbourhood: 2 to 16, and not more than a leaf has.
    pub neighbourhood: usize,
    /// Children of an inner node, at most: 5 to 256. The default makes a node of 1 KiB.
    pub inner_span: usize,
    /// Bytes of local memory for inner nodes, for each compute node: 64 KiB or more.
    pub cache_bytes: u64,
    /// Do operations of one compute node that write to the same leaf wait for each other, and hand its lock over?
    pub hand_over: bool,
    /// Bytes of local memory for the positions of hot entries, for each compute node: 4 KiB or more.
    pub hotspot_bytes: u64,
    /// When a lookup READs a hot entry alone.
    pub speculation: Speculation,
    /// An insert READs up to the first vacancy; otherwise the whole leaf.
    pub vacancy_bitmap: bool,
    /// A lookup READs no header, because the neighbourhood's replica says enough; otherwise it READs the header too.
    pub replicas: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            leaf_span: 64,
            neighbourhood: 8,
            inner_span: 59,
            cache_bytes: 100 << 20,
            hand_over: true,
            hotspot_bytes: 30 << 20,
            speculation: Speculation::Auto,
            vacancy_bitmap: true,
            replicas: true,
        }
    }
}

impl Settings for Config {
    const VERSION: u32 = 2;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if !SPANS.contains(&self.leaf_span) {
            return bad(format!("a leaf_span of {}: it takes {} to {}", self.leaf_span, SPANS.start(), SPANS.end()));
        }
        let most = *NEIGHBOURHOODS.end().min(&self.leaf_span);
        if !(*NEIGHBOURHOODS.start()..=most).contains(&self.neighbourhood) {
            let least = NEIGHBOURHOODS.start();
            return bad(format!("a neighbourhood of {}: it takes {least} to {most} here", self.neighbourhood));
        }
        if !(5..=MAX_SPAN).contains(&self.inner_span) {
            return bad(format!("an inner_span of {}: it takes 5 to {MAX_SPAN}", self.inner_span));
        }
        if self.cache_bytes < 64 << 10 {
            return bad(format!("cache_bytes of {}: it takes 65536 or more", self.cache_bytes));
        }
        if self.hotspot_bytes < 4 << 10 {
            return bad(format!("hotspot_bytes of {}: it takes 4096 or more", self.hotspot_bytes));
        }
        Ok(())
    }
}

impl Config {
    fn inner(&self) -> node::Layout {
        node::Layout::new(self.inner_span)
    }
    fn leaf(&self, seed: u64) -> Result<leaf::Layout, IndexError> {
        leaf::Layout::new(self.leaf_span, self.neighbourhood, seed)
            .ok_or_else(|| IndexError::BadConfig("a leaf of this shape cannot be".to_owned()))
    }
}

/// A CHIME tree, as one worker thread uses it.
pub struct Chime {
    handle: Handle<Config, Anchor>,
    tree: Tree,
    layout: leaf::Layout,
    hotspots: Arc<Hotspots>,
    /// When to speculate, and whether far memory is mapped.
    policy: (Speculation, bool),
    /// Where operations of this compute node wait for each other, if locks are handed over.
    locks: Option<Arc<LeafLocks<Held>>>,
}
has_handle!(Chime, Handle<Config, Anchor>);

impl Chime {
    /// Returns the node cache's hits and misses by level, from level 1 up; the threads of a compute node share them.
    pub fn lookups(&self) -> Vec<Lookups> {
        self.tree.cache.lookups()
    }
    /// Returns how often a hot entry was READ alone, and how often that was enough.
    pub fn speculation(&self) -> SpeculationCounts {
        self.hotspots.counts()
    }
    /// Merges neighbouring nodes as far as they fit well; returns the number of merges. Removals merge on their own, but
    /// leave what stands in their way.
    pub async fn compact(&self) -> Result<u64, IndexError> {
        let merged = self.tree.compact(self).await?;
        self.reclaim().await?;
        Ok(merged)
    }
    /// Forgets all copies of inner nodes, and where hot entries are.
    pub fn forget(&self) {
        self.tree.cache.clear();
        self.hotspots.clear();
    }
    /// A key as entries hold it.
    fn key_of(&self, key: &[u8]) -> Key {
        match <[u8; 8]>::try_from(key) {
            Ok(bytes) => Key::inline(bytes),
            Err(_) => Key::hashed(leaf::hash_key(key, self.layout.hash_seed())),
        }
    }
}

impl TablePerNode for Chime {
    type Settings = Config;
    type Table = Anchor;
    type Shared = ();
    const KIND: u32 = 7;
    const NAME: &'static str = "chime";
    const FORMAT: u32 = 1;
    const ROOT_LEN: usize = ANCHOR_LEN as usize;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        // The seed of key hashes places entries, and there are none yet.
        let layout = new.config.leaf(0)?;
        let first = |at: RemotePtr| {
            let low = Fence::new(&[], RemotePtr::NULL);
            let state = leaf::Node {
                tag: new.index_tag,
                address: at.to_bits(),
                sibling: 0,
                low: [low.word, low.tag],
                high: [Fence::INFINITE.word, Fence::INFINITE.tag],
            };
            let image = Image::empty(layout, &state, magic(new.index_tag, at));
            new.session.endpoint().buf_from_words(image.whole().unwrap_or_default())
        };
        Anchor::create(new, node, (new.config.inner(), layout.node_len()), first).await
    }

    async fn free_new_table(new: &Creation<'_, Config>, anchor: RemotePtr) -> Result<(), IndexError> {
        Anchor::free_new(new, anchor, (new.config.inner(), new.config.leaf(0)?.node_len())).await
    }

    async fn prepare(_: &Span, config: &Config) -> Result<(), IndexError> {
        config.check()
    }

    async fn open_table(of: &Opening<'_, Config, ()>, at: RemotePtr) -> Result<Anchor, IndexError> {
        Anchor::open(of, at).await
    }

    fn from_handle(handle: Handle<Config, Anchor>) -> Self {
        let config = handle.config;
        let tree = Tree::new(&handle, config.inner(), config.cache_bytes);
        // `prepare` has checked the settings.
        let layout = config.leaf(handle.seed).unwrap_or(leaf::Layout::SMALLEST);
        let client = handle.session.client();
        let hotspots = client.share(handle.uid, || Hotspots::new(config.hotspot_bytes));
        let locks = config.hand_over.then(|| client.share(handle.uid, LeafLocks::default));
        let mapped = handle.session.endpoint().capabilities().cpu_atomic;
        Chime { handle, tree, layout, hotspots, policy: (config.speculation, mapped), locks }
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

impl PointIndex for Chime {
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
        size_of::<Self>() as u64 + self.tree.cache.bytes() + self.hotspots.bytes()
    }
}

impl OrderedIndex for Chime {
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
            Config { leaf_span: 7, ..Config::default() },
            Config { leaf_span: 513, ..Config::default() },
            Config { neighbourhood: 1, ..Config::default() },
            Config { neighbourhood: 17, ..Config::default() },
            Config { leaf_span: 8, neighbourhood: 9, ..Config::default() },
            Config { inner_span: 4, ..Config::default() },
            Config { inner_span: 257, ..Config::default() },
            Config { cache_bytes: 1000, ..Config::default() },
            Config { hotspot_bytes: 1000, ..Config::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
