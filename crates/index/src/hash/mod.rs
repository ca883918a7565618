//! Unordered indexes.

pub mod linear;
pub mod race;
pub mod sephash;
pub mod shard;
