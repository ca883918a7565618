//! Unordered indexes.

pub mod shard;
