//! The pool's side of allocation: chunks, spans and bitmaps, operated by verbs.

use super::{Run, Stock, classes, place};
use crate::client::first_word;
use crate::layout::{
    BITMAP_WORDS, ChunkDescriptor, ChunkUse, DESCRIPTOR_FREE, DESCRIPTOR_LEN, Geometry, header, header_word,
};
use crate::{Pool, PoolError};
use farindex_fabric::{NodeId, RemotePtr, Span};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// Descriptors fetched by one READ.
const SCAN: u64 = 64;

/// Where the scans of one session go on.
#[derive(Default)]
pub(crate) struct Hints {
    pub(crate) scan: u64,
}

/// The chunks of one node, as seen by one client.
pub(crate) struct Chunks<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) node: NodeId,
    pub(crate) owner: u16,
}

/// The counters that steer a refill. They are hints: a client that dies may leave them a little off.
pub(crate) struct Counters {
    pub(crate) cursor: u64,
    pub(crate) free_chunks: u64,
    pub(crate) returned: u64,
}

/// A counter that has been taken below zero counts as empty.
fn at_least_zero(counter: u64) -> u64 {
    if counter > i64::MAX as u64 { 0 } else { counter }
}

impl Chunks<'_> {
    pub(crate) fn geometry(&self) -> Geometry {
        self.pool.geometry(self.node)
    }
    fn word(&self, offset: u64) -> RemotePtr {
        header_word(self.node, offset)
    }
    fn returned(&self, class: usize) -> RemotePtr {
        self.word(header::RETURNED + class as u64 * 8)
    }

    pub(crate) async fn counters(&self, span: &Span, class: Option<usize>) -> Result<Counters, PoolError> {
        let mut batch = span.batch();
        let head = batch.read(self.word(header::CURSOR), 16);
        let returned = class.map(|class| batch.read(self.returned(class), 8));
        let mut done = batch.post().await?;
        let head = done.buf(head);
        let &[cursor, free_chunks] = head.words() else { return Err(self.full(0)) };
        let returned = returned.map_or(0, |ticket| first_word(&done.buf(ticket)));
        Ok(Counters { cursor, free_chunks: at_least_zero(free_chunks), returned: at_least_zero(returned) })
    }

    pub(crate) fn full(&self, wanted: u64) -> PoolError {
        PoolError::Full { node: self.node, wanted, size: self.pool.superblock(self.node).region_len }
    }

    /// Descriptors `first..first + count`.
    async fn descriptors(&self, span: &Span, first: u64, count: u64) -> Result<Vec<ChunkDescriptor>, PoolError> {
        let len = (count * DESCRIPTOR_LEN) as usize;
        let buf = span.read(self.geometry().descriptor(self.node, first), len).await?;
        Ok(<[ChunkDescriptor]>::ref_from_bytes(buf.bytes()).unwrap_or_default().to_vec())
    }

    /// Takes blocks of a class that were given back, into `stock`; looks through the whole node at most once, and stops
    /// at the first chunk that had some.
    pub(crate) async fn claim_returned(
        &self,
        span: &Span,
        class: usize,
        cursor: u64,
        hints: &mut Hints,
        stock: &mut Stock,
    ) -> Result<bool, PoolError> {
        let mut looked = 0;
        while looked < cursor {
            let first = hints.scan % cursor;
            let count = SCAN.min(cursor - first).min(cursor - looked);
            let found = self.descriptors(span, first, count).await?;
            for (i, descriptor) in found.iter().enumerate() {
                let ours =
                    matches!(ChunkUse::from_bits(descriptor.state), ChunkUse::Blocks { class: c, .. } if c == class);
                if ours && descriptor.free.iter().any(|word| *word != 0) {
                    let chunk = first + i as u64;
                    let claimed = self.claim_words(span, chunk, &descriptor.free).await?;
                    if claimed.is_empty() {
                        continue;
                    }
                    hints.scan = chunk;
                    let start = self.geometry().chunk(self.node, chunk);
                    let free = claimed.iter().map(|bit| start.add(bit * classes::bytes(class)));
                    stock.free[class].extend(free);
                    span.faa(self.returned(class), (claimed.len() as u64).wrapping_neg()).await?;
                    return Ok(true);
                }
            }
            looked += count;
            hints.scan = first + count;
        }
        Ok(false)
    }

    /// CASes the bitmap words to zero; returns the bits that were won.
    async fn claim_words(&self, span: &Span, chunk: u64, free: &[u64; BITMAP_WORDS]) -> Result<Vec<u64>, PoolError> {
        let bitmap = self.geometry().descriptor(self.node, chunk).add(DESCRIPTOR_FREE);
        let mut batch = span.batch();
        let mut tickets = Vec::new();
        for (i, word) in free.iter().enumerate().filter(|(_, word)| **word != 0) {
            tickets.push((i as u64, *word, batch.cas(bitmap.add(i as u64 * 8), *word, 0)));
        }
        let mut done = batch.post().await?;
        let mut bits = Vec::new();
        for (i, word, ticket) in tickets {
            if done.old(ticket) == word {
                bits.extend((0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| i * 64 + bit));
            }
        }
        Ok(bits)
    }

    /// Gives blocks back to their chunks' bitmaps.
    pub(crate) async fn give_back(&self, span: &Span, blocks: &[(RemotePtr, usize)]) -> Result<(), PoolError> {
        let geometry = self.geometry();
        let mut words: BTreeMap<RemotePtr, (u64, RemotePtr)> = BTreeMap::new();
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        for (ptr, class) in blocks {
            let Some((chunk, bit)) = place(&geometry, *ptr, *class) else {
                return Err(PoolError::Corrupt {
                    at: *ptr,
                    what: "a block that is no block was given back".to_owned(),
                });
            };
            let word = geometry.descriptor(self.node, chunk).add(DESCRIPTOR_FREE + bit / 64 * 8);
            words.entry(word).or_insert((0, *ptr)).0 |= 1 << (bit % 64);
            *counts.entry(*class).or_default() += 1;
        }
        let words: Vec<_> = words.into_iter().collect();
        for part in words.chunks(64) {
            let mut batch = span.batch();
            let tickets: Vec<_> = part.iter().map(|(at, (bits, ptr))| (batch.faa(*at, *bits), *bits, *ptr)).collect();
            let mut done = batch.post().await?;
            for (ticket, bits, ptr) in tickets {
                if done.old(ticket) & bits != 0 {
                    return Err(PoolError::Corrupt { at: ptr, what: "a block was given back twice".to_owned() });
                }
            }
        }
        let mut batch = span.batch();
        for (class, count) in counts {
            batch.faa(self.returned(class), count);
        }
        batch.post().await?;
        Ok(())
    }

    /// Takes `count` contiguous chunks at the cursor. The second answer says whether nobody used them before.
    ///
    /// The descriptors are taken before the cursor moves, so a scan below the cursor never meets a chunk in between; and
    /// a cursor that still stands where it stood proves that nobody has been there.
    async fn extend(
        &self,
        span: &Span,
        mut cursor: u64,
        count: u64,
        used: ChunkUse,
    ) -> Result<Option<(u64, bool)>, PoolError> {
        loop {
            if cursor.checked_add(count).is_none_or(|end| end > self.geometry().chunks) {
                return Ok(None);
            }
            if self.claim_run(span, cursor, count, used).await? {
                let fresh = self.raise_cursor(span, cursor, cursor + count).await? == cursor;
                return Ok(Some((cursor, fresh)));
            }
            // Somebody else is at it, or died at it: past the first of these chunks, whichever was the cause.
            cursor = self.raise_cursor(span, cursor, cursor + 1).await?.max(cursor + 1);
        }
    }

    /// Moves the cursor to `to` unless it is there already; returns where it was.
    async fn raise_cursor(&self, span: &Span, mut seen: u64, to: u64) -> Result<u64, PoolError> {
        while seen < to {
            let old = span.cas(self.word(header::CURSOR), seen, to).await?;
            if old == seen {
                break;
            }
            seen = old;
        }
        Ok(seen)
    }

    /// Takes free chunks one by one; gives up, and gives back, at the first that is not free.
    async fn claim_run(&self, span: &Span, first: u64, count: u64, used: ChunkUse) -> Result<bool, PoolError> {
        let geometry = self.geometry();
        let state = |i: u64| if i == 0 { used.to_bits() } else { ChunkUse::SpanTail { owner: self.owner }.to_bits() };
        let mut taken = 0;
        let mut lost = false;
        while taken < count && !lost {
            let step = (count - taken).min(128);
            let mut batch = span.batch();
            let tickets: Vec<_> = (taken..taken + step)
                .map(|i| (i, batch.cas(geometry.descriptor(self.node, first + i), 0, state(i))))
                .collect();
            let mut done = batch.post().await?;
            let mut back = span.batch();
            for &(_, ticket) in &tickets {
                lost |= done.old(ticket) != 0;
            }
            if lost {
                for &(i, ticket) in &tickets {
                    if done.old(ticket) == 0 {
                        back.cas(geometry.descriptor(self.node, first + i), state(i), 0);
                    }
                }
                for i in 0..taken {
                    back.cas(geometry.descriptor(self.node, first + i), state(i), 0);
                }
                back.post().await?;
            }
            taken += step;
        }
        Ok(!lost)
    }

    /// Takes `count` contiguous chunks below the cursor that were freed.
    async fn reuse(&self, span: &Span, cursor: u64, count: u64, used: ChunkUse) -> Result<Option<u64>, PoolError> {
        let mut run = 0;
        let mut first = 0;
        while first < cursor {
            let step = SCAN.min(cursor - first);
            for (i, descriptor) in self.descriptors(span, first, step).await?.iter().enumerate() {
                run = if descriptor.state == 0 { run + 1 } else { 0 };
                if run == count {
                    let start = first + i as u64 + 1 - count;
                    if self.claim_run(span, start, count, used).await? {
                        span.faa(self.word(header::FREE_CHUNKS), count.wrapping_neg()).await?;
                        return Ok(Some(start));
                    }
                    run = 0;
                }
            }
            first += step;
        }
        Ok(None)
    }

    /// Turns chunks whose blocks are all free into free chunks; returns how many.
    pub(crate) async fn recycle(&self, span: &Span, cursor: u64) -> Result<u64, PoolError> {
        let geometry = self.geometry();
        let mut recycled = 0;
        let mut first = 0;
        while first < cursor {
            let step = SCAN.min(cursor - first);
            for (i, descriptor) in self.descriptors(span, first, step).await?.iter().enumerate() {
                let ChunkUse::Blocks { class, .. } = ChunkUse::from_bits(descriptor.state) else { continue };
                let blocks = classes::blocks(class, geometry.chunk_size);
                let free: u64 = descriptor.free.iter().map(|word| u64::from(word.count_ones())).sum();
                if blocks == 0 || free != blocks {
                    continue;
                }
                let chunk = first + i as u64;
                let claimed = self.claim_words(span, chunk, &descriptor.free).await?;
                if claimed.len() as u64 == blocks {
                    let mut batch = span.batch();
                    batch.faa(self.returned(class), blocks.wrapping_neg());
                    batch.faa(self.word(header::FREE_CHUNKS), 1);
                    batch.cas(geometry.descriptor(self.node, chunk), descriptor.state, 0);
                    batch.post().await?;
                    recycled += 1;
                } else {
                    // Somebody took a part of it first. What was won goes back; the counter never knew it was gone.
                    let bitmap = geometry.descriptor(self.node, chunk).add(DESCRIPTOR_FREE);
                    let mut batch = span.batch();
                    for bit in claimed {
                        batch.faa(bitmap.add(bit / 64 * 8), 1 << (bit % 64));
                    }
                    batch.post().await?;
                }
            }
            first += step;
        }
        Ok(recycled)
    }

    /// Takes a chunk for blocks of a class; `None` if there is none.
    pub(crate) async fn take_chunk(
        &self,
        span: &Span,
        class: usize,
        counters: &Counters,
    ) -> Result<Option<Run>, PoolError> {
        let used = ChunkUse::Blocks { class, owner: self.owner };
        let mut chunk = None;
        if counters.free_chunks > 0 {
            chunk = self.reuse(span, counters.cursor, 1, used).await?;
        }
        if chunk.is_none() {
            chunk = self.extend(span, counters.cursor, 1, used).await?.map(|(chunk, _)| chunk);
        }
        if chunk.is_none() {
            chunk = self.reuse(span, counters.cursor, 1, used).await?;
        }
        let geometry = self.geometry();
        Ok(chunk.map(|chunk| Run {
            next: geometry.chunk(self.node, chunk),
            left: classes::blocks(class, geometry.chunk_size),
        }))
    }

    /// Takes a span. The second answer says whether its bytes are known to be zero.
    pub(crate) async fn take_span(
        &self,
        span: &Span,
        count: u64,
        fresh_first: bool,
    ) -> Result<Option<(RemotePtr, bool)>, PoolError> {
        let used = ChunkUse::Span { chunks: u32::try_from(count).map_err(|_| self.full(count))?, owner: self.owner };
        let counters = self.counters(span, None).await?;
        let mut found = None;
        if !fresh_first && counters.free_chunks >= count {
            found = self.reuse(span, counters.cursor, count, used).await?.map(|chunk| (chunk, false));
        }
        if found.is_none() {
            let zeroed = self.pool.superblock(self.node).zeroed != 0;
            found =
                self.extend(span, counters.cursor, count, used).await?.map(|(chunk, fresh)| (chunk, fresh && zeroed));
        }
        if found.is_none() {
            found = self.reuse(span, counters.cursor, count, used).await?.map(|chunk| (chunk, false));
        }
        Ok(found.map(|(chunk, zero)| (self.geometry().chunk(self.node, chunk), zero)))
    }

    /// Frees a span.
    pub(crate) async fn free_span(&self, span: &Span, start: RemotePtr) -> Result<(), PoolError> {
        let geometry = self.geometry();
        let corrupt = || PoolError::Corrupt { at: start, what: "a span that is no span was freed".to_owned() };
        let first = geometry.chunk_of(start).ok_or_else(corrupt)?;
        let descriptor = span.read(geometry.descriptor(self.node, first), 8).await?;
        let ChunkUse::Span { chunks, .. } = ChunkUse::from_bits(first_word(&descriptor)) else { return Err(corrupt()) };
        let chunks = u64::from(chunks);
        let mut freed = 0;
        // Back to front: as long as the head stands, the span stands.
        while freed < chunks {
            let mut batch = span.batch();
            for _ in 0..(chunks - freed).min(128) {
                freed += 1;
                batch.write_words(geometry.descriptor(self.node, first + chunks - freed), &[0]);
            }
            batch.post().await?;
        }
        span.faa(self.word(header::FREE_CHUNKS), chunks).await?;
        Ok(())
    }
}

/// Every descriptor of a node, for checkers.
pub async fn all_descriptors(pool: &Pool, span: &Span, node: NodeId) -> Result<(u64, Vec<ChunkDescriptor>), PoolError> {
    let chunks = Chunks { pool, node, owner: 0 };
    let cursor = chunks.counters(span, None).await?.cursor.min(chunks.geometry().chunks);
    let mut all = Vec::with_capacity(cursor as usize);
    let mut first = 0;
    while first < cursor {
        let step = SCAN.min(cursor - first);
        all.extend(chunks.descriptors(span, first, step).await?);
        first += step;
    }
    debug_assert!(all.iter().all(|descriptor| descriptor.as_bytes().len() == DESCRIPTOR_LEN as usize));
    Ok((cursor, all))
}
