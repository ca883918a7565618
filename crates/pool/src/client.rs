//! A client: the membership of one process (one compute node) in a pool.
//!
//! Invariants: a client holds one slot, which it took by CAS. While the client lives, it increments its heartbeat and
//! publishes how far its operations have quiesced (see [`epoch`](crate::epoch)). The slot contains the client's
//! identity on the fabric before it counts as active. The operations of a client run in its [sessions](crate::Session),
//! one for each worker thread.

mod cells;
mod heartbeat;
pub(crate) mod node_cells;
mod registration;

use crate::Pool;
use crate::epoch::OldestPin;
use crate::layout::registration;
use crate::lease::LeaseWatch;
use crate::retire_list::RetireList;
use farindex_fabric::{Endpoint, FabricError, Identity};
use node_cells::NodeCells;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Longest time for which [`Client::close`] waits until a client without heartbeats quiesces. If that client has
/// crashed and the fabric cannot tell, the wait would otherwise last a whole lease.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What else a client does with each heartbeat: see [`Client::on_tick`].
pub trait OnTick: Send + Sync {
    /// Runs behind the heartbeat, on the endpoint that has sent it. An error is dropped: the next heartbeat tries again.
    fn tick<'a>(&'a self, endpoint: &'a Endpoint) -> Pin<Box<dyn Future<Output = Result<(), FabricError>> + 'a>>;
    /// Is there nothing left that a client which closes has to wait for?
    fn is_done(&self) -> bool {
        true
    }
}

/// The membership of a process in a pool. All threads of the process share it.
pub struct Client {
    pool: Pool,
    identity: Identity,
    slot: u64,
    /// State word of the slot, as this client last wrote or READ it.
    state: AtomicU64,
    /// The pool's epoch as this client last read it.
    epoch: AtomicU64,
    heartbeat: AtomicU64,
    lost: AtomicBool,
    /// When the latest heartbeat that counts was posted, in nanoseconds of the fabric's clock.
    beat_at: AtomicU64,
    missed_leases: AtomicU64,
    /// Raised while a tick runs, until another caller finds it raised.
    ticking: AtomicBool,
    /// Raised while a tick does what was [added](Client::on_tick).
    in_tasks: AtomicBool,
    pins: Mutex<Vec<Arc<OldestPin>>>,
    /// Number of sessions opened so far.
    opened: AtomicU64,
    /// Memory that closed sessions could not free themselves.
    orphans: Mutex<RetireList>,
    /// Whose each client slot was at the time of registration.
    slots_before: Vec<u64>,
    /// Raised while an operation of this client works in the catalog.
    cataloguing: AtomicBool,
    /// How many times its operations have tried to take the catalog's lock.
    takings: AtomicU64,
    /// This client's intent cells, for each node.
    intents: Vec<NodeCells>,
    /// Heartbeats of the other clients.
    watch: Mutex<LeaseWatch>,
    /// Values that the threads share: see [`share`](Client::share).
    shares: Mutex<HashMap<(TypeId, u64), Weak<dyn Any + Send + Sync>>>,
    /// What else is to be done with each heartbeat.
    on_tick: Mutex<Vec<Weak<dyn OnTick>>>,
    /// Those of them that nobody else holds any more, and that are not done.
    lingering: Mutex<Vec<Arc<dyn OnTick>>>,
}

/// Lowers a flag when it is dropped, which also happens when a future is cancelled.
pub(crate) struct FlagGuard<'a>(&'a AtomicBool);

impl<'a> FlagGuard<'a> {
    /// Raises the flag; `None` if it is raised already.
    fn raise(flag: &'a AtomicBool) -> Option<Self> {
        // A guard that is made in vain would lower the flag of another one.
        (!flag.swap(true, Ordering::AcqRel)).then(|| FlagGuard(flag))
    }
}

impl Drop for FlagGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Client {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
    /// This client's identity on the fabric.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
    /// Number of its slot.
    pub fn slot(&self) -> u64 {
        self.slot
    }
    /// How many times the slot has been taken, this time included. Slot number and generation identify a registration.
    pub fn generation(&self) -> u64 {
        registration(self.state()) >> 8
    }
    pub(crate) fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }
    /// Whose each slot was when this client registered, its own included ([`registration`]).
    pub(crate) fn slots_at_registration(&self) -> &[u64] {
        &self.slots_before
    }
    /// The pool's epoch as this client last read it.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }
    pub(crate) fn epoch_word(&self) -> &AtomicU64 {
        &self.epoch
    }

    /// Returns whether another client has evicted this one.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
    pub(crate) fn mark_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
    /// Returns how often this live client's lease may have expired: more than a lease passed from the posting of one
    /// heartbeat to the completion of the next. The client still holds its slot unless [`is_lost`](Self::is_lost) says
    /// otherwise. Operations of other clients may have failed at its locks, or waited for the epoch.
    pub fn missed_leases(&self) -> u64 {
        self.missed_leases.load(Ordering::Relaxed)
    }

    /// Returns the value of type `T` that all sessions of this client share under `key`. `make` makes it if there is
    /// none, and it is dropped with its last holder. For caches of a compute node.
    pub fn share<T: Any + Send + Sync>(&self, key: u64, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shares = lock(&self.shares);
        let at = (TypeId::of::<T>(), key);
        let present = shares.get(&at).and_then(Weak::upgrade).and_then(|any| any.downcast::<T>().ok());
        present.unwrap_or_else(|| {
            shares.retain(|_, share| share.strong_count() > 0);
            let made = Arc::new(make());
            let any: Arc<dyn Any + Send + Sync> = made.clone();
            shares.insert(at, Arc::downgrade(&any));
            made
        })
    }

    /// Returns whether this client certainly keeps its lease: whether less than a lease has passed since it posted its
    /// latest heartbeat that counts. Then no other client has begun to evict it (`docs/protocols/pool.md`, Heartbeat). `now`
    /// is the time of the fabric's clock.
    pub fn keeps_lease(&self, now: Duration) -> bool {
        nanos(now).saturating_sub(self.beat_at.load(Ordering::Relaxed)) < nanos(self.pool.lease()) && !self.is_lost()
    }

    /// Calls `task` with each heartbeat from now on, until it is dropped.
    pub fn on_tick(&self, task: Weak<dyn OnTick>) {
        let mut tasks = lock(&self.on_tick);
        tasks.retain(|task| task.strong_count() > 0);
        tasks.push(task);
    }

    /// Keeps a task that was [added](Self::on_tick) until it is done. [`close`](Self::close) waits for it.
    pub fn linger(&self, task: Arc<dyn OnTick>) {
        lock(&self.lingering).push(task);
    }
    /// Drops the tasks that are done; returns whether others are left.
    pub(crate) fn drop_done(&self) -> bool {
        let mut lingering = lock(&self.lingering);
        // Under one lock: another thread that closes the client must not find the list empty in between.
        let (left, done): (Vec<_>, Vec<_>) = lingering.drain(..).partition(|task| !task.is_done());
        let lingers = !left.is_empty();
        *lingering = left;
        drop(lingering);
        // What is dropped may use this client.
        drop(done);
        lingers
    }

    /// Enters the catalog; `None` while another operation of this client is in it.
    pub(crate) fn enter_catalog(&self) -> Option<FlagGuard<'_>> {
        FlagGuard::raise(&self.cataloguing)
    }

    /// A number that no earlier attempt of this client to take the catalog's lock has.
    pub(crate) fn next_taking(&self) -> u64 {
        self.takings.fetch_add(1, Ordering::Relaxed)
    }

    /// Memory that closed sessions could not free.
    pub(crate) fn orphans(&self) -> MutexGuard<'_, RetireList> {
        lock(&self.orphans)
    }
    fn watch(&self) -> MutexGuard<'_, LeaseWatch> {
        lock(&self.watch)
    }

    /// Adds a session: returns the pin through which the heartbeat sees its operations.
    pub(crate) fn add_session(&self) -> Arc<OldestPin> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let oldest = Arc::new(OldestPin::default());
        let mut pins = lock(&self.pins);
        pins.retain(|pin| Arc::strong_count(pin) > 1);
        pins.push(Arc::clone(&oldest));
        oldest
    }
    /// Number of open sessions.
    pub(crate) fn sessions(&self) -> usize {
        lock(&self.pins).iter().filter(|pin| Arc::strong_count(pin) > 1 && !pin.is_closed()).count()
    }
    /// Number of sessions opened since this client registered.
    pub(crate) fn sessions_opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }
    /// Returns whether verbs of closed sessions may still land. For a client whose sessions are all closed.
    pub(crate) fn has_detached_verbs(&self) -> bool {
        self.has_cells_in_use() || self.has_pins_of_closed_sessions()
    }
    /// Returns whether verbs of closed sessions may still land, apart from those that clear intents.
    pub(crate) fn has_pins_of_closed_sessions(&self) -> bool {
        lock(&self.pins).iter().any(|pin| pin.is_closed() && pin.get().is_some())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_stays_raised_until_its_guard_is_dropped() {
        let flag = AtomicBool::new(false);
        let guard = FlagGuard::raise(&flag);
        assert!(guard.is_some());
        for _ in 0..2 {
            assert!(FlagGuard::raise(&flag).is_none());
        }
        drop(guard);
        assert!(FlagGuard::raise(&flag).is_some());
    }
}
