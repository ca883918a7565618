//! Steps on far memory: whole verbs, pieces of torn ones, and the two halves of a racing atomic.
//!
//! Invariants: a step reads and writes whole words (G2). A racing atomic has read its word and not stored it yet
//! ([`Pending`]); whatever other atomic comes to that word makes it store first, so atomics stay atomic among
//! themselves, and a READ in between sees the word from before, so they stay atomic with reads (G3); only a plain WRITE
//! slips in between and is lost (N6).

use crate::flight::{Loss, Plan};
use crate::queue::{Event, What};
use crate::report::Happened;
use crate::world::{Pending, World, first_word};
use farindex_fabric::{Buf, Chain, FabricError, NodeId, VerbKind};

/// What is to be done about a step whose moment has come.
enum Verdict {
    Go,
    Drop,
    PutOff(u64),
}

impl World {
    /// Carries out a step of a flight. False if it was put off, and so is still to come.
    pub(crate) fn take_effect(&mut self, event: Event) -> bool {
        let (flight, lane, verb) = match event.what {
            What::Lane { flight, lane } | What::Arrive { flight, lane } => (flight, lane, None),
            What::Verb { flight, verb } | What::Piece { flight, verb, .. } | What::Store { flight, verb } => {
                (flight, self.flights[flight as usize].lane_of(verb), Some(verb))
            }
            What::Complete { .. } | What::Wake { .. } | What::Resume { .. } => return true,
        };
        match self.judge(event, flight, lane, verb) {
            Verdict::Go => {}
            Verdict::Drop => {
                if let What::Store { flight, verb } = event.what {
                    self.pending.retain(|pending| (pending.flight, pending.verb) != (flight, verb));
                    // Its first half may have been put off, and be still to come.
                    self.flights[flight as usize].plans[verb as usize].halved = true;
                }
                let client = self.client_of(self.flights[flight as usize].conn);
                self.log.add(self.now, client, Happened::Dropped);
                self.unanswered(flight);
                return true;
            }
            Verdict::PutOff(by) => {
                self.queue.put_off(event.at.saturating_add(by), event.what);
                return false;
            }
        }
        self.trace.mix(self.now ^ u64::from(flight) << 40);
        match event.what {
            What::Lane { flight, lane } => self.whole_lane(flight, lane),
            What::Arrive { flight, lane } => self.arrive(flight, lane),
            What::Verb { flight, verb } => self.verb(flight, verb),
            What::Piece { flight, verb, piece } => self.piece(flight, verb, piece),
            What::Store { flight, verb } => self.store(flight, verb),
            What::Complete { .. } | What::Wake { .. } | What::Resume { .. } => {}
        }
        true
    }

    fn judge(&mut self, event: Event, flight: u32, lane: u32, verb: Option<u32>) -> Verdict {
        let lane = &mut self.flights[flight as usize].lanes[lane as usize];
        if lane.loss.is_some() || (!event.put_off() && event.at > lane.cut) || verb.is_some_and(|verb| verb > lane.keep)
        {
            return Verdict::Drop;
        }
        if lane.put_off > 0 && !event.put_off() {
            return Verdict::PutOff(lane.put_off);
        }
        if !self.nodes[lane.node].up {
            lane.loss = Some(Loss::Node);
            return Verdict::Drop;
        }
        Verdict::Go
    }

    /// All verbs of a lane in one moment, in posting order.
    pub(crate) fn whole_lane(&mut self, flight: u32, lane: u32) {
        let keep = self.flights[flight as usize].lanes[lane as usize].keep;
        for verb in 0..self.flights[flight as usize].chain.len() as u32 {
            let state = &self.flights[flight as usize];
            // A client may shut itself out in the middle of a batch.
            if verb > keep || state.lanes[lane as usize].loss.is_some() {
                break;
            }
            if state.lane_of(verb) == lane {
                self.verb(flight, verb);
            }
        }
    }

    /// One verb takes effect, or reads its word if it is a racing atomic.
    fn verb(&mut self, flight: u32, verb: u32) {
        let state = &mut self.flights[flight as usize];
        let target = &mut state.chain[verb as usize];
        let (ptr, node, word) = (target.ptr, target.node().index(), first_word(target));
        let client = self.conns[state.conn as usize].client;
        let happened = match &mut target.kind {
            VerbKind::Read(buf) => {
                let to = buf.words_mut();
                to.copy_from_slice(&self.nodes[node].words[word..word + to.len()]);
                self.trace.mix(fold(to));
                Happened::Read(ptr, to.len(), to.first().copied().unwrap_or_default())
            }
            VerbKind::Write(buf) => {
                let from = buf.words();
                self.nodes[node].words[word..word + from.len()].copy_from_slice(from);
                self.trace.mix(fold(from) ^ ptr.to_bits());
                Happened::Write(ptr, from.len(), from.first().copied().unwrap_or_default())
            }
            VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => {
                self.atomic(flight, verb, node, word)
            }
            VerbKind::Call { request, reply } => {
                if let Some(handler) = &mut self.handler {
                    let number = NodeId::new(node as u16);
                    *reply = Some(handler(number, &mut self.nodes[node].words, request.bytes()));
                }
                Happened::Called(ptr)
            }
            VerbKind::Revoke(identity) => {
                let token = identity.token;
                self.revoke(node, token);
                self.trace.mix(token ^ 0x5eed);
                Happened::Revoked(ptr, token)
            }
        };
        self.log.add(self.now, client, happened);
    }

    fn atomic(&mut self, flight: u32, verb: u32, node: usize, word: usize) -> Happened {
        if !self.pending.is_empty() {
            self.store_pending(|pending| (pending.node, pending.word) == (node, word));
        }
        let state = &mut self.flights[flight as usize];
        let Plan { races, halved, .. } = state.plans[verb as usize];
        let target = &mut state.chain[verb as usize];
        let ptr = target.ptr;
        let cell = &mut self.nodes[node].words[word];
        let seen = *cell;
        let (value, happened) = match &mut target.kind {
            VerbKind::Cas { expect, new, old } => {
                *old = seen;
                ((seen == *expect).then_some(*new), Happened::Cas(ptr, *expect, *new, seen))
            }
            VerbKind::Faa { add, old } => {
                *old = seen;
                (Some(seen.wrapping_add(*add)), Happened::Faa(ptr, *add, seen))
            }
            VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, old } => {
                *old = seen;
                let hit = (seen ^ *expect) & *compare_mask == 0;
                let value = seen & !*swap_mask | *new & *swap_mask;
                (hit.then_some(value), Happened::Cas(ptr, *expect, *new, seen))
            }
            _ => (None, Happened::Dropped),
        };
        match value {
            Some(_) if halved => {}
            Some(value) if races => self.pending.push(Pending { node, word, seen, value, flight, verb }),
            Some(value) => *cell = value,
            None => {}
        }
        self.trace.mix(seen ^ ptr.to_bits());
        happened
    }

    /// The words of one piece of a torn READ or WRITE.
    fn piece(&mut self, flight: u32, verb: u32, piece: u32) {
        let state = &mut self.flights[flight as usize];
        let plan = state.plans[verb as usize];
        let target = &mut state.chain[verb as usize];
        let (ptr, first) = (target.ptr, first_word(target));
        let memory = &mut self.nodes[target.node().index()].words[first..];
        let owned = |buf: &Buf| {
            let words = buf.words().len();
            (0..words).filter(move |word| plan.owns(piece, *word, words))
        };
        let (mut moved, mut hash) = (0, 0);
        let happened = match &mut target.kind {
            VerbKind::Read(buf) => {
                for word in owned(buf) {
                    buf.words_mut()[word] = memory[word];
                    hash ^= memory[word];
                    moved += 1;
                }
                Happened::Read(ptr, moved, buf.words().first().copied().unwrap_or_default())
            }
            VerbKind::Write(buf) => {
                for word in owned(buf) {
                    memory[word] = buf.words()[word];
                    hash ^= memory[word];
                    moved += 1;
                }
                Happened::Write(ptr, moved, buf.words().first().copied().unwrap_or_default())
            }
            _ => return,
        };
        self.trace.mix(hash ^ u64::from(piece));
        let client = self.conns[state.conn as usize].client;
        self.log.add(self.now, client, happened);
    }

    /// The second half of a racing atomic, unless another atomic has hurried it.
    fn store(&mut self, flight: u32, verb: u32) {
        self.store_pending(|pending| (pending.flight, pending.verb) == (flight, verb));
    }

    fn store_pending(&mut self, which: impl Fn(&Pending) -> bool) {
        let Some(at) = self.pending.iter().position(which) else {
            return;
        };
        let Pending { node, word, seen, value, flight, verb } = self.pending.remove(at);
        let cell = &mut self.nodes[node].words[word];
        self.stats.lost_writes += u64::from(*cell != seen);
        *cell = value;
        self.trace.mix(value);
        let state = &self.flights[flight as usize];
        if let Some(target) = state.chain.get(verb as usize) {
            let client = self.conns[state.conn as usize].client;
            self.log.add(self.now, client, Happened::Stored(target.ptr, value));
        }
    }

    /// The client hears of its batch.
    pub(crate) fn complete(&mut self, flight: u32) {
        let state = &mut self.flights[flight as usize];
        let conn = &mut self.conns[state.conn as usize];
        let client = conn.client;
        let lost = state.lanes.iter().find_map(|lane| lane.loss.map(|loss| (loss, lane.node)));
        let node = state.lanes.first().map_or(0, |lane| lane.node);
        // The dead hear nothing, and nobody waits for what was forgotten.
        let mut silent = self.clients[client as usize].life == crate::world::Life::Dead;
        silent |= state.lanes.iter().any(|lane| lane.put_off > 0);
        let result = match lost {
            Some((Loss::Revoked, _)) => Err(FabricError::Revoked),
            Some((Loss::Node, node)) => {
                silent |= self.nodes[node].silent;
                Err(unreachable(node, "it has vanished"))
            }
            Some((Loss::Death, _)) | None if state.fails => Err(unreachable(node, "the connection broke")),
            Some((Loss::Death, _)) | None => Ok(()),
        };
        let ok = result.is_ok();
        self.trace.mix(self.now ^ u64::from(ok));
        self.clients[client as usize].in_flight -= 1;
        if silent {
            return;
        }
        // What still lands after an error needs its chain, so the client gets none.
        let chain = if ok { std::mem::take(&mut state.chain) } else { Chain::new() };
        conn.done.push_back((state.id, chain, result));
        self.ready.push(state.conn);
        self.log.add(self.now, client, Happened::Completed(ok));
    }
}

fn unreachable(node: usize, reason: &str) -> FabricError {
    FabricError::Unreachable { node: NodeId::new(node as u16), reason: reason.to_owned() }
}

fn fold(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |hash, word| hash ^ word)
}
