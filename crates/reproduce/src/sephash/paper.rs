//! The tables and figures of SepHash (X. Min et al., PVLDB 17(5), 2024), as far as their numbers are in its text.

use serde::Serialize;

/// Where the paper's numbers are from.
pub(crate) const SOURCE: &str = "X. Min et al., SepHash, PVLDB 17(5), 2024";

/// A number of the paper's next to ours.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    /// What it is.
    pub(crate) what: String,
    /// The paper's.
    pub(crate) paper: f64,
    /// Ours.
    pub(crate) ours: f64,
}

/// What a number may miss the paper's by before it has to be explained.
pub(crate) const NEAR: f64 = 0.3;

impl Comparison {
    /// Of a name.
    pub(crate) fn new(what: impl Into<String>, paper: f64, ours: f64) -> Self {
        Comparison { what: what.into(), paper, ours }
    }
    /// Within [`NEAR`] of the paper's?
    #[must_use]
    pub(crate) fn is_near(&self) -> bool {
        (self.ours / self.paper - 1.0).abs() <= NEAR
    }
    /// In one line.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        let note = if self.is_near() { "" } else { "  (off by more than 30 %)" };
        format!("{}: paper {:.2}, ours {:.2}{note}", self.what, self.paper, self.ours)
    }
}

/// A column of Table 1, at one client and at 128.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Resizes {
    /// Merges, of 100 M inserts.
    pub(crate) merges: [f64; 2],
    /// Splits.
    pub(crate) splits: [f64; 2],
    /// Share of the clients' time that they spent on them.
    pub(crate) share: [f64; 2],
    /// Attempts for each insert.
    pub(crate) attempts: [f64; 2],
}

/// Table 1: SepHash.
pub(crate) const SEPHASH_1: Resizes = Resizes {
    merges: [861_000.0, 861_000.0],
    splits: [16_400.0, 16_400.0],
    share: [0.035, 0.0101],
    attempts: [1.0, 6.05],
};
/// Table 1: RACE. Those at 128 clients were begun, and most of them in vain.
pub(crate) const RACE_1: Resizes =
    Resizes { merges: [0.0, 0.0], splits: [129_000.0, 10_500_000.0], share: [0.5079, 0.5048], attempts: [1.0, 3.82] };

/// A row of Table 2, after 100 M inserts.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Space {
    /// Depth of the directory.
    pub(crate) depth: u64,
    /// What buckets hold other than entries, in bytes for each key.
    pub(crate) bucket_meta: f64,
    /// The directory, SepHash's FPTables included.
    pub(crate) directory_meta: f64,
    /// Everything.
    pub(crate) total: f64,
    /// Entries that there is room for, for each key.
    pub(crate) slots: f64,
}

/// Table 2: SepHash.
pub(crate) const SEPHASH_2: Space =
    Space { depth: 14, bucket_meta: 2.37e6 / 1e8, directory_meta: 2.96e6 / 1e8, total: 0.85e9 / 1e8, slots: 1.01 };
/// Table 2: RACE.
pub(crate) const RACE_2: Space =
    Space { depth: 18, bucket_meta: 188.56e6 / 1e8, directory_meta: 6.0e6 / 1e8, total: 1.66e9 / 1e8, slots: 1.97 };

/// Table 3: MainSegments of so many CurSegments; MB of the naive cache and of record points.
pub(crate) const TABLE_3: [(u64, f64, f64); 4] = [(64, 9.0, 2.68), (32, 18.0, 5.36), (16, 36.0, 10.8), (8, 73.0, 22.0)];

/// Insert throughput over RACE's with 128 clients (Figure 12, section 1).
pub(crate) const OVER_RACE: f64 = 3.3;
/// Median microseconds of an insert with one client: SepHash's, RACE's (section 5.2.1).
pub(crate) const ONE_CLIENT_US: (f64, f64) = (4.3, 7.4);
/// Over RACE with nothing but inserts (Figure 14, section 5.2.3).
pub(crate) const WRITE_HEAVY: f64 = 8.0;
/// Figure 18: utilization of entries and space is above that; a MainSegment's is 1.
pub(crate) const UTILIZATION: f64 = 0.9;
/// Figure 19a: the base over RACE, the entry over the base, all over RACE.
pub(crate) const STEPS_WRITE: [f64; 3] = [1.6, 2.0, 3.3];
/// Figure 19b: FPTable over the base, the bitmap over that.
pub(crate) const STEPS_READ: [f64; 2] = [22.0, 2.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_by_more_than_thirty_percent_is_told() {
        assert!(Comparison::new("x", 2.0, 2.59).is_near() && Comparison::new("x", 2.0, 1.41).is_near());
        assert!(!Comparison::new("x", 2.0, 2.61).is_near() && !Comparison::new("x", 2.0, 1.39).is_near());
        assert!(Comparison::new("x", 2.0, 1.0).line().contains("off by more"));
        assert!(!Comparison::new("x", 2.0, f64::NAN).is_near());
    }
}
