//! Far memory over UCX: networks without RDMA, and shared memory between processes.
//!
//! What a worker's coroutines post in one round is one active message for each memory node, carried out batch by batch in
//! posting order by that node's loop, and answered by one. UCX picks the transport (tcp, shared memory, RoCE);
//! [`Fabric::transports`](farindex_fabric::Fabric::transports) says which one it took. The library (`libucp.so.0`,
//! package libucx0 on Debian and Ubuntu) is opened at run time: building needs neither it nor its headers, and a
//! machine without it gets an error that names the package.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`chain`] | batches in a message: how they are written, read, checked and carried out |
//! | `slots` | values under numbers that a memory node repeats |
//! | [`node`] | the memory node's loop |
//! | [`fabric`] | the client's side: [`UcxFabric`] |
//! | `line` | one worker's connection to one node |
//! | `transport` | one worker's connections to all nodes |
//! | `ucp` | UCX without raw pointers; the only `unsafe` code of this crate |

#[cfg(test)]
mod attaching;
pub mod chain;
pub mod fabric;
mod flights;
#[cfg(test)]
mod hostile;
mod intake;
mod line;
pub mod node;
mod slots;
mod transport;
mod ucp;

pub use fabric::UcxFabric;
pub use node::{Poll, UcxPlane, UcxSettings};

/// Can UCX be used here? The error says what to install.
pub fn available() -> Result<(), farindex_fabric::FabricError> {
    ucp::available().map_err(farindex_fabric::FabricError::Settings)
}
