//! What a compute node owns, as its threads share it: its copy of the partition map, its owner record, its copies of nodes,
//! and the gate that operations on owned leaves pass.
//!
//! Invariants (`docs/protocols/dex.md`): an operation uses ownership between [`Ownership::enter`] and the end of its
//! [`Inside`], and D2 lets the compute node give a partition away only while no operation is inside.

use super::command_turn::Command;
use super::map::{Map, is_later, word_after};
use super::offload::Offloading;
use super::priority::Seen;
use super::proposal::{NONE, Proposal, RECORD_LEN, lock_words};
use super::write_back::{DirtyLeaves, WriteBack};
use crate::spread::Spread;
use crate::tree::faults::{Fault, planted};
use crate::tree::local_locks::LockTable;
use crate::tree::path_cache::PathCache;
use arc_swap::{ArcSwap, Guard};
use farindex_fabric::{Endpoint, OpKind, RemotePtr, Span};
use farindex_pool::{Client, IntentTransfer, Session};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// For how long a compute node keeps what it has become the owner of, if no operation uses it, from when the operation that has
/// asked for it has learned of it (D7): some round trips, so that the operation can begin; and not many, because others wait.
const KEEPS_LEAST: Duration = Duration::from_millis(1);
const KEEPS_MOST: Duration = Duration::from_millis(4);
/// For how long it keeps that until the operation learns of it: more than the longest pause between two looks of an operation.
const UNREAD_MOST: Duration = Duration::from_millis(4);
/// How often a heartbeat looks whether all operations have ended, before it leaves that to the next one.
const LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(5);
/// For how many leases an owner that is held up refuses no proposal: those that wait give up after two.
const STANDS: u32 = 3;

/// What the threads of a compute node share of an index.
pub(super) struct Ownership {
    pub(super) tag: u64,
    pub(super) anchor: RemotePtr,
    /// Copies of inner nodes, and of leaves that this compute node owns.
    pub(super) cache: Arc<PathCache>,
    pub(super) offloading: Offloading,
    /// What operations look at; changed under the mutex of `state`.
    known: ArcSwap<Known>,
    /// Who may change a leaf (D3), and, at the anchor, who may become the owner of something.
    pub(super) turns: LockTable<()>,
    state: Mutex<State>,
    /// Operations inside, and operations that ended in the middle of a write.
    active: Spread<AtomicU64>,
    /// Heartbeats that answer a proposal.
    answering: AtomicU64,
    /// No operation may begin: a partition is being given away.
    closed: AtomicBool,
    /// Do heartbeats answer proposals?
    answers: AtomicBool,
    /// The proposal that is being carried out, until its answer is at the record; or 0. A heartbeat that is dropped leaves it to the
    /// next one.
    in_answer: AtomicU64,
    /// When the last proposal was answered, in nanoseconds of the fabric's clock.
    pub(super) answered_at: AtomicU64,
    pub(super) lease: Duration,
    /// When the gate was closed for operations that have not all ended since, in nanoseconds of the fabric's clock; or 0.
    held_up: AtomicU64,
    /// The proposal that was not refused because of that, and when it was seen first.
    left_standing: Mutex<(u64, Duration)>,
    /// Until when this compute node keeps what it has become the owner of, unless an operation has used it before; in
    /// nanoseconds of the fabric's clock.
    keeps_until: AtomicU64,
    /// The proposal to another compute node that an operation waits for, or 0.
    awaited: AtomicU64,
    /// When a heartbeat has seen first that this proposal may have been accepted, in nanoseconds of the fabric's clock; or 0.
    got_at: AtomicU64,
    /// Counts words that say whose turn it is, or who has priority.
    words: AtomicU64,
    /// Leaves of which far memory does not have all.
    pub(super) dirty: DirtyLeaves,
    /// How they are written back.
    pub(super) write_back: WriteBack,
    client: Weak<Client>,
}

/// The latest map that this compute node has seen.
#[derive(Clone, Default)]
struct Known {
    /// The anchor's word of the map.
    word: u64,
    map: Arc<Map>,
    /// Address of this compute node's owner record.
    record: Option<RemotePtr>,
}

struct State {
    record: Option<Record>,
    pending: Option<Proposal>,
    /// The command that has the turn.
    command: Option<Command>,
    /// Priority, as this compute node has seen it last.
    seen: Seen,
    /// Maps that name the record and were posted, and of which this compute node does not know whether they count.
    undecided: u64,
    /// Open handles.
    handles: usize,
}

impl State {
    /// May other clients know of the owner record?
    fn is_known(&self, map: &Map) -> bool {
        let is_member = self.record.as_ref().is_some_and(|record| map.is_member(record.at));
        self.undecided > 0 || is_member
    }
}

/// The owner record of this compute node.
pub(super) struct Record {
    pub(super) at: RemotePtr,
    /// The intent that names its lock, which stands as long as the lock is held.
    pub(super) intent: IntentTransfer,
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
pub(super) struct Active<'o>(&'o AtomicU64);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An operation that uses ownership.
pub(super) struct Inside<'o> {
    _active: Active<'o>,
    known: Guard<Arc<Known>>,
    /// Number of the partition that the operation's key belongs to.
    partition: usize,
}

impl Inside<'_> {
    /// The range of the partition that the operation's key belongs to.
    pub(super) fn range(&self) -> (&[u8], Option<&[u8]>) {
        let (partition, high) = self.known.map.partition(self.partition);
        (&partition.low, high)
    }
    /// Has a former owner of the partition crashed?
    pub(super) fn is_unclean(&self) -> bool {
        self.known.map.partition(self.partition).0.unclean
    }
}

impl Ownership {
    pub(super) fn new(
        (tag, anchor): (u64, RemotePtr),
        cache: PathCache,
        client: &Arc<Client>,
        write_back: WriteBack,
    ) -> Self {
        let state =
            State { record: None, pending: None, command: None, seen: Seen::default(), undecided: 0, handles: 0 };
        Ownership {
            tag,
            anchor,
            cache: Arc::new(cache),
            offloading: Offloading::default(),
            known: ArcSwap::default(),
            turns: LockTable::default(),
            state: Mutex::new(state),
            active: Spread::default(),
            answering: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            answers: AtomicBool::new(false),
            in_answer: AtomicU64::new(NONE),
            answered_at: AtomicU64::new(0),
            lease: client.pool().lease(),
            held_up: AtomicU64::new(0),
            left_standing: Mutex::default(),
            keeps_until: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            got_at: AtomicU64::new(0),
            words: AtomicU64::new(0),
            dirty: DirtyLeaves::default(),
            write_back,
            client: Arc::downgrade(client),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation on a key, if this compute node owns it.
    pub(super) fn enter(&self, client: &Client, now: Duration, key: &[u8]) -> Gate<'_> {
        // First the count, then the gate: the heartbeat that closes the gate looks at the count afterwards, so one of the two
        // sees the other. And behind the gate the map, so that nothing of it is given away before this operation has ended.
        let active = self.begin_closed();
        if self.closed.load(Ordering::SeqCst) {
            return Gate::Closed;
        }
        let known = self.known.load();
        let partition = known.map.number_of(key);
        if known.record.is_none_or(|record| record != known.map.partition(partition).0.owner()) {
            return Gate::Foreign;
        }
        if !client.keeps_lease(now) && !planted(Fault::StaleLease) {
            return Gate::Expired;
        }
        Gate::Inside(Inside { _active: active, known, partition })
    }

    /// Counts an operation that uses ownership of no key in particular; `None` while something is being given away.
    pub(super) fn begin(&self) -> Option<Active<'_>> {
        let active = self.begin_closed();
        (!self.closed.load(Ordering::SeqCst)).then_some(active)
    }
    /// Counts an operation that has closed the gate itself.
    pub(super) fn begin_closed(&self) -> Active<'_> {
        let own = self.active.own();
        own.fetch_add(1, Ordering::SeqCst);
        Active(own)
    }
    pub(super) fn client(&self) -> Option<Arc<Client>> {
        self.client.upgrade()
    }
    /// Is no handle open?
    pub(super) fn is_closed(&self) -> bool {
        self.state().handles == 0
    }

    /// Closes the gate; returns whether no operation is inside.
    pub(super) fn close(&self) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        self.is_drained()
    }
    fn is_drained(&self) -> bool {
        self.none_active() || planted(Fault::GivenWithoutDrain)
    }
    /// Closes the gate, and waits for a short time until no operation is inside. Returns whether none is.
    pub(super) async fn drain(&self, endpoint: &Endpoint) -> bool {
        let mut drained = self.close();
        for _ in 0..LOOKS {
            if drained {
                break;
            }
            endpoint.sleep(PAUSE).await;
            drained = self.is_drained();
        }
        let since = self.held_up.load(Ordering::Relaxed);
        let now = endpoint.now().as_nanos().max(1) as u64;
        let since = match (drained, since) {
            (true, _) => 0,
            (false, 0) => now,
            (false, since) => since,
        };
        self.held_up.store(since, Ordering::Relaxed);
        drained
    }
    /// Is a proposal that follows another map not to be refused yet? This compute node can give nothing away, because operations
    /// have not ended for a lease, and those that wait for an answer have not found this word for as long as they need to know
    /// that. Later it is refused, so that its proposer can ask others.
    pub(super) fn leaves_standing(&self, proposal: u64, now: Duration) -> bool {
        let since = self.held_up.load(Ordering::Relaxed);
        if since == 0 || now.saturating_sub(Duration::from_nanos(since)) <= self.lease {
            return false;
        }
        let mut standing = self.left_standing.lock().unwrap_or_else(PoisonError::into_inner);
        if standing.0 != proposal {
            *standing = (proposal, now);
        }
        now.saturating_sub(standing.1) <= self.lease * STANDS
    }
    /// Is no operation inside, of those that begin behind an open gate? One that begins meanwhile finds the gate closed, or is
    /// counted in a part that is looked at later: the thread that closes the gate looks at all parts afterwards.
    fn none_active(&self) -> bool {
        self.active.all().all(|active| active.load(Ordering::SeqCst) == 0)
    }
    pub(super) fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// The latest map, with its word.
    pub(super) fn map(&self) -> (u64, Arc<Map>) {
        let known = self.known.load();
        (known.word, Arc::clone(&known.map))
    }
    /// Keeps a map that was read or installed, if it is later than the one that is known.
    pub(super) fn learn(&self, word: u64, map: &Arc<Map>) {
        let _state = self.state();
        let known = self.known.load();
        if is_later(word, known.word) {
            self.known.store(Arc::new(Known { word, map: Arc::clone(map), record: known.record }));
        }
    }

    /// Notes that this compute node has become the owner of something, and that the operation which has asked for it knows. It is
    /// kept until an operation has used it, so that compute nodes which want the same keys do not only pass them on; but not
    /// for long, because the operation may be gone (D7).
    pub(super) fn acquired(&self, now: Duration) {
        let until = now + (self.lease / 256).clamp(KEEPS_LEAST, KEEPS_MOST);
        self.keeps_until.store(until.as_nanos() as u64, Ordering::Relaxed);
    }
    /// Notes the proposal to another compute node that an operation waits for; 0 if none does.
    pub(super) fn set_awaited(&self, word: u64) {
        self.got_at.store(0, Ordering::SeqCst);
        self.awaited.store(word, Ordering::SeqCst);
    }
    /// Does an operation wait for a proposal that may have been accepted, by the map that counts? Then it is about to learn of
    /// what it has got, and this compute node keeps that, but not for ever, because the operation may be gone.
    pub(super) fn is_unread(&self, now: Duration, counts: u64) -> bool {
        let awaited = self.awaited.load(Ordering::SeqCst);
        if awaited == 0 || counts != awaited && !is_later(counts, awaited) {
            return false;
        }
        // Another operation may begin to wait here: then it has less time.
        let now = now.as_nanos() as u64;
        let got_at = self.got_at.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|at| at);
        let got_at = if got_at == 0 { now } else { got_at };
        now.saturating_sub(got_at) < (self.lease / 2).min(UNREAD_MOST).as_nanos() as u64
    }
    /// Notes that an operation has used what this compute node owns, unless one has yet to learn of what it has got.
    pub(super) fn used(&self) {
        if self.awaited.load(Ordering::SeqCst) == 0 {
            self.keeps_until.store(0, Ordering::Relaxed);
        }
    }
    /// Has nobody used yet what this compute node has become the owner of?
    pub(super) fn is_fresh(&self, now: Duration) -> bool {
        now < Duration::from_nanos(self.keeps_until.load(Ordering::Relaxed))
    }

    /// The address of this compute node's owner record.
    pub(super) fn record(&self) -> Option<RemotePtr> {
        self.known.load().record
    }
    pub(super) fn set_record(&self, record: Record) {
        let mut state = self.state();
        self.note_record(Some(record.at));
        state.record = Some(record);
    }
    /// The caller has the state's mutex.
    fn note_record(&self, record: Option<RemotePtr>) {
        self.known.store(Arc::new(Known { record, ..Known::clone(&self.known.load()) }));
    }
    /// Notes that a map which names the owner record is about to be posted. Other clients may learn of the record from now on.
    pub(super) fn publish(&self) {
        self.state().undecided += 1;
    }
    /// Notes that such a map counts, and that this compute node has learned of it or of a later one; or that it never will.
    /// An operation that was dropped, or whose verb has failed, does not know, so it does not say this (D9).
    pub(super) fn decided(&self) {
        self.state().undecided -= 1;
    }

    /// Takes the proposal whose answer nobody has waited for.
    pub(super) fn take_pending(&self) -> Option<Proposal> {
        self.state().pending.take()
    }
    pub(super) fn is_pending(&self) -> bool {
        self.state().pending.is_some()
    }
    pub(super) fn set_pending(&self, proposal: Proposal) {
        self.state().pending = Some(proposal);
    }

    /// Sets the command that has the turn.
    pub(super) fn set_command(&self, command: Option<Command>) {
        self.state().command = command;
    }
    /// Asks the command that has the turn; false if there is none.
    pub(super) fn command(&self, ask: impl FnOnce(&Command) -> bool) -> bool {
        self.state().command.as_ref().is_some_and(ask)
    }
    /// A word for the anchor that names the owner record, and whose upper bits no other recent one of this compute node has.
    pub(super) fn next_word(&self, me: RemotePtr) -> u64 {
        word_after(self.words.fetch_add(1, Ordering::Relaxed) << 48, me)
    }
    /// What is known of priority.
    pub(super) fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.state().seen)
    }

    /// Counts a handle that was opened, and lets heartbeats answer proposals.
    pub(super) fn open_handle(self: &Arc<Self>, client: &Client) {
        self.state().handles += 1;
        if !self.answers.swap(true, Ordering::SeqCst) {
            let weak: Weak<Self> = Arc::downgrade(self);
            client.on_tick(weak);
        }
    }
    /// Counts a handle that was closed. With the last one nothing is owned any more, and the owner record is returned, with
    /// whether another client knows of it; but an operation that was cancelled in the middle of a write keeps it, and a proposal
    /// that is being answered keeps it until the answer is there.
    pub(super) fn close_handle(&self) -> Option<(Record, bool)> {
        self.state().handles -= 1;
        self.take_unused()
    }
    /// Takes the owner record if no other client knows of it. The caller has the turn to acquire.
    pub(super) fn take_unknown(&self) -> Option<Record> {
        let mut state = self.state();
        if state.is_known(&self.known.load().map) {
            return None;
        }
        self.note_record(None);
        state.record.take()
    }
    /// Takes the owner record if no handle is open, nothing is in progress, and far memory has all of every leaf.
    fn take_unused(&self) -> Option<(Record, bool)> {
        let mut state = self.state();
        if state.handles > 0 || !self.dirty.is_empty() || !self.none_active() || self.is_answering() {
            return None;
        }
        self.cache.retain_leaves(|_, _| false);
        let known = state.is_known(&self.known.load().map);
        self.note_record(None);
        state.record.take().map(|record| (record, known))
    }
    /// Notes that a proposal is being carried out. Until its answer is at the record, the record's lock is held: its proposer
    /// takes a proposal at a free record for one that nobody will carry out (D12).
    pub(super) fn begin_answer(&self, proposal: u64) {
        self.in_answer.store(proposal, Ordering::SeqCst);
    }
    pub(super) fn end_answer(&self) {
        self.in_answer.store(NONE, Ordering::SeqCst);
    }
    /// Has an earlier heartbeat begun to carry this proposal out, and left it?
    pub(super) fn is_in_answer(&self, proposal: u64) -> bool {
        self.in_answer.load(Ordering::SeqCst) == proposal
    }
    fn is_answering(&self) -> bool {
        self.answering.load(Ordering::SeqCst) > 0 || self.in_answer.load(Ordering::SeqCst) != NONE
    }
    /// Is there nothing that heartbeats have to end after the last handle was closed? An operation that was cancelled in the middle
    /// of a write they cannot end, nor what waits for it.
    pub(super) fn is_ended(&self) -> bool {
        self.dirty.is_empty() && !(self.is_answering() && self.none_active()) || !self.is_closed()
    }
    /// Gives up an owner record; waits for nothing. One that no other client knows of is freed.
    pub(super) fn give_up_record(&self, session: &Session, span: &Span, (record, known): (Record, bool)) {
        let (free, held) = lock_words(self.tag, record.at);
        let mut batch = span.batch();
        if known {
            batch.cas(record.at, held, free);
        } else {
            session.discard(record.at, RECORD_LEN);
        }
        record.intent.clear_detached(batch);
    }
    /// Gives up the owner record, if the last handle was closed and far memory has all of every leaf. For heartbeats.
    pub(super) fn give_up_unused(&self, endpoint: &Endpoint) {
        let Some(client) = self.client() else { return };
        if let Some(unused) = self.take_unused() {
            let span = endpoint.span(OpKind::Maintenance);
            self.give_up_record(&client.session(endpoint.clone()), &span, unused);
        }
    }
    /// Keeps the owner record as long as a proposal is answered; `None` if there is no record that others may know of.
    pub(super) fn answering(&self, endpoint: &Endpoint) -> Option<Answering<'_>> {
        let state = self.state();
        let record = state.record.as_ref().filter(|_| state.is_known(&self.known.load().map))?.at;
        self.answering.fetch_add(1, Ordering::SeqCst);
        Some(Answering { own: self, record, endpoint: endpoint.clone() })
    }
}

/// Keeps the owner record as long as a proposal is answered. If the last handle was closed meanwhile, gives it up afterwards.
pub(super) struct Answering<'o> {
    own: &'o Ownership,
    pub(super) record: RemotePtr,
    endpoint: Endpoint,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.own.answering.fetch_sub(1, Ordering::SeqCst);
        self.own.give_up_unused(&self.endpoint);
    }
}
