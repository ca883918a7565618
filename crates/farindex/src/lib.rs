//! Indexes for far (disaggregated) memory.
//!
//! Hash tables live entirely on memory nodes with almost no CPU; compute nodes operate them by one-sided READ, WRITE, CAS
//! and FAA. This crate is the library's face; the crates underneath have the parts.
//!
//! ```
//! use farindex::{IndexConfig, Pool};
//!
//! let pool = Pool::open("memory:64MiB")?;
//! let session = pool.session()?;
//! let index = session.create_index("demo", &IndexConfig::default())?;
//! index.upsert("far", "memory")?;
//! assert_eq!(index.get("far")?.as_deref(), Some(&b"memory"[..]));
//! # Ok::<(), farindex::Error>(())
//! ```
//!
//! Many operations in flight on one thread:
//!
//! ```
//! use farindex::{PointIndex, IndexConfig, Pool};
//!
//! let pool = Pool::open("memory:64MiB")?;
//! let session = pool.session()?;
//! let index = session.create_index("demo", &IndexConfig::default())?.concurrent();
//! let tasks: Vec<_> = (0..100u64).map(|i| {
//!     let index = index.clone();
//!     session.spawn(async move { index.upsert(&i.to_le_bytes(), b"value").await })
//! }).collect();
//! for task in tasks {
//!     session.block_on(task)?;
//! }
//! # Ok::<(), farindex::Error>(())
//! ```

pub mod check;
mod error;
mod heartbeat;
mod index;
mod inspect;
mod net;
mod options;
mod pool;
pub mod salvage;
pub mod url;

pub use check::{CheckReport, Repaired};
pub use error::Error;
pub use farindex_index::audit::Damage;
pub use farindex_index::{
    AnyIndex, Coalescer, Entry, IndexAudit, IndexConfig, IndexError, Insert, KINDS, KeyBounds, Kind, Limits,
    OrderedIndex, PointIndex, PoolIndex, Remove, Statistics, Update, Upsert, Value, cuckoo, linear, race, sephash,
    shard,
};
pub use farindex_pool::{ClientInfo, IndexInfo, PoolError, PoolOptions};
pub use index::Index;
pub use inspect::{Inspection, NodeUsage, usage};
pub use net::connect_to as connect;
pub use options::OpenOptions;
pub use pool::{Pool, Session};
pub use salvage::{Kept, Salvaged};
pub use url::PoolUrl;
