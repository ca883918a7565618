//! Effects on far memory: whole verbs, pieces of torn verbs, the two halves of a racing atomic, and completions.
//!
//! Invariants: a step reads and writes whole words (G2). A racing atomic that has read its word and not stored it yet
//! is a [`PendingStore`]. Any other atomic that reaches the word makes it store first, so atomics stay atomic among
//! themselves; a READ in between sees the word from before the atomic, so they stay atomic with reads (G3). Only a
//! plain WRITE takes effect in between and is lost (N6).

use crate::client_state::RunState;
use crate::flight::{Flight, Lane, Loss, Plan, first_word};
use crate::queue::{Event, EventKind};
use crate::report::LogEvent;
use crate::rng::ODDS;
use crate::watch::note_store;
use crate::world::{Mode, Node, PendingStore, World};
use farindex_fabric::{Chain, FabricError, NodeId, VerbKind};

/// What to do with a step at its moment.
enum Verdict {
    Execute,
    Drop,
    Delay(u64),
}

impl World {
    /// Carries out a step of a flight. Returns false if the step was delayed and so is still in the queue.
    pub(crate) fn take_effect(&mut self, event: Event) -> bool {
        let (flight, lane, verb) = match event.kind {
            EventKind::Lane { flight, lane } | EventKind::Arrive { flight, lane } => (flight, lane, None),
            EventKind::Verb { flight, verb }
            | EventKind::Piece { flight, verb, .. }
            | EventKind::Store { flight, verb } => (flight, self.flights[flight as usize].lane_of(verb), Some(verb)),
            EventKind::Complete { .. }
            | EventKind::Wake { .. }
            | EventKind::Resume { .. }
            | EventKind::EndStall { .. } => return true,
        };
        match self.verdict(event, flight, lane, verb) {
            Verdict::Execute => {}
            Verdict::Drop => {
                if let EventKind::Store { flight, verb } = event.kind {
                    self.pending.retain(|pending| (pending.flight, pending.verb) != (flight, verb));
                    // The atomic's first half may have been delayed, and so still be in the queue.
                    self.flights[flight as usize].plans[verb as usize].never_stores = true;
                }
                let client = self.client_of(self.flights[flight as usize].conn);
                self.log.add(self.now, client, LogEvent::Dropped);
                if let Mode::Model(cluster) = &self.mode {
                    cluster.lose(self.now, flight, &mut self.flights[flight as usize], &mut self.queue);
                }
                return true;
            }
            Verdict::Delay(by) => {
                self.queue.push_delayed(event.at.saturating_add(by), event.kind);
                return false;
            }
        }
        self.trace.mix(self.now ^ u64::from(flight) << 40);
        match event.kind {
            EventKind::Lane { flight, lane } => {
                self.whole_lane(flight, lane);
                // What is left of it comes when the stall ends.
                return !self.hold_rest(event, flight, lane);
            }
            EventKind::Arrive { flight, lane } => self.arrive(flight, lane),
            EventKind::Verb { flight, verb } => self.verb(flight, verb),
            EventKind::Piece { flight, verb, piece } => self.piece(flight, verb, piece),
            EventKind::Store { flight, verb } => self.store(flight, verb),
            EventKind::Complete { .. }
            | EventKind::Wake { .. }
            | EventKind::Resume { .. }
            | EventKind::EndStall { .. } => {}
        }
        true
    }

    fn verdict(&mut self, event: Event, flight: u32, lane: u32, verb: Option<u32>) -> Verdict {
        let lane = &mut self.flights[flight as usize].lanes[lane as usize];
        if lane.loss.is_some()
            || (!event.is_delayed() && event.at > lane.cut)
            || verb.is_some_and(|verb| verb > lane.keep)
        {
            return Verdict::Drop;
        }
        if lane.delay > 0 && !event.is_delayed() {
            return Verdict::Delay(lane.delay);
        }
        if !self.nodes[lane.node].up {
            lane.loss = Some(Loss::Node);
            return Verdict::Drop;
        }
        Verdict::Execute
    }

    /// Carries out a lane that has reached its node's NIC, and sends its answer.
    fn arrive(&mut self, flight: u32, lane: u32) {
        self.whole_lane(flight, lane);
        let World { mode, flights, queue, conns, clients, now, .. } = self;
        if let Mode::Model(cluster) = mode {
            let state = &mut flights[flight as usize];
            let host = clients[conns[state.conn as usize].client as usize].cpu.host;
            cluster.answer(*now, (flight, lane), state, host, queue);
        }
    }

    /// Carries out all verbs of a lane at one moment, in posting order.
    fn whole_lane(&mut self, flight: u32, lane: u32) {
        let Lane { keep, from, .. } = self.flights[flight as usize].lanes[lane as usize];
        let end = self.flights[flight as usize].hold.min(self.flights[flight as usize].chain.len() as u32);
        for verb in from..end {
            let state = &self.flights[flight as usize];
            // A client may revoke itself in the middle of a batch.
            if verb > keep || state.lanes[lane as usize].loss.is_some() {
                break;
            }
            if state.lane_of(verb) == lane {
                self.verb(flight, verb);
            }
        }
    }

    /// Carries out one verb. A racing atomic only reads its word.
    fn verb(&mut self, flight: u32, verb: u32) {
        let state = &mut self.flights[flight as usize];
        let plan = &mut state.plans[verb as usize];
        plan.landed = plan.pieces;
        let target = &mut state.chain[verb as usize];
        let (ptr, node, word) = (target.ptr, target.node().index(), first_word(target));
        let client = self.conns[state.conn as usize].client;
        if let Some(readers) = &mut self.readers {
            readers.note(client, target);
        }
        let unseen = self.late_calls.then_some(&mut self.nodes[node]);
        match (&target.kind, unseen) {
            (_, None) | (VerbKind::Call { .. }, _) => {}
            (VerbKind::Write(buf), Some(node)) => {
                node.unseen.extend((word..word + buf.words().len()).map(|word| (word, node.words[word])));
            }
            (_, Some(node)) => node.unseen.clear(),
        }
        let log_event = match &mut target.kind {
            VerbKind::Read(buf) => {
                let to = buf.words_mut();
                to.copy_from_slice(&self.nodes[node].words[word..word + to.len()]);
                self.trace.mix(fold(to));
                LogEvent::Read(ptr, to.len(), to.first().copied().unwrap_or_default())
            }
            VerbKind::Write(buf) => {
                let from = buf.words();
                self.nodes[node].words[word..word + from.len()].copy_from_slice(from);
                note_store(&mut self.watching, node, word..word + from.len());
                self.trace.mix(fold(from) ^ ptr.to_bits());
                LogEvent::Write(ptr, from.len(), from.first().copied().unwrap_or_default())
            }
            VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => {
                self.atomic(flight, verb, node, word)
            }
            VerbKind::Call { request, reply } => {
                if let Some(handler) = &mut self.handler {
                    let (number, Node { words, unseen, .. }) = (NodeId::new(node as u16), &mut self.nodes[node]);
                    if !unseen.is_empty() && self.rng.chance(ODDS / 2) {
                        unseen.clear();
                    }
                    // The CPU sees what was there before, and its own stores to these words are overwritten.
                    let mut landed = Vec::with_capacity(unseen.len());
                    for (word, before) in unseen.iter().rev() {
                        landed.push((*word, std::mem::replace(&mut words[*word], *before)));
                    }
                    let (answer, work) = handler(number, words, request.bytes());
                    *reply = Some(answer);
                    state.plans[verb as usize].work = work;
                    landed.iter().rev().for_each(|(word, value)| words[*word] = *value);
                    note_store(&mut self.watching, node, 0..words.len());
                }
                LogEvent::Called(ptr)
            }
            VerbKind::Revoke(identity) => {
                let token = identity.token;
                self.revoke(node, token);
                self.trace.mix(token ^ 0x5eed);
                LogEvent::Revoked(ptr, token)
            }
        };
        self.log.add(self.now, client, log_event);
    }

    fn atomic(&mut self, flight: u32, verb: u32, node: usize, word: usize) -> LogEvent {
        if !self.pending.is_empty() {
            self.store_pending(|pending| (pending.node, pending.word) == (node, word));
        }
        let state = &mut self.flights[flight as usize];
        let Plan { races, never_stores, .. } = state.plans[verb as usize];
        let target = &mut state.chain[verb as usize];
        let ptr = target.ptr;
        let cell = &mut self.nodes[node].words[word];
        let seen = *cell;
        let (value, log_event) = match &mut target.kind {
            VerbKind::Cas { expect, new, old } => {
                *old = seen;
                ((seen == *expect).then_some(*new), LogEvent::Cas(ptr, *expect, *new, seen))
            }
            VerbKind::Faa { add, old } => {
                *old = seen;
                (Some(seen.wrapping_add(*add)), LogEvent::Faa(ptr, *add, seen))
            }
            VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, old } => {
                *old = seen;
                let hit = (seen ^ *expect) & *compare_mask == 0;
                let value = seen & !*swap_mask | *new & *swap_mask;
                (hit.then_some(value), LogEvent::Cas(ptr, *expect, *new, seen))
            }
            _ => (None, LogEvent::Dropped),
        };
        match value {
            Some(_) if never_stores => {}
            Some(value) if races => self.pending.push(PendingStore { node, word, seen, value, flight, verb }),
            Some(value) => {
                *cell = value;
                note_store(&mut self.watching, node, word..word + 1);
            }
            None => {}
        }
        self.trace.mix(seen ^ ptr.to_bits());
        log_event
    }

    /// Carries out one piece of a torn READ or WRITE.
    fn piece(&mut self, flight: u32, verb: u32, piece: u32) {
        let state = &mut self.flights[flight as usize];
        state.plans[verb as usize].landed += 1;
        let plan = state.plans[verb as usize];
        let Flight { conn, chain, tears, .. } = state;
        let target = &mut chain[verb as usize];
        let (ptr, first) = (target.ptr, first_word(target));
        let client = self.conns[*conn as usize].client;
        if let Some(readers) = &mut self.readers {
            readers.note(client, target);
        }
        let node = target.node().index();
        let Node { words, unseen, .. } = &mut self.nodes[node];
        let memory = &mut words[first..];
        let late_calls = self.late_calls;
        let (mut moved, mut hash) = (0, 0);
        let log_event = match &mut target.kind {
            VerbKind::Read(buf) => {
                unseen.clear();
                let to = buf.words_mut();
                plan.for_each_word(tears, piece, to.len(), |word| {
                    to[word] = memory[word];
                    hash ^= memory[word];
                    moved += 1;
                });
                LogEvent::Read(ptr, moved, buf.words().first().copied().unwrap_or_default())
            }
            VerbKind::Write(buf) => {
                let from = buf.words();
                note_store(&mut self.watching, node, first..first + from.len());
                plan.for_each_word(tears, piece, from.len(), |word| {
                    if late_calls {
                        unseen.push((first + word, memory[word]));
                    }
                    memory[word] = from[word];
                    hash ^= memory[word];
                    moved += 1;
                });
                LogEvent::Write(ptr, moved, buf.words().first().copied().unwrap_or_default())
            }
            _ => return,
        };
        self.trace.mix(hash ^ u64::from(piece));
        self.log.add(self.now, client, log_event);
    }

    /// Carries out the second half of a racing atomic, unless another atomic has made it store already.
    fn store(&mut self, flight: u32, verb: u32) {
        self.store_pending(|pending| (pending.flight, pending.verb) == (flight, verb));
    }

    fn store_pending(&mut self, which: impl Fn(&PendingStore) -> bool) {
        let Some(at) = self.pending.iter().position(which) else {
            return;
        };
        let PendingStore { node, word, seen, value, flight, verb } = self.pending.remove(at);
        let cell = &mut self.nodes[node].words[word];
        self.stats.lost_writes += u64::from(*cell != seen);
        *cell = value;
        note_store(&mut self.watching, node, word..word + 1);
        self.trace.mix(value);
        let state = &self.flights[flight as usize];
        if let Some(target) = state.chain.get(verb as usize) {
            let client = self.conns[state.conn as usize].client;
            self.log.add(self.now, client, LogEvent::Stored(target.ptr, value));
        }
    }

    /// Model mode: charges the client's CPU for a completion.
    pub(crate) fn poll_completion(&mut self, flight: u32) {
        let client = self.client_of(self.flights[flight as usize].conn);
        if let Mode::Model(cluster) = &self.mode {
            cluster.poll(self.now, &mut self.clients[client as usize].cpu);
        }
    }

    /// Delivers a flight's completion to its client.
    pub(crate) fn complete(&mut self, flight: u32) {
        let state = &mut self.flights[flight as usize];
        let conn = &mut self.conns[state.conn as usize];
        let client = conn.client;
        let lost = state.lanes.iter().find_map(|lane| lane.loss.map(|loss| (loss, lane.node)));
        let node = state.lanes.first().map_or(0, |lane| lane.node);
        // A crashed client gets no completion, and no coroutine awaits a delayed flight.
        let mut silent = self.clients[client as usize].run_state == RunState::Crashed;
        silent |= !state.lags && state.lanes.iter().any(|lane| lane.delay > 0);
        let result = match lost {
            Some((Loss::Revoked, _)) => Err(FabricError::Revoked),
            Some((Loss::Node, node)) => {
                silent |= self.nodes[node].silent;
                Err(unreachable(node, "the node has failed"))
            }
            Some((Loss::Crash, _)) | None if state.fails => Err(unreachable(node, "the connection broke")),
            Some((Loss::Crash, _)) | None => Ok(()),
        };
        let ok = result.is_ok();
        self.trace.mix(self.now ^ u64::from(ok));
        self.clients[client as usize].in_flight -= 1;
        if silent {
            return;
        }
        // Verbs that take effect after an error need the chain, so the client gets an empty one.
        let chain = if ok { std::mem::take(&mut state.chain) } else { Chain::new() };
        conn.done.push_back((state.id, chain, result));
        self.ready.push(state.conn);
        self.log.add(self.now, client, LogEvent::Completed(ok));
    }
}

fn unreachable(node: usize, reason: &str) -> FabricError {
    FabricError::Unreachable { node: NodeId::new(node as u16), reason: reason.to_owned() }
}

fn fold(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |hash, word| hash ^ word)
}
