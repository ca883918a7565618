//! DEX: a B+ tree whose keys are divided among compute nodes, which cache the leaves that they own.
//!
//! B. Lu, K. Huang, C.-J. M. Liang, T. Wang, E. Lo: *DEX: Scalable Range Indexing on Disaggregated Memory*, VLDB 2024.
//! Protocol, invariants D1 to D13, and deviations: `docs/protocols/dex.md`.
//!
//! | Module | What it holds |
//! |---|---|
//! | `map` | the partition map |
//! | `ownership` | what the threads of a compute node share |
//! | `partitions`, `command_turn` | moving partitions by command; which command goes first |
//! | `proposal` | owner records; how an owner gives a partition away |
//! | `acquire` | how a compute node becomes the owner of a partition |
//! | `read`, `write` | lookups; writes in place |
//! | `restore` | leaves that a crashed owner has left in the middle of a change |
//! | `write_back` | changes that stay in the cache for a while |
//! | `offload` | which operations memory nodes finish, and how they are asked |
//! | `many` | lookups of many keys |
//! | `wire`, `remote` | requests and replies; what a memory node does |
//! | `decoders` | all that decodes what others have written, for fuzzing |
//!
//! The tree itself, and the format of its leaves, are those of [`Sherman`], which this index contains: its lookups serve
//! those who own nothing.

mod acquire;
mod audit;
mod command_turn;
#[cfg(feature = "marks")]
pub mod decoders;
mod dropped;
mod many;
mod map;
mod offload;
mod ownership;
mod partitions;
mod priority;
mod proposal;
mod read;
pub(crate) mod remote;
mod restore;
mod wire;
mod write;
mod write_back;

pub use offload::{Offload, OffloadCounts};

use super::anchor::{ANCHOR_LEN, Anchor};
use super::cache::{Copies, Lookups};
use super::change::Puts;
use super::edit::Edit;
use super::entries::Slot;
use super::faults::{Fault, planted};
use super::lookups::LooksUp;
use super::node::{Header, MAX_LEVEL, MAX_SPAN, Node, magic};
use super::path_cache::PathCache;
use super::retry::Retry;
use super::sherman::{self, Sherman};
use super::skeleton::{Leaves, Merged, Unread, unsound};
use crate::audit::OnDamage;
use crate::handle::{Handle, has_handle};
use crate::kind::Settings;
use crate::marks::mark;
use crate::table_per_node::{Creation, Opening, TablePerNode, index_tag};
use crate::traits::{
    Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
use crate::visit::Entries;
use crate::write::{Guard, Mode, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use farindex_fabric::{Buf, NodeId, RemotePtr, Span, apart, cold};
use farindex_pool::audit::Audit;
use farindex_pool::{OnTick, Pin, PoolError};
use ownership::{Gate, Ownership};
pub use partitions::PartitionInfo;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
pub use write_back::Durability;
use write_back::WriteBack;

/// Settings of a DEX tree.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Entries of a leaf, at most: 4 to 256. The default makes a leaf of 1 KiB.
    pub leaf_span: usize,
    /// Children of an inner node, at most: 5 to 256. The default makes a node of 1 KiB.
    pub inner_span: usize,
    /// Bytes of local memory for copies of nodes, for each compute node: 4 KiB or more.
    pub cache_bytes: u64,
    /// Of a hundred leaves that were READ, how many are admitted to the cache (5.4 of the paper). With 0 the cache holds inner
    /// nodes alone.
    pub leaf_admission: u8,
    /// What a compute node asks the owner of a key for, to write it.
    pub moves: Moves,
    /// What becomes of a write to a key that another compute node owns.
    pub foreign: Foreign,
    /// Which operations memory nodes finish, where they answer calls.
    pub offload: Offload,
    /// If not 0, the subtree of every node up to this level lies on one memory node, so that such a subtree may be offloaded
    /// (section 3 of the paper): 0 to 15. Then a tree of no more levels lies on memory node 0. With one memory node, every
    /// subtree may be offloaded anyway; with several and 0, leaves alone.
    pub subtree_levels: u8,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// With `write_back`: for how many milliseconds a change may be in the cache alone, 1 to 60,000.
    pub dirty_ms: u32,
}

/// What a compute node asks the owner of a key for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moves {
    /// The partition.
    #[default]
    Partition,
    /// The range of the lowest inner node that leads to the key.
    Subtree,
    /// The range of the key's leaf.
    Leaf,
}

/// What becomes of a write to a key that another compute node owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Foreign {
    /// The compute node asks the owner for the key, and waits until it owns it.
    #[default]
    Acquire,
    /// It fails with [`IndexError::NotOwner`], which names the owner.
    Refuse,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            leaf_span: 59,
            inner_span: 59,
            cache_bytes: 256 << 20,
            leaf_admission: 10,
            moves: Moves::Partition,
            foreign: Foreign::Acquire,
            offload: Offload::Auto,
            subtree_levels: 0,
            durability: Durability::WriteThrough,
            dirty_ms: 100,
        }
    }
}

impl Settings for Config {
    const VERSION: u32 = 3;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if !(4..=MAX_SPAN).contains(&self.leaf_span) {
            return bad(format!("a leaf_span of {}: it takes 4 to {MAX_SPAN}", self.leaf_span));
        }
        if !(5..=MAX_SPAN).contains(&self.inner_span) {
            return bad(format!("an inner_span of {}: it takes 5 to {MAX_SPAN}", self.inner_span));
        }
        if self.cache_bytes < 4 << 10 {
            return bad(format!("cache_bytes of {}: it takes 4096 or more", self.cache_bytes));
        }
        if self.leaf_admission > 100 {
            return bad(format!("a leaf_admission of {}: it takes 0 to 100 percent", self.leaf_admission));
        }
        if self.subtree_levels > MAX_LEVEL {
            return bad(format!("subtree_levels of {}: it takes 0 to {MAX_LEVEL}", self.subtree_levels));
        }
        if !(1..=60_000).contains(&self.dirty_ms) {
            return bad(format!("dirty_ms of {}: it takes 1 to 60000", self.dirty_ms));
        }
        Ok(())
    }

    fn loses_data(&self) -> bool {
        false
    }
}

impl Config {
    /// The settings of the tree itself, but for its cache.
    fn tree(&self) -> sherman::Config {
        let (leaf_span, inner_span) = (self.leaf_span, self.inner_span);
        sherman::Config { leaf_span, inner_span, hand_over: false, ..sherman::Config::default() }
    }
}

/// A DEX tree, as one worker thread uses it.
pub struct Dex {
    handle: Handle<Config, Anchor>,
    /// The tree, for those who own nothing of it.
    far: Sherman,
    own: Arc<Ownership>,
    /// Counts draws.
    draws: Cell<u64>,
    /// May memory nodes be asked to finish operations?
    calls: bool,
}
has_handle!(Dex, Handle<Config, Anchor>);

impl Drop for Dex {
    /// With its last handle, a compute node gives up what it owns. Nobody waits for that.
    fn drop(&mut self) {
        let Some(unused) = self.own.close_handle() else {
            if !self.own.is_done() {
                // The heartbeats write the rest back, and then give up the record; closing the client waits for that.
                self.session.client().linger(Arc::clone(&self.own) as Arc<dyn OnTick>);
            }
            return;
        };
        self.own.give_up_record(&self.session, &self.tree().maintenance(), unused);
    }
}

impl Dex {
    fn enter(&self, key: &[u8]) -> Gate<'_> {
        self.own.enter(self.session.client(), self.session.endpoint().now(), key)
    }
    fn draw(&self) -> u64 {
        let draw = self.draws.get();
        self.draws.set(draw.wrapping_add(1));
        xxhash_rust::xxh3::xxh3_64_with_seed(&draw.to_le_bytes(), self.uid)
    }
    /// Is a leaf that was READ to be admitted to the cache?
    fn admits(&self) -> bool {
        self.draw() % 100 < u64::from(self.config.leaf_admission)
    }

    /// Returns the node cache's hits and misses by level, from level 1 up; the threads of a compute node share them.
    pub fn lookups(&self) -> Vec<Lookups> {
        self.own.cache.lookups()
    }
    /// Returns the number of partitions that this compute node owns, as far as it knows.
    pub fn partitions(&self) -> usize {
        let (record, (_, map)) = (self.own.record(), self.own.map());
        map.partitions().filter(|(partition, _)| Some(partition.owner()) == record).count()
    }
    /// Merges neighbouring nodes as far as they fit well; returns the number of merges.
    pub async fn compact(&self) -> Result<u64, IndexError> {
        let merged = self.tree().compact(self).await?;
        self.reclaim().await?;
        Ok(merged)
    }
    /// Forgets all copies of nodes.
    pub fn forget(&self) {
        self.own.cache.clear();
    }
}

impl Leaves for Dex {
    type Leaf = Node;

    fn leaf_len(&self) -> usize {
        self.far.leaf_len()
    }
    fn leaf(&self, span: &Span, at: RemotePtr, words: Buf) -> Result<Node, Unread> {
        self.far.leaf(span, at, words)
    }
    fn words(leaf: &Node) -> &Buf {
        &leaf.buf
    }
    fn into_words(leaf: Node) -> Buf {
        leaf.buf
    }
    /// D4 says that the copy equals the leaf in far memory while this client keeps its lease (D5).
    fn copy(&self, at: RemotePtr) -> Option<Node> {
        let (leaf, _) = self.copy_of(at)?;
        if self.writes_back() {
            // Far memory may have less. The scan waits until it is certain that the lease was kept.
            return Some(leaf);
        }
        let keeps = self.session.client().keeps_lease(self.session.endpoint().now());
        keeps.then_some(leaf)
    }
    fn slots(&self, leaf: &Node) -> Vec<Slot> {
        self.far.slots(leaf)
    }
    fn slot_hash(&self, key: &[u8]) -> u64 {
        self.far.slot_hash(key)
    }
    /// Merges two leaves of one owner (D3).
    async fn merge_leaves(&self, pin: &Pin<'_>, left: RemotePtr, right: RemotePtr) -> Result<Merged, IndexError> {
        let (tree, span) = (self.tree(), pin.span());
        let (Some(left_turn), Some(right_turn)) = (self.try_turn(left), self.try_turn(right)) else {
            return Ok(Merged::No);
        };
        let (low, high) = (tree.low_of(span, left).await?, tree.read_head(span, right).await?.high());
        let Some(low) = tree.fence_key(span, low).await? else { return Ok(Merged::No) };
        let Gate::Inside(inside) = self.enter(&low) else { return Ok(Merged::No) };
        let fits = match inside.range().1 {
            Some(bound) => !high.is_infinite() && tree.compare(span, high, bound, None).await?.is_le(),
            None => true,
        };
        let both_own = fits && *inside.range().0 <= *low;
        if !both_own && !planted(Fault::AcrossBound) {
            mark!("dex: leaves of two owners are not merged");
            return Ok(Merged::No);
        }
        let (inside, _turns) = self.clean(span, &[left, right], (inside, (left_turn, right_turn))).await?;
        self.own.cache.remove(left);
        self.own.cache.remove(right);
        if inside.is_unclean() {
            // A leaf in the middle of a crashed owner's change is restored first, by an operation that looks into it. Nobody
            // changes these leaves meanwhile.
            for at in [left, right] {
                let words = span.read(at, self.leaf_len()).await?;
                if self.leaf(span, at, words).is_err() {
                    mark!("dex: leaf in the middle of a crashed owner's change is not merged");
                    return Ok(Merged::No);
                }
            }
        }
        tree.merge_nodes(&self.far, pin, (left, right), 0).await
    }
    async fn restore_leaf(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Edit, IndexError> {
        self.far.restore_leaf(pin, at).await
    }
    async fn sent_leaves(
        &self,
        span: &Span,
        from: &[u8],
        most: usize,
        retry: &Retry,
    ) -> Result<Option<Vec<Node>>, IndexError> {
        // Neither copies nor calls say that the index was dropped (D8).
        self.tree().check_open(span, self.tree().epoch()).await?;
        if !self.calls || retry.fresh {
            return Ok(None);
        }
        cold(self.leaves_by_call(span, from, most, retry)).await
    }
    /// An owner changes a leaf without its lock. So the lock does not tell whether somebody is changing it; being the owner
    /// does.
    async fn explain_unread(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<bool, IndexError> {
        let (tree, span) = (self.tree(), pin.span());
        let head = tree.read_head(span, at).await?;
        if head.level() > 0 {
            return tree.check_under_lock(self, pin, at).await;
        }
        if head.word(0) != magic(tree.tag, at) {
            // Locked, dead, or no node of this index.
            return Ok(head.word(0) == magic(tree.tag, at) | 1);
        }
        if tree.dropping.get() {
            // Nobody changes it any more, and what says who owns it was freed (D11).
            self.restore(pin, at).await?;
            let words = span.read(at, self.leaf_len()).await?;
            return self.leaf(span, at, words).map(|_| true).map_err(|_| unsound(at));
        }
        let Some(low) = tree.fence_key(span, head.low()).await? else { return Ok(false) };
        match cold(self.acquire(&low)).await {
            // Its owner may be changing it.
            Err(IndexError::NotOwner { .. }) => return Ok(false),
            Err(IndexError::Pool(PoolError::Full { .. })) => return self.restore_unowned(pin, at, &low).await,
            acquired => acquired?,
        }
        if matches!(self.enter(&low), Gate::Expired) {
            self.session.client().tick(self.session.endpoint()).await?;
        }
        let (Gate::Inside(inside), Some(_turn)) = (self.enter(&low), self.try_turn(at)) else { return Ok(true) };
        let words = span.read(at, self.leaf_len()).await?;
        if self.leaf(span, at, words).is_ok() {
            return Ok(true);
        }
        if !inside.is_unclean() {
            return Err(unsound(at));
        }
        self.restore(pin, at).await?;
        Ok(true)
    }
    /// Where nothing is asked for that others own, or there is no memory to ask with: the owner of a leaf.
    async fn slow_owner(&self, pin: &Pin<'_>, at: RemotePtr) -> Result<Option<String>, IndexError> {
        let (tree, span) = (self.tree(), pin.span());
        let head = tree.read_head(span, at).await?;
        if head.level() > 0 || head.word(0) != magic(tree.tag, at) {
            return Ok(None);
        }
        let Some(low) = tree.fence_key(span, head.low()).await? else { return Ok(None) };
        let owner = self.latest_map(span).await?.1.find(&low).0.owner();
        if owner.is_null() || Some(owner) == self.own.record() {
            return Ok(None);
        }
        Ok(Some(farindex_pool::intent::holders(&self.session, span, owner).await?))
    }
}

impl TablePerNode for Dex {
    type Settings = Config;
    type Table = Anchor;
    type Shared = ();
    const KIND: u32 = 8;
    const NAME: &'static str = "dex";
    const FORMAT: u32 = 1;
    const ROOT_LEN: usize = ANCHOR_LEN as usize;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        let config = new.config.tree();
        Sherman::create_table(
            &Creation { session: new.session, span: new.span, index_tag: new.index_tag, config: &config },
            node,
        )
        .await
    }

    async fn free_new_table(new: &Creation<'_, Config>, anchor: RemotePtr) -> Result<(), IndexError> {
        let config = new.config.tree();
        Sherman::free_new_table(
            &Creation { session: new.session, span: new.span, index_tag: new.index_tag, config: &config },
            anchor,
        )
        .await
    }

    async fn prepare(_: &Span, _: &Config) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, at: RemotePtr) -> Result<Anchor, IndexError> {
        Anchor::open(of, at).await
    }

    fn from_handle(handle: Handle<Config, Anchor>) -> Self {
        let (config, client) = (handle.config, Arc::clone(handle.session.client()));
        let (session, tables) = (Rc::clone(&handle.session), handle.tables.clone());
        let (tag, tree) = (index_tag(&session, handle.uid), config.tree());
        let make = || {
            let anchor = handle.tables.first();
            let root = anchor.map_or(RemotePtr::NULL, |anchor| anchor.root);
            let (inner, leaf) = tree.layouts();
            let cache = PathCache::new(root, config.cache_bytes, inner.len().min(leaf.len()));
            let at = anchor.map_or(RemotePtr::NULL, |anchor| anchor.at);
            // Dirty leaves have half of the cache at most.
            let most = config.cache_bytes / 2 / (leaf.len() as u64 + 512);
            let write_back = WriteBack {
                leaf,
                calls: config.offload != Offload::Never,
                age: Duration::from_millis(config.dirty_ms.into()),
                most: usize::try_from(most).unwrap_or(usize::MAX),
            };
            Ownership::new((tag, at), cache, &client, write_back)
        };
        let own: Arc<Ownership> = client.share(handle.uid, make);
        let far = Handle { session, uid: handle.uid, seed: handle.seed, config: tree, tables };
        let mut far = Sherman::with_copies(far, Copies::Paths(Arc::clone(&own.cache)));
        far.tree.subtree_levels = config.subtree_levels;
        own.open_handle(&client);
        let draws = Cell::new(client.slot() << 32);
        let calls = config.offload != Offload::Never && handle.session.endpoint().capabilities().call;
        Dex { handle, far, own, draws, calls }
    }

    fn root_of(anchor: &Anchor) -> RemotePtr {
        anchor.at
    }

    async fn mark_root_dropped(span: &Span, anchor: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        Anchor::mark_dropped(span, anchor, index_tag).await
    }

    async fn free_table(&self, span: &Span, anchor: &Anchor) -> Result<(), IndexError> {
        if anchor.at.is_null() {
            return Ok(());
        }
        self.free_ownership(span, anchor.at).await?;
        self.tree().free_entries(self, span).await
    }

    fn resizes(&self) -> u64 {
        u64::from(self.tree().height.get())
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        let taken = self.take_over_all().await?;
        let (word, _) = self.own.map();
        let (recovered, unread) = self.tree().recover_tree(self).await?;
        // Every leaf has been read since. If the map has changed meanwhile, perhaps not since its owner crashed.
        if unread == 0 && self.own.map().0 == word {
            match self.mark_clean().await {
                // It stays unclean, for want of memory.
                Ok(()) | Err(IndexError::Pool(PoolError::Full { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(taken + recovered)
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.flush().await?;
        self.end_ownership_changes(audit, alone).await?;
        let report = self.tree().audit_entries(self, audit, alone, |key| self.hash(key)).await?;
        self.reach_ownership(audit).await?;
        Ok(report)
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        if self.writes_back() {
            // Then far memory has everything that was acknowledged before.
            self.own((Bound::Unbounded, Bound::Unbounded)).await?;
            self.flush().await?;
        }
        self.tree().visit_entries(self, entries, damaged).await
    }
}

impl PointIndex for Dex {
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
        size_of::<Self>() as u64 + self.own.cache.bytes()
    }
}

impl OrderedIndex for Dex {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        if self.writes_back() {
            return apart(self.scan_owned(bounds, limit)).await;
        }
        // Leaves are half full at least, as a rule.
        apart(self.tree().scan_range(self, bounds, limit, self.config.leaf_span / 2)).await
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
            Config { inner_span: 257, ..Config::default() },
            Config { cache_bytes: 1000, ..Config::default() },
            Config { leaf_admission: 101, ..Config::default() },
            Config { dirty_ms: 0, ..Config::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
