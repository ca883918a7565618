//! Indexes for far memory.
//!
//! An index lives in a [pool](farindex_pool), and is operated over any [fabric](farindex_fabric) by the same code. The
//! traits say what every index promises; the folders `hash` and `tree` hold the systems; the other modules are what
//! they share.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`traits`] | [`PointIndex`] and [`OrderedIndex`], and the outcomes of operations |
//! | [`registry`] | every kind there is, and [`AnyIndex`] |
//! | [`hash`] | unordered indexes |
//! | [`tree`] | ordered indexes: leaf designs over one B-link skeleton |
//! | [`kind`] | [`PoolIndex`]: how an index is created in a pool, opened, checked, recovered and dropped |
//! | [`handle`] | [`Handle`](handle::Handle): what every open index holds |
//! | [`keyhash`] | the one hash of a key that far memory ever sees |
//! | [`root_sync`] | a worker's copy of a table's root, and when to read it again |
//! | [`join`] | futures of one operation that make progress together |
//! | [`block`] | key-value blocks |
//! | [`visit`] | how walks hand out entries |
//! | [`value`] | a value as a lookup returns it |
//! | [`extendible`] | an extendible directory, and its cached copy |
//! | [`slotted`] | tables of slots that are moved to larger ones region by region |
//! | [`coalesce`] | the local lock table: delegated reads, combined writes |
//! | [`marks`] | counts of rare paths, for tests |
//! | [`faults`] | planted faults, which the tests must detect |
//! | [`audit`] | audits, and damage that walks report |
//! | [`growth`] | the cost of growth for a worker |

pub mod audit;
mod backoff;
pub mod block;
pub mod coalesce;
mod cycle;
pub mod error;
pub mod extendible;
pub mod faults;
pub mod growth;
pub mod handle;
pub mod hash;
pub mod join;
pub mod keyhash;
pub mod kind;
mod maintenance;
mod many;
pub mod marks;
mod recovery;
pub mod registry;
pub mod root_sync;
pub mod slotted;
mod spread;
mod table_per_node;
pub mod traits;
pub mod tree;
pub mod value;
pub mod visit;
mod write;

pub use audit::IndexAudit;
pub use coalesce::{Coalesced, Coalescer};
pub use error::IndexError;
pub use hash::cuckoo::{self, Cuckoo};
pub use hash::linear::{self, Linear};
pub use hash::race::{self, Race};
pub use hash::sephash::{self, SepHash};
pub use hash::shard::{self, Shard};
pub use kind::{PoolIndex, Statistics};
pub use registry::{AnyIndex, IndexConfig, KINDS, Kind, Lifecycle, kind_name};
pub use traits::{
    Entry, Insert, KeyBounds, Limits, OrderedIndex, PointIndex, Remove, RemoveIf, Replace, Update, Upsert,
};
pub use tree::chime::{self, Chime};
pub use tree::dex::{self, Dex};
pub use tree::sherman::{self, Sherman};
pub use value::Value;
pub use write::upsert_each;

/// The handlers of memory nodes: the fabric's own, and what memory nodes do for indexes. Every memory node of a pool has
/// them; one without them costs time, and nothing else.
pub fn call_table() -> farindex_fabric::CallTable {
    tree::dex::remote::add_handlers(farindex_fabric::CallTable::builtin())
}
