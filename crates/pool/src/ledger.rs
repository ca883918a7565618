//! A judge of the epochs, for tests: no memory is freed for reuse while an operation runs that may still read it.
//!
//! Invariants: a ledger belongs to a thread, and counts what all clients of one pool do on that thread. An object that was
//! retired is freed only when all pins that were there when it was retired have ended (E2, E3), except pins of clients that
//! were evicted: their verbs take no effect any more. The ledger knows no epochs: it compares moments. Nor is an object freed
//! while a verb is in flight that may still change it, and was posted before the object was retired. (Later ones come by copies of
//! pointers in caches: they expect a value that no other object has.) An object that is freed at once was never linked, so nobody
//! but its client has READ it. A simulator can tell.

use farindex_fabric::RemotePtr;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The pins of one session in one epoch: the moment at which the first of them began, and their number.
#[derive(Debug)]
struct Group {
    began: u64,
    count: u64,
}

#[derive(Default)]
struct Ledger {
    now: u64,
    /// By the session's pins (their address) and the epoch.
    groups: BTreeMap<(usize, u64), Group>,
    /// The client of each session, by slot and generation, until it is evicted.
    sessions: BTreeMap<usize, (u64, u64)>,
    /// Clients that were evicted. They may open further sessions until they learn of it.
    evicted: BTreeSet<(u64, u64)>,
    /// When each object was retired, by the ledger's moments and by the simulator's clock.
    retired: BTreeMap<u64, (u64, Duration)>,
    problems: Vec<String>,
    freed: u64,
    flights: Option<Box<dyn Flights>>,
}

/// Tells which verbs are in flight, and who has READ what.
pub trait Flights {
    /// Its clock.
    fn now(&self) -> Duration;
    /// Describes a verb that may still change so many bytes from an address on, and was posted by this time, if there is one.
    fn may_change(&self, at: RemotePtr, bytes: u64, posted_by: Duration) -> Option<String>;
    /// Describes a client that has READ an object of another one, if there is one.
    fn reader(&self, at: RemotePtr) -> Option<String>;
    /// An object was allocated: who has READ what was there before does not matter.
    fn forget_readers(&self, at: RemotePtr, bytes: u64);
}

impl Ledger {
    fn check_landings(&mut self, ptr: RemotePtr, bytes: u64, posted_by: Duration) {
        let landing = self.flights.as_ref().and_then(|flights| flights.may_change(ptr, bytes, posted_by));
        if let Some(verb) = landing {
            self.problems.push(format!("{ptr} is free for reuse while {verb} may still change it"));
        }
    }
}

thread_local!(static LEDGER: RefCell<Option<Ledger>> = const { RefCell::new(None) });

/// Opens a ledger for the pool that this thread's clients use from now on.
pub fn open() {
    LEDGER.set(Some(Ledger::default()));
}

/// Has the ledger ask this for each object that is freed for reuse.
pub fn ask(flights: Box<dyn Flights>) {
    with(|ledger| ledger.flights = Some(flights));
}

/// Closes the ledger; returns how many retired objects were freed, and what was wrong.
pub fn close() -> (u64, Vec<String>) {
    LEDGER.take().map(|ledger| (ledger.freed, ledger.problems)).unwrap_or_default()
}

fn with(change: impl FnOnce(&mut Ledger)) {
    LEDGER.with_borrow_mut(|ledger| {
        if let Some(ledger) = ledger {
            ledger.now += 1;
            change(ledger);
        }
    });
}

/// A client has a session with these pins.
pub(crate) fn session(client: (u64, u64), pins: usize) {
    with(|ledger| {
        match ledger.evicted.contains(&client) {
            true => ledger.sessions.remove(&pins),
            false => ledger.sessions.insert(pins, client),
        };
    });
}

/// An operation is pinned. One of a client that does not know yet that it was evicted may read what it likes: its verbs take
/// no effect.
pub(crate) fn pinned(pins: usize, epoch: u64) {
    with(|ledger| {
        let began = ledger.now;
        if !ledger.sessions.contains_key(&pins) {
            return;
        }
        ledger.groups.entry((pins, epoch)).or_insert(Group { began, count: 0 }).count += 1;
    });
}

/// A pin has ended.
pub(crate) fn unpinned(pins: usize, epoch: u64) {
    with(|ledger| {
        if let Some(group) = ledger.groups.get_mut(&(pins, epoch)) {
            group.count -= 1;
            if group.count == 0 {
                ledger.groups.remove(&(pins, epoch));
            }
        }
    });
}

/// No verb of this client takes effect any more.
pub(crate) fn evicted(client: (u64, u64)) {
    with(|ledger| {
        ledger.evicted.insert(client);
        ledger.sessions.retain(|_, of| *of != client);
        let Ledger { sessions, groups, .. } = ledger;
        groups.retain(|(pins, _), _| sessions.contains_key(pins));
    });
}

/// An object was allocated.
pub(crate) fn allocated(ptr: RemotePtr, bytes: u64) {
    with(|ledger| {
        if let Some(flights) = &ledger.flights {
            flights.forget_readers(ptr, bytes);
        }
    });
}

/// An object was retired.
pub(crate) fn retired(ptr: RemotePtr) {
    with(|ledger| {
        let now = ledger.flights.as_ref().map_or(Duration::ZERO, |flights| flights.now());
        ledger.retired.insert(ptr.to_bits(), (ledger.now, now));
    });
}

/// An object that was retired is free for reuse.
pub(crate) fn freed(ptr: RemotePtr, bytes: u64) {
    with(|ledger| {
        ledger.freed += 1;
        let Some((at, by)) = ledger.retired.remove(&ptr.to_bits()) else { return };
        ledger.check_landings(ptr, bytes, by);
        if let Some(((_, epoch), _)) = ledger.groups.iter().find(|(_, group)| group.began < at) {
            let what = format!("{ptr} is free for reuse while an operation pinned at {epoch} may still read it");
            ledger.problems.push(what);
        }
    });
}

/// An object that was never linked is free for reuse, in a session with these pins. What a client frees that was evicted, and does
/// not know it yet, it cannot use.
pub(crate) fn discarded(pins: usize, ptr: RemotePtr, bytes: u64) {
    with(|ledger| {
        ledger.check_landings(ptr, bytes, Duration::MAX);
        let reader = ledger.flights.as_ref().and_then(|flights| flights.reader(ptr));
        if let Some(reader) = reader.filter(|_| ledger.sessions.contains_key(&pins)) {
            ledger.problems.push(format!("{ptr} is free for reuse at once, and {reader} has READ it"));
        }
    });
}
