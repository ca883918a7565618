//! How often a worker looks at the root of a table that all workers fill.
//!
//! Invariants: a hint; nothing but growth that comes early or late depends on it.

/// How fast the table grows, for one of this worker's operations.
///
/// The paper's `F = alpha T (R - L)` bounds what one thread adds before it looks again; a hundred threads would add a
/// hundred times as much, and overfill the table before any of them looks. So `F` is divided by the entries that all have
/// added for each operation of this worker, as far as it knows; and since it knows nothing at first, it begins by looking often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncInterval {
    /// Operations since the root was read.
    operations: u64,
    /// Entries added by all for each of them, at least one.
    growth: f64,
    /// Operations that the latest synchronization allowed.
    pub(crate) allowed: u64,
}

impl SyncInterval {
    pub(crate) const UNKNOWN: SyncInterval = SyncInterval { operations: 0, growth: 1.0, allowed: 0 };

    /// One operation more.
    pub(crate) fn counted(self) -> SyncInterval {
        SyncInterval { operations: self.operations + 1, ..self }
    }

    /// The next pace, when the root shows that `added` entries have come since it was read last, and the paper would
    /// allow this many operations.
    pub(crate) fn next(self, added: u64, frequency: f64) -> SyncInterval {
        let growth = match self.operations {
            0 => self.growth,
            // Half of what it was at least: a lull says little.
            operations => (added as f64 / operations as f64).max(self.growth / 2.0).max(1.0),
        };
        let allowed = (frequency / growth).clamp(0.0, (self.allowed * 2 + 1) as f64) as u64;
        SyncInterval { operations: 0, growth, allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_among_many_looks_as_much_more_often() {
        let mut interval = SyncInterval::UNKNOWN;
        for _ in 0..20 {
            // A hundred workers add as much as this one does.
            interval.operations = interval.allowed;
            interval = interval.next(interval.allowed * 100, 50_000.0);
        }
        assert_eq!(interval.allowed, 500);
        interval.operations = interval.allowed;
        assert_eq!(
            interval.next(interval.allowed * 100, -3.0).allowed,
            0,
            "a crowded table is looked at by every operation"
        );
        for _ in 0..20 {
            interval.operations = interval.allowed;
            interval = interval.next(interval.allowed, 50_000.0);
        }
        assert_eq!(interval.allowed, 50_000, "alone, as in the paper");
    }
}
