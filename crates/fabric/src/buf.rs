//! Owned, pooled buffers.
//!
//! Invariants: a buffer handed to a verb belongs to the fabric until the verb completes, so dropping the future that
//! waits for it is safe; the storage is whole 8-byte words, so that a fabric copies word by word (G2); a buffer that is
//! dropped returns to its endpoint's pool. Where hardware fills buffers, the pool's memory is registered with it, once.

use crate::FabricError;
use crate::slab::{Chunk, Registrar, Slab};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

const CLASSES: usize = 12;
const SMALLEST_WORDS: usize = 8;
const KEPT_PER_CLASS: usize = 256;

/// Free buffers of one endpoint, by size class (64 bytes to 128 KiB; larger ones are not kept).
#[derive(Default)]
pub struct BufPool {
    classes: [RefCell<Vec<Storage>>; CLASSES],
    registrar: Option<Box<dyn Registrar>>,
    /// The slab that new buffers are cut from.
    slab: RefCell<Option<Rc<Slab>>>,
}

/// Small, because a buffer moves with the verb and the value that it belongs to.
enum Storage {
    Heap(Box<[u64]>),
    /// Registered.
    Chunk(Box<Chunk>),
}

impl Default for Storage {
    fn default() -> Self {
        Storage::Heap(Box::default())
    }
}

impl Storage {
    #[inline]
    fn words(&self) -> &[u64] {
        match self {
            Storage::Heap(words) => words,
            Storage::Chunk(chunk) => chunk.words(),
        }
    }
    #[inline]
    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Storage::Heap(words) => words,
            Storage::Chunk(chunk) => chunk.words_mut(),
        }
    }
}

impl BufPool {
    /// A pool whose buffers are registered, if there is anything to register them with.
    pub(crate) fn new(registrar: Option<Box<dyn Registrar>>) -> Self {
        BufPool { registrar, ..BufPool::default() }
    }

    #[inline]
    fn class(words: usize) -> usize {
        words.max(SMALLEST_WORDS).next_power_of_two().trailing_zeros() as usize
            - SMALLEST_WORDS.trailing_zeros() as usize
    }

    fn cut(&self, registrar: &dyn Registrar, words: usize) -> Result<Option<Chunk>, FabricError> {
        if words > SMALLEST_WORDS << (CLASSES - 1) {
            return Ok(Slab::new(registrar, words)?.cut(words));
        }
        let mut open = self.slab.borrow_mut();
        if let Some(chunk) = open.as_ref().and_then(|slab| slab.cut(words)) {
            return Ok(Some(chunk));
        }
        let slab = Slab::new(registrar, words)?;
        let chunk = slab.cut(words);
        *open = Some(slab);
        Ok(chunk)
    }

    /// Allocates storage, registered if that is possible. A transport that needs registration checks [`Buf::key`].
    #[cold]
    fn fresh(&self, words: usize) -> Storage {
        let cut = self.registrar.as_deref().map(|registrar| self.cut(registrar, words));
        match cut {
            Some(Ok(Some(chunk))) => Storage::Chunk(Box::new(chunk)),
            _ => Storage::Heap(vec![0; words].into()),
        }
    }

    /// Takes a buffer of `len` bytes, rounded up to whole words. Its content is undefined.
    #[inline]
    pub fn take(self: &Rc<Self>, len: usize) -> Buf {
        let words = len.div_ceil(8);
        let class = Self::class(words);
        let storage = match self.classes.get(class) {
            Some(free) => {
                let reused = free.borrow_mut().pop();
                reused.unwrap_or_else(|| self.fresh(SMALLEST_WORDS << class))
            }
            None => self.fresh(words),
        };
        Buf { storage, words, home: Some(Rc::clone(self)) }
    }

    /// Keeps storage, unless there is enough of its class.
    #[inline]
    fn keep(&self, storage: &mut Storage) {
        // The storage of a class has a power of two of words.
        let words = storage.words().len();
        let class = words.trailing_zeros().wrapping_sub(SMALLEST_WORDS.trailing_zeros()) as usize;
        let Some(free) = self.classes.get(class).filter(|_| words == SMALLEST_WORDS << class) else {
            return;
        };
        let (storage, mut free) = (std::mem::take(storage), free.borrow_mut());
        if free.len() >= KEPT_PER_CLASS || free.len() == free.capacity() {
            return Self::keep_more(&mut free, storage);
        }
        free.push(storage);
    }
    #[cold]
    fn keep_more(free: &mut Vec<Storage>, storage: Storage) {
        // A chunk is never given back to its slab, so all of them are kept.
        if free.len() < KEPT_PER_CLASS || matches!(storage, Storage::Chunk(_)) {
            free.push(storage);
        }
    }
}

/// An owned buffer of whole 8-byte words.
pub struct Buf {
    storage: Storage,
    words: usize,
    /// `None` for a placeholder.
    home: Option<Rc<BufPool>>,
}

impl Buf {
    /// Length in bytes: a multiple of 8.
    #[inline]
    pub fn len(&self) -> usize {
        self.words * 8
    }
    /// Is the length 0?
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }
    /// The words.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.storage.words()[..self.words]
    }
    /// The words, to be written.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.storage.words_mut()[..self.words]
    }
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.words().as_bytes()
    }
    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.words_mut().as_mut_bytes()
    }
    /// The key under which hardware knows the memory (an lkey); `None` if it is not registered.
    pub fn key(&self) -> Option<u32> {
        match &self.storage {
            Storage::Heap(_) => None,
            Storage::Chunk(chunk) => Some(chunk.key()),
        }
    }
    /// Reads a structure out of the front of the buffer; `None` if the buffer is too short for it.
    pub fn parse<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.bytes()).ok().map(|(value, _)| value)
    }
    /// Cuts the buffer to its first `len` bytes (rounded up to whole words).
    pub fn truncate(&mut self, len: usize) {
        self.words = self.words.min(len.div_ceil(8));
    }
    /// Makes the buffer read-only and shareable: many slices of one READ, without a copy. Allocates one reference
    /// count.
    pub fn share(self) -> SharedBuf {
        SharedBuf { start: 0, len: self.len(), buf: Rc::new(self) }
    }
}

/// An empty buffer of no pool, as a placeholder.
impl Default for Buf {
    #[inline]
    fn default() -> Self {
        Buf { storage: Storage::default(), words: 0, home: None }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.keep(&mut self.storage);
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

/// A read-only view of a shared buffer; dereferences to a byte slice. Cloning and slicing copy no bytes. The buffer
/// returns to its pool when the last view of it is dropped.
#[derive(Clone)]
pub struct SharedBuf {
    buf: Rc<Buf>,
    start: usize,
    len: usize,
}

impl SharedBuf {
    /// A view of the bytes `range` of this view; `None` if the range is reversed or reaches beyond the view's end.
    pub fn slice(&self, range: Range<usize>) -> Option<SharedBuf> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len).then(|| SharedBuf { buf: Rc::clone(&self.buf), start: self.start + range.start, len })
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.bytes().get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::{Block, Registration};
    use std::cell::Cell;

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let pool = Rc::new(BufPool::default());
        let first = pool.take(500);
        let address = first.words().as_ptr();
        assert_eq!(first.len(), 504);
        drop(first);
        assert_eq!(pool.take(512).words().as_ptr(), address);
        assert_eq!(pool.take(1 << 20).len(), 1 << 20);
        assert_eq!(first_key(&pool), None);
    }

    #[test]
    fn a_shared_buffer_returns_to_its_pool_with_its_last_slice() {
        let pool = Rc::new(BufPool::default());
        let mut buf = pool.take(64);
        buf.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let address = buf.words().as_ptr();
        let whole = buf.share();
        let part = whole.slice(8..24).expect("within the buffer");
        let inner = part.slice(4..6).expect("within the view");
        assert_eq!((whole.len(), &part[..2], &inner[..]), (64, &[8, 9][..], &[12, 13][..]));
        assert_eq!(part.slice(16..16).map(|empty| empty.len()), Some(0));
        // Beyond the view, although within the buffer; beyond all; and a range whose end comes first.
        #[allow(clippy::reversed_empty_ranges)]
        for range in [0..17, 16..17, 0..usize::MAX, 3..2] {
            assert!(part.slice(range.clone()).is_none(), "{range:?}");
        }
        let copy = inner.clone();
        drop((whole, part, inner));
        assert_ne!(pool.take(64).words().as_ptr(), address, "the buffer is still in use");
        assert_eq!(&copy[..], &[12, 13]);
        let fresh = pool.take(64);
        drop(copy);
        assert_eq!(pool.take(64).words().as_ptr(), address, "the last view is gone");
        drop(fresh);
    }

    fn first_key(pool: &Rc<BufPool>) -> Option<u32> {
        pool.take(8).key()
    }

    /// Records what is registered at each moment; refuses if `refuse` is set.
    #[derive(Clone, Default)]
    struct Ledger {
        registered: Rc<RefCell<Vec<(usize, usize)>>>,
        refuse: Rc<Cell<bool>>,
    }

    struct Entry(Ledger, usize);

    impl Drop for Entry {
        fn drop(&mut self) {
            self.0.registered.borrow_mut().retain(|(start, _)| *start != self.1);
        }
    }

    impl Registrar for Ledger {
        fn register(&self, block: &Block) -> Result<Registration, FabricError> {
            if self.refuse.get() {
                return Err(FabricError::Settings("no".to_owned()));
            }
            let start = block.start() as usize;
            let mut registered = self.registered.borrow_mut();
            registered.push((start, block.len()));
            Ok(Registration { key: registered.len() as u32, hold: Box::new(Entry(self.clone(), start)) })
        }
    }

    impl Ledger {
        fn covers(&self, buf: &Buf) -> bool {
            let (start, len) = (buf.words().as_ptr() as usize, buf.len());
            self.registered.borrow().iter().any(|(at, size)| *at <= start && start + len <= at + size)
        }
    }

    #[test]
    fn registered_buffers_do_not_overlap_and_stay_registered() {
        let ledger = Ledger::default();
        let pool = Rc::new(BufPool::new(Some(Box::new(ledger.clone()))));
        let mut bufs: Vec<Buf> = (0..40).map(|i| pool.take(8 << (i % 12))).collect();
        for (i, buf) in bufs.iter_mut().enumerate() {
            buf.words_mut().fill(i as u64);
        }
        for (i, buf) in bufs.iter().enumerate() {
            assert!(buf.words().iter().all(|word| *word == i as u64), "buffer {i} was overwritten");
            assert!(buf.key().is_some() && ledger.covers(buf), "buffer {i} is not registered");
        }
        let kept = bufs.pop();
        let address = bufs[3].words().as_ptr();
        drop(bufs.remove(3));
        assert_eq!(pool.take(64).words().as_ptr(), address, "a dropped buffer is used again");
        let large = pool.take(3 << 20);
        assert!(ledger.covers(&large));
        let slabs = ledger.registered.borrow().len();
        drop(large);
        assert_eq!(ledger.registered.borrow().len(), slabs - 1, "a large buffer stayed registered");
        // A buffer stays usable after pool and slab handles are dropped.
        drop((bufs, pool));
        assert!(kept.as_ref().is_some_and(|buf| ledger.covers(buf)));
        drop(kept);
        assert!(ledger.registered.borrow().is_empty());
    }

    #[test]
    fn a_failed_registration_gives_unregistered_buffers() {
        let ledger = Ledger::default();
        ledger.refuse.set(true);
        let pool = Rc::new(BufPool::new(Some(Box::new(ledger.clone()))));
        assert_eq!(pool.take(64).key(), None);
    }
}
