//! The cached copy of a directory, which the threads of a compute node share.
//!
//! Invariants: a word is zero or was published (X2), so any word found here leads to a segment that exists as long as
//! the index does. Storage is bounded: suffixes beyond the bound are not kept, and their lookups find a shorter suffix.

use super::layout::{Entry, MAX_CHUNKS, Shape, suffix, width};
use farindex_fabric::RemotePtr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The cached copy.
pub struct Mirror {
    shape: Shape,
    /// Largest number of bytes of words.
    bound: u64,
    bytes: AtomicU64,
    /// Addresses of the chunks; zero if unknown.
    chunks: [AtomicU64; MAX_CHUNKS],
    words: [OnceLock<Box<[AtomicU64]>>; MAX_CHUNKS],
    /// Bits of the longest suffix in the copy.
    depth: AtomicU32,
}

impl Mirror {
    /// Creates an empty copy that keeps at most `bound` bytes of words.
    pub fn new(shape: Shape, bound: u64) -> Self {
        Mirror {
            shape,
            bound,
            bytes: AtomicU64::new(0),
            chunks: std::array::from_fn(|_| AtomicU64::new(0)),
            words: std::array::from_fn(|_| OnceLock::new()),
            depth: AtomicU32::new(0),
        }
    }

    /// Returns the longest known suffix of a hash, and its word.
    pub fn find(&self, hash: u64) -> Option<(u64, Entry)> {
        let mut at = suffix(hash, self.depth.load(Ordering::Relaxed).max(self.shape.initial_depth));
        loop {
            let entry = self.get(at);
            if !entry.is_none() {
                return Some((at, entry));
            }
            at = self.shape.parent(at)?;
        }
    }

    /// Returns the word of a suffix; the empty word if it is unknown.
    pub fn get(&self, suffix: u64) -> Entry {
        let (chunk, i) = self.shape.place(suffix);
        let words = self.words.get(chunk).and_then(OnceLock::get);
        let word = words.and_then(|words| words.get(i as usize)).map_or(0, |word| word.load(Ordering::Acquire));
        Entry::from_bits(word)
    }

    /// Stores a word that was read or published.
    pub fn learn(&self, suffix: u64, entry: Entry) {
        let (chunk, i) = self.shape.place(suffix);
        let Some(cell) = self.words.get(chunk).filter(|_| !entry.is_none()) else { return };
        let len = self.shape.words_of(chunk);
        if cell.get().is_none() {
            let bytes = len * 8;
            if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.bound {
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                return;
            }
            let fresh = (0..len).map(|_| AtomicU64::new(0)).collect();
            if cell.set(fresh).is_err() {
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
        if let Some(word) = cell.get().and_then(|words| words.get(i as usize)) {
            word.store(entry.to_bits(), Ordering::Release);
            self.depth.fetch_max(width(suffix), Ordering::Relaxed);
        }
    }

    /// Returns the address of a chunk, if it is known.
    pub fn chunk(&self, chunk: usize) -> Option<RemotePtr> {
        let bits = self.chunks.get(chunk)?.load(Ordering::Acquire);
        (bits != 0).then(|| RemotePtr::from_bits(bits))
    }

    /// Stores the address of a chunk.
    pub fn learn_chunk(&self, chunk: usize, at: RemotePtr) {
        if let Some(cell) = self.chunks.get(chunk).filter(|_| !at.is_null()) {
            cell.store(at.to_bits(), Ordering::Release);
        }
    }

    /// Drops every word: for tests with a cold cache.
    pub fn forget(&self) {
        for word in self.words.iter().filter_map(OnceLock::get).flat_map(|words| words.iter()) {
            word.store(0, Ordering::Release);
        }
    }

    /// Bytes of memory that the copy uses.
    pub fn bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.bytes.load(Ordering::Relaxed)
    }
    /// Bits of the longest known suffix.
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed).max(self.shape.initial_depth)
    }
    /// The shape of the directory.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    fn entry(i: u64) -> Entry {
        Entry::new(RemotePtr::new(NodeId::new(0), i * 64), 0).unwrap()
    }

    #[test]
    fn find_returns_the_longest_known_suffix() {
        let mirror = Mirror::new(Shape { initial_depth: 1 }, 1 << 20);
        assert_eq!(mirror.find(0b1011), None);
        mirror.learn(1, entry(1));
        assert_eq!(mirror.find(0b1011), Some((1, entry(1))));
        mirror.learn(0b1011, entry(2));
        assert_eq!(mirror.find(0b1011), Some((0b1011, entry(2))), "unknown parents in between do not matter");
        assert_eq!(mirror.find(0b0011), Some((1, entry(1))));
        mirror.learn(0b0011, entry(3));
        assert_eq!(mirror.find(0b10_0011), Some((0b0011, entry(3))));
        mirror.learn(0b0011, Entry::NONE);
        assert_eq!(mirror.find(0b0011), Some((0b0011, entry(3))), "a published word stays");
        mirror.forget();
        assert_eq!(mirror.find(0b0011), None);
    }

    #[test]
    fn suffixes_beyond_the_bound_are_not_kept() {
        let mirror = Mirror::new(Shape { initial_depth: 1 }, 128);
        mirror.learn(1, entry(1));
        mirror.learn(0b1001, entry(2));
        mirror.learn(0b10_1001, entry(3));
        assert_eq!(mirror.find(0b10_1001), Some((0b1001, entry(2))), "64 and 64 bytes are kept, 256 more are not");
        assert_eq!(mirror.bytes(), size_of::<Mirror>() as u64 + 128);
    }
}
