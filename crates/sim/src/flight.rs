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
    /// Where the flight's [`Tears`] have the verb, if its pieces are any words at all.
    pub(crate) tear: usize,
    /// The verb is an atomic that reads and stores at two moments.
    pub(crate) races: bool,
    /// The verb races, and its store has been dropped.
    pub(crate) never_stores: bool,
    /// What the memory node's CPU has done for a call.
    pub(crate) work: Work,
}

/// The words of those torn verbs of a flight whose pieces are any words at all.
#[derive(Debug, Default)]
pub(crate) struct Tears {
    /// The words of each verb, by piece, and in ascending order within one.
    words: Vec<u32>,
    /// Where each piece of each verb begins in `words`, and behind them where the verb ends.
    begins: Vec<usize>,
    /// The piece of each word of the verb that is torn now.
    pieces: Vec<u32>,
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
    pub(crate) tears: Tears,
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
        self.tears.clear();
        for verb in &self.chain {
            let node = verb.node().index();
            let found = self.lanes.iter().position(|lane| lane.node == node);
            let lane = found.unwrap_or_else(|| {
                self.lanes.push(Lane { node, end: 0, cut: u64::MAX, keep: u32::MAX, delay: 0, loss: None, from: 0 });
                self.lanes.len() - 1
            });
            self.plans.push(Plan::whole(lane as u32));
        }
    }
    /// Has a READ or WRITE of so many words take effect in pieces.
    pub(crate) fn tear(&mut self, verb: usize, words: usize, pieces: u32, salt: u64) {
        let plan = &mut self.plans[verb];
        (plan.pieces, plan.salt) = (pieces, salt);
        if salt & 1 == 1 {
            plan.tear = self.tears.add(words, pieces, salt);
        }
    }
    pub(crate) fn lane_of(&self, verb: u32) -> u32 {
        self.plans[verb as usize].lane
    }
}

impl Plan {
    /// A verb that takes effect as a whole.
    fn whole(lane: u32) -> Plan {
        let work = Work::default();
        Plan { lane, pieces: 1, landed: 0, salt: 0, tear: 0, races: false, never_stores: false, work }
    }
    /// Calls `each` for the words of `words` that take effect with this piece.
    pub(crate) fn for_each_word(&self, tears: &Tears, piece: u32, words: usize, mut each: impl FnMut(usize)) {
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
            tears.of(self.tear + piece).iter().for_each(|word| each(*word as usize));
        }
    }
}

impl Tears {
    fn clear(&mut self) {
        self.words.clear();
        self.begins.clear();
    }
    /// Says of each word of a verb to which piece it belongs, all words at once: a look at each for each piece takes longer.
    /// Returns where the verb is in `begins`.
    fn add(&mut self, words: usize, pieces: u32, salt: u64) -> usize {
        // The remainder of 32 mixed bits. It is exact, by two multiplications in place of a division.
        let inverse = u64::MAX / u64::from(pieces) + 1;
        let piece_of = |word: usize| {
            let mixed = (word as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((u128::from(inverse.wrapping_mul(mixed >> 32)) * u128::from(pieces)) >> 64) as u32
        };
        self.pieces.clear();
        self.pieces.extend((0..words).map(piece_of));
        // A counting sort: how many words each piece has, then where it ends, and in the end where it begins.
        let (tear, first) = (self.begins.len(), self.words.len());
        self.begins.resize(tear + pieces as usize + 1, 0);
        let begins = &mut self.begins[tear..];
        self.pieces.iter().for_each(|piece| begins[*piece as usize] += 1);
        let mut end = first;
        for begin in begins.iter_mut() {
            end += *begin;
            *begin = end;
        }
        self.words.resize(first + words, 0);
        for (word, piece) in self.pieces.iter().enumerate().rev() {
            let begin = &mut begins[*piece as usize];
            *begin -= 1;
            self.words[*begin] = word as u32;
        }
        tear
    }
    /// The words of a piece.
    fn of(&self, piece: usize) -> &[u32] {
        &self.words[self.begins[piece]..self.begins[piece + 1]]
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

    /// The piece of each word.
    fn pieces_of(words: usize, pieces: u32, salt: u64) -> Vec<u32> {
        // Behind another verb.
        let mut flight = Flight { plans: vec![Plan::whole(0); 2], ..Flight::default() };
        flight.tear(0, 3, 2, 1);
        flight.tear(1, words, pieces, salt);
        let mut owners = vec![None; words];
        for piece in 0..pieces {
            flight.plans[1].for_each_word(&flight.tears, piece, words, |word| {
                assert_eq!(owners[word].replace(piece), None, "word {word} of {words}, {pieces} pieces, salt {salt}");
            });
        }
        owners.into_iter().map(|owner| owner.expect("each word has a piece")).collect()
    }

    #[test]
    fn plan_assigns_every_word_to_one_piece() {
        for salt in 0..200 {
            for words in 2..20 {
                assert_eq!(pieces_of(words, 2 + (salt % 4) as u32, salt).len(), words);
            }
        }
    }

    #[test]
    fn owner_of_a_word_is_a_remainder() {
        for pieces in [2, 3, 4, 5, 7, 8, 12] {
            for salt in (1..500u64).map(|n| n.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1) {
                for (word, owner) in (0u64..).zip(pieces_of(150, pieces, salt)) {
                    let mixed = (word ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    assert_eq!(owner, (mixed >> 32) as u32 % pieces, "{pieces} pieces, salt {salt}");
                }
            }
        }
    }

    /// The seeds of tests, and of those that use the simulator, stay what they are.
    #[test]
    fn pieces_of_a_salt_never_change() {
        assert_eq!(pieces_of(8, 3, 10), [0, 1, 1, 1, 2, 2, 0, 0]);
        assert_eq!(pieces_of(8, 3, 11), [2, 1, 2, 2, 1, 1, 1, 1]);
    }
}
