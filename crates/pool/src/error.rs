//! What can go wrong with a pool.

use farindex_fabric::{FabricError, NodeId, RemotePtr};

/// Why a pool operation failed. The pool and its indexes are as they were before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A verb failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The memory holds no pool.
    #[error("memory node {node} holds no farindex pool ({found}); create one with `farindex pool create`")]
    NotAPool {
        /// Which node.
        node: NodeId,
        /// What was found instead.
        found: String,
    },
    /// The superblock does not add up.
    #[error("the superblock of memory node {node} is damaged: {what}; restore the pool from a copy or create it anew")]
    Damaged {
        /// Which node.
        node: NodeId,
        /// What does not add up.
        what: String,
    },
    /// Written by another version of the format.
    #[error(
        "the pool has format version {found}, this program reads version {expected}; use the farindex release that wrote it, or dump and reload"
    )]
    Version {
        /// In the superblock.
        found: u64,
        /// Of this program.
        expected: u64,
    },
    /// The memory nodes do not belong together.
    #[error("the memory nodes do not form one pool: {0}")]
    Mismatch(String),
    /// There is a pool already.
    #[error("memory node {0} holds a pool already; remove it first if it is no longer wanted")]
    Exists(NodeId),
    /// The region cannot hold a pool.
    #[error("{0}")]
    TooSmall(String),
    /// No room for this allocation.
    #[error(
        "the pool is full: no {wanted} contiguous bytes left on memory node {node} of {size} bytes; remove entries, or load into a larger pool"
    )]
    Full {
        /// Which node.
        node: NodeId,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the node.
        size: u64,
    },
    /// All client slots are taken.
    #[error("all {0} client slots of the pool are taken; close a client, or let the lease of a dead one run out")]
    NoClientSlot(usize),
    /// This client's lease has run out and its slot was taken back.
    #[error("this client's lease ran out and others have taken over its slot; open the pool again to go on")]
    LeaseLost,
    /// The client cannot be closed yet.
    #[error("this client still has {0} open sessions; drop them before closing it")]
    SessionsOpen(usize),
    /// No such index.
    #[error("the pool has no index named {0:?}; `farindex index list` shows those it has")]
    NoSuchIndex(String),
    /// The name is taken.
    #[error("the pool has an index named {0:?} already")]
    IndexExists(String),
    /// Opened as another kind.
    #[error("index {name:?} is a {found} index, not {wanted}")]
    WrongKind {
        /// The index.
        name: String,
        /// In the catalog.
        found: String,
        /// Asked for.
        wanted: String,
    },
    /// An index of another format version.
    #[error(
        "index {name:?} has format version {found}, this program reads version {expected}; use the farindex release that wrote it, or dump and reload"
    )]
    IndexVersion {
        /// The index.
        name: String,
        /// In the catalog.
        found: u32,
        /// Of this program.
        expected: u32,
    },
    /// A name or configuration that the catalog cannot hold.
    #[error("{0}")]
    BadName(String),
    /// The catalog has no room.
    #[error("the catalog is full: a pool holds at most {0} indexes")]
    CatalogFull(usize),
    /// Somebody holds a lock for longer than a lease.
    #[error(
        "{what} has been locked for longer than a lease by {holder}; if that client is gone, wait for its lease to run out and try again"
    )]
    Held {
        /// What is locked.
        what: String,
        /// By whom, as far as the pool tells.
        holder: String,
    },
    /// Other clients are registered, or were a moment ago.
    #[error(
        "other clients are at work in the pool, or were a moment ago: {0}, close them first (`farindex pool stat` lists them)"
    )]
    NotAlone(&'static str),
    /// Far memory holds something that no client writes.
    #[error("corrupted far memory at {at}: {what}; `farindex pool check` shows how far it reaches")]
    Corrupt {
        /// Where.
        at: RemotePtr,
        /// What is wrong.
        what: String,
    },
}
