//! Unordered indexes.

pub mod race;
pub mod shard;
