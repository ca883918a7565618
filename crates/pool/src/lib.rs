//! A pool of far memory.
//!
//! A pool is a set of memory-node regions, each with a superblock. It has a catalog of named indexes and one slot for
//! each client, allocates memory by one-sided verbs, and reclaims it by epochs. Clients carry out all of this; the CPUs
//! of the memory nodes do nothing.
//!
//! Modules in layers: a module uses modules of the rows above it, and never one of a row below.
//!
//! | Layer | Module | What it holds |
//! |---|---|---|
//! | format | [`layout`] | the structures on a memory node, typed, with their addresses |
//! | | [`error`] | errors |
//! | | [`faults`], [`marks`] | rules broken on purpose, and counts of rare paths, for tests |
//! | shared state | [`epoch`] | when unlinked memory can be reused |
//! | | `retire_list` | unlinked objects that wait for their grace period |
//! | | [`pool`] | creating and opening, superblocks |
//! | | `intent_record` | intents as they lie in far memory |
//! | | [`leaks`] | how many clients have left without freeing their memory |
//! | | [`lease`] | registered clients, expired leases, eviction |
//! | allocation | [`alloc`] | size classes, chunks, spans, bitmaps |
//! | membership | [`client`] | a process's slot: registration, heartbeat, intent cells |
//! | | [`session`] | the handle of a worker thread: pins, allocation, reclamation; closing a client |
//! | locks | [`intent`] | which operation may hold which lock, readable by every client |
//! | | [`lock`] | guards that take, hold and release a lock together with its intent |
//! | | [`takeover`] | acquiring a lock whose holder has crashed |
//! | whole pool | [`catalog`] | named indexes |
//! | | [`calibration`] | measured performance of the fabric |
//! | | [`audit`] | compares the memory that the indexes reach with the memory that is allocated |
//! | | [`reclaim`] | frees memory that crashed clients leaked |

pub mod alloc;
pub mod audit;
pub mod calibration;
pub mod catalog;
pub mod client;
#[doc(hidden)]
pub mod compiled;
pub mod epoch;
pub mod error;
pub mod faults;
pub mod intent;
mod intent_record;
pub mod layout;
pub mod leaks;
pub mod lease;
#[cfg(feature = "marks")]
pub mod ledger;
pub mod lock;
pub mod marks;
pub mod pool;
pub mod reclaim;
mod retire_list;
pub mod session;
mod sync;
pub mod takeover;
mod waited;

pub use calibration::Calibration;
pub use catalog::{IndexInfo, KindTag};
pub use client::{Client, OnTick};
pub use error::PoolError;
pub use intent::{DeclaredIntent, Intent, IntentCell, IntentTransfer, Lock};
pub use lease::{ClientInfo, clients};
pub use lock::{HeldLock, LockAttempt, LostLock};
pub use pool::{Pool, PoolOptions};
pub use session::{Hold, Pin, Session};
pub use takeover::{Claim, LockTimeout, Names, Taken};
pub use waited::Waited;
