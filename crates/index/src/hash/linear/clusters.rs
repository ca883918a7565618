//! The longest clusters that a worker has seen (section 4.4).
//!
//! Invariants: a run of slots without an empty slot never gets one in the same generation, so a remembered run stays
//! valid, though its cluster may have grown. Runs do not overlap or touch. Clusters are a hint: only the size of READs
//! depends on them.

use std::collections::{BTreeMap, BTreeSet};

/// Runs of slots that are not empty, of one generation.
#[derive(Debug, Default)]
pub struct Clusters {
    generation: u64,
    /// First slot and number of slots.
    runs: BTreeMap<u64, u64>,
    /// The same runs by length.
    by_len: BTreeSet<(u64, u64)>,
    /// Maximum number of runs.
    most: usize,
}

/// Length in slots from which runs are remembered.
const LEAST: u64 = 4;

impl Clusters {
    /// Remembers at most `most` clusters; 0 turns tracking off.
    pub fn new(most: usize) -> Self {
        Clusters { most, ..Clusters::default() }
    }

    /// Records that a lookup went from `start` to `end`, the first empty slot.
    pub fn saw(&mut self, generation: u64, start: u64, end: u64) {
        if self.most == 0 || end < start + LEAST || generation < self.generation {
            return;
        }
        if generation > self.generation {
            *self = Clusters { generation, ..Clusters::new(self.most) };
        }
        let (mut start, mut end) = (start, end);
        // Runs that overlap or touch are one cluster.
        while let Some((&of, &len)) = self.runs.range(..=end).next_back().filter(|(of, len)| **of + **len >= start) {
            self.forget(of, len);
            start = start.min(of);
            end = end.max(of + len);
        }
        self.runs.insert(start, end - start);
        self.by_len.insert((end - start, start));
        while self.runs.len() > self.most {
            let Some(&(len, of)) = self.by_len.first() else { return };
            self.forget(of, len);
        }
    }

    fn forget(&mut self, start: u64, len: u64) {
        self.runs.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Returns the cluster that contains `start`, or else the next one: its distance from `start`, and the number of
    /// its slots from there on.
    pub fn next(&self, generation: u64, start: u64) -> Option<(u64, u64)> {
        if generation != self.generation {
            return None;
        }
        if let Some((of, len)) = self.runs.range(..=start).next_back().filter(|(of, len)| **of + **len > start) {
            return Some((0, of + len - start));
        }
        self.runs.range(start..).next().map(|(of, len)| (of - start, *len))
    }

    /// Returns the approximate bytes of local memory that it uses.
    pub fn bytes(&self) -> u64 {
        (self.runs.len() * 2 * 2 * size_of::<(u64, u64)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_keep_the_longest_runs() {
        let mut clusters = Clusters::new(2);
        clusters.saw(0, 100, 110);
        clusters.saw(0, 200, 205);
        clusters.saw(0, 300, 330);
        clusters.saw(0, 400, 402);
        assert_eq!(clusters.next(0, 0), Some((100, 10)));
        assert_eq!(clusters.next(0, 109), Some((0, 1)));
        assert_eq!(clusters.next(0, 110), Some((190, 30)), "the shortest was forgotten");
        assert_eq!(clusters.next(0, 330), None);
        clusters.saw(0, 95, 104);
        clusters.saw(0, 110, 115);
        assert_eq!(clusters.next(0, 90), Some((5, 20)), "one cluster, seen in parts");
        assert_eq!(clusters.next(1, 90), None, "another table");
        clusters.saw(1, 7, 20);
        assert_eq!((clusters.next(1, 7), clusters.next(0, 90)), (Some((0, 13)), None));
    }
}
