//! Audit of a pool: compares the memory that the indexes reach with the memory that the allocator has given out.
//!
//! An auditor walks every index and records each object that it reaches ([`Audit::reach`]). Then [`Audit::settle`]
//! compares these objects with the chunks' descriptors and bitmaps.
//!
//! Invariants: the auditor is a client, and is pinned while it reads an index, so a block that it saw linked cannot
//! become free before it reads the bitmap. A difference that another client may explain (a block in its free list or
//! retire list) is never called lost. It is called lost if no other client was registered from the beginning of the
//! walk to its end. A client that came or left in between may have changed what was walked already. Every slot counts
//! its owners, so equal slot words before and after prove that no client did. The walk itself may finish what another
//! client has left to the next one, and retire what it has recorded. Then the audit is *outdated*
//! ([`Audit::is_outdated`]), and says as little as if others were there.

use crate::alloc::bitmap::{Chunk, free_blocks, marked_bits};
use crate::alloc::chunks::all_chunks;
use crate::alloc::{classes, place};
use crate::layout::{ChunkDescriptor, ChunkUse, Geometry};
use crate::lease::slot_words;
use crate::session::Session;
use crate::{ClientInfo, PoolError, clients};
use farindex_fabric::cold;
use farindex_fabric::ptr::BLOCK_ALIGN;
use farindex_fabric::{NodeId, RemotePtr, Span};
use std::collections::HashMap;

/// Memory usage of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Bytes of all chunks.
    pub data_bytes: u64,
    /// Bytes of chunks that are unused or free.
    pub free_chunk_bytes: u64,
    /// Bytes of reachable objects, rounded up to their blocks or chunks.
    pub live_bytes: u64,
    /// Bytes of blocks that are free in the bitmaps.
    pub free_block_bytes: u64,
    /// Bytes that are neither reachable nor free: allocated by running clients and not linked, or lost.
    pub held_bytes: u64,
    /// Objects of `held_bytes`.
    pub held_objects: u64,
    /// Reachable objects.
    pub live_objects: u64,
}

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Memory usage of each node.
    pub nodes: Vec<NodeReport>,
    /// Other clients that were registered during the audit, crashed ones included.
    pub clients: Vec<ClientInfo>,
    /// True if no other client was registered from beginning to end, except crashed ones, this session keeps no memory
    /// itself, and the audit is not outdated. Only then is memory called lost.
    pub alone: bool,
    /// Number of objects that crashed clients leaked: neither reachable nor free, and no other client is registered.
    pub lost: u64,
    /// Bytes of these objects.
    pub lost_bytes: u64,
    /// Descriptions of all inconsistencies; empty for a sound pool. Leaked memory is none.
    pub problems: Vec<String>,
}

impl AuditReport {
    /// Describes the leaked memory; `None` if there is none.
    pub fn leak(&self) -> Option<String> {
        let (objects, bytes) = (self.lost, self.lost_bytes);
        (objects > 0).then(|| format!("{objects} objects of {bytes} bytes are leaked: neither reachable nor free"))
    }
}

/// Most problems that are described; further ones are only counted.
const MOST_DESCRIBED: usize = 50;

/// An audit in progress.
#[derive(Default)]
pub struct Audit {
    /// Reached objects, by the 4 KiB page in which they begin. Chunks are whole pages, so a page lies in one chunk.
    pub(crate) pages: HashMap<u64, Page>,
    reached: usize,
    /// Objects that were reached twice: an error, unless a running client moved them meanwhile.
    twice: Vec<String>,
    pub(crate) problems: Vec<String>,
    undescribed: u64,
    /// State words of all client slots before the walk, and the number of sessions that this client had opened.
    before: Option<(Vec<u64>, u64)>,
    /// Objects that the session had retired before the walk.
    retirements: Option<u64>,
    /// Crashed clients may have left unfinished changes.
    unfinished: bool,
    /// The walk may have missed objects.
    pub(crate) incomplete: bool,
}

/// The objects that begin in one page: a bit for each 64 bytes, and their smallest and largest size in units of 64
/// bytes. All blocks of a chunk have one class, so two sizes are enough to check up to 64 objects, in 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    pub(crate) starts: u64,
    least: u32,
    most: u32,
}

/// Bytes of a page of the audit.
pub(crate) const PAGE: u64 = 4096;

/// Pages in ascending order.
type Pages = std::iter::Peekable<std::vec::IntoIter<(u64, Page)>>;

fn page_start(page: u64) -> RemotePtr {
    RemotePtr::from_bits(page * PAGE)
}

impl Page {
    fn count(&self) -> u64 {
        u64::from(self.starts.count_ones())
    }
    fn objects(&self, page: u64) -> impl Iterator<Item = RemotePtr> + use<> {
        let starts = self.starts;
        (0..64).filter(move |bit| starts >> bit & 1 == 1).map(move |bit| page_start(page).add(bit * BLOCK_ALIGN))
    }
}

impl Audit {
    /// Begins an audit: records the client slots, so that [`settle`](Self::settle) can tell whether a client came or
    /// left during the walk. (An audit made by `default` compares with the time when its client registered.)
    pub async fn begin(session: &Session, span: &Span) -> Result<Self, PoolError> {
        cold(Self::begin_inner(session, span)).await
    }

    async fn begin_inner(session: &Session, span: &Span) -> Result<Self, PoolError> {
        // A second open session of this client may change anything during the walk.
        let client = session.client();
        let opened = if client.sessions() == 1 { client.sessions_opened() } else { u64::MAX };
        let before = Some((slot_words(session.pool(), span).await?, opened));
        Ok(Audit { before, retirements: Some(session.retirements()), ..Audit::default() })
    }

    /// Has the session that walks retired objects since [`begin`](Self::begin)? They may be among those recorded. Then end
    /// their grace period ([`Session::drain`]), and walk again: what this walk has repaired is not found by the next one.
    pub fn is_outdated(&self, session: &Session) -> bool {
        self.retirements.is_some_and(|before| session.retirements() != before)
    }

    /// Declares that crashed clients may have left unfinished changes: an object that was being moved may be reached
    /// from both places.
    pub fn expect_unfinished_steps(&mut self) {
        self.unfinished = true;
    }

    /// Declares that the walk may have missed objects, as where something cannot be read: then
    /// [`reclaim`](Self::reclaim) frees nothing.
    pub fn expect_missed_objects(&mut self) {
        self.incomplete = true;
    }

    /// Records an inconsistency.
    pub fn problem(&mut self, what: String) {
        if self.problems.len() < MOST_DESCRIBED {
            self.problems.push(what);
        } else {
            self.undescribed += 1;
        }
    }

    /// Records an object that an index reaches; `what` describes it.
    pub fn reach(&mut self, ptr: RemotePtr, bytes: u64, what: &str) {
        if !ptr.offset().is_multiple_of(BLOCK_ALIGN) {
            return self.problem(format!("{what} at {ptr} does not begin at a multiple of {BLOCK_ALIGN} bytes"));
        }
        let bit = 1 << (ptr.offset() % PAGE / BLOCK_ALIGN);
        let units = u32::try_from(bytes.div_ceil(BLOCK_ALIGN)).unwrap_or(u32::MAX);
        let page = self.pages.entry(ptr.to_bits() / PAGE).or_insert(Page { starts: 0, least: units, most: units });
        page.least = page.least.min(units);
        page.most = page.most.max(units);
        let again = page.starts & bit != 0;
        page.starts |= bit;
        if !again {
            self.reached += 1;
        } else if self.twice.len() < MOST_DESCRIBED {
            self.twice.push(format!("{what} at {ptr} is reached twice"));
        }
    }

    /// Number of objects recorded so far.
    pub fn reached(&self) -> usize {
        self.reached
    }

    /// Checks that an object is allocated: its chunk has such objects, and its block is not marked free. Call it under
    /// the pin under which the object was reached. Returns a description of the inconsistency, `None` if there is none.
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
        let at = geometry.descriptor(node, chunk);
        let buf = span.read(at, size_of::<ChunkDescriptor>()).await?;
        let Some(descriptor) = buf.parse::<ChunkDescriptor>() else { return Ok(None) };
        let class = classes::of(bytes, geometry.chunk_size);
        Ok(match (descriptor.used(at), class) {
            (ChunkUse::Blocks { class: of_chunk, .. }, Some(class)) if of_chunk == class => {
                match place(&geometry, ptr, class) {
                    Some((_, bit)) if descriptor.free()[bit as usize / 64] >> (bit % 64) & 1 == 1 => {
                        Some("its block is marked free".to_owned())
                    }
                    Some(_) => None,
                    None => Some("it does not point to the beginning of a block".to_owned()),
                }
            }
            (ChunkUse::Span { chunks, .. }, None) if u64::from(chunks) == geometry.chunks_for(bytes) => {
                let starts = geometry.span_start(ptr, u64::from(chunks)).is_some();
                (!starts).then(|| "it does not point to the beginning of a span".to_owned())
            }
            (used, _) => Some(format!("an object of {bytes} bytes lies in a chunk used as {used:?}")),
        })
    }

    /// Compares the reached objects with the chunks. Before that it returns the session's free list to the pool.
    pub async fn settle(self, session: &Session, span: &Span) -> Result<AuditReport, PoolError> {
        cold(self.settle_inner(session, span)).await
    }

    async fn settle_inner(mut self, session: &Session, span: &Span) -> Result<AuditReport, PoolError> {
        session.adopt_orphans();
        session.flush().await?;
        let mut nodes = Vec::new();
        for node in session.pool().nodes() {
            nodes.push(all_chunks(session.pool(), span, node).await?);
        }
        let (others, undisturbed) = self.other_clients(session, span).await?;
        let alone = undisturbed && session.holds_nothing() && !self.is_outdated(session);

        let mut report = AuditReport { clients: others, alone, ..AuditReport::default() };
        let mut pages: Vec<_> = std::mem::take(&mut self.pages).into_iter().collect();
        pages.sort_unstable_by_key(|(page, _)| *page);
        let mut pages = pages.into_iter().peekable();
        for (node, chunks) in session.pool().nodes().zip(&nodes) {
            let counted = self.settle_node(&session.pool().geometry(node), node, chunks, &mut pages, alone);
            if alone {
                report.lost += counted.held_objects;
                report.lost_bytes += counted.held_bytes;
            }
            report.nodes.push(counted);
        }
        for object in pages.flat_map(|(page, objects)| objects.objects(page)) {
            self.problem(format!("the object at {object} lies on a memory node that does not exist"));
        }
        let finished = alone && !self.unfinished;
        for twice in std::mem::take(&mut self.twice).into_iter().filter(|_| finished) {
            self.problem(twice);
        }
        if self.undescribed > 0 {
            self.problems.push(format!("and {} more", self.undescribed));
        }
        report.problems = self.problems;
        Ok(report)
    }

    /// Returns whether no other client was registered since [`begin`](Self::begin). Only then must every change be
    /// finished, and every object be in one place.
    pub async fn undisturbed(&self, session: &Session, span: &Span) -> Result<bool, PoolError> {
        Ok(self.other_clients(session, span).await?.1)
    }

    /// Returns the other clients that are registered now, and whether none was registered from the beginning until now.
    /// Clients that are known to be gone do not count: none of their verbs takes effect any more.
    pub(crate) async fn other_clients(
        &self,
        session: &Session,
        span: &Span,
    ) -> Result<(Vec<ClientInfo>, bool), PoolError> {
        let client = session.client();
        let mut others = clients(session.pool(), span).await?;
        others.retain(|other| other.slot != client.slot());
        let now = slot_words(session.pool(), span).await?;
        // A session of this client that came and left may also have changed what was walked already.
        let (before, opened) = match &self.before {
            Some((before, opened)) => (before.as_slice(), *opened),
            None => (client.slots_at_registration(), 1),
        };
        let no_other = others.iter().all(|other| other.gone == Some(true));
        let mine_alone = client.sessions() == 1 && client.sessions_opened() == opened;
        let undisturbed = no_other && now == before && mine_alone;
        Ok((others, undisturbed))
    }

    fn settle_node(
        &mut self,
        geometry: &Geometry,
        node: NodeId,
        chunks: &[Chunk],
        pages: &mut Pages,
        alone: bool,
    ) -> NodeReport {
        let used = chunks.iter().filter(|chunk| chunk.used != ChunkUse::Free).count() as u64;
        let mut report = NodeReport {
            data_bytes: geometry.chunks * geometry.chunk_size,
            free_chunk_bytes: (geometry.chunks - used) * geometry.chunk_size,
            ..NodeReport::default()
        };
        let mut until = |end: RemotePtr| -> Vec<(u64, Page)> {
            std::iter::from_fn(|| pages.next_if(|(page, _)| page_start(*page) < end)).collect()
        };
        self.misplaced(until(geometry.chunk(node, 0)), "lies outside of all chunks", true);
        let mut tails = 0;
        for (chunk, found) in (0..).zip(chunks) {
            let at = geometry.chunk(node, chunk);
            let here = until(geometry.chunk(node, chunk + 1));
            let live = here.iter().map(|(_, page)| page.count()).sum::<u64>();
            report.live_objects += live;
            let in_span = tails > 0;
            tails = u64::saturating_sub(tails, 1);
            match found.used {
                ChunkUse::Blocks { class, .. } => {
                    let blocks = classes::blocks(class, geometry.chunk_size);
                    let free = free_blocks(&found.free, blocks);
                    let held = blocks.saturating_sub(free).saturating_sub(live);
                    report.live_bytes += live * classes::bytes(class);
                    report.free_block_bytes += free * classes::bytes(class);
                    report.held_bytes += held * classes::bytes(class);
                    report.held_objects += held;
                    if alone {
                        self.check_blocks(geometry, at, class, found, &here);
                    }
                }
                ChunkUse::Span { chunks, .. } => {
                    tails = u64::from(chunks).saturating_sub(1);
                    let bytes = u64::from(chunks) * geometry.chunk_size;
                    match here.as_slice() {
                        [] => {
                            report.held_bytes += bytes;
                            report.held_objects += 1;
                        }
                        _ => report.live_bytes += bytes,
                    }
                    if alone {
                        let whole = |(page, objects): &(u64, Page)| {
                            page_start(*page) == at
                                && objects.starts == 1
                                && geometry.chunks_for(u64::from(objects.most) * BLOCK_ALIGN) == u64::from(chunks)
                        };
                        let misplaced = here.into_iter().filter(|page| !whole(page)).collect();
                        self.misplaced(misplaced, &format!("does not fit the span of {chunks} chunks at {at}"), true);
                    }
                }
                ChunkUse::SpanTail { .. } => {
                    if alone && !in_span {
                        self.problem(format!("the chunk at {at} continues a span that does not exist"));
                    }
                    self.misplaced(here, "lies inside a span", alone);
                }
                ChunkUse::Free => self.misplaced(here, "lies in a free chunk", alone),
                ChunkUse::Unused | ChunkUse::Damaged(_) => {
                    let descriptor = geometry.descriptor(node, chunk);
                    self.problem(format!("the descriptor at {descriptor} of chunk {chunk}, at {at}, is damaged"));
                }
            }
        }
        self.misplaced(until(geometry.chunk(node, geometry.chunks)), "lies in a chunk that was never taken", alone);
        let next_node = RemotePtr::new(NodeId::new(node.index() as u16 + 1), 0);
        self.misplaced(until(next_node), "lies outside of all chunks", true);
        report
    }

    fn misplaced(&mut self, pages: Vec<(u64, Page)>, where_it_is: &str, certain: bool) {
        for object in pages.iter().filter(|_| certain).flat_map(|(page, objects)| objects.objects(*page)) {
            self.problem(format!("the object at {object} {where_it_is}"));
        }
    }

    fn check_blocks(&mut self, geometry: &Geometry, at: RemotePtr, class: usize, found: &Chunk, live: &[(u64, Page)]) {
        let blocks = classes::blocks(class, geometry.chunk_size);
        let marked = marked_bits(&found.free);
        let free = free_blocks(&found.free, blocks);
        if marked != free {
            self.problem(format!("the chunk at {at} has {blocks} blocks, and {} more are marked free", marked - free));
        }
        for (page, objects) in live {
            for units in [objects.least, objects.most] {
                let bytes = u64::from(units) * BLOCK_ALIGN;
                if classes::of(bytes, geometry.chunk_size) != Some(class) {
                    let page = page_start(*page);
                    let of_class = classes::bytes(class);
                    self.problem(format!(
                        "an object of {bytes} bytes at {page} lies in a chunk of {of_class}-byte blocks"
                    ));
                    break;
                }
            }
            for object in objects.objects(*page) {
                match place(geometry, object, class) {
                    Some((_, bit)) if found.free[bit as usize / 64] >> (bit % 64) & 1 == 1 => {
                        self.problem(format!("the object at {object} is marked free"));
                    }
                    Some(_) => {}
                    None => self.problem(format!("the object at {object} is not the beginning of a block")),
                }
            }
        }
    }
}
