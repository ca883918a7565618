//! The account of a pool: is every block where it should be?
//!
//! An auditor walks every index and notes each object that it reaches ([`Audit::reach`]); then [`Audit::settle`] compares
//! that with the chunks' descriptors and bitmaps.
//!
//! Invariants: the auditor is a client and is pinned while it reads an index, so a block that it saw linked cannot become
//! free before it has looked at the bitmap; a difference that a client at work may explain (a block in its stock, or in
//! its limbo) is never called lost. It is, if nobody else was there from the beginning of the walk to the end of the
//! account: a client that came or went in between has changed what was walked already. Every slot counts its owners, so
//! the same slot words before and after prove that nobody did.

use crate::alloc::bitmap::{Chunk, free_blocks, marked_bits};
use crate::alloc::chunks::all_chunks;
use crate::alloc::{classes, place};
use crate::client::slot_words;
use crate::layout::{ChunkDescriptor, ChunkUse, Geometry};
use crate::session::Session;
use crate::{ClientInfo, PoolError, clients};
use farindex_fabric::ptr::BLOCK_ALIGN;
use farindex_fabric::{NodeId, RemotePtr, Span};
use std::collections::HashMap;

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
    /// Other clients that were registered meanwhile, crashed ones included.
    pub clients: Vec<ClientInfo>,
    /// Was nobody else there from beginning to end, except crashed clients, and nothing in this session's hands? Only
    /// then is anything called leaked.
    pub alone: bool,
    /// Objects that are neither reachable nor free although no other client is there to hold them: memory that crashed
    /// clients leaked.
    pub lost: u64,
    /// Bytes of them.
    pub lost_bytes: u64,
    /// Everything that is wrong, in words. Empty for a sound pool. Leaked memory is not wrong.
    pub problems: Vec<String>,
}

impl AuditReport {
    /// The memory that is leaked, in words.
    pub fn leak(&self) -> Option<String> {
        let (objects, bytes) = (self.lost, self.lost_bytes);
        (objects > 0).then(|| format!("{objects} objects of {bytes} bytes are leaked: neither reachable nor free"))
    }
}

/// Problems that are spelled out; further ones are only counted.
const SPELLED_OUT: usize = 50;

/// An audit in progress.
#[derive(Default)]
pub struct Audit {
    /// Reached objects, by the 4 KiB page they begin in. Chunks are whole pages, so a page lies in one chunk.
    pub(crate) pages: HashMap<u64, Page>,
    reached: usize,
    /// Reached from two places: an error, unless clients at work moved it in between.
    twice: Vec<String>,
    pub(crate) problems: Vec<String>,
    unspelled: u64,
    /// The words of all client slots before the walk, and how many sessions this client had opened.
    before: Option<(Vec<u64>, u64)>,
    unfinished: bool,
}

/// Objects that begin in one page: a bit for each 64 bytes, and their least and largest size in units of 64 bytes. All
/// blocks of a chunk are of one class, so that says as much as the size of each would, in 16 bytes for up to 64 objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    pub(crate) starts: u64,
    least: u32,
    most: u32,
}

pub(crate) const PAGE: u64 = 4096;

/// Pages of one node in ascending order.
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
    /// Begins an audit: notes who is there, so that [`settle`](Self::settle) can tell whether anyone came or went during
    /// the walk. (An audit made by `default` compares with the moment its client registered.)
    pub async fn begin(session: &Session, span: &Span) -> Result<Self, PoolError> {
        // With another one open nobody can tell what it does during the walk.
        let client = session.client();
        let opened = if client.sessions() == 1 { client.sessions_opened() } else { u64::MAX };
        let before = Some((slot_words(session.pool(), span).await?, opened));
        Ok(Audit { before, ..Audit::default() })
    }

    /// Crashed clients have left steps unfinished: an object that was being moved may be reached from both places.
    pub fn expect_unfinished_steps(&mut self) {
        self.unfinished = true;
    }

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
        } else if self.twice.len() < SPELLED_OUT {
            self.twice.push(format!("{what} at {ptr} is reached twice"));
        }
    }

    /// Objects noted so far.
    pub fn reached(&self) -> usize {
        self.reached
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

    /// Compares what was reached with the chunks. Gives back what the session has in stock first.
    pub async fn settle(mut self, session: &Session, span: &Span) -> Result<AuditReport, PoolError> {
        session.adopt_orphans();
        session.flush().await?;
        let mut nodes = Vec::new();
        for node in session.pool().nodes() {
            nodes.push(all_chunks(session.pool(), span, node).await?);
        }
        let (others, undisturbed) = self.company(session, span).await?;
        let alone = undisturbed && session.holds_nothing();

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
        if self.unspelled > 0 {
            self.problems.push(format!("and {} more", self.unspelled));
        }
        report.problems = self.problems;
        Ok(report)
    }

    /// Has nobody else been there since [`begin`](Self::begin)? Only then must everything be finished, and in one place.
    pub async fn undisturbed(&self, session: &Session, span: &Span) -> Result<bool, PoolError> {
        Ok(self.company(session, span).await?.1)
    }

    /// Who else is there now, and whether nobody was from the beginning until now, except clients that are proved gone:
    /// nothing of those takes effect any more.
    pub(crate) async fn company(&self, session: &Session, span: &Span) -> Result<(Vec<ClientInfo>, bool), PoolError> {
        let client = session.client();
        let mut others = clients(session.pool(), span).await?;
        others.retain(|other| other.slot != client.slot());
        let now = slot_words(session.pool(), span).await?;
        // A session of this client that came and went would have changed what was walked already, too.
        let (before, opened) = match &self.before {
            Some((before, opened)) => (before.as_slice(), *opened),
            None => (client.slots_at_registration(), 1),
        };
        let nobody = others.iter().all(|other| other.gone == Some(true));
        let mine_alone = client.sessions() == 1 && client.sessions_opened() == opened;
        let undisturbed = nobody && now == before && mine_alone;
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
                    self.misplaced(here, "lies in the midst of a span", alone);
                }
                ChunkUse::Free => self.misplaced(here, "lies in a free chunk", alone),
                ChunkUse::Unused | ChunkUse::Damaged(_) => {
                    let descriptor = geometry.descriptor(node, chunk);
                    self.problem(format!("the descriptor at {descriptor} of chunk {chunk}, at {at}, is damaged"));
                }
            }
        }
        self.misplaced(until(geometry.chunk(node, geometry.chunks)), "lies in a chunk that was never taken", alone);
        let behind = RemotePtr::new(NodeId::new(node.index() as u16 + 1), 0);
        self.misplaced(until(behind), "lies outside of all chunks", true);
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
