//! Owned, pooled buffers.
//!
//! Invariants: a buffer handed to a verb belongs to the fabric until the verb completes, so dropping the future that
//! waits for it is safe; the storage is whole 8-byte words, so that a fabric copies word by word (G2); a buffer that is
//! dropped returns to its endpoint's pool, where a NIC would have it registered already.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

const CLASSES: usize = 12;
const SMALLEST_WORDS: usize = 8;
const KEPT_PER_CLASS: usize = 256;

/// Free buffers of one endpoint, by size class (64 bytes to 128 KiB; larger ones are not kept).
#[derive(Default)]
pub struct BufPool {
    classes: [RefCell<Vec<Vec<u64>>>; CLASSES],
}

impl BufPool {
    fn class(words: usize) -> usize {
        words.max(SMALLEST_WORDS).next_power_of_two().trailing_zeros() as usize
            - SMALLEST_WORDS.trailing_zeros() as usize
    }

    /// A buffer without storage, to stand where one is taken away.
    pub(crate) fn hollow(self: &Rc<Self>) -> Buf {
        Buf { storage: Vec::new(), words: 0, home: Rc::clone(self) }
    }

    /// A buffer of at least `len` bytes, rounded up to whole words. Its content is whatever it held before.
    pub fn take(self: &Rc<Self>, len: usize) -> Buf {
        let words = len.div_ceil(8);
        let class = Self::class(words);
        let storage = match self.classes.get(class) {
            Some(free) => {
                let reused = free.borrow_mut().pop();
                reused.unwrap_or_else(|| vec![0; SMALLEST_WORDS << class])
            }
            None => vec![0; words],
        };
        Buf { storage, words, home: Rc::clone(self) }
    }
}

/// An owned buffer of whole 8-byte words.
pub struct Buf {
    storage: Vec<u64>,
    words: usize,
    home: Rc<BufPool>,
}

impl Buf {
    /// Length in bytes: a multiple of 8.
    pub fn len(&self) -> usize {
        self.words * 8
    }
    /// Has it no bytes at all?
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }
    /// The words.
    pub fn words(&self) -> &[u64] {
        &self.storage[..self.words]
    }
    /// The words, to be written.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.storage[..self.words]
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.words().as_bytes()
    }
    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.words_mut().as_mut_bytes()
    }
    /// Reads a structure out of the front of the buffer; `None` if the buffer is too short for it.
    pub fn parse<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.bytes()).ok().map(|(value, _)| value)
    }
    /// The same buffer cut to its first `len` bytes (rounded up to whole words).
    pub fn truncate(&mut self, len: usize) {
        self.words = self.words.min(len.div_ceil(8));
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let class = BufPool::class(self.storage.len());
        if let Some(free) = self.home.classes.get(class) {
            let mut free = free.borrow_mut();
            if free.len() < KEPT_PER_CLASS && self.storage.len() == SMALLEST_WORDS << class {
                free.push(std::mem::take(&mut self.storage));
            }
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let pool = Rc::new(BufPool::default());
        let first = pool.take(500);
        let address = first.words().as_ptr();
        assert_eq!(first.len(), 504);
        drop(first);
        assert_eq!(pool.take(512).words().as_ptr(), address);
        assert_eq!(pool.take(1 << 20).len(), 1 << 20);
    }
}
