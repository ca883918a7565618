//! One table: its root in far memory, this worker's copy of the directory, and when to look at the root again.
//!
//! Invariants: the copy is never ahead of the root; being behind costs round trips, never correctness, because the buckets
//! themselves say which version they have; the root's count of entries is a hint that steers growth.
//!
//! *Adaptive frequency synchronization* (section 3.4, Algorithm 4): a worker adds what it has inserted to the root and
//! reads it again after `F = alpha * T * (R - L)` operations, where `T` is the number of level-1 slots, `R` the load at
//! which the table grows, and `L` its load. Here that READ and FAA ride in the first batch of an operation, so they cost
//! no round trip; and nobody waits for anybody.

use super::Config;
use super::geometry::{
    BYTES_PER_BUCKET, Geometry, MAX_BUCKET_BITS, MAX_SEGMENTS, ROOT_INDEX_TAG, ROOT_LEN, ROOT_RENEWED, ROOT_SEGMENTS,
    ROUND, RootState,
};
use super::recovery::{Recovery, resize_lock};
use super::split::steps;
use crate::IndexError;
use crate::marks::mark;
use crate::sync_interval::Pace;
use farindex_fabric::{Batch, Buf, Done, NodeId, RemotePtr, Span, Ticket};
use farindex_pool::{Intent, Pin, PoolError, Session, epoch::tag};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The epoch is waited for as long as this, or so many times as long as the insert has taken: it moves when the operations in flight
/// have ended, and those take as long.
const AWAITED: Duration = Duration::from_millis(4);
const AWAITED_TIMES: u32 = 8;
/// And it is looked at so often at least: among many coroutines one look takes as long as all of them.
const AWAITED_LOOKS: u32 = 16;

/// How many lookups of young buckets in a row must find them split before a worker stops to read the parents along.
const SPECULATION: u32 = 64;

/// So many READs in a row that show no root are no accident: a READ that is posted after another one has shown the newer
/// version shows the pointer that goes with it, so no more mix the two than are in flight together.
const TORN: u32 = 4096;

/// One table, as one worker sees it.
pub struct Table {
    root: RemotePtr,
    index_tag: u64,
    geometry: RefCell<Rc<Geometry>>,
    alpha: f64,
    threshold: f64,
    /// Entries in the table when the root was last read.
    count: Cell<u64>,
    /// What this worker has added since.
    added: Cell<i64>,
    /// Operations until the next synchronization.
    budget: Cell<u64>,
    pace: Cell<Pace>,
    /// How often the root was read.
    synchronizations: Cell<u64>,
    /// The latest epoch of an operation that has read the root, and found the index there.
    checked: Cell<u64>,
    /// Lookups of young buckets that still read the parent along.
    speculation: Cell<u32>,
    /// The latest epoch that was waited for in vain.
    stuck: Cell<Option<u64>>,
    /// The pool was full when the table was to grow; at this count it may try again.
    grow_at: Cell<u64>,
    /// READs in a row that showed no root.
    torn: Cell<u32>,
    /// Somebody resizes: the root's word, and when it was looked at last.
    resizing: Cell<Option<(u64, Duration)>>,
}

/// The verbs of a synchronization within a batch.
pub struct Sync {
    root: Ticket,
    /// The operation's.
    epoch: u64,
    /// Does the batch tell the root what this worker has added?
    reports: bool,
}

impl Table {
    /// Makes an empty table on the node; returns its root.
    pub async fn create(
        session: &Session,
        span: &Span,
        node: NodeId,
        index_tag: u64,
        config: &Config,
    ) -> Result<RemotePtr, IndexError> {
        let buckets = Geometry::segment_buckets(config.initial_bits, 0);
        let root = session.alloc(span, node, ROOT_LEN as u64).await?;
        let segment = match session.alloc_zeroed(span, node, buckets * BYTES_PER_BUCKET).await {
            Ok(segment) => segment,
            Err(error) => {
                session.free(span, root, ROOT_LEN as u64).await?;
                return Err(error.into());
            }
        };
        // The buckets of segment 0 are there from the beginning: all fresh, version 0.
        let fresh = super::bucket::fresh_word(0);
        let (first, second) = (buckets * 512 / 8, buckets * 64 / 8);
        let mut done = 0;
        while done < first + second {
            let mut batch = span.batch();
            while done < first + second && batch.len() < 16 {
                let end = if done < first { first } else { first + second };
                let step = (end - done).min(1024);
                let mut buf = session.endpoint().buf(step as usize * 8);
                buf.words_mut().fill(fresh);
                batch.write(segment.add(done * 8), buf);
                done += step;
            }
            batch.post().await?;
        }
        let mut words = [0; ROOT_LEN / 8];
        words[2] = config.initial_bits;
        words[ROOT_INDEX_TAG] = index_tag;
        words[(ROOT_SEGMENTS / 8) as usize] = segment.to_bits();
        span.write(root, session.endpoint().buf_from_words(&words)).await?;
        Ok(root)
    }

    /// Opens the table with this root, for an operation that is pinned.
    pub async fn open(pin: &Pin<'_>, root: RemotePtr, index_tag: u64, config: &Config) -> Result<Self, IndexError> {
        let (span, epoch) = (pin.span(), pin.epoch());
        let mut words = span.read(root, ROOT_LEN).await?;
        // A READ that mixes two versions (N2) may miss a pointer: look again before believing it.
        for _ in 0..3 {
            if Geometry::parse(words.words()).is_none() {
                words = span.read(root, ROOT_LEN).await?;
            }
        }
        let geometry = Geometry::parse(words.words()).filter(|geometry| geometry.lies_on(root.node()));
        let geometry = geometry.ok_or_else(|| corrupt_root(root))?;
        let table = Table {
            root,
            index_tag,
            geometry: RefCell::new(Rc::new(geometry)),
            alpha: config.alpha,
            threshold: config.threshold,
            count: Cell::new(0),
            added: Cell::new(0),
            budget: Cell::new(0),
            pace: Cell::new(Pace::UNKNOWN),
            synchronizations: Cell::new(0),
            checked: Cell::new(epoch),
            speculation: Cell::new(SPECULATION),
            stuck: Cell::new(None),
            grow_at: Cell::new(0),
            torn: Cell::new(0),
            resizing: Cell::new(None),
        };
        table.learn(words.words())?;
        Ok(table)
    }

    /// The root.
    pub fn root(&self) -> RemotePtr {
        self.root
    }
    /// This worker's copy of the directory.
    pub fn geometry(&self) -> Rc<Geometry> {
        Rc::clone(&self.geometry.borrow())
    }
    /// Entries, as far as this worker knows.
    pub fn count(&self) -> u64 {
        self.count.get().saturating_add_signed(self.added.get())
    }
    /// How often this worker has read the root since it opened the table.
    pub fn synchronizations(&self) -> u64 {
        self.synchronizations.get()
    }
    /// Bytes of this worker's copy.
    pub fn cache_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.geometry.borrow().cache_bytes()
    }
    /// One entry more or less.
    pub fn note(&self, change: i64) {
        self.added.set(self.added.get() + change);
    }
    /// Should a lookup of a young bucket read its parent along? After a resize it saves a round trip for every bucket that
    /// has yet to be split.
    pub fn speculates(&self) -> bool {
        self.speculation.get() > 0
    }
    /// A young bucket was found split, or not.
    pub fn saw_young(&self, split: bool) {
        self.speculation.set(if split { self.speculation.get().saturating_sub(1) } else { SPECULATION });
    }

    /// Counts an operation that is pinned at `epoch`; adds a synchronization to its first batch if one is due. It is also
    /// due when the epoch has moved on: an operation that begins two epochs after an index was dropped must know it.
    pub fn count_operation(&self, batch: &mut Batch<'_>, epoch: u64) -> Option<Sync> {
        let left = self.budget.get();
        self.budget.set(left.saturating_sub(1));
        self.pace.set(self.pace.get().counted());
        (left == 0 || !self.is_checked(epoch)).then(|| self.add_sync(batch, epoch))
    }

    /// Has somebody read the root in this epoch? That a READ is on its way is not enough. If so, the root's memory is the
    /// root still, and the copy knows every resize that was published before the epoch began.
    pub(super) fn is_checked(&self, epoch: u64) -> bool {
        self.checked.get() >= epoch
    }

    fn add_sync(&self, batch: &mut Batch<'_>, epoch: u64) -> Sync {
        self.synchronizations.set(self.synchronizations.get() + 1);
        let reports = self.is_checked(epoch);
        let added = if reports { self.added.replace(0) } else { 0 };
        if added != 0 {
            batch.faa(self.root.add(8), added as u64);
        }
        Sync { root: batch.read(self.root, ROOT_LEN), epoch, reports }
    }

    /// Evaluates the synchronization of a completed batch. From here on the copy is as new as the moment at which the
    /// root was read; only then may other operations of the same epoch rely on it.
    pub fn finish_sync(&self, sync: &Sync, done: &mut Done) -> Result<(), IndexError> {
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

    /// Reads the root now, for an operation that is pinned at `epoch`; returns whether there is a newer version.
    pub async fn sync(&self, span: &Span, epoch: u64) -> Result<bool, IndexError> {
        let before = self.geometry.borrow().version;
        let mut batch = span.batch();
        let sync = self.add_sync(&mut batch, epoch);
        let mut done = batch.post().await?;
        self.finish_sync(&sync, &mut done)?;
        Ok(self.geometry.borrow().version > before)
    }

    /// Takes over what was read of the root; `false` if it mixes two versions (N2), and is to be read again.
    fn learn(&self, words: &[u64]) -> Result<bool, IndexError> {
        let state = RootState(words.first().copied().unwrap_or_default());
        // The memory of a dropped root is used again in the end; then it does not bear this index's seal.
        if state.dropped() || words.get(ROOT_INDEX_TAG) != Some(&self.index_tag) {
            // Every operation from now on is to be told.
            self.budget.set(0);
            return Err(IndexError::Dropped);
        }
        let known = self.geometry.borrow().version;
        if state.version() > known {
            let Some(geometry) = Geometry::parse(words).filter(|geometry| geometry.lies_on(self.root.node())) else {
                self.budget.set(0);
                self.torn.set(self.torn.get() + 1);
                return if self.torn.get() < TORN { Ok(false) } else { Err(corrupt_root(self.root)) };
            };
            *self.geometry.borrow_mut() = Rc::new(geometry);
            self.speculation.set(SPECULATION);
        } else if state.version() == known && state != self.geometry.borrow().state {
            // Somebody resizes, or has given up.
            Rc::make_mut(&mut self.geometry.borrow_mut()).state = state;
        }
        self.torn.set(0);
        let count = words.get(1).copied().unwrap_or_default();
        let count = if count > i64::MAX as u64 { 0 } else { count };
        let added = count.saturating_sub(self.count.replace(count));
        let slots = self.geometry.borrow().slots() as f64;
        let load = self.count() as f64 / slots;
        let frequency = self.alpha * slots * (self.threshold - load);
        let pace = self.pace.get().next(added, frequency);
        self.pace.set(pace);
        self.budget.set(pace.allowed);
        Ok(true)
    }

    /// Tells everybody that the index has been dropped.
    pub async fn mark_dropped(&self, span: &Span) -> Result<(), IndexError> {
        let mut seen = first_word(&span.read(self.root, 8).await?);
        while !RootState(seen).dropped() {
            let old = span.cas(self.root, seen, RootState(seen).drop().0).await?;
            if old == seen {
                break;
            }
            seen = old;
        }
        Ok(())
    }

    /// Tells everybody that the index with this seal has been dropped, if this is a root of it.
    pub(super) async fn mark_abandoned(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        loop {
            let words = span.read(root, ROOT_LEN).await?;
            let state = RootState(first_word(&words));
            if words.words().get(ROOT_INDEX_TAG) != Some(&index_tag) || state.dropped() {
                return Ok(());
            }
            if span.cas(root, state.0, state.drop().0).await? == state.0 {
                return Ok(());
            }
        }
    }

    /// Is there hope that the epoch moves on soon? Not if somebody has waited for that already.
    pub(super) fn may_await_epoch(&self, session: &Session) -> bool {
        self.stuck.get() != Some(session.client().epoch())
    }

    /// Moves the epoch on by one, for an operation that holds no pin, and has taken so long. If that takes long, because another operation does not
    /// come to its end, nobody waits for this epoch any more.
    pub(super) async fn await_epoch(&self, session: &Session, took: Duration) -> Result<(), IndexError> {
        mark!("put: waits for the epoch");
        let (before, began) = (session.client().epoch(), session.endpoint().now());
        let patience = AWAITED.max(took * AWAITED_TIMES).min(session.pool().lease() / 8);
        let (mut pause, mut looks) = (Duration::from_micros(1), 0);
        while looks < AWAITED_LOOKS || session.endpoint().now().saturating_sub(began) < patience {
            looks += 1;
            session.maintain().await?;
            if session.client().epoch() > before {
                return Ok(());
            }
            session.endpoint().sleep(pause).await;
            pause = (pause * 2).min(AWAITED / 4);
        }
        self.stuck.set(Some(before));
        Ok(())
    }

    /// Is it time to grow?
    pub fn crowded(&self) -> bool {
        let count = self.count();
        count as f64 >= self.threshold * self.geometry.borrow().slots() as f64 && count >= self.grow_at.get()
    }

    /// Does every operation in flight know the latest resize that has renewed the sids? The next one waits for that, so no
    /// operation meets two renewals that it does not know of. To be asked after a synchronization, whose READ may bring the
    /// version and an older stamp (N2); this one cannot, for the stamp is written ahead of the version (G4).
    async fn renewal_is_known(&self, span: &Span, epoch: u64) -> Result<bool, IndexError> {
        let stamp = first_word(&span.read(self.root.add(ROOT_RENEWED), 8).await?);
        Ok(stamp == 0 || epoch >= stamp.saturating_add(2))
    }

    /// Adds a segment as large as all before, unless somebody else is at it. A pool without room for it is no error: the
    /// table goes on with its overflow levels, and tries again later.
    ///
    /// The root names the resizer, and an intent names the root: `index` is the uid that goes into it.
    pub async fn grow(&self, pin: &Pin<'_>, index: u64) -> Result<(), IndexError> {
        let (session, span, epoch) = (pin.session(), pin.span(), pin.epoch());
        self.sync(span, epoch).await?;
        if !self.crowded() {
            return Ok(());
        }
        let geometry = self.geometry();
        let version = geometry.version;
        let state = geometry.state;
        if state.resizer().is_some() {
            return self.await_resizer(pin, index, state).await;
        }
        let renews = version % ROUND == ROUND - 1;
        if renews && !self.renewal_is_known(span, epoch).await? {
            mark!("grow: waits until the latest renewal is known by all");
            session.want_epoch(8);
            self.grow_at.set(self.count() + geometry.slots() / 64 + 1);
            return Ok(());
        }
        let too_large = version as usize + 2 > MAX_SEGMENTS || geometry.initial_bits() + version + 1 > MAX_BUCKET_BITS;
        let mine = state.resized_by(session.client().slot());
        if too_large {
            return Ok(());
        }
        let cell = session.intent_cell(self.root.node()).await?;
        let clear = async || {
            let mut batch = span.batch();
            cell.clear(&mut batch);
            batch.post().await.map(drop)
        };
        let mut batch = span.batch();
        let what = [steps::GROW, version, 0, 0];
        cell.declare(&mut batch, &Intent { index, lock: resize_lock(self.root), what });
        let won = batch.cas(self.root, state.0, mine.0);
        if batch.post().await?.old(won) != state.0 {
            mark!("grow: lost");
            return Ok(clear().await?);
        }
        let bytes = Geometry::segment_buckets(geometry.initial_bits(), version + 1) * BYTES_PER_BUCKET;
        let segment = match session.alloc_zeroed(span, self.root.node(), bytes).await {
            Ok(segment) => segment,
            Err(error) => {
                let mut seen = mine;
                loop {
                    let old = RootState(span.cas(self.root, seen.0, seen.abandoned().0).await?);
                    if old == seen {
                        break;
                    }
                    // The index was dropped meanwhile.
                    seen = old;
                }
                clear().await?;
                self.grow_at.set(self.count() + geometry.slots() / 16 + 1);
                return match error {
                    PoolError::Full { .. } => Ok(()),
                    other => Err(other.into()),
                };
            }
        };
        let mut batch = span.batch();
        batch.write_words(self.root.add(ROOT_SEGMENTS + (version + 1) * 8), &[segment.to_bits()]);
        if renews {
            batch.write_words(self.root.add(ROOT_RENEWED), &[tag(epoch)]);
        }
        let published = batch.cas(self.root, mine.0, state.settled(version + 1, pin.epoch()).0);
        cell.clear(&mut batch);
        let mut done = batch.post().await?;
        if done.old(published) != mine.0 {
            // The index was dropped meanwhile: the segment belongs to nobody.
            session.free_zeroed(span, segment, bytes).await?;
            return Err(IndexError::Dropped);
        }
        mark!("grow");
        self.sync(span, epoch).await.map(drop)
    }

    /// Somebody else resizes. Nobody waits for that; but if it takes long, whoever would like to grow looks after it.
    async fn await_resizer(&self, pin: &Pin<'_>, index: u64, state: RootState) -> Result<(), IndexError> {
        let now = pin.session().endpoint().now();
        let often = pin.session().pool().lease() / 8;
        match self.resizing.get() {
            Some((of, since)) if of == state.0 => {
                if now.saturating_sub(since) >= often {
                    self.resizing.set(Some((of, now)));
                    Recovery { index, table: self, pin }.resume_growth().await?;
                }
            }
            _ => self.resizing.set(Some((state.0, now))),
        }
        Ok(())
    }
}

fn first_word(buf: &Buf) -> u64 {
    buf.words().first().copied().unwrap_or_default()
}

fn corrupt_root(root: RemotePtr) -> IndexError {
    PoolError::Corrupt { at: root, what: "no table has such a root".to_owned() }.into()
}
