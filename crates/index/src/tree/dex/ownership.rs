//! What a compute node owns, as its threads share it: its copy of the partition map, its owner record, its copies of leaves,
//! and the gate that operations on owned leaves pass.
//!
//! Invariants (`docs/protocols/dex.md`): an operation uses ownership between [`Ownership::enter`] and the end of its
//! [`Inside`], and D2 lets the compute node give a partition away only while no operation is inside.

use super::leaf_cache::LeafCache;
use super::map::{Map, is_later};
use super::proposal::Proposal;
use crate::tree::faults::{Fault, planted};
use crate::tree::local_locks::LockTable;
use farindex_fabric::RemotePtr;
use farindex_pool::{Client, IntentTransfer};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// What the threads of a compute node share of an index.
pub(super) struct Ownership {
    pub(super) tag: u64,
    pub(super) anchor: RemotePtr,
    pub(super) leaves: LeafCache,
    /// Who may change a leaf (D3), and, at the anchor, who may become the owner of something.
    pub(super) turns: LockTable<()>,
    state: Mutex<State>,
    /// Operations inside, and operations that ended in the middle of a write.
    active: AtomicU64,
    /// No operation may begin: a partition is being given away.
    closed: AtomicBool,
    /// Do heartbeats answer proposals?
    answers: AtomicBool,
    /// The proposal that is being carried out, or 0.
    pub(super) answering: AtomicU64,
    /// When the last proposal was answered, in nanoseconds of the fabric's clock.
    pub(super) answered_at: AtomicU64,
    pub(super) lease: Duration,
}

struct State {
    /// The anchor's word of the latest map that this compute node has seen.
    word: u64,
    map: Arc<Map>,
    record: Option<Record>,
    pending: Option<Proposal>,
    /// Open handles.
    handles: usize,
}

/// The owner record of this compute node.
pub(super) struct Record {
    pub(super) at: RemotePtr,
    /// The intent that names its lock, which stands as long as the lock is held.
    pub(super) intent: IntentTransfer,
    /// Has any other client been able to learn of it?
    pub(super) published: bool,
}

/// The result of [`Ownership::enter`].
pub(super) enum Gate<'o> {
    /// The compute node owns the key.
    Inside(Inside<'o>),
    /// It does not.
    Foreign,
    /// It is about to give something away.
    Closed,
    /// Its lease may have expired.
    Expired,
}

/// Counts an operation as long as it exists.
struct Active<'o>(&'o Ownership);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An operation that uses ownership.
pub(super) struct Inside<'o> {
    _active: Active<'o>,
    map: Arc<Map>,
    key: Box<[u8]>,
}

impl Inside<'_> {
    /// The range of the partition that the operation's key belongs to.
    pub(super) fn range(&self) -> (&[u8], Option<&[u8]>) {
        let (partition, high) = self.map.find(&self.key);
        (&partition.low, high)
    }
    /// Has a former owner of the partition crashed?
    pub(super) fn is_unclean(&self) -> bool {
        self.map.find(&self.key).0.unclean
    }
}

impl Ownership {
    pub(super) fn new(tag: u64, anchor: RemotePtr, leaves: LeafCache, lease: Duration) -> Self {
        let state = State { word: 0, map: Arc::default(), record: None, pending: None, handles: 0 };
        Ownership {
            tag,
            anchor,
            leaves,
            turns: LockTable::default(),
            state: Mutex::new(state),
            active: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            answers: AtomicBool::new(false),
            answering: AtomicU64::new(0),
            answered_at: AtomicU64::new(0),
            lease,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation on a key, if this compute node owns it.
    pub(super) fn enter(&self, client: &Client, now: Duration, key: &[u8]) -> Gate<'_> {
        // First the count, then the gate: whoever closes the gate looks at the count afterwards, so one of the two sees the
        // other. And behind the gate the map, so that nothing of it is given away before this operation has ended.
        self.active.fetch_add(1, Ordering::SeqCst);
        let active = Active(self);
        if self.closed.load(Ordering::SeqCst) {
            return Gate::Closed;
        }
        let map = {
            let state = self.state();
            let owner = state.map.find(key).0.owner();
            match &state.record {
                Some(record) if record.at == owner => Arc::clone(&state.map),
                _ => return Gate::Foreign,
            }
        };
        if !client.keeps_lease(now) && !planted(Fault::StaleLease) {
            return Gate::Expired;
        }
        Gate::Inside(Inside { _active: active, map, key: key.into() })
    }

    /// Closes the gate; returns whether no operation is inside.
    pub(super) fn close(&self) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        self.is_drained()
    }
    pub(super) fn is_drained(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0 || planted(Fault::GivenWithoutDrain)
    }
    pub(super) fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// The latest map, with its word.
    pub(super) fn map(&self) -> (u64, Arc<Map>) {
        let state = self.state();
        (state.word, Arc::clone(&state.map))
    }
    /// Keeps a map that was read or installed, if it is later than the one that is known.
    pub(super) fn learn(&self, word: u64, map: &Arc<Map>) {
        let mut state = self.state();
        if is_later(word, state.word) {
            (state.word, state.map) = (word, Arc::clone(map));
        }
    }

    /// The address of this compute node's owner record.
    pub(super) fn record(&self) -> Option<RemotePtr> {
        self.state().record.as_ref().map(|record| record.at)
    }
    pub(super) fn set_record(&self, record: Record) {
        self.state().record = Some(record);
    }
    /// Notes that other clients may learn of the owner record.
    pub(super) fn publish_record(&self) {
        if let Some(record) = &mut self.state().record {
            record.published = true;
        }
    }

    /// Takes the proposal whose answer nobody has waited for.
    pub(super) fn take_pending(&self) -> Option<Proposal> {
        self.state().pending.take()
    }
    pub(super) fn set_pending(&self, proposal: Proposal) {
        self.state().pending = Some(proposal);
    }

    /// Counts a handle that was opened, and lets heartbeats answer proposals.
    pub(super) fn open_handle(self: &Arc<Self>, client: &Client) {
        self.state().handles += 1;
        if !self.answers.swap(true, Ordering::SeqCst) {
            let weak: Weak<Self> = Arc::downgrade(self);
            client.on_tick(weak);
        }
    }
    /// Counts a handle that was closed. With the last one nothing is owned any more, and the owner record is returned; but
    /// an operation that was cancelled in the middle of a write keeps it.
    pub(super) fn close_handle(&self) -> Option<Record> {
        let mut state = self.state();
        state.handles -= 1;
        if state.handles > 0 || self.active.load(Ordering::SeqCst) > 0 {
            return None;
        }
        self.leaves.clear();
        state.record.take()
    }
}
