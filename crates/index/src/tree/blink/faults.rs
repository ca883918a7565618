//! Planted faults of the B-link tree, which the tests must detect.

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A lookup does not follow the right sibling, although its key lies beyond the node's high key.
    NoMoveRight,
    /// A scan goes on at the parent's next separator instead of the leaf's own high key.
    ScanByParent,
    /// A writer changes the node as it read it before it took the lock.
    StaleWrite,
}

farindex_pool::fault_switch!();
