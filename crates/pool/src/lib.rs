//! A pool of far memory.
//!
//! A pool is a set of memory-node regions with a superblock each. It holds a catalog of named indexes and one slot for
//! each client, hands out memory by one-sided verbs, and takes it back by epochs. All of it is operated by clients: the
//! memory nodes do nothing.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`layout`] | where everything lies on a node; typed, checked at compile time |
//! | [`pool`] | creating and opening, superblocks |
//! | [`client`] | a compute node's slot: lease, heartbeat, quiescence |
//! | [`epoch`] | when memory may be used again |
//! | [`session`] | one worker thread: pins, allocation, reclamation |
//! | [`alloc`] | size classes, chunks, spans, bitmaps |
//! | [`intent`] | who holds which lock, readable by everyone |
//! | [`lock`] | guards: take, hold and release a lock together with its intent |
//! | [`takeover`] | expired clients, and the locks that the dead leave |
//! | [`calibration`] | what the fabric was measured to do |
//! | [`catalog`] | named indexes |
//! | [`faults`] | rules broken on purpose, for tests |
//! | [`marks`] | counts of rare paths, for tests |
//! | [`audit`] | is every block where it should be? |
//! | [`leaks`] | the mark that clients have left memory behind |
//! | [`reclaim`] | freeing what the dead have left |

pub mod alloc;
pub mod audit;
pub mod calibration;
pub mod catalog;
pub mod client;
pub mod epoch;
pub mod error;
pub mod faults;
pub mod intent;
pub mod layout;
pub mod leaks;
pub mod lock;
pub mod marks;
pub mod pool;
pub mod reclaim;
pub mod session;
pub mod takeover;

pub use calibration::Calibration;
pub use catalog::IndexInfo;
pub use client::{Client, ClientInfo, clients};
pub use error::PoolError;
pub use intent::{Intent, IntentCell, Lock};
pub use lock::{HeldLock, LockAttempt, LostLock};
pub use pool::{Pool, PoolOptions};
pub use session::{Hold, Pin, Session};
pub use takeover::{Claim, LockTimeout, Taken};
