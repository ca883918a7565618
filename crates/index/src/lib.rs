//! Indexes for far memory.
//!
//! An index lives in a [pool](farindex_pool), and is operated over any [fabric](farindex_fabric) by the same code. The
//! traits say what every index promises; the folders `hash` and `tree` hold the systems; the other modules are what they
//! share.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`traits`] | [`HashIndex`], and outcomes named for what happened |
//! | [`hash`] | unordered indexes |
//! | [`keyhash`] | the one hash of a key that far memory ever sees |
//! | [`block`] | key-value blocks |
//! | [`value`] | a value as a lookup returns it |
//! | [`extendible`] | an extendible directory, and the copy of it that a compute node shares |
//! | [`coalesce`] | the local lock table: delegated reads, combined writes |
//! | [`marks`] | counts of rare paths, for tests |
//! | [`faults`] | rules broken on purpose, for tests |
//! | [`audit`] | what a check of an index reports |

pub mod audit;
pub mod block;
pub mod coalesce;
pub mod error;
pub mod extendible;
pub mod faults;
pub mod hash;
pub mod keyhash;
pub mod marks;
pub mod traits;
pub mod value;

pub use audit::IndexAudit;
pub use coalesce::{Coalesced, Coalescer};
pub use error::IndexError;
pub use hash::shard::{self, Shard};
pub use traits::{HashIndex, Insert, Limits, Remove, Update, Upsert};
pub use value::Value;

/// Name of a kind of index, for people.
pub fn kind_name(kind: u32) -> String {
    match kind {
        shard::KIND => "shard".to_owned(),
        other => format!("kind {other} (of a newer farindex release)"),
    }
}
