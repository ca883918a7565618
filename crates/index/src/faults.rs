//! Planted faults of the indexes, which the checkers must detect: as in the pool ([`farindex_pool::faults`]).

/// A rule that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SHARD: a split WRITEs the whole bucket back as it was READ, over CASes that took effect in between.
    WholeBucket,
    /// SHARD: the lock of a bucket that was moved is released by a plain WRITE (N6).
    PlainUnlock,
    /// SHARD: a slot points to its block before the block is written.
    EarlyPointer,
    /// SHARD: a slot points to a block before the WRITE of the block has completed (N1, N5).
    UnawaitedBlock,
    /// SHARD: a block that was replaced or removed is reused at once, though other clients may still read it.
    NoGrace,
    /// RACE: the directory and the headers of a segment that is split name the new segment before that is written.
    EarlySegment,
    /// RACE: an insert does not check whether its segment is being split.
    IntoLocked,
    /// RACE: a lookup takes the headers that came with the slots as proof that a key is absent.
    HeaderProves,
    /// A block's checksum is not verified.
    NoChecksum,
    /// SHARD: a bucket's version is one bit, as published, and slots have none: two resizes look like none.
    OneBitVersion,
    /// SHARD: a split treats any barrier as its own, even one behind a slot that an insert may still take.
    AnyBarrier,
    /// SHARD: only a frozen slot with the key's own fingerprint shows that a READ has overlapped a split.
    FrozenOfOthers,
    /// SepHash: the next slot is taken, or the pin ends, before the WRITE of a slot has completed (N5).
    LateFp2,
    /// SepHash: the directory names a segment before that is written.
    EarlyDirectory,
    /// SepHash: a lookup prefers an entry in the MainSegment.
    MainFirst,
    /// SepHash: an update changes the entry in the MainSegment, though another client may merge it meanwhile.
    UpdateInMain,
    /// Linear: a removal empties its slot, though lookups of other keys must continue behind it.
    LinearEmptied,
    /// Linear: a record behind its head is used without a check of the tags of its words.
    LinearTorn,
    /// Linear: a region is moved but its empty slots are not sealed, so a client that does not know the next table sees
    /// none.
    LinearUnsealed,
    /// Cuckoo: a displacement clears the entry's old slot before it writes the new one.
    CuckooEarlyClear,
    /// Cuckoo: a record behind its head is used without a check of the tags of its words.
    CuckooTorn,
    /// Cuckoo: lookups ignore slots that show that a newer table exists.
    CuckooUnseen,
    /// Cuckoo: the latest entry of a key is changed although the earlier entry, from which it was copied, still exists.
    CuckooCopyChanged,
    /// Cuckoo: an insert takes no lock.
    CuckooUnlocked,
}

farindex_pool::fault_switch!();
