//! The total order of events.
//!
//! Invariants:
//!
//! 1. every event has a position of its own; positions follow the stamps, and at equal stamps invocations come before
//!    responses (see [`crate::history`]);
//! 2. so `responded(a) < invoked(b)` holds if and only if `a` precedes `b` in real time.

use crate::model::Entry;

/// The positions of the events of a list of entries.
pub(crate) struct Positions {
    invoked: Vec<u32>,
    responded: Vec<Option<u32>>,
}

impl Positions {
    /// Orders the events of the entries.
    pub(crate) fn of<O>(entries: &[Entry<O>]) -> Self {
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(entries.len() * 2);
        for (index, entry) in entries.iter().enumerate() {
            events.push((entry.invoked, false, index));
            if let Some(at) = entry.responded {
                events.push((at, true, index));
            }
        }
        events.sort_unstable();
        let mut positions = Self { invoked: vec![0; entries.len()], responded: vec![None; entries.len()] };
        for (position, (_, is_response, index)) in events.into_iter().enumerate() {
            let position = position as u32;
            if is_response {
                positions.responded[index] = Some(position);
            } else {
                positions.invoked[index] = position;
            }
        }
        positions
    }

    /// The position of an entry's invocation.
    pub(crate) fn invoked(&self, entry: usize) -> u32 {
        self.invoked[entry]
    }

    /// The position of an entry's response; `None` if it is pending.
    pub(crate) fn responded(&self, entry: usize) -> Option<u32> {
        self.responded[entry]
    }
}
