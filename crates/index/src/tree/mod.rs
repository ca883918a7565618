//! Ordered indexes: leaf designs over one B-link skeleton.
//!
//! | Module | What it holds |
//! |---|---|
//! | `anchor` | where a tree begins |
//! | `node` | the format of inner nodes, and of leaves that are read whole |
//! | `versions` | the versions of the published Sherman |
//! | `fence` | fence keys and separators in a node |
//! | `inner` | an inner node as a compute node keeps it |
//! | `cache` | the node cache, which the threads of a compute node share |
//! | `path_cache` | copies of inner nodes and leaves, which point to each other |
//! | `skeleton` | what it needs of a leaf design; reading and locking a node |
//! | `retry` | how an operation goes on where it could not; waiting for a lock |
//! | `lookups` | lookups, as far as all leaf designs do them alike |
//! | `local_locks` | queues of a compute node at the locks of nodes |
//! | `change` | writes, as far as all leaf designs do them alike |
//! | `hand_over` | the lock of a leaf, handed over within a compute node |
//! | `dropped` | how clients learn that a tree was dropped; taking locks |
//! | `edit` | what is to be written under a lock, in order |
//! | `recovery` | what a crashed client has left of a node |
//! | `descend` | from the root to the node that a key belongs to |
//! | `separators` | splits, separators, a root that grows |
//! | `merges` | merges, a root that shrinks |
//! | `walk` | every node: audits, recovery, drops |
//! | `entries` | every entry, whatever the format of leaves |
//! | `scan` | scans |
//! | [`faults`] | planted faults, which the tests must detect |
//! | `sherman` | Sherman: leaves that are read whole |
//! | `chime` | CHIME: leaves that are hopscotch hash tables |
//! | `dex` | DEX: the tree of Sherman, divided among compute nodes, which cache its leaves |
//!
//! The protocol, with its invariants and linearization points, is in `docs/protocols/tree.md`.

mod anchor;
#[cfg(feature = "test-kinds")]
pub mod blink;
mod cache;
mod change;
pub mod chime;
mod descend;
pub mod dex;
mod dropped;
mod edit;
mod entries;
pub mod faults;
mod fence;
mod hand_over;
mod inner;
mod local_locks;
mod lookups;
mod merges;
mod node;
mod path_cache;
mod recovery;
mod retry;
mod scan;
mod separators;
pub mod sherman;
mod skeleton;
mod versions;
mod walk;

pub use cache::Lookups;
