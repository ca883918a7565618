//! Planted faults of the indexes, which the tests must detect: as in the pool ([`farindex_pool::faults`]).

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SHARD: a split writes the whole bucket back as it was read, over CASes that came in between.
    WholeBucket,
    /// SHARD: the lock of a bucket that was moved is released by a plain WRITE (N6).
    PlainUnlock,
    /// SHARD: a slot points to its block before the block is written.
    EarlyPointer,
    /// SHARD: a slot points to a block before the WRITE of the block has completed (N1, N5).
    UnawaitedBlock,
    /// SHARD: a block that was replaced or removed is free for reuse at once, although other clients may be reading it.
    NoGrace,
    /// SHARD: an upsert of many counts as done although its CAS has failed.
    CasUnchecked,
    /// RACE: the directory and the headers of a segment that is split name the new segment before that is written.
    EarlySegment,
    /// RACE: an insert does not check whether its segment is being split.
    IntoLocked,
    /// RACE: the headers that a lookup has READ in the same batch as the slots are taken as proof of absence.
    HeaderProves,
    /// RACE: the block of an insert that has failed is reused at once, although others may have found it in a tentative slot.
    DiscardsSeen,
    /// A block's checksum is not checked.
    NoChecksum,
    /// SHARD: a bucket's version is one bit, as published, and slots have none: two resizes look like none.
    OneBitVersion,
    /// SHARD: a split accepts any barrier as its own, even behind a slot that an insert may still take.
    AnyBarrier,
    /// SHARD: only a frozen slot of the key's own fingerprint is taken as a sign that a READ has overlapped a split.
    FrozenOfOthers,
    /// SepHash: the next slot is taken, or the pin ends, before the WRITE of a slot has completed (N5).
    LateFp2,
    /// SepHash: the directory names a segment before it is written.
    EarlyDirectory,
    /// SepHash: a lookup prefers what it finds in the MainSegment.
    MainFirst,
    /// SepHash: an update changes the entry in the MainSegment, although another client may be merging it.
    UpdateInMain,
    /// Linear: a removal empties its slot, at which lookups of other keys then end.
    LinearEmptied,
    /// Linear: a record behind its head is accepted without a check of the tags of its words.
    LinearTorn,
    /// Linear: of many gets, one that sees slots of a moved region in front of an end takes its key for absent.
    LinearMovedEnd,
    /// Linear: a region is moved without sealing its empty slots, so that a client that does not know of the next table
    /// finds no entry.
    LinearUnsealed,
    /// Cuckoo: a displacement clears the entry's old slot before it writes the new one.
    CuckooEarlyClear,
    /// Cuckoo: a record behind its head is accepted without a check of the tags of its words.
    CuckooTorn,
    /// Cuckoo: slots that show a newer table than the client knows are ignored.
    CuckooUnseen,
    /// Cuckoo: the latest entry of a key is changed although an earlier one, which it was copied from, is still there.
    CuckooCopyChanged,
    /// Cuckoo: a mover WRITEs the head of a copy together with its words, and may crash when only the head is there.
    CuckooCopyAtOnce,
    /// Cuckoo: an insert takes no lock.
    CuckooUnlocked,
    /// The block of another key with the same hash is taken for that of the key.
    HashIsKey,
    /// SepHash: a walk visits only segments that the directory named when the walk began.
    WalkOnce,
    /// SepHash: a walk does not compare the generation of the CurSegMeta with that of the control word, which it reads last.
    WalkTorn,
    /// An operation that expects a value compares before its first CAS, and not again when that CAS has failed.
    ComparedOnce,
}

farindex_pool::fault_switch!();
