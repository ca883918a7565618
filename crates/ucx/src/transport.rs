//! One worker's connections to all memory nodes.
//!
//! Invariants: batches to one node are collected, in posting order, and sent as one message when the endpoint is
//! flushed or the message is full; the verbs of a batch that go to one node are in one message; a batch is checked whole
//! (nodes, bounds, alignment, rights, sizes) before any of it is collected; it completes once all its nodes have
//! answered, or with the first error, whatever becomes of the batches that it shared messages with; when a node is
//! lost, its unanswered batches fail with a reason that names the node, and the next batch to it attaches anew; nothing
//! here blocks; UCX is told to connect to a node when that node's own connection is there, and not before (docs/bugs/192).
//! Once warm, a batch allocates nothing.

use crate::chain::{self, Answer, FULL_BATCHES, FULL_BYTES, Greeting, Sizes, Status};
use crate::line::{Collected, Line, State, attached};
use crate::slots::Slots;
use crate::ucp::{Context, EpId, Worker};
use farindex_fabric::transport::{Completions, Post, Traffic};
use farindex_fabric::{Capabilities, Chain, FabricError, Identity, NodeId, Transport, Verb, VerbKind};
use farindex_remote::control::Message;
use farindex_remote::wire::Reader;
use farindex_remote::{Cluster, ClusterClient, ControlError, Link, Pending, Welcome};
use std::collections::BTreeSet;
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
/// That is measured in sweeps, so that a request needs no look at the clock; and the clock is looked at once in so many
/// rounds.
const SWEEPS: u32 = 8;
const ROUNDS: u32 = 64;

/// A batch that was posted.
struct Flight {
    id: u64,
    chain: Chain,
    parts: usize,
    /// Behind a pointer, because a flight moves.
    error: Option<Box<FabricError>>,
}

/// A request that a node has not answered: its part of a batch, or a revocation.
struct Part {
    flight: u64,
    /// Of which node.
    place: usize,
    /// Sweeps at the time when it was posted.
    sweeps: u32,
    kind: PartKind,
}

enum PartKind {
    Data,
    /// Behind a pointer, because hardly any part is one.
    Revoke(Box<Pending>),
}

/// One worker's connections.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    client: Arc<ClusterClient>,
    worker: Worker,
    lines: Vec<Line>,
    flights: Slots<Flight>,
    /// By the number that requests and answers carry.
    parts: Slots<Part>,
    /// Batches that have ended otherwise than by the last of their answers: they failed, or waited for revocations.
    completed: Vec<u64>,
    /// The nodes of the batch that is being posted, and its sizes there: kept for its room.
    nodes: Vec<(usize, Sizes)>,
    traffic: Traffic,
    /// Some line has collected something.
    collects: bool,
    rounds: u32,
    sweeps: u32,
    swept: Instant,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        client: Arc<ClusterClient>,
        welcomes: &[Welcome],
    ) -> Result<Self, FabricError> {
        let worker = Worker::new(&shared.context).map_err(FabricError::Settings)?;
        let lines =
            client.controls().iter().zip(welcomes).map(|(control, welcome)| Line::new(control, welcome)).collect();
        Ok(Connection {
            shared,
            client,
            worker,
            lines,
            flights: Slots::default(),
            parts: Slots::default(),
            completed: Vec::new(),
            nodes: Vec::new(),
            traffic: Traffic::default(),
            collects: false,
            rounds: 0,
            sweeps: 0,
            swept: Instant::now(),
        })
    }

    /// Checks whether a batch can be sent; notes the nodes that it sends messages to.
    fn check(&mut self, chain: &Chain) -> Result<(), FabricError> {
        self.nodes.clear();
        for verb in chain {
            let (node, place) = (verb.node(), verb.node().index());
            let line = self.lines.get(place).ok_or(FabricError::NoSuchNode(node))?;
            line.check(verb, self.shared.capabilities)?;
            if matches!(verb.kind, VerbKind::Revoke(_)) {
                continue;
            }
            match self.nodes.iter_mut().find(|(known, _)| *known == place) {
                Some((_, sizes)) => sizes.add(verb),
                None => {
                    let mut sizes = Sizes::of_no_verbs();
                    sizes.add(verb);
                    self.nodes.push((place, sizes));
                }
            }
        }
        for (_, sizes) in &self.nodes {
            if !sizes.fit() {
                let (verbs, bytes, most) = (sizes.verbs, sizes.request.max(sizes.answer), chain::MAX_CHAIN);
                return Err(FabricError::Settings(format!(
                    "a batch of {verbs} verbs and {bytes} bytes: the ucx fabric moves at most {most} bytes and {} verbs at once",
                    chain::MAX_VERBS
                )));
            }
        }
        Ok(())
    }

    fn open_part(&mut self, place: usize, flight: u64, kind: PartKind) -> u64 {
        if let Some(line) = self.lines.get_mut(place) {
            match kind {
                PartKind::Data => line.owed += 1,
                PartKind::Revoke(_) => line.revocations += 1,
            }
        }
        self.parts.insert(Part { flight, place, sweeps: self.sweeps, kind })
    }

    /// Puts a part of a batch into the message to its node, if there is a connection.
    fn collect(&mut self, place: usize, (flight, sequence): (u64, u64), sizes: Sizes) {
        let Some(line) = self.lines.get_mut(place) else { return };
        let State::Up { session, .. } = line.state else { return line.unsent.push(sequence) };
        let collected = &line.collected;
        let both = collected.sizes.with(sizes);
        let too_much = both.request.max(both.results) > FULL_BYTES as u64 || !both.fit();
        if collected.batches > 0 && too_much {
            self.send(place);
        }
        let (Some(line), Some(flight)) = (self.lines.get_mut(place), self.flights.get_mut(flight)) else { return };
        if !matches!(line.state, State::Up { .. }) {
            // It was lost just now: the part fails when the reason is known.
            return line.unsent.push(sequence);
        }
        let collected = &mut line.collected;
        if collected.batches == 0 {
            collected.bytes = self.worker.buffer();
        }
        chain::encode(&flight.chain, line.node, session, sequence, &mut collected.bytes);
        collected.batches += 1;
        collected.sizes = collected.sizes.with(sizes);
        self.collects = true;
        // Half of what is on its way: while one side works on it, the other one works on the other half.
        if collected.batches >= FULL_BATCHES.max(line.owed / 2) {
            self.send(place);
        }
    }

    /// Sends the message to a node that was collected.
    fn send(&mut self, place: usize) {
        let Some(line) = self.lines.get_mut(place) else { return };
        let Collected { mut bytes, batches, .. } = std::mem::take(&mut line.collected);
        let State::Up { ep, .. } = line.state else { return };
        if batches == 0 {
            return;
        }
        chain::finish(&mut bytes, batches);
        self.shared.sent.fetch_add(1, Ordering::Relaxed);
        self.traffic.messages += 1;
        if let Err(why) = self.worker.send(ep, bytes) {
            line.state = State::Broken(Instant::now(), why);
            self.worker.close(ep);
        }
    }

    /// Collects what had to wait for the connection, if there is one; asks for one, if there is none.
    fn push(&mut self, place: usize) {
        let (Some(line), Some(control)) = (self.lines.get_mut(place), self.client.controls().get(place)) else {
            return;
        };
        match &line.state {
            State::Idle => match control.link() {
                Link::Up => match self.worker.address() {
                    Ok(address) => {
                        let asked = control.attach(address);
                        // Of the connection that it went over: when `advance` sees a change next, this one is lost.
                        line.generation = asked.generation();
                        line.state = State::Attaching(asked);
                    }
                    Err(why) => self.fail(place, &FabricError::Settings(why), true),
                },
                Link::Down(error) | Link::Ended(error) => {
                    let error = error.of_node(line.node);
                    self.fail(place, &error, true);
                }
            },
            State::Up { .. } => {
                let node = line.node;
                for sequence in std::mem::take(&mut line.unsent) {
                    let Some(number) = self.parts.get_mut(sequence).map(|part| part.flight) else { continue };
                    let Some(flight) = self.flights.get_mut(number) else { continue };
                    let sizes = chain::sizes(&flight.chain, node);
                    self.collect(place, (number, sequence), sizes);
                }
            }
            State::Attaching(_) | State::Attached { .. } | State::Broken(..) => {}
        }
    }

    /// Fails all parts of a node; revocations as well, unless they go on.
    fn fail(&mut self, place: usize, error: &FabricError, revocations_go_on: bool) {
        let Some(line) = self.lines.get_mut(place) else { return };
        line.unsent.clear();
        line.owed = 0;
        line.collected = Collected::default();
        if !revocations_go_on {
            line.revocations = 0;
        }
        let goes_on = |part: &Part| revocations_go_on && matches!(part.kind, PartKind::Revoke(_));
        let theirs = self.parts.iter().filter(|(_, part)| part.place == place && !goes_on(part));
        let failed: Vec<u64> = theirs.map(|(sequence, _)| sequence).collect();
        for sequence in failed {
            if let Some(part) = self.parts.remove(sequence) {
                self.settle(part.flight, Err(error.clone()));
            }
        }
    }

    /// Records the result of a part.
    fn settle(&mut self, key: u64, result: Result<(), FabricError>) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        flight.parts = flight.parts.saturating_sub(1);
        if let Err(error) = result {
            flight.error.get_or_insert_with(|| Box::new(error));
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
        if let State::Attaching(pending) = &line.state {
            match pending.poll().map(|answer| answer.and_then(|answer| attached(control, answer))) {
                None => {}
                Some(Ok((session, address))) => line.state = State::Attached { session, address },
                Some(Err(error)) => {
                    line.state = State::Idle;
                    self.fail(place, &error.of_node(node), true);
                    return;
                }
            }
        }
        match &line.state {
            State::Attached { session, address } if line.greeted.contains(session) => {
                line.greeted.clear();
                match self.worker.connect(address) {
                    Ok(ep) => {
                        line.state = State::Up { ep, session: *session };
                        self.push(place);
                    }
                    Err(reason) => {
                        line.state = State::Idle;
                        self.fail(place, &FabricError::Unreachable { node, reason }, true);
                    }
                }
            }
            State::Broken(since, why) if since.elapsed() > REASON_TIME => {
                let error = FabricError::Unreachable { node, reason: format!("UCX lost the connection: {why}") };
                line.state = State::Idle;
                // The node would take the client for lost, whatever it attaches next. Nothing is left to do if it is.
                self.worker.address().into_iter().for_each(|address| control.detach(address));
                self.fail(place, &error, true);
            }
            State::Idle | State::Attaching(_) | State::Attached { .. } | State::Up { .. } | State::Broken(..) => {}
        }
    }

    /// Revocations that have been answered.
    fn poll_revocations(&mut self, place: usize) {
        let Some(line) = self.lines.get_mut(place).filter(|line| line.revocations > 0) else { return };
        let node = line.node;
        let poll = |(sequence, part): (u64, &Part)| match &part.kind {
            PartKind::Revoke(pending) if part.place == place => Some((sequence, pending.poll()?)),
            _ => None,
        };
        let answered: Vec<_> = self.parts.iter().filter_map(poll).collect();
        line.revocations = line.revocations.saturating_sub(answered.len());
        for (sequence, answer) in answered {
            let result = match answer {
                Ok(Message::Revoked) => Ok(()),
                Ok(_) => Err(FabricError::CannotRevoke("the memory node gave a wrong answer".to_owned())),
                Err(error) => Err(error.of_node(node)),
            };
            if let Some(part) = self.parts.remove(sequence) {
                self.settle(part.flight, result);
            }
        }
    }

    /// Takes in one message: a greeting, or answers. Returns whether it has completed any batch.
    fn take_in(&mut self, message: &[u8], completions: &mut dyn Completions) -> bool {
        match Greeting::decode(message) {
            Some(Greeting { session, node }) => {
                if let Some(line) = self.lines.get_mut(node.index()) {
                    line.greet(session);
                }
                false
            }
            None => self.answers(message, completions),
        }
    }

    fn answers(&mut self, reply: &[u8], completions: &mut dyn Completions) -> bool {
        self.traffic.answers += 1;
        let mut any = false;
        let mut rest = Reader::new(reply);
        while let Ok(Some(answer)) = Answer::take(&mut rest) {
            if let Some(Flight { id, chain, error, .. }) = self.answer(answer) {
                completions.complete(id, chain, error.map_or(Ok(()), |error| Err(*error)));
                any = true;
            }
        }
        any
    }

    /// Puts an answer into its batch. Returns the batch if this was the last of its answers.
    fn answer(&mut self, answer: Answer<'_>) -> Option<Flight> {
        // A revocation is answered over the control channel alone.
        let is_owed = |part: &Part| matches!(part.kind, PartKind::Data);
        let Part { flight, place, .. } = self.parts.remove_if(answer.sequence, is_owed)?;
        let line = self.lines.get_mut(place)?;
        line.answered += 1;
        line.owed = line.owed.saturating_sub(1);
        let (node, len) = (line.node, line.len);
        if line.answered == 2 {
            self.note_transports(node);
        }
        let flown = self.flights.get_mut(flight)?;
        let error = match answer.status {
            Status::Done => chain::fill(&mut flown.chain, node, answer).err().map(|why| chain::senseless(node, why)),
            status => Some(chain::refusal(status, chain::refused_verb(&flown.chain, node, answer.verb), node, len)),
        };
        if let Some(error) = error {
            flown.error.get_or_insert_with(|| Box::new(error));
        }
        flown.parts = flown.parts.saturating_sub(1);
        if flown.parts > 0 {
            return None;
        }
        self.flights.remove(flight)
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
        self.sweeps = self.sweeps.wrapping_add(1);
        for place in 0..self.lines.len() {
            let late = |part: &Part| part.place == place && self.sweeps.wrapping_sub(part.sweeps) > SWEEPS;
            if self.parts.iter().any(|(_, part)| late(part))
                && let Some(line) = self.lines.get(place)
            {
                let error = FabricError::Deadline { node: line.node, after: FORGET };
                self.fail(place, &error, false);
            }
        }
    }
}

impl Transport for Connection {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        if let Err(error) = self.check(&chain) {
            return Post::Done(chain, Err(error));
        }
        let revokes = |verb: &Verb| match &verb.kind {
            VerbKind::Revoke(identity) => Some((verb.node().index(), *identity)),
            _ => None,
        };
        // Without one, which is the rule, this allocates nothing.
        let victims: Vec<(usize, Identity)> = chain.iter().filter_map(revokes).collect();
        let parts = self.nodes.len() + victims.len();
        let key = self.flights.insert(Flight { id, chain, parts, error: None });
        for (place, victim) in victims {
            let asked = self.client.controls().get(place).map(|control| control.revoke(victim));
            if let Some(asked) = asked {
                self.open_part(place, key, PartKind::Revoke(Box::new(asked)));
            }
        }
        if parts == 0 {
            self.completed.push(key);
        }
        let nodes = std::mem::take(&mut self.nodes);
        for (place, sizes) in &nodes {
            let sequence = self.open_part(*place, key, PartKind::Data);
            self.collect(*place, (key, sequence), *sizes);
            if self.lines.get(*place).is_some_and(|line| !line.unsent.is_empty()) {
                self.push(*place);
            }
        }
        self.nodes = nodes;
        Post::Pending
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.collects) {
            (0..self.lines.len()).for_each(|place| self.send(place));
        }
    }

    fn collects(&self) -> bool {
        self.collects
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        self.flush();
        self.worker.progress();
        let mut any = false;
        while let Some(message) = self.worker.received() {
            any |= self.take_in(&message, completions);
            self.worker.recycle(message);
        }
        while let Some((ep, why)) = self.worker.failed() {
            self.lost(ep, why);
        }
        for place in 0..self.lines.len() {
            self.advance(place);
            self.poll_revocations(place);
        }
        // A connection that has just been made sends what waited for it.
        self.flush();
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ROUNDS) && self.swept.elapsed() > FORGET / SWEEPS {
            self.sweep();
        }
        any |= !self.completed.is_empty();
        let mut completed = std::mem::take(&mut self.completed);
        for key in completed.drain(..) {
            if let Some(flight) = self.flights.remove(key) {
                completions.complete(flight.id, flight.chain, flight.error.map_or(Ok(()), |error| Err(*error)));
            }
        }
        self.completed = completed;
        any
    }

    fn now(&self) -> Duration {
        self.shared.epoch.elapsed()
    }
    fn posted_at(&self) -> Option<Duration> {
        None
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
        self.flush();
        for (line, control) in self.lines.iter().zip(self.client.controls()) {
            match line.state {
                State::Attached { session, .. } | State::Up { session, .. } => {
                    control.detach(session.to_le_bytes().to_vec());
                }
                // The number is not known yet. Without a release the node would take the client for lost.
                State::Attaching(_) => self.worker.address().into_iter().for_each(|address| control.detach(address)),
                State::Idle | State::Broken(..) => {}
            }
        }
    }
}
