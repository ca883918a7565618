//! The connection of one worker to one node: what state it is in, and the message that is collected for it.

use crate::chain::{FULL_BYTES, Sizes};
use crate::ucp::EpId;
use farindex_fabric::{Capabilities, FabricError, NodeId, Verb, VerbKind};
use farindex_remote::control::Message;
use farindex_remote::wire::Reader;
use farindex_remote::{Control, ControlError, Pending, Rights, Welcome};
use std::collections::VecDeque;
use std::time::Instant;

/// Greetings that are remembered: of more, the oldest are of connections that were given up.
const GREETINGS: usize = 8;

/// The message to one node that is being collected.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) bytes: Vec<u8>,
    pub(crate) batches: u32,
    pub(crate) sizes: Sizes,
}

impl Collected {
    /// Can a batch of these sizes be added to the message?
    #[inline]
    pub(crate) fn has_room_for(&self, sizes: Sizes) -> bool {
        let both = self.sizes.with(sizes);
        both.request.max(both.results) <= FULL_BYTES as u64 && both.fit()
    }
}

/// The connection to one node.
pub(crate) struct Line {
    pub(crate) node: NodeId,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    pub(crate) state: State,
    /// Generation of the control connection when it was last checked, or asked to attach.
    pub(crate) generation: u64,
    /// Connections of which the node has said that they are there, the latest first. One is waited for at a time, but
    /// the greeting of one that was given up can come after its own.
    pub(crate) greeted: VecDeque<u64>,
    pub(crate) collected: Collected,
    /// Batches that are in no message yet, because there is no connection.
    pub(crate) unsent: Vec<u64>,
    /// Revocations that it has not answered.
    pub(crate) revocations: usize,
    pub(crate) answered: u64,
    /// Its transports were asked for.
    pub(crate) noted: bool,
    /// Batches that it has not answered.
    pub(crate) owed: u32,
}

pub(crate) enum State {
    Idle,
    Attaching(Pending),
    /// The node has made its half, and has not greeted yet.
    Attached {
        session: u64,
        address: Vec<u8>,
    },
    Up {
        ep: EpId,
        session: u64,
    },
    /// UCX has lost it, at this time and for this reason.
    Broken(Instant, String),
}

impl Line {
    /// Nothing is attached yet.
    pub(crate) fn new(control: &Control, welcome: &Welcome) -> Self {
        Line {
            node: welcome.node,
            len: welcome.len,
            rights: welcome.rights,
            state: State::Idle,
            generation: control.generation(),
            greeted: VecDeque::new(),
            collected: Collected::default(),
            unsent: Vec::new(),
            revocations: 0,
            answered: 0,
            noted: false,
            owed: 0,
        }
    }

    /// The node has said that a connection is there.
    pub(crate) fn greet(&mut self, session: u64) {
        self.greeted.truncate(GREETINGS - 1);
        self.greeted.push_front(session);
    }

    /// Checks whether a verb can be sent to the node.
    #[inline]
    pub(crate) fn check(&self, verb: &Verb, capabilities: Capabilities) -> Result<(), FabricError> {
        let (ptr, len, node) = (verb.ptr, verb.len(), self.node);
        let changes = match verb.kind {
            VerbKind::Call { .. } if !capabilities.call => {
                return Err(FabricError::Unsupported { fabric: crate::transport::NAME, verb: "CALL" });
            }
            VerbKind::Call { .. } => return Ok(()),
            VerbKind::Read(_) => false,
            _ => true,
        };
        if changes && self.rights != Rights::ReadWrite {
            return Err(FabricError::ReadOnly(node));
        }
        if matches!(verb.kind, VerbKind::Revoke(_)) {
            return Ok(());
        }
        if !ptr.offset().is_multiple_of(8) || !len.is_multiple_of(8) {
            return Err(FabricError::Misaligned { ptr, len });
        }
        if ptr.offset().checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(FabricError::OutOfBounds { ptr, len, region: self.len });
        }
        Ok(())
    }
}

/// The node's half of a connection: its number there, and the address of the node's worker.
pub(crate) fn attached(control: &Control, answer: Message) -> Result<(u64, Vec<u8>), ControlError> {
    let wrong = || ControlError::Lost { addr: control.addr().to_owned(), why: "it gave a wrong answer".to_owned() };
    let Message::Attached(bytes) = answer else { return Err(wrong()) };
    let mut fields = Reader::new(&bytes);
    let read = fields.u64().and_then(|session| Ok((session, fields.counted()?.to_vec())));
    read.map_err(|_| wrong())
}
