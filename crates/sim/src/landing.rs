//! Asks which verbs may still land somewhere, and who has READ it: for judges of the reuse of memory.
//!
//! Invariant: looking changes nothing. A verb may land until all its pieces have taken effect, or the last moment that is scheduled
//! for its part of the batch has passed.

use crate::flight::Flight;
use crate::readers::Readers;
use crate::world::World;
use farindex_fabric::{RemotePtr, VerbKind};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The client whose coroutines no task wraps.
const HARNESS: u32 = 0;

/// A verb that changes memory, and may still take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landing {
    /// Its client.
    pub client: u32,
    /// What kind of verb it is.
    pub verb: &'static str,
    /// What it changes.
    pub at: RemotePtr,
}

impl fmt::Display for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} of client {} at {}", self.verb, self.client, self.at)
    }
}

/// What is in flight in a simulation, for those who hold no simulation.
#[derive(Clone)]
pub struct InFlight {
    pub(crate) world: Rc<RefCell<World>>,
}

impl InFlight {
    /// Virtual time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world.borrow().now)
    }
    /// Returns a verb that may still change these bytes, and was posted by this time, if there is one.
    pub fn may_change(&self, at: RemotePtr, bytes: u64, posted_by: Duration) -> Option<Landing> {
        self.world.borrow().may_change(at, bytes, posted_by.as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// From now on notes which clients READ what was written. Clients may keep copies of pointers for longer than a pin, and so
    /// READ places where an object was: then only the first object of a place and a length is judged.
    pub fn watch_readers(&self, keep_copies: bool) {
        let World { readers, nodes, .. } = &mut *self.world.borrow_mut();
        readers.get_or_insert_with(|| Readers::new(nodes.iter().map(|node| node.words.len()), keep_copies));
    }

    /// Returns a client that has READ the object at an address, other than the one whose coroutine is running.
    pub fn reader(&self, at: RemotePtr) -> Option<u32> {
        let world = self.world.borrow();
        world.readers.as_ref()?.other(world.current.unwrap_or(HARNESS), at)
    }

    /// These bytes are other objects from now on: forgets who has READ what was there before.
    pub fn forget_readers(&self, at: RemotePtr, bytes: u64) {
        if let Some(readers) = &mut self.world.borrow_mut().readers {
            readers.forget(at, bytes);
        }
    }
}

impl World {
    fn may_change(&self, at: RemotePtr, bytes: u64, posted_by: u64) -> Option<Landing> {
        let is_in_flight = |flight: &Flight| flight.events > 0 && flight.posted <= posted_by;
        let in_flight = (0..).zip(&self.flights).filter(|(_, flight)| is_in_flight(flight));
        in_flight.flat_map(|(number, flight)| self.changes(number, flight)).find(|landing| {
            let end = landing.at.offset() + 8;
            landing.at.node() == at.node() && landing.at.offset() < at.offset() + bytes && at.offset() < end
        })
    }

    /// The words that a flight may still change.
    fn changes<'w>(&'w self, number: u32, flight: &'w Flight) -> impl Iterator<Item = Landing> + 'w {
        let conn = &self.conns[flight.conn as usize];
        let stalled = self.held.iter().any(|(_, event)| event.kind.flight() == Some(number));
        let verbs = (0..).zip(flight.chain.iter().zip(&flight.plans));
        let lands = verbs.filter(move |(verb, (_, plan))| {
            let stores = self.pending.iter().any(|store| (store.flight, store.verb) == (number, *verb));
            let left = plan.landed < plan.pieces || stores;
            let lane = &flight.lanes[plan.lane as usize];
            let until = lane.end.min(lane.cut).saturating_add(lane.delay);
            let kept = lane.loss.is_none() && *verb <= lane.keep;
            left && kept && (stalled || until >= self.now) && !self.nodes[lane.node].revoked.contains(&conn.token)
        });
        lands.flat_map(move |(_, (verb, _))| {
            let (name, words) = match &verb.kind {
                VerbKind::Write(buf) => ("WRITE", buf.len() as u64 / 8),
                VerbKind::Cas { .. } | VerbKind::MaskedCas { .. } => ("CAS", 1),
                VerbKind::Faa { .. } => ("FAA", 1),
                VerbKind::Read(_) | VerbKind::Call { .. } | VerbKind::Revoke(_) => ("", 0),
            };
            (0..words).map(move |word| Landing { client: conn.client, verb: name, at: verb.ptr.add(word * 8) })
        })
    }
}
