//! Planted faults of the ordered indexes, which the tests must detect.

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A lookup takes a leaf as it was read, whatever its checksum is (W2).
    TornRead,
    /// A lookup takes the leaf that its parent names, although the key lies beyond the leaf's high key (B1).
    NoMoveRight,
    /// A scan goes on at the parent's next separator, not at the high key of the last leaf (B1).
    ScanSkipsSplit,
    /// A merge READs the right node without making it dead (B2).
    MergeWithoutFreeze,
    /// A node is retired while its left sibling and its parent still point to it (B4).
    RetireEarly,
    /// A separator is added although its child may be dead.
    AddDead,
    /// An inner node is changed as it was READ before its lock was taken, not as it is under the lock (B2).
    OldParent,
    /// A writer changes the leaf that its parent names, whatever the leaf's range is (B1).
    NoRangeCheck,
    /// A merge leaves the right leaf's entries as they are (CHIME, S2).
    NoRetire,
    /// A new node can be locked before it is linked (B2).
    FreeBeforeLinked,
    /// A split links the new node before that is written (W1).
    CommitFirst,
    /// A lock is handed over with the leaf as its holder has found it, not as the holder has left it (H4).
    HandOverOld,
    /// An operation that began after an index was dropped does not look for that (DEX, D8).
    DropUnseen,
    /// An owner uses what it owns although its lease may have expired (DEX, D5).
    StaleLease,
    /// An owner gives a partition away while operations are in progress (DEX, D2).
    GivenWithoutDrain,
    /// An owner that has given a partition away keeps its copies of leaves (DEX, D4).
    CopiesKept,
    /// A copy of a leaf stays in the cache while the leaf is written (DEX, D4).
    CopyDuringWrite,
    /// A lookup puts a leaf into the cache without the leaf's turn (DEX, D4).
    AdmittedWithoutTurn,
    /// A write is acknowledged when it is in the cache (DEX).
    CacheOnly,
    /// A leaf that belongs to two owners is changed in place (DEX, D3).
    AcrossBound,
    /// A leaf is changed in place although its lock is held (DEX, D3).
    OverHeldLock,
    /// A memory node takes a node as it lies there, whatever its checksum is (DEX, W2).
    CallUnchecked,
    /// A memory node changes a leaf for an operation that does not have the leaf's turn (DEX, D3).
    CallWithoutTurn,
    /// A memory node changes a leaf that reaches beyond its caller's partition (DEX, D3).
    CallAcrossBound,
    /// A copy of a leaf stays in the cache although a memory node has changed the leaf (DEX, D4).
    CallKeepsCopy,
    /// A memory node looks a key up in a leaf before the WRITEs of the leaf that have completed are there (DEX, O2).
    CallOvertakesWrites,
    /// A parent is evicted from the path cache while children of it are swizzled (DEX, C3).
    ParentEvictedFirst,
    /// A node is READ although another operation READs it (DEX, C4).
    NoIoFlag,
    /// A dirty leaf is evicted without being written back (DEX, C3).
    DirtyEvicted,
    /// An owner gives a partition away before it has written its dirty leaves back (DEX, W7).
    BoundBeforeFlush,
    /// A copy that is taken out of the mapping table stays swizzled in its parent (DEX, C2).
    LeftSwizzled,
    /// A map that others may READ is free for reuse at once (DEX, D2).
    MapFreed,
    /// A replacement takes any value of its key for the expected one.
    Uncompared,
}

farindex_pool::fault_switch!();
