//! One error for users of the library.

use farindex_fabric::FabricError;
use farindex_index::IndexError;
use farindex_pool::PoolError;
use std::convert::Infallible;
use std::path::PathBuf;

/// Why something failed. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool string has no meaning.
    #[error("{url:?} is no pool: {why}. Write memory:1GiB, shm:/dev/shm/NAME or connect:HOST:PORT")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A `memory:` pool exists in the process that created it, and nowhere else: it cannot be opened or inspected.
    #[error("a memory: pool is gone when its process ends: name files (shm:PATH) or memory nodes (connect:HOST:PORT)")]
    NotStored,
    /// A pool in new files needs the size of a memory node.
    #[error("a new pool needs the size of each memory node: PoolBuilder::node_bytes, on the command line --size 1GiB")]
    SizeMissing,
    /// The memory nodes have their sizes already.
    #[error("{nodes} have their sizes already: leave the size out")]
    SizeGiven {
        /// Which ones.
        nodes: &'static str,
    },
    /// Something that only memory nodes over a network have was asked of another pool.
    #[error("only memory nodes over a network are connected to: connect:HOST:PORT")]
    NotRemote,
    /// This build lacks the fabric that the memory nodes serve.
    #[error(
        "this farindex was built without the {fabric} fabric: build it with `cargo build --features {fabric}`; {needs}"
    )]
    FabricMissing {
        /// Its name.
        fabric: String,
        /// What it needs.
        needs: &'static str,
    },
    /// The memory nodes serve a fabric that this version does not know.
    #[error(
        "these memory nodes serve over {fabric}, which this version does not know: use the version that serves them"
    )]
    FabricUnknown {
        /// Its name.
        fabric: String,
    },
    /// The file with the token cannot be used.
    #[error("{why}")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Memory nodes could not be reached, or refuse this client.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Remote(#[from] farindex_remote::ControlError),
    /// A damaged index could not be replaced by a copy of what can be read of it.
    #[error("index {name:?} was not replaced by what can be read of it, and is unchanged: {why}")]
    NotReplaced {
        /// Its name.
        name: String,
        /// What failed.
        why: Box<Error>,
    },
    /// The worker threads of a [`Handle`](crate::Handle).
    #[error(transparent)]
    Handle(#[from] crate::HandleError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The pool.
    #[error(transparent)]
    Pool(PoolError),
    /// The index.
    #[error(transparent)]
    Index(IndexError),
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Fabric(error) => Error::Fabric(error),
            other => Error::Pool(other),
        }
    }
}

impl From<IndexError> for Error {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Fabric(error) => Error::Fabric(error),
            IndexError::Pool(error) => error.into(),
            other => Error::Index(other),
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
