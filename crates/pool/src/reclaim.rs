//! Reclaims leaked memory: objects that are neither reachable nor free, because crashed clients had them in their free
//! lists or retire lists, or had allocated them and not linked them yet.
//!
//! Invariants: nothing is freed unless no other client was registered from the beginning of the walk, and all that this
//! client has posted has landed. Then every client that had such memory has left, or was revoked before its slot was freed
//! (see [`lease`](crate::lease)), so no verb can land in that memory. Blocks are freed by the usual FAA, and a span from its
//! last chunk to its head, so a crash during reclamation leaves less to reclaim.

use crate::PoolError;
use crate::alloc::chunks::all_chunks;
use crate::alloc::classes;
use crate::audit::{Audit, PAGE};
use crate::catalog::reservation;
use crate::layout::{BITMAP_WORDS, ChunkUse, bitmap_word, header, header_word};
use crate::session::Session;
use farindex_fabric::cold;
use farindex_fabric::ptr::BLOCK_ALIGN;
use farindex_fabric::{NodeId, RemotePtr, Span};

/// The result of a reclamation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// True if no other client was registered, no verb that this client has left may land any more, and the walk found no problem.
    /// Otherwise nothing was freed.
    pub alone: bool,
    /// Number of freed blocks.
    pub blocks: u64,
    /// Number of freed chunks of spans.
    pub chunks: u64,
    /// Bytes of both together.
    pub bytes: u64,
}

impl Audit {
    /// Returns whether an object that begins here was reached.
    fn has(&self, at: RemotePtr) -> bool {
        let bit = at.offset() % PAGE / BLOCK_ALIGN;
        self.pages.get(&(at.to_bits() / PAGE)).is_some_and(|page| page.starts >> bit & 1 == 1)
    }

    /// Frees the catalog's entries that failed creations have left, and all memory that was not [reached](Self::reach) and is
    /// not free, if no other client was registered since [`begin`](Self::begin). The walk must have reached *every* object of
    /// *every* index, indexes that are being dropped included. If the walk found a problem, nothing is freed: it may have
    /// missed objects.
    pub async fn reclaim(self, session: &Session, span: &Span) -> Result<Reclaimed, PoolError> {
        cold(self.reclaim_inner(session, span)).await
    }

    async fn reclaim_inner(self, session: &Session, span: &Span) -> Result<Reclaimed, PoolError> {
        session.adopt_orphans();
        session.flush().await?;
        let mut nodes = Vec::new();
        for node in session.pool().nodes() {
            nodes.push(all_chunks(session.pool(), span, node).await?);
        }
        let left = reservation::left(session, span).await?;
        let (others, undisturbed) = self.other_clients(session, span).await?;
        // Clients that are gone must have been evicted, too.
        let alone = undisturbed && others.is_empty() && session.holds_nothing() && !self.is_outdated(session);
        // What operations of this client have left may still land in memory that nobody reaches.
        let alone = alone && session.endpoint().is_settled() && !session.client().has_pins_of_closed_sessions();
        let is_complete = self.problems.is_empty() && !self.incomplete;
        let mut done = Reclaimed { alone: alone && is_complete, ..Reclaimed::default() };
        if !done.alone {
            return Ok(done);
        }
        for (node, chunks) in session.pool().nodes().zip(&nodes) {
            let geometry = session.pool().geometry(node);
            let mut chunk = 0;
            while let Some(found) = chunks.get(chunk as usize) {
                let mut step = 1;
                match found.used {
                    ChunkUse::Blocks { class, .. } => {
                        let bytes = classes::bytes(class);
                        let mut lost = [0_u64; BITMAP_WORDS];
                        for block in 0..classes::blocks(class, geometry.chunk_size) {
                            let free = found.free[block as usize / 64] >> (block % 64) & 1 == 1;
                            let at = geometry.chunk(node, chunk).add(block * bytes);
                            lost[block as usize / 64] |= u64::from(!free && !self.has(at)) << (block % 64);
                        }
                        let count = lost.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
                        let at = geometry.descriptor(node, chunk);
                        let mut batch = span.batch();
                        for (i, bits) in lost.into_iter().enumerate().filter(|(_, bits)| *bits != 0) {
                            batch.faa(bitmap_word(at, i), bits);
                        }
                        if count > 0 {
                            batch.faa(header_word(node, header::RETURNED + class as u64 * 8), count);
                        }
                        batch.post().await?;
                        done.blocks += count;
                        done.bytes += count * bytes;
                    }
                    ChunkUse::Span { owner, chunks: of_span } => {
                        let tail = ChunkUse::SpanTail { owner };
                        let following = chunks.iter().skip(chunk as usize + 1).take(of_span.saturating_sub(1) as usize);
                        let tails = following.take_while(|chunk| chunk.used == tail).count() as u64;
                        step += tails;
                        if !self.has(geometry.chunk(node, chunk)) {
                            let freed = free_chunks(session, span, node, (chunk, tails), found.used, tail).await?;
                            done.chunks += freed;
                            done.bytes += freed * geometry.chunk_size;
                        }
                    }
                    ChunkUse::SpanTail { .. } => {
                        let freed = free_chunks(session, span, node, (chunk, 0), found.used, found.used).await?;
                        done.chunks += freed;
                        done.bytes += freed * geometry.chunk_size;
                    }
                    ChunkUse::Free | ChunkUse::Unused | ChunkUse::Damaged(_) => {}
                }
                chunk += step;
            }
        }
        reservation::free_left(session, span, left).await?;
        Ok(done)
    }
}

/// Frees a chunk and the tails after it, back to front; returns the number of chunks freed.
async fn free_chunks(
    session: &Session,
    span: &Span,
    node: NodeId,
    (first, tails): (u64, u64),
    head: ChunkUse,
    tail: ChunkUse,
) -> Result<u64, PoolError> {
    let geometry = session.pool().geometry(node);
    let mut freed = 0;
    for chunk in (first..=first + tails).rev() {
        let at = geometry.descriptor(node, chunk);
        let held = if chunk == first { head } else { tail }.to_bits(at);
        freed += u64::from(span.cas(at, held, ChunkUse::Free.to_bits(at)).await? == held);
    }
    span.faa(header_word(node, header::FREE_CHUNKS), freed).await?;
    Ok(freed)
}
