//! Unordered indexes.

pub mod sephash;
pub mod shard;
