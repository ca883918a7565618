//! Crashes, freezes, revocations, and memory nodes that fail.
//!
//! Invariants:
//!
//! - A client crashes between two polls of its coroutines: at a verb boundary, with the verbs that it has posted in
//!   flight. Afterwards it is never polled and receives no completion. Its verbs in flight may take effect or not,
//!   early or late, but a verb that takes effect has before it everything that G4 orders before it (N7).
//! - After a revocation has taken effect on a node, no verb of that client takes effect there (G6).

use crate::client_state::{Batches, Crash, CrashInBatch, CrashOutcome, RunState};
use crate::flight::Loss;
use crate::queue::EventKind;
use crate::report::LogEvent;
use crate::swarm::Swarm;
use crate::watch::note_store;
use crate::world::{Mode, World};
use farindex_fabric::{Chain, Verb, VerbKind};

impl World {
    /// Draws whether the client crashes or freezes at this post, which has just been scheduled.
    pub(crate) fn draw_crash_or_freeze(&mut self, client: u32, flight: u32, verbs: u64) {
        let state = &mut self.clients[client as usize];
        let before = state.verbs - verbs;
        let mut crash = None;
        if let Some(CrashInBatch { left, of, outcome }) = &mut state.crash_in_batch
            && of.holds(&self.flights[flight as usize].chain)
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                crash = Some(Crash { outcome: *outcome, at: Some((flight, self.crash_rng.below(verbs) as u32)) });
            }
        }
        if let Some((at, outcome)) = state.crash_at
            && at <= state.verbs
        {
            let last = at.saturating_sub(before + 1) as u32;
            crash = Some(Crash { outcome, at: Some((flight, last)) });
        } else if state.crash_odds > 0 && crash.is_none() {
            for verb in 0..verbs {
                if self.crash_rng.chance(state.crash_odds) {
                    crash = Some(Crash { outcome: CrashOutcome::Drawn, at: Some((flight, verb as u32)) });
                    break;
                }
            }
        }
        let (odds, exponent) = state.freeze_odds;
        if let Some(crash) = crash {
            self.crash(client, crash);
        } else if odds > 0 && self.crash_rng.chance(odds) {
            let pause = self.crash_rng.tail(exponent);
            self.freeze(client, self.now.saturating_add(pause));
        }
    }

    /// Crashes a client: at once, or, if its coroutine is being polled, when that coroutine next waits.
    pub(crate) fn crash(&mut self, client: u32, crash: Crash) {
        if self.has_crashed(client) || client == 0 {
            return;
        }
        if self.current == Some(client) {
            self.clients[client as usize].crashing.get_or_insert(crash);
        } else {
            self.crash_now(client, crash);
        }
    }

    fn crash_now(&mut self, client: u32, crash: Crash) {
        let state = &mut self.clients[client as usize];
        state.run_state = RunState::Crashed;
        state.crashing = None;
        state.parked.clear();
        self.open_tasks -= std::mem::take(&mut state.open_tasks);
        self.stats.crashes += 1;
        self.trace.mix(self.now ^ u64::from(client) << 32 ^ 0xdead);
        self.log.add(self.now, client, LogEvent::Crashed);
        for flight in 0..self.flights.len() as u32 {
            let state = &self.flights[flight as usize];
            if state.events > 0 && self.client_of(state.conn) == client {
                self.apply_outcome(flight, crash);
            }
        }
    }

    /// Applies the crash's outcome to one flight of the crashed client.
    fn apply_outcome(&mut self, flight: u32, crash: Crash) {
        let (linger, exponent) = match &self.mode {
            Mode::Adversary(Swarm { linger, linger_exponent, .. }) => (*linger, *linger_exponent),
            Mode::Model(_) => (0, 0),
        };
        let now = self.now;
        let World { flights, crash_rng, stats, pending, .. } = self;
        let last_sent = match crash.at {
            Some((at, last)) if at == flight => Some(last),
            _ => None,
        };
        let mut lost = false;
        for lane in &mut flights[flight as usize].lanes {
            let outcome = match crash.outcome {
                CrashOutcome::Drawn => match crash_rng.below(5) {
                    0 => CrashOutcome::Lost,
                    1 => CrashOutcome::Landed,
                    2 => CrashOutcome::Prefix,
                    _ => CrashOutcome::Drawn,
                },
                outcome => outcome,
            };
            match outcome {
                CrashOutcome::Lost => {
                    lane.loss.get_or_insert(Loss::Crash);
                    lost = true;
                }
                CrashOutcome::Landed => {}
                CrashOutcome::Prefix => lane.keep = last_sent.unwrap_or(u32::MAX),
                CrashOutcome::Drawn => lane.cut = lane.cut.min(crash_rng.within(now, lane.end.max(now))),
            }
            stats.cut +=
                u64::from(lane.end > now && (lane.loss.is_some() || lane.cut < lane.end || lane.keep != u32::MAX));
            if crash.outcome == CrashOutcome::Drawn
                && lane.end > now
                && lane.loss.is_none()
                && lane.cut > now
                && crash_rng.chance(linger)
            {
                lane.delay = crash_rng.tail(exponent);
                stats.lingering += 1;
            }
        }
        if lost {
            let state = &flights[flight as usize];
            pending.retain(|store| {
                store.flight != flight || state.lanes[state.lane_of(store.verb) as usize].loss.is_none()
            });
        }
    }

    /// Ends the poll of a client's coroutine: a crash that was decided on meanwhile takes effect.
    pub(crate) fn end_poll(&mut self, client: u32) {
        self.current = None;
        if let Some(crash) = self.clients[client as usize].crashing {
            self.crash_now(client, crash);
        }
    }

    /// Stops a client until a moment (`u64::MAX`: until it is resumed).
    pub(crate) fn freeze(&mut self, client: u32, until: u64) {
        if self.has_crashed(client) || client == 0 {
            return;
        }
        self.clients[client as usize].run_state = RunState::Frozen(until);
        self.trace.mix(self.now ^ u64::from(client) << 32 ^ 0xc01d);
        self.log.add(self.now, client, LogEvent::Frozen);
        if until < u64::MAX {
            self.queue.push(until, EventKind::Resume { client });
        }
    }

    /// Resumes a client whose freeze is over.
    pub(crate) fn resume_if_due(&mut self, client: u32) {
        if let RunState::Frozen(until) = self.clients[client as usize].run_state
            && until <= self.now
        {
            self.resume(client);
        }
    }

    pub(crate) fn resume(&mut self, client: u32) {
        let state = &mut self.clients[client as usize];
        if matches!(state.run_state, RunState::Frozen(_)) {
            state.run_state = RunState::Running;
            self.wakes.append(&mut state.parked);
            self.log.add(self.now, client, LogEvent::Resumed);
        }
    }

    /// Revokes a client on a node: verbs of it that have not taken effect there never will.
    pub(crate) fn revoke(&mut self, node: usize, token: u64) {
        self.note_revocation(token);
        self.nodes[node].revoked.insert(token);
        let World { flights, conns, stats, pending, .. } = self;
        for state in flights.iter_mut() {
            // A flight that has completed with an error may still have verbs that take effect later.
            if state.events == 0 || conns[state.conn as usize].token != token {
                continue;
            }
            for lane in state.lanes.iter_mut().filter(|lane| lane.node == node) {
                lane.loss = Some(Loss::Revoked);
                stats.revoked += 1;
            }
        }
        let token_of = |flight: u32| conns[flights[flight as usize].conn as usize].token;
        pending.retain(|store| store.node != node || token_of(store.flight) != token);
    }

    /// Drops the lanes of a new flight to nodes on which its client is revoked.
    pub(crate) fn drop_if_revoked(&mut self, flight: u32) {
        let state = &mut self.flights[flight as usize];
        let token = self.conns[state.conn as usize].token;
        for lane in &mut state.lanes {
            let revoked = &self.nodes[lane.node].revoked;
            if !revoked.is_empty() && revoked.contains(&token) {
                lane.loss = Some(Loss::Revoked);
            }
        }
    }

    /// Fails a memory node. `silent`: its clients get no answer and depend on their deadlines; `forgets`: its memory is
    /// zeroed.
    pub(crate) fn fail_node(&mut self, node: usize, silent: bool, forgets: bool) {
        let Some(state) = self.nodes.get_mut(node) else {
            return;
        };
        state.up = false;
        state.silent = silent;
        if forgets {
            state.words.fill(0);
            note_store(&mut self.watching, node, 0..state.words.len());
            self.pending.retain(|store| store.node != node);
        }
        self.trace.mix(self.now ^ (node as u64) << 32 ^ 0x90e5);
    }

    /// Makes a failed memory node available again.
    pub(crate) fn restore_node(&mut self, node: usize) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.up = true;
            state.silent = false;
        }
    }
}

impl Batches {
    /// Is this batch one of them?
    fn holds(self, chain: &Chain) -> bool {
        let writes = chain.iter().any(|verb| matches!(verb.kind, VerbKind::Write(_)));
        let atomic = |verb: &Verb| matches!(verb.kind, VerbKind::Cas { .. } | VerbKind::Faa { .. });
        writes
            && match self {
                Batches::Changes => chain.len() >= 3 && chain.iter().any(atomic),
                Batches::Long(verbs) => chain.len() >= verbs,
            }
    }
}
