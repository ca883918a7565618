//! The adversary's scheduler: draws when the verbs of a posted batch take effect, and when their client is notified.
//!
//! Invariants: within a lane the moments respect [`Order`], which is G4 with its gaps. A completion comes after every
//! effect of its batch (G5), unless it is an error (N7). Everything is drawn when the batch is posted; afterwards a
//! lane can only end early or be delayed as a whole.

use crate::flight::{Flight, words};
use crate::order::{Class, Order};
use crate::queue::{EventKind, Queue};
use crate::report::Stats;
use crate::rng::{ODDS, SimRng};
use crate::swarm::Swarm;
use farindex_fabric::VerbKind;

/// What a schedule is drawn from, and where its events go.
pub(crate) struct Scheduler<'a> {
    pub(crate) swarm: &'a Swarm,
    pub(crate) rng: &'a mut SimRng,
    pub(crate) queue: &'a mut Queue,
    pub(crate) stats: &'a mut Stats,
    pub(crate) now: u64,
}

impl Scheduler<'_> {
    /// Draws the schedule of a flight that was just posted. `skew`: extra latency of the connection to each node.
    /// `errors`: the odds that the flight completes with an error, if it may.
    pub(crate) fn schedule(&mut self, number: u32, flight: &mut Flight, skew: &mut [u64], errors: Option<u32>) {
        let swarm = self.swarm;
        let mut end = self.now;
        for lane in 0..flight.lanes.len() as u32 {
            let node = flight.lanes[lane as usize].node;
            if self.rng.chance(swarm.slow_link) {
                skew[node] = self.rng.tail(swarm.slow_link_exponent);
            }
            let mut start = self.now + self.one_way() + skew[node];
            if self.rng.chance(swarm.late) {
                start += self.rng.tail(swarm.late_exponent);
                self.stats.late += 1;
            }
            let lane_end = if self.rng.chance(swarm.split) {
                self.split_lane(number, flight, lane, start)
            } else {
                flight.events += 1;
                self.queue.push(start, EventKind::Lane { flight: number, lane });
                start
            };
            flight.lanes[lane as usize].end = lane_end;
            end = end.max(lane_end);
        }
        let mut back = self.one_way();
        if self.rng.chance(swarm.late_reply) {
            back += self.rng.tail(swarm.late_exponent);
        }
        let mut completion = end + back;
        if errors.is_some_and(|odds| self.rng.chance(odds)) {
            self.stats.errors += 1;
            flight.fails = true;
            // The error may come before, between or after the effects, and any closed part of them may take place.
            completion = self.rng.within(self.now + 1, completion);
            for lane in &mut flight.lanes {
                if self.rng.chance(ODDS / 2) {
                    lane.cut = self.rng.within(self.now, lane.end);
                }
            }
        }
        flight.events += 1;
        self.queue.push(completion, EventKind::Complete { flight: number });
    }

    /// Draws a moment for each verb of a lane. Returns when all of them have taken effect.
    fn split_lane(&mut self, number: u32, flight: &mut Flight, lane: u32, start: u64) -> u64 {
        let mut lane_end = start;
        let mut order = Order::new(start);
        for verb in 0..flight.chain.len() {
            if flight.plans[verb].lane != lane {
                continue;
            }
            let class = Class::of(&flight.chain[verb]);
            let fence = flight.chain[verb].fence;
            let overtakes = class == Class::Write && self.rng.chance(self.swarm.overtake);
            let begin = order.earliest(class, fence, overtakes) + self.gap();
            if overtakes && begin < order.earliest(class, fence, false) {
                self.stats.overtakes += 1;
            }
            let verb_end = self.draw_verb((number, verb), flight, begin);
            self.stats.torn += u64::from(flight.plans[verb].pieces > 1);
            order.ends(class, verb_end);
            lane_end = lane_end.max(order.end());
        }
        lane_end
    }

    /// Draws how one verb takes effect from `begin` on. Returns when it has taken effect.
    fn draw_verb(&mut self, (number, index): (u32, usize), flight: &mut Flight, begin: u64) -> u64 {
        let verb = index as u32;
        let count = words(&flight.chain[index]);
        match flight.chain[index].kind {
            VerbKind::Read(_) | VerbKind::Write(_) if count > 1 && self.rng.chance(self.swarm.tear) => {
                let most = u64::from(self.swarm.pieces.max(2)).min(count as u64);
                let pieces = self.rng.within(2, most) as u32;
                flight.tear(index, count, pieces, self.rng.word());
                let mut end = begin;
                for piece in 0..pieces {
                    let at = begin + self.gap();
                    flight.events += 1;
                    self.queue.push(at, EventKind::Piece { flight: number, verb, piece });
                    end = end.max(at);
                }
                end
            }
            VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. }
                if self.rng.chance(self.swarm.race) =>
            {
                flight.plans[index].races = true;
                flight.events += 2;
                self.queue.push(begin, EventKind::Verb { flight: number, verb });
                let end = begin + 1 + self.gap();
                self.queue.push(end, EventKind::Store { flight: number, verb });
                end
            }
            _ => {
                flight.events += 1;
                self.queue.push(begin, EventKind::Verb { flight: number, verb });
                begin
            }
        }
    }

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

/// Draws the delays of a flight that no coroutine awaits (N5).
pub(crate) fn delay_detached(swarm: &Swarm, rng: &mut SimRng, flight: &mut Flight, stats: &mut Stats) {
    for lane in &mut flight.lanes {
        if rng.chance(swarm.forget) {
            lane.delay = rng.tail(swarm.forget_exponent);
            stats.forgotten += 1;
        }
    }
}

/// Delays what has not taken effect of a flight that no coroutine awaits any more, or that fails. It completes all the same, with
/// an error before that and without one after it.
pub(crate) fn lag((odds, exponent): (u32, u32), rng: &mut SimRng, now: u64, flight: &mut Flight, stats: &mut Stats) {
    if odds == 0 {
        return;
    }
    for lane in flight.lanes.iter_mut().filter(|lane| lane.end > now && lane.delay == 0) {
        if rng.chance(odds) {
            lane.delay = rng.tail(exponent);
            flight.lags = true;
            stats.lagging += 1;
        }
    }
}
