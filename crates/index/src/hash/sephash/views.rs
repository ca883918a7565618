//! Cached views of segments: addresses of MainSegments, FPTables, and the occupancy of CurSegments.
//!
//! Invariants: everything here is a hint, which the segment's own words must confirm. Storage is bounded and measured.

use super::fptable::FpTable;
use super::layout::GROUP;
use farindex_fabric::RemotePtr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A segment as it was last observed.
#[derive(Debug, Clone)]
pub struct View {
    /// Its generation.
    pub generation: u64,
    /// Its MainSegment.
    pub main: RemotePtr,
    /// Number of entries of the MainSegment.
    pub len: usize,
    /// The FPTable.
    pub table: Arc<FpTable>,
    /// Was the table built for this MainSegment? Otherwise it is a guess.
    pub fresh: bool,
    /// The occupancy of its CurSegment.
    pub occupancy: Occupancy,
}

/// How full a CurSegment was, and how fast other compute nodes fill it.
///
/// The sliding window is READ where the next slot is likely to be *now*: between two observations of one compute node,
/// others take slots.
#[derive(Debug, Clone, Copy)]
pub struct Occupancy {
    /// Number of slots taken.
    pub count: usize,
    /// Time of the observation.
    at: Duration,
    /// Slots that recent observations found taken beyond what was known, in 256ths, and the nanoseconds in which that
    /// happened.
    ahead: u64,
    during: u64,
}

/// One slot, in units of `ahead`.
const ENTRY: u64 = 256;
/// Slots of the window before the one that is likely to be next.
const MARGIN: usize = GROUP / 2;

impl Occupancy {
    /// Creates a first observation.
    pub fn new(count: usize, at: Duration) -> Self {
        Occupancy { count, at, ahead: 0, during: 0 }
    }

    /// Returns the first slot of the window, in a CurSegment of `slots` slots.
    pub fn window(&self, slots: usize, now: Duration) -> usize {
        let passed = now.saturating_sub(self.at).as_nanos() as u64;
        let drift = match self.during {
            0 => 0,
            during => (self.ahead.saturating_mul(passed) / during / ENTRY) as usize,
        };
        match self.count.saturating_add(drift) {
            likely if likely < slots => self.count.max(likely.saturating_sub(MARGIN)),
            // The segment has probably been merged since, and is filled again. If it is full and not merged yet, the
            // window is its end.
            likely => (likely % slots).saturating_sub(MARGIN),
        }
        .min(slots - 1)
    }

    /// Combines a later observation, which found `ahead` more slots taken. Older observations have less weight.
    fn combined_with(&self, ahead: usize, later: Occupancy) -> Occupancy {
        let passed = later.at.saturating_sub(self.at).as_nanos() as u64;
        let fade = |sum: u64| sum - sum / 8;
        Occupancy { ahead: fade(self.ahead) + ahead as u64 * ENTRY, during: fade(self.during) + passed, ..later }
    }
}

const PARTS: usize = 16;

/// The views of one table, which the threads of a compute node share.
pub struct Views {
    parts: [Mutex<HashMap<u64, View>>; PARTS],
    bound: u64,
    /// Slots of a CurSegment.
    slots: usize,
    bytes: AtomicU64,
    tables: AtomicU64,
}

impl View {
    fn bytes(&self) -> u64 {
        (size_of::<(u64, View)>() + size_of::<FpTable>()) as u64 + self.table.bytes()
    }
}

impl Views {
    /// Creates an empty cache of at most `bound` bytes, for CurSegments of `slots` slots.
    pub fn new(bound: u64, slots: usize) -> Self {
        Views { parts: Default::default(), bound, slots, bytes: AtomicU64::new(0), tables: AtomicU64::new(0) }
    }

    fn part(&self, suffix: u64) -> MutexGuard<'_, HashMap<u64, View>> {
        let i = (suffix ^ suffix >> 7) as usize % PARTS;
        self.parts[i].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the view of a segment.
    pub fn get(&self, suffix: u64) -> Option<View> {
        self.part(suffix).get(&suffix).cloned()
    }

    /// Stores a view, unless there is a newer one; evicts other views beyond the bound.
    pub fn set(&self, suffix: u64, mut view: View) {
        let mut part = self.part(suffix);
        if let Some(known) = part.get(&suffix) {
            let same = (known.generation, known.main, known.len) == (view.generation, view.main, view.len);
            if known.generation > view.generation || same && known.fresh && !view.fresh {
                return;
            }
            let ahead = match view.generation - known.generation {
                0 => view.occupancy.count.checked_sub(known.occupancy.count),
                1 => (view.occupancy.count + self.slots).checked_sub(known.occupancy.count),
                _ => None,
            };
            if let Some(ahead) = ahead {
                view.occupancy = known.occupancy.combined_with(ahead, view.occupancy);
            }
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

    /// Stores the observed occupancy of a CurSegment of this generation.
    pub fn found(&self, suffix: u64, generation: u64, occupancy: Occupancy) {
        self.note(suffix, generation, occupancy, |known, ahead| known.combined_with(ahead, occupancy));
    }
    /// Stores the occupancy after an append of this compute node.
    pub fn appended(&self, suffix: u64, generation: u64, occupancy: Occupancy) {
        self.note(suffix, generation, occupancy, |known, _| Occupancy {
            count: occupancy.count,
            at: occupancy.at,
            ..*known
        });
    }

    /// Stores the occupancy that an operation has found, although it is less than what is known: a slot that this compute
    /// node has taken may never land.
    pub fn overtaken(&self, suffix: u64, generation: u64, occupancy: Occupancy) {
        if let Some(view) = self.part(suffix).get_mut(&suffix)
            && view.generation == generation
        {
            view.occupancy = occupancy;
        }
    }

    fn note(
        &self,
        suffix: u64,
        generation: u64,
        occupancy: Occupancy,
        becomes: impl Fn(&Occupancy, usize) -> Occupancy,
    ) {
        if let Some(view) = self.part(suffix).get_mut(&suffix)
            && view.generation == generation
            && let Some(ahead) = occupancy.count.checked_sub(view.occupancy.count)
        {
            view.occupancy = becomes(&view.occupancy, ahead);
        }
    }

    /// Drops all views.
    pub fn forget(&self) {
        for part in &self.parts {
            let gone = std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
            let (bytes, tables) =
                gone.values().fold((0, 0), |(bytes, tables), view| (bytes + view.bytes(), tables + view.table.bytes()));
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.tables.fetch_sub(tables, Ordering::Relaxed);
        }
    }

    /// Bytes of the views.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
    /// Bytes of the FPTables alone (Table 3).
    pub fn table_bytes(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }
    /// Number of views.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
    /// Are there no views?
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
        View { generation, main: RemotePtr::NULL, len: 100, table, fresh, occupancy: occupancy(3, 0) }
    }
    fn occupancy(count: usize, at: u64) -> Occupancy {
        Occupancy::new(count, Duration::from_micros(at))
    }
    fn window(views: &Views, at: u64) -> Option<usize> {
        views.get(5).map(|view| view.occupancy.window(SLOTS, Duration::from_micros(at)))
    }

    const SLOTS: usize = 113;

    #[test]
    fn older_views_do_not_replace_newer_ones() {
        let views = Views::new(1 << 20, SLOTS);
        views.set(5, view(2, true));
        views.set(5, view(1, true));
        assert_eq!(views.get(5).map(|view| view.generation), Some(2));
        views.set(5, view(2, false));
        assert!(views.get(5).is_some_and(|view| view.fresh));
        views.found(5, 2, occupancy(9, 1));
        views.found(5, 2, occupancy(4, 2));
        views.appended(5, 1, occupancy(50, 3));
        assert_eq!(views.get(5).map(|view| view.occupancy.count), Some(9));
        views.forget();
        assert_eq!((views.bytes(), views.table_bytes(), views.len()), (0, 0, 0));
    }

    /// The window follows this node's own appends exactly, and extrapolates those of other nodes.
    #[test]
    fn window_advances_at_the_rate_of_other_nodes() {
        let views = Views::new(1 << 20, SLOTS);
        views.set(5, view(2, true));
        for (count, at) in [(4, 10), (5, 20), (6, 30)] {
            views.found(5, 2, occupancy(count - 1, at - 1));
            views.appended(5, 2, occupancy(count, at));
        }
        assert_eq!(window(&views, 1000), Some(6));
        // One slot in a microsecond; the rate was lower before.
        for at in [40, 50, 60] {
            views.found(5, 2, occupancy(at - 24, at as u64));
        }
        assert_eq!([60, 64, 70].map(|at| window(&views, at).unwrap_or(0)), [36, 36, 38]);
        assert!((75..100).contains(&window(&views, 130).unwrap_or(0)));
        // Full by then, and merged.
        assert!(window(&views, 190).is_some_and(|first| first < 30), "{:?}", window(&views, 190));
        views.set(5, View { occupancy: occupancy(20, 157), ..view(3, false) });
        assert_eq!(window(&views, 157), Some(20));
        assert!(window(&views, 177).is_some_and(|first| (25..40).contains(&first)));
        // The other nodes have stopped.
        for at in [1000, 2000, 3000] {
            views.found(5, 3, occupancy(20, at));
        }
        assert_eq!(window(&views, 3010), Some(20));
        views.set(5, View { occupancy: occupancy(7, 4000), ..view(9, false) });
        assert_eq!(window(&views, 9000), Some(7), "nothing is known of the generations in between");
    }

    /// A slot that this node has taken does not land: the next window has it (docs/bugs/196).
    #[test]
    fn window_goes_back_to_a_slot_that_has_not_landed() {
        let views = Views::new(1 << 20, SLOTS);
        views.set(5, View { occupancy: occupancy(40, 1), ..view(2, true) });
        views.appended(5, 2, occupancy(41, 3));
        views.found(5, 2, occupancy(40, 4));
        assert_eq!(window(&views, 20), Some(41));
        views.overtaken(5, 2, occupancy(40, 20));
        assert_eq!([21, 1000].map(|at| window(&views, at)), [Some(40); 2]);
        views.overtaken(5, 1, occupancy(3, 30));
        assert_eq!(window(&views, 30), Some(40), "of another generation");
    }

    #[test]
    fn views_stay_within_the_bound() {
        let bound = 40 * view(0, true).bytes();
        let views = Views::new(bound, SLOTS);
        for suffix in 0..10_000 {
            views.set(suffix, view(1, true));
            assert!(views.get(suffix).is_some());
        }
        assert!(views.bytes() <= bound + PARTS as u64 * view(0, true).bytes(), "one view of each part may stay");
        assert!(views.len() < 100);
    }
}
