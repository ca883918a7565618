//! A pool of far memory.
pub mod error;
pub use error::PoolError;
