//! The two places where plain memory becomes words of `AtomicU64`, from the allocator and from a mapping; and the request
//! that the processor fetch a word.
//!
//! Invariants: a region's words stay where they are for as long as it lives; nothing in this process touches its memory
//! except as `AtomicU64`.
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
use crate::shm::fault::Guard;
use std::sync::atomic::AtomicU64;

/// The memory of one node.
pub(crate) enum Region {
    /// From the allocator.
    Heap(Box<[AtomicU64]>),
    /// A mapping.
    #[cfg(target_os = "linux")]
    Mapped(Mapping),
}

impl Region {
    /// Its words.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        match self {
            Region::Heap(words) => words,
            #[cfg(target_os = "linux")]
            Region::Mapped(mapping) => mapping.words(),
        }
    }

    /// From now on, a mapping whose file was cut is an error and not the end of the process: see
    /// [`is_lost`](Self::is_lost).
    #[cfg(target_os = "linux")]
    pub(crate) fn guard(&mut self) {
        if let Region::Mapped(mapping) = self {
            mapping.guard = Guard::of(mapping.words());
        }
    }

    /// Was the content lost? To be checked after every access, since zeros may have been read in its place.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Region::Heap(_) => false,
            #[cfg(target_os = "linux")]
            Region::Mapped(mapping) => any_lost() && mapping.guard.as_ref().is_some_and(Guard::is_lost),
        }
    }
}

/// A mapping, whole: of a file, shared, or of fresh memory.
#[cfg(target_os = "linux")]
pub(crate) struct Mapping {
    /// Before the map: it is dropped first.
    guard: Option<Guard>,
    map: memmap2::MmapRaw,
}

#[cfg(target_os = "linux")]
impl Mapping {
    /// Fresh zeroed memory, in huge pages where the system has them to give.
    pub(crate) fn anonymous(len: usize) -> std::io::Result<Self> {
        let map = memmap2::MmapRaw::from(memmap2::MmapOptions::new().len(len).map_anon()?);
        // Advice: a system without huge pages gives small ones.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Mapping { guard: None, map })
    }

    /// Maps the first `len` bytes of a file.
    pub(crate) fn map(file: &std::fs::File, len: usize, read_only: bool) -> std::io::Result<Self> {
        let mut options = memmap2::MmapOptions::new();
        options.len(len);
        let map = if read_only { options.map_raw_read_only(file)? } else { options.map_raw(file)? };
        // Advice, as above. Most file systems have no huge pages.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Mapping { guard: None, map })
    }

    fn words(&self) -> &[AtomicU64] {
        let start = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY:
        // - `start` is page-aligned, so aligned for `AtomicU64`, and not null; the mapping is one allocation of
        //   `self.map.len()` bytes, of which whole words are taken, and any bits are an `AtomicU64`.
        // - The mapping lives as long as `self`, which the slice borrows.
        // - `AtomicU64` allows change behind a shared reference. This process reaches the memory by such references
        //   alone; what other processes do to it is outside the language's model, and by aligned 8-byte accesses alone
        //   if they use this crate.
        // - On a read-only mapping a store would fault: `Mapped` refuses every verb but READ there, and READs with
        //   relaxed loads, which are guaranteed to work on read-only memory.
        // - Pages exist behind the whole length: fresh memory has them on demand, files are made with their space
        //   reserved. A file that is shrunk while it is mapped causes a SIGBUS. It ends the process, or, if the mapping
        //   is guarded, zeros take the file's place; it is not undefined behaviour.
        unsafe { std::slice::from_raw_parts(start, self.map.len() / size_of::<AtomicU64>()) }
    }
}

/// Has the processor fetch the cache line of a word, without waiting for it.
#[inline]
pub(crate) fn prefetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction. It is a hint: it reads nothing into the program, writes
    // nothing, and faults at no address, whatever the page is; and the address is that of a live word.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = word;
}

/// Was the content of any region of this process lost? Then ask each one.
#[inline]
pub(crate) fn any_lost() -> bool {
    #[cfg(target_os = "linux")]
    return crate::shm::fault::any_lost();
    #[cfg(not(target_os = "linux"))]
    false
}

/// Zeroed words from the allocator, which leaves large ones to the system: pages that are never touched cost nothing.
/// `None` if there is not that much memory.
pub(crate) fn zeroed_words(len: usize) -> Option<Box<[AtomicU64]>> {
    let layout = std::alloc::Layout::array::<AtomicU64>(len).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the layout has a size above zero.
    let start = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<AtomicU64>();
    if start.is_null() {
        return None;
    }
    let words = std::ptr::slice_from_raw_parts_mut(start, len);
    // SAFETY: `start` was allocated just now by the global allocator with the layout of `[AtomicU64; len]`, every word
    // of it is initialised (all-zero bits are an `AtomicU64`), and nothing else owns it.
    Some(unsafe { Box::from_raw(words) })
}
