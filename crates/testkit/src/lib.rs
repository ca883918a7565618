//! Test harness for indexes: one seed, one simulated cluster, one history, one verdict.
//!
//! [`run_seed`] builds a cluster under the adversary, lets clients work on an index, checks the recorded history
//! ([`farindex_check`]), and audits the index and the pool when all clients have left or crashed. Everything is drawn
//! from the seed, so a seed is a repeatable test case.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`index_under_test`] | what a kind brings along: [`IndexUnderTest`] |
//! | [`setup`] | sizes of a run: [`Setup`] |
//! | [`workload`] | keys and operations |
//! | [`swarm`] | features that a seed switches on |
//! | [`twins`] | keys that collide in all bits of their hashes |
//! | [`stalling`] | clients that are stopped between two verbs of a batch |
//! | `cluster`, `node`, `worker` | the run, its clients, and the operations of their coroutines |
//! | `walker` | walks over the whole index among the operations, and recoveries of it |
//! | `cancelling` | operations that are given up before they have completed |
//! | `commanding` | commands that move partitions, and a judge of the lists of partitions |
//! | `auditing` | audits of the pool while clients come and go |
//! | `naming` | indexes of a few names that come and go in the catalog |
//! | `hasty` | heartbeats that are given up, clients that leave in haste, and a judge of the slots that are left |
//! | `pausing` | walks that stop between two verbs |
//! | `bursts` | walks that stop again and again while many entries come and go, in the end |
//! | `leaders` | leaders of groups behind a lock table that are given up, in the end |
//! | `turnover` | judges the memory of an index whose entries come and go |
//! | `ending` | what is recovered, read and audited when all clients have left |
//! | `refilling` | judges whether memory that is free can be used |
//! | `verdict` | asks the checker about a history |
//! | `waits` | judges how long operations wait for others |
//! | `lease_oracle` | judges every eviction |
//! | `lock_tables` | the lock tables of a run, and that no key stays in them |
//! | [`budget`] | judges what operations cost where nothing interferes |
//! | [`report`] | [`SeedReport`], and the sum over many seeds: [`Totals`] |
//! | [`seeds`] | many seeds, on all cores |
//! | [`shard`], [`race`], [`sephash`], [`linear`], [`cuckoo`] | the kinds under test, and their faults |
//! | [`test_runs`] | every kind by its name, alone and behind the local lock table |
//! | [`world`], [`alone`] | fabrics and clients for tests that are no simulated cluster |
//! | [`probed`] | tables for the model of read sizes |
//! | [`suite`] | the model-based suite for every kind on every fabric |
//! | `fault_detection` | planted faults, and the seeds that detect them (feature `marks`) |
//! | `damage` | damaged memory, for fault detection |

pub mod alone;
mod auditing;
#[cfg(feature = "test-kinds")]
pub mod blink;
pub mod budget;
mod bursts;
mod cancelling;
pub mod chime;
mod cluster;
mod commanding;
pub mod cuckoo;
#[cfg(feature = "marks")]
mod damage;
pub mod dex;
mod dropping;
mod ending;
#[cfg(feature = "marks")]
pub mod fault_detection;
mod hasty;
pub mod index_under_test;
mod leaders;
mod lease_oracle;
pub mod linear;
mod lock_tables;
mod naming;
mod node;
mod pausing;
pub mod probed;
pub mod race;
mod refilling;
pub mod report;
pub mod seeds;
pub mod sephash;
pub mod setup;
pub mod shard;
pub mod sherman;
pub mod stalling;
pub mod suite;
pub mod swarm;
pub mod test_runs;
mod too_long;
mod turnover;
pub mod twins;
mod verdict;
mod waits;
mod walker;
pub mod worker;
pub mod workload;
pub mod world;

pub use cancelling::until_in_flight;
pub use cluster::run_seed;
pub use index_under_test::IndexUnderTest;
pub use report::{SeedReport, Stuck, Totals};
pub use seeds::{
    explore, is_thorough, one_in, parse_seeds, replay, run_cases, run_seeds, sampled_seeds, seeds_or, sweep_step,
};
pub use setup::{Setup, Size};
pub use stalling::TargetedStall;
pub use swarm::Feature;
pub use test_runs::{TestRun, test_run};
