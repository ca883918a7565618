//! The two places where plain memory becomes words of `AtomicU64`.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

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
