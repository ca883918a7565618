//! How an index is opened.

/// Options for opening an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Operations of this process on one key share their verbs: see [`farindex_index::coalesce`].
    ///
    /// This pays for skewed workloads on a network, where a round trip costs far more than the lock table adds to each
    /// operation, and where the CASes of many threads on one key make each other fail. It is off by default: uniform
    /// workloads, and fabrics as fast as memory, only pay for it; and operations of this process then wait for each other:
    /// an operation that was started and is neither polled nor dropped holds up all others on its key.
    pub coalesce: bool,
}
