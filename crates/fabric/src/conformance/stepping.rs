//! A fabric that does everything the contract allows, one word at a time, and, if asked, one thing that it forbids.
//!
//! Invariants: all is drawn from the seed, so a run repeats exactly; every step reads or writes at most one word (large
//! transfers go faster), and which verb's step comes next is chosen among all that are allowed to: verbs of other
//! batches in flight (N1), words within a verb (N2), WRITEs ahead of earlier READs (N3). Batches that are posted together
//! are collected, and set off together. Time is virtual.
//!
//! It checks the suite in both directions: without a flaw it passes, so the suite asks for nothing that is not
//! promised; with a [`Flaw`] it fails, by the clause that the flaw breaks.

mod flaws;

pub use flaws::Flaw;

use super::{FabricUnderTest, Script, Verdict, as_coroutines};
use crate::call::{self, CallRefused, CallTable, RegionView};
use crate::transport::{Capabilities, Completions, Fabric, Identity, NodeInfo, Post, Transport};
use crate::{Chain, Endpoint, FabricError, NodeId, VerbKind};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A chain's verb, as far as it has come.
struct Step {
    verb: usize,
    node: usize,
    first: usize,
    fence: bool,
    act: Act,
    /// Words that are still to be touched, in the order in which they will be.
    left: Vec<usize>,
    /// Between the two halves of something that should have been whole.
    half: Option<u64>,
}

enum Act {
    Read(Vec<u64>),
    Write(Vec<u64>),
    Cas { expect: u64, new: u64, compare: u64, swap: u64, old: u64, masked: bool },
    Faa { add: u64, old: u64 },
    Revoke(u64),
    Call(Vec<u8>, Option<Result<Vec<u8>, CallRefused>>),
}

impl Act {
    fn is_write(&self) -> bool {
        matches!(self, Act::Write(_))
    }
}

struct InFlight {
    id: u64,
    connection: u64,
    token: u64,
    steps: Vec<Step>,
    acknowledged: bool,
    /// Its steps wait for nothing.
    unordered: bool,
}

impl InFlight {
    /// Does it ask for what `other` asks for, as far as the form of its results goes?
    fn is_like(&self, other: &InFlight) -> bool {
        let like = |(mine, theirs): (&Step, &Step)| match (&mine.act, &theirs.act) {
            (Act::Read(mine), Act::Read(theirs)) | (Act::Write(mine), Act::Write(theirs)) => mine.len() == theirs.len(),
            (Act::Cas { .. }, Act::Cas { .. }) | (Act::Faa { .. }, Act::Faa { .. }) => true,
            _ => false,
        };
        self.steps.len() == other.steps.len() && self.steps.iter().zip(&other.steps).all(like)
    }
}

/// Batches that are sent together at most.
const TOGETHER: usize = 3;

/// A chain that has ended, on its way back.
struct Ended {
    id: u64,
    steps: Vec<Step>,
    result: Result<(), FabricError>,
}

struct World {
    nodes: Vec<Vec<u64>>,
    in_flight: Vec<InFlight>,
    ended: HashMap<u64, VecDeque<Ended>>,
    revoked: HashSet<u64>,
    /// Connections of revoked clients that were let in: see [`Flaw::RevokesConnectionsOnly`].
    escaped: HashSet<u64>,
    /// A memory node that never answers.
    silent: Option<usize>,
    seen: HashMap<(u64, usize, usize), u64>,
    random: u64,
    now: u64,
    connections: u64,
    tokens: u64,
    masked_cas: bool,
    calls: bool,
    flaw: Option<Flaw>,
}

const STEP_NS: u64 = 20;
/// Transfers of more words than this take many words in a step.
const SLOW_WORDS: usize = 512;

impl World {
    fn draw(&mut self, below: usize) -> usize {
        // xorshift64*: small, and good enough to pick a turn.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        ((self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % below.max(1)
    }
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
    fn now_and_then(&mut self, flaw: Flaw) -> bool {
        self.has(flaw) && self.draw(8) == 0
    }

    /// Must `earlier` have taken effect before `later` may, in one batch?
    fn holds_back(&self, earlier: &Step, later: &Step) -> bool {
        if later.fence && !earlier.act.is_write() && !self.has(Flaw::IgnoresFences) {
            return true;
        }
        if earlier.node != later.node {
            return false;
        }
        match (&earlier.act, &later.act) {
            (Act::Write(_), Act::Write(_)) => !self.has(Flaw::WritesOvertakeWrites),
            (Act::Write(_), Act::Read(_)) => !self.has(Flaw::ReadsOvertakeWrites),
            (Act::Write(_), Act::Cas { masked: true, .. }) if self.has(Flaw::MaskedCasOvertakesWrites) => false,
            (Act::Write(_), _) => !self.has(Flaw::AtomicsOvertakeWrites),
            (_, Act::Write(_)) => false,
            _ => !self.has(Flaw::ReadsOvertakeAtomics),
        }
    }

    /// Takes one step of one verb of one batch.
    fn step(&mut self) {
        self.now += STEP_NS;
        if self.in_flight.is_empty() {
            return;
        }
        let place = self.draw(self.in_flight.len());
        let mut flight = self.in_flight.swap_remove(place);
        let backwards = self.has(Flaw::Backwards);
        let free = |i: &usize| {
            let later = &flight.steps[*i];
            let earlier = if backwards { &flight.steps[*i + 1..] } else { &flight.steps[..*i] };
            !later.left.is_empty()
                && self.silent != Some(later.node)
                && (flight.unordered
                    || !earlier.iter().any(|step| !step.left.is_empty() && (backwards || self.holds_back(step, later))))
        };
        let ready: Vec<usize> = (0..flight.steps.len()).filter(free).collect();
        if !ready.is_empty() {
            let chosen = ready[self.draw(ready.len())];
            let step = &mut flight.steps[chosen];
            let turns = if step.left.len() > SLOW_WORDS { SLOW_WORDS } else { 1 };
            for _ in 0..turns {
                self.touch(step, flight.token);
            }
        }
        if flight.steps.iter().any(|step| !step.left.is_empty()) {
            self.in_flight.push(flight);
        } else {
            self.end(flight, Ok(()));
        }
    }

    /// Touches one word.
    fn touch(&mut self, step: &mut Step, token: u64) {
        let Some(&at) = step.left.last() else {
            return;
        };
        let (node, index) = (step.node, step.first + at);
        let halves = match step.act {
            Act::Read(_) => self.has(Flaw::ReadsHalves),
            Act::Write(_) => self.has(Flaw::WritesHalves),
            Act::Cas { .. } => self.has(Flaw::SplitsCas) || self.has(Flaw::FailedCasWritesBack),
            Act::Faa { .. } => self.has(Flaw::SplitsFaa),
            Act::Revoke(_) | Act::Call(..) => false,
        };
        let halved_store = self.has(Flaw::AtomicsStoreHalves) && matches!(step.act, Act::Cas { .. } | Act::Faa { .. });
        let stale = matches!(step.act, Act::Read(_)) && self.now_and_then(Flaw::ReadsStale);
        let twice = matches!(step.act, Act::Faa { .. }) && self.now_and_then(Flaw::AppliesTwice);
        let whole_mask = self.has(Flaw::MaskedCasWritesAll);
        let write_back = self.has(Flaw::FailedCasWritesBack);
        if let Act::Revoke(victim) = step.act {
            if self.has(Flaw::RevokesAllOthers) {
                (1..=self.tokens).filter(|other| *other != token).for_each(|other| self.revoke(other));
            }
            self.revoke(victim);
            step.left.pop();
            return;
        }
        if let Act::Call(request, reply) = &mut step.act {
            let seen = if self.has(Flaw::CallsReachTheFirstNode) { 0 } else { node };
            let view = RegionView::exclusive(NodeId::new(node as u16), &mut self.nodes[seen]);
            let handler = CallTable::builtin().into_handler();
            let answer = call::answer(&*handler, &view, request);
            *reply = Some(if self.has(Flaw::CallsSwallowRefusals) { Ok(answer.unwrap_or_default()) } else { answer });
            step.left.pop();
            return;
        }
        let now = self.nodes[node][index];
        let begun = step.half.take();
        if halves && begun.is_none() {
            step.half = Some(now);
            if let Act::Write(data) = &step.act {
                self.nodes[node][index] = now >> 32 << 32 | data[at] & 0xffff_ffff;
            }
            return;
        }
        if halved_store && let Some(result) = begun {
            self.nodes[node][index] = result;
            step.left.pop();
            return;
        }
        // What it saw when it began: something else than now only for the flawed.
        let word = begun.unwrap_or(now);
        match &mut step.act {
            Act::Read(data) => {
                let key = (token, node, index);
                data[at] = match (stale, self.seen.get(&key)) {
                    (true, Some(before)) => *before,
                    _ if halves => now >> 32 << 32 | word & 0xffff_ffff,
                    _ => now,
                };
                if self.flaw == Some(Flaw::ReadsStale) {
                    self.seen.entry(key).or_insert(now);
                }
            }
            Act::Write(data) => self.nodes[node][index] = data[at],
            Act::Cas { expect, new, compare, swap, old, masked } => {
                *old = if write_back { now } else { word };
                if (*old ^ *expect) & *compare == 0 {
                    let swap = if whole_mask && *masked { u64::MAX } else { *swap };
                    self.nodes[node][index] = *old & !swap | *new & swap;
                } else if write_back {
                    self.nodes[node][index] = word;
                }
            }
            Act::Faa { add, old } => {
                *old = word;
                self.nodes[node][index] = word.wrapping_add(if twice { 2 * *add } else { *add });
            }
            Act::Revoke(_) | Act::Call(..) => {}
        }
        if halved_store {
            let result = self.nodes[node][index];
            self.nodes[node][index] = now >> 32 << 32 | result & 0xffff_ffff;
            step.half = Some(result);
            return;
        }
        step.left.pop();
    }

    fn revoke(&mut self, victim: u64) {
        if self.has(Flaw::RevokeDoesNothing) {
            return;
        }
        self.revoked.insert(victim);
        if self.has(Flaw::RevokesWhatComesNext) {
            return;
        }
        for flight in std::mem::take(&mut self.in_flight) {
            let calls = flight.steps.iter().any(|step| matches!(step.act, Act::Call(..)));
            if flight.token == victim && !(calls && self.has(Flaw::RevokesNoCalls)) {
                self.end(flight, Err(FabricError::Revoked));
            } else {
                self.in_flight.push(flight);
            }
        }
    }

    fn end(&mut self, flight: InFlight, result: Result<(), FabricError>) {
        if flight.acknowledged || self.now_and_then(Flaw::LosesCompletions) {
            return;
        }
        let (id, twice) = (flight.id, self.now_and_then(Flaw::CompletesTwice));
        let back = self.ended.entry(flight.connection).or_default();
        back.push_back(Ended { id, steps: flight.steps, result });
        if twice {
            back.push_back(Ended { id, steps: Vec::new(), result: Ok(()) });
        }
    }

    fn check(&self, chain: &Chain) -> Result<(), FabricError> {
        for verb in chain {
            let words = self.nodes.get(verb.node().index()).ok_or(FabricError::NoSuchNode(verb.node()))?;
            let region = words.len() as u64 * 8;
            if verb.ptr.offset() + verb.len() as u64 > region {
                return Err(FabricError::OutOfBounds { ptr: verb.ptr, len: verb.len(), region });
            }
            if matches!(verb.kind, VerbKind::Call { .. }) && !self.calls {
                return Err(FabricError::Unsupported { fabric: "stepping", verb: "CALL" });
            }
        }
        Ok(())
    }

    /// The steps of the verbs from `chain` that can be carried out.
    fn steps(&mut self, chain: &Chain) -> Vec<Step> {
        let mut steps = Vec::new();
        for (i, verb) in chain.iter().enumerate() {
            let (node, first, words) = (verb.node().index(), (verb.ptr.offset() / 8) as usize, verb.len() / 8);
            if node >= self.nodes.len() || first + words > self.nodes[node].len() {
                break;
            }
            let (act, touches) = match &verb.kind {
                VerbKind::Read(buf) => (Act::Read(vec![0; buf.words().len()]), words),
                VerbKind::Write(buf) => (Act::Write(buf.words().to_vec()), words),
                VerbKind::Cas { expect, new, .. } => {
                    let (compare, swap) = (u64::MAX, u64::MAX);
                    (Act::Cas { expect: *expect, new: *new, compare, swap, old: 0, masked: false }, 1)
                }
                VerbKind::MaskedCas { expect, new, compare_mask, swap_mask, .. } if self.masked_cas => {
                    let (compare, swap) = (*compare_mask, *swap_mask);
                    (Act::Cas { expect: *expect, new: *new, compare, swap, old: 0, masked: true }, 1)
                }
                VerbKind::Faa { add, .. } => (Act::Faa { add: *add, old: 0 }, 1),
                VerbKind::Revoke(identity) => (Act::Revoke(identity.token), 1),
                VerbKind::Call { request, .. } => (Act::Call(request.bytes().to_vec(), None), 1),
                VerbKind::MaskedCas { .. } => break,
            };
            let mut left: Vec<usize> = (0..touches).collect();
            for i in (1..left.len()).rev() {
                left.swap(i, self.draw(i + 1));
            }
            steps.push(Step { verb: i, node, first, fence: verb.fence, act, left, half: None });
        }
        steps
    }
}

/// The fabric.
pub struct SteppingFabric {
    world: Arc<Mutex<World>>,
}

impl SteppingFabric {
    /// Memory nodes of zeros.
    pub fn new(nodes: usize, len: u64, settings: Stepping) -> Self {
        let Stepping { seed, masked_cas, calls, flaw } = settings;
        let world = World {
            nodes: vec![vec![0; (len / 8) as usize]; nodes],
            in_flight: Vec::new(),
            ended: HashMap::new(),
            revoked: HashSet::new(),
            escaped: HashSet::new(),
            silent: None,
            seen: HashMap::new(),
            // Neighbouring seeds must not begin alike, and the generator must not begin with zero.
            random: (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5_deec_e66d) | 1,
            now: 0,
            connections: 0,
            tokens: 0,
            masked_cas,
            calls,
            flaw,
        };
        SteppingFabric { world: Arc::new(Mutex::new(world)) }
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

fn capabilities(world: &World) -> Capabilities {
    Capabilities { masked_cas: world.masked_cas, call: world.calls, cpu_atomic: false, zeroed: true }
}

impl Fabric for SteppingFabric {
    fn name(&self) -> &'static str {
        "stepping"
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        let world = lock(&self.world);
        let infos = world.nodes.iter().enumerate();
        infos.map(|(i, words)| NodeInfo { node: NodeId::new(i as u16), len: words.len() as u64 * 8 }).collect()
    }
    fn capabilities(&self) -> Capabilities {
        capabilities(&lock(&self.world))
    }
    fn new_identity(&self) -> Identity {
        let mut world = lock(&self.world);
        world.tokens += 1;
        Identity { token: world.tokens, pid: 0, started: 0 }
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        let mut world = lock(&self.world);
        world.connections += 1;
        if world.revoked.contains(&identity.token) && !world.has(Flaw::RevokesConnectionsOnly) {
            return Err(FabricError::Revoked);
        }
        let (number, token) = (world.connections, identity.token);
        if world.revoked.contains(&token) {
            world.escaped.insert(number);
        }
        drop(world);
        let world = Arc::clone(&self.world);
        Ok(Endpoint::new(Box::new(Connection { world, number, token, chains: HashMap::new(), collected: Vec::new() })))
    }
}

struct Connection {
    world: Arc<Mutex<World>>,
    number: u64,
    token: u64,
    chains: HashMap<u64, Chain>,
    collected: Vec<InFlight>,
}

impl Transport for Connection {
    fn post(&mut self, id: u64, chain: Chain) -> Post {
        let mut world = lock(&self.world);
        if world.revoked.contains(&self.token) && !world.escaped.contains(&self.number) {
            return Post::Done(chain, Err(FabricError::Revoked));
        }
        if let Err(error) = world.check(&chain) {
            if world.has(Flaw::RefusesWholeMessages) {
                for flight in self.collected.drain(..) {
                    world.end(flight, Err(error.clone()));
                }
            }
            if !world.has(Flaw::ChecksOneByOne) && !world.has(Flaw::SwallowsErrors) {
                return Post::Done(chain, Err(error));
            }
            let mut steps = world.steps(&chain);
            for step in &mut steps {
                while !step.left.is_empty() {
                    world.touch(step, self.token);
                }
            }
            let result = if world.has(Flaw::SwallowsErrors) { Ok(()) } else { Err(error) };
            return Post::Done(chain, result);
        }
        let steps = world.steps(&chain);
        if world.has(Flaw::TakesSilenceForSuccess) && steps.iter().any(|step| world.silent == Some(step.node)) {
            return Post::Done(chain, Ok(()));
        }
        let behind = world.has(Flaw::WritesBehind) && steps.iter().all(|step| step.act.is_write());
        let (connection, token) = (self.number, self.token);
        let flight = InFlight { id, connection, token, steps, acknowledged: behind, unordered: false };
        drop(world);
        self.collected.push(flight);
        if self.collected.len() >= TOGETHER {
            self.flush();
        }
        if behind {
            return Post::Done(chain, Ok(()));
        }
        self.chains.insert(id, chain);
        Post::Pending
    }

    fn flush(&mut self) {
        let mut world = lock(&self.world);
        let mut message = std::mem::take(&mut self.collected);
        let several = message.len() > 1;
        if world.has(Flaw::KeepsALoneBatch) && !several {
            self.collected = message;
            return;
        }
        if let [first, .., last] = &mut message[..]
            && world.has(Flaw::SwapsAnswers)
            && first.is_like(last)
        {
            std::mem::swap(&mut first.id, &mut last.id);
        }
        if several && world.now_and_then(Flaw::LosesOneOfAMessage) {
            message.pop();
        }
        if let Some(last) = message.last_mut() {
            last.unordered = several && world.has(Flaw::LosesOrderInAMessage);
        }
        let revoked = world.revoked.contains(&self.token) && !world.escaped.contains(&self.number);
        for flight in message {
            if revoked && !world.has(Flaw::RevokesAllButTheCollected) {
                world.end(flight, Err(FabricError::Revoked));
            } else {
                world.in_flight.push(flight);
            }
        }
    }

    fn collects(&self) -> bool {
        !self.collected.is_empty()
    }

    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        self.flush();
        let mut world = lock(&self.world);
        world.step();
        let ended = world.ended.get_mut(&self.number).and_then(VecDeque::pop_front);
        drop(world);
        let Some(Ended { id, steps, result }) = ended else {
            return false;
        };
        let mut chain = self.chains.remove(&id).unwrap_or_default();
        for step in steps {
            match (step.act, chain.get_mut(step.verb).map(|verb| &mut verb.kind)) {
                (Act::Read(data), Some(VerbKind::Read(buf))) => buf.words_mut().copy_from_slice(&data),
                (Act::Cas { old: saw, .. }, Some(VerbKind::Cas { old, .. } | VerbKind::MaskedCas { old, .. }))
                | (Act::Faa { old: saw, .. }, Some(VerbKind::Faa { old, .. })) => *old = saw,
                (Act::Call(_, answer), Some(VerbKind::Call { reply, .. })) => *reply = answer,
                _ => {}
            }
        }
        completions.complete(id, chain, result.map_err(Box::new));
        true
    }

    fn now(&self) -> Duration {
        let mut world = lock(&self.world);
        // Reading the clock takes time too, so that a client that only sleeps makes progress.
        world.now += STEP_NS;
        Duration::from_nanos(world.now)
    }
    fn capabilities(&self) -> Capabilities {
        capabilities(&lock(&self.world))
    }
    fn name(&self) -> &'static str {
        "stepping"
    }
}

/// The stepping fabric under test.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stepping {
    /// What all is drawn from.
    pub seed: u64,
    /// Does it have the verb masked CAS?
    pub masked_cas: bool,
    /// Does it have the verb CALL?
    pub calls: bool,
    /// What it does wrong.
    pub flaw: Option<Flaw>,
}

impl FabricUnderTest for Stepping {
    fn fabric(&self, nodes: usize, len: u64) -> Result<Arc<dyn Fabric>, FabricError> {
        Ok(Arc::new(SteppingFabric::new(nodes, len, *self)))
    }
    fn silent_fabric(&self, nodes: usize, len: u64, silent: NodeId) -> Option<Arc<dyn Fabric>> {
        let fabric = SteppingFabric::new(nodes, len, *self);
        lock(&fabric.world).silent = Some(silent.index());
        Some(Arc::new(fabric))
    }
    fn run(&self, fabric: &Arc<dyn Fabric>, scripts: Vec<Script>) -> Vec<Verdict> {
        as_coroutines(&**fabric, scripts, true)
    }
    fn rounds(&self) -> u64 {
        if cfg!(miri) { 8 } else { 100 }
    }
    fn patience(&self) -> Duration {
        Duration::from_millis(if cfg!(miri) { 1 } else { 20 })
    }
}
