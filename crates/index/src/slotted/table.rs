//! One table: its root, and how it is moved to a larger one.
//!
//! A crowded table is moved, region by region, to a next table, by every client that changes something. When all
//! regions have been moved, the next table becomes the current one. [`RootSync`] keeps this worker's copy of the root.

use super::geometry::{DONE, Geometry, MAX_REGIONS, ROOT_USED, Segment};
use super::intents;
use super::mover::RegionMigrator;
use crate::IndexError;
use crate::marks::mark;
use crate::recovery::HeldLock;
use crate::root_sync::{Pacing, Resize, RootSync, create_root};
use farindex_fabric::{NodeId, RemotePtr, Span};
use farindex_pool::{Pin, PoolError, Session};
use std::cell::Cell;
use std::ops::Deref;
use std::time::Duration;

/// What a table is to be moved to.
pub(crate) struct Plan {
    /// Regions of the next table.
    pub(crate) regions: u64,
    /// Keys that may be put directly into it while it is filled.
    pub(crate) room: u64,
}

/// One table, as one worker sees it. `X` is what its kind keeps of a table in addition.
pub struct Table<X> {
    root: RootSync<Geometry>,
    width: usize,
    /// The regions before this one have been moved, in the table of this generation.
    moved_to: Cell<(u64, u64)>,
    /// The lock of a region that another client moves, and when this worker last checked whether that client has
    /// crashed.
    waiting: Cell<Option<(RemotePtr, Duration)>>,
    pub(crate) own: X,
}

impl<X> Deref for Table<X> {
    type Target = RootSync<Geometry>;

    fn deref(&self) -> &Self::Target {
        &self.root
    }
}

impl<X> Table<X> {
    /// Creates an empty table on the node; returns its root.
    pub(crate) async fn create(
        session: &Session,
        span: &Span,
        node: NodeId,
        index_tag: u64,
        (regions, width): (u64, usize),
    ) -> Result<RemotePtr, IndexError> {
        let bytes = Segment::bytes_for(regions, width, session.pool().geometry(node).chunk_size);
        let init = async |start, words: &mut [u64]| {
            let segment = Segment { generation: 0, start, regions, width };
            words[Segment::root_word(0)..Segment::root_word(0) + 2].copy_from_slice(&segment.words());
            Ok(())
        };
        create_root::<Geometry>(session, span, node, index_tag, bytes, init).await
    }

    /// Opens the table with this root, whose slots have `width` bytes.
    pub(crate) async fn open(
        pin: &Pin<'_>,
        root: RemotePtr,
        index_tag: u64,
        width: usize,
        pacing: Pacing,
        own: X,
    ) -> Result<Self, IndexError> {
        let root = RootSync::open(pin, root, index_tag, width, pacing).await?;
        Ok(Table { root, width, moved_to: Cell::new((0, 0)), waiting: Cell::new(None), own })
    }

    /// Returns the segment that this one is being moved to, as far as this worker knows.
    pub(crate) fn next_of(&self, segment: &Segment) -> Option<Segment> {
        let geometry = self.geometry();
        geometry.next.filter(|_| geometry.current.generation == segment.generation)
    }
    /// Returns the number of slots of a generation that are in use, as far as this worker knows.
    pub fn used(&self, generation: u64) -> u64 {
        self.root.counter(Geometry::used_counter(generation))
    }
    /// Returns the share of a segment's slots that are in use, as far as this worker knows.
    pub fn load(&self, segment: &Segment) -> f64 {
        self.used(segment.generation) as f64 / segment.slots() as f64
    }
    /// Counts entries, and slots in use of a generation, that were added, or removed if the change is negative.
    pub fn note(&self, entries: i64, generation: u64, slots: i64) {
        let mut change = [entries, 0, 0];
        change[Geometry::used_counter(generation)] = slots;
        self.root.add(change);
    }

    /// Makes the next table, as `plan` says, unless another client is doing that. `full` says that an insert has found
    /// no free slot at all. A pool without room for the next table is no error, unless `full`. `index` is the uid that
    /// goes into the intent. If a client that may be alive has been making it for long, returns the lock of that
    /// client.
    pub(crate) async fn grow_as(
        &self,
        pin: &Pin<'_>,
        index: u64,
        full: bool,
        plan: impl AsyncFnOnce(&Span, &Segment) -> Result<Plan, IndexError>,
    ) -> Result<Option<HeldLock>, IndexError> {
        let (session, span, epoch) = (pin.session(), pin.span(), pin.epoch());
        let geometry = self.sync(span, epoch).await?;
        let state = geometry.state;
        if state.growing() || !full && !self.crowded() {
            return Ok(None);
        }
        if state.resizer().is_some() {
            if full {
                session.endpoint().sleep(Duration::from_micros(20)).await;
            }
            return self.root.check_resizer(pin, index, state).await;
        }
        let now = geometry.current;
        let Plan { regions, room } = plan(span, &now).await?;
        let (root, node, width) = (self.root.root(), self.root.root().node(), self.width);
        let bytes = Segment::bytes_for(regions, width, session.pool().geometry(node).chunk_size);
        if regions > MAX_REGIONS {
            let size = session.pool().superblock(node).region_len;
            return if full { Err(PoolError::Full { node, wanted: bytes, size }.into()) } else { Ok(None) };
        }
        let what = [intents::GROW, now.generation, regions, 0];
        let resize = Resize { what, state, bytes, required: full };
        let grown = self.root.grow_root(pin, index, resize, |batch, start| {
            let next = Segment { generation: now.generation + 1, start, regions, width };
            batch.write_words(root.add(ROOT_USED + 8 * (next.generation % 2)), &[0]);
            // A word of the new segment: no client counts there yet, and no late FAA for another table ever will (N6).
            batch.write_words(next.room(), &[room]);
            batch.write_words(root.add(8 * Segment::root_word(next.generation) as u64), &next.words());
            state.grows()
        });
        if grown.await? {
            self.sync(span, epoch).await?;
        }
        Ok(None)
    }

    /// Reserves a slot of the next segment; returns `false` if none is left.
    pub(crate) async fn reserve(&self, span: &Span, next: &Segment) -> Result<bool, IndexError> {
        Ok(span.faa(next.room(), 1u64.wrapping_neg()).await? as i64 > 0)
    }

    /// Makes the next table the current one, after all regions have been moved. The client whose CAS does that retires
    /// the old table.
    pub(crate) async fn settle(&self, pin: &Pin<'_>, of: Geometry) -> Result<(), IndexError> {
        let old = of.current;
        if pin.span().cas(self.root.root(), of.state.0, of.state.settled().0).await? == of.state.0 {
            mark!("table grow: settled");
            let chunk = pin.session().pool().geometry(old.start.node()).chunk_size;
            pin.retire(old.start, Segment::bytes_for(old.regions, old.width, chunk));
        }
        self.sync(pin.span(), pin.epoch()).await.map(drop)
    }

    /// Moves one region of a table that is being moved, if there is one that no client moves; settles the table if none
    /// is left. If a client that may be alive has been moving the last ones for long, returns a lock of that client.
    pub(crate) async fn advance_by(&self, mover: &impl RegionMigrator) -> Result<Option<HeldLock>, IndexError> {
        let pin = mover.pin();
        if !self.is_checked(pin.epoch()) {
            // The table may be gone.
            self.sync(pin.span(), pin.epoch()).await?;
        }
        let geometry = self.geometry();
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
        // Other clients are moving all that are left.
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
