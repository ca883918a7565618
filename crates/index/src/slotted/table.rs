//! One table: its root in far memory, a worker's copy of it, when to look again, and growth.
//!
//! Invariants: the copy is never ahead of the root. An operation that is pinned at an epoch uses a copy that was read in
//! that epoch or later, or looks at the root in its own first batch and believes nothing else of that batch if the table
//! has moved on: so it never takes the memory of a table that is gone for slots. Counts are hints that steer growth.
//!
//! A table that is crowded is moved, region by region, to a next one, by everyone who changes something; when all regions have
//! been moved, the next one is the table.

use super::geometry::{DONE, Geometry, ROOT_COUNT, ROOT_INDEX_TAG, ROOT_LEN, ROOT_USED, RootState, Segment};
use super::mover::{RegionMigrator, steps};
use crate::IndexError;
use crate::marks::mark;
use crate::recovery::{HeldLock, claim_and_recover, clear_intent};
use crate::sync_interval::Pace;
use farindex_fabric::{Batch, Done, NodeId, RemotePtr, Span, Ticket};
use farindex_pool::{Intent, IntentCell, Lock, Pin, PoolError, Session};
use std::cell::Cell;
use std::time::Duration;

/// The lock over a table's growth.
pub(crate) fn resize_lock(root: RemotePtr) -> Lock {
    Lock { at: root, mask: RootState::RESIZER }
}

/// When a table of a kind is looked at, and when it grows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pacing {
    /// Bytes of a slot.
    pub(crate) width: usize,
    /// How rarely workers look at the root, as in SHARD's section 3.4.
    pub(crate) alpha: f64,
    /// Share of slots in use at which the table is moved.
    pub(crate) threshold: f64,
}

/// What a table is to be moved to.
pub(crate) struct Plan {
    /// Its regions.
    pub(crate) regions: u64,
    /// Keys that may be put straight into it while it is filled.
    pub(crate) room: u64,
}

/// One table, as one worker sees it; `own` is what its kind keeps of it besides.
pub struct Table<X> {
    root: RemotePtr,
    index_tag: u64,
    width: usize,
    alpha: f64,
    threshold: f64,
    geometry: Cell<Geometry>,
    /// Entries, and slots in use by parity of the generation, when the root was last read; and what this worker has added
    /// since.
    counts: Cell<[u64; 3]>,
    added: Cell<[i64; 3]>,
    /// Operations until the next look at the root.
    budget: Cell<u64>,
    pace: Cell<Pace>,
    /// The latest epoch of an operation that has read the root, and found the index there.
    checked: Cell<u64>,
    /// The pool was full when the table was to grow; at this count it may try again.
    grow_at: Cell<u64>,
    /// Somebody resizes: the root's word, and when it was looked at last.
    resizing: Cell<Option<(u64, Duration)>>,
    /// Regions before this one have been moved, in the table of this generation.
    moved_to: Cell<(u64, u64)>,
    /// A region that somebody moves: which, and since when.
    waiting: Cell<Option<(RemotePtr, Duration)>>,
    pub(crate) own: X,
}

/// The verbs of a look at the root within a batch.
pub(crate) struct Sync {
    root: Ticket,
    /// The operation's.
    epoch: u64,
    /// Does the batch tell the root what this worker has added?
    reports: bool,
}

impl<X> Table<X> {
    /// Makes an empty table on the node; returns its root.
    pub(crate) async fn create(
        session: &Session,
        span: &Span,
        node: NodeId,
        index_tag: u64,
        (regions, width): (u64, usize),
    ) -> Result<RemotePtr, IndexError> {
        let root = session.alloc(span, node, ROOT_LEN as u64).await?;
        let bytes = Segment::bytes_for(regions, width, session.pool().geometry(node).chunk_size);
        let start = match session.alloc_zeroed(span, node, bytes).await {
            Ok(start) => start,
            Err(error) => {
                session.free(span, root, ROOT_LEN as u64).await?;
                return Err(error.into());
            }
        };
        let segment = Segment { generation: 0, start, regions, width };
        let mut words = [0; ROOT_LEN / 8];
        words[ROOT_INDEX_TAG] = index_tag;
        words[Segment::root_word(0)..Segment::root_word(0) + 2].copy_from_slice(&segment.words());
        span.write(root, session.endpoint().buf_from_words(&words)).await?;
        Ok(root)
    }

    /// Gives back the segments of a table.
    pub(crate) async fn free_segments(
        session: &Session,
        span: &Span,
        root: RemotePtr,
        width: usize,
    ) -> Result<(), IndexError> {
        let words = span.read(root, ROOT_LEN).await?;
        let chunk = session.pool().geometry(root.node()).chunk_size;
        for segment in Geometry::parse(words.words(), width).into_iter().flat_map(|geometry| geometry.segments()) {
            session.free_zeroed(span, segment.start, Segment::bytes_for(segment.regions, width, chunk)).await?;
        }
        Ok(())
    }

    /// Opens the table with this root.
    pub(crate) async fn open(
        pin: &Pin<'_>,
        root: RemotePtr,
        index_tag: u64,
        pacing: Pacing,
        own: X,
    ) -> Result<Self, IndexError> {
        let Pacing { width, alpha, threshold } = pacing;
        let corrupt = || IndexError::from(PoolError::Corrupt { at: root, what: "no table has such a root".to_owned() });
        let mut tries = 0;
        let (words, geometry) = loop {
            let words = pin.span().read(root, ROOT_LEN).await?;
            if let Some(geometry) = Geometry::parse(words.words(), width) {
                break (words, geometry);
            }
            tries += 1;
            if tries > 100 || words.words().get(ROOT_INDEX_TAG) != Some(&index_tag) {
                return Err(corrupt());
            }
        };
        let table = Table {
            root,
            index_tag,
            width,
            alpha,
            threshold,
            geometry: Cell::new(geometry),
            counts: Cell::new([0; 3]),
            added: Cell::new([0; 3]),
            budget: Cell::new(0),
            pace: Cell::new(Pace::UNKNOWN),
            checked: Cell::new(pin.epoch()),
            grow_at: Cell::new(0),
            resizing: Cell::new(None),
            moved_to: Cell::new((0, 0)),
            waiting: Cell::new(None),
            own,
        };
        table.learn(words.words())?;
        Ok(table)
    }

    /// The root.
    pub fn root(&self) -> RemotePtr {
        self.root
    }
    /// This worker's copy of it.
    pub fn geometry(&self) -> Geometry {
        self.geometry.get()
    }
    /// The segment that this one is being moved to, as far as this worker knows.
    pub(crate) fn next_of(&self, segment: &Segment) -> Option<Segment> {
        let geometry = self.geometry();
        geometry.next.filter(|_| geometry.current.generation == segment.generation)
    }
    /// Entries, as far as this worker knows.
    pub fn count(&self) -> u64 {
        self.counts.get()[0].saturating_add_signed(self.added.get()[0])
    }
    /// Slots of a generation that are in use, as far as this worker knows.
    pub fn used(&self, generation: u64) -> u64 {
        let i = 1 + (generation % 2) as usize;
        self.counts.get()[i].saturating_add_signed(self.added.get()[i])
    }
    /// Share of a segment's slots that are in use, as far as this worker knows.
    pub fn load(&self, segment: &Segment) -> f64 {
        self.used(segment.generation) as f64 / segment.slots() as f64
    }
    /// Entries, and slots of a generation, more or less.
    pub fn note(&self, entries: i64, generation: u64, slots: i64) {
        let mut added = self.added.get();
        added[0] += entries;
        added[1 + (generation % 2) as usize] += slots;
        self.added.set(added);
    }

    /// Counts an operation that is pinned at `epoch`; adds a look at the root to its first batch if one is due. It is also due
    /// when the epoch has moved on.
    pub(crate) fn count_operation(&self, batch: &mut Batch<'_>, epoch: u64) -> Option<Sync> {
        let left = self.budget.get();
        self.budget.set(left.saturating_sub(1));
        self.pace.set(self.pace.get().counted());
        (left == 0 || !self.is_checked(epoch)).then(|| self.add_sync(batch, epoch))
    }

    /// Has somebody read the root in this epoch? Then its memory is the root still, and a table that was gone before the epoch
    /// began is known to be gone.
    pub(crate) fn is_checked(&self, epoch: u64) -> bool {
        self.checked.get() >= epoch
    }

    fn add_sync(&self, batch: &mut Batch<'_>, epoch: u64) -> Sync {
        let reports = self.is_checked(epoch);
        if reports {
            let added = self.added.replace([0; 3]);
            for (at, added) in [ROOT_COUNT, ROOT_USED, ROOT_USED + 8].into_iter().zip(added).filter(|(_, n)| *n != 0) {
                batch.faa(self.root.add(at), added as u64);
            }
        }
        Sync { root: batch.read(self.root, ROOT_LEN), epoch, reports }
    }

    /// Evaluates the look at the root of a completed batch.
    pub(crate) fn finish_sync(&self, sync: &Sync, done: &mut Done) -> Result<(), IndexError> {
        let left = self.budget.get();
        if self.learn(done.buf(sync.root).words())? {
            self.checked.set(self.checked.get().max(sync.epoch));
        }
        if !sync.reports {
            // This worker's own count is as due as it was.
            self.budget.set(self.budget.get().min(left));
        }
        Ok(())
    }

    /// Reads the root now, for an operation that is pinned at `epoch`, until it makes sense.
    pub async fn sync(&self, span: &Span, epoch: u64) -> Result<Geometry, IndexError> {
        for _ in 0..1000 {
            let mut batch = span.batch();
            let sync = self.add_sync(&mut batch, epoch);
            let mut done = batch.post().await?;
            if self.learn(done.buf(sync.root).words())? {
                self.checked.set(self.checked.get().max(epoch));
                return Ok(self.geometry());
            }
        }
        Err(PoolError::Corrupt { at: self.root, what: "no table has such a root".to_owned() }.into())
    }

    /// Takes over what was read of the root; `false` if its words are of different moments (N2).
    fn learn(&self, words: &[u64]) -> Result<bool, IndexError> {
        let state = RootState(words.first().copied().unwrap_or_default());
        // The memory of a dropped root is used again in the end; then it does not bear this index's seal.
        if state.dropped() || words.get(ROOT_INDEX_TAG) != Some(&self.index_tag) {
            // Every operation from now on is to be told.
            self.budget.set(0);
            return Err(IndexError::Dropped);
        }
        let Some(geometry) = Geometry::parse(words, self.width) else {
            self.budget.set(0);
            return Ok(false);
        };
        let known = self.geometry.get();
        let age = |geometry: &Geometry| (geometry.state.generation(), geometry.state.growing());
        if age(&geometry) < age(&known) {
            // A look that was posted earlier.
            return Ok(true);
        }
        if geometry.current.generation > known.current.generation {
            // What was counted for the one before is nobody's any more.
            let mut added = self.added.get();
            added[1 + (known.current.generation % 2) as usize] = 0;
            self.added.set(added);
        }
        self.geometry.set(geometry);
        let read = |i: usize| words.get(i).copied().filter(|count| *count <= i64::MAX as u64).unwrap_or(0);
        let before = self.used(geometry.current.generation);
        self.counts.set([1, 2, 3].map(read));
        let used = self.used(geometry.current.generation);
        let slots = geometry.current.slots() as f64;
        let frequency = self.alpha * slots * (self.threshold - used as f64 / slots);
        let pace = self.pace.get().next(used.saturating_sub(before), frequency);
        self.pace.set(pace);
        self.budget.set(pace.allowed);
        Ok(true)
    }

    /// Tells everybody that the index has been dropped.
    pub(crate) async fn mark_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        loop {
            let words = span.read(root, ROOT_LEN).await?;
            let state = RootState(words.words().first().copied().unwrap_or_default());
            if words.words().get(ROOT_INDEX_TAG) != Some(&index_tag) || state.dropped() {
                return Ok(());
            }
            if span.cas(root, state.0, state.drop().0).await? == state.0 {
                return Ok(());
            }
        }
    }

    /// Share of slots in use at which it is moved.
    pub fn threshold(&self) -> f64 {
        self.threshold
    }
    /// Is it time for a larger or a cleaner table?
    pub fn crowded(&self) -> bool {
        let geometry = self.geometry.get();
        let used = self.used(geometry.current.generation);
        !geometry.state.growing()
            && used as f64 >= self.threshold * geometry.current.slots() as f64
            && used >= self.grow_at.get()
    }

    /// Makes the next table, as `plan` says, unless somebody else is at it. `full` says that an insert has found no slot at all. A
    /// pool without room for it is no error, unless `full`.
    ///
    /// The root names the resizer, and an intent names the root: `index` is the uid that goes into it.
    pub(crate) async fn grow_as(
        &self,
        pin: &Pin<'_>,
        index: u64,
        full: bool,
        plan: impl AsyncFnOnce(&Span, &Segment) -> Result<Plan, IndexError>,
    ) -> Result<(), IndexError> {
        let (session, span, epoch) = (pin.session(), pin.span(), pin.epoch());
        let geometry = self.sync(span, epoch).await?;
        let state = geometry.state;
        if state.growing() || !full && !self.crowded() {
            return Ok(());
        }
        if state.resizer().is_some() {
            return self.await_resizer(pin, index, state, full).await;
        }
        let now = geometry.current;
        let Plan { regions, room } = plan(span, &now).await?;
        let bytes = Segment::bytes_for(regions, self.width, session.pool().geometry(self.root.node()).chunk_size);
        if regions > super::geometry::MAX_REGIONS {
            let (node, size) = (self.root.node(), session.pool().superblock(self.root.node()).region_len);
            return if full { Err(PoolError::Full { node, wanted: bytes, size }.into()) } else { Ok(()) };
        }
        let mine = state.resized_by(session.client().slot());
        let cell = session.intent_cell(self.root.node()).await?;
        let mut batch = span.batch();
        let what = [steps::GROW, now.generation, regions, 0];
        cell.declare(&mut batch, &Intent { index, lock: resize_lock(self.root), what });
        let won = batch.cas(self.root, state.0, mine.0);
        if batch.post().await?.old(won) != state.0 {
            mark!("table grow: lost");
            return clear_intent(span, &cell).await;
        }
        let start = match session.alloc_zeroed(span, self.root.node(), bytes).await {
            Ok(start) => start,
            Err(error) => {
                self.abandon(span, mine).await?;
                clear_intent(span, &cell).await?;
                self.grow_at.set(self.used(now.generation) + now.slots() / 16 + 1);
                return match error {
                    PoolError::Full { .. } if !full => Ok(()),
                    other => Err(other.into()),
                };
            }
        };
        let next = Segment { generation: now.generation + 1, start, regions, width: self.width };
        let mut batch = span.batch();
        batch.write_words(self.root.add(ROOT_USED + 8 * (next.generation % 2)), &[0]);
        // A word of its own segment: nobody counts there yet, and no late FAA for another table ever will (N6).
        batch.write_words(next.room(), &[room]);
        batch.write_words(self.root.add(8 * Segment::root_word(next.generation) as u64), &next.words());
        let published = batch.cas(self.root, mine.0, mine.grows().0);
        cell.clear(&mut batch);
        let mut done = batch.post().await?;
        if done.old(published) != mine.0 {
            // The index was dropped meanwhile: the segment belongs to nobody.
            session.free_zeroed(span, start, bytes).await?;
            return Err(IndexError::Dropped);
        }
        mark!("table grow");
        self.sync(span, epoch).await.map(drop)
    }

    /// Asks for a slot of the next segment; there is one as long as this succeeds.
    pub(crate) async fn reserve(&self, span: &Span, next: &Segment) -> Result<bool, IndexError> {
        Ok(span.faa(next.room(), 1u64.wrapping_neg()).await? as i64 > 0)
    }

    /// Takes the resizer's name out of the root.
    async fn abandon(&self, span: &Span, mut seen: RootState) -> Result<(), IndexError> {
        loop {
            let old = RootState(span.cas(self.root, seen.0, seen.abandoned().0).await?);
            if old == seen {
                return Ok(());
            }
            // The index was dropped meanwhile.
            seen = old;
        }
    }

    /// Somebody else makes the next table. Nobody waits for that who can do without; but if it takes long, whoever would like
    /// to grow looks after it.
    async fn await_resizer(&self, pin: &Pin<'_>, index: u64, state: RootState, full: bool) -> Result<(), IndexError> {
        let endpoint = pin.session().endpoint();
        let often = pin.session().pool().lease() / 8;
        if full {
            endpoint.sleep(Duration::from_micros(20)).await;
        }
        let now = endpoint.now();
        match self.resizing.get() {
            Some((of, since)) if of == state.0 => {
                if now.saturating_sub(since) >= often {
                    self.resizing.set(Some((of, now)));
                    self.resume_growth(pin, index).await?;
                }
            }
            _ => self.resizing.set(Some((state.0, now))),
        }
        Ok(())
    }

    /// Gives up a resize whose client has died, so that somebody else can begin one. Its segment, if it had one, is left to
    /// `Audit::reclaim`.
    pub(crate) async fn resume_growth(&self, pin: &Pin<'_>, index: u64) -> Result<(), IndexError> {
        let what = [steps::RESCUE, 0, 0, 0];
        let abandon = async |word, cell: &IntentCell<'_>| {
            mark!("table rescue: resize given up");
            self.abandon(pin.span(), RootState(word)).await?;
            clear_intent(pin.span(), cell).await
        };
        claim_and_recover(pin, index, resize_lock(self.root), None, what, abandon).await.map(drop)
    }

    /// All regions have been moved: the next table is the table. Whoever makes it so retires the old one.
    pub(crate) async fn settle(&self, pin: &Pin<'_>, of: Geometry) -> Result<(), IndexError> {
        let old = of.current;
        if pin.span().cas(self.root, of.state.0, of.state.settled().0).await? == of.state.0 {
            mark!("table grow: settled");
            let chunk = pin.session().pool().geometry(self.root.node()).chunk_size;
            pin.retire(old.start, Segment::bytes_for(old.regions, old.width, chunk));
        }
        self.sync(pin.span(), pin.epoch()).await.map(drop)
    }

    /// Moves one region of a table that is being moved, if there is one that nobody moves; settles it if none is left. If somebody
    /// who may be alive has been moving the last ones for long: a lock of that client.
    pub(crate) async fn advance_by(&self, mover: &impl RegionMigrator) -> Result<Option<HeldLock>, IndexError> {
        let pin = mover.pin();
        if !self.is_checked(pin.epoch()) {
            // The table may be gone.
            self.sync(pin.span(), pin.epoch()).await?;
        }
        let geometry = self.geometry.get();
        let (Some(next), from) = (geometry.next, geometry.current) else { return Ok(None) };
        let (generation, first) = self.moved_to.get();
        let first = if generation == from.generation { first } else { 0 };
        let count = (from.regions - first).min(64);
        let locks = pin.span().read(from.lock(first).at, count as usize * 8).await?;
        let done = locks.words().iter().take_while(|word| **word == DONE).count() as u64;
        self.moved_to.set((from.generation, first + done));
        if first + done == from.regions {
            return self.settle(pin, geometry).await.map(|()| None);
        }
        let free: Vec<_> = (first..).zip(locks.words()).filter(|(_, word)| **word == 0).map(|(i, _)| i).collect();
        if !free.is_empty() {
            let region = free[pin.session().client().slot() as usize % free.len()];
            return mover.move_region(from, next, region).await.map(|_| None);
        }
        // All that are left are being moved by somebody.
        let Some(region) = (first..).zip(locks.words()).find(|(_, word)| **word != DONE).map(|(i, _)| i) else {
            return Ok(None);
        };
        let lock = from.lock(region).at;
        let now = pin.session().endpoint().now();
        match self.waiting.get() {
            Some((at, since)) if at == lock => {
                if now.saturating_sub(since) >= pin.session().pool().lease() / 8 {
                    self.waiting.set(Some((at, now)));
                    return mover.try_recover_lock(from, next, region).await;
                }
            }
            _ => self.waiting.set(Some((lock, now))),
        }
        Ok(None)
    }
}
