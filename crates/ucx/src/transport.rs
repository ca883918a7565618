//! One worker's connections to all memory nodes.
//!
//! Invariants: batches to one node are collected, in posting order, and sent as one message when the endpoint is
//! flushed or the message is full; the verbs of a batch that go to one node are in one message; a batch is checked whole
//! (nodes, bounds, alignment, rights, sizes) before any of it is collected; it completes once all its nodes have
//! answered, or with the first error, whatever becomes of the batches that it shared messages with; when a node is
//! lost, its unanswered batches fail with a reason that names the node, and the next batch to it attaches anew; nothing
//! here blocks; UCX is told to connect to a node when that node's own connection is there, and not before (docs/bugs/192).
//! Once warm, a batch allocates nothing, unless it goes to more than eight nodes or revokes clients.

use crate::chain::{self, FULL_BATCHES, Sizes};
use crate::flights::{Flight, Flights, Several, Waits, sequence};
use crate::intake::Intake;
use crate::line::{Collected, Line, State, attached};
use crate::ucp::{Context, EpId, Worker};
use farindex_fabric::transport::{Completions, Post, Traffic};
use farindex_fabric::{Capabilities, Chain, FabricError, NodeId, Transport, Verb, VerbKind};
use farindex_remote::control::Message;
use farindex_remote::{Cluster, ClusterClient, Control, ControlError, Link, Welcome};
use smallvec::SmallVec;
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

/// One worker's connections.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    client: Arc<ClusterClient>,
    worker: Worker,
    lines: Vec<Line>,
    flights: Flights,
    /// Batches that have ended otherwise than by the last of their answers: they failed, or waited for revocations.
    completed: Vec<u64>,
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
            flights: Flights::default(),
            completed: Vec::new(),
            traffic: Traffic::default(),
            collects: false,
            rounds: 0,
            sweeps: 0,
            swept: Instant::now(),
        })
    }

    /// Checks whether a batch can be sent. Returns the node that all its verbs go to, and its sizes, if there is just one and
    /// no revocation.
    #[inline]
    fn check(&self, chain: &Chain) -> Result<Option<(usize, Sizes)>, FabricError> {
        let first = chain.first().map_or(NodeId::new(0), Verb::node);
        let mut to_one = !chain.is_empty();
        let mut sizes = Sizes::of_no_verbs();
        for verb in chain {
            let node = verb.node();
            let line = self.lines.get(node.index()).ok_or(FabricError::NoSuchNode(node))?;
            line.check(verb, self.shared.capabilities)?;
            to_one &= node == first && !matches!(verb.kind, VerbKind::Revoke(_));
            sizes.add(verb);
        }
        // If all of it fits one message, so does what goes to one of its nodes.
        if !sizes.fit() {
            self.check_sizes(chain)?;
        }
        Ok(to_one.then_some((first.index(), sizes)))
    }

    #[cold]
    fn check_sizes(&self, chain: &Chain) -> Result<(), FabricError> {
        for line in &self.lines {
            let sizes = chain::sizes(chain, line.node);
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

    /// Posts a batch that goes to one node.
    #[inline]
    fn post_to_one(&mut self, id: u64, chain: Chain, place: usize, sizes: Sizes) -> Post {
        let Some(line) = self.lines.get_mut(place) else { return refuse(chain) };
        match self.flights.begin(id, chain, self.sweeps, Waits::One(line.node)) {
            Ok(number) => {
                line.owed += 1;
                self.collect(place, number, sizes);
                Post::Pending
            }
            Err(chain) => refuse(chain),
        }
    }

    /// Posts a batch that goes to several nodes, revokes clients, or has no verbs.
    #[cold]
    fn post_to_several(&mut self, id: u64, chain: Chain) -> Post {
        let sizes = self.lines.iter().enumerate().map(|(place, line)| (place, chain::sizes(&chain, line.node)));
        let sizes: SmallVec<[_; 8]> = sizes.filter(|(_, sizes)| sizes.verbs > 0).collect();
        let mut waits = Several::default();
        waits.nodes.extend(sizes.iter().map(|(place, _)| *place as u16));
        for verb in &chain {
            let place = verb.node().index();
            if let VerbKind::Revoke(victim) = &verb.kind
                && let (Some(control), Some(line)) = (self.client.controls().get(place), self.lines.get_mut(place))
            {
                line.revocations += 1;
                waits.revocations.push((place, control.revoke(*victim)));
            }
        }
        let has_ended = waits.is_empty();
        let number = match self.flights.begin(id, chain, self.sweeps, Waits::Several(waits)) {
            Ok(number) => number,
            Err(chain) => return refuse(chain),
        };
        if has_ended {
            self.completed.push(number);
        }
        for (place, sizes) in sizes {
            if let Some(line) = self.lines.get_mut(place) {
                line.owed += 1;
            }
            self.collect(place, number, sizes);
        }
        Post::Pending
    }

    /// Puts what a batch has for one node into the message to it. Without a connection it waits for one, which is asked for.
    #[inline]
    fn collect(&mut self, place: usize, number: u64, sizes: Sizes) {
        let Some(line) = self.lines.get_mut(place) else { return };
        let State::Up { session, .. } = line.state else {
            line.unsent.push(number);
            return self.push(place);
        };
        if line.collected.batches > 0 && !line.collected.has_room_for(sizes) {
            self.send(place);
        }
        let (Some(line), Some(flight)) = (self.lines.get_mut(place), self.flights.get_mut(number)) else { return };
        if !matches!(line.state, State::Up { .. }) {
            // It was lost just now: the batch fails when the reason is known.
            return line.unsent.push(number);
        }
        let collected = &mut line.collected;
        if collected.batches == 0 {
            collected.bytes = self.worker.buffer();
        }
        chain::encode(&flight.chain, line.node, session, sequence(number, place), &mut collected.bytes);
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
                for number in std::mem::take(&mut line.unsent) {
                    let Some(flight) = self.flights.get_mut(number) else { continue };
                    let sizes = chain::sizes(&flight.chain, node);
                    self.collect(place, number, sizes);
                }
            }
            State::Attaching(_) | State::Attached { .. } | State::Broken(..) => {}
        }
    }

    /// Fails all batches that wait for a node; those that wait for revocations as well, unless these go on.
    fn fail(&mut self, place: usize, error: &FabricError, revocations_go_on: bool) {
        let Some(line) = self.lines.get_mut(place) else { return };
        line.unsent.clear();
        line.owed = 0;
        line.collected = Collected::default();
        if !revocations_go_on {
            line.revocations = 0;
        }
        let theirs = self.flights.iter().filter(|(_, flight)| flight.is_kept_by(place, revocations_go_on));
        let failed: Vec<u64> = theirs.map(|(number, _)| number).collect();
        for number in failed {
            let Some(flight) = self.flights.get_mut(number) else { continue };
            flight.fails(error.clone());
            if flight.give_up(place, revocations_go_on) {
                self.completed.push(number);
            }
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
        let numbers: Vec<u64> = self.flights.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let Some(flight) = self.flights.get_mut(number) else { continue };
            let answers = flight.revoked(place);
            line.revocations = line.revocations.saturating_sub(answers.len());
            let has_ended = !answers.is_empty() && flight.has_ended();
            for answer in answers {
                match answer {
                    Ok(Message::Revoked) => {}
                    Ok(_) => {
                        flight.fails(FabricError::CannotRevoke("the memory node gave a wrong answer".to_owned()));
                    }
                    Err(error) => flight.fails(error.of_node(node)),
                }
            }
            if has_ended {
                self.completed.push(number);
            }
        }
    }

    /// Asks UCX which transports it uses, once it can tell.
    fn note_transports(&mut self, place: usize) {
        let Some(line) = self.lines.get_mut(place).filter(|line| line.answered > 1 && !line.noted) else { return };
        let State::Up { ep, .. } = line.state else { return };
        line.noted = true;
        let found = self.worker.transports(ep);
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
            let is_late =
                |flight: &Flight| self.sweeps.wrapping_sub(flight.sweeps) > SWEEPS && flight.is_kept_by(place, false);
            if self.flights.iter().any(|(_, flight)| is_late(flight))
                && let Some(line) = self.lines.get(place)
            {
                let error = FabricError::Deadline { node: line.node, after: FORGET };
                self.fail(place, &error, false);
            }
        }
    }
}

/// More batches are in flight than have numbers.
#[cold]
fn refuse(chain: Chain) -> Post {
    Post::Done(chain, Err(FabricError::Settings("too many batches are in flight: wait for some of them".to_owned())))
}

impl Transport for Connection {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        match self.check(&chain) {
            Ok(Some((place, sizes))) => self.post_to_one(id, chain, place, sizes),
            Ok(None) => self.post_to_several(id, chain),
            Err(error) => Post::Done(chain, Err(error)),
        }
    }

    fn connections(&self, node: NodeId) -> u64 {
        self.client.controls().get(node.index()).map_or(0, Control::connections)
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
        let Connection { worker, lines, flights, traffic, .. } = self;
        let mut intake = Intake { lines, flights, traffic, completions, any: false };
        worker.progress_with(&mut |message| intake.take(message));
        let mut any = intake.any;
        while let Some((ep, why)) = self.worker.failed() {
            self.lost(ep, why);
        }
        for place in 0..self.lines.len() {
            self.advance(place);
            self.poll_revocations(place);
            self.note_transports(place);
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
            self.flights.end(key, completions);
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
