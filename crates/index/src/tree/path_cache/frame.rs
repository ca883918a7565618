//! A frame: the copy of one node in local memory, with the swizzled pointers to the copies of its children; and the bytes
//! that frames are charged for.

use super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Slot};
use std::sync::Arc;

/// A node, as far as the cache looks into it.
pub(super) trait Content {
    /// Bytes of local memory behind the value itself.
    fn heap_bytes(&self) -> u64;
    fn level(&self) -> u8;
    fn children(&self) -> usize;
    /// Address of a child.
    fn child(&self, i: usize) -> u64;
    /// Must the node be written to far memory before it may leave the cache?
    fn is_dirty(&self) -> bool {
        false
    }
}

/// Bytes in use, and how many there may be.
pub(super) struct Budget {
    used: AtomicU64,
    limit: u64,
    /// Bytes that stay in use.
    fixed: u64,
}

impl Budget {
    pub(super) fn new(limit: u64, fixed: u64) -> Arc<Self> {
        Arc::new(Budget { used: AtomicU64::new(fixed), limit, fixed })
    }
    /// Is there room for so many bytes if everything else goes?
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.fixed.saturating_add(bytes) <= self.limit
    }
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }
    /// Takes bytes, if they are there.
    pub(super) fn charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        let mut used = self.used.load(Ordering::SeqCst);
        loop {
            let next = used.checked_add(bytes).filter(|next| *next <= self.limit)?;
            match self.used.compare_exchange(used, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(Charge { budget: Arc::clone(self), bytes }),
                Err(now) => used = now,
            }
        }
    }
}

/// Bytes that are in use as long as this exists.
pub(super) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// The frame may be evicted: it is in the cooling map.
const COOLING: u32 = 1 << 31;
/// The frame has left the cache: another one has taken its place, or none has.
const GONE: u32 = 1 << 30;

/// A copy of a node. The node in it never changes.
pub(super) struct Frame<N> {
    pub(super) at: u64,
    pub(super) node: N,
    /// One for each child. A slot changes only under the mutex of the child's bucket.
    pub(super) slots: Box<[Slot<Frame<N>>]>,
    /// Number of children that are swizzled, `COOLING`, `GONE`.
    links: AtomicU32,
    /// The node has changed in far memory: READ it again.
    stale: AtomicBool,
    _charge: Charge,
}

impl<N: Content> Frame<N> {
    /// Bytes that a frame of this node takes, its entry in the mapping table included.
    pub(super) fn bytes(node: &N, entry: u64) -> u64 {
        // Two reference counts.
        let own = size_of::<Self>() + 16 + node.children() * size_of::<Slot<Self>>();
        own as u64 + node.heap_bytes() + entry
    }
    pub(super) fn new(at: u64, node: N, charge: Charge) -> Arc<Self> {
        let slots = (0..node.children()).map(|_| Slot::empty()).collect();
        let (links, stale) = (AtomicU32::new(0), AtomicBool::new(false));
        Arc::new(Frame { at, node, slots, links, stale, _charge: charge })
    }
    pub(super) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::SeqCst)
    }
    pub(super) fn set_stale(&self) {
        self.stale.store(true, Ordering::SeqCst);
    }

    /// Counts one more swizzled child, unless the frame is cooling, or gone.
    pub(super) fn link(&self) -> bool {
        let mut links = self.links.load(Ordering::SeqCst);
        while links & (COOLING | GONE) == 0 {
            match self.links.compare_exchange(links, links + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => links = now,
            }
        }
        false
    }
    pub(super) fn unlink(&self) {
        self.links.fetch_sub(1, Ordering::SeqCst);
    }
    /// Number of swizzled children.
    pub(super) fn linked(&self) -> u32 {
        self.links.load(Ordering::SeqCst) & !(COOLING | GONE)
    }
    /// Makes the frame cooling, unless a child is swizzled.
    pub(super) fn cool(&self) -> bool {
        self.links.compare_exchange(0, COOLING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    /// Makes the frame cooling, whatever its children are.
    pub(super) fn cool_with_children(&self) -> bool {
        self.links.fetch_or(COOLING, Ordering::SeqCst) & COOLING == 0
    }
    pub(super) fn warm(&self) {
        self.links.fetch_and(!COOLING, Ordering::SeqCst);
    }
    pub(super) fn is_cooling(&self) -> bool {
        self.links.load(Ordering::SeqCst) & COOLING != 0
    }
    /// Lets no child be swizzled any more.
    pub(super) fn leave(&self) {
        self.links.fetch_or(GONE, Ordering::SeqCst);
    }
    #[cfg(test)]
    pub(super) fn is_gone(&self) -> bool {
        self.links.load(Ordering::SeqCst) & GONE != 0
    }

    /// A swizzled child, the first one from a position on.
    pub(super) fn some_child(&self, from: usize) -> Option<Arc<Self>> {
        let (before, behind) = self.slots.split_at(from % self.slots.len().max(1));
        behind.iter().chain(before).find_map(|slot| slot.load().as_ref().map(Arc::clone))
    }
    /// The position of a child.
    pub(super) fn position(&self, child: u64, from: usize) -> Option<usize> {
        let all = self.node.children();
        (from..all).chain(0..from.min(all)).find(|i| self.node.child(*i) == child)
    }
}
