//! One error for users of the library.

use farindex_fabric::FabricError;
use farindex_index::IndexError;
use farindex_pool::PoolError;

/// Why something failed. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool string makes no sense.
    #[error("{url:?} is no pool: {why}. Write memory:1GiB, shm:/dev/shm/NAME or connect:HOST:PORT")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A size is needed, or must not be given.
    #[error("{0}")]
    Settings(String),
    /// Memory nodes could not be reached, or refuse this client.
    #[error("{0}")]
    Remote(String),
    /// A damaged index could not be replaced by a copy of what can be read of it.
    #[error("index {name:?} was not replaced by what can be read of it, and is as it was: {why}")]
    NotReplaced {
        /// Its name.
        name: String,
        /// What has failed.
        why: Box<Error>,
    },
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
