//! Root synchronization: a worker's copy of a table's root, when the worker reads the root again, and how the table
//! grows.
//!
//! A table has one root in far memory. The root says where the table's segments lie, counts its entries, and names the
//! client that is resizing the table. Each worker has a copy. The copy is never newer than the root. An old copy costs
//! round trips, never correctness: the buckets or regions themselves show that they belong to a newer table.
//!
//! *Adaptive frequency synchronization* (SHARD, section 3.4, Algorithm 4): a worker adds to the root what it has
//! inserted, and READs the root again, after `F = alpha * T * (R - L)` operations. `T` is the number of slots, `R` the
//! load at which the table grows, and `L` its load. This READ and the FAAs travel in the first batch of an operation,
//! so they cost no round trip, and no worker waits for another one. The counts are hints that steer growth.
//!
//! Invariant: an operation that is pinned at an epoch uses a copy that was read in that epoch or later, or READs the
//! root in its own first batch and discards the rest of that batch if the table has changed. So no operation takes the
//! memory of a freed table for a table.
//!
//! To grow, a worker declares an intent, writes its client slot into the root (the *resizer*), allocates the new
//! segment, and publishes it by a CAS of the root's state. If the resizer crashes, another client that wants to grow
//! the table clears the resizer's name.

mod interval;

use crate::IndexError;
use crate::marks::mark;
use crate::recovery::{HeldLock, acquire, claim_and_recover, clear_intent, wait_for_lock_holder};
use crate::table_per_node::retire_root;
use farindex_fabric::{Batch, Done, NodeId, OpKind, RemotePtr, Span, Ticket};
use farindex_pool::{Intent, IntentCell, Lock, LockTimeout, Names, Pin, PoolError, Session};
use interval::SyncInterval;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// A READ of the root that is torn between two versions (N2) is repeated. No more READs in a row can be torn than are
/// in flight together: a READ that is posted after one that showed the newer state shows the segment as well. So this
/// many torn READs in a row mean that the root is damaged.
const MAX_TORN: u32 = 4096;
/// READs with which opening a table tries to get a root that is not torn.
const OPEN_ATTEMPTS: u32 = 100;

/// The first word of a root. All kinds of tables agree on these bits; the kind defines the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootState(pub u64);

impl RootState {
    /// The bits that name the resizer: its client slot plus one, or zero.
    pub const RESIZER: u64 = 0x1_FFFF << 8;
    const DROPPED: u64 = 1 << 31;

    /// Returns the client slot that is resizing the table.
    pub const fn resizer(self) -> Option<u64> {
        ((self.0 & Self::RESIZER) >> 8).checked_sub(1)
    }
    /// Has the index been dropped?
    pub const fn dropped(self) -> bool {
        self.0 & Self::DROPPED != 0
    }
    /// Returns the state with a resizer.
    #[must_use]
    pub const fn resized_by(self, slot: u64) -> Self {
        RootState(self.0 & !Self::RESIZER | (slot + 1) << 8)
    }
    /// Returns the state without a resizer.
    #[must_use]
    pub const fn without_resizer(self) -> Self {
        RootState(self.0 & !Self::RESIZER)
    }
    /// Returns the state of a dropped index.
    #[must_use]
    pub const fn drop(self) -> Self {
        RootState(self.0 | Self::DROPPED)
    }
}

/// The lock over a table's growth: the resizer's name in the root's first word.
pub(crate) fn resize_lock(root: RemotePtr) -> Lock {
    Lock { at: root, mask: RootState::RESIZER }
}

/// Counters of a root that a worker keeps. A kind with fewer counters leaves the last ones at zero.
pub const COUNTERS: usize = 3;

/// What a READ of the root has changed in a worker's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refresh {
    /// The words of the READ belong to two versions (N2): nothing.
    Torn,
    /// Nothing: the READ was posted before the one that made the copy, and shows an older root.
    Older,
    /// The copy is as new as the READ.
    Current,
}

/// A worker's copy of a root: the part of it that the kind defines.
pub trait RootCopy: Clone {
    /// Bytes of a root.
    const LEN: usize;
    /// Word of the root that holds the index tag.
    const INDEX_TAG_WORD: usize;
    /// Words of the root that are counters. The first one counts entries.
    const COUNTER_WORDS: &'static [usize];
    /// Does a READ of the root outside of an operation's first batch restart the interval, even if it cannot report
    /// this worker's counts?
    const READ_RESTARTS_INTERVAL: bool;
    /// First word of the intent with which a client clears the name of a crashed resizer.
    const RECOVER_INTENT: u64;
    /// What of the index's settings is needed to understand a root.
    type Shape: Copy;

    /// Decodes a root that lies at `at`; `None` if it is torn between two versions (N2) or damaged.
    fn parse(words: &[u64], at: RemotePtr, shape: Self::Shape) -> Option<Self>;
    /// Brings the copy up to date with the words of a READ. Clears of `added`, which this worker has not yet added to
    /// the root's counters, what counts for a table that is gone.
    fn refresh(&mut self, words: &[u64], at: RemotePtr, shape: Self::Shape, added: &mut [i64; COUNTERS]) -> Refresh;
    /// Returns the first word of the root.
    fn state(&self) -> RootState;
    /// Is a larger table already there, which the entries are being moved to?
    fn growing(&self) -> bool;
    /// Returns the number of slots whose load decides about growth.
    fn slots(&self) -> u64;
    /// Returns the number of the counter that tells how many of these slots are in use.
    fn load_counter(&self) -> usize;
    /// Returns how many slots have come into use since the last READ, from the old and the new value of the root's load
    /// counter, and what this worker will add to it.
    fn slots_taken(before: u64, now: u64, added: i64) -> u64;
    /// Returns how often the table has grown.
    fn resizes(&self) -> u64;
    /// Returns the table's segments with their sizes in bytes, in a pool with chunks of `chunk_size` bytes.
    fn spans(&self, chunk_size: u64) -> Vec<(RemotePtr, u64)>;
}

/// The settings that decide when a worker reads the root and when it makes the table larger.
#[derive(Debug, Clone, Copy)]
pub struct Pacing {
    /// How rarely workers read the root: `alpha` of SHARD's section 3.4.
    pub alpha: f64,
    /// Share of slots in use at which the table grows.
    pub threshold: f64,
}

/// A resize that a worker is about to make.
pub(crate) struct Resize {
    /// The intent that the resizer declares.
    pub(crate) what: [u64; 4],
    /// The root's state that the decision to grow was based on.
    pub(crate) state: RootState,
    /// Bytes of the new segment.
    pub(crate) bytes: u64,
    /// Is a pool without room for the new segment an error?
    pub(crate) required: bool,
}

/// One table's root, as one worker sees it.
pub struct RootSync<R: RootCopy> {
    at: RemotePtr,
    index_tag: u64,
    shape: R::Shape,
    pacing: Pacing,
    copy: RefCell<R>,
    /// The root's counters when it was last read.
    counts: Cell<[u64; COUNTERS]>,
    /// What this worker will add to them.
    added: Cell<[i64; COUNTERS]>,
    /// Operations until the next synchronization.
    budget: Cell<u64>,
    interval: Cell<SyncInterval>,
    /// READs of the root.
    synchronizations: Cell<u64>,
    /// The latest epoch of an operation that has read the root and found the index there.
    checked: Cell<u64>,
    /// The pool was full when the table was to grow; the next attempt is due when so many slots are in use.
    grow_at: Cell<u64>,
    /// Torn READs in a row.
    torn: Cell<u32>,
    /// Another client is resizing: the root's state, and when this worker last checked whether that client has crashed.
    resizing: Cell<Option<(RootState, Duration)>>,
}

/// The verbs of a synchronization within a batch.
pub(crate) struct Synchronization {
    root: Ticket,
    /// The epoch of the operation.
    epoch: u64,
    /// Does the batch add this worker's counts to the root?
    reports: bool,
}

/// Creates a root, and the first segment of its table, on a memory node; returns the root's address. `init` initializes
/// the zeroed segment and sets the words of the root that the kind defines.
pub(crate) async fn create_root<R: RootCopy>(
    session: &Session,
    span: &Span,
    node: NodeId,
    index_tag: u64,
    segment_bytes: u64,
    init: impl AsyncFnOnce(RemotePtr, &mut [u64]) -> Result<(), IndexError>,
) -> Result<RemotePtr, IndexError> {
    let root = session.alloc(span, node, R::LEN as u64).await?;
    let segment = match session.alloc_zeroed(span, node, segment_bytes).await {
        Ok(segment) => segment,
        Err(error) => {
            session.free(span, root, R::LEN as u64).await?;
            return Err(error.into());
        }
    };
    let mut words = vec![0; R::LEN / 8];
    words[R::INDEX_TAG_WORD] = index_tag;
    init(segment, &mut words).await?;
    span.write(root, session.endpoint().buf_from_words(&words)).await?;
    Ok(root)
}

/// Frees a root and the segments that it names, when no client can use them any more.
pub(crate) async fn free_root<R: RootCopy>(
    session: &Session,
    span: &Span,
    root: RemotePtr,
    shape: R::Shape,
) -> Result<(), IndexError> {
    let words = span.read(root, R::LEN).await?;
    let chunk_size = session.pool().geometry(root.node()).chunk_size;
    for (segment, bytes) in R::parse(words.words(), root, shape).into_iter().flat_map(|copy| copy.spans(chunk_size)) {
        session.free_zeroed(span, segment, bytes).await?;
    }
    retire_root(session, span, root, R::LEN, R::INDEX_TAG_WORD).await
}

/// Marks a root as dropped, if it is a root of the index with this tag.
pub(crate) async fn mark_root_dropped<R: RootCopy>(
    span: &Span,
    root: RemotePtr,
    index_tag: u64,
) -> Result<(), IndexError> {
    loop {
        let words = span.read(root, R::LEN).await?;
        let state = RootState(words.words().first().copied().unwrap_or_default());
        if words.words().get(R::INDEX_TAG_WORD) != Some(&index_tag) || state.dropped() {
            return Ok(());
        }
        if span.cas(root, state.0, state.drop().0).await? == state.0 {
            return Ok(());
        }
    }
}

impl<R: RootCopy> RootSync<R> {
    /// Opens the root at `at`, for an operation that is pinned.
    pub(crate) async fn open(
        pin: &Pin<'_>,
        at: RemotePtr,
        index_tag: u64,
        shape: R::Shape,
        pacing: Pacing,
    ) -> Result<Self, IndexError> {
        let mut attempts = 0;
        let (words, copy) = loop {
            let words = pin.span().read(at, R::LEN).await?;
            if let Some(copy) = R::parse(words.words(), at, shape) {
                break (words, copy);
            }
            attempts += 1;
            if attempts > OPEN_ATTEMPTS || words.words().get(R::INDEX_TAG_WORD) != Some(&index_tag) {
                return Err(corrupt_root(at));
            }
        };
        let root = RootSync {
            at,
            index_tag,
            shape,
            pacing,
            copy: RefCell::new(copy),
            counts: Cell::new([0; COUNTERS]),
            added: Cell::new([0; COUNTERS]),
            budget: Cell::new(0),
            interval: Cell::new(SyncInterval::UNKNOWN),
            synchronizations: Cell::new(0),
            checked: Cell::new(pin.epoch()),
            grow_at: Cell::new(0),
            torn: Cell::new(0),
            resizing: Cell::new(None),
        };
        root.learn(words.words())?;
        Ok(root)
    }

    /// Returns the root's address.
    pub fn root(&self) -> RemotePtr {
        self.at
    }
    /// Returns this worker's copy of the root.
    pub fn geometry(&self) -> R {
        self.copy.borrow().clone()
    }
    /// Looks at this worker's copy of the root in its place.
    #[inline]
    pub(crate) fn with_copy<T>(&self, look: impl FnOnce(&R) -> T) -> T {
        look(&self.copy.borrow())
    }
    /// Returns how often this worker has read the root since it opened the table.
    pub fn synchronizations(&self) -> u64 {
        self.synchronizations.get()
    }
    /// Returns the number of entries, as far as this worker knows.
    pub fn count(&self) -> u64 {
        self.counter(0)
    }
    /// Returns a counter's value, as far as this worker knows.
    pub(crate) fn counter(&self, i: usize) -> u64 {
        self.counts.get()[i].saturating_add_signed(self.added.get()[i])
    }
    /// Changes the counters. The root learns of it with the next synchronization.
    pub(crate) fn add(&self, change: [i64; COUNTERS]) {
        let mut added = self.added.get();
        added.iter_mut().zip(change).for_each(|(added, change)| *added += change);
        self.added.set(added);
    }
    /// Returns the share of slots in use at which the table grows.
    pub fn threshold(&self) -> f64 {
        self.pacing.threshold
    }

    /// Counts an operation that is pinned at `epoch`, and adds a synchronization to its first batch if one is due. One
    /// is also due when the epoch has advanced: an operation that begins two epochs after a drop must not miss it.
    pub(crate) fn count_operation(&self, batch: &mut Batch<'_>, epoch: u64) -> Option<Synchronization> {
        let due = self.is_sync_due(epoch);
        self.count_alone();
        due.then(|| self.add_sync(batch, epoch))
    }

    /// Is a synchronization due with the next operation that is pinned at `epoch`?
    #[inline]
    pub(crate) fn is_sync_due(&self, epoch: u64) -> bool {
        self.budget.get() == 0 || !self.is_checked(epoch)
    }

    /// Counts an operation with which no synchronization is due.
    #[inline]
    pub(crate) fn count_alone(&self) {
        self.budget.set(self.budget.get().saturating_sub(1));
        self.interval.set(self.interval.get().counted());
    }

    /// Has a READ of the root completed in this epoch? (A READ in flight is not enough.) If so, the root's memory still
    /// is the root, and the copy knows every change that was published before the epoch began.
    pub(crate) fn is_checked(&self, epoch: u64) -> bool {
        self.checked.get() >= epoch
    }

    fn add_sync(&self, batch: &mut Batch<'_>, epoch: u64) -> Synchronization {
        self.synchronizations.set(self.synchronizations.get() + 1);
        let reports = self.is_checked(epoch);
        if reports {
            let added = self.added.replace([0; COUNTERS]);
            for (word, added) in R::COUNTER_WORDS.iter().zip(added).filter(|(_, added)| *added != 0) {
                batch.faa(self.at.add(*word as u64 * 8), added as u64);
            }
        }
        Synchronization { root: batch.read(self.at, R::LEN), epoch, reports }
    }

    /// Evaluates the synchronization of a completed batch. From here on the copy is as new as the moment at which the
    /// root was read. Only then may other operations of the same epoch rely on it.
    pub(crate) fn finish_sync(&self, sync: &Synchronization, done: &mut Done) -> Result<bool, IndexError> {
        let left = self.budget.get();
        let sound = self.adopt(sync, done)?;
        if !sync.reports {
            // This worker's counts are still due at the same time.
            self.budget.set(self.budget.get().min(left));
        }
        Ok(sound)
    }

    fn adopt(&self, sync: &Synchronization, done: &mut Done) -> Result<bool, IndexError> {
        let sound = self.learn(done.buf(sync.root).words())?;
        if sound {
            self.checked.set(self.checked.get().max(sync.epoch));
        }
        Ok(sound)
    }

    /// READs the root now, for an operation that is pinned at `epoch`. Returns `false` if the READ was torn.
    pub(crate) async fn read_root(&self, span: &Span, epoch: u64) -> Result<bool, IndexError> {
        let mut batch = span.batch();
        let sync = self.add_sync(&mut batch, epoch);
        let mut done = batch.post().await?;
        if R::READ_RESTARTS_INTERVAL { self.adopt(&sync, &mut done) } else { self.finish_sync(&sync, &mut done) }
    }

    /// READs the root now, until the READ is not torn.
    pub async fn sync(&self, span: &Span, epoch: u64) -> Result<R, IndexError> {
        while !self.read_root(span, epoch).await? {}
        Ok(self.geometry())
    }

    /// READs the root now, for a caller without a pin.
    pub(crate) async fn current(&self, session: &Session) -> Result<R, IndexError> {
        let pin = session.pin(session.span(OpKind::Scan))?;
        self.sync(pin.span(), pin.epoch()).await
    }

    /// Adopts what was read of the root. Returns `false` if the READ was torn.
    fn learn(&self, words: &[u64]) -> Result<bool, IndexError> {
        let state = RootState(words.first().copied().unwrap_or_default());
        // The memory of a dropped root is reused in the end. Then it does not hold this index's tag.
        if state.dropped() || words.get(R::INDEX_TAG_WORD) != Some(&self.index_tag) {
            // Every later operation must get the error as well.
            self.budget.set(0);
            return Err(IndexError::Dropped);
        }
        let mut copy = self.copy.borrow_mut();
        let mut added = self.added.get();
        match copy.refresh(words, self.at, self.shape, &mut added) {
            Refresh::Torn => {
                self.budget.set(0);
                self.torn.set(self.torn.get() + 1);
                return if self.torn.get() < MAX_TORN { Ok(false) } else { Err(corrupt_root(self.at)) };
            }
            Refresh::Older => return Ok(true),
            Refresh::Current => {}
        }
        self.torn.set(0);
        self.added.set(added);
        let counter = |word: &usize| words.get(*word).copied().filter(|count| *count <= i64::MAX as u64).unwrap_or(0);
        let mut counts = [0; COUNTERS];
        counts.iter_mut().zip(R::COUNTER_WORDS).for_each(|(count, word)| *count = counter(word));
        let (i, slots) = (copy.load_counter(), copy.slots() as f64);
        let taken = R::slots_taken(self.counts.replace(counts)[i], counts[i], added[i]);
        let frequency = self.pacing.alpha * slots * (self.pacing.threshold - self.counter(i) as f64 / slots);
        let interval = self.interval.get().next(taken, frequency);
        self.interval.set(interval);
        self.budget.set(interval.allowed);
        Ok(true)
    }

    /// Returns how many of the slots whose load decides about growth are in use, as far as this worker knows.
    fn used_slots(&self) -> u64 {
        self.counter(self.copy.borrow().load_counter())
    }

    /// Is it time to grow?
    pub fn crowded(&self) -> bool {
        let (copy, used) = (self.copy.borrow(), self.used_slots());
        !copy.growing() && used as f64 >= self.pacing.threshold * copy.slots() as f64 && used >= self.grow_at.get()
    }

    /// Postpones growth until another `1 / part` of the slots is in use.
    pub(crate) fn postpone_growth(&self, part: u64) {
        self.grow_at.set(self.used_slots() + self.copy.borrow().slots() / part + 1);
    }

    /// Allocates a segment and publishes it in the root, unless another client is doing that. `publish` adds to the
    /// batch the WRITEs that go ahead of the CAS, and returns the root's new state. `index` is the uid that goes into
    /// the intent. Returns whether the segment was published; the caller synchronizes then.
    pub(crate) async fn grow_root(
        &self,
        pin: &Pin<'_>,
        index: u64,
        resize: Resize,
        publish: impl FnOnce(&mut Batch<'_>, RemotePtr) -> RootState,
    ) -> Result<bool, IndexError> {
        let Resize { what, state, bytes, required } = resize;
        let (session, span) = (pin.session(), pin.span());
        let mine = state.resized_by(session.client().slot());
        let cell = session.intent_cell(self.at.node()).await?;
        let intent = Intent { index, lock: resize_lock(self.at), what };
        if acquire(span, &cell, &intent, (state.0, mine.0), |_| ()).await?.is_err() {
            mark!("grow: lost");
            return Ok(false);
        }
        let segment = match session.alloc_zeroed(span, self.at.node(), bytes).await {
            Ok(segment) => segment,
            Err(error) => {
                self.clear_resizer(span, mine).await?;
                clear_intent(span, &cell).await?;
                self.postpone_growth(16);
                return match error {
                    PoolError::Full { .. } if !required => Ok(false),
                    other => Err(other.into()),
                };
            }
        };
        let mut batch = span.batch();
        let next = publish(&mut batch, segment);
        let published = batch.cas(self.at, mine.0, next.0);
        cell.clear(&mut batch);
        let old = batch.post().await?.old(published);
        cell.cleared();
        if old != mine.0 {
            // The index was dropped in the meantime: no client has seen the segment.
            session.free_zeroed(span, segment, bytes).await?;
            return Err(IndexError::Dropped);
        }
        mark!("grow");
        Ok(true)
    }

    /// Clears the resizer's name in the root.
    async fn clear_resizer(&self, span: &Span, mut seen: RootState) -> Result<(), IndexError> {
        loop {
            let old = RootState(span.cas(self.at, seen.0, seen.without_resizer().0).await?);
            if old == seen {
                return Ok(());
            }
            // The index was dropped in the meantime.
            seen = old;
        }
    }

    /// Another client is resizing the table. This call does not wait; but if the resize takes long, it checks from time
    /// to time whether the resizer's lease has expired. If it has not, returns the resizer's lock: who needs the larger
    /// table waits for it no longer than for any lock.
    pub(crate) async fn check_resizer(
        &self,
        pin: &Pin<'_>,
        index: u64,
        state: RootState,
    ) -> Result<Option<HeldLock>, IndexError> {
        let now = pin.session().endpoint().now();
        match self.resizing.get() {
            Some((of, since)) if of == state => {
                if now.saturating_sub(since) >= pin.session().pool().lease() / 8 {
                    self.resizing.set(Some((state, now)));
                    return self.recover_resize(pin, index).await;
                }
            }
            _ => self.resizing.set(Some((state, now))),
        }
        Ok(None)
    }

    /// Clears the resizer's name if that client has crashed, so that another client can resize. A segment that the
    /// crashed client had allocated is left to `Audit::reclaim`. Returns the lock if its holder may be alive.
    async fn recover_resize(&self, pin: &Pin<'_>, index: u64) -> Result<Option<HeldLock>, IndexError> {
        let what = [R::RECOVER_INTENT, 0, 0, 0];
        let abandon = async |word, cell: &IntentCell<'_>| {
            mark!("recovery: resize abandoned");
            self.clear_resizer(pin.span(), RootState(word)).await?;
            clear_intent(pin.span(), cell).await
        };
        claim_and_recover(pin, index, resize_lock(self.at), what, abandon).await
    }

    /// Clears the names of crashed resizers; returns how many there were. A live resizer that takes two leases is an
    /// error.
    pub(crate) async fn recover_growth(&self, session: &Session, index: u64) -> Result<u64, IndexError> {
        let (mut lock_timeout, mut recovered) = (LockTimeout::default(), 0);
        while let Some(resizer) = self.current(session).await?.state().resizer() {
            let pin = session.pin(session.span(OpKind::Maintenance))?;
            self.recover_resize(&pin, index).await?;
            drop(pin);
            recovered += 1;
            let held = HeldLock { at: self.at, holders: Names::of([resizer]) };
            wait_for_lock_holder(session, &mut lock_timeout, held).await?;
        }
        Ok(recovered)
    }
}

fn corrupt_root(root: RemotePtr) -> IndexError {
    IndexError::corrupt(root, "no table has such a root")
}
