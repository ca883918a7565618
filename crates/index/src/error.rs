//! What can go wrong with an index.

use farindex_fabric::{FabricError, RemotePtr};
use farindex_pool::PoolError;

/// Why an operation failed. Unless the error says otherwise, it had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// A verb failed. The operation may have taken effect or not (N7).
    #[error(transparent)]
    Fabric(FabricError),
    /// The pool reported an error: full, lease lost, corrupted memory.
    #[error(transparent)]
    Pool(PoolError),
    /// The key is longer than the index takes.
    #[error("a key of {len} bytes is longer than the limit of {max}")]
    KeyTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The value is longer than the index takes.
    #[error("a value of {len} bytes is longer than the limit of {max}")]
    ValueTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The index was dropped while it was open.
    #[error("the index was dropped by another client")]
    Dropped,
    /// The write that this one was combined with was cancelled while it ran. This one may have taken effect or not
    /// (N7).
    #[error("the operation that this one was combined with was cancelled; it may have taken effect or not")]
    Interrupted,
    /// The configuration makes no index.
    #[error("{0}")]
    BadConfig(String),
    /// The index has no order of keys, and so no scans.
    #[error("an index of kind {kind} has no order of keys: it cannot be scanned; choose an ordered kind")]
    NotOrdered {
        /// Its kind.
        kind: &'static str,
    },
    /// The index is not divided among compute nodes, so nobody owns a part of it.
    #[error("an index of kind {kind} is not divided among compute nodes: there is nothing to own; choose dex")]
    NotPartitioned {
        /// Its kind.
        kind: &'static str,
    },
    /// Too many keys agree in too many bits of their hashes.
    #[error("no room for the key: its segment has a depth of {depth}, and the index allows no more")]
    TooDeep {
        /// Local depth of the segment.
        depth: u32,
    },
    /// Another compute node owns the key, and the index's settings do not let this one ask for it.
    #[error("the key belongs to {holder}: send the operation there, or set `foreign` to `acquire`")]
    NotOwner {
        /// The owner, as far as the pool knows it.
        holder: String,
    },
    /// Another client holds a lock for longer than two leases.
    #[error("the lock at {at} has been held for longer than {waited_ms} ms by {holder}")]
    Locked {
        /// The lock word.
        at: RemotePtr,
        /// How long the lock has had the same holder, as observed by this operation.
        waited_ms: u64,
        /// The holder, as far as the pool knows it.
        holder: String,
    },
}

impl IndexError {
    /// The error for memory at `at` whose content no client writes: `what` says what is wrong with it.
    pub(crate) fn corrupt(at: RemotePtr, what: impl Into<String>) -> Self {
        IndexError::Pool(PoolError::Corrupt { at, what: what.into() })
    }
}

impl From<FabricError> for IndexError {
    fn from(error: FabricError) -> Self {
        IndexError::Fabric(error)
    }
}

impl From<PoolError> for IndexError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Fabric(error) => IndexError::Fabric(error),
            other => IndexError::Pool(other),
        }
    }
}
