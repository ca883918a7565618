//! How often a worker READs the root of a table that all workers fill.
//!
//! Invariant: this is a hint. Only whether the table grows early or late depends on it.

/// The operations between two READs of the root by one worker, and what they are computed from.
///
/// The paper's `F = alpha T (R - L)` bounds what one thread adds before it READs the root again. A hundred threads
/// would add a hundred times as much, and overfill the table before any of them READs the root. So `F` is divided by
/// the number of entries that all workers have added for each operation of this worker, as far as it knows. A new
/// worker knows nothing, so it begins with short intervals.
#[derive(Debug, Clone, Copy)]
pub(super) struct SyncInterval {
    /// Operations since the root was read.
    operations: u64,
    /// Entries that all workers have added for each of them; at least one.
    growth: f64,
    /// Operations that the latest synchronization allowed.
    pub(super) allowed: u64,
}

impl SyncInterval {
    pub(super) const UNKNOWN: SyncInterval = SyncInterval { operations: 0, growth: 1.0, allowed: 0 };

    /// Counts one operation.
    pub(super) fn counted(self) -> SyncInterval {
        SyncInterval { operations: self.operations + 1, ..self }
    }

    /// Returns the next interval, when the root shows that `added` entries have come since it was read last, and the
    /// paper's formula allows `frequency` operations.
    pub(super) fn next(self, added: u64, frequency: f64) -> SyncInterval {
        let growth = match self.operations {
            0 => self.growth,
            // At least half of what it was: a short pause of the others says little.
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
    fn interval_is_divided_by_the_growth_of_all_workers() {
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
            "a crowded table: every operation READs the root"
        );
        for _ in 0..20 {
            interval.operations = interval.allowed;
            interval = interval.next(interval.allowed, 50_000.0);
        }
        assert_eq!(interval.allowed, 50_000, "alone, as in the paper");
    }
}
