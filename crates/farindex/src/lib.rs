//! Indexes for far (disaggregated) memory.
//!
//! Hash tables live entirely on memory nodes with almost no CPU; compute nodes operate them by one-sided READ, WRITE,
//! CAS and FAA. This crate is the face of the library: pools, sessions and indexes.
//!
//! ```
//! use farindex::Pool;
//!
//! let pool = Pool::in_memory(64 << 20)?;
//! let session = pool.session()?;
//! let index = session.index("demo").create()?;
//! index.upsert("far", "memory")?;
//! assert_eq!(index.get("far")?.as_deref(), Some(&b"memory"[..]));
//! # Ok::<(), farindex::Error>(())
//! ```
//!
//! Many operations in flight on one thread:
//!
//! ```
//! use farindex::{PointIndex, Pool};
//!
//! let pool = Pool::in_memory(64 << 20)?;
//! let session = pool.session()?;
//! let index = session.index("demo").create()?.async_handle();
//! let tasks: Vec<_> = (0..100u64).map(|i| {
//!     let index = index.clone();
//!     session.spawn(async move { index.upsert(&i.to_le_bytes(), b"value").await })
//! }).collect();
//! for task in tasks {
//!     session.block_on(task)?;
//! }
//! # Ok::<(), farindex::Error>(())
//! ```
//!
//! | To | Use |
//! |---|---|
//! | create or open a pool | [`Pool::builder`], [`Pool::in_memory`], [`Pool::open`] |
//! | work with it on a thread | [`Pool::session`], [`Session`] |
//! | create or open an index | [`Session::index`], [`IndexBuilder`] |
//! | read and write, blocking | [`Index`] |
//! | have many operations in flight on one thread | [`Index::async_handle`], [`Session::spawn`] |
//! | use it from an async runtime | [`Handle`], [`Session::run_until`] |
//! | check or repair a pool | [`Session::check`], [`Session::repair`], [`Inspection`] |
//! | build on the crates underneath | [`lower`] |

mod builder;
pub mod check;
mod drive;
mod error;
mod handle;
mod heartbeat;
mod index;
mod inspect;
mod net;
mod pool;
pub mod salvage;
mod session;
pub mod size;
pub mod url;
mod walk;

pub use builder::{IndexBuilder, PoolBuilder, SessionBuilder};
pub use check::{CheckReport, Repaired};
pub use error::Error;
pub use farindex_fabric::{FabricError, Meter, RemotePtr, Task, yield_now};
pub use farindex_index::audit::Damage;
pub use farindex_index::dex::PartitionInfo;
pub use farindex_index::{
    AnyIndex, Coalescer, Entry, IndexAudit, IndexConfig, IndexError, Insert, KINDS, KeyBounds, Kind, Limits,
    OrderedIndex, PointIndex, PoolIndex, Remove, RemoveIf, Replace, Statistics, Update, Upsert, Value, chime, cuckoo,
    dex, linear, race, sephash, shard, sherman,
};
pub use farindex_pool::audit::AuditReport;
pub use farindex_pool::layout::Superblock;
pub use farindex_pool::reclaim::Reclaimed;
pub use farindex_pool::{ClientInfo, IndexInfo, PoolError, PoolOptions};
pub use handle::{Handle, HandleBuilder, HandleError};
pub use index::Index;
pub use inspect::{Inspection, NodeUsage, usage};
pub use net::connect_to as connect;
pub use pool::Pool;
pub use salvage::{Kept, Salvaged};
pub use session::Session;
pub use url::PoolUrl;
pub use walk::{Iter, Range};

/// The crates underneath, for those who write an index or a fabric of their own.
pub mod lower {
    pub use farindex_fabric as fabric;
    pub use farindex_index as index;
    pub use farindex_pool as pool;
    #[cfg(feature = "remote")]
    pub use farindex_remote as remote;
}
