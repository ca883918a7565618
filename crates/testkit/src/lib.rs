//! An index on trial: one seed, one simulated cluster, one history, one verdict.
//!
//! [`run_seed`] builds a cluster under the adversary, lets clients work on an index, checks what they were told
//! ([`farindex_check`]), and walks the index and the pool when all is quiet. Everything is drawn from the seed, so a seed
//! is a repeatable test case.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`index_under_test`] | what an index must bring along: [`IndexUnderTest`] |
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
//! | [`test_runs`] | every subject by its name, alone and behind the local lock table |
//! | `convictions` | faults, and the seeds that find them (feature `marks`) |
//! | `damage` | memory that is damaged, for the convictions |

mod cluster;
pub mod cuckoo;
#[cfg(feature = "marks")]
mod damage;
#[cfg(feature = "marks")]
pub mod fault_detection;
pub mod index_under_test;
pub mod linear;
pub mod race;
pub mod report;
pub mod seeds;
pub mod sephash;
pub mod setup;
pub mod shard;
pub mod test_runs;
pub mod workload;

pub use cluster::run_seed;
pub use index_under_test::{Access, Coalescing, IndexUnderTest};
pub use report::{SeedReport, Stuck, Totals};
pub use seeds::{explore, parse_seeds, replay, run_cases, run_seeds, seeds_or};
pub use setup::{Setup, Size};
pub use test_runs::{TestRun, test_run};
