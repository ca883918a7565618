//! One worker's connections to all memory nodes.
//!
//! Invariants: the verbs of a batch that go to one node are one message; a batch is checked whole (nodes, bounds,
//! alignment, rights, sizes) before any of it is sent; it completes once all its nodes have answered, or with the first
//! error; when a node is lost, its unanswered batches fail with a reason that names the node, and the next batch to it
//! attaches anew; nothing here blocks.

use crate::chain::{self, Answer, Sizes, Status};
use crate::ucp::{Context, EpId, Worker};
use farindex_fabric::transport::{Completions, Post};
use farindex_fabric::{Capabilities, Chain, FabricError, Identity, NodeId, Transport, Verb, VerbKind};
use farindex_remote::control::Message;
use farindex_remote::wire::{Reader, Writer};
use farindex_remote::{Cluster, ClusterClient, Control, ControlError, Link, Pending, Rights, Welcome};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const NAME: &str = "ucx";

pub(crate) fn capabilities(cluster: &Cluster) -> Capabilities {
    let mut capabilities = Capabilities::default();
    capabilities.masked_cas = true;
    capabilities.call = cluster.answers_calls();
    capabilities.zeroed = cluster.zeroed();
    capabilities
}

/// What the connections of a fabric share.
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    pub(crate) epoch: Instant,
    pub(crate) capabilities: Capabilities,
    pub(crate) sent: AtomicU64,
    pub(crate) transports: Mutex<BTreeSet<String>>,
}

/// UCX reports a lost connection sooner than the control channel, which knows the reason: how long to wait for that
/// reason.
const REASON_TIME: Duration = Duration::from_millis(300);
/// A request without an answer is dropped after this time. Its endpoint has stopped waiting long before.
const FORGET: Duration = Duration::from_secs(120);

/// A batch that was posted.
struct Flight {
    id: u64,
    chain: Chain,
    parts: usize,
    error: Option<FabricError>,
}

/// A request that a node has not answered: a message, or a revocation.
struct Part {
    flight: u64,
    posted: Instant,
    kind: PartKind,
}

enum PartKind {
    Data,
    Revoke(Pending),
}

/// The connection to one node.
struct Line {
    node: NodeId,
    len: u64,
    rights: Rights,
    state: State,
    /// Generation of the control connection when it was last checked.
    generation: u64,
    parts: BTreeMap<u64, Part>,
    /// Parts that were not sent yet, because there is no connection.
    unsent: Vec<u64>,
    /// Number of parts that are revocations.
    revocations: usize,
    answered: u64,
}

enum State {
    Idle,
    Attaching(Pending),
    Up {
        ep: EpId,
        session: u64,
    },
    /// UCX has lost it, at this time and for this reason.
    Broken(Instant, String),
}

/// One worker's connections.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    client: Arc<ClusterClient>,
    worker: Worker,
    lines: Vec<Line>,
    flights: HashMap<u64, Flight>,
    /// Batches that have all their answers.
    completed: Vec<u64>,
    next: u64,
    swept: Instant,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        client: Arc<ClusterClient>,
        welcomes: &[Welcome],
    ) -> Result<Self, FabricError> {
        let worker = Worker::new(&shared.context).map_err(FabricError::Settings)?;
        let line = |(control, welcome): (&Control, &Welcome)| Line {
            node: welcome.node,
            len: welcome.len,
            rights: welcome.rights,
            state: State::Idle,
            generation: control.generation(),
            parts: BTreeMap::new(),
            unsent: Vec::new(),
            revocations: 0,
            answered: 0,
        };
        let lines = client.controls().iter().zip(welcomes).map(line).collect();
        Ok(Connection {
            shared,
            client,
            worker,
            lines,
            flights: HashMap::new(),
            completed: Vec::new(),
            next: 1,
            swept: Instant::now(),
        })
    }

    /// Checks whether a batch can be sent; returns the nodes that it goes to.
    fn check(&self, chain: &Chain) -> Result<Vec<usize>, FabricError> {
        let mut nodes = Vec::new();
        for verb in chain {
            let node = verb.node();
            let line = self.lines.get(node.index()).ok_or(FabricError::NoSuchNode(node))?;
            check_verb(verb, line, self.shared.capabilities)?;
            if !nodes.contains(&node.index()) {
                nodes.push(node.index());
            }
        }
        for node in &nodes {
            let Sizes { request, reply, verbs } = chain::sizes(chain, NodeId::new(*node as u16));
            if !(Sizes { request, reply, verbs }).fit() {
                let (bytes, most) = (request.max(reply), chain::MAX_CHAIN);
                return Err(FabricError::Settings(format!(
                    "a batch of {verbs} verbs and {bytes} bytes: the ucx fabric moves at most {most} bytes and {} verbs at once",
                    chain::MAX_VERBS
                )));
            }
        }
        Ok(nodes)
    }

    fn open_part(&mut self, place: usize, flight: u64, kind: PartKind) {
        let sequence = self.next;
        self.next += 1;
        if let Some(line) = self.lines.get_mut(place) {
            match kind {
                PartKind::Data => line.unsent.push(sequence),
                PartKind::Revoke(_) => line.revocations += 1,
            }
            line.parts.insert(sequence, Part { flight, posted: Instant::now(), kind });
        }
    }

    /// Sends what has not been sent, if there is a connection; asks for one, if there is none.
    fn push(&mut self, place: usize) {
        let (Some(line), Some(control)) = (self.lines.get_mut(place), self.client.controls().get(place)) else {
            return;
        };
        match &line.state {
            State::Idle => match control.link() {
                Link::Up => match self.worker.address() {
                    Ok(address) => line.state = State::Attaching(control.attach(address)),
                    Err(why) => self.fail(place, &FabricError::Settings(why), true),
                },
                Link::Down(error) | Link::Ended(error) => {
                    let error = error.of_node(line.node);
                    self.fail(place, &error, true);
                }
            },
            State::Up { ep, session } => {
                let (ep, session, node) = (*ep, *session, line.node);
                for sequence in std::mem::take(&mut line.unsent) {
                    let flight = line.parts.get(&sequence).and_then(|part| self.flights.get(&part.flight));
                    let Some(flight) = flight else { continue };
                    let mut message = self.worker.buffer();
                    chain::encode(&flight.chain, node, session, sequence, &mut message);
                    self.shared.sent.fetch_add(1, Ordering::Relaxed);
                    if let Err(why) = self.worker.send(ep, message) {
                        line.state = State::Broken(Instant::now(), why);
                        self.worker.close(ep);
                        return;
                    }
                }
            }
            State::Attaching(_) | State::Broken(..) => {}
        }
    }

    /// Fails all parts of a node; revocations as well, unless they go on.
    fn fail(&mut self, place: usize, error: &FabricError, revocations_go_on: bool) {
        let Some(line) = self.lines.get_mut(place) else { return };
        line.unsent.clear();
        let goes_on = |part: &Part| revocations_go_on && matches!(part.kind, PartKind::Revoke(_));
        let (kept, failed) = std::mem::take(&mut line.parts).into_iter().partition(|(_, part)| goes_on(part));
        let failed: BTreeMap<u64, Part> = failed;
        line.parts = kept;
        line.revocations = line.parts.len();
        for part in failed.into_values() {
            self.settle(part.flight, Err(error.clone()));
        }
    }

    /// Records the result of a part.
    fn settle(&mut self, key: u64, result: Result<(), FabricError>) {
        let Some(flight) = self.flights.get_mut(&key) else { return };
        flight.parts = flight.parts.saturating_sub(1);
        if let Err(error) = result {
            flight.error.get_or_insert(error);
        }
        if flight.parts == 0 {
            self.completed.push(key);
        }
    }

    /// Advances the connection to one node: handles a lost control connection, and the answer to an attach.
    fn advance(&mut self, place: usize) {
        let Some(control) = self.client.controls().get(place) else { return };
        let Some(line) = self.lines.get_mut(place) else { return };
        let (node, generation) = (line.node, control.generation());
        if line.generation != generation {
            line.generation = generation;
            let error = match control.link() {
                Link::Up => ControlError::Lost { addr: control.addr().to_owned(), why: "it was made anew".to_owned() },
                Link::Down(error) | Link::Ended(error) => error,
            };
            if let State::Up { ep, .. } = std::mem::replace(&mut line.state, State::Idle) {
                self.worker.close(ep);
            }
            return self.fail(place, &error.of_node(node), true);
        }
        match &line.state {
            State::Attaching(pending) => {
                match pending.poll().map(|answer| answer.and_then(|answer| attached(control, answer))) {
                    None => {}
                    Some(Ok((session, address))) => match self.worker.connect(&address) {
                        Ok(ep) => {
                            line.state = State::Up { ep, session };
                            self.push(place);
                        }
                        Err(reason) => {
                            line.state = State::Idle;
                            self.fail(place, &FabricError::Unreachable { node, reason }, true);
                        }
                    },
                    Some(Err(error)) => {
                        line.state = State::Idle;
                        self.fail(place, &error.of_node(node), true);
                    }
                }
            }
            State::Broken(since, why) if since.elapsed() > REASON_TIME => {
                let error = FabricError::Unreachable { node, reason: format!("UCX lost the connection: {why}") };
                line.state = State::Idle;
                self.fail(place, &error, true);
            }
            State::Idle | State::Up { .. } | State::Broken(..) => {}
        }
    }

    /// Revocations that have been answered.
    fn poll_revocations(&mut self, place: usize) {
        let Some(line) = self.lines.get_mut(place).filter(|line| line.revocations > 0) else { return };
        let node = line.node;
        let mut answered = Vec::new();
        line.parts.retain(|_, part| {
            let PartKind::Revoke(pending) = &part.kind else { return true };
            let Some(answer) = pending.poll() else { return true };
            answered.push((part.flight, answer));
            false
        });
        line.revocations -= answered.len();
        for (flight, answer) in answered {
            let result = match answer {
                Ok(Message::Revoked) => Ok(()),
                Ok(_) => Err(FabricError::CannotRevoke("the memory node gave a wrong answer".to_owned())),
                Err(error) => Err(error.of_node(node)),
            };
            self.settle(flight, result);
        }
    }

    fn answer(&mut self, reply: &[u8]) {
        let Ok(answer) = Answer::read(reply) else { return };
        // The sequence says which node owed it; it is looked for there alone.
        let owed = self.lines.iter_mut().find_map(|line| {
            let part = line.parts.remove(&answer.sequence)?;
            line.answered += 1;
            Some((line.node, line.len, line.answered, part.flight))
        });
        let Some((node, len, count, flight)) = owed else { return };
        if count == 2 {
            self.note_transports(node);
        }
        let Some(flown) = self.flights.get_mut(&flight) else { return };
        let result = match answer.status {
            Status::Done => chain::fill(&mut flown.chain, node, answer)
                .map_err(|why| FabricError::Unreachable { node, reason: format!("its reply made no sense: {why}") }),
            status => Err(refusal(status, chain::refused_verb(&flown.chain, node, answer.verb), node, len)),
        };
        self.settle(flight, result);
    }

    fn note_transports(&self, node: NodeId) {
        let Some(Line { state: State::Up { ep, .. }, .. }) = self.lines.get(node.index()) else { return };
        let found = self.worker.transports(*ep);
        self.shared.transports.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
    }

    fn lost(&mut self, ep: EpId, why: String) {
        let mine = |line: &&mut Line| matches!(line.state, State::Up { ep: this, .. } if this == ep);
        if let Some(line) = self.lines.iter_mut().find(mine) {
            line.state = State::Broken(Instant::now(), why);
            self.worker.close(ep);
        }
    }

    /// Drops requests for which no future can be waiting.
    fn sweep(&mut self) {
        self.swept = Instant::now();
        for place in 0..self.lines.len() {
            let Some(line) = self.lines.get_mut(place) else { continue };
            let oldest = line.parts.values().next();
            if oldest.is_some_and(|part| part.posted.elapsed() > FORGET) {
                let error = FabricError::Deadline { node: line.node, after: FORGET };
                self.fail(place, &error, false);
            }
        }
    }
}

fn check_verb(verb: &Verb, line: &Line, capabilities: Capabilities) -> Result<(), FabricError> {
    let (ptr, len, node) = (verb.ptr, verb.len(), line.node);
    let changes = match verb.kind {
        VerbKind::Call { .. } if !capabilities.call => {
            return Err(FabricError::Unsupported { fabric: NAME, verb: "CALL" });
        }
        VerbKind::Call { .. } => return Ok(()),
        VerbKind::Read(_) => false,
        _ => true,
    };
    if changes && line.rights != Rights::ReadWrite {
        return Err(FabricError::ReadOnly(node));
    }
    if matches!(verb.kind, VerbKind::Revoke(_)) {
        return Ok(());
    }
    if !ptr.offset().is_multiple_of(8) || !len.is_multiple_of(8) {
        return Err(FabricError::Misaligned { ptr, len });
    }
    if ptr.offset().checked_add(len as u64).is_none_or(|end| end > line.len) {
        return Err(FabricError::OutOfBounds { ptr, len, region: line.len });
    }
    Ok(())
}

fn refusal(status: Status, verb: Option<&Verb>, node: NodeId, region: u64) -> FabricError {
    let (ptr, len) = verb.map_or_else(Default::default, |verb| (verb.ptr, verb.len()));
    match status {
        Status::OutOfBounds => FabricError::OutOfBounds { ptr, len, region },
        Status::Misaligned => FabricError::Misaligned { ptr, len },
        Status::ReadOnly => FabricError::ReadOnly(node),
        Status::TooLong => FabricError::TooLong { ptr, len },
        Status::Done => FabricError::Unreachable { node, reason: "its reply made no sense".to_owned() },
    }
}

/// The node's half of a connection: its number there, and the address of the node's worker.
fn attached(control: &Control, answer: Message) -> Result<(u64, Vec<u8>), ControlError> {
    let wrong = || ControlError::Lost { addr: control.addr().to_owned(), why: "it gave a wrong answer".to_owned() };
    let Message::Attached(bytes) = answer else { return Err(wrong()) };
    let mut fields = Reader::new(&bytes);
    let read = fields.u64().and_then(|session| Ok((session, fields.counted()?.to_vec())));
    read.map_err(|_| wrong())
}

impl Transport for Connection {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        let nodes = match self.check(&chain) {
            Ok(nodes) => nodes,
            Err(error) => return Post::Done(chain, Err(error)),
        };
        let key = self.next;
        self.next += 1;
        let revokes = |verb: &Verb| match &verb.kind {
            VerbKind::Revoke(identity) => Some((verb.node().index(), *identity)),
            _ => None,
        };
        let victims: Vec<(usize, Identity)> = chain.iter().filter_map(revokes).collect();
        let talks = |place: &usize| chain::sizes(&chain, NodeId::new(*place as u16)).verbs > 0;
        let nodes: Vec<usize> = nodes.into_iter().filter(talks).collect();
        let parts = nodes.len() + victims.len();
        self.flights.insert(key, Flight { id, chain, parts, error: None });
        for (place, victim) in victims {
            let asked = self.client.controls().get(place).map(|control| control.revoke(victim));
            if let Some(asked) = asked {
                self.open_part(place, key, PartKind::Revoke(asked));
            }
        }
        if parts == 0 {
            self.completed.push(key);
        }
        for place in nodes {
            self.open_part(place, key, PartKind::Data);
            self.push(place);
        }
        Post::Pending
    }

    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        self.worker.progress();
        while let Some(reply) = self.worker.received() {
            self.answer(&reply);
            self.worker.recycle(reply);
        }
        while let Some((ep, why)) = self.worker.failed() {
            self.lost(ep, why);
        }
        for place in 0..self.lines.len() {
            self.advance(place);
            self.poll_revocations(place);
        }
        if self.swept.elapsed() > FORGET / 8 {
            self.sweep();
        }
        let any = !self.completed.is_empty();
        for key in std::mem::take(&mut self.completed) {
            if let Some(flight) = self.flights.remove(&key) {
                completions.complete(flight.id, flight.chain, flight.error.map_or(Ok(()), Err));
            }
        }
        any
    }

    fn now(&self) -> Duration {
        self.shared.epoch.elapsed()
    }
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }
    fn name(&self) -> &'static str {
        NAME
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for (line, control) in self.lines.iter().zip(self.client.controls()) {
            if let State::Up { session, .. } = line.state {
                let mut which = Vec::new();
                which.put_u64(session);
                control.detach(which);
            }
        }
    }
}
