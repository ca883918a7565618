//! Future events in order of virtual time.
//!
//! Invariant: events of one moment are carried out in the order in which they were scheduled, so that a run depends on
//! its seed and its clients alone.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What a future event does. Small and `Copy`: a run holds as many events as there are verbs in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// All verbs of a flight to one node take effect.
    Lane { flight: u32, lane: u32 },
    /// One verb takes effect, or a racing atomic reads its word.
    Verb { flight: u32, verb: u32 },
    /// One piece of a torn READ or WRITE takes effect.
    Piece { flight: u32, verb: u32, piece: u32 },
    /// A racing atomic stores its word.
    Store { flight: u32, verb: u32 },
    /// A flight's completion reaches its client.
    Complete { flight: u32 },
    /// Model mode: a flight's verbs to one node arrive at its NIC.
    Arrive { flight: u32, lane: u32 },
    /// An endpoint asked to be polled at this moment.
    Wake { conn: u32 },
    /// A frozen client runs again.
    Resume { client: u32 },
    /// The stall of this number has lasted as long as it may.
    EndStall { client: u32, stall: u32 },
}

impl EventKind {
    /// The flight that the event belongs to.
    pub(crate) fn flight(self) -> Option<u32> {
        match self {
            EventKind::Lane { flight, .. }
            | EventKind::Verb { flight, .. }
            | EventKind::Piece { flight, .. }
            | EventKind::Store { flight, .. }
            | EventKind::Complete { flight }
            | EventKind::Arrive { flight, .. } => Some(flight),
            EventKind::Wake { .. } | EventKind::Resume { .. } | EventKind::EndStall { .. } => None,
        }
    }
}

impl EventKind {
    /// Does this event of a stalled flight wait, if the verbs from `hold` on do?
    pub(crate) fn waits_for(self, hold: u32) -> bool {
        match self {
            EventKind::Verb { verb, .. } | EventKind::Piece { verb, .. } | EventKind::Store { verb, .. } => {
                verb >= hold
            }
            _ => true,
        }
    }
}

/// An event and its moment. The heap moves events, so they are half a cache line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) at: u64,
    /// The event's number, and in the lowest bit whether it has been delayed.
    seq: u64,
    pub(crate) kind: EventKind,
}

const _: () = assert!(size_of::<Event>() == 32);

impl Event {
    /// Returns whether the event has been delayed already. An event is delayed at most once.
    pub(crate) fn is_delayed(&self) -> bool {
        self.seq & 1 == 1
    }
    /// Moment and number as one integer, which the heap compares without a branch.
    fn order(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.seq)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// The future events.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Event>>,
    next: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: u64, kind: EventKind) {
        self.insert(at, kind, false);
    }
    pub(crate) fn push_delayed(&mut self, at: u64, kind: EventKind) {
        self.insert(at, kind, true);
    }
    fn insert(&mut self, at: u64, kind: EventKind, delayed: bool) {
        self.next += 1;
        self.heap.push(Reverse(Event { at, seq: self.next << 1 | u64::from(delayed), kind }));
    }
    /// Puts back an event that was taken out, at another moment.
    pub(crate) fn push_again(&mut self, at: u64, event: Event) {
        self.insert(at, event.kind, event.is_delayed());
    }
    /// Moves the events of which `which` is true by some time.
    pub(crate) fn shift(&mut self, by: u64, which: impl Fn(EventKind) -> bool) {
        let mut events = std::mem::take(&mut self.heap).into_vec();
        for Reverse(event) in events.iter_mut().filter(|Reverse(event)| which(event.kind)) {
            event.at = event.at.saturating_add(by);
        }
        self.heap = events.into();
    }
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(event)| event)
    }
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }
}
