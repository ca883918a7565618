//! One table: its root, and when to wait for the epoch.
//!
//! [`RootSync`] keeps this worker's copy of the directory. Invariant: a copy that is behind costs round trips, never
//! correctness, because the buckets themselves say which version they have.

use super::Config;
use super::bucket::fresh_word;
use super::geometry::{BYTES_PER_BUCKET, Geometry, MAX_BUCKET_BITS, MAX_SEGMENTS, ROOT_RENEWED, ROOT_SEGMENTS, ROUND};
use super::intents;
use crate::IndexError;
use crate::marks::mark;
use crate::root_sync::{Pacing, Resize, RootSync, create_root};
use farindex_fabric::{NodeId, OpKind, RemotePtr, Span};
use farindex_pool::{Pin, Session, epoch::tag};
use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

/// An insert waits for the epoch for this long, or for this many times as long as it has taken so far. The epoch
/// advances when the operations in flight have ended, and those take as long as this one.
const EPOCH_WAIT: Duration = Duration::from_millis(4);
const EPOCH_WAIT_TIMES: u32 = 8;
/// The insert checks the epoch at least this often: among many coroutines one check takes as long as all of them.
const EPOCH_CHECKS: u32 = 16;

/// This many lookups of young buckets in a row must find them split before a worker stops reading the parents as well.
const SPECULATION: u32 = 64;

/// One table, as one worker sees it.
pub struct Table {
    root: RootSync<Rc<Geometry>>,
    /// Lookups of young buckets that still read the parent as well, under this version.
    speculation: Cell<(u64, u32)>,
    /// The latest epoch that an insert has waited for in vain.
    stuck: Cell<Option<u64>>,
}

impl Deref for Table {
    type Target = RootSync<Rc<Geometry>>;

    fn deref(&self) -> &Self::Target {
        &self.root
    }
}

impl Table {
    /// Creates an empty table on the node; returns its root.
    pub(super) async fn create(
        session: &Session,
        span: &Span,
        node: NodeId,
        index_tag: u64,
        config: &Config,
    ) -> Result<RemotePtr, IndexError> {
        let buckets = Geometry::segment_buckets(config.initial_bits, 0);
        let init = async |segment: RemotePtr, words: &mut [u64]| {
            // The buckets of segment 0 exist from the beginning: all fresh, version 0.
            let (first, second) = (buckets * 512 / 8, buckets * 64 / 8);
            let mut done = 0;
            while done < first + second {
                let mut batch = span.batch();
                while done < first + second && batch.len() < 16 {
                    let end = if done < first { first } else { first + second };
                    let step = (end - done).min(1024);
                    let mut buf = session.endpoint().buf(step as usize * 8);
                    buf.words_mut().fill(fresh_word(0));
                    batch.write(segment.add(done * 8), buf);
                    done += step;
                }
                batch.post().await?;
            }
            words[2] = config.initial_bits;
            words[(ROOT_SEGMENTS / 8) as usize] = segment.to_bits();
            Ok(())
        };
        create_root::<Rc<Geometry>>(session, span, node, index_tag, buckets * BYTES_PER_BUCKET, init).await
    }

    /// Opens the table with this root, for an operation that is pinned.
    pub(super) async fn open(
        pin: &Pin<'_>,
        root: RemotePtr,
        index_tag: u64,
        config: &Config,
    ) -> Result<Self, IndexError> {
        let pacing = Pacing { alpha: config.alpha, threshold: config.threshold };
        let root = RootSync::<Rc<Geometry>>::open(pin, root, index_tag, (), pacing).await?;
        let speculation = Cell::new((root.geometry().version, SPECULATION));
        Ok(Table { root, speculation, stuck: Cell::new(None) })
    }

    /// Returns the bytes of this worker's copy.
    pub fn cache_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.geometry().cache_bytes()
    }
    /// Counts entries that were added, or removed if `change` is negative.
    pub fn note(&self, change: i64) {
        self.root.add([change, 0, 0]);
    }
    /// Returns the version of this worker's copy.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.root.with_copy(|geometry| geometry.version)
    }
    /// Should a lookup of a young bucket read its parent as well? After a resize that saves a round trip for every
    /// bucket that has yet to be split.
    pub(super) fn speculates(&self) -> bool {
        let (version, left) = self.speculation.get();
        left > 0 || version != self.version()
    }
    /// Notes whether a young bucket was found split.
    pub(super) fn saw_young(&self, split: bool) {
        let version = self.version();
        let (of, left) = self.speculation.get();
        let left = if of == version { left } else { SPECULATION };
        self.speculation.set((version, if split { left.saturating_sub(1) } else { SPECULATION }));
    }

    /// READs the root now, for an operation that is pinned at `epoch`; returns whether there is a newer version.
    pub(super) async fn learn_version(&self, span: &Span, epoch: u64) -> Result<bool, IndexError> {
        let before = self.geometry().version;
        self.root.read_root(span, epoch).await?;
        Ok(self.geometry().version > before)
    }

    /// Pins a step of a walk, which goes on with what an earlier step has read: [`IndexError::Dropped`] if the index has
    /// been dropped.
    pub(super) async fn pin_step<'s>(&self, session: &'s Session, kind: OpKind) -> Result<Pin<'s>, IndexError> {
        let pin = session.pin(session.span(kind))?;
        if !self.is_checked(pin.epoch()) {
            self.learn_version(pin.span(), pin.epoch()).await?;
        }
        Ok(pin)
    }

    /// May the epoch advance soon? Not if an insert has already waited for that in vain.
    pub(super) fn may_await_epoch(&self, session: &Session) -> bool {
        self.stuck.get() != Some(session.client().epoch())
    }

    /// Waits until the epoch advances by one, for an insert that holds no pin and has taken `took` so far. If another
    /// operation keeps the epoch from advancing, this call ends after some time, and no later one waits for this epoch.
    pub(super) async fn await_epoch(&self, session: &Session, took: Duration) -> Result<(), IndexError> {
        mark!("put: waits for the epoch");
        let (before, began) = (session.client().epoch(), session.endpoint().now());
        let patience = EPOCH_WAIT.max(took * EPOCH_WAIT_TIMES).min(session.pool().lease() / 8);
        let (mut pause, mut checks) = (Duration::from_micros(1), 0);
        while checks < EPOCH_CHECKS || session.endpoint().now().saturating_sub(began) < patience {
            checks += 1;
            session.maintain().await?;
            if session.client().epoch() > before {
                return Ok(());
            }
            session.endpoint().sleep(pause).await;
            pause = (pause * 2).min(EPOCH_WAIT / 4);
        }
        self.stuck.set(Some(before));
        Ok(())
    }

    /// Does every operation in flight know the latest resize that has renewed the sids? The next renewal waits for
    /// that, so no operation meets two renewals that it does not know of. To be called after a synchronization, whose
    /// READ may show the new version and an older stamp (N2). This READ cannot, because the stamp is written ahead of
    /// the version (G4).
    async fn renewal_is_known(&self, span: &Span, epoch: u64) -> Result<bool, IndexError> {
        let stamp =
            span.read(self.root.root().add(ROOT_RENEWED), 8).await?.words().first().copied().unwrap_or_default();
        Ok(stamp == 0 || epoch >= stamp.saturating_add(2))
    }

    /// Adds a segment as large as all others together, unless another client is doing that. A pool without room for it
    /// is no error: the table goes on with its overflow levels, and tries again later. `index` is the uid that goes
    /// into the intent.
    pub async fn grow(&self, pin: &Pin<'_>, index: u64) -> Result<(), IndexError> {
        let (session, span, epoch) = (pin.session(), pin.span(), pin.epoch());
        self.root.read_root(span, epoch).await?;
        if !self.crowded() {
            return Ok(());
        }
        let geometry = self.geometry();
        let (version, state) = (geometry.version, geometry.state);
        if state.resizer().is_some() {
            return self.root.check_resizer(pin, index, state).await.map(drop);
        }
        let renews = version % ROUND == ROUND - 1;
        if renews && !self.renewal_is_known(span, epoch).await? {
            mark!("grow: waits until the latest renewal is known by all");
            session.want_epoch(8);
            self.root.postpone_growth(64);
            return Ok(());
        }
        if version as usize + 2 > MAX_SEGMENTS || geometry.initial_bits() + version + 1 > MAX_BUCKET_BITS {
            return Ok(());
        }
        let resize = Resize {
            what: [intents::GROW, version, 0, 0],
            state,
            bytes: Geometry::segment_buckets(geometry.initial_bits(), version + 1) * BYTES_PER_BUCKET,
            required: false,
        };
        let root = self.root.root();
        let grown = self.root.grow_root(pin, index, resize, |batch, segment| {
            batch.write_words(root.add(ROOT_SEGMENTS + (version + 1) * 8), &[segment.to_bits()]);
            if renews {
                batch.write_words(root.add(ROOT_RENEWED), &[tag(epoch)]);
            }
            state.with_version(version + 1, epoch)
        });
        if grown.await? {
            self.root.read_root(span, epoch).await?;
        }
        Ok(())
    }
}
