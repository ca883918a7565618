//! What is going to happen, in order of virtual time.
//!
//! Invariants: events of one moment happen in the order in which they were scheduled, so a run depends on nothing but
//! its seed and its clients.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// One future event. Small and `Copy`: a run holds as many as there are verbs in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// All verbs of a flight to one node take effect.
    Lane { flight: u32, lane: u32 },
    /// One verb takes effect, or a racing atomic reads its word.
    Verb { flight: u32, verb: u32 },
    /// One piece of a torn READ or WRITE.
    Piece { flight: u32, verb: u32, piece: u32 },
    /// A racing atomic stores its word.
    Store { flight: u32, verb: u32 },
    /// A flight's completion reaches its client.
    Complete { flight: u32 },
    /// Model mode: a flight's verbs to one node arrive at its NIC.
    Arrive { flight: u32, lane: u32 },
    /// An endpoint asked to be looked at.
    Wake { conn: u32 },
    /// A frozen client runs again.
    Resume { client: u32 },
}

impl What {
    /// The flight that it belongs to.
    pub(crate) fn flight(self) -> Option<u32> {
        match self {
            What::Lane { flight, .. }
            | What::Verb { flight, .. }
            | What::Piece { flight, .. }
            | What::Store { flight, .. }
            | What::Complete { flight }
            | What::Arrive { flight, .. } => Some(flight),
            What::Wake { .. } | What::Resume { .. } => None,
        }
    }
}

/// An event with its moment. The heap moves these about, so they are half a cache line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) at: u64,
    /// Its number, and in the lowest bit whether it has been put off.
    seq: u64,
    pub(crate) what: What,
}

const _: () = assert!(size_of::<Event>() == 32);

impl Event {
    /// Has it been put off once already, by its client's death?
    pub(crate) fn put_off(&self) -> bool {
        self.seq & 1 == 1
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
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// The events to come.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Event>>,
    next: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: u64, what: What) {
        self.insert(at, what, false);
    }
    pub(crate) fn put_off(&mut self, at: u64, what: What) {
        self.insert(at, what, true);
    }
    fn insert(&mut self, at: u64, what: What, put_off: bool) {
        self.next += 1;
        self.heap.push(Reverse(Event { at, seq: self.next << 1 | u64::from(put_off), what }));
    }
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(event)| event)
    }
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }
}
