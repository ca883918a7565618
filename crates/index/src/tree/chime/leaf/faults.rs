//! Planted faults of the hopscotch leaf, which the tests must detect.

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A reader does not compare the entries with the home's hop bitmap and digest.
    NoHopComparison,
    /// A reader compares the entries with the home's hop bitmap, but not with its digest, as published.
    NoDigest,
    /// A check has four bits, like the versions as published: one change in 16 is not seen.
    FourBitVersions,
    /// An insert stops looking for the key at the first vacancy, as in the published code.
    FirstVacancy,
    /// An insert publishes its entry before the home's bitmap covers the key (H3).
    HomeLast,
    /// A recovery leaves the hints as they are.
    StaleVacancy,
}

farindex_pool::fault_switch!();
