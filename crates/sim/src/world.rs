//! The simulated world: memory nodes, clients, connections, what is in flight, and what is going to happen.
//!
//! Invariants: one event is carried out at a time, at its moment; nothing here looks at a clock, a thread or an address;
//! every step goes into the trace, so two runs of one seed and one program have the same.

use crate::flight::Flight;
use crate::model::Cluster;
use crate::queue::{Queue, What};
use crate::report::{Happened, Log, Position, Stats, Trace, verb_name};
use crate::rng::SimRng;
use crate::swarm::Swarm;
use farindex_fabric::transport::Post;
use farindex_fabric::{Capabilities, Chain, FabricError, NodeId, RemotePtr, Verb, VerbKind};
use std::collections::{BTreeSet, VecDeque};
use std::task::Waker;
use std::time::Duration;

/// Answers calls in place of a memory node's CPU: which node, its memory, and the request.
pub type Handler = dyn FnMut(NodeId, &mut [u64], &[u8]) -> Vec<u8>;

/// Who decides when things take effect.
pub(crate) enum Mode {
    Adversary(Swarm),
    Model(Box<Cluster>),
}

/// One memory node.
pub(crate) struct Node {
    pub(crate) words: Vec<u64>,
    pub(crate) up: bool,
    /// While it is down: does it leave its clients without an answer, or are they told?
    pub(crate) silent: bool,
    /// Tokens of the clients that were shut out.
    pub(crate) revoked: BTreeSet<u64>,
}

/// One client's connection.
pub(crate) struct Conn {
    pub(crate) client: u32,
    pub(crate) token: u64,
    pub(crate) done: VecDeque<(u64, Chain, Result<(), FabricError>)>,
    /// What its link to each node adds.
    pub(crate) skew: Vec<u64>,
}

/// Is a client running?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    /// Until this moment, or until somebody thaws it.
    Frozen(u64),
    Dead,
}

/// A death that has been decided on, at a verb.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death {
    pub(crate) crash_outcome: crate::CrashOutcome,
    /// The flight it was posting, and the last of its verbs that got out.
    pub(crate) at: Option<(u32, u32)>,
}

/// One client: a process with its own connections and coroutines.
pub(crate) struct ClientState {
    pub(crate) life: Life,
    pub(crate) dying: Option<Death>,
    /// Coroutines that were woken while it was frozen.
    pub(crate) parked: Vec<Waker>,
    pub(crate) open_tasks: u64,
    pub(crate) in_flight: u64,
    pub(crate) batches: u64,
    pub(crate) verbs: u64,
    pub(crate) last: Option<(&'static str, RemotePtr, u64)>,
    /// Odds of dying at a verb.
    pub(crate) crash_odds: u32,
    pub(crate) crash_at: Option<(u64, crate::CrashOutcome)>,
    /// Batches of several verbs, WRITEs and atomics among them, before the one that it dies in.
    pub(crate) crash_in_batch: Option<(u64, crate::CrashOutcome)>,
    /// Odds of freezing at a batch, and for less than 2 to how many nanoseconds.
    pub(crate) freeze_odds: (u32, u32),
    /// Model mode: which compute node it runs on, and until when its CPU is busy.
    pub(crate) host: usize,
    pub(crate) busy_until: u64,
}

/// A racing atomic that has read its word and not stored it yet.
pub(crate) struct Pending {
    pub(crate) node: usize,
    pub(crate) word: usize,
    pub(crate) seen: u64,
    pub(crate) value: u64,
    pub(crate) flight: u32,
    pub(crate) verb: u32,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: u64,
    pub(crate) queue: Queue,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<ClientState>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) flights: Vec<Flight>,
    free: Vec<u32>,
    /// The flight that was posted last.
    pub(crate) latest: Option<u32>,
    /// Connections whose endpoints have something to look at.
    pub(crate) ready: Vec<u32>,
    /// Coroutines to be woken.
    pub(crate) wakes: Vec<Waker>,
    pub(crate) pending: Vec<Pending>,
    pub(crate) mode: Mode,
    /// Draws delays and orders.
    pub(crate) rng: SimRng,
    /// Draws deaths and freezes.
    pub(crate) crash_rng: SimRng,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    pub(crate) log: Log,
    pub(crate) capabilities: Capabilities,
    pub(crate) handler: Option<Box<Handler>>,
    /// Whose coroutine is being polled.
    pub(crate) current: Option<u32>,
    pub(crate) open_tasks: u64,
    pub(crate) reports_crashes: bool,
    /// Somebody wants to look, although no client is concerned.
    pub(crate) pause: bool,
    /// The simulation is being taken down: nothing happens any more.
    pub(crate) closed: bool,
}

impl World {
    pub(crate) fn new(seed: u64, mode: Mode, nodes: usize, node_len: u64) -> World {
        let words = (node_len / 8) as usize;
        let node = || Node { words: vec![0; words], up: true, silent: false, revoked: BTreeSet::new() };
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
            current: None,
            open_tasks: 0,
            reports_crashes: false,
            pause: false,
            closed: false,
        }
    }

    pub(crate) fn add_client(&mut self, host: usize) -> u32 {
        self.clients.push(ClientState {
            life: Life::Running,
            dying: None,
            parked: Vec::new(),
            open_tasks: 0,
            in_flight: 0,
            batches: 0,
            verbs: 0,
            last: None,
            crash_odds: 0,
            crash_at: None,
            crash_in_batch: None,
            freeze_odds: (0, 0),
            host,
            busy_until: 0,
        });
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
        self.clients[client as usize].life == Life::Dead
    }

    /// Can this chain be carried out?
    fn check(&self, chain: &Chain) -> Result<(), FabricError> {
        chain.iter().try_for_each(|verb| {
            let (ptr, len) = (verb.ptr, verb.len());
            let node = self.nodes.get(ptr.node().index()).ok_or(FabricError::NoSuchNode(ptr.node()))?;
            match verb.kind {
                VerbKind::Call { .. } if self.handler.is_none() => return Err(unsupported("CALL")),
                VerbKind::MaskedCas { .. } if !self.capabilities.masked_cas => {
                    return Err(unsupported("MASKED CAS"));
                }
                VerbKind::Call { .. } | VerbKind::Revoke(_) => return Ok(()),
                _ => {}
            }
            if !ptr.offset().is_multiple_of(8) || !len.is_multiple_of(8) {
                return Err(FabricError::Misaligned { ptr, len });
            }
            let region = node.words.len() as u64 * 8;
            match ptr.offset().checked_add(len as u64) {
                Some(end) if end <= region => Ok(()),
                _ => Err(FabricError::OutOfBounds { ptr, len, region }),
            }
        })
    }

    /// Takes a chain from an endpoint.
    pub(crate) fn post(&mut self, conn: u32, id: u64, chain: Chain) -> Post {
        if self.closed {
            return Post::Pending;
        }
        // An endpoint that was made before its client existed belongs to the client that uses it first.
        if let Some(current) = self.current
            && self.client_of(conn) == 0
        {
            self.conns[conn as usize].client = current;
        }
        let client = self.client_of(conn);
        if self.has_crashed(client) {
            return Post::Pending;
        }
        if let Err(error) = self.check(&chain) {
            return Post::Done(chain, Err(error));
        }
        let verbs = chain.len() as u64;
        self.note_post(client, &chain);
        let flight = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() as u32 - 1
        });
        self.flights[flight as usize].open(conn, id, chain);
        self.latest = Some(flight);
        self.shut_out(flight);
        if matches!(self.mode, Mode::Model(_)) {
            self.schedule_model(flight);
        } else {
            self.schedule_adversary(flight);
        }
        self.draw_crash_or_freeze(client, flight, verbs);
        Post::Pending
    }

    fn note_post(&mut self, client: u32, chain: &Chain) {
        let verbs = chain.len() as u64;
        self.stats.batches += 1;
        self.stats.verbs += verbs;
        let now = self.now;
        let state = &mut self.clients[client as usize];
        state.batches += 1;
        state.verbs += verbs;
        state.in_flight += 1;
        if let Some(last) = chain.last() {
            state.last = Some((verb_name(last), last.ptr, now));
        }
        self.trace.mix(now ^ u64::from(client) << 48 ^ verbs << 40);
        if let Some(first) = chain.first() {
            let what = Happened::Posted(verb_name(first), first.ptr, chain.len());
            self.log.add(now, client, what);
        }
    }

    /// Carries out the next event; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(event) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(event.at);
        self.stats.events += 1;
        match event.what {
            What::Wake { conn } => {
                if !self.has_crashed(self.client_of(conn)) {
                    self.ready.push(conn);
                }
            }
            What::Resume { client } => {
                self.pause = true;
                self.unfreeze_due(client);
            }
            What::Complete { flight } => {
                self.polled(flight);
                self.complete(flight);
            }
            _ => {
                if !self.take_effect(event) {
                    return true;
                }
            }
        }
        if let Some(flight) = event.what.flight() {
            self.close_event(flight);
        }
        true
    }

    fn close_event(&mut self, flight: u32) {
        let state = &mut self.flights[flight as usize];
        state.events -= 1;
        if state.events == 0 {
            state.chain = Chain::new();
            self.free.push(flight);
        }
    }

    /// Everybody's position, the harness left out.
    pub(crate) fn positions(&self) -> Vec<Position> {
        let clients = self.clients.iter().enumerate().skip(1);
        clients
            .map(|(number, state)| Position {
                client: number as u32,
                state: match state.life {
                    Life::Running => "running",
                    Life::Frozen(_) => "frozen",
                    Life::Dead => "dead",
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

fn unsupported(verb: &'static str) -> FabricError {
    FabricError::Unsupported { fabric: "sim", verb }
}

/// First word that a verb touches.
pub(crate) fn first_word(verb: &Verb) -> usize {
    (verb.ptr.offset() / 8) as usize
}
