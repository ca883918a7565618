//! Unordered indexes.

pub mod linear;
pub mod shard;
