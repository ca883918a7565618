//! The tables of the papers: their numbers, ours beside them, and the ratio.
//!
//! Nothing here runs anything: it says what has to be measured, and what the measurements mean.

pub mod course;
pub mod linear;
pub mod shard;
