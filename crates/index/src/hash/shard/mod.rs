//! SHARD: a resize-optimized hash index on disaggregated memory.
//!
//! After H. Zha et al., PVLDB 19(4), 2025. Iceberg hashing in three levels, ordered CAS, lazy resizing bucket by bucket
//! with combined writes, adaptive frequency synchronization. docs/protocols/shard.md has the protocol, its
//! linearization points, and the numbered deviations from the paper; this is the map:
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`slot`] | the 8-byte slot | Figure 8 |
//! | [`bucket`] | buckets, and what can be concluded from a READ of one | 3.1, 3.3 |
//! | [`geometry`] | segments, directory, places of a key | 3.1 |
//! | [`table`] | root, synchronization, growth | 3.3, 3.4 |
//! | `lookup` | search | Algorithm 2 |
//! | `at_once` | the part of a search that waits for nothing | |
//! | `many` | many lookups at once | |
//! | `insert` | insert | Algorithm 1 |
//! | `split` | moving a bucket | Algorithm 3, Figures 10 and 11 |
//! | `recovery` | recovery of what a crashed client left under a lock | |
//! | `stall` | bounds on waiting | |
//! | `unfreeze` | undoing splits that were begun by mistake | |
//! | `intents` | what an intent says | |
//! | `level3` | single slots and chained nodes | 3.2.1 |
//! | `published` | removal as published, with the feature `published` alone | 3.2 |
//! | `dump` | every key once | |
//! | `walk` | every slot, for audits, recovery and drops | |
//! | `write` | writes of one key and of many: a block, and a CAS that points to it | Algorithm 1 |

mod at_once;
pub mod bucket;
mod dump;
pub mod geometry;
mod insert;
mod intents;
mod level3;
mod lookup;
mod many;
#[cfg(feature = "published")]
mod published;
mod recovery;
pub mod slot;
mod split;
mod stall;
pub mod table;
#[cfg(test)]
mod tests;
mod unfreeze;
mod walk;
mod write;

use crate::audit::OnDamage;
use crate::handle::{Handle, has_handle};
use crate::kind::Settings;
use crate::root_sync::{free_root, mark_root_dropped};
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{Insert, Limits, PointIndex, Remove, RemoveIf, Replace, Update, Upsert};
use crate::visit::Entries;
use crate::write::{Guard, Mode};
use crate::{IndexAudit, IndexError, Value};
use at_once::LookedNow;
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, apart, cold};
use farindex_pool::audit::Audit;
use geometry::Geometry;
use lookup::{LookupResult, Op, Verified};
use serde::{Deserialize, Serialize};
use slot::{Slot, Stamp};
use std::rc::Rc;
use table::Table;

/// This kind's number in the catalog.
pub const KIND: u32 = 1;
/// Version of its format.
pub const FORMAT: u32 = 1;

/// Settings of a SHARD index.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// A new table has `2^initial_bits` level-1 buckets on each memory node (`b` of the paper).
    pub initial_bits: u64,
    /// Share of level-1 slots in use at which a table grows (0.8 in the paper).
    pub threshold: f64,
    /// How rarely workers synchronize with the root: `alpha` of section 3.4 (0.1 in the paper).
    pub alpha: f64,
    /// Which protocol.
    pub variant: Variant,
}

/// Which protocol an index runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Repaired: linearizable.
    #[default]
    Repaired,
    /// Inserts and removals as published: a removal frees its slot at once. So a slow insert can leave a second entry
    /// of a key, which becomes visible when the first one is removed. It exists to test the checkers, and is not for
    /// stored data.
    #[cfg(feature = "published")]
    Published,
}

impl Default for Config {
    fn default() -> Self {
        Config { initial_bits: 4, threshold: 0.8, alpha: 0.1, variant: Variant::Repaired }
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if self.initial_bits > geometry::MAX_INITIAL_BITS {
            return bad(format!(
                "2^{} buckets: a table begins with at most 2^{}",
                self.initial_bits,
                geometry::MAX_INITIAL_BITS
            ));
        }
        if !(0.05..=1.0).contains(&self.threshold) {
            return bad(format!("a load threshold of {}: it takes 0.05 to 1", self.threshold));
        }
        if !(0.0..=100.0).contains(&self.alpha) {
            return bad(format!("alpha {}: it takes 0 to 100", self.alpha));
        }
        Ok(())
    }

    fn loses_data(&self) -> bool {
        self.variant != Variant::Repaired
    }
}

/// A SHARD index, as one worker thread uses it.
pub struct Shard {
    handle: Handle<Config, Table>,
}

has_handle!(Shard, Handle<Config, Table>);

impl Shard {
    /// Grows the table and frees memory between operations, because no operation should do that under its pin.
    async fn after(&self, table: &Table, inserted: bool) -> Result<(), IndexError> {
        if inserted && table.crowded() {
            let pin = self.session.pin(self.session.span(OpKind::Maintenance))?;
            table.grow(&pin, self.uid).await?;
        }
        self.reclaim().await
    }
}

impl TablePerNode for Shard {
    type Settings = Config;
    type Table = Table;
    type Shared = ();
    const KIND: u32 = KIND;
    const NAME: &'static str = "shard";
    const FORMAT: u32 = FORMAT;
    const ROOT_LEN: usize = geometry::ROOT_LEN;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        let Creation { session, span, index_tag, config } = *new;
        Table::create(session, span, node, index_tag, config).await
    }

    async fn free_new_table(new: &Creation<'_, Config>, root: RemotePtr) -> Result<(), IndexError> {
        let Creation { session, span, .. } = *new;
        free_root::<Rc<Geometry>>(session, span, root, ()).await
    }

    async fn prepare(_: &Span, _: &Config) -> Result<Self::Shared, IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, root: RemotePtr) -> Result<Table, IndexError> {
        let Opening { pin, index_tag, config, .. } = *of;
        Table::open(pin, root, index_tag, config).await
    }

    fn from_handle(handle: Handle<Config, Table>) -> Self {
        Shard { handle }
    }

    fn root_of(table: &Table) -> RemotePtr {
        table.root()
    }

    async fn mark_root_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        mark_root_dropped::<Rc<Geometry>>(span, root, index_tag).await
    }

    async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        self.free_table(span, table).await
    }

    fn resizes(&self) -> u64 {
        self.handle.resizes()
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        self.recover().await
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.audit(audit, alone).await
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        self.visit_entries(entries, damaged).await
    }
}

/// Operations on a key.
impl Shard {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Get, key)?;
        let mut op = Op::new(self, table, pin, hash, key);
        match op.look_now() {
            LookedNow::Own(block) => return Ok(Some(block.into_value())),
            LookedNow::Open => {}
            LookedNow::Unsure(candidate, ptr, buf) => match cold(op.verify_open(candidate, ptr, buf)).await? {
                Verified::Hit(hit) => return Ok(Some(hit.block.into_value())),
                Verified::None => {}
                Verified::Again => op.ready = None,
            },
        }
        match op.look(&mut None).await? {
            LookupResult::Hit(hit) => Ok(Some(hit.block.into_value())),
            LookupResult::Absent(_) => Ok(None),
        }
    }

    async fn delete(&self, key: &[u8], guard: Guard<'_>) -> Result<RemoveIf, IndexError> {
        let (hash, table, pin) = self.begin(OpKind::Remove, key)?;
        let dead = Slot::Dead(0, Stamp::of_pin(pin.epoch()));
        let (mut op, mut check) = (Op::new(self, table, pin, hash, key), guard.begin());
        let removed = loop {
            #[cfg(feature = "published")]
            if self.config.variant == Variant::Published && guard == Guard::Any {
                break op.remove_published().await?;
            }
            match op.look(&mut None).await? {
                LookupResult::Absent(_) => break RemoveIf::Absent,
                LookupResult::Hit(hit) if !check.admits(hit.block.value()) => break RemoveIf::Differs,
                LookupResult::Hit(hit) if op.replace(&hit, dead).await? => break RemoveIf::Removed,
                LookupResult::Hit(_) => {}
            }
        };
        drop(op);
        if removed == RemoveIf::Removed {
            table.note(-1);
        }
        self.after(table, false).await?;
        Ok(removed)
    }
}

impl PointIndex for Shard {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        apart(self.look_up(key)).await
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        apart(crate::many::get_many::<Op<'_>>(self, keys)).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        apart(self.write(Mode::Insert, key, value)).await.map(Insert::from)
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        apart(self.write(Mode::UPDATE, key, value)).await.map(Update::from)
    }

    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        apart(self.write(Mode::Upsert, key, value)).await.map(Upsert::from)
    }

    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }

    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        apart(self.write_many(pairs)).await
    }

    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        apart(self.delete(key, Guard::Any)).await.map(Remove::from)
    }

    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let mode = Mode::Update(Guard::Equals(expected));
        apart(self.write(mode, key, value)).await.map(Replace::from)
    }

    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        apart(self.delete(key, Guard::Equals(expected))).await
    }

    fn cache_bytes(&self) -> u64 {
        self.tables.iter().map(Table::cache_bytes).sum()
    }
}
