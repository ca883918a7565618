//! The state of a simulation: memory nodes, clients, connections, batches in flight and future events.
//!
//! This module holds data and no decisions: `faults` and `steps` change it, `engine` posts batches and carries out
//! events.
//!
//! Invariants: nothing here reads a clock, a thread or an address; every step goes into the trace, so that two runs of
//! one seed and one program have the same trace.

use crate::client_state::{ClientState, RunState};
use crate::flight::Flight;
use crate::model::Cluster;
use crate::queue::{Event, Queue};
use crate::readers::Readers;
use crate::report::{ClientStatus, Log, Stats, Trace};
use crate::rng::SimRng;
use crate::swarm::Swarm;
use crate::watch::Watching;
use farindex_fabric::call::Work;
use farindex_fabric::{CallRefused, Capabilities, Chain, FabricError, NodeId};
use std::collections::{BTreeSet, VecDeque};
use std::task::Waker;
use std::time::Duration;

/// Answers calls in place of a memory node's CPU: which node, its memory, and the request. Unlike a
/// [`CallHandler`](farindex_fabric::CallHandler) it may change the memory as it likes. It returns the reply, and what it
/// has read and stored, which costs time in model mode.
pub type Handler = dyn FnMut(NodeId, &mut [u64], &[u8]) -> (Result<Vec<u8>, CallRefused>, Work);

/// What decides when verbs take effect.
pub(crate) enum Mode {
    Adversary(Swarm),
    Model(Box<Cluster>),
}

/// One memory node.
pub(crate) struct Node {
    pub(crate) words: Vec<u64>,
    pub(crate) up: bool,
    /// While the node is down: its clients get no answer (true), or an error (false).
    pub(crate) silent: bool,
    /// Tokens of the clients that are revoked on this node.
    pub(crate) revoked: BTreeSet<u64>,
    /// Words that WRITEs have changed and that the node's CPU may not see yet, each with what it held before.
    pub(crate) unseen: Vec<(usize, u64)>,
}

/// One client's connection.
pub(crate) struct Conn {
    pub(crate) client: u32,
    pub(crate) token: u64,
    /// Completions that the endpoint has not taken yet.
    pub(crate) done: VecDeque<(u64, Chain, Result<(), FabricError>)>,
    /// Extra latency of the link to each node, in nanoseconds.
    pub(crate) skew: Vec<u64>,
}

/// The second half of a racing atomic: it has read its word and not stored it yet.
pub(crate) struct PendingStore {
    pub(crate) node: usize,
    pub(crate) word: usize,
    pub(crate) seen: u64,
    pub(crate) value: u64,
    pub(crate) flight: u32,
    pub(crate) verb: u32,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    /// Virtual time in nanoseconds.
    pub(crate) now: u64,
    pub(crate) queue: Queue,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<ClientState>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) flights: Vec<Flight>,
    /// Places in `flights` that are free.
    pub(crate) free: Vec<u32>,
    /// Events of stalled clients, each with its client.
    pub(crate) held: Vec<(u32, Event)>,
    /// The flight that was posted last.
    pub(crate) latest: Option<u32>,
    /// Connections whose endpoints have to be polled.
    pub(crate) ready: Vec<u32>,
    /// Coroutines to wake.
    pub(crate) wakes: Vec<Waker>,
    pub(crate) pending: Vec<PendingStore>,
    pub(crate) mode: Mode,
    /// Draws delays and orders.
    pub(crate) rng: SimRng,
    /// Draws crashes and freezes.
    pub(crate) crash_rng: SimRng,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    pub(crate) log: Log,
    pub(crate) capabilities: Capabilities,
    pub(crate) handler: Option<Box<Handler>>,
    /// WRITEs may reach a node's CPU late: see [`Sim::set_late_calls`](crate::Sim::set_late_calls).
    pub(crate) late_calls: bool,
    /// The slots of clients, if they are watched.
    pub(crate) watching: Option<Watching>,
    /// Who has READ what others wrote, if that is watched.
    pub(crate) readers: Option<Readers>,
    /// The client whose coroutine is being polled.
    pub(crate) current: Option<u32>,
    pub(crate) open_tasks: u64,
    /// The fabric reports whether a client has crashed.
    pub(crate) reports_crashes: bool,
    /// The driver has to return to its caller although the event concerned no client.
    pub(crate) pause: bool,
    /// The simulation is being dropped: nothing happens any more.
    pub(crate) closed: bool,
}

impl World {
    pub(crate) fn new(seed: u64, mode: Mode, nodes: usize, node_len: u64) -> World {
        let words = (node_len / 8) as usize;
        let node =
            || Node { words: vec![0; words], up: true, silent: false, revoked: BTreeSet::new(), unseen: Vec::new() };
        let mut capabilities = Capabilities::default();
        capabilities.zeroed = true;
        World {
            seed,
            now: 0,
            queue: Queue::default(),
            nodes: (0..nodes).map(|_| node()).collect(),
            clients: Vec::new(),
            conns: Vec::new(),
            flights: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            latest: None,
            ready: Vec::new(),
            wakes: Vec::new(),
            pending: Vec::new(),
            mode,
            rng: SimRng::new(seed, 1),
            crash_rng: SimRng::new(seed, 2),
            trace: Trace::new(seed),
            stats: Stats::default(),
            log: Log::default(),
            capabilities,
            handler: None,
            late_calls: false,
            watching: None,
            readers: None,
            current: None,
            open_tasks: 0,
            reports_crashes: false,
            pause: false,
            closed: false,
        }
    }

    pub(crate) fn add_client(&mut self, host: usize) -> u32 {
        self.clients.push(ClientState::new(host));
        self.clients.len() as u32 - 1
    }

    pub(crate) fn add_conn(&mut self, client: u32, token: u64) -> u32 {
        let skew = vec![0; self.nodes.len()];
        self.conns.push(Conn { client, token, done: VecDeque::new(), skew });
        self.conns.len() as u32 - 1
    }

    pub(crate) fn client_of(&self, conn: u32) -> u32 {
        self.conns[conn as usize].client
    }

    pub(crate) fn has_crashed(&self, client: u32) -> bool {
        self.clients[client as usize].run_state == RunState::Crashed
    }

    /// The status of every client except the harness.
    pub(crate) fn statuses(&self) -> Vec<ClientStatus> {
        let clients = self.clients.iter().enumerate().skip(1);
        clients
            .map(|(number, state)| ClientStatus {
                client: number as u32,
                state: match state.run_state {
                    RunState::Running => "running",
                    RunState::Frozen(_) => "frozen",
                    RunState::Crashed => "crashed",
                },
                open_tasks: state.open_tasks,
                in_flight: state.in_flight,
                batches: state.batches,
                verbs: state.verbs,
                last: state.last.map(|(verb, ptr, _)| (verb, ptr)),
                since: Duration::from_nanos(state.last.map_or(0, |(_, _, at)| self.now - at)),
            })
            .collect()
    }
}
