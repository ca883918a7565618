//! A posted batch on its way.
//!
//! Invariants: the world owns a flight's chain from posting to completion; a flight's place is used again only when no
//! event names it any more; the parts of a flight that go to different nodes (its *lanes*) are ordered by nothing.

use farindex_fabric::{Chain, Verb};

/// Why the rest of a lane does not take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its memory node is gone.
    Node,
    /// Its client was revoked there.
    Revoked,
    /// Its client died, and nothing of it lands.
    Death,
}

/// The verbs of a flight to one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) node: usize,
    /// When its last verb takes effect, unless something comes between.
    pub(crate) end: u64,
    /// What is scheduled after this moment is dropped: its client died (N7).
    pub(crate) cut: u64,
    /// Verbs with a higher number are dropped: its client died in the middle of posting them.
    pub(crate) keep: u32,
    /// What has not taken effect is put off by this much: nobody awaits it, or its client died and its verbs linger.
    pub(crate) put_off: u64,
    pub(crate) loss: Option<Loss>,
}

/// How one verb takes effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) lane: u32,
    /// A torn verb takes effect in this many pieces, 1 if it is whole.
    pub(crate) pieces: u32,
    /// Which words make up which piece.
    pub(crate) salt: u64,
    /// An atomic that reads and stores at two moments.
    pub(crate) races: bool,
    /// It races, and will not live to store.
    pub(crate) halved: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub(crate) conn: u32,
    /// Number under which the endpoint knows it.
    pub(crate) id: u64,
    pub(crate) chain: Chain,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) plans: Vec<Plan>,
    /// Events in the queue that name it.
    pub(crate) events: u32,
    /// Model mode: parts that have not been answered, and when the latest answer was received.
    pub(crate) awaited: u32,
    pub(crate) received: u64,
    /// It completes with an error, whatever lands.
    pub(crate) fails: bool,
}

impl Flight {
    /// Takes a chain in and sorts its verbs into lanes.
    pub(crate) fn open(&mut self, conn: u32, id: u64, chain: Chain) {
        (self.conn, self.id, self.chain) = (conn, id, chain);
        (self.events, self.awaited, self.received, self.fails) = (0, 0, 0, false);
        self.lanes.clear();
        self.plans.clear();
        for verb in &self.chain {
            let node = verb.node().index();
            let found = self.lanes.iter().position(|lane| lane.node == node);
            let lane = found.unwrap_or_else(|| {
                self.lanes.push(Lane { node, end: 0, cut: u64::MAX, keep: u32::MAX, put_off: 0, loss: None });
                self.lanes.len() - 1
            });
            self.plans.push(Plan { lane: lane as u32, pieces: 1, salt: 0, races: false, halved: false });
        }
    }
    pub(crate) fn lane_of(&self, verb: u32) -> u32 {
        self.plans[verb as usize].lane
    }
}

impl Plan {
    /// Does word `word` of `words` take effect with this piece?
    pub(crate) fn owns(&self, piece: u32, word: usize, words: usize) -> bool {
        if self.pieces <= 1 {
            return true;
        }
        let (word, words, pieces) = (word as u64, words as u64, u64::from(self.pieces));
        let owner = if self.salt & 1 == 0 {
            // Runs of neighbouring words, as a NIC moves cache lines.
            (word + self.salt % words) % words * pieces / words
        } else {
            // Any words at all.
            let mixed = (word ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 32) % pieces
        };
        owner == u64::from(piece)
    }
}

/// Words of a READ or WRITE; 1 for an atomic.
pub(crate) fn words(verb: &Verb) -> usize {
    verb.len() / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_in_one_piece() {
        for salt in 0..200 {
            for words in 2..20usize {
                let plan = Plan { lane: 0, pieces: 2 + (salt % 4) as u32, salt, races: false, halved: false };
                for word in 0..words {
                    assert_eq!((0..plan.pieces).filter(|piece| plan.owns(*piece, word, words)).count(), 1);
                }
            }
        }
    }
}
