//! Unordered indexes.

pub mod linear;
pub mod race;
pub mod shard;
