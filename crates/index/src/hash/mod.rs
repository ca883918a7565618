//! Unordered indexes.

pub mod cuckoo;
pub mod linear;
pub mod race;
pub mod sephash;
pub mod shard;
