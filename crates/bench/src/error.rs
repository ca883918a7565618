//! Why there is no result.

/// Why a benchmark could not be run. Wrong answers and failed operations are results, not errors of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Settings that make no run.
    #[error("{0}")]
    Plan(String),
    /// A worker could not be set up or closed.
    #[error("worker {thread}: {message}")]
    Worker {
        /// Which one.
        thread: usize,
        /// What it said.
        message: String,
    },
    /// The index panicked, which is a bug of the index.
    #[error("worker {thread} panicked: {message}")]
    Panicked {
        /// Which one.
        thread: usize,
        /// What it said.
        message: String,
    },
    /// A scenario that cannot be read.
    #[error("{origin}: {message}")]
    Scenario {
        /// Its file or name.
        origin: String,
        /// What is wrong with it, and where.
        message: String,
    },
}
