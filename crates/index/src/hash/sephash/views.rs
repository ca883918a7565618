//! What a compute node remembers of segments: MainSegments' places, FPTables, how full CurSegments were.
//!
//! Invariants: everything here is a hint that the segment's own words confirm before it is believed; storage is bounded, and
//! its bytes are known.

use super::fptable::FpTable;
use super::layout::GROUP;
use farindex_fabric::RemotePtr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// What was seen of its CurSegment.
    pub sight: Sight,
}

/// How full a CurSegment was, and how it fills by the hands of other compute nodes.
///
/// The sliding window is read where the next slot is likely to be *now*: between two looks of one compute node, others take as
/// many slots as they are many.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// Entries that it had.
    pub count: usize,
    /// When that was.
    at: Duration,
    /// By how many the later looks of late found more than was known, in 256ths, and within how many nanoseconds.
    ahead: u64,
    during: u64,
}

/// An entry, in units of `ahead`.
const ENTRY: u64 = 256;
/// Slots of the window in front of the one that is likely to be next.
const MARGIN: usize = GROUP / 2;

impl Sight {
    /// A first look.
    pub fn new(count: usize, at: Duration) -> Self {
        Sight { count, at, ahead: 0, during: 0 }
    }

    /// The first slot of the window, of a CurSegment of `slots` slots.
    pub fn window(&self, slots: usize, now: Duration) -> usize {
        let passed = now.saturating_sub(self.at).as_nanos() as u64;
        let drift = match self.during {
            0 => 0,
            during => (self.ahead.saturating_mul(passed) / during / ENTRY) as usize,
        };
        match self.count.saturating_add(drift) {
            likely if likely < slots => self.count.max(likely.saturating_sub(MARGIN)),
            // Merged since, so probably, and begun anew. (Just full, and not merged yet, is the end of it.)
            likely => (likely % slots).saturating_sub(MARGIN),
        }
        .min(slots - 1)
    }

    /// A later look, which found so many entries more than this one. The older the looks, the less they count.
    fn then(&self, ahead: usize, later: Sight) -> Sight {
        let passed = later.at.saturating_sub(self.at).as_nanos() as u64;
        let fade = |sum: u64| sum - sum / 8;
        Sight { ahead: fade(self.ahead) + ahead as u64 * ENTRY, during: fade(self.during) + passed, ..later }
    }
}

const PARTS: usize = 16;

/// The views of one table, shared by the threads of a compute node.
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
    /// None yet, and at most `bound` bytes, of CurSegments of `slots` slots.
    pub fn new(bound: u64, slots: usize) -> Self {
        Views { parts: Default::default(), bound, slots, bytes: AtomicU64::new(0), tables: AtomicU64::new(0) }
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
    pub fn set(&self, suffix: u64, mut view: View) {
        let mut part = self.part(suffix);
        if let Some(known) = part.get(&suffix) {
            let same = (known.generation, known.main, known.len) == (view.generation, view.main, view.len);
            if known.generation > view.generation || same && known.fresh && !view.fresh {
                return;
            }
            let ahead = match view.generation - known.generation {
                0 => view.sight.count.checked_sub(known.sight.count),
                1 => (view.sight.count + self.slots).checked_sub(known.sight.count),
                _ => None,
            };
            if let Some(ahead) = ahead {
                view.sight = known.sight.then(ahead, view.sight);
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

    /// Notes how full the CurSegment of a generation was found.
    pub fn found(&self, suffix: u64, generation: u64, sight: Sight) {
        self.note(suffix, generation, sight, |known, ahead| known.then(ahead, sight));
    }
    /// Notes how full it is by what this compute node has appended itself.
    pub fn appended(&self, suffix: u64, generation: u64, sight: Sight) {
        self.note(suffix, generation, sight, |known, _| Sight { count: sight.count, at: sight.at, ..*known });
    }

    fn note(&self, suffix: u64, generation: u64, sight: Sight, becomes: impl Fn(&Sight, usize) -> Sight) {
        if let Some(view) = self.part(suffix).get_mut(&suffix)
            && view.generation == generation
            && let Some(ahead) = sight.count.checked_sub(view.sight.count)
        {
            view.sight = becomes(&view.sight, ahead);
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
        View { generation, main: RemotePtr::NULL, len: 100, table, fresh, sight: sight(3, 0) }
    }
    fn sight(count: usize, at: u64) -> Sight {
        Sight::new(count, Duration::from_micros(at))
    }
    fn window(views: &Views, at: u64) -> Option<usize> {
        views.get(5).map(|view| view.sight.window(SLOTS, Duration::from_micros(at)))
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
        views.found(5, 2, sight(9, 1));
        views.found(5, 2, sight(4, 2));
        views.appended(5, 1, sight(50, 3));
        assert_eq!(views.get(5).map(|view| view.sight.count), Some(9));
        views.forget();
        assert_eq!((views.bytes(), views.table_bytes(), views.len()), (0, 0, 0));
    }

    /// What this compute node appends is known, however fast it is; what others append is expected to go on.
    #[test]
    fn the_window_goes_ahead_as_others_do() {
        let views = Views::new(1 << 20, SLOTS);
        views.set(5, view(2, true));
        for (count, at) in [(4, 10), (5, 20), (6, 30)] {
            views.found(5, 2, sight(count - 1, at - 1));
            views.appended(5, 2, sight(count, at));
        }
        assert_eq!(window(&views, 1000), Some(6));
        // One in a microsecond, and it has been less before.
        for at in [40, 50, 60] {
            views.found(5, 2, sight(at - 24, at as u64));
        }
        assert_eq!([60, 64, 70].map(|at| window(&views, at).unwrap_or(0)), [36, 36, 38]);
        assert!((75..100).contains(&window(&views, 130).unwrap_or(0)));
        // Full by then, and merged.
        assert!(window(&views, 190).is_some_and(|first| first < 30), "{:?}", window(&views, 190));
        views.set(5, View { sight: sight(20, 157), ..view(3, false) });
        assert_eq!(window(&views, 157), Some(20));
        assert!(window(&views, 177).is_some_and(|first| (25..40).contains(&first)));
        // They have stopped.
        for at in [1000, 2000, 3000] {
            views.found(5, 3, sight(20, at));
        }
        assert_eq!(window(&views, 3010), Some(20));
        views.set(5, View { sight: sight(7, 4000), ..view(9, false) });
        assert_eq!(window(&views, 9000), Some(7), "nothing is known of it");
    }

    #[test]
    fn the_bound_holds() {
        let bound = 40 * view(0, true).bytes();
        let views = Views::new(bound, SLOTS);
        for suffix in 0..10_000 {
            views.set(suffix, view(1, true));
            assert!(views.get(suffix).is_some());
        }
        assert!(views.bytes() <= bound + PARTS as u64 * view(0, true).bytes(), "one of each part may stay");
        assert!(views.len() < 100);
    }
}
