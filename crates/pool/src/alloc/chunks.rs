//! Chunks, spans and bitmaps in far memory, operated by verbs.
//!
//! Invariants: docs/protocols/pool.md, "Allocation" and D1 to D3.

use super::bitmap::{Chunk, Claim, free_blocks, marked_bits, valid_bits};
use super::classes::CLASSES;
use super::search::{ALL, Counters, Hints, SCAN, at_least_zero};
use super::{FreeList, Run, classes, place};
use crate::faults::{Fault, planted};
use crate::layout::{
    BITMAP_WORDS, Bitmap, ChunkDescriptor, ChunkUse, DESCRIPTOR_LEN, Geometry, bitmap_word, first_word, header,
    header_word,
};
use crate::{Pool, PoolError};
use farindex_fabric::{Batch, NodeId, RemotePtr, Span};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

const FREED_TWICE: &str = "a block was freed twice";

/// The chunks of one node, as seen by one client.
pub(crate) struct Chunks<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) node: NodeId,
    pub(crate) owner: u16,
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
        // Everything below the cursor is read, and CASed, as descriptors; after the last descriptor lies other data.
        let chunks = self.geometry().chunks;
        if cursor > chunks {
            let what = format!("the cursor is at chunk {cursor} of {chunks}");
            return Err(PoolError::Corrupt { at: self.word(header::CURSOR), what });
        }
        Ok(Counters { cursor, free_chunks: at_least_zero(free_chunks), returned: at_least_zero(returned) })
    }

    pub(crate) fn full(&self, wanted: u64) -> PoolError {
        PoolError::Full { node: self.node, wanted, size: self.pool.superblock(self.node).region_len }
    }

    /// READs the descriptors `first..first + count`.
    async fn descriptors(&self, span: &Span, first: u64, count: u64) -> Result<Vec<Chunk>, PoolError> {
        let geometry = self.geometry();
        let len = (count * DESCRIPTOR_LEN) as usize;
        let buf = span.read(geometry.descriptor(self.node, first), len).await?;
        let descriptors = <[ChunkDescriptor]>::ref_from_bytes(buf.bytes()).unwrap_or_default();
        let used = |chunk, descriptor: &ChunkDescriptor| descriptor.used(geometry.descriptor(self.node, chunk));
        let chunks = (first..).zip(descriptors);
        Ok(chunks.map(|(chunk, found)| Chunk { used: used(chunk, found), free: found.free() }).collect())
    }

    /// READs the descriptors `first..first + count`, all below the cursor, for an allocation. Damage is an error: a
    /// chunk below the cursor was taken before the cursor moved past it, and no client sets its state to zero again
    /// (D1).
    async fn trusted(&self, span: &Span, first: u64, count: u64) -> Result<Vec<Chunk>, PoolError> {
        let chunks = self.descriptors(span, first, count).await?;
        for (chunk, found) in (first..).zip(&chunks) {
            if matches!(found.used, ChunkUse::Unused | ChunkUse::Damaged(_)) {
                return Err(self.damaged(chunk));
            }
        }
        Ok(chunks)
    }

    fn damaged(&self, chunk: u64) -> PoolError {
        let at = self.geometry().descriptor(self.node, chunk);
        PoolError::Corrupt { at, what: format!("the descriptor of chunk {chunk} is damaged, or the cursor is") }
    }

    /// Takes about so many freed blocks of a class into `free_list`. Searches the whole node at most once, and stops at the
    /// first descriptors that have some.
    pub(crate) async fn claim_returned(
        &self,
        span: &Span,
        class: usize,
        enough: u64,
        counters: &Counters,
        hints: &Hints,
        free_list: &mut FreeList,
    ) -> Result<bool, PoolError> {
        let cursor = counters.cursor;
        let size = self.geometry().chunk_size;
        let mut examined = 0;
        while examined < cursor {
            let first = hints.blocks.get() % cursor;
            let count = SCAN.min(cursor - first).min(cursor - examined);
            let found = self.trusted(span, first, count).await?;
            let mut wanted = Vec::new();
            let mut blocks = 0;
            hints.blocks.set(first + count);
            for (chunk, found) in (first..).zip(&found) {
                if blocks >= enough {
                    hints.blocks.set(chunk);
                    break;
                }
                let free = free_blocks(&found.free, classes::blocks(class, size));
                // No client sets bits after the last block; if one is set, the bitmap is damaged. (Or the chunk changed
                // its class during the READ, and a later search finds it.)
                let plausible = free == marked_bits(&found.free);
                if matches!(found.used, ChunkUse::Blocks { class: c, .. } if c == class) && free > 0 && plausible {
                    blocks += free;
                    wanted.push((chunk, found.free));
                }
            }
            if !wanted.is_empty() && self.claim_blocks(span, class, &wanted, blocks, free_list).await? {
                return Ok(true);
            }
            examined += count;
        }
        // There are none, whatever the counter says: correct it, unless another client has just changed it.
        if counters.returned > 0 {
            span.cas(self.returned(class), counters.returned, 0).await?;
        }
        Ok(false)
    }

    /// Claims the free blocks of several chunks that were read as chunks of this class, in one batch. `expected` is
    /// their number. Returns whether any block of the class was taken.
    async fn claim_blocks(
        &self,
        span: &Span,
        class: usize,
        wanted: &[(u64, Bitmap)],
        expected: u64,
        free_list: &mut FreeList,
    ) -> Result<bool, PoolError> {
        let geometry = self.geometry();
        let mut batch = span.batch();
        let claims: Vec<_> = wanted.iter().map(|(chunk, free)| self.claim(&mut batch, *chunk, class, free)).collect();
        batch.faa(self.returned(class), expected.wrapping_neg());
        let mut done = batch.post().await?;
        let mut won = [0_u64; CLASSES];
        for claim in claims {
            let claimed = claim.settle(&mut done, self);
            let ChunkUse::Blocks { class: actual, .. } = claimed.used else { continue };
            let start = geometry.chunk(self.node, claimed.chunk);
            if let (Some(won), Some(free)) = (won.get_mut(actual), free_list.free.get_mut(actual)) {
                *won += claimed.bits.len() as u64;
                free.extend(claimed.bits.iter().map(|bit| start.add(bit * classes::bytes(actual))));
            }
        }
        let any = won[class] > 0;
        // Blocks that other clients took first must not be subtracted from the counter a second time.
        won[class] = won[class].wrapping_sub(expected);
        let mut batch = span.batch();
        for (class, off) in won.iter().enumerate().filter(|(_, off)| **off != 0) {
            batch.faa(self.returned(class), off.wrapping_neg());
        }
        batch.post().await?;
        Ok(any)
    }

    /// Adds the claim of a chunk's free blocks to a batch: a CAS for each bitmap word with free blocks, and then a READ
    /// of the state.
    ///
    /// Between the READ of the bitmap and these CASes, the chunk may have been emptied, freed and taken for another
    /// class, and the same bits may be set again. So the claimed blocks are of the class that the state names *now*:
    /// the READ takes effect after the CASes (G4), and a chunk does not change its class while one of its blocks is in
    /// use.
    fn claim(&self, batch: &mut Batch<'_>, chunk: u64, class: usize, free: &Bitmap) -> Claim {
        let geometry = self.geometry();
        let descriptor = geometry.descriptor(self.node, chunk);
        let blocks = classes::blocks(class, geometry.chunk_size);
        let words = free.iter().enumerate().filter_map(|(i, word)| {
            // Bits after the last block mean nothing and stay as they are.
            let bits = word & valid_bits(blocks, i);
            let at = bitmap_word(descriptor, i);
            (bits != 0).then(|| (i as u64, *word, bits, batch.cas(at, *word, word & !bits)))
        });
        let words = words.collect();
        Claim { chunk, words, state: batch.read(descriptor, 8) }
    }

    /// Frees blocks in their chunks' bitmaps, in one batch for every 64 words.
    pub(crate) async fn give_back(&self, span: &Span, blocks: &[(RemotePtr, usize)]) -> Result<(), PoolError> {
        let geometry = self.geometry();
        let mut words: BTreeMap<RemotePtr, (u64, RemotePtr)> = BTreeMap::new();
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        let mut wrong = None;
        for (ptr, class) in blocks {
            let Some((chunk, bit)) = place(&geometry, *ptr, *class) else {
                wrong = wrong.or(Some((*ptr, "an address that is no block was freed")));
                continue;
            };
            let word = bitmap_word(geometry.descriptor(self.node, chunk), bit as usize / 64);
            let entry = words.entry(word).or_insert((0, *ptr));
            if entry.0 >> (bit % 64) & 1 == 1 {
                wrong = wrong.or(Some((*ptr, FREED_TWICE)));
                continue;
            }
            entry.0 |= 1 << (bit % 64);
            *counts.entry(*class).or_default() += 1;
        }
        let words: Vec<_> = words.into_iter().collect();
        let mut counts = Some(counts);
        for part in words.chunks(64) {
            let mut batch = span.batch();
            let tickets: Vec<_> = part.iter().map(|(at, (bits, ptr))| (batch.faa(*at, *bits), *bits, *ptr)).collect();
            // The counters are hints, so they may be ahead of the later batches.
            for (class, count) in counts.take().into_iter().flatten() {
                batch.faa(self.returned(class), count);
            }
            let mut done = batch.post().await?;
            for (ticket, bits, ptr) in tickets {
                if done.old(ticket) & bits != 0 {
                    wrong = wrong.or(Some((ptr, FREED_TWICE)));
                }
            }
        }
        wrong.map_or(Ok(()), |(at, what)| Err(PoolError::Corrupt { at, what: what.to_owned() }))
    }

    /// Takes `count` contiguous chunks at the cursor. The second value is true if they were never used before.
    ///
    /// The descriptors are taken before the cursor moves, so a scan below the cursor never finds an unused chunk. If
    /// the cursor has not moved since it was read, no other client has used the chunks.
    async fn extend(
        &self,
        span: &Span,
        mut cursor: u64,
        count: u64,
        used: ChunkUse,
    ) -> Result<Option<(u64, bool)>, PoolError> {
        let geometry = self.geometry();
        loop {
            if cursor.checked_add(count).is_none_or(|end| end > geometry.chunks) {
                return Ok(None);
            }
            if count == 1 {
                // The cursor moves past this chunk whether the first CAS succeeds or not: one batch (G4 orders the
                // two).
                let at = geometry.descriptor(self.node, cursor);
                let mut batch = span.batch();
                let taken = batch.cas(at, 0, used.to_bits(at));
                let moved = batch.cas(self.word(header::CURSOR), cursor, cursor + 1);
                let mut done = batch.post().await?;
                let seen = done.old(moved);
                let fresh = seen == cursor;
                let seen = if fresh { cursor + 1 } else { self.raise_cursor(span, seen, cursor + 1).await? };
                let was = done.old(taken);
                if was == 0 {
                    return Ok(Some((cursor, fresh)));
                }
                if matches!(ChunkUse::from_bits(was, at), ChunkUse::Damaged(_)) {
                    return Err(self.damaged(cursor));
                }
                cursor = seen.max(cursor + 1);
                continue;
            }
            match self.claim_run(span, cursor, count, ChunkUse::Unused, used).await? {
                Ok(()) => {
                    let fresh = self.raise_cursor(span, cursor, cursor + count).await? == cursor;
                    return Ok(Some((cursor, fresh)));
                }
                // Another client takes these chunks, or crashed at it. None of them is unused any more: skip them all.
                Err(tried) => {
                    cursor = self.raise_cursor(span, cursor, cursor + tried).await?.max(cursor + tried);
                }
            }
        }
    }

    /// Moves the cursor to `to` unless it is there or beyond; returns where it was.
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

    /// Takes contiguous chunks whose state is `from` (unused or free), one by one. If one is not, it stops after that
    /// batch, frees the chunks that it took, and returns how many it tried as `Err`. They become free, not unused:
    /// another client may have moved the cursor past them, and below the cursor no chunk may be unused (D1).
    async fn claim_run(
        &self,
        span: &Span,
        first: u64,
        count: u64,
        from: ChunkUse,
        used: ChunkUse,
    ) -> Result<Result<(), u64>, PoolError> {
        let at = |i: u64| self.geometry().descriptor(self.node, first + i);
        let state = |i: u64| {
            let used = if i == 0 { used } else { ChunkUse::SpanTail { owner: self.owner } };
            used.to_bits(at(i))
        };
        let mut tried = 0;
        let mut won: Vec<u64> = Vec::new();
        let mut damaged = None;
        while tried < count && won.len() as u64 == tried {
            let step = (count - tried).min(128);
            let mut batch = span.batch();
            let tickets: Vec<_> =
                (tried..tried + step).map(|i| (i, batch.cas(at(i), from.to_bits(at(i)), state(i)))).collect();
            let mut done = batch.post().await?;
            for (i, ticket) in tickets {
                let was = done.old(ticket);
                if was == from.to_bits(at(i)) {
                    won.push(i);
                } else if matches!(ChunkUse::from_bits(was, at(i)), ChunkUse::Damaged(_)) {
                    damaged = damaged.or(Some(first + i));
                }
            }
            tried += step;
        }
        if won.len() as u64 == tried {
            return Ok(Ok(()));
        }
        let mut back = span.batch();
        for i in &won {
            back.cas(at(*i), state(*i), ChunkUse::Free.to_bits(at(*i)));
        }
        if from == ChunkUse::Unused && !won.is_empty() {
            back.faa(self.word(header::FREE_CHUNKS), won.len() as u64);
        }
        back.post().await?;
        damaged.map_or(Ok(Err(tried)), |chunk| Err(self.damaged(chunk)))
    }

    /// Takes `count` contiguous free chunks below the cursor. Examines about `most` descriptors, from where the last
    /// search ended, and each descriptor at most once.
    async fn reuse(
        &self,
        span: &Span,
        counters: &Counters,
        hints: &Hints,
        (count, most): (u64, u64),
        used: ChunkUse,
    ) -> Result<Option<u64>, PoolError> {
        let cursor = counters.cursor;
        let from = hints.chunks.get().checked_rem(cursor).unwrap_or(0);
        let (mut unused, mut examined) = (0, 0);
        // A run across the place where this search begins is found after the wrap-around.
        for part in [from..cursor, 0..(from + count - 1).min(cursor)] {
            let mut run = 0;
            let mut first = part.start;
            while first < part.end {
                if examined >= most.max(2 * count) {
                    // The next search continues with the run that this one was in.
                    hints.chunks.set(first - run);
                    return Ok(None);
                }
                let step = SCAN.min(part.end - first);
                examined += step;
                for (i, found) in self.trusted(span, first, step).await?.iter().enumerate() {
                    // A free chunk has an empty bitmap. If it has not, it is damaged, and its blocks would be allocated
                    // twice.
                    let free = found.used == ChunkUse::Free && marked_bits(&found.free) == 0;
                    let free = free & !planted(Fault::KeepsFreeChunks);
                    run = if free { run + 1 } else { 0 };
                    unused += u64::from(free);
                    if run == count {
                        let end = first + i as u64 + 1;
                        if self.claim_run(span, end - count, count, ChunkUse::Free, used).await?.is_ok() {
                            hints.chunks.set(end);
                            span.faa(self.word(header::FREE_CHUNKS), count.wrapping_neg()).await?;
                            return Ok(Some(end - count));
                        }
                        run = 0;
                    }
                }
                first += step;
            }
        }
        // The whole node has no free chunk: correct the counter, or every client searches again.
        if unused == 0 && counters.free_chunks > 0 {
            span.cas(self.word(header::FREE_CHUNKS), counters.free_chunks, 0).await?;
        }
        Ok(None)
    }

    /// Turns chunks whose blocks are all free into free chunks, and corrects the counters; returns the number of
    /// chunks.
    pub(crate) async fn recycle(&self, span: &Span) -> Result<u64, PoolError> {
        let geometry = self.geometry();
        let mut batch = span.batch();
        let head = batch.read(self.word(header::CURSOR), 16);
        let hints = batch.read(self.returned(0), CLASSES * 8);
        let mut done = batch.post().await?;
        let head = done.buf(head);
        let hints = done.buf(hints);
        let &[cursor, free_chunks] = head.words() else { return Err(self.full(0)) };
        let cursor = cursor.min(geometry.chunks);
        let mut returned = [0_u64; CLASSES];
        let mut unused = 0;
        let mut recycled = 0;
        let mut first = 0;
        while first < cursor {
            let step = SCAN.min(cursor - first);
            for (chunk, found) in (first..).zip(&self.trusted(span, first, step).await?) {
                unused += u64::from(found.used == ChunkUse::Free);
                let ChunkUse::Blocks { class, .. } = found.used else { continue };
                let blocks = classes::blocks(class, geometry.chunk_size);
                let free = free_blocks(&found.free, blocks);
                let all = blocks > 0 && free == blocks && free == marked_bits(&found.free);
                if all && self.recycle_chunk(span, chunk, class, &found.free).await? {
                    recycled += 1;
                } else if let Some(returned) = returned.get_mut(class) {
                    *returned += free;
                }
            }
            first += step;
        }
        // The counters drift when clients crash or race. This scan has counted everything, so it corrects those
        // counters that have not changed meanwhile. Its own recycling has updated the counters already.
        let mut batch = span.batch();
        let counted = std::iter::once((self.word(header::FREE_CHUNKS), free_chunks, unused));
        let counted = counted
            .chain((0..).zip(hints.words()).zip(returned).map(|((class, was), is)| (self.returned(class), *was, is)));
        for (at, was, is) in counted.filter(|(_, was, is)| was != is) {
            batch.cas(at, was, is);
        }
        batch.post().await?;
        Ok(recycled)
    }

    /// Frees a chunk whose blocks were all read as free; `false` if another client took some of them first.
    async fn recycle_chunk(&self, span: &Span, chunk: u64, class: usize, free: &Bitmap) -> Result<bool, PoolError> {
        let geometry = self.geometry();
        let descriptor = geometry.descriptor(self.node, chunk);
        let mut batch = span.batch();
        let claim = self.claim(&mut batch, chunk, class, free);
        let mut done = batch.post().await?;
        let claimed = claim.settle(&mut done, self);
        let mut batch = span.batch();
        // The chunk may have another class now: see `claim`.
        let blocks = match claimed.used {
            ChunkUse::Blocks { class, .. } => classes::blocks(class, geometry.chunk_size),
            _ => 0,
        };
        let whole = blocks > 0 && claimed.bits.len() as u64 == blocks;
        if let (true, ChunkUse::Blocks { class, .. }) = (whole, claimed.used) {
            batch.faa(self.returned(class), blocks.wrapping_neg());
            batch.faa(self.word(header::FREE_CHUNKS), 1);
            batch.cas(descriptor, claimed.used.to_bits(descriptor), ChunkUse::Free.to_bits(descriptor));
        } else {
            // Another client took some blocks first. The claimed blocks are freed again; the counter has not changed.
            let mut words = [0_u64; BITMAP_WORDS];
            claimed.bits.iter().for_each(|bit| words[*bit as usize / 64] |= 1 << (bit % 64));
            for (i, bits) in words.into_iter().enumerate().filter(|(_, bits)| *bits != 0) {
                batch.faa(bitmap_word(descriptor, i), bits);
            }
        }
        batch.post().await?;
        Ok(whole)
    }

    /// Takes a chunk for blocks of a class; `None` if there is none. A `thorough` search ignores the counters.
    pub(crate) async fn take_chunk(
        &self,
        span: &Span,
        class: usize,
        counters: &Counters,
        hints: &Hints,
        thorough: bool,
    ) -> Result<Option<Run>, PoolError> {
        let used = ChunkUse::Blocks { class, owner: self.owner };
        let some = counters.free_chunks > 0 || thorough;
        let limit = counters.search_limit(1, thorough);
        let mut chunk = None;
        if limit > 0 {
            chunk = self.reuse(span, counters, hints, (1, limit), used).await?;
        }
        if chunk.is_none() {
            chunk = self.extend(span, counters.cursor, 1, used).await?.map(|(chunk, _)| chunk);
        }
        if chunk.is_none() && some && limit < counters.cursor {
            chunk = self.reuse(span, counters, hints, (1, ALL), used).await?;
        }
        let geometry = self.geometry();
        Ok(chunk.map(|chunk| Run {
            next: geometry.chunk(self.node, chunk),
            left: classes::blocks(class, geometry.chunk_size),
        }))
    }

    /// Takes a span for `bytes` bytes. The second value is true if they are known to be zero. A `thorough` search
    /// ignores the counters.
    pub(crate) async fn take_span(
        &self,
        span: &Span,
        hints: &Hints,
        bytes: u64,
        fresh_first: bool,
        thorough: bool,
    ) -> Result<Option<(RemotePtr, bool)>, PoolError> {
        let geometry = self.geometry();
        let count = geometry.chunks_for(bytes);
        let Some(chunks) = u32::try_from(count).ok().filter(|_| count <= geometry.chunks) else { return Ok(None) };
        let used = ChunkUse::Span { chunks, owner: self.owner };
        let counters = self.counters(span, None).await?;
        let reuse = thorough || counters.free_chunks >= count;
        let limit = if fresh_first { 0 } else { counters.search_limit(count, thorough) };
        let mut found = None;
        if limit > 0 {
            found = self.reuse(span, &counters, hints, (count, limit), used).await?.map(|chunk| (chunk, false));
        }
        if found.is_none() {
            let zeroed = self.pool.superblock(self.node).zeroed != 0;
            found =
                self.extend(span, counters.cursor, count, used).await?.map(|(chunk, fresh)| (chunk, fresh && zeroed));
        }
        if found.is_none() && reuse && limit < counters.cursor {
            found = self.reuse(span, &counters, hints, (count, ALL), used).await?.map(|chunk| (chunk, false));
        }
        Ok(found.map(|(chunk, zero)| (geometry.chunk(self.node, chunk), zero)))
    }

    /// Frees the span of an object of `bytes` bytes.
    ///
    /// Each state is CASed from the value that it must have. So freeing a span twice, or one with a damaged head, does
    /// not free chunks of another owner.
    pub(crate) async fn free_span(&self, span: &Span, start: RemotePtr, bytes: u64) -> Result<(), PoolError> {
        let geometry = self.geometry();
        let (first, count, owner) = self.check_span(span, start, bytes).await?;
        // Back to front: the span exists as long as its head does.
        let mut left = count;
        while left > 0 {
            let mut batch = span.batch();
            let mut tickets = Vec::new();
            for _ in 0..left.min(128) {
                left -= 1;
                let at = geometry.descriptor(self.node, first + left);
                let held = match left {
                    0 => ChunkUse::Span { chunks: count as u32, owner },
                    _ => ChunkUse::SpanTail { owner },
                };
                let held = held.to_bits(at);
                tickets.push((held, batch.cas(at, held, ChunkUse::Free.to_bits(at))));
            }
            if left == 0 {
                batch.faa(self.word(header::FREE_CHUNKS), count);
            }
            let mut done = batch.post().await?;
            if tickets.into_iter().any(|(held, ticket)| done.old(ticket) != held) {
                return Err(no_span(start));
            }
        }
        Ok(())
    }

    /// Checks that the span of an object of `bytes` bytes begins at `start`. Returns its first chunk, its number of
    /// chunks, and the client slot that took it.
    pub(crate) async fn check_span(
        &self,
        span: &Span,
        start: RemotePtr,
        bytes: u64,
    ) -> Result<(u64, u64, u16), PoolError> {
        let geometry = self.geometry();
        let count = geometry.chunks_for(bytes);
        let first = geometry.span_start(start, count).ok_or_else(|| no_span(start))?;
        let at = geometry.descriptor(self.node, first);
        match ChunkUse::from_bits(first_word(&span.read(at, 8).await?), at) {
            ChunkUse::Span { chunks, owner } if u64::from(chunks) == count => Ok((first, count, owner)),
            _ => Err(no_span(start)),
        }
    }
}

fn no_span(at: RemotePtr) -> PoolError {
    PoolError::Corrupt { at, what: "an address that is no span was freed".to_owned() }
}

/// READs all chunks of a node that were ever used, damaged ones included. For checkers.
///
/// They lie below the cursor, but for those that a client has taken at the cursor and crashed before it moved that.
pub async fn all_chunks(pool: &Pool, span: &Span, node: NodeId) -> Result<Vec<Chunk>, PoolError> {
    let chunks = Chunks { pool, node, owner: 0 };
    let cursor = chunks.counters(span, None).await?.cursor;
    let mut all = Vec::with_capacity(cursor as usize);
    let mut first = 0;
    while first < cursor {
        let step = SCAN.min(cursor - first);
        all.extend(chunks.descriptors(span, first, step).await?);
        first += step;
    }
    while first < chunks.geometry().chunks {
        let next = chunks.descriptors(span, first, 1).await?;
        if next.iter().all(|chunk| chunk.used == ChunkUse::Unused) {
            break;
        }
        all.extend(next);
        first += 1;
    }
    Ok(all)
}
