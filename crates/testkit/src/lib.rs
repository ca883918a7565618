//! An index on trial: one seed, one simulated cluster, one history, one verdict.
//!
//! [`run_seed`] builds a cluster under the adversary, lets clients work on an index, checks what they were told
//! ([`farindex_check`]), and walks the index and the pool when all is quiet. Everything is drawn from the seed, so a seed
//! is a repeatable test case.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`subject`] | what an index must bring along: [`Subject`] |
//! | [`setup`] | how much of everything: [`Setup`] |
//! | [`workload`] | which keys and operations |
//! | `cluster` | the run |
//! | [`report`] | [`SeedReport`], and the sum over many seeds: [`Totals`] |
//! | [`seeds`] | many seeds, on all cores |
//! | [`linear`] | linear probing as a subject |
//! | [`cuckoo`] | cuckoo hashing as a subject |
//! | [`shard`] | SHARD as a subject |
//! | [`race`] | RACE as a subject, and its faults |
//! | [`sephash`] | SepHash as a subject |
//! | [`trials`] | every subject by its name, alone and behind the local lock table |
//! | `convictions` | faults, and the seeds that find them (feature `marks`) |
//! | `damage` | memory that is damaged, for the convictions |

mod cluster;
#[cfg(feature = "marks")]
pub mod convictions;
pub mod cuckoo;
#[cfg(feature = "marks")]
mod damage;
pub mod linear;
pub mod race;
pub mod report;
pub mod seeds;
pub mod sephash;
pub mod setup;
pub mod shard;
pub mod subject;
pub mod trials;
pub mod workload;

pub use cluster::run_seed;
pub use report::{SeedReport, Stuck, Totals};
pub use seeds::{explore, parse_seeds, replay, run_cases, run_seeds, seeds_or};
pub use setup::{Setup, Size};
pub use subject::{Access, Coalescing, Subject};
pub use trials::{Trial, trial};
