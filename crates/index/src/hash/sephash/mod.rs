//! SepHash: a write-optimized hash index on disaggregated memory.
//!
//! After X. Min et al., PVLDB 17(5), 2024. An extendible directory of segments in two parts: a small CurSegment that
//! all writes are appended to, and a large MainSegment, sorted by fingerprint, that CurSegments are merged into.
//! docs/protocols/sephash.md has the protocol, its linearization points, and the numbered deviations from the paper.
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`layout`] | entries, CurSegMeta, offsets | Figure 5, 4.2.1 |
//! | [`fptable`] | record points | 4.4.2 |
//! | [`main_segment`] | MainSegments | 4.2.1 |
//! | [`views`] | what a compute node caches of segments | 4.4 |
//! | `probe` | the first batch of every operation | 4.2.1, 4.3 |
//! | `lookup` | search | 4.2.1 |
//! | `many` | lookup of many keys at once | |
//! | `append` | append: the CAS of a slot, zero-wait writes | 4.3 |
//! | `merge` | merge and split | 4.2.2 |
//! | `recovery` | recovery of segments and slots after a crash | |
//! | `walk` | visits of every entry: dumps, audits, recovery and drops | |

mod append;
pub mod fptable;
pub mod layout;
mod lookup;
pub mod main_segment;
mod many;
mod merge;
mod probe;
mod recovery;
pub mod views;
mod walk;

use crate::audit::OnDamage;
use crate::block;
use crate::extendible::first_segments::{create_with_segments, free_new_directory};
use crate::extendible::{Directory, Shape, layout::MAX_DEPTH};
use crate::growth::Growth;
use crate::handle::{Handle, has_handle};
use crate::keyhash::KeyHash;
use crate::kind::Settings;
use crate::maintenance::await_room;
use crate::marks::mark;
use crate::table_per_node::{Creation, Opening, TablePerNode};
use crate::traits::{Insert, Limits, PointIndex, Remove, RemoveIf, Replace, Update, Upsert};
use crate::visit::Entries;
use crate::write::{Guard, upsert_each};
use crate::{IndexAudit, IndexError, Value};
use append::{Mode, Wrote};
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span, apart, cold};
use farindex_pool::Session;
use farindex_pool::audit::Audit;
use farindex_pool::leaks::Leaks;
use layout::{Control, Geometry, META_LEN, Meta};
use probe::{Op, Step, Stuck};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use views::Views;

/// This kind's number in the catalog.
pub const KIND: u32 = 2;
/// Version of its format.
pub const FORMAT: u32 = 1;

/// How lookups find the entries of a fingerprint in a MainSegment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// Record points.
    #[default]
    Points,
    /// The start of each fingerprint, as a baseline.
    Naive,
    /// None: lookups read the whole MainSegment, the baseline of Figure 19.
    Off,
}

/// Settings of a SepHash index.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Bytes of entries in a CurSegment: 64 to 2048 (1024 in the paper, which tries 128 to 2048).
    pub cur_bytes: u64,
    /// A segment is split when its MainSegment would have more than this many times the entries of a CurSegment: 8 to
    /// 64 in the paper.
    pub ratio: u64,
    /// A new index has `2^initial_depth` segments on each memory node.
    pub initial_depth: u32,
    /// Segments are not split beyond this depth; their MainSegments grow instead.
    pub max_depth: u32,
    /// MiB that a compute node keeps of directory and FPTables together, for each memory node.
    pub cache_mib: u64,
    /// FPTables (Figure 19b).
    pub table: TableKind,
    /// Do lookups use the bitmap of fingerprints, or always read the CurSegment (Figure 19b)?
    pub bitmap: bool,
    /// Do splits use the depth information, and merges the sign (Figure 19a)? If not, splits read every block, and
    /// merges write every slot.
    pub resize_entry: bool,
    /// Does a write answer without waiting for second fingerprint and filter (Figure 19a)?
    pub zero_wait: bool,
    /// Does an upsert check whether the key was present? If not, it is the paper's blind append.
    pub report_outcome: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cur_bytes: 1024,
            ratio: 64,
            initial_depth: 4,
            max_depth: MAX_DEPTH,
            cache_mib: 64,
            table: TableKind::Points,
            bitmap: true,
            resize_entry: true,
            zero_wait: true,
            report_outcome: false,
        }
    }
}

impl Settings for Config {
    const VERSION: u32 = 1;

    fn check(&self) -> Result<(), IndexError> {
        let bad = |what: String| Err(IndexError::BadConfig(what));
        if !(64..=2048).contains(&self.cur_bytes) || !self.cur_bytes.is_multiple_of(64) {
            return bad(format!("a CurSegment of {} bytes: it takes 64 to 2048, a multiple of 64", self.cur_bytes));
        }
        if !(1..=1024).contains(&self.ratio) {
            return bad(format!("MainSegments of {} CurSegments: it takes 1 to 1024", self.ratio));
        }
        if self.initial_depth > 16 {
            return bad(format!("2^{} segments: an index begins with at most 2^16", self.initial_depth));
        }
        if !(self.initial_depth..=MAX_DEPTH).contains(&self.max_depth) {
            let (max, from) = (self.max_depth, self.initial_depth);
            return bad(format!("a depth of at most {max}: it takes {from} (the initial one) to {MAX_DEPTH}"));
        }
        if !(1..=1 << 20).contains(&self.cache_mib) {
            return bad(format!("a cache of {} MiB: it takes 1 to 2^20", self.cache_mib));
        }
        Ok(())
    }
}

/// The part of an index that lies on one memory node.
pub struct Table {
    directory: Directory,
    views: Arc<Views>,
    node: NodeId,
    growth: Growth,
    predictions: Cell<Predictions>,
}

/// Counts of a worker's predictions where the entries of a fingerprint lie in a MainSegment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Predictions {
    /// Predicted ranges that were read.
    pub made: u64,
    /// Ranges that were too short, so that more had to be read.
    pub short: u64,
}

impl Table {
    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }
    /// What this compute node caches of its segments.
    pub fn views(&self) -> &Views {
        &self.views
    }
    /// Merges and splits of this worker.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }
    /// Predictions of this worker.
    pub fn predictions(&self) -> Predictions {
        self.predictions.get()
    }
    fn predicted(&self, short: bool) {
        let Predictions { made, short: before } = self.predictions.get();
        self.predictions.set(Predictions { made: made + 1, short: before + u64::from(short) });
    }
    /// Drops everything that is cached.
    pub fn forget(&self) {
        self.directory.mirror().forget();
        self.views.forget();
    }
}

/// A wait for the epoch, because of such a slot.
struct Standstill {
    of: Stuck,
    /// The epoch, and since when it has not advanced, or since when it was known that a client was evicted.
    epoch: u64,
    since: Duration,
    /// The pool's counter, which changes when a client is evicted.
    leaks: Leaks,
    /// When the wait was left, to look at the slot again. That is no time of waiting: nobody may have tried to advance the epoch.
    left: Duration,
}

/// A SepHash index, as one worker thread uses it.
pub struct SepHash {
    handle: Handle<Config, Table>,
    geometry: Geometry,
}

has_handle!(SepHash, Handle<Config, Table>);

impl SepHash {
    /// Returns how often the deepest segment that this compute node knows has been split.
    pub fn resizes(&self) -> u64 {
        let deepest = self.tables.iter().map(|table| table.directory.mirror().depth()).max().unwrap_or(0);
        u64::from(deepest.saturating_sub(self.config.initial_depth))
    }
    /// Number of entries beyond which a MainSegment is split.
    fn main_cap(&self) -> usize {
        (self.config.ratio as usize).saturating_mul(self.geometry.slots)
    }

    /// Runs one operation, under consecutive pins, until it has an outcome. It releases its pin before it waits for an
    /// epoch or for memory.
    ///
    /// Rare parts are boxed, as in `probe` and `append`, so that the future of an operation has the size of the common
    /// path.
    async fn run<T>(
        &self,
        kind: OpKind,
        hash: KeyHash,
        key: &[u8],
        attempt: impl AsyncFnMut(&mut Op<'_>) -> Result<Step<T>, IndexError>,
    ) -> Result<T, IndexError> {
        self.run_on(self.table(hash), self.session.span(kind), hash, key, attempt).await
    }

    async fn run_on<T>(
        &self,
        table: &Table,
        span: Span,
        hash: KeyHash,
        key: &[u8],
        attempt: impl AsyncFnMut(&mut Op<'_>) -> Result<Step<T>, IndexError>,
    ) -> Result<T, IndexError> {
        let pin = self.session.pin(span)?;
        let mut op = Some(Op::new(self, table, pin, hash, key, None));
        self.run_from(&mut op, attempt).await
    }

    /// Like [`run`](Self::run), for an operation that has begun. The caller keeps the operation: a parameter would take
    /// its space twice.
    async fn run_from<'a, T>(
        &'a self,
        op: &mut Option<Op<'a>>,
        mut attempt: impl AsyncFnMut(&mut Op<'_>) -> Result<Step<T>, IndexError>,
    ) -> Result<T, IndexError> {
        let (mut waits_for_room, mut standstill) = (0, None);
        loop {
            let Some(open) = op.as_mut() else { return Err(IndexError::Interrupted) };
            let (table, hash, key, kind) = (open.table, open.hash, open.key, open.span().kind());
            let step = loop {
                match attempt(open).await? {
                    Step::Again => {}
                    step => break step,
                }
            };
            let full = open.full.take();
            *op = None;
            let mut stuck = None;
            match step {
                Step::Done(done) => return Ok(done),
                Step::Stuck(at) => {
                    standstill = Some(cold(self.await_epoch(&at, standstill.take())).await?);
                    stuck = Some(at);
                }
                Step::Room(bytes) => {
                    waits_for_room += 1;
                    if let Some(error) = full.filter(|_| waits_for_room > 2) {
                        return Err(error);
                    }
                    cold(await_room(&self.session, table.node, bytes)).await?;
                }
                Step::Again => {}
            }
            let pin = self.session.pin(self.session.span(kind))?;
            *op = Some(Op::new(self, table, pin, hash, key, stuck));
        }
    }

    /// Waits until every operation has ended that was running when a slot was found that had not landed, or for half a
    /// lease: the slot may have landed meanwhile. Fails after three leases in which the epoch has not advanced and no
    /// client was evicted.
    async fn await_epoch(&self, stuck: &Stuck, before: Option<Standstill>) -> Result<Standstill, IndexError> {
        mark!("sephash: waits for an epoch");
        let session = &self.session;
        let (endpoint, lease) = (session.endpoint(), session.pool().lease());
        let leaks = async || Leaks::read(&session.span(OpKind::Maintenance)).await;
        let before = match before.filter(|before| before.of == *stuck) {
            Some(before) => before,
            None => {
                let (leaks, now) = (leaks().await?, endpoint.now());
                Standstill { of: *stuck, epoch: session.client().epoch(), since: now, leaks, left: now }
            }
        };
        let began = endpoint.now();
        let mut still = Standstill { since: before.since + began.saturating_sub(before.left), ..before };
        let mut pause = Duration::from_micros(2);
        loop {
            let (epoch, now) = (session.client().epoch(), endpoint.now());
            if epoch != still.epoch {
                (still.epoch, still.since) = (epoch, now);
            }
            if epoch >= stuck.ended() || now.saturating_sub(began) > lease / 2 {
                return Ok(Standstill { left: now, ..still });
            }
            let waited = now.saturating_sub(still.since);
            // A crashed client delays the epoch for a lease, and for as long again if its crash was detected late.
            if waited > lease * 3 {
                let before = std::mem::replace(&mut still.leaks, leaks().await?);
                if still.leaks == before {
                    let holder = session.client().laggards(&session.span(OpKind::Maintenance)).await?;
                    return Err(IndexError::Locked { at: stuck.at, waited_ms: waited.as_millis() as u64, holder });
                }
                // An operation that is pinned may have waited for clients that crashed one after the other.
                mark!("sephash: several crashed clients delay the epoch");
                still.since = endpoint.now();
            }
            session.maintain().await?;
            endpoint.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Writes a block, and appends an entry for it if the mode requires one.
    async fn write(&self, kind: OpKind, mode: Mode<'_>, key: &[u8], value: &[u8]) -> Result<Wrote, IndexError> {
        self.check_lengths(key, value)?;
        let hash = self.hash(key);
        let table = self.table(hash);
        let len = block::block_len(key.len(), value.len());
        let span = self.session.span(kind);
        let ptr = self.session.alloc(&span, table.node, len as u64).await?;
        let mut piggybacked = Some((ptr, block::encode(self.session.endpoint(), hash, key, value)));
        let mut check = mode.guard().begin();
        let attempt = async |op: &mut Op<'_>| op.write((mode, &mut check), ptr, len, &mut piggybacked).await;
        let wrote = self.run_on(table, span, hash, key, attempt).await;
        match &wrote {
            Ok(wrote) if wrote.appended() => {}
            // The block was written, and no entry points to it.
            Ok(_) => self.session.discard(ptr, len as u64),
            // After a failed verb it may be linked all the same (N7), or its WRITE may land later (N5).
            Err(IndexError::Fabric(_)) => {}
            Err(_) => self.session.discard(ptr, len as u64),
        }
        if matches!(wrote, Ok(Wrote { last: true, .. })) {
            // The client that took the last slot merges. If that fails, the next operation that needs a slot reports
            // the error.
            let merged = self.run(OpKind::Maintenance, hash, key, async |op| op.merge_if_full().await);
            let merged = cold(merged).await;
            debug_assert!(!matches!(merged, Err(IndexError::BadConfig(_))), "merging reads no settings");
        }
        self.reclaim().await?;
        wrote
    }
}

/// Returns the words of a CurSegment without entries.
fn empty_segment(
    session: &Session,
    geometry: Geometry,
    control: Control,
    main: RemotePtr,
    len: usize,
) -> farindex_fabric::Buf {
    let mut buf = session.endpoint().buf(geometry.bytes());
    buf.words_mut().fill(0);
    buf.words_mut()[..META_LEN / 8].copy_from_slice(&Meta::words_of(control, main, len));
    buf
}

/// Operations on a key.
impl SepHash {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.check_lengths(key, &[])?;
        let hash = self.hash(key);
        let hit = self.run(OpKind::Get, hash, key, async |op| op.get().await).await?;
        Ok(hit.map(|hit| hit.block.into_value()))
    }
}

impl PointIndex for SepHash {
    fn limits(&self) -> Limits {
        Limits::BLOCK
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        apart(self.look_up(key)).await
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        apart(crate::many::get_many::<many::Lookup<'_>>(self, keys)).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        let wrote = apart(self.write(OpKind::Insert, Mode::Insert, key, value)).await?;
        Ok(if wrote.appended() { Insert::Inserted } else { Insert::Exists })
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        let wrote = apart(self.write(OpKind::Update, Mode::Update(Guard::Any), key, value)).await?;
        Ok(if wrote.appended() { Update::Updated } else { Update::Absent })
    }

    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        if self.config.report_outcome {
            return self.upsert_with_outcome(key, value).await;
        }
        apart(self.write(OpKind::Upsert, Mode::Blind, key, value)).await?;
        Ok(Upsert::Written)
    }

    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        let wrote = apart(self.write(OpKind::Upsert, Mode::Upsert, key, value)).await?;
        Ok(if wrote.present { Upsert::Updated } else { Upsert::Inserted })
    }

    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }

    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        let wrote = apart(self.write(OpKind::Remove, Mode::Remove(Guard::Any), key, &[])).await?;
        Ok(if wrote.appended() { Remove::Removed } else { Remove::Absent })
    }

    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let mode = Mode::Update(Guard::Equals(expected));
        Ok(match apart(self.write(OpKind::Update, mode, key, value)).await? {
            wrote if wrote.appended() => Replace::Replaced,
            Wrote { present: true, .. } => Replace::Differs,
            _ => Replace::Absent,
        })
    }

    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        let mode = Mode::Remove(Guard::Equals(expected));
        Ok(match apart(self.write(OpKind::Remove, mode, key, &[])).await? {
            wrote if wrote.appended() => RemoveIf::Removed,
            Wrote { present: true, .. } => RemoveIf::Differs,
            _ => RemoveIf::Absent,
        })
    }

    fn cache_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.directory.cache_bytes() + table.views.bytes()).sum()
    }
}

impl TablePerNode for SepHash {
    type Settings = Config;
    type Table = Table;
    type Shared = ();
    const KIND: u32 = KIND;
    const NAME: &'static str = "sephash";
    const FORMAT: u32 = FORMAT;
    const ROOT_LEN: usize = crate::extendible::layout::ROOT_LEN;

    async fn create_table(new: &Creation<'_, Config>, node: NodeId) -> Result<RemotePtr, IndexError> {
        let Creation { session, span, index_tag, config } = *new;
        let geometry = Geometry::of(config.cur_bytes);
        let control = Control::new(0, config.initial_depth, false);
        let contents = |_| empty_segment(session, geometry, control, RemotePtr::NULL, 0);
        let shape = Shape { initial_depth: config.initial_depth };
        let root =
            create_with_segments(session, span, node, index_tag, shape, geometry.bytes() as u64, contents).await?;
        // Reads the root back: this keeps the verbs of a seed comparable with those of earlier versions.
        let pin = session.pin(session.span(OpKind::Other))?;
        Directory::open(&pin, root, index_tag, 0).await?;
        Ok(root)
    }

    async fn free_new_table(new: &Creation<'_, Config>, root: RemotePtr) -> Result<(), IndexError> {
        let Creation { session, span, index_tag, config } = *new;
        let bytes = Geometry::of(config.cur_bytes).bytes() as u64;
        free_new_directory(session, span, root, index_tag, bytes).await
    }

    async fn prepare(_: &Span, _: &Config) -> Result<Self::Shared, IndexError> {
        Ok(())
    }

    async fn open_table(of: &Opening<'_, Config, ()>, root: RemotePtr) -> Result<Table, IndexError> {
        let Opening { pin, index_tag, config, .. } = *of;
        // A quarter for the directory: its words are 8 bytes for each segment, FPTables about 80.
        let bound = config.cache_mib << 20;
        let slots = Geometry::of(config.cur_bytes).slots;
        let directory = Directory::open(pin, root, index_tag, bound / 4).await?;
        let share = || Views::new(bound / 4 * 3, slots);
        let views = pin.session().client().share(root.to_bits() ^ index_tag, share);
        let (growth, predictions) = (Growth::default(), Cell::default());
        Ok(Table { directory, views, node: root.node(), growth, predictions })
    }

    fn from_handle(handle: Handle<Config, Table>) -> Self {
        let geometry = Geometry::of(handle.config.cur_bytes);
        SepHash { handle, geometry }
    }

    fn root_of(table: &Table) -> RemotePtr {
        table.directory.root()
    }

    async fn mark_root_dropped(span: &Span, root: RemotePtr, index_tag: u64) -> Result<(), IndexError> {
        Directory::mark_dropped(span, root, index_tag).await
    }

    async fn free_table(&self, span: &Span, table: &Table) -> Result<(), IndexError> {
        self.free_table(span, table).await
    }

    fn resizes(&self) -> u64 {
        self.resizes()
    }

    async fn recover(&self) -> Result<u64, IndexError> {
        self.recover().await
    }

    async fn audit(&self, audit: &mut Audit, alone: bool) -> Result<IndexAudit, IndexError> {
        self.audit(audit, alone).await
    }

    async fn visit_entries(&self, entries: &Entries, damaged: OnDamage<'_>) -> Result<u64, IndexError> {
        self.visit_entries(entries, damaged).await
    }
}
