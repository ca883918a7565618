//! The bitmap of a chunk: which of its blocks are free, and claims on them.

use super::chunks::Chunks;
use super::classes;
use crate::layout::{Bitmap, ChunkUse, first_word};
use farindex_fabric::{Done, Ticket};

/// A chunk, decoded from its descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Chunk {
    /// Its use.
    pub used: ChunkUse,
    /// Its free blocks.
    pub free: Bitmap,
}

/// The bits of bitmap word `i` that represent blocks, in a chunk of so many blocks.
pub(super) fn valid_bits(blocks: u64, i: usize) -> u64 {
    match blocks.saturating_sub(i as u64 * 64) {
        0 => 0,
        bits @ 1..64 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

/// Number of bits that are set, whether they represent blocks or not.
pub(crate) fn marked_bits(free: &Bitmap) -> u64 {
    free.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Number of free blocks, in a chunk of so many blocks.
pub(crate) fn free_blocks(free: &Bitmap, blocks: u64) -> u64 {
    free.iter().enumerate().map(|(i, word)| u64::from((word & valid_bits(blocks, i)).count_ones())).sum()
}

/// A posted claim on the free blocks of a chunk. For each bitmap word: its number, its expected value, the bits to
/// take, and the ticket of the CAS.
pub(super) struct Claim {
    pub(super) chunk: u64,
    pub(super) words: Vec<(u64, u64, u64, Ticket)>,
    pub(super) state: Ticket,
}

/// The blocks that a claim has taken, and the use of their chunk at that time.
pub(super) struct Claimed {
    pub(super) chunk: u64,
    pub(super) used: ChunkUse,
    pub(super) bits: Vec<u64>,
}

impl Claim {
    /// Decodes the result of the claim.
    pub(super) fn settle(self, done: &mut Done, chunks: &Chunks<'_>) -> Claimed {
        let geometry = chunks.geometry();
        let state = first_word(&done.buf(self.state));
        let used = ChunkUse::from_bits(state, geometry.descriptor(chunks.node, self.chunk));
        let blocks = match used {
            ChunkUse::Blocks { class, .. } => classes::blocks(class, geometry.chunk_size),
            _ => 0,
        };
        let mut bits = Vec::new();
        for (i, held, asked, ticket) in self.words {
            if done.old(ticket) == held {
                bits.extend((0..64).filter(|bit| asked >> bit & 1 == 1).map(|bit| i * 64 + bit));
            }
        }
        bits.retain(|bit| *bit < blocks);
        Claimed { chunk: self.chunk, used, bits }
    }
}
