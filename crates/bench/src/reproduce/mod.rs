//! The tables of the papers: their numbers, ours beside them, and the ratio.
//!
//! Except for [`reads`], [`probing`] and [`cuckoo`], nothing here runs anything: it says what has to be measured, and what the
//! measurements mean.

pub mod course;
pub mod cuckoo;
pub mod linear;
pub mod probing;
pub mod reads;
pub mod sephash;
pub mod shard;
