//! A *flight* is a posted batch that has not completed, and its *lanes* are its parts to different nodes.
//!
//! Invariants: the world owns a flight's chain from posting to completion; a flight's place is reused only when no
//! event names it any more; nothing orders the lanes of a flight (N1).

use farindex_fabric::call::Work;
use farindex_fabric::{Chain, Verb};

/// The reason why the rest of a lane does not take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its memory node has failed.
    Node,
    /// Its client was revoked on the node.
    Revoked,
    /// Its client crashed, with the outcome that nothing takes effect any more.
    Crash,
}

/// The verbs of a flight to one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) node: usize,
    /// The moment at which its last verb takes effect, unless the lane is cut or delayed.
    pub(crate) end: u64,
    /// What is scheduled after this moment is dropped: its client crashed, or the flight fails (N7).
    pub(crate) cut: u64,
    /// Verbs with a higher number are dropped: its client crashed while it was posting them.
    pub(crate) keep: u32,
    /// Delay of what has not taken effect yet: no coroutine awaits it, or its client crashed.
    pub(crate) delay: u64,
    pub(crate) loss: Option<Loss>,
    /// The first verb of the flight that this lane has not carried out: not 0 after a stall in its midst.
    pub(crate) from: u32,
}

/// The way in which one verb takes effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) lane: u32,
    /// Number of pieces in which the verb takes effect; 1 if it is not torn.
    pub(crate) pieces: u32,
    /// Those that have taken effect.
    pub(crate) landed: u32,
    /// Selects which words belong to which piece.
    pub(crate) salt: u64,
    /// The verb is an atomic that reads and stores at two moments.
    pub(crate) races: bool,
    /// The verb races, and its store has been dropped.
    pub(crate) never_stores: bool,
    /// What the memory node's CPU has done for a call.
    pub(crate) work: Work,
}

#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub(crate) conn: u32,
    /// The endpoint's number for the flight.
    pub(crate) id: u64,
    /// When it was posted.
    pub(crate) posted: u64,
    pub(crate) chain: Chain,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) plans: Vec<Plan>,
    /// Number of events in the queue that name the flight.
    pub(crate) events: u32,
    /// Model mode: number of lanes without an answer, and when the latest answer was received.
    pub(crate) awaited: u32,
    pub(crate) received: u64,
    /// The flight completes with an error, whatever takes effect.
    pub(crate) fails: bool,
    /// A part of it is delayed because its coroutine has gone. It completes all the same.
    pub(crate) lags: bool,
    /// Verbs from this number on wait until their client's stall ends, and so does the completion; `u32::MAX`: none.
    pub(crate) hold: u32,
}

impl Flight {
    /// Takes a chain and sorts its verbs into lanes.
    pub(crate) fn open(&mut self, conn: u32, id: u64, chain: Chain, now: u64) {
        (self.conn, self.id, self.chain, self.posted) = (conn, id, chain, now);
        (self.events, self.awaited, self.received, self.hold) = (0, 0, 0, u32::MAX);
        (self.fails, self.lags) = (false, false);
        self.lanes.clear();
        self.plans.clear();
        for verb in &self.chain {
            let node = verb.node().index();
            let found = self.lanes.iter().position(|lane| lane.node == node);
            let lane = found.unwrap_or_else(|| {
                self.lanes.push(Lane { node, end: 0, cut: u64::MAX, keep: u32::MAX, delay: 0, loss: None, from: 0 });
                self.lanes.len() - 1
            });
            self.plans.push(Plan {
                lane: lane as u32,
                pieces: 1,
                landed: 0,
                salt: 0,
                races: false,
                never_stores: false,
                work: Work::default(),
            });
        }
    }
    pub(crate) fn lane_of(&self, verb: u32) -> u32 {
        self.plans[verb as usize].lane
    }
}

impl Plan {
    /// Calls `each` for the words of `words` that take effect with this piece.
    pub(crate) fn for_each_word(&self, piece: u32, words: usize, mut each: impl FnMut(usize)) {
        let (pieces, piece) = (self.pieces.max(1) as usize, piece as usize);
        if pieces == 1 {
            (0..words).for_each(each);
        } else if self.salt & 1 == 0 {
            // Runs of adjacent words, as a NIC moves cache lines: equal parts of the words, which begin anywhere and go on at
            // the start.
            let begin = words - (self.salt % words.max(1) as u64) as usize;
            let part = (piece * words).div_ceil(pieces)..((piece + 1) * words).div_ceil(pieces);
            part.for_each(|word| each(if begin + word < words { begin + word } else { begin + word - words }));
        } else {
            // Any words at all: the remainder of 32 mixed bits. It is exact, by two multiplications in place of a division. The
            // owned words of each 64 are gathered first, because a branch for each word would mostly be predicted wrongly.
            let inverse = u64::MAX / pieces as u64 + 1;
            let is_owned = |word: usize| {
                let mixed = (word as u64 ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ((u128::from(inverse.wrapping_mul(mixed >> 32)) * pieces as u128) >> 64) as usize == piece
            };
            for first in (0..words).step_by(64) {
                let count = (words - first).min(64);
                let mut owned = (0..count).fold(0, |owned, i| owned | u64::from(is_owned(first + i)) << i);
                while owned != 0 {
                    each(first + owned.trailing_zeros() as usize);
                    owned &= owned - 1;
                }
            }
        }
    }
}

/// Number of words of a READ or WRITE; 1 for an atomic.
pub(crate) fn words(verb: &Verb) -> usize {
    verb.len() / 8
}

/// The first word that a verb touches.
pub(crate) fn first_word(verb: &Verb) -> usize {
    (verb.ptr.offset() / 8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_assigns_every_word_to_one_piece() {
        for salt in 0..200 {
            for words in 2..20usize {
                let plan = Plan {
                    lane: 0,
                    pieces: 2 + (salt % 4) as u32,
                    landed: 0,
                    salt,
                    races: false,
                    never_stores: false,
                    work: Work::default(),
                };
                let mut owners = vec![0; words];
                (0..plan.pieces).for_each(|piece| plan.for_each_word(piece, words, |word| owners[word] += 1));
                assert_eq!(owners, vec![1; words], "salt {salt}");
            }
        }
    }

    #[test]
    fn owner_of_a_word_is_a_remainder() {
        for pieces in [2, 3, 4, 5, 7, 8, 12] {
            for salt in (1..500u64).map(|n| n.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1) {
                let plan =
                    Plan { lane: 0, pieces, landed: 0, salt, races: false, never_stores: false, work: Work::default() };
                let mut owners = [0; 150];
                (0..pieces).for_each(|piece| plan.for_each_word(piece, 150, |word| owners[word] = piece));
                for (word, owner) in owners.into_iter().enumerate() {
                    let mixed = (word as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    assert_eq!(owner, (mixed >> 32) as u32 % pieces, "{pieces} pieces, salt {salt}");
                }
            }
        }
    }

    /// The seeds of tests, and of those that use the simulator, stay what they are.
    #[test]
    fn pieces_of_a_salt_never_change() {
        let pieces_of = |salt| {
            let plan =
                Plan { lane: 0, pieces: 3, landed: 0, salt, races: false, never_stores: false, work: Work::default() };
            let mut owners = vec![0; 8];
            (0..3).for_each(|piece| plan.for_each_word(piece, 8, |word| owners[word] = piece));
            owners
        };
        assert_eq!(pieces_of(10), [0, 1, 1, 1, 2, 2, 0, 0]);
        assert_eq!(pieces_of(11), [2, 1, 2, 2, 1, 1, 1, 1]);
    }
}
