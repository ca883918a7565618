//! Errors of verbs and of fabrics.

use crate::{NodeId, RemotePtr};
use std::time::Duration;

/// Why a batch failed. After any of these, N7 of the [contract](crate::contract) applies to its verbs, except where the
/// error says that nothing was posted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No such memory node. Nothing was posted.
    #[error("memory node {0} does not exist in this fabric")]
    NoSuchNode(NodeId),
    /// The range reaches beyond the end of the region. Nothing was posted.
    #[error("{len} bytes at {ptr} reach beyond the {region} bytes of their memory node")]
    OutOfBounds {
        /// First byte.
        ptr: RemotePtr,
        /// Bytes asked for.
        len: usize,
        /// Bytes the node has.
        region: u64,
    },
    /// Address or length is not a multiple of 8. Nothing was posted.
    #[error("{len} bytes at {ptr}: addresses and lengths are multiples of 8 bytes")]
    Misaligned {
        /// First byte.
        ptr: RemotePtr,
        /// Bytes asked for.
        len: usize,
    },
    /// The length exceeds what one READ may fetch. Nothing was posted.
    #[error("{len} bytes at {ptr}: a READ fetches at most {}", crate::endpoint::MAX_READ_LEN)]
    TooLong {
        /// First byte.
        ptr: RemotePtr,
        /// Bytes asked for.
        len: usize,
    },
    /// No completion within the endpoint's deadline (G1).
    #[error("memory node {node} did not answer within {after:?}")]
    Deadline {
        /// The node of the batch's first verb.
        node: NodeId,
        /// The endpoint's deadline.
        after: Duration,
    },
    /// The node has ended, is cut off, or refuses this connection.
    #[error("memory node {node} is unreachable: {reason}")]
    Unreachable {
        /// Which one.
        node: NodeId,
        /// The reason, as far as the fabric knows it.
        reason: String,
    },
    /// Another client has revoked this one (G6), because its lease had expired.
    #[error("this client was revoked by another one after its lease ran out; open the pool again to go on")]
    Revoked,
    /// The fabric has no such verb.
    #[error("the {fabric} fabric has no {verb}")]
    Unsupported {
        /// Name of the fabric.
        fabric: &'static str,
        /// Name of the verb.
        verb: &'static str,
    },
    /// The memory node, or the client itself, refused a CALL. What that means for the region is the handler's contract.
    #[error("memory node {node} refused the call: {reason}")]
    CallRefused {
        /// Which one.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// G6 cannot be guaranteed: the client may still act.
    #[error("cannot revoke the client: {0}")]
    CannotRevoke(String),
    /// The region may only be read: by how it is mapped, or by the token that this client showed. Nothing took effect.
    #[error("memory node {0} may only be read from here")]
    ReadOnly(NodeId),
    /// The region could not be opened, created or mapped.
    #[error("{path}: {reason}")]
    Region {
        /// The file.
        path: String,
        /// The system's error, and what to do.
        reason: String,
    },
    /// Invalid settings.
    #[error("{0}")]
    Settings(String),
}
