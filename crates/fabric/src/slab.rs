//! Memory for buffers that hardware reads and fills: allocated in large pieces, registered once, cut into chunks.
//!
//! Invariants: chunks of a slab do not overlap; a slab's memory stays where it is, and registered, until its last chunk
//! and its last other owner are gone; it is unregistered before it is freed.
#![allow(unsafe_code)]

use crate::FabricError;
use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

/// Bytes of a slab, and its alignment: one huge page, where the system has them to give.
const SLAB_LEN: usize = 2 << 20;
const PAGE_LEN: usize = 4096;

/// Registers memory with the hardware of one connection. See [`Transport::registrar`](crate::Transport::registrar).
pub trait Registrar {
    /// Registers a block as local memory of verbs: hardware may read and write all of it until the registration is
    /// dropped.
    fn register(&self, block: &Block) -> Result<Registration, FabricError>;
}

/// Memory that is registered. Dropping `hold` ends that.
pub struct Registration {
    /// The key that verbs name the memory by (an lkey).
    pub key: u32,
    /// Kept alive as long as the registration.
    pub hold: Box<dyn Any>,
}

/// Memory to be registered by a [`Registrar`]. It stays where it is, readable and writable, until the registration has
/// been dropped.
pub struct Block {
    start: NonNull<u64>,
    layout: Layout,
}

impl Block {
    fn new(len: usize) -> Option<Self> {
        let align = if len >= SLAB_LEN { SLAB_LEN } else { PAGE_LEN };
        let layout = Layout::from_size_align(len.max(PAGE_LEN).checked_next_multiple_of(PAGE_LEN)?, align).ok()?;
        // SAFETY: the layout's size is at least a page.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(all(target_os = "linux", not(miri)))]
        if layout.size() >= SLAB_LEN {
            // SAFETY: the range was allocated just now, in whole pages, and nothing refers into it; the advice changes
            // which pages stand behind it and not what it holds. Without huge pages it is refused, and small ones do.
            let _ =
                unsafe { rustix::mm::madvise(start.as_ptr().cast(), layout.size(), rustix::mm::Advice::LinuxHugepage) };
        }
        // SAFETY: as above; from here on every byte is initialised.
        unsafe { start.as_ptr().write_bytes(0, layout.size()) };
        Some(Block { start: start.cast(), layout })
    }
    /// Its first byte, aligned to a page.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.layout.size()
    }
    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed here alone. Chunks own the slab around it, so none is
        // left.
        unsafe { dealloc(self.start(), self.layout) };
    }
}

/// A block that is registered.
pub(crate) struct Slab {
    // Dropped in this order.
    registration: Registration,
    block: Block,
    /// Words that chunks have taken.
    used: Cell<usize>,
}

impl Slab {
    /// Makes a slab with room for at least `words`.
    pub(crate) fn new(registrar: &dyn Registrar, words: usize) -> Result<Rc<Self>, FabricError> {
        let len = words.saturating_mul(8).max(SLAB_LEN);
        let block = Block::new(len)
            .ok_or_else(|| FabricError::Settings(format!("there is no memory for {len} bytes of buffers")))?;
        let registration = registrar.register(&block)?;
        Ok(Rc::new(Slab { registration, block, used: Cell::new(0) }))
    }
    /// Cuts a chunk off; `None` if too little is left.
    pub(crate) fn cut(self: &Rc<Self>, words: usize) -> Option<Chunk> {
        let first = self.used.get();
        let end = first.checked_add(words).filter(|end| *end <= self.block.len() / 8)?;
        self.used.set(end);
        // SAFETY: `first..end` lies within the block, as was checked.
        let start = unsafe { self.block.start.add(first) };
        Some(Chunk { start, words, slab: Rc::clone(self) })
    }
}

/// A range of a slab's words, owned exclusively.
pub(crate) struct Chunk {
    start: NonNull<u64>,
    words: usize,
    slab: Rc<Slab>,
}

impl Chunk {
    pub(crate) fn key(&self) -> u32 {
        self.slab.registration.key
    }
    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: the words lie within the slab's block, which this chunk keeps alive; they are aligned and
        // initialised; no other chunk has them (`used` only grows), so only `words_mut` hands out more references, and
        // that borrows the chunk mutably. Hardware writes to them only while a verb has the buffer, when no reference
        // exists: code that gives a chunk to hardware owns it until the verb has completed or the connection is gone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
    #[inline]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and the chunk is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}
