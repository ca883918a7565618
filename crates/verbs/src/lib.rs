//! Far memory over RDMA verbs.
//!
//! The NIC of a memory node carries out READ, WRITE, CAS and FAA on its memory, without its CPU. A client has a
//! reliable connected queue pair to each memory node for each of its endpoints. docs/verbs.md says how to set machines
//! up, what was tested, and what was not.
//!
//! Invariants: a batch to one node is one chain of requests with one doorbell, of which only the last is signalled; a
//! request that does not fit the send queue waits; buffers are registered once and belong to the device while they are
//! in flight; whatever fails becomes an error of the batch, and a new queue pair.
//!
//! | Module | What it holds |
//! |---|---|
//! | `device` | finding a device, its address, its limits |
//! | `memory` | registered memory: buffers, results of atomics, a node's region |
//! | `hello` | the messages that connect two queue pairs |
//! | `pair` | queue pairs: created, connected, destroyed |
//! | `post` | verbs as requests of a send queue |
//! | `lane` | one endpoint's connection to one node: order, room, failure, reconnection |
//! | `flight` | batches in flight |
//! | `transport` | all lanes of an endpoint |
//! | `fabric` | [`VerbsFabric`] |
//! | `plane` | [`VerbsPlane`], the memory node's side |
//! | `counts` | doorbells, requests and completions, counted where they happen |
//!
//! Without the feature `verbs`, and on systems other than Linux, this crate is empty: building it takes cmake and
//! libclang, running it libibverbs, which is opened at run time.

#![cfg(all(feature = "verbs", target_os = "linux"))]

mod counts;
mod device;
mod fabric;
mod flight;
mod hello;
mod lane;
mod memory;
mod pair;
mod plane;
mod post;
mod transport;

pub use counts::WireCounts;
pub use device::{Device, DeviceOptions};
pub use fabric::VerbsFabric;
pub use plane::VerbsPlane;
