//! What a compute node remembers of segments: MainSegments' places, FPTables, how full CurSegments were.
//!
//! Invariants: everything here is a hint that the segment's own words confirm before it is believed; storage is bounded, and
//! its bytes are known.

use super::fptable::FpTable;
use farindex_fabric::RemotePtr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A segment as it was.
#[derive(Debug, Clone)]
pub struct View {
    /// Its generation.
    pub generation: u64,
    /// Its MainSegment.
    pub main: RemotePtr,
    /// Entries of that.
    pub len: usize,
    /// Where they begin.
    pub table: Arc<FpTable>,
    /// Is the table that of this MainSegment, or a guess?
    pub fresh: bool,
    /// Entries of the CurSegment when it was looked at last: the sliding window begins there.
    pub count: usize,
}

const PARTS: usize = 16;

/// The views of one table, shared by the threads of a compute node.
pub struct Views {
    parts: [Mutex<HashMap<u64, View>>; PARTS],
    bound: u64,
    bytes: AtomicU64,
    tables: AtomicU64,
}

impl View {
    fn bytes(&self) -> u64 {
        (size_of::<(u64, View)>() + size_of::<FpTable>()) as u64 + self.table.bytes()
    }
}

impl Views {
    /// None yet, and at most `bound` bytes.
    pub fn new(bound: u64) -> Self {
        Views { parts: Default::default(), bound, bytes: AtomicU64::new(0), tables: AtomicU64::new(0) }
    }

    fn part(&self, suffix: u64) -> MutexGuard<'_, HashMap<u64, View>> {
        let i = (suffix ^ suffix >> 7) as usize % PARTS;
        self.parts[i].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of a segment.
    pub fn get(&self, suffix: u64) -> Option<View> {
        self.part(suffix).get(&suffix).cloned()
    }

    /// Notes a view, unless there is a newer one. Where there is no room, others go.
    pub fn set(&self, suffix: u64, view: View) {
        let mut part = self.part(suffix);
        if part.get(&suffix).is_some_and(|known| {
            let same = (known.generation, known.main, known.len) == (view.generation, view.main, view.len);
            known.generation > view.generation || same && known.fresh && !view.fresh
        }) {
            return;
        }
        let forget = |old: View| {
            self.bytes.fetch_sub(old.bytes(), Ordering::Relaxed);
            self.tables.fetch_sub(old.table.bytes(), Ordering::Relaxed);
        };
        let bytes = view.bytes();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tables.fetch_add(view.table.bytes(), Ordering::Relaxed);
        if let Some(old) = part.insert(suffix, view) {
            forget(old);
        }
        while self.bytes.load(Ordering::Relaxed) > self.bound && part.len() > 1 {
            let Some(other) = part.keys().copied().find(|other| *other != suffix) else { return };
            part.remove(&other).into_iter().for_each(forget);
        }
    }

    /// Notes how full the CurSegment of a generation is.
    pub fn note_count(&self, suffix: u64, generation: u64, count: usize) {
        if let Some(view) = self.part(suffix).get_mut(&suffix)
            && view.generation == generation
        {
            view.count = view.count.max(count);
        }
    }

    /// Forgets everything.
    pub fn forget(&self) {
        for part in &self.parts {
            let gone = std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
            let (bytes, tables) =
                gone.values().fold((0, 0), |(bytes, tables), view| (bytes + view.bytes(), tables + view.table.bytes()));
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.tables.fetch_sub(tables, Ordering::Relaxed);
        }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
    /// Those of FPTables alone (Table 3).
    pub fn table_bytes(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }
    /// Segments that are remembered.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
    /// None?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sephash::fptable::Points;

    fn view(generation: u64, fresh: bool) -> View {
        let table = Arc::new(FpTable::Points(Points::guess(None, 100)));
        View { generation, main: RemotePtr::NULL, len: 100, table, fresh, count: 3 }
    }

    #[test]
    fn older_views_do_not_replace_newer_ones() {
        let views = Views::new(1 << 20);
        views.set(5, view(2, true));
        views.set(5, view(1, true));
        assert_eq!(views.get(5).map(|view| view.generation), Some(2));
        views.set(5, view(2, false));
        assert!(views.get(5).is_some_and(|view| view.fresh));
        views.note_count(5, 2, 9);
        views.note_count(5, 2, 4);
        views.note_count(5, 1, 50);
        assert_eq!(views.get(5).map(|view| view.count), Some(9));
        views.forget();
        assert_eq!((views.bytes(), views.table_bytes(), views.len()), (0, 0, 0));
    }

    #[test]
    fn the_bound_holds() {
        let bound = 40 * view(0, true).bytes();
        let views = Views::new(bound);
        for suffix in 0..10_000 {
            views.set(suffix, view(1, true));
            assert!(views.get(suffix).is_some());
        }
        assert!(views.bytes() <= bound + PARTS as u64 * view(0, true).bytes(), "one of each part may stay");
        assert!(views.len() < 100);
    }
}
