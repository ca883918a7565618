//! Deaths, freezes, revocations, and memory nodes that vanish.
//!
//! Invariants: a client dies between two polls of its coroutines: at a verb boundary, with what it has posted in flight.
//! It is never polled again and nothing reaches it; what it had in flight lands or not, soon or late, but a verb that
//! lands has everything before it that G4 puts there (N7). What a revocation stops is stopped for good: when it has
//! taken effect on a node, nothing of that client does there any more (G6).

use crate::ODDS;
use crate::flight::Loss;
use crate::queue::What;
use crate::report::Happened;
use crate::swarm::Swarm;
use crate::world::{Death, Life, Mode, World};
use farindex_fabric::{Chain, Verb, VerbKind};

/// What becomes of the verbs that a client had in flight when it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashOutcome {
    /// None of them lands any more.
    Lost,
    /// All of them land, when they would have.
    Landed,
    /// Of the batch it was posting, the verbs up to the one it died at land, and none after; of the others, all.
    Prefix,
    /// The seed decides: any of the above, a cut at any moment, and perhaps much later.
    Drawn,
}

impl World {
    /// Does this post make its client die or freeze?
    pub(crate) fn draw_crash_or_freeze(&mut self, client: u32, flight: u32, verbs: u64) {
        let state = &mut self.clients[client as usize];
        let before = state.verbs - verbs;
        let mut death = None;
        if let Some((left, crash_outcome)) = &mut state.crash_in_batch
            && changes_much(&self.flights[flight as usize].chain)
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                death = Some(Death {
                    crash_outcome: *crash_outcome,
                    at: Some((flight, self.crash_rng.below(verbs) as u32)),
                });
            }
        }
        if let Some((at, crash_outcome)) = state.crash_at
            && at <= state.verbs
        {
            let last = at.saturating_sub(before + 1) as u32;
            death = Some(Death { crash_outcome, at: Some((flight, last)) });
        } else if state.crash_odds > 0 && death.is_none() {
            for verb in 0..verbs {
                if self.crash_rng.chance(state.crash_odds) {
                    death = Some(Death { crash_outcome: CrashOutcome::Drawn, at: Some((flight, verb as u32)) });
                    break;
                }
            }
        }
        let (odds, exponent) = state.freeze_odds;
        if let Some(death) = death {
            self.die(client, death);
        } else if odds > 0 && self.crash_rng.chance(odds) {
            let pause = self.crash_rng.tail(exponent);
            self.freeze(client, self.now.saturating_add(pause));
        }
    }

    /// Decides on a death; it comes at once, or when the client's coroutine next waits.
    pub(crate) fn die(&mut self, client: u32, death: Death) {
        if self.has_crashed(client) || client == 0 {
            return;
        }
        if self.current == Some(client) {
            self.clients[client as usize].dying.get_or_insert(death);
        } else {
            self.bury(client, death);
        }
    }

    fn bury(&mut self, client: u32, death: Death) {
        let state = &mut self.clients[client as usize];
        state.life = Life::Dead;
        state.dying = None;
        state.parked.clear();
        self.open_tasks -= std::mem::take(&mut state.open_tasks);
        self.stats.crashes += 1;
        self.trace.mix(self.now ^ u64::from(client) << 32 ^ 0xdead);
        self.log.add(self.now, client, Happened::Died);
        for flight in 0..self.flights.len() as u32 {
            let state = &self.flights[flight as usize];
            if state.events > 0 && self.client_of(state.conn) == client {
                self.settle_estate(flight, death);
            }
        }
    }

    /// What becomes of one flight of a client that died.
    fn settle_estate(&mut self, flight: u32, death: Death) {
        let (linger, exponent) = match &self.mode {
            Mode::Adversary(Swarm { linger, linger_exponent, .. }) => (*linger, *linger_exponent),
            Mode::Model(_) => (0, 0),
        };
        let now = self.now;
        let World { flights, crash_rng, stats, pending, .. } = self;
        let cut_off = match death.at {
            Some((at, last)) if at == flight => Some(last),
            _ => None,
        };
        let mut lost = false;
        for lane in &mut flights[flight as usize].lanes {
            let crash_outcome = match death.crash_outcome {
                CrashOutcome::Drawn => match crash_rng.below(5) {
                    0 => CrashOutcome::Lost,
                    1 => CrashOutcome::Landed,
                    2 => CrashOutcome::Prefix,
                    _ => CrashOutcome::Drawn,
                },
                crash_outcome => crash_outcome,
            };
            match crash_outcome {
                CrashOutcome::Lost => {
                    lane.loss.get_or_insert(Loss::Death);
                    lost = true;
                }
                CrashOutcome::Landed => {}
                CrashOutcome::Prefix => lane.keep = cut_off.unwrap_or(u32::MAX),
                CrashOutcome::Drawn => lane.cut = lane.cut.min(crash_rng.within(now, lane.end.max(now))),
            }
            stats.cut +=
                u64::from(lane.end > now && (lane.loss.is_some() || lane.cut < lane.end || lane.keep != u32::MAX));
            if death.crash_outcome == CrashOutcome::Drawn
                && lane.end > now
                && lane.loss.is_none()
                && lane.cut > now
                && crash_rng.chance(linger)
            {
                lane.put_off = crash_rng.tail(exponent);
                stats.lingering += 1;
            }
        }
        if lost {
            let lanes = &flights[flight as usize];
            pending
                .retain(|half| half.flight != flight || lanes.lanes[lanes.lane_of(half.verb) as usize].loss.is_none());
        }
    }

    /// The client's coroutine has been polled: what was decided meanwhile comes true.
    pub(crate) fn leave(&mut self, client: u32) {
        self.current = None;
        if let Some(death) = self.clients[client as usize].dying {
            self.bury(client, death);
        }
    }

    /// Stops a client until a moment (`u64::MAX`: until it is thawed).
    pub(crate) fn freeze(&mut self, client: u32, until: u64) {
        if self.has_crashed(client) || client == 0 {
            return;
        }
        self.clients[client as usize].life = Life::Frozen(until);
        self.trace.mix(self.now ^ u64::from(client) << 32 ^ 0xc01d);
        self.log.add(self.now, client, Happened::Frozen);
        if until < u64::MAX {
            self.queue.push(until, What::Resume { client });
        }
    }

    pub(crate) fn unfreeze_due(&mut self, client: u32) {
        if let Life::Frozen(until) = self.clients[client as usize].life
            && until <= self.now
        {
            self.resume(client);
        }
    }

    pub(crate) fn resume(&mut self, client: u32) {
        let state = &mut self.clients[client as usize];
        if matches!(state.life, Life::Frozen(_)) {
            state.life = Life::Running;
            self.wakes.append(&mut state.parked);
            self.log.add(self.now, client, Happened::Resumed);
        }
    }

    /// Shuts a client out of a node: what has not landed never will.
    pub(crate) fn revoke(&mut self, node: usize, token: u64) {
        self.nodes[node].revoked.insert(token);
        let World { flights, conns, stats, pending, .. } = self;
        for state in flights.iter_mut() {
            // A flight that has completed with an error may still have verbs to land.
            if state.events == 0 || conns[state.conn as usize].token != token {
                continue;
            }
            for lane in state.lanes.iter_mut().filter(|lane| lane.node == node) {
                lane.loss = Some(Loss::Revoked);
                stats.revoked += 1;
            }
        }
        pending.retain(|half| half.node != node || conns[flights[half.flight as usize].conn as usize].token != token);
    }

    /// A flight that is posted after its client was shut out gets nowhere on those nodes.
    pub(crate) fn shut_out(&mut self, flight: u32) {
        let state = &mut self.flights[flight as usize];
        let token = self.conns[state.conn as usize].token;
        for lane in &mut state.lanes {
            let revoked = &self.nodes[lane.node].revoked;
            if !revoked.is_empty() && revoked.contains(&token) {
                lane.loss = Some(Loss::Revoked);
            }
        }
    }

    /// A memory node vanishes. `silent`: its clients get no answer, only their deadlines; `forgets`: its memory is lost.
    pub(crate) fn vanish(&mut self, node: usize, silent: bool, forgets: bool) {
        let Some(state) = self.nodes.get_mut(node) else {
            return;
        };
        state.up = false;
        state.silent = silent;
        if forgets {
            state.words.fill(0);
            self.pending.retain(|half| half.node != node);
        }
        self.trace.mix(self.now ^ (node as u64) << 32 ^ 0x90e5);
    }

    /// It comes back.
    pub(crate) fn restore(&mut self, node: usize) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.up = true;
            state.silent = false;
        }
    }
}

/// Does this batch look like one that takes or releases a lock?
fn changes_much(chain: &Chain) -> bool {
    let writes = chain.iter().any(|verb| matches!(verb.kind, VerbKind::Write(_)));
    let atomic = |verb: &Verb| matches!(verb.kind, VerbKind::Cas { .. } | VerbKind::Faa { .. });
    chain.len() >= 3 && writes && chain.iter().any(atomic)
}

/// Odds that make about one verb in `verbs` the client's last.
pub fn once_in(verbs: u32) -> u32 {
    (ODDS / verbs.max(1)).max(1)
}
