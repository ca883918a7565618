//! Batches that were posted and have not ended: what each still waits for.
//!
//! Invariants: a batch ends once, when it waits for nothing any more; an answer counts only if its batch waits for it, and so one
//! that comes twice changes nothing. The usual batch goes to one node, and costs no more than its place here.

use crate::slots::{NUMBER_BITS, Slots};
use farindex_fabric::ptr::MAX_NODES;
use farindex_fabric::transport::Completions;
use farindex_fabric::{Chain, FabricError, NodeId};
use farindex_remote::control::Message;
use farindex_remote::{ControlError, Pending};
use smallvec::SmallVec;

/// A request carries the number of its batch, and the node that it goes to; the answer repeats both.
const NODE_BITS: u32 = u64::BITS - NUMBER_BITS;
const _: () = assert!(1 << NODE_BITS > MAX_NODES);

/// The sequence number of the request to one node.
#[inline]
pub(crate) fn sequence(number: u64, place: usize) -> u64 {
    number << NODE_BITS | place as u64
}

/// The batch and the node of a sequence number.
#[inline]
pub(crate) fn of_sequence(sequence: u64) -> (u64, usize) {
    (sequence >> NODE_BITS, (sequence & ((1 << NODE_BITS) - 1)) as usize)
}

/// A batch that was posted.
#[derive(Default)]
pub(crate) struct Flight {
    /// The endpoint's number for it.
    pub(crate) id: u64,
    pub(crate) chain: Chain,
    /// Why it fails.
    pub(crate) error: Option<Box<FabricError>>,
    /// Sweeps at the time when it was posted.
    pub(crate) sweeps: u32,
    pub(crate) waits: Waits,
}

/// What a batch waits for.
pub(crate) enum Waits {
    /// An answer of this node.
    One(NodeId),
    /// All of these.
    Several(Several),
}

impl Default for Waits {
    fn default() -> Self {
        Waits::Several(Several::default())
    }
}

/// What a batch waits for that goes to several nodes, or revokes clients. Without revocations, and with a usual number of nodes,
/// it takes no memory of its own.
#[derive(Default)]
pub(crate) struct Several {
    /// The nodes whose answers are to come.
    pub(crate) nodes: SmallVec<[u16; 8]>,
    /// The revocations, each with its node, that the control channel is to answer.
    pub(crate) revocations: Vec<(usize, Pending)>,
}

impl Several {
    /// Does it wait for an answer of this node over the data path?
    fn waits_for(&self, place: usize) -> bool {
        self.nodes.iter().any(|node| usize::from(*node) == place)
    }
    fn answered(&mut self, place: usize) {
        self.nodes.retain(|node| usize::from(*node) != place);
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.revocations.is_empty()
    }
}

impl Flight {
    /// Does it wait for an answer of this node over the data path?
    #[inline]
    pub(crate) fn waits_for(&self, place: usize) -> bool {
        match &self.waits {
            Waits::One(node) => node.index() == place,
            Waits::Several(several) => several.waits_for(place),
        }
    }

    /// It has this answer. Returns whether it was the last that it waited for.
    #[inline]
    pub(crate) fn answered(&mut self, place: usize) -> bool {
        match &mut self.waits {
            Waits::One(_) => true,
            Waits::Several(several) => {
                several.answered(place);
                several.is_empty()
            }
        }
    }

    /// It fails with this error, unless it fails already.
    #[cold]
    pub(crate) fn fails(&mut self, error: FabricError) {
        self.error.get_or_insert_with(|| Box::new(error));
    }

    /// Does it wait for anything of this node? Revocations that go on do not count.
    pub(crate) fn is_kept_by(&self, place: usize, revocations_go_on: bool) -> bool {
        match &self.waits {
            Waits::One(node) => node.index() == place,
            Waits::Several(several) => {
                let revokes = || several.revocations.iter().any(|(of, _)| *of == place);
                several.waits_for(place) || !revocations_go_on && revokes()
            }
        }
    }

    /// Waits for nothing of this node any more, but for revocations that go on. Returns whether it has ended.
    pub(crate) fn give_up(&mut self, place: usize, revocations_go_on: bool) -> bool {
        match &mut self.waits {
            Waits::One(node) if node.index() == place => self.waits = Waits::default(),
            Waits::One(_) => {}
            Waits::Several(several) => {
                several.answered(place);
                several.revocations.retain(|(of, _)| *of != place || revocations_go_on);
            }
        }
        self.has_ended()
    }

    /// Takes the answers to revocations that have come from this node.
    pub(crate) fn revoked(&mut self, place: usize) -> Vec<Result<Message, ControlError>> {
        let Waits::Several(several) = &mut self.waits else { return Vec::new() };
        let mut answers = Vec::new();
        several.revocations.retain(|(of, pending)| {
            let answer = (*of == place).then(|| pending.poll()).flatten();
            let waits = answer.is_none();
            answers.extend(answer);
            waits
        });
        answers
    }

    /// Does it wait for nothing?
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&self.waits, Waits::Several(several) if several.is_empty())
    }
}

/// All of them, by number.
pub(crate) type Flights = Slots<Flight>;

impl Flights {
    /// A batch is posted. Without a number for it, it is given back.
    #[inline]
    pub(crate) fn begin(&mut self, id: u64, chain: Chain, sweeps: u32, waits: Waits) -> Result<u64, Chain> {
        let Some((number, flight)) = self.open() else { return Err(chain) };
        flight.id = id;
        flight.chain = chain;
        flight.sweeps = sweeps;
        flight.waits = waits;
        Ok(number)
    }

    /// A batch has ended: hands it back.
    #[inline]
    pub(crate) fn end(&mut self, number: u64, completions: &mut dyn Completions) {
        let Some(flight) = self.get_mut(number) else { return };
        let (id, chain, error) = (flight.id, std::mem::take(&mut flight.chain), flight.error.take());
        self.close(number);
        completions.complete(id, chain, error.map_or(Ok(()), Err));
    }
}
