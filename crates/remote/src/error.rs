//! Why a client cannot use a memory node.

use crate::control::{Code, PlaneKind};
use crate::wire::Malformed;
use farindex_fabric::{FabricError, NodeId};
use std::time::Duration;

/// Errors of the control channel. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No process listens there, or the host cannot be reached.
    #[error("{addr}: {why}; is `farindex serve` running there?")]
    Unreachable {
        /// Where.
        addr: String,
        /// What the system says.
        why: String,
    },
    /// The process that listens there is no memory node, or one of another version.
    #[error("{addr}: {why}")]
    Foreign {
        /// Where.
        addr: String,
        /// What is wrong with what it sent.
        why: Malformed,
    },
    /// The node refuses.
    #[error("{addr}: refused: {text}")]
    Refused {
        /// Where.
        addr: String,
        /// For programs.
        code: Code,
        /// For people.
        text: String,
    },
    /// Another node than the list of addresses says.
    #[error(
        "{addr} is memory node {is} and stands at place {wanted} of the list: name them in the order of --node-id, from 0"
    )]
    WrongNode {
        /// Where.
        addr: String,
        /// Its number.
        is: NodeId,
        /// Its place in the list.
        wanted: NodeId,
    },
    /// Memory nodes of one pool speak different data planes.
    #[error("{addr} serves over {is} and the nodes before it over {wanted}: serve all nodes of a pool over one")]
    WrongPlane {
        /// Where.
        addr: String,
        /// What it speaks.
        is: PlaneKind,
        /// What the others speak.
        wanted: PlaneKind,
    },
    /// The node came back without the memory that this client knew.
    #[error(
        "{addr} came back with other memory: what it held is gone (serve it from a file to keep it); open the pool again"
    )]
    OtherMemory {
        /// Where.
        addr: String,
    },
    /// Another client has revoked this one (G6).
    #[error("this client was revoked by another one after its lease ran out; open the pool again to go on")]
    Revoked,
    /// No answer in time.
    #[error("{addr} did not answer within {after:?}")]
    Silent {
        /// Where.
        addr: String,
        /// How long was waited.
        after: Duration,
    },
    /// The connection ended.
    #[error("{addr}: the connection ended: {why}")]
    Lost {
        /// Where.
        addr: String,
        /// What is known.
        why: String,
    },
    /// A local problem: this machine, or these settings.
    #[error("{0}")]
    Local(String),
}

impl ControlError {
    /// Converts it to the error of a verb to this node.
    pub fn of_node(self, node: NodeId) -> FabricError {
        match self {
            ControlError::Revoked | ControlError::Refused { code: Code::Revoked, .. } => FabricError::Revoked,
            ControlError::Refused { code: Code::ReadOnly, .. } => FabricError::ReadOnly(node),
            ControlError::Local(why) => FabricError::Settings(why),
            other => FabricError::Unreachable { node, reason: other.to_string() },
        }
    }
}
