//! The memory fabric: several memory nodes inside this process, used by any number of threads.
//!
//! Invariants: far memory is only ever touched through [`Words`], so Miri sees every access; a chain is carried out by
//! the thread that posts it, either while it posts ([`Delivery::Immediate`]) or when it next asks for progress
//! ([`Delivery::Deferred`]), in posting order.

use crate::gate::{Gate, Gates};
use crate::transport::{Capabilities, Completions, Fabric, Identity, NodeInfo, Post, Transport};
use crate::words::Words;
use crate::{Chain, Endpoint, FabricError, NodeId, RemotePtr, VerbKind};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Answers [`VerbKind::Call`] in place of the memory node's CPU.
pub type Handler = dyn Fn(NodeId, &[u8]) -> Vec<u8> + Send + Sync;

/// Memory nodes inside this process.
#[derive(Clone)]
pub struct MemoryFabric {
    shared: Arc<Shared>,
    delivery: Delivery,
}

struct Shared {
    nodes: Vec<Box<[AtomicU64]>>,
    gates: Gates,
    next_token: AtomicU64,
    handler: Option<Box<Handler>>,
    epoch: Instant,
}

impl MemoryFabric {
    /// `nodes` memory nodes of `len` bytes each, all zeros.
    pub fn new(nodes: usize, len: u64) -> Result<Self, FabricError> {
        Self::with_handler(nodes, len, None)
    }

    /// The same, with something that answers calls.
    pub fn with_handler(nodes: usize, len: u64, handler: Option<Box<Handler>>) -> Result<Self, FabricError> {
        if nodes == 0 || nodes > crate::ptr::MAX_NODES {
            let max = crate::ptr::MAX_NODES;
            return Err(FabricError::Settings(format!("{nodes} memory nodes: it takes between 1 and {max}")));
        }
        if !len.is_multiple_of(8) || len == 0 || len > crate::ptr::MAX_NODE_LEN {
            return Err(FabricError::Settings(format!(
                "{len} bytes for each memory node: it takes a multiple of 8, at most {}",
                crate::ptr::MAX_NODE_LEN
            )));
        }
        let nodes = (0..nodes).map(|_| zeroed(len / 8)).collect::<Result<_, _>>()?;
        let shared =
            Shared { nodes, gates: Gates::default(), next_token: AtomicU64::new(1), handler, epoch: Instant::now() };
        Ok(MemoryFabric { shared: Arc::new(shared), delivery: Delivery::Immediate })
    }

    /// The same memory, with chains carried out at another moment.
    #[must_use]
    pub fn with_delivery(&self, delivery: Delivery) -> Self {
        MemoryFabric { shared: Arc::clone(&self.shared), delivery }
    }
}

fn zeroed(words: u64) -> Result<Box<[AtomicU64]>, FabricError> {
    let too_large =
        || FabricError::Settings(format!("cannot allocate {} bytes for a memory node", words.saturating_mul(8)));
    let len = usize::try_from(words).map_err(|_| too_large())?;
    crate::region::zeroed_words(len).ok_or_else(too_large)
}

impl Fabric for MemoryFabric {
    fn name(&self) -> &'static str {
        "memory"
    }
    fn nodes(&self) -> Vec<NodeInfo> {
        let infos = self.shared.nodes.iter().enumerate();
        infos.map(|(i, words)| NodeInfo { node: NodeId::new(i as u16), len: Words(words).len() }).collect()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { masked_cas: true, call: self.shared.handler.is_some(), cpu_atomic: true, zeroed: true }
    }
    fn new_identity(&self) -> Identity {
        let token = self.shared.next_token.fetch_add(1, Ordering::Relaxed);
        Identity { token, pid: u64::from(std::process::id()), started: 0 }
    }
    fn connect(&self, identity: &Identity) -> Result<Endpoint, FabricError> {
        let gate = self.shared.gates.open(identity);
        let connection =
            Connection { shared: Arc::clone(&self.shared), gate, delivery: self.delivery, queue: VecDeque::new() };
        Ok(Endpoint::new(Box::new(connection)))
    }
}

struct Connection {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    delivery: Delivery,
    queue: VecDeque<(u64, Chain)>,
}

impl Connection {
    fn run(&self, chain: &mut Chain) -> Result<(), FabricError> {
        let shared = &*self.shared;
        // A client may revoke itself, so control verbs run outside the gate.
        if chain.iter().any(|verb| matches!(verb.kind, VerbKind::Revoke(_))) {
            for verb in chain.iter() {
                if let VerbKind::Revoke(identity) = &verb.kind {
                    shared.gates.revoke(identity);
                }
            }
        }
        let _pass = self.gate.enter()?;
        let region = |ptr: RemotePtr| {
            let words = shared.nodes.get(ptr.node().index()).ok_or(FabricError::NoSuchNode(ptr.node()))?;
            Ok(Words(words))
        };
        Words::run(chain, region, |verb| {
            let node = verb.node();
            if let VerbKind::Call { request, reply } = &mut verb.kind {
                let unsupported = FabricError::Unsupported { fabric: "memory", verb: "CALL" };
                *reply = Some(shared.handler.as_ref().ok_or(unsupported)?(node, request.bytes()));
            }
            Ok(())
        })
    }
}

impl Transport for Connection {
    fn post(&mut self, id: u64, mut chain: Chain) -> Post {
        if self.delivery == Delivery::Deferred {
            self.queue.push_back((id, chain));
            return Post::Pending;
        }
        let result = self.run(&mut chain);
        Post::Done(chain, result)
    }
    fn progress(&mut self, completions: &mut dyn Completions) -> bool {
        let Some((id, mut chain)) = self.queue.pop_front() else {
            return false;
        };
        let result = self.run(&mut chain);
        completions.complete(id, chain, result);
        true
    }
    fn now(&self) -> Duration {
        self.shared.epoch.elapsed()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { masked_cas: true, call: self.shared.handler.is_some(), cpu_atomic: true, zeroed: true }
    }
    fn name(&self) -> &'static str {
        "memory"
    }
}
