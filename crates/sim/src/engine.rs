//! Posts batches and carries out events.
//!
//! Invariant: events are carried out one at a time, each at its own moment.

use crate::adversary;
use crate::flight::Flight;
use crate::queue::{Event, EventKind};
use crate::report::{LogEvent, verb_name};
use crate::world::{Mode, World};
use farindex_fabric::transport::Post;
use farindex_fabric::{Chain, FabricError, VerbKind};

impl World {
    /// Takes a chain from an endpoint and schedules it.
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
        self.record_post(client, &chain);
        let flight = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() as u32 - 1
        });
        self.flights[flight as usize].open(conn, id, chain, self.now);
        self.latest = Some(flight);
        self.drop_if_revoked(flight);
        self.schedule(flight);
        self.draw_crash_or_freeze(client, flight, verbs);
        self.stall_if_due(client, flight, verbs);
        Post::Pending
    }

    /// Checks that this chain can be carried out.
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

    fn record_post(&mut self, client: u32, chain: &Chain) {
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
            self.log.add(now, client, LogEvent::Posted(verb_name(first), first.ptr, chain.len()));
        }
    }

    fn schedule(&mut self, flight: u32) {
        let World { mode, rng, flights, queue, conns, clients, stats, now, .. } = self;
        let state = &mut flights[flight as usize];
        let conn = &mut conns[state.conn as usize];
        match mode {
            Mode::Adversary(swarm) => {
                // The harness sees delays, but no errors.
                let client = &clients[conn.client as usize];
                let errors = (conn.client != 0).then_some(swarm.error.max(client.error_odds));
                let lag_odds = client.lag_odds;
                let mut scheduler = adversary::Scheduler { swarm, rng, queue, stats, now: *now };
                scheduler.schedule(flight, state, &mut conn.skew, errors);
                if state.fails {
                    adversary::lag(lag_odds, rng, *now, state, stats);
                }
            }
            Mode::Model(cluster) => {
                cluster.send(*now, flight, state, &mut clients[conn.client as usize].cpu, queue);
            }
        }
    }

    /// No coroutine awaits this flight, which was posted just now, so it may take effect as late as the adversary
    /// likes. A delayed flight has no completion.
    pub(crate) fn detached(&mut self, conn: u32, id: u64) {
        let World { mode, rng, flights, stats, latest, .. } = self;
        let Mode::Adversary(swarm) = mode else {
            return;
        };
        let flight = latest.and_then(|latest| flights.get_mut(latest as usize));
        if let Some(flight) = flight.filter(|flight| flight.events > 0 && (flight.conn, flight.id) == (conn, id)) {
            adversary::delay_detached(swarm, rng, flight, stats);
        }
    }

    /// No coroutine awaits this flight any more. What has not taken effect of it may do so much later, and it completes after that.
    pub(crate) fn abandoned(&mut self, conn: u32, id: u64) {
        let World { mode, rng, flights, stats, conns, clients, now, .. } = self;
        let lag_odds = clients[conns[conn as usize].client as usize].lag_odds;
        let found = flights.iter_mut().find(|flight| flight.events > 0 && (flight.conn, flight.id) == (conn, id));
        if let (Mode::Adversary(_), Some(flight)) = (mode, found.filter(|flight| !flight.fails)) {
            adversary::lag(lag_odds, rng, *now, flight, stats);
        }
    }

    /// Carries out the next event. Returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(event) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(event.at);
        self.stats.events += 1;
        if self.is_held(&event) {
            return true;
        }
        match event.kind {
            EventKind::Wake { conn } => {
                if !self.has_crashed(self.client_of(conn)) {
                    self.ready.push(conn);
                }
            }
            EventKind::Resume { client } => {
                self.pause = true;
                self.resume_if_due(client);
            }
            EventKind::EndStall { client, stall } => {
                self.pause = true;
                self.end_stall(client, Some(stall));
            }
            EventKind::Complete { flight } => {
                if self.completes_later(event, flight) {
                    return true;
                }
                self.poll_completion(flight);
                self.complete(flight);
            }
            _ => {
                if !self.take_effect(event) {
                    return true;
                }
            }
        }
        if let Some(flight) = event.kind.flight() {
            self.close_event(flight);
        }
        if self.watching.is_some() {
            self.watch_slots();
        }
        true
    }

    /// Puts a completion off that comes before the effects of its flight, which lags.
    fn completes_later(&mut self, event: Event, flight: u32) -> bool {
        let state = &self.flights[flight as usize];
        let later = state.lags && !state.fails && state.events > 1;
        if later {
            let last = state.lanes.iter().map(|lane| lane.end.saturating_add(lane.delay)).max();
            self.queue.push(last.unwrap_or_default().max(self.now) + 1_000, event.kind);
        }
        later
    }

    fn close_event(&mut self, flight: u32) {
        let state = &mut self.flights[flight as usize];
        state.events -= 1;
        if state.events == 0 {
            state.chain = Chain::new();
            self.free.push(flight);
        }
    }
}

fn unsupported(verb: &'static str) -> FabricError {
    FabricError::Unsupported { fabric: "sim", verb }
}
