//! Unordered indexes.

pub mod linear;
pub mod sephash;
pub mod shard;
