//! Planted faults of the indexes, which the tests must detect: as in the pool ([`farindex_pool::faults`]).

/// A fault: one broken rule of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SHARD: the split of a bucket writes the whole bucket back as it was read, over CASes that came in between.
    WholeBucket,
    /// SHARD: the lock of a bucket that was moved is released by a plain WRITE (N6).
    PlainUnlock,
    /// SHARD: a slot points to its block before the block is written.
    EarlyPointer,
    /// SHARD: an operation does not wait for the WRITE of a block before a slot points to it (N1, N5).
    UnawaitedBlock,
    /// SHARD: a block that was replaced or removed is reused at once, while readers may still use it.
    NoGrace,
    /// RACE: a split publishes the new segment in the directory and in headers before the segment is written.
    EarlySegment,
    /// RACE: an insert does not check whether its segment is being split.
    IntoLocked,
    /// RACE: a lookup takes the headers that were READ with the slots as proof of an absence.
    HeaderProves,
    /// A block's checksum is not checked.
    NoChecksum,
    /// SHARD: a bucket's version is one bit, as published, and slots have none: two resizes look like none.
    OneBitVersion,
    /// SHARD: a split treats any barrier as its own, even behind a slot that an insert may still take.
    AnyBarrier,
    /// SHARD: only a frozen slot with the key's own fingerprint counts as evidence that a READ has overlapped a split.
    FrozenOfOthers,
    /// SepHash: an append does not wait until the slot before has landed, and the pin ends before its own slot has
    /// landed (N5).
    LateFp2,
    /// SepHash: the directory names a segment before it is written.
    EarlyDirectory,
    /// SepHash: a lookup prefers the entry in the MainSegment.
    MainFirst,
    /// SepHash: an update changes the entry in the MainSegment, even while the segment is merged.
    UpdateInMain,
    /// Linear: a removal empties its slot, although lookups of other keys must pass it.
    LinearEmptied,
    /// Linear: a record behind its head is used without a check of the tags of its words.
    LinearTorn,
    /// Linear: a region is moved without sealing its empty slots, so a client that does not know the next table finds
    /// no sign of it.
    LinearUnsealed,
    /// Cuckoo: a displacement removes the entry from its old slot before it writes the new one.
    CuckooEarlyClear,
    /// Cuckoo: a record behind its head is used without a check of the tags of its words.
    CuckooTorn,
    /// Cuckoo: slots that show a newer table than the known one are ignored.
    CuckooUnseen,
    /// Cuckoo: the latest entry of a key is changed although the earlier one, from which it was copied, still exists.
    CuckooCopyChanged,
    /// Cuckoo: an insert takes no lock.
    CuckooUnlocked,
}

farindex_pool::fault_switch!();
