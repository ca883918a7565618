//! A B-link tree (Lehman and Yao, 1981) with one lock for each node: a small ordered index for tests.
//!
//! It proves that an ordered index fits the traits, the pool and the tests, and is allowed to be slow: every operation
//! descends from the root and caches nothing. The whole tree lies on memory node 0.
//!
//! Each node has a low key, a right sibling, and immutable contents that its header points to (see `node`). A writer
//! locks one node, reads it again, and writes new contents. If that splits the node, the writer has released it before
//! it locks the parent to add the separator.
//!
//! Invariants:
//!
//! * **L1** A node's contents change only under its lock. The holder's intent names the lock before it is held, so the
//!   next client that needs the lock takes it over after a crash.
//! * **L2** The pointer to new contents is written after everything that it leads to: in the same batch, and WRITEs of
//!   one batch take effect in their order (G4). A crash leaves the node before the change or after it, so the new
//!   holder has nothing to repair but the lock.
//! * **L3** Every key belongs to exactly one leaf: the one that is reached from any node further left by right
//!   siblings. A separator that is missing in a parent costs a step to the right and nothing else; the next writer that
//!   takes such a step adds the separator.
//!
//! A lookup is linearizable: it takes effect at the READ of the header word of the leaf that covers the key. A write
//! takes effect when the header word is written. Nodes are never merged: an empty leaf stays until the index is
//! dropped.
//!
//! | Module | What it holds |
//! |---|---|
//! | `node` | the format of nodes, and reading them |
//! | `write` | locks, changes, splits, separators |
//! | `walk` | scans, dumps, audits, recovery, drops |

pub mod faults;
mod node;
mod walk;
mod write;

use crate::handle::{Handle, has_handle};
use crate::kind::Settings;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::table_per_node::{Creation, Opening, TablePerNode, index_tag};
use crate::traits::{
    Entry as Pair, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
use crate::visit::Entries;
use crate::write::{Guard, Mode, upsert_each};
use crate::{IndexAudit, IndexError, Value, audit::OnDamage, join};
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, apart};
use farindex_pool::PoolError;
use farindex_pool::audit::Audit;
use farindex_pool::layout::HOME;
use faults::{Fault, planted};
use node::{Contents, Entry, HEADER_LEN, Node, TAG};
use serde::{Deserialize, Serialize};
use std::cell::Cell;

/// Settings of a B-link tree.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Entries of a node, at most: 4 to 64.
    pub fanout: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { fanout: 16 }
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

    fn check(&self) -> Result<(), IndexError> {
        match (4..=64).contains(&self.fanout) {
            true => Ok(()),
            false => Err(IndexError::BadConfig(format!("a fanout of {}: it takes 4 to 64", self.fanout))),
        }
    }
}

/// A B-link tree, as one worker thread uses it.
pub struct BLink {
    /// Its tables are the roots; only the one of memory node 0 is not null.
    handle: Handle<Config, RemotePtr>,
    tag: u64,
    /// Level of the root as last seen.
    height: Cell<u32>,
    /// Is this handle dropping the index, and so reads a root that is marked as dropped?
    dropping: Cell<bool>,
}

has_handle!(BLink, Handle<Config, RemotePtr>);

/// A child that its parent does not name yet.
struct Separator {
    /// Level of the parent.
    level: u32,
    child: Entry,
}

/// What a descent has found.
struct Descent {
    node: Node,
    /// Right siblings that the descent went through.
    missing: Vec<Separator>,
}

impl BLink {
    fn root(&self) -> RemotePtr {
        self.tables.first().copied().unwrap_or_default()
    }

    /// Descends to the node of this level that the key belongs to. `bound` becomes the least key that lies beyond the
    /// node, as far as its ancestors know, even if the node cannot be read.
    async fn descend(
        &self,
        span: &Span,
        key: &[u8],
        level: u32,
        bound: &mut Option<Vec<u8>>,
    ) -> Result<Descent, IndexError> {
        let mut node = self.read_root(span).await?;
        let mut missing = Vec::new();
        loop {
            let of_node = node.contents.level;
            if let Some(right) = node.contents.right.as_ref().filter(|right| key >= right.key.as_slice())
                && !(planted(Fault::NoMoveRight) && span.kind() == OpKind::Get)
            {
                mark!("blink: moved right");
                missing.push(Separator { level: of_node + 1, child: right.clone() });
                node = self.read_node(span, right, of_node).await?;
                continue;
            }
            if of_node == level {
                return Ok(Descent { node, missing });
            }
            let child = of_node.checked_sub(1).filter(|below| *below >= level).zip(node.contents.child(key));
            let Some((below, (child, beyond))) = child else {
                let what = format!("the key belongs to no node of level {level}");
                return Err(PoolError::Corrupt { at: node.at, what }.into());
            };
            *bound = beyond.map(<[u8]>::to_vec);
            node = self.read_node(span, child, below).await?;
        }
    }
}

impl TablePerNode for BLink {
    type Settings = Config;
    /// The root; null on every memory node but the first.
    type Table = RemotePtr;
    type Shared = ();
    const KIND: u32 = 0x7E57;
    const NAME: &'static str = "blink";
    const FORMAT: u32 = 1;
    const ROOT_LEN: usize = HEADER_LEN as usize;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        if node != HOME {
            return Ok(RemotePtr::NULL);
        }
        let (session, span, tag) = (new.session, new.span, new.index_tag);
        let contents = node::encode(session.endpoint(), tag, &Contents::empty())?;
        let len = contents.len() as u64;
        let place = session.alloc(span, HOME, len).await?;
        let root = match session.alloc(span, HOME, HEADER_LEN).await {
            Ok(root) => root,
            Err(error) => {
                session.free(span, place, len).await?;
                return Err(error.into());
            }
        };
        let mut batch = span.batch();
        batch.write(place, contents);
        batch.write_words(root, &[0, node::pointer(place, len), tag, 0, 0, 0, 0, 0]);
        batch.post().await?;
        Ok(root)
    }

    async fn free_new_table(new: &Creation<'_, Config>, root: RemotePtr) -> Result<(), IndexError> {
        if root.is_null() {
            return Ok(());
        }
        let (session, span) = (new.session, new.span);
        let len = node::encode(session.endpoint(), new.index_tag, &Contents::empty())?.len() as u64;
        let word = span.read(root.add(node::CONTENTS), 8).await?.words().first().copied().unwrap_or_default();
        session.free(span, RemotePtr::from_slot(word), len).await?;
        Ok(session.free(span, root, HEADER_LEN).await?)
    }

    async fn prepare(_: &Span, _: &Config) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, root: RemotePtr) -> Result<RemotePtr, IndexError> {
        if !root.is_null() {
            let tag = read_word(of.pin.span(), root.add(TAG)).await?;
            if tag != of.index_tag {
                return Err(IndexError::Dropped);
            }
        }
        Ok(root)
    }

    fn from_handle(handle: Handle<Config, RemotePtr>) -> Self {
        let tag = index_tag(&handle.session, handle.uid);
        BLink { handle, tag, height: Cell::new(0), dropping: Cell::new(false) }
    }

    fn root_of(root: &RemotePtr) -> RemotePtr {
        *root
    }

    async fn mark_root_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        // READ first: another client may have marked it and freed its memory.
        if !root.is_null() && read_word(span, root.add(TAG)).await? == index_tag {
            span.cas(root.add(TAG), index_tag, !index_tag).await?;
        }
        Ok(())
    }

    async fn free_table(&self, span: &Span, root: &RemotePtr) -> Result<(), IndexError> {
        if root.is_null() { Ok(()) } else { self.free_all(span).await }
    }

    fn resizes(&self) -> u64 {
        u64::from(self.height.get())
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        self.recover_all().await
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.audit_all(audit, alone).await
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        self.visit_all(entries, damaged).await
    }
}

/// Operations on a key.
impl BLink {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let pin = self.session.pin(self.session.span(OpKind::Get))?;
        let leaf = self.descend(pin.span(), key, 0, &mut None).await?.node;
        let Ok(found) = leaf.contents.find(key) else { return Ok(None) };
        let (mut pairs, wrong) = self.read_entries(pin.span(), &leaf.contents.entries[found..=found]).await?;
        wrong.into_iter().try_for_each(|damage| damage.fail())?;
        Ok(pairs.pop().map(|(_, value)| value))
    }

    async fn delete(&self, key: &[u8], guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        self.check_lengths(key, &[])?;
        self.change(self.session.span(OpKind::Remove), key, &write::Change::Remove(guard)).await.map(RemoveIf::from)
    }
}

impl PointIndex for BLink {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        apart(self.look_up(key)).await
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        apart(join::try_join_all(keys.iter().map(|key| self.look_up(key)))).await
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
        size_of::<Self>() as u64
    }
}

impl OrderedIndex for BLink {
    async fn scan(&self, bounds: KeyBounds<'_>, limit: usize) -> Result<Vec<Pair>, IndexError> {
        apart(self.scan_range(bounds, limit)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        assert!(Config::default().check().is_ok());
        assert!(Config { fanout: 3 }.check().is_err() && Config { fanout: 65 }.check().is_err());
    }
}
