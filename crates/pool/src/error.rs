//! Errors of the pool.

use farindex_fabric::{FabricError, NodeId, RemotePtr};

/// The reason why a pool operation failed. A failed operation leaves the pool and its indexes as they were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A verb failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The memory holds no pool.
    #[error("memory node {node} holds no farindex pool ({found}); create one with `farindex pool create`")]
    NotAPool {
        /// The memory node.
        node: NodeId,
        /// What its first bytes are instead.
        found: String,
    },
    /// The superblock is inconsistent.
    #[error("the superblock of memory node {node} is damaged: {what}; restore the pool from a copy or create it anew")]
    Damaged {
        /// The memory node.
        node: NodeId,
        /// The inconsistency.
        what: String,
    },
    /// The pool has another format version.
    #[error(
        "the pool has format version {found}, this program reads version {expected}; use the farindex release that \
         wrote it, or dump and reload"
    )]
    Version {
        /// Version in the superblock.
        found: u64,
        /// Version of this program.
        expected: u64,
    },
    /// The memory nodes are not the nodes of one pool, in their order.
    #[error("the memory nodes do not form one pool: {0}")]
    Mismatch(String),
    /// The memory node holds a pool already.
    #[error("memory node {0} holds a pool already; remove it first if it is no longer wanted")]
    Exists(NodeId),
    /// The region is too small for a pool, or an option is out of its range.
    #[error("{0}")]
    TooSmall(String),
    /// No room for this allocation.
    #[error(
        "the pool is full: no {wanted} contiguous bytes left on memory node {node} of {size} bytes; remove entries, \
         or load into a larger pool"
    )]
    Full {
        /// The memory node.
        node: NodeId,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the node.
        size: u64,
    },
    /// All client slots are taken.
    #[error(
        "all {0} client slots of the pool are taken; close a client, or wait until the lease of a crashed one has \
         expired"
    )]
    NoClientSlot(usize),
    /// What an index of this client has changed in its cache alone could not be written to far memory.
    #[error("what this client has changed in its cache alone could not be written to far memory")]
    NotWrittenBack,
    /// This client's lease has expired, and another client has evicted it.
    #[error("this client's lease expired and another client evicted it; open the pool again to go on")]
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
    /// The index is of another kind than the one it was opened as.
    #[error("index {name:?} is a {found} index, not {wanted}")]
    WrongKind {
        /// Name of the index.
        name: String,
        /// Kind in the catalog.
        found: String,
        /// Kind asked for.
        wanted: String,
    },
    /// The index has another format version.
    #[error(
        "index {name:?} has format version {found}, this program reads version {expected}; use the farindex release \
         that wrote it, or dump and reload"
    )]
    IndexVersion {
        /// Name of the index.
        name: String,
        /// Version in the catalog.
        found: u32,
        /// Version of this program.
        expected: u32,
    },
    /// The settings of the index are encoded in another version.
    #[error(
        "index {name:?} has settings of version {found}, this program reads version {expected}; use the farindex \
         release that wrote it, or dump and reload"
    )]
    ConfigVersion {
        /// Name of the index.
        name: String,
        /// Version in the catalog.
        found: u32,
        /// Version of this program.
        expected: u32,
    },
    /// The settings of the index are too long for the catalog.
    #[error("the settings of index {name:?} take {len} bytes; the catalog has room for {most}")]
    ConfigTooLong {
        /// Name of the index.
        name: String,
        /// Bytes of its settings.
        len: usize,
        /// Most bytes that the catalog stores.
        most: usize,
    },
    /// The catalog cannot hold this name.
    #[error("{0}")]
    BadName(String),
    /// The catalog has no room.
    #[error("the catalog is full: a pool holds at most {0} indexes")]
    CatalogFull(usize),
    /// Another client has held a lock for longer than a lease.
    #[error(
        "{what} has been locked for longer than a lease by {holder}; if that client has crashed, wait until its \
         lease has expired and try again"
    )]
    Held {
        /// What is locked.
        what: String,
        /// The holder, as far as the pool knows it.
        holder: String,
    },
    /// Other clients are registered, or were a moment ago.
    #[error(
        "other clients are at work in the pool, or were a moment ago: {0}, close them first (`farindex pool stat` \
         lists them)"
    )]
    NotAlone(&'static str),
    /// Far memory holds bytes that no client writes.
    #[error("corrupted far memory at {at}: {what}; `farindex pool check` shows how far it reaches")]
    Corrupt {
        /// Address of the damage.
        at: RemotePtr,
        /// The inconsistency.
        what: String,
    },
}
