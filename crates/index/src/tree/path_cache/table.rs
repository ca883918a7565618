//! The mapping table: which nodes are in the cache, and who READs one now; swizzled pointers between the copies.
//!
//! Invariants: C1 to C4 of the parent module. The mutex of a node's bucket protects the node's entry, the slot that holds
//! its frame, and its place in the cooling map. No code holds the mutexes of two buckets; the cooling map's come behind
//! those of buckets.

use super::cooling::CoolingMap;
use super::frame::{Budget, Charge, Content, Frame};
use super::hooks::{Fault, mark, planted};
use super::sync::{AtomicU64, Loaded, Mutex, Ordering, Slot};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// Mixes the bits of an address.
pub(super) fn spread(at: u64) -> u64 {
    let mixed = (at >> 6 ^ at >> 38).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}

/// Where the swizzled pointer to a frame is.
enum Link<N> {
    /// There is none.
    None,
    /// It is the pointer to the root.
    Root,
    Slot(Weak<Frame<N>>, usize),
}

/// The I/O flag: a READ of the node is in progress, or another operation during which nobody else is to READ it.
struct Io {
    number: u64,
    waiting: Vec<Waker>,
    _charge: Charge,
}

pub(super) struct Entry<N> {
    at: u64,
    frame: Option<Arc<Frame<N>>>,
    link: Link<N>,
    io: Option<Box<Io>>,
}

/// A bucket has room for twice its entries at most, which is what they are charged for.
type Bucket<N> = Vec<Entry<N>>;

fn of<N>(bucket: &mut Bucket<N>, at: u64) -> Option<&mut Entry<N>> {
    bucket.iter_mut().find(|entry| entry.at == at)
}

fn push<N>(bucket: &mut Bucket<N>, entry: Entry<N>) {
    if bucket.len() == bucket.capacity() {
        bucket.reserve_exact(1 + bucket.len() / 2);
    }
    bucket.push(entry);
}

/// Removes an entry that says nothing any more.
fn tidy<N>(bucket: &mut Bucket<N>, at: u64) {
    bucket.retain(|entry| entry.at != at || entry.frame.is_some() || entry.io.is_some());
    if bucket.capacity() > 2 * bucket.len() {
        bucket.shrink_to_fit();
    }
}

/// The mapping table.
pub(super) struct Table<N> {
    buckets: Box<[Mutex<Bucket<N>>]>,
    /// Address of the root, and the swizzled pointer to it.
    root_at: u64,
    root: Slot<Frame<N>>,
    pub(super) cooling: CoolingMap,
    pub(super) budget: Arc<Budget>,
    draws: AtomicU64,
    flags: AtomicU64,
    /// Dirty nodes that were to be evicted: they are to be written back first.
    due: Mutex<Vec<u64>>,
}

/// Dirty nodes that are noted as due, at most.
const DUE: usize = 64;

/// What a look at a node has found.
pub(super) enum Look<'t, N: Content> {
    Found(Arc<Frame<N>>),
    /// Another operation has raised the I/O flag.
    Busy(Wait<'t, N>),
    /// The node is not there. The caller has raised the flag, if there was room for it.
    Free(Option<Flag<'t, N>>),
}

impl<N: Content> Table<N> {
    /// Makes a table for at most `limit` bytes, with so many buckets, and a cooling map for so many nodes.
    pub(super) fn new(root_at: u64, limit: u64, (buckets, cooling): (usize, usize)) -> Self {
        let buckets: Box<[_]> = (0..buckets.max(1)).map(|_| Mutex::new(Bucket::new())).collect();
        let cooling = CoolingMap::new(cooling);
        let own = size_of::<Self>() as u64 + size_of_val(&*buckets) as u64 + cooling.bytes();
        let budget = Budget::new(limit, own);
        let (draws, flags) = (AtomicU64::new(0), AtomicU64::new(0));
        let due = Mutex::new(Vec::new());
        Table { buckets, root_at, root: Slot::empty(), cooling, budget, draws, flags, due }
    }
    /// Bytes of a bucket.
    pub(super) const fn bucket_bytes() -> usize {
        size_of::<Mutex<Bucket<N>>>()
    }
    /// Bytes that are charged for an entry.
    pub(super) const fn entry_bytes() -> u64 {
        2 * size_of::<Entry<N>>() as u64
    }
    fn bucket(&self, at: u64) -> &Mutex<Bucket<N>> {
        &self.buckets[(spread(at) >> 32) as usize % self.buckets.len()]
    }
    /// The next number of a fixed series, so that a simulated run can be repeated.
    pub(super) fn draw(&self) -> u64 {
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        // SplitMix64.
        let mut mixed = draw.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Removes the swizzled pointer to an entry's frame. The caller has the entry's mutex.
    fn unswizzle(&self, entry: &mut Entry<N>) {
        match std::mem::replace(&mut entry.link, Link::None) {
            Link::None => {}
            Link::Root => drop(self.root.take()),
            Link::Slot(parent, i) => {
                if let Some(parent) = parent.upgrade() {
                    if let Some(slot) = parent.slots.get(i) {
                        drop(slot.take());
                    }
                    parent.unlink();
                }
            }
        }
    }
    /// Gives a cooling frame its second chance. The caller has its mutex.
    fn warm(&self, frame: &Frame<N>) {
        if frame.is_cooling() {
            mark!("path cache: a cooling node was given a second chance");
            frame.warm();
            self.cooling.remove(frame.at);
        }
    }

    /// Finds the copy of a node.
    pub(super) fn get(&self, at: u64) -> Option<Arc<Frame<N>>> {
        let mut bucket = self.bucket(at).lock();
        let frame = of(&mut bucket, at)?.frame.as_ref().filter(|frame| !frame.is_stale())?;
        self.warm(frame);
        Some(Arc::clone(frame))
    }
    /// Is there a copy of this node? It stays as cold as it is.
    pub(super) fn has(&self, at: u64) -> bool {
        of(&mut self.bucket(at).lock(), at).is_some_and(|entry| entry.frame.is_some())
    }
    /// Finds the copy of the root, and swizzles it.
    pub(super) fn root(&self) -> Option<Loaded<Frame<N>>> {
        let root = self.root.load();
        if root.is_some() {
            return Some(root);
        }
        let mut bucket = self.bucket(self.root_at).lock();
        let entry = of(&mut bucket, self.root_at)?;
        let frame = Arc::clone(entry.frame.as_ref().filter(|frame| !frame.is_stale())?);
        self.warm(&frame);
        self.unswizzle(entry);
        self.root.store(Some(Arc::clone(&frame)));
        entry.link = Link::Root;
        Some(super::sync::loaded(frame))
    }
    /// Finds the copy of a child by its parent's swizzled pointer, or else here, and swizzles it.
    pub(super) fn child(&self, parent: &Arc<Frame<N>>, i: usize) -> Option<Loaded<Frame<N>>> {
        let child = parent.slots.get(i)?.load();
        if child.is_some() {
            return Some(child);
        }
        let at = parent.node.child(i);
        let mut bucket = self.bucket(at).lock();
        let entry = of(&mut bucket, at)?;
        let frame = Arc::clone(entry.frame.as_ref().filter(|frame| !frame.is_stale())?);
        self.warm(&frame);
        // The levels differ if the address has another use by now; then pointers could make a ring.
        if frame.node.level() + 1 == parent.node.level() && parent.link() {
            self.unswizzle(entry);
            if let Some(slot) = parent.slots.get(i) {
                slot.store(Some(Arc::clone(&frame)));
            }
            entry.link = Link::Slot(Arc::downgrade(parent), i);
        }
        Some(super::sync::loaded(frame))
    }

    /// Puts a copy in, in place of the one that is there. The copy of `parent`, which led to the node, must be there, unless it
    /// is the root, or a copy of the node itself is there; returns whether the node was admitted.
    pub(super) fn put(&self, at: u64, node: N, parent: Option<u64>) -> bool {
        if at != self.root_at && !self.has(at) && !parent.is_some_and(|parent| self.has(parent)) {
            mark!("path cache: a node whose parent is not there was not admitted");
            return false;
        }
        let Some(charge) = self.room(Frame::bytes(&node, Self::entry_bytes())) else {
            mark!("path cache: no room");
            return false;
        };
        let frame = Frame::new(at, node, charge);
        let mut bucket = self.bucket(at).lock();
        let Some(entry) = of(&mut bucket, at) else {
            push(&mut bucket, Entry { at, frame: Some(frame), link: Link::None, io: None });
            return true;
        };
        let Some(old) = entry.frame.replace(Arc::clone(&frame)) else { return true };
        old.leave();
        if old.is_cooling() {
            self.cooling.remove(at);
        }
        if old.node.level() == frame.node.level() {
            match &entry.link {
                Link::None => {}
                Link::Root => self.root.store(Some(Arc::clone(&frame))),
                Link::Slot(parent, i) => {
                    if let Some(slot) = parent.upgrade().as_ref().and_then(|parent| parent.slots.get(*i)) {
                        slot.store(Some(Arc::clone(&frame)));
                    }
                }
            }
        } else {
            self.unswizzle(entry);
        }
        drop(bucket);
        self.move_children(&old, Some(&frame));
        true
    }
    /// Takes the children of a frame that has left the cache from it, and gives them to the frame in its place.
    fn move_children(&self, old: &Arc<Frame<N>>, new: Option<&Arc<Frame<N>>>) {
        for (i, slot) in old.slots.iter().enumerate() {
            let at = old.node.child(i);
            let mut bucket = self.bucket(at).lock();
            let Some(child) = slot.take() else { continue };
            old.unlink();
            let Some(entry) = of(&mut bucket, at) else { continue };
            entry.link = Link::None;
            let Some(new) = new.filter(|new| child.node.level() + 1 == new.node.level()) else { continue };
            match new.position(at, i) {
                Some(j) if new.link() => {
                    mark!("path cache: a copy got a new parent");
                    if let Some(slot) = new.slots.get(j) {
                        slot.store(Some(child));
                    }
                    entry.link = Link::Slot(Arc::downgrade(new), j);
                }
                _ => {
                    mark!("path cache: a copy lost its parent");
                }
            }
        }
    }

    /// Takes a copy out. Nobody who begins to look afterwards finds it. Returns whether there was one.
    pub(super) fn remove(&self, at: u64) -> bool {
        self.remove_if(at, |_| true)
    }
    /// Takes a copy out that is still wanted to be gone: a newer one, which may be dirty, may have taken its place.
    fn remove_if(&self, at: u64, unwanted: impl FnOnce(&Frame<N>) -> bool) -> bool {
        let mut bucket = self.bucket(at).lock();
        let Some(entry) = of(&mut bucket, at) else { return false };
        let Some(frame) = entry.frame.take_if(|frame| unwanted(frame)) else { return false };
        if planted(Fault::LeftSwizzled) {
            entry.link = Link::None;
        } else {
            self.unswizzle(entry);
        }
        frame.leave();
        if frame.is_cooling() {
            self.cooling.remove(at);
        }
        tidy(&mut bucket, at);
        drop(bucket);
        self.move_children(&frame, None);
        true
    }
    /// Notes that a node has changed in far memory. Its copy leads nobody any more; its children stay until it is READ again.
    pub(super) fn invalidate(&self, at: u64) {
        {
            let mut bucket = self.bucket(at).lock();
            let Some(frame) = of(&mut bucket, at).and_then(|entry| entry.frame.as_ref()) else { return };
            if frame.node.is_dirty() {
                // It is newer than what far memory has.
                return;
            }
            frame.set_stale();
            if frame.linked() > 0 {
                mark!("path cache: an old copy with children waits for a new one");
                return;
            }
        }
        self.remove_if(at, Frame::is_stale);
    }
    /// Takes out all copies that are not to be kept.
    pub(super) fn retain(&self, keep: impl Fn(&N) -> bool) {
        for bucket in &self.buckets {
            let drop_frame =
                |entry: &Entry<N>| entry.frame.as_ref().filter(|frame| !keep(&frame.node)).map(|_| entry.at);
            let gone: Vec<_> = bucket.lock().iter().filter_map(drop_frame).collect();
            for at in gone {
                self.remove_if(at, |frame| !keep(&frame.node));
            }
        }
    }

    /// Finds the copy of a node, or raises its I/O flag.
    pub(super) fn look(&self, at: u64) -> Look<'_, N> {
        if let Some(frame) = self.get(at) {
            return Look::Found(frame);
        }
        // Outside the mutex: an eviction may take the same one.
        let charge = self.room(Self::entry_bytes() + size_of::<Io>() as u64);
        let mut bucket = self.bucket(at).lock();
        let number = self.flags.fetch_add(1, Ordering::Relaxed);
        let raised = |charge| Some(Box::new(Io { number, waiting: Vec::new(), _charge: charge }));
        let flag = || Flag { table: self, at, number };
        match of(&mut bucket, at) {
            Some(Entry { frame: Some(frame), .. }) if !frame.is_stale() => Look::Found(Arc::clone(frame)),
            Some(Entry { io: Some(io), .. }) if !planted(Fault::NoIoFlag) => {
                mark!("path cache: a node was being READ");
                Look::Busy(Wait { table: self, at, number: io.number })
            }
            entry => {
                let Some(charge) = charge else { return Look::Free(None) };
                match entry {
                    Some(entry) => entry.io = raised(charge),
                    None => push(&mut bucket, Entry { at, frame: None, link: Link::None, io: raised(charge) }),
                }
                Look::Free(Some(flag()))
            }
        }
    }
    /// Is the I/O flag of a node raised? Then returns what to wait for.
    pub(super) fn busy(&self, at: u64) -> Option<Wait<'_, N>> {
        let mut bucket = self.bucket(at).lock();
        let number = of(&mut bucket, at)?.io.as_ref().filter(|_| !planted(Fault::NoIoFlag))?.number;
        Some(Wait { table: self, at, number })
    }

    /// Returns a random frame that is not cooling.
    pub(super) fn sample(&self) -> Option<Arc<Frame<N>>> {
        let (draw, all) = (self.draw(), self.buckets.len());
        (0..all).find_map(|i| {
            let bucket = self.buckets[((draw >> 32) as usize + i) % all].lock();
            let (before, behind) = bucket.split_at(draw as u32 as usize % bucket.len().max(1));
            let mut frames = behind.iter().chain(before).filter_map(|entry| entry.frame.as_ref());
            frames.find(|frame| !frame.is_cooling()).cloned()
        })
    }
    /// Makes a frame cooling that no child is swizzled in, and removes the pointer to it; `forced` asks for no children.
    pub(super) fn cool(&self, frame: &Arc<Frame<N>>, forced: bool) {
        let mut bucket = self.bucket(frame.at).lock();
        let Some(entry) = of(&mut bucket, frame.at) else { return };
        let is_there = entry.frame.as_ref().is_some_and(|own| Arc::ptr_eq(own, frame));
        if !is_there || !(frame.cool() || forced && frame.cool_with_children()) {
            return;
        }
        self.unswizzle(entry);
        let oldest = self.cooling.push(frame.at);
        drop(bucket);
        if let Some(oldest) = oldest {
            mark!("path cache: a full bucket of the cooling map evicted its oldest node");
            self.evict(oldest);
        }
    }
    /// Takes out a node that the cooling map has given up, unless it has got its second chance meanwhile. A dirty one stays,
    /// and is noted as due.
    pub(super) fn evict(&self, at: u64) {
        let mut bucket = self.bucket(at).lock();
        let Some(entry) = of(&mut bucket, at) else { return };
        if let Some(frame) = entry.frame.as_ref().filter(|frame| frame.is_cooling() && frame.node.is_dirty())
            && !planted(Fault::DirtyEvicted)
        {
            mark!("write-back: a dirty node was to be evicted");
            frame.warm();
            self.cooling.remove(at);
            drop(bucket);
            let mut due = self.due.lock();
            if due.len() < DUE && !due.contains(&at) {
                due.push(at);
            }
            return;
        }
        let Some(frame) = entry.frame.take_if(|frame| frame.is_cooling()) else { return };
        frame.leave();
        // It may have been made cooling once more since.
        self.cooling.remove(at);
        tidy(&mut bucket, at);
    }
}

impl<N: Content> Table<N> {
    /// Takes a dirty node that was to be evicted.
    pub(super) fn take_due(&self) -> Option<u64> {
        self.due.lock().pop()
    }
}

/// The I/O flag of a node. Dropping it lowers the flag, and wakes those that wait.
pub(super) struct Flag<'t, N: Content> {
    table: &'t Table<N>,
    at: u64,
    number: u64,
}

impl<N: Content> Drop for Flag<'_, N> {
    fn drop(&mut self) {
        let mut bucket = self.table.bucket(self.at).lock();
        let entry = of(&mut bucket, self.at);
        let io = entry.and_then(|entry| entry.io.take_if(|io| io.number == self.number));
        tidy(&mut bucket, self.at);
        drop(bucket);
        io.into_iter().flat_map(|io| io.waiting).for_each(Waker::wake);
    }
}

/// Waits until an I/O flag is lowered.
pub(super) struct Wait<'t, N: Content> {
    table: &'t Table<N>,
    at: u64,
    number: u64,
}

impl<N: Content> Future for Wait<'_, N> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut bucket = self.table.bucket(self.at).lock();
        let io = of(&mut bucket, self.at).and_then(|entry| entry.io.as_mut());
        let Some(io) = io.filter(|io| io.number == self.number) else { return Poll::Ready(()) };
        if !io.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            io.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
impl<N: Content> Table<N> {
    /// All frames, and where the pointer to each is: nowhere, at the root, in a slot of a parent (its address; `None` if it is
    /// gone).
    pub(super) fn frames(&self) -> Vec<(Arc<Frame<N>>, Place)> {
        let mut all = Vec::new();
        for bucket in &self.buckets {
            for entry in bucket.lock().iter() {
                let Some(frame) = &entry.frame else { continue };
                let place = match &entry.link {
                    Link::None => Place::Nowhere,
                    Link::Root => Place::Root,
                    Link::Slot(parent, i) => Place::Slot(parent.upgrade().map(|parent| parent.at), *i),
                };
                all.push((Arc::clone(frame), place));
            }
        }
        all
    }
    /// Bytes on the heap of the buckets.
    pub(super) fn entries_bytes(&self) -> u64 {
        let bytes = |bucket: &Mutex<Bucket<N>>| {
            let bucket = bucket.lock();
            bucket.capacity() * size_of::<Entry<N>>()
        };
        self.buckets.iter().map(|bucket| bytes(bucket) as u64).sum()
    }
}

/// Where the pointer to a frame is, for tests.
#[cfg(test)]
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Place {
    Nowhere,
    Root,
    Slot(Option<u64>, usize),
}
