//! Stalls: a client is stopped between two chosen verbs of a batch, while others work, and then goes on.
//!
//! Invariants: the verbs of the batch ahead of the chosen one take effect at their own moments; the chosen one, all behind
//! it and the completion wait until the stall ends, and then follow in their order and with their gaps. That is a batch
//! whose verbs take effect far apart, as G4 allows, so a stall breaks no promise. Nothing is drawn: a run without stalls
//! is what it was.

use crate::queue::{Event, EventKind};
use crate::report::LogEvent;
use crate::world::World;
use farindex_fabric::{Chain, Verb, VerbKind};
use std::time::Duration;

/// Where a client is stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallAt {
    /// Ahead of the client's verb of this number, from its beginning (the first is 1).
    Verb(u64),
    /// In the client's batch of this number, from now on, that changes something (a WRITE, or an atomic): ahead of the verb
    /// of this number, taken modulo the verbs of the batch. The first of both is 0.
    Change {
        /// Which of these batches.
        batch: u64,
        /// Which verb of it.
        verb: u64,
    },
}

/// A stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Where it begins.
    pub at: StallAt,
    /// The client is stopped as a whole, and sends no heartbeat; otherwise its other coroutines go on, and only the batch is
    /// slow.
    pub whole: bool,
    /// How long it lasts at most.
    pub limit: Duration,
}

/// What one client has of stalls.
#[derive(Debug, Default)]
pub(crate) struct StallState {
    /// The next stall.
    armed: Option<Stall>,
    /// The flight that is stopped.
    flight: Option<u32>,
    /// Is the client stopped as a whole?
    whole: bool,
    /// Stalls that have begun.
    begun: u32,
}

impl World {
    pub(crate) fn arm_stall(&mut self, client: u32, stall: Option<Stall>) {
        self.clients[client as usize].stall.armed = stall;
    }
    pub(crate) fn is_stalled(&self, client: u32) -> bool {
        self.clients[client as usize].stall.flight.is_some()
    }
    pub(crate) fn stalls(&self, client: u32) -> u32 {
        self.clients[client as usize].stall.begun
    }

    /// Stalls the client in the flight that it has just posted, if it is to be stalled there.
    pub(crate) fn stall_if_due(&mut self, client: u32, flight: u32, verbs: u64) {
        let state = &mut self.clients[client as usize];
        let StallState { armed: Some(stall), flight: None, .. } = &mut state.stall else { return };
        let hold = match &mut stall.at {
            StallAt::Verb(at) if *at <= state.verbs => at.saturating_sub(state.verbs - verbs + 1),
            StallAt::Change { batch, verb } if changes(&self.flights[flight as usize].chain) => {
                let due = *batch == 0;
                *batch = batch.saturating_sub(1);
                if !due {
                    return;
                }
                *verb % verbs
            }
            _ => return,
        };
        let (whole, limit) = (stall.whole, u64::try_from(stall.limit.as_nanos()).unwrap_or(u64::MAX));
        state.stall = StallState { armed: None, flight: Some(flight), whole, begun: state.stall.begun + 1 };
        let stall = state.stall.begun;
        self.flights[flight as usize].hold = hold as u32;
        self.trace.mix(self.now ^ u64::from(client) << 32 ^ hold ^ 0x57a1);
        self.log.add(self.now, client, LogEvent::Stalled(hold as u32));
        self.queue.push(self.now.saturating_add(limit), EventKind::EndStall { client, stall });
        if whole {
            self.freeze(client, u64::MAX);
        }
    }

    /// Keeps back an event of a stalled flight. Returns whether it has to wait.
    pub(crate) fn is_held(&mut self, event: &Event) -> bool {
        let Some(flight) = event.kind.flight() else { return false };
        let state = &self.flights[flight as usize];
        if state.hold == u32::MAX {
            return false;
        }
        // A lane stops in its midst: see `hold_rest`.
        let waits = event.kind.waits_for(state.hold) && !matches!(event.kind, EventKind::Lane { .. });
        if waits {
            self.held.push((self.client_of(state.conn), *event));
        }
        waits
    }

    /// Keeps back what is left of a lane whose flight is stalled. Returns whether something is.
    pub(crate) fn hold_rest(&mut self, event: Event, flight: u32, lane: u32) -> bool {
        let state = &mut self.flights[flight as usize];
        let left = (state.hold as usize..state.plans.len()).any(|verb| state.plans[verb].lane == lane);
        if left {
            state.lanes[lane as usize].from = state.hold;
            let client = self.conns[state.conn as usize].client;
            self.held.push((client, event));
        }
        left
    }

    /// Ends the client's stall: this one, or whichever there is.
    pub(crate) fn end_stall(&mut self, client: u32, stall: Option<u32>) {
        let state = &mut self.clients[client as usize].stall;
        if stall.is_some_and(|stall| stall != state.begun) {
            return;
        }
        let Some(flight) = state.flight.take() else { return };
        let whole = state.whole;
        let hold = std::mem::replace(&mut self.flights[flight as usize].hold, u32::MAX);
        let held = std::mem::take(&mut self.held);
        let (mine, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|(of, _)| *of == client);
        self.held = others;
        // All that the stall concerns comes later by the same time: what is held, and what is still to come.
        if let Some(by) = mine.iter().map(|(_, event)| self.now - event.at).max() {
            self.queue.shift(by, |kind| kind.flight() == Some(flight) && kind.waits_for(hold));
            for (_, event) in mine {
                self.queue.push_again(event.at + by, event);
            }
        }
        self.trace.mix(self.now ^ u64::from(client) << 32 ^ 0x90e5);
        if whole {
            self.resume(client);
        }
    }
}

/// Does this batch change far memory?
fn changes(chain: &Chain) -> bool {
    let is_change = |verb: &Verb| {
        let atomic = matches!(verb.kind, VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. });
        atomic || matches!(verb.kind, VerbKind::Write(_))
    };
    chain.iter().any(is_change)
}
