//! The common part of memory nodes that are reached over a network.
//!
//! A memory node is a process: it holds one region, and a *data plane* (RDMA verbs, UCX) carries the verbs to it. In
//! addition, each client keeps one TCP connection to each memory node, the *control channel*: it identifies both sides,
//! sets the data plane up, and revokes clients (G6 of the [contract](farindex_fabric::contract)).
//! docs/protocols/remote.md has the protocol.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`control`] | the messages of the control channel, and their bounded decoder |
//! | [`token`] | what each token allows, and how a client proves that it knows one |
//! | [`memory`] | a memory node's region, and what it has to remember across restarts |
//! | [`plane`] | what a data plane implements on the memory node |
//! | [`node`] | the memory node: one thread that serves the control channel |
//! | [`client`] | a client's control connection to one memory node, which comes back by itself |
//! | [`metrics`] | counters of a memory node, and the port that shows them |
//! | [`wire`] | bounded reading and writing of little-endian fields |
//!
//! # A data plane, in short
//!
//! On the memory node: implement [`Plane`], then [`Node::start`]. On the client: [`Cluster::connect`] reaches all nodes
//! and says which data plane they speak; [`Cluster::client`] gives a client's control connections; [`Control::attach`]
//! exchanges what the data plane needs (queue-pair numbers, worker addresses); [`Control::revoke`] answers the verb of
//! that name; [`Control::generation`] reports at the cost of one load that the connection was lost and made anew.

pub mod client;
pub mod cluster;
pub mod control;
mod error;
pub mod memory;
pub mod metrics;
pub mod node;
pub mod plane;
pub mod token;
pub mod wire;

pub use client::{Control, Link, Pending};
pub use cluster::{Cluster, ClusterClient};
pub use control::{PlaneKind, Welcome};
pub use error::ControlError;
pub use memory::NodeMemory;
pub use metrics::Metrics;
pub use node::{Node, NodeSettings};
pub use plane::{Peer, Plane, Refusal};
pub use token::{Rights, Token, Tokens};
