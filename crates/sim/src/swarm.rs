//! The adversary's settings: which kinds of trouble a run has, and how much of each.
//!
//! A run with every kind of trouble at once hides bugs that need quiet surroundings, so each seed draws its own mixture
//! (swarm testing). Every field stays within what the contract leaves open; none of them can break a promise.

use crate::rng::{ODDS, SimRng};

/// The adversary's settings for one run. Times are in nanoseconds, odds out of [`ODDS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swarm {
    /// Minimum latency of one direction over the network.
    pub base_ns: u64,
    /// Maximum extra latency of each node's part of a batch (N1).
    pub jitter_ns: u64,
    /// Odds that one node's part of a batch is late (N1, N5).
    pub late: u32,
    /// Late parts are delayed by less than 2 to this many nanoseconds.
    pub late_exponent: u32,
    /// Odds that a batch that no coroutine awaits is delayed, perhaps beyond every client's deadline (N5).
    pub forget: u32,
    /// Such a batch is delayed by less than 2 to this many nanoseconds.
    pub forget_exponent: u32,
    /// Odds, at each batch, that the latency of the link between connection and node changes permanently (N1).
    pub slow_link: u32,
    /// A slow link adds less than 2 to this many nanoseconds.
    pub slow_link_exponent: u32,
    /// Odds that the verbs of a batch take effect one by one, with verbs of other clients in between. Otherwise all of
    /// them take effect at one moment.
    pub split: u32,
    /// Maximum time between two verbs of such a batch.
    pub gap_ns: u64,
    /// Odds that this time, or the time between two pieces of a torn verb, is a stall instead.
    pub stall: u32,
    /// A stall is shorter than 2 to this many nanoseconds.
    pub stall_exponent: u32,
    /// Odds that a READ or WRITE of several words is torn (N2).
    pub tear: u32,
    /// A torn READ or WRITE has at most this many pieces.
    pub pieces: u32,
    /// Odds that an unfenced WRITE takes effect before a READ or atomic ahead of it (N3).
    pub overtake: u32,
    /// Odds that a CAS or FAA reads and stores at two moments, so that a plain WRITE between them is lost (N6).
    pub race: u32,
    /// Odds that a completion is late.
    pub late_reply: u32,
    /// Odds that what a crashed client had in flight is delayed further (N7).
    pub linger: u32,
    /// It is delayed by less than 2 to this many nanoseconds.
    pub linger_exponent: u32,
    /// Odds that a batch fails: any part of it takes effect, perhaps after the error (N7). It is never drawn from the
    /// seed, only set by [`Config::errors`](crate::Config::errors).
    pub error: u32,
}

impl Swarm {
    /// No trouble: each batch takes effect at one moment, in the order of posting.
    pub fn calm() -> Self {
        Swarm {
            base_ns: 1000,
            jitter_ns: 0,
            late: 0,
            late_exponent: 0,
            forget: 0,
            forget_exponent: 0,
            slow_link: 0,
            slow_link_exponent: 0,
            split: 0,
            gap_ns: 0,
            stall: 0,
            stall_exponent: 0,
            tear: 0,
            pieces: 1,
            overtake: 0,
            race: 0,
            late_reply: 0,
            linger: 0,
            linger_exponent: 0,
            error: 0,
        }
    }

    /// Every kind of trouble at once.
    pub fn fierce() -> Self {
        Swarm {
            base_ns: 700,
            jitter_ns: 2000,
            late: ODDS / 32,
            late_exponent: 24,
            forget: ODDS / 8,
            forget_exponent: 33,
            slow_link: ODDS / 64,
            slow_link_exponent: 14,
            split: ODDS * 3 / 4,
            gap_ns: 400,
            stall: ODDS / 16,
            stall_exponent: 18,
            tear: ODDS / 2,
            pieces: 4,
            overtake: ODDS / 2,
            race: ODDS / 2,
            late_reply: ODDS / 16,
            linger: ODDS / 2,
            linger_exponent: 26,
            error: 0,
        }
    }

    /// Draws a mixture: every kind of trouble is off in about a third of the seeds, and rarely is all of it strong.
    pub fn draw(rng: &mut SimRng) -> Self {
        fn odds(rng: &mut SimRng) -> u32 {
            let choices = [0, 0, ODDS / 64, ODDS / 16, ODDS / 4, ODDS / 2, ODDS * 7 / 8];
            rng.pick(&choices).unwrap_or_default()
        }
        let base_ns = rng.within(300, 2500);
        Swarm {
            base_ns,
            jitter_ns: rng.pick(&[0, 50, 500, 2000, 20_000]).unwrap_or_default(),
            late: rng.pick(&[0, 0, ODDS / 512, ODDS / 64, ODDS / 16]).unwrap_or_default(),
            late_exponent: rng.within(12, 27) as u32,
            forget: odds(rng),
            forget_exponent: rng.within(14, 36) as u32,
            slow_link: rng.pick(&[0, 0, ODDS / 256, ODDS / 32]).unwrap_or_default(),
            slow_link_exponent: rng.within(8, 17) as u32,
            split: rng.pick(&[0, ODDS / 8, ODDS / 2, ODDS]).unwrap_or_default(),
            gap_ns: rng.pick(&[10, 200, 1000, 5000]).unwrap_or_default(),
            stall: rng.pick(&[0, ODDS / 256, ODDS / 32, ODDS / 8]).unwrap_or_default(),
            stall_exponent: rng.within(10, 22) as u32,
            tear: odds(rng),
            pieces: rng.within(2, 6) as u32,
            overtake: odds(rng),
            race: odds(rng),
            late_reply: rng.pick(&[0, ODDS / 64, ODDS / 8]).unwrap_or_default(),
            linger: odds(rng),
            linger_exponent: rng.within(12, 30) as u32,
            error: 0,
        }
    }
}
