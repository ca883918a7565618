//! The account of a pool: is every block where it should be?
//!
//! An auditor walks every index and notes each object that it reaches ([`Audit::reach`]); then [`Audit::settle`] compares
//! that with the chunks' descriptors and bitmaps.
//!
//! Invariants: the auditor is a client and is pinned while it reads an index, so a block that it saw linked cannot become
//! free before it has looked at the bitmap; a difference that a client at work may explain (a block in its stock, or in
//! its limbo) is never called lost; it is, once no other client is registered.

use crate::alloc::chunks::all_descriptors;
use crate::alloc::{classes, place};
use crate::layout::{ChunkDescriptor, ChunkUse};
use crate::session::Session;
use crate::{ClientInfo, PoolError, clients};
use farindex_fabric::{NodeId, RemotePtr, Span};
use std::collections::BTreeMap;

/// How full one node is, and what does not add up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Bytes of all chunks.
    pub data_bytes: u64,
    /// Bytes of chunks that were never used or are free.
    pub free_chunk_bytes: u64,
    /// Bytes of reachable objects, rounded to what they occupy.
    pub live_bytes: u64,
    /// Bytes of blocks that lie free in bitmaps.
    pub free_block_bytes: u64,
    /// Bytes that are neither reachable nor free: in the hands of clients at work, or lost.
    pub held_bytes: u64,
    /// Objects of `held_bytes`.
    pub held_objects: u64,
    /// Reachable objects.
    pub live_objects: u64,
}

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Node by node.
    pub nodes: Vec<NodeReport>,
    /// Other clients that were registered meanwhile.
    pub clients: Vec<ClientInfo>,
    /// Objects that are neither reachable nor free although no other client is there to hold them.
    pub lost: u64,
    /// Everything that is wrong, in words. Empty for a sound pool.
    pub problems: Vec<String>,
}

/// Problems that are spelled out; further ones are only counted.
const SPELLED_OUT: usize = 50;

/// An audit in progress.
#[derive(Default)]
pub struct Audit {
    /// Reached objects: address and bytes.
    reached: BTreeMap<RemotePtr, u64>,
    /// Reached from two places: an error, unless clients at work moved it in between.
    twice: Vec<String>,
    problems: Vec<String>,
    unspelled: u64,
}

impl Audit {
    /// Notes a problem.
    pub fn problem(&mut self, what: String) {
        if self.problems.len() < SPELLED_OUT {
            self.problems.push(what);
        } else {
            self.unspelled += 1;
        }
    }

    /// Notes an object that an index reaches.
    pub fn reach(&mut self, ptr: RemotePtr, bytes: u64, what: &str) {
        if self.reached.insert(ptr, bytes).is_some() {
            self.twice.push(format!("{what} at {ptr} is reached twice"));
        }
    }

    /// Objects noted so far.
    pub fn reached(&self) -> usize {
        self.reached.len()
    }

    /// Is this block marked free in its chunk's bitmap, or its chunk not a chunk of such blocks? Call it while the pin
    /// under which the block was seen is held. `None` means that all is well.
    pub async fn dangling(
        session: &Session,
        span: &Span,
        ptr: RemotePtr,
        bytes: u64,
    ) -> Result<Option<String>, PoolError> {
        let node = ptr.node();
        if node.index() >= session.pool().nodes().len() {
            return Ok(Some(format!("memory node {node} does not exist")));
        }
        let geometry = session.pool().geometry(node);
        let Some(chunk) = geometry.chunk_of(ptr) else { return Ok(Some("it lies outside of all chunks".to_owned())) };
        let buf = span.read(geometry.descriptor(node, chunk), size_of::<ChunkDescriptor>()).await?;
        let Some(descriptor) = buf.parse::<ChunkDescriptor>() else { return Ok(None) };
        let class = classes::of(bytes, geometry.chunk_size);
        Ok(match (ChunkUse::from_bits(descriptor.state), class) {
            (ChunkUse::Blocks { class: of_chunk, .. }, Some(class)) if of_chunk == class => {
                match place(&geometry, ptr, class) {
                    Some((_, bit)) if descriptor.free[bit as usize / 64] >> (bit % 64) & 1 == 1 => {
                        Some("its block is marked free".to_owned())
                    }
                    Some(_) => None,
                    None => Some("it does not point to the beginning of a block".to_owned()),
                }
            }
            (ChunkUse::Span { chunks, .. }, None) if u64::from(chunks) * geometry.chunk_size >= bytes => None,
            (used, _) => Some(format!("an object of {bytes} bytes lies in a chunk used as {used:?}")),
        })
    }

    /// Compares what was reached with the chunks.
    pub async fn settle(mut self, session: &Session, span: &Span) -> Result<AuditReport, PoolError> {
        let mine = session.client().slot();
        let mut others = clients(session.pool(), span).await?;
        others.retain(|client| client.slot != mine);
        let mut report = AuditReport { clients: others, ..AuditReport::default() };
        for node in session.pool().nodes() {
            let counted = self.settle_node(session, span, node, report.clients.is_empty()).await?;
            report.lost += if report.clients.is_empty() { counted.held_objects } else { 0 };
            report.nodes.push(counted);
        }
        for twice in std::mem::take(&mut self.twice).into_iter().filter(|_| report.clients.is_empty()) {
            self.problem(twice);
        }
        if report.lost > 0 {
            self.problem(format!("{} objects are lost: neither reachable nor free", report.lost));
        }
        if self.unspelled > 0 {
            self.problems.push(format!("and {} more", self.unspelled));
        }
        report.problems = self.problems;
        Ok(report)
    }

    async fn settle_node(
        &mut self,
        session: &Session,
        span: &Span,
        node: NodeId,
        alone: bool,
    ) -> Result<NodeReport, PoolError> {
        let geometry = session.pool().geometry(node);
        let (_, descriptors) = all_descriptors(session.pool(), span, node).await?;
        let used = descriptors.iter().filter(|descriptor| descriptor.state != 0).count() as u64;
        let mut report = NodeReport {
            data_bytes: geometry.chunks * geometry.chunk_size,
            free_chunk_bytes: (geometry.chunks - used) * geometry.chunk_size,
            ..NodeReport::default()
        };
        let mut reached = std::mem::take(&mut self.reached).into_iter().peekable();
        let mut rest = BTreeMap::new();
        // Everything that was reached on this node, chunk by chunk.
        let mut by_chunk: BTreeMap<u64, Vec<(RemotePtr, u64)>> = BTreeMap::new();
        for (ptr, bytes) in reached.by_ref() {
            match geometry.chunk_of(ptr) {
                _ if ptr.node() != node => drop(rest.insert(ptr, bytes)),
                Some(chunk) => by_chunk.entry(chunk).or_default().push((ptr, bytes)),
                None => self.problem(format!("the object at {ptr} lies outside of all chunks")),
            }
        }
        self.reached = rest;
        let mut tails = 0;
        for (chunk, descriptor) in (0..).zip(&descriptors) {
            let live = by_chunk.remove(&chunk).unwrap_or_default();
            report.live_objects += live.len() as u64;
            let at = geometry.chunk(node, chunk);
            let in_span = tails > 0;
            tails = u64::saturating_sub(tails, 1);
            match ChunkUse::from_bits(descriptor.state) {
                ChunkUse::Blocks { class, .. } => {
                    let blocks = classes::blocks(class, geometry.chunk_size);
                    let free: u64 = descriptor.free.iter().map(|word| u64::from(word.count_ones())).sum();
                    if free > blocks {
                        self.problem(format!("the chunk at {at} has {free} free blocks of {blocks}"));
                    }
                    let held = blocks.saturating_sub(free).saturating_sub(live.len() as u64);
                    report.live_bytes += live.len() as u64 * classes::bytes(class);
                    report.free_block_bytes += free * classes::bytes(class);
                    report.held_bytes += held * classes::bytes(class);
                    report.held_objects += held;
                }
                ChunkUse::Span { chunks, .. } => {
                    tails = u64::from(chunks).saturating_sub(1);
                    let bytes = u64::from(chunks) * geometry.chunk_size;
                    if live.is_empty() {
                        report.held_bytes += bytes;
                        report.held_objects += 1;
                    } else {
                        report.live_bytes += bytes;
                    }
                }
                ChunkUse::SpanTail { .. } if alone && !in_span => {
                    self.problem(format!("the chunk at {at} continues a span that does not exist"));
                }
                ChunkUse::SpanTail { .. } | ChunkUse::Free => {}
                ChunkUse::Unknown(bits) => self.problem(format!("the chunk at {at} has the unknown state {bits:#x}")),
            }
        }
        if alone {
            for (ptr, _) in by_chunk.into_values().flatten() {
                self.problem(format!("the object at {ptr} lies in a chunk that was never taken"));
            }
        }
        Ok(report)
    }
}
