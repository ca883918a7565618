//! The adversary's hand: when the verbs of a posted batch take effect, and when their client hears of it.
//!
//! Invariants: within a lane the moments respect [`Order`](crate::order), G4 with its gaps; a completion comes after
//! every effect of its batch (G5), unless it is an error (N7). All of it is drawn when the batch is posted, so the only
//! thing that can still change is that a lane ends early or is put off as a whole.

use crate::flight::{Flight, words};
use crate::order::{Class, Order};
use crate::queue::{Queue, What};
use crate::rng::SimRng;
use crate::swarm::Swarm;
use crate::world::{Mode, World};
use farindex_fabric::VerbKind;

/// What is drawn with.
struct Hand<'a> {
    swarm: &'a Swarm,
    rng: &'a mut SimRng,
}

impl Hand<'_> {
    /// Time between two verbs of a batch.
    fn gap(&mut self) -> u64 {
        match self.rng.chance(self.swarm.stall) {
            true => self.rng.tail(self.swarm.stall_exponent),
            false => self.rng.below(self.swarm.gap_ns + 1),
        }
    }
    fn one_way(&mut self) -> u64 {
        self.swarm.base_ns + self.rng.below(self.swarm.jitter_ns + 1)
    }
}

impl World {
    /// Draws the crash_outcome of a flight that was just posted.
    pub(crate) fn schedule_adversary(&mut self, flight: u32) {
        let World { mode, rng, flights, queue, conns, stats, now, .. } = self;
        let Mode::Adversary(swarm) = mode else {
            return;
        };
        let mut hand = Hand { swarm, rng };
        let state = &mut flights[flight as usize];
        let conn = &mut conns[state.conn as usize];
        let mut end = *now;
        for lane in 0..state.lanes.len() as u32 {
            let node = state.lanes[lane as usize].node;
            if hand.rng.chance(swarm.slow_link) {
                conn.skew[node] = hand.rng.tail(swarm.slow_link_exponent);
            }
            let mut start = *now + hand.one_way() + conn.skew[node];
            if hand.rng.chance(swarm.late) {
                start += hand.rng.tail(swarm.late_exponent);
                stats.late += 1;
            }
            let lane_end = if hand.rng.chance(swarm.split) {
                let mut lane_end = start;
                let mut order = Order::new(start);
                for verb in 0..state.chain.len() {
                    if state.plans[verb].lane != lane {
                        continue;
                    }
                    let class = Class::of(&state.chain[verb]);
                    let fence = state.chain[verb].fence;
                    let overtakes = class == Class::Write && hand.rng.chance(swarm.overtake);
                    let begin = order.earliest(class, fence, overtakes) + hand.gap();
                    if overtakes && begin < order.earliest(class, fence, false) {
                        stats.overtakes += 1;
                    }
                    let verb_end = draw_verb(&mut hand, state, queue, (flight, verb), begin);
                    stats.torn += u64::from(state.plans[verb].pieces > 1);
                    order.ends(class, verb_end);
                    lane_end = lane_end.max(order.end());
                }
                lane_end
            } else {
                state.events += 1;
                queue.push(start, What::Lane { flight, lane });
                start
            };
            state.lanes[lane as usize].end = lane_end;
            end = end.max(lane_end);
        }
        let mut back = hand.one_way();
        if hand.rng.chance(swarm.late_reply) {
            back += hand.rng.tail(swarm.late_exponent);
        }
        let mut completion = end + back;
        // The harness sets up and looks on: it meets delays, but no failures.
        if conn.client != 0 && hand.rng.chance(swarm.error) {
            stats.errors += 1;
            state.fails = true;
            // The error may come before, amid or after what lands, and any closed part of it may land.
            completion = hand.rng.within(*now + 1, completion);
            for lane in &mut state.lanes {
                if hand.rng.chance(crate::ODDS / 2) {
                    lane.cut = hand.rng.within(*now, lane.end);
                }
            }
        }
        state.events += 1;
        queue.push(completion, What::Complete { flight });
    }
}

impl World {
    /// Nobody waits for this flight, which was posted just now: it may land as late as it likes. Its completion, which
    /// nobody would see, is left out.
    pub(crate) fn detached(&mut self, conn: u32, id: u64) {
        let World { mode, rng, flights, stats, latest, .. } = self;
        let Mode::Adversary(swarm) = mode else {
            return;
        };
        let flight = latest.and_then(|latest| flights.get_mut(latest as usize));
        let Some(flight) = flight.filter(|flight| flight.events > 0 && (flight.conn, flight.id) == (conn, id)) else {
            return;
        };
        for lane in &mut flight.lanes {
            if rng.chance(swarm.forget) {
                lane.put_off = rng.tail(swarm.forget_exponent);
                stats.forgotten += 1;
            }
        }
    }
}

/// Draws how one verb takes effect from `begin` on; returns when it has.
fn draw_verb(hand: &mut Hand, state: &mut Flight, queue: &mut Queue, (flight, place): (u32, usize), begin: u64) -> u64 {
    let verb = place as u32;
    let mut push = |at: u64, what: What| {
        state.events += 1;
        queue.push(at, what);
    };
    let plan = &mut state.plans[place];
    let count = words(&state.chain[place]);
    match state.chain[place].kind {
        VerbKind::Read(_) | VerbKind::Write(_) if count > 1 && hand.rng.chance(hand.swarm.tear) => {
            let most = u64::from(hand.swarm.pieces.max(2)).min(count as u64);
            let pieces = hand.rng.within(2, most) as u32;
            plan.pieces = pieces;
            plan.salt = hand.rng.word();
            let mut end = begin;
            for piece in 0..pieces {
                let at = begin + hand.gap();
                push(at, What::Piece { flight, verb, piece });
                end = end.max(at);
            }
            end
        }
        VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. }
            if hand.rng.chance(hand.swarm.race) =>
        {
            plan.races = true;
            push(begin, What::Verb { flight, verb });
            let end = begin + 1 + hand.gap();
            push(end, What::Store { flight, verb });
            end
        }
        _ => {
            push(begin, What::Verb { flight, verb });
            begin
        }
    }
}
