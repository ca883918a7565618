//! The traits that a fabric implements.
//!
//! A [`Fabric`] is shared by the threads of a process and hands out one connection for each worker. A [`Transport`] is
//! such a connection: it takes chains of verbs and gives them back completed, at once or later. Everything that fabrics
//! have in common (buffers, futures, round trips, deadlines, timers) lives in the [`Endpoint`] on top.

use crate::slab::Registrar;
use crate::{Buf, Chain, Endpoint, FabricError, NodeId, RemotePtr, Verb};
use std::time::Duration;

/// Identifies a client to the fabric, so that `revoke` can name it. Stored in the pool, 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Identity {
    /// Unique among all clients of this fabric, past and future.
    pub token: u64,
    /// Process, where the fabric's clients are processes of one machine; else 0.
    pub pid: u64,
    /// When that process started, so that a reused number is not mistaken for it; else 0.
    pub started: u64,
}

/// Size of one memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its number.
    pub node: NodeId,
    /// Bytes it offers.
    pub len: u64,
}

/// Capabilities of a fabric beyond READ, WRITE, CAS and FAA.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// CAS under a mask in one verb. Without it, [`Batch::masked_cas`](crate::Batch::masked_cas) is refused, and
    /// [`Span::masked_cas`](crate::Span::masked_cas) is a counted loop of CAS.
    pub masked_cas: bool,
    /// Two-sided messages to the memory node's CPU: see [`call`](crate::call).
    pub call: bool,
    /// Verbs are atomic against the memory node's own CPU (lifts N4).
    pub cpu_atomic: bool,
    /// A region that was never written reads as zeros.
    pub zeroed: bool,
}

/// Memory nodes that can be connected to.
pub trait Fabric: Send + Sync {
    /// Short name, for messages and records.
    fn name(&self) -> &'static str;
    /// Every memory node, in the order of their numbers.
    fn nodes(&self) -> Vec<NodeInfo>;
    /// Its capabilities.
    fn capabilities(&self) -> Capabilities;
    /// A fresh identity for a client of this process.
    fn new_identity(&self) -> Identity;
    /// One connection of that client, for one worker thread.
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError>;
    /// Names the transports below the fabric, as far as they are chosen at run time and known by now: `tcp/eth0`, for
    /// example.
    fn transports(&self) -> Vec<String> {
        Vec::new()
    }
    /// Has this client ended, as far as the fabric can see without waiting for its lease? `None` where it cannot tell.
    fn is_gone(&self, identity: &Identity) -> Option<bool> {
        let _ = identity;
        None
    }
}

/// The result of posting a chain.
pub enum Post {
    /// Completed already.
    Done(Chain, Result<(), FabricError>),
    /// Will come out of [`Transport::progress`] under its number.
    Pending,
}

/// Receives completed chains.
pub trait Completions {
    /// The chain posted under `id` has completed. The error is behind a pointer so that success moves no room for it about.
    fn complete(&mut self, id: u64, chain: Chain, result: Result<(), Box<FabricError>>);
}

/// What a connection has sent and received so far, on fabrics that send anything. Batches that were combined share a
/// message or a doorbell, so these are counts of a connection, and not of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent to memory nodes.
    pub messages: u64,
    /// Messages received from them.
    pub answers: u64,
    /// Doorbells rung: calls that handed requests to a NIC.
    pub doorbells: u64,
}

/// One connection. Not shared between threads.
pub trait Transport {
    /// Takes a chain. Never blocks, and never fails for lack of room: the transport handles a full send queue. It may
    /// collect chains, to send several together, until it is asked to [`flush`](Self::flush) or to make progress. Nothing lands
    /// later of a chain that is done at once, with an error or without.
    fn post(&mut self, id: u64, chain: Chain) -> Post;
    /// Carries a chain out at once and in place, where verbs take no time: mapped memory does. `None` where a chain is
    /// to be [posted](Self::post); then it is as it was. Unlike a posted chain, this one never moves. The error is behind a
    /// pointer so that success moves no room for it about.
    fn run_now(&mut self, chain: &mut [Verb]) -> Option<Result<(), Box<FabricError>>> {
        let _ = chain;
        None
    }
    /// Do [`read_now`](Self::read_now) and [`run_now`](Self::run_now) carry out what cannot fail?
    fn runs_now(&self) -> bool {
        false
    }
    /// Carries out one READ as [`run_now`](Self::run_now) does a chain: the usual batch, which then needs no chain. `None`
    /// where it is to be carried out, or refused, as a chain.
    fn read_now(&mut self, ptr: RemotePtr, buf: &mut Buf) -> Option<Result<(), Box<FabricError>>> {
        let _ = (ptr, buf);
        None
    }
    /// Has the processor fetch what a chain of READs alone touches, to be carried out by
    /// [`run_fetched`](Self::run_fetched) a little later. Returns when it will be there, on this fabric's clock, where that is
    /// known, and zero elsewhere. `None` where fetching ahead is not possible, or the chain has other verbs.
    fn fetch_ahead(&mut self, chain: &Chain) -> Option<Duration> {
        let _ = chain;
        None
    }
    /// Carries out a chain that was fetched ahead, which waits for `from`. Only mapped memory fetches ahead.
    fn run_fetched(&mut self, chain: &mut Chain, from: Duration) -> Result<(), Box<FabricError>> {
        let _ = from;
        let fabric = self.name();
        self.run_now(chain).unwrap_or_else(|| Err(Box::new(FabricError::Unsupported { fabric, verb: "READ ahead" })))
    }
    /// Delivers what has completed; returns whether anything did. What was collected is sent first.
    fn progress(&mut self, completions: &mut dyn Completions) -> bool;
    /// Sends what was collected.
    fn flush(&mut self) {}
    /// Has it collected chains that it has not sent?
    fn collects(&self) -> bool {
        false
    }
    /// What it has sent and received.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    /// Time since a fixed moment, on this fabric's clock.
    fn now(&self) -> Duration;
    /// When a chain that is posted now is posted. `None`: its deadline counts from the endpoint's next look at the
    /// clock, which is when it asks for progress. So a fabric that collects chains has one look for a round of them.
    fn posted_at(&self) -> Option<Duration> {
        Some(self.now())
    }
    /// No future waits for the chain that was posted under `id` (N5). For fabrics that look for bugs.
    fn detached(&mut self, id: u64) {
        let _ = id;
    }
    /// Number of the latest connection to a node: nothing takes effect any more that was sent to it over an earlier one. A chain
    /// that has failed is not sent again. 0 where connections have no numbers.
    fn connections(&self, node: NodeId) -> u64 {
        let _ = node;
        0
    }
    /// The future that waited for the chain posted under `id` was dropped, in whatever state the chain is. For fabrics that look
    /// for bugs.
    fn abandoned(&mut self, id: u64) {
        let _ = id;
    }
    /// Returns what registers the endpoint's buffers, where hardware reads and fills them. Called once.
    fn registrar(&self) -> Option<Box<dyn Registrar>> {
        None
    }
    /// Asks for a wake-up at `at`: a fabric in virtual time must not skip that moment.
    fn wake_at(&mut self, at: Duration) {
        let _ = at;
    }
    /// The fabric's capabilities.
    fn capabilities(&self) -> Capabilities;
    /// Name of the fabric.
    fn name(&self) -> &'static str;
}
