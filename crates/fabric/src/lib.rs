//! One-sided verbs on far memory.
//!
//! farindex stores its data on *memory nodes* with little computing power. Compute nodes access it by READ, WRITE,
//! compare-and-swap and fetch-and-add. This crate defines what those verbs promise and what they do not, and carries
//! them out on two fabrics that need no hardware:
//!
//! * [`memory`]: several memory nodes inside the process;
//! * [`shm`]: a mapped file, used by several processes at once. The same code serves CXL memory behind a DAX device.
//!
//! Other fabrics (a simulator in virtual time, RDMA verbs, message-based networks) live in crates of their own and
//! implement [`Transport`] and [`Fabric`].
//!
//! # The parts
//!
//! | Module | What it holds |
//! |---|---|
//! | [`apart`](mod@apart) | futures that are compiled apart from those that await them |
//! | [`contract`] | G1-G6, what every fabric promises; N1-N7, what none does |
//! | [`ptr`] | [`RemotePtr`]: a memory node and a byte offset in 64 bits |
//! | [`buf`] | [`Buf`]: owned, pooled buffers, which a fabric keeps while they are in flight; [`SharedBuf`]: views of one |
//! | [`call`] | requests that a memory node's CPU answers from its region, read-only |
//! | [`verb`] | one verb, and a chain of them |
//! | [`endpoint`] | [`Endpoint`]: one for each worker thread; posts batches, meters them, keeps deadlines |
//! | [`meter`] | verbs, bytes and round trips for each kind of operation |
//! | [`exec`] | the single-threaded executor of a worker's coroutines |
//! | [`slab`] | memory for buffers that hardware fills, registered once |
//! | [`transport`] | what a fabric implements |
//! | [`served`] | the memory that a memory node's process serves to others |
//! | `conformance` | the suite that holds a fabric to the contract (feature `conformance`) |
//!
//! # A first verb
//!
//! ```
//! use farindex_fabric::{Executor, Fabric, MemoryFabric, NodeId, OpKind, RemotePtr};
//!
//! let fabric = MemoryFabric::new(1, 1 << 16)?;
//! let endpoint = fabric.connect(&fabric.new_identity())?;
//! let word = RemotePtr::new(NodeId::new(0), 4096);
//! let old = Executor::new().block_on(&endpoint, async {
//!     let span = endpoint.span(OpKind::Other);
//!     span.faa(word, 7).await?;
//!     span.cas(word, 7, 8).await
//! })?;
//! assert_eq!(old, 7);
//! assert_eq!(endpoint.meter().of(OpKind::Other).round_trips, 2);
//! # Ok::<(), farindex_fabric::FabricError>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!("far memory is little-endian, and so must the host be");

pub mod apart;
pub mod buf;
pub mod call;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
mod doubts;
pub mod endpoint;
pub mod error;
pub mod exec;
mod gate;
mod inflight;
mod mapped;
pub mod memory;
pub mod meter;
#[cfg(target_os = "linux")]
mod process;
pub mod ptr;
mod region;
#[cfg(target_os = "linux")]
pub mod served;
#[cfg(target_os = "linux")]
pub mod shm;
pub mod slab;
mod timer;
pub mod transport;
pub mod verb;
pub mod words;

pub use apart::{Apart, Cold, apart, cold};
pub use buf::{Buf, SharedBuf};
pub use call::{CallHandler, CallRefused, CallTable, RegionView};
pub use endpoint::{Batch, Completion, Done, Endpoint, Span, Ticket};
pub use error::FabricError;
pub use exec::{Driver, Executor, Idle, Task, yield_now};
pub use memory::MemoryFabric;
pub use meter::{Class, Counters, Meter, OpKind, OpStats};
pub use ptr::{NodeId, RemotePtr};
#[cfg(target_os = "linux")]
pub use served::ServedRegion;
#[cfg(target_os = "linux")]
pub use shm::ShmFabric;
pub use transport::{Capabilities, Fabric, Identity, NodeInfo, Traffic, Transport};
pub use verb::{Chain, Verb, VerbKind};
