//! Freeing what is neither reachable nor free: what dead clients had in their stocks, in their limbo, and in their hands.
//!
//! Invariants: nothing is freed unless no other client was there from the beginning of the walk; then whoever held memory
//! has left, or was shut out before its slot was freed (see [`takeover`](crate::takeover)), so nothing of it is on its way
//! into that memory. Every block is freed by the FAA that everyone uses, every span from its last chunk to its head, so a
//! death in the midst of it leaves less to do.

use crate::PoolError;
use crate::alloc::chunks::all_chunks;
use crate::alloc::classes;
use crate::audit::{Audit, PAGE};
use crate::layout::{BITMAP_WORDS, ChunkUse, bitmap_word, header, header_word};
use crate::session::Session;
use farindex_fabric::ptr::BLOCK_ALIGN;
use farindex_fabric::{NodeId, RemotePtr, Span};

/// What was freed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Was nobody else there? If somebody was, nothing was freed.
    pub alone: bool,
    /// Blocks that were freed.
    pub blocks: u64,
    /// Chunks of spans that were freed.
    pub chunks: u64,
    /// Bytes of both.
    pub bytes: u64,
}

impl Audit {
    fn has(&self, at: RemotePtr) -> bool {
        let bit = at.offset() % PAGE / BLOCK_ALIGN;
        self.pages.get(&(at.to_bits() / PAGE)).is_some_and(|page| page.starts >> bit & 1 == 1)
    }

    /// Frees everything that was not [reached](Self::reach) and is not free, if no other client was there since
    /// [`begin`](Self::begin). The walk must have reached *every* object of *every* index, those that are being dropped
    /// included. If it met a problem, nothing is freed: it may have missed something.
    pub async fn reclaim(self, session: &Session, span: &Span) -> Result<Reclaimed, PoolError> {
        session.adopt_orphans();
        session.flush().await?;
        let mut nodes = Vec::new();
        for node in session.pool().nodes() {
            nodes.push(all_chunks(session.pool(), span, node).await?);
        }
        let (others, undisturbed) = self.company(session, span).await?;
        // Those that are gone must have been evicted, too.
        let alone = undisturbed && others.is_empty() && session.holds_nothing();
        let mut done = Reclaimed { alone: alone && self.problems.is_empty(), ..Reclaimed::default() };
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
                        let behind = chunks.iter().skip(chunk as usize + 1).take(of_span.saturating_sub(1) as usize);
                        let tails = behind.take_while(|behind| behind.used == tail).count() as u64;
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
        Ok(done)
    }
}

/// Frees a chunk and the tails behind it, back to front.
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
