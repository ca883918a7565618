//! The common part of fabrics whose memory nodes are mapped into the process: its own memory, and mapped files.
//!
//! Invariants: far memory is only ever touched through [`Words`], between the entry to and the exit from the client's
//! gate (G6); a chain is checked whole (nodes, bounds, alignment, permission, control verbs) before any of it takes
//! effect; it is carried out by the thread that posts it, in posting order, either while it posts
//! ([`Delivery::Immediate`]) or when it next asks for progress ([`Delivery::Deferred`]).

use crate::call::{self, CallHandler, RegionView};
use crate::gate::{Gate, Gates};
use crate::region::{self, Region};
use crate::transport::{Capabilities, Completions, Identity, NodeInfo, Post, Transport};
use crate::words::{self, Words};
use crate::{Buf, Chain, Endpoint, FabricError, NodeId, RemotePtr, Verb, VerbKind};
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When a posted chain is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// At once, while it is posted.
    #[default]
    Immediate,
    /// When the endpoint next asks for progress, so that the coroutines of one thread interleave as on a network.
    Deferred,
}

/// How the endpoints of one fabric carry out what is posted.
#[derive(Clone, Default)]
pub(crate) struct Manner {
    pub(crate) delivery: Delivery,
    /// Answers calls in place of the memory nodes' CPUs, on the thread that posts them.
    pub(crate) handler: Option<Arc<CallHandler>>,
    /// Latency of a cache line, injected; zero on real memory.
    pub(crate) line: Duration,
}

/// Cache lines that a processor fetches at a time: the line-fill buffers of one core.
const LINES_AT_A_TIME: u32 = 10;

impl Manner {
    /// What the cache lines of a chain take, where a latency is injected: those of its READs overlap, each atomic takes its
    /// own.
    fn waits(&self, chain: &[Verb]) -> Duration {
        let (mut lines, mut atomics) = (0u32, 0u32);
        for verb in chain {
            match &verb.kind {
                VerbKind::Read(buf) => {
                    let (first, end) =
                        (verb.ptr.offset() / LINE, (verb.ptr.offset() + buf.len() as u64).div_ceil(LINE));
                    lines = lines.saturating_add(end.saturating_sub(first) as u32);
                }
                VerbKind::Cas { .. } | VerbKind::Faa { .. } | VerbKind::MaskedCas { .. } => atomics += 1,
                _ => {}
            }
        }
        self.line * (lines.div_ceil(LINES_AT_A_TIME) + atomics)
    }
}

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Revokes clients of other processes, which the gates of this process cannot.
pub(crate) type RevokeForeign = dyn Fn(&Identity) -> Result<(), FabricError> + Send + Sync;

/// The memory nodes of one fabric, and the gates of the clients that may touch them.
pub(crate) struct Mapped {
    pub(crate) name: &'static str,
    pub(crate) nodes: Vec<Region>,
    pub(crate) gates: Arc<Gates>,
    pub(crate) revoke_foreign: Box<RevokeForeign>,
    pub(crate) read_only: bool,
    pub(crate) zeroed: bool,
    pub(crate) epoch: Instant,
    /// Files that stay locked for as long as their memory is in use.
    pub(crate) _held: Vec<File>,
}

impl Mapped {
    pub(crate) fn node_infos(&self) -> Vec<NodeInfo> {
        let infos = self.nodes.iter().enumerate();
        infos.map(|(i, region)| NodeInfo { node: NodeId::new(i as u16), len: Words(region.words()).len() }).collect()
    }

    pub(crate) fn capabilities(&self, manner: &Manner) -> Capabilities {
        Capabilities { masked_cas: true, call: self.handler(manner).is_some(), cpu_atomic: true, zeroed: self.zeroed }
    }

    /// The handler that answers calls. (Memory that is mapped read-only has none: not every kind of load is guaranteed
    /// to work there.)
    fn handler<'m>(&self, manner: &'m Manner) -> Option<&'m CallHandler> {
        manner.handler.as_deref().filter(|_| !self.read_only)
    }

    pub(crate) fn connect(self: &Arc<Self>, identity: &Identity, manner: &Manner) -> Endpoint {
        let (gate, manner) = (self.gates.open(identity), manner.clone());
        let mapped = Arc::clone(self);
        Endpoint::new(Box::new(Connection { mapped, gate, manner, queue: VecDeque::new() }))
    }

    #[inline]
    fn region(&self, ptr: RemotePtr) -> Result<Words<'_>, FabricError> {
        match self.nodes.get(ptr.node().index()) {
            Some(region) => Ok(Words(region.words())),
            None => Err(FabricError::NoSuchNode(ptr.node())),
        }
    }

    /// Checks rights and capabilities; returns whether the chain revokes a client.
    fn check_rights(&self, chain: &[Verb], manner: &Manner) -> Result<bool, FabricError> {
        let mut revokes = false;
        for verb in chain {
            match verb.kind {
                VerbKind::Read(_) => {}
                VerbKind::Revoke(_) => revokes = true,
                VerbKind::Call { .. } if self.handler(manner).is_none() => {
                    return Err(FabricError::Unsupported { fabric: self.name, verb: "CALL" });
                }
                _ if self.read_only => return Err(FabricError::ReadOnly(verb.node())),
                _ => {}
            }
        }
        Ok(revokes)
    }

    /// Carries a chain out. If a region's file was cut, verbs on it have touched zeros in its place, and the chain
    /// fails. The error is behind a pointer so that success moves no room for it about.
    #[inline]
    fn run(&self, gate: &Gate, chain: &mut [Verb], manner: &Manner) -> Result<(), Box<FabricError>> {
        let words = |verb: &Verb| {
            let region = self.nodes.get(verb.ptr.node().index())?;
            Words(region.words()).one_sided(verb)
        };
        let ran = if self.read_only { None } else { Words::run_one_sided(chain, words, || gate.enter()) };
        match ran {
            Some(result) => result?,
            None => self.carry_out(gate, chain, manner)?,
        }
        if region::any_lost() { self.check_lost(chain) } else { Ok(()) }
    }

    /// Carries out one READ; `None` where a chain says why it fails.
    #[inline]
    fn read(&self, gate: &Gate, ptr: RemotePtr, buf: &mut Buf) -> Option<Result<(), Box<FabricError>>> {
        let region = Words(self.nodes.get(ptr.node().index())?.words());
        let words = region.aligned(ptr, buf.len())?;
        {
            let _pass = match gate.enter() {
                Ok(pass) => pass,
                Err(error) => return Some(Err(error)),
            };
            words::fetch(buf.words_mut(), words);
        }
        // Zeros may have taken the place of a region: a chain is told by its next look at it.
        (!region::any_lost()).then_some(Ok(()))
    }

    #[cold]
    fn check_lost(&self, chain: &[Verb]) -> Result<(), Box<FabricError>> {
        let lost = |node: NodeId| self.nodes.get(node.index()).is_some_and(Region::is_lost);
        match chain.iter().map(|verb| verb.node()).find(|node| lost(*node)) {
            Some(node) => Err(Box::new(FabricError::Unreachable { node, reason: LOST.to_owned() })),
            None => Ok(()),
        }
    }

    /// Carries out any chain: with control verbs, on memory that may only be read, or one that fails.
    #[cold]
    fn carry_out(&self, gate: &Gate, chain: &mut [Verb], manner: &Manner) -> Result<(), Box<FabricError>> {
        self.carry_out_any(gate, chain, manner).map_err(Box::new)
    }

    fn carry_out_any(&self, gate: &Gate, chain: &mut [Verb], manner: &Manner) -> Result<(), FabricError> {
        if self.check_rights(chain, manner)? {
            Words::check_all(chain, |ptr| self.region(ptr))?;
            for verb in chain.iter() {
                if let VerbKind::Revoke(identity) = &verb.kind {
                    self.gates.revoke(gate, identity)?;
                    (self.revoke_foreign)(identity)?;
                }
            }
            // A chain of revocations alone is done: a client that revoked itself gets Ok, though its gate is closed by
            // now.
            if chain.iter().all(|verb| matches!(verb.kind, VerbKind::Revoke(_))) {
                return Ok(());
            }
        }
        let _pass = gate.enter().map_err(|error| *error)?;
        if self.read_only {
            Words::check_all(chain, |ptr| self.region(ptr))?;
            return chain.iter_mut().try_for_each(|verb| self.region(verb.ptr)?.peek(verb));
        }
        Words::run(
            chain,
            |ptr| self.region(ptr),
            |verb| {
                let Words(words) = self.region(verb.ptr)?;
                let view = RegionView::shared(verb.node(), words);
                if let (VerbKind::Call { request, reply }, Some(handler)) = (&mut verb.kind, self.handler(manner)) {
                    *reply = Some(call::answer(handler, &view, request.bytes()));
                }
                Ok(())
            },
        )
    }
}

const LOST: &str = "a part of its file is gone: the file was cut while it was mapped, or its file system is full; put the \
    file back from a copy and open it again";

struct Connection {
    mapped: Arc<Mapped>,
    gate: Arc<Gate>,
    manner: Manner,
    queue: VecDeque<(u64, Chain)>,
}

impl Connection {
    /// Waits as long as the chain's cache lines take, where a latency is injected.
    #[cold]
    fn wait_for_lines(&self, chain: &[Verb]) {
        let until = self.now() + self.manner.waits(chain);
        self.wait_until(until);
    }
    fn wait_until(&self, until: Duration) {
        while self.now() < until {
            std::hint::spin_loop();
        }
    }
}

impl Transport for Connection {
    fn post(&mut self, id: u64, mut chain: Chain) -> Post {
        match self.run_now(&mut chain) {
            Some(result) => Post::Done(chain, result.map_err(|error| *error)),
            None => {
                self.queue.push_back((id, chain));
                Post::Pending
            }
        }
    }
    #[inline]
    fn run_now(&mut self, chain: &mut [Verb]) -> Option<Result<(), Box<FabricError>>> {
        match self.manner.delivery {
            Delivery::Immediate => {
                if !self.manner.line.is_zero() {
                    self.wait_for_lines(chain);
                }
                Some(self.mapped.run(&self.gate, chain, &self.manner))
            }
            Delivery::Deferred => None,
        }
    }
    fn runs_now(&self) -> bool {
        // By nothing more than loads.
        self.manner.delivery == Delivery::Immediate && self.manner.line.is_zero() && !self.mapped.read_only
    }
    fn read_now(&mut self, ptr: RemotePtr, buf: &mut Buf) -> Option<Result<(), Box<FabricError>>> {
        self.mapped.read(&self.gate, ptr, buf)
    }
    fn fetch_ahead(&mut self, chain: &Chain) -> Option<Duration> {
        if self.manner.delivery != Delivery::Immediate {
            return None;
        }
        for verb in chain {
            let VerbKind::Read(_) = verb.kind else { return None };
            self.mapped.region(verb.ptr).ok()?.prefetch(verb);
        }
        Some(if self.manner.line.is_zero() { Duration::ZERO } else { self.now() + self.manner.waits(chain) })
    }
    fn run_fetched(&mut self, chain: &mut Chain, from: Duration) -> Result<(), Box<FabricError>> {
        if !from.is_zero() {
            self.wait_until(from);
        }
        self.mapped.run(&self.gate, chain, &self.manner)
    }
    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        let Some((id, mut chain)) = self.queue.pop_front() else {
            return false;
        };
        let result = self.mapped.run(&self.gate, &mut chain, &self.manner);
        completions.complete(id, chain, result);
        true
    }
    fn now(&self) -> Duration {
        self.mapped.epoch.elapsed()
    }
    fn capabilities(&self) -> Capabilities {
        self.mapped.capabilities(&self.manner)
    }
    fn name(&self) -> &'static str {
        self.mapped.name
    }
}
