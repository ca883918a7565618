//! Planted faults of the indexes, for checkers to convict: as in the pool ([`farindex_pool::faults`]).

/// One rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SHARD: who moves a bucket writes the whole of it back as it was read, over CASes that came in between.
    WholeBucket,
    /// SHARD: the lock of a bucket that was moved is released by a plain WRITE (N6).
    PlainUnlock,
    /// SHARD: a slot points to its block before the block is written.
    EarlyPointer,
    /// SHARD: nobody waits for the WRITE of a block before a slot points to it (N1, N5).
    UnawaitedBlock,
    /// SHARD: a block that was replaced or removed is free for reuse at once, whoever may still be reading it.
    NoGrace,
    /// RACE: the directory and the headers of a segment that is split tell of the new one before that is written.
    EarlySegment,
    /// RACE: an insert does not look whether its segment is being split.
    IntoLocked,
    /// RACE: the headers that a lookup has READ along with the slots are what proves an absence.
    HeaderProves,
    /// A block's checksum is not looked at.
    NoChecksum,
    /// SHARD: a bucket's version is one bit, as published, and slots have none: two resizes look like none.
    OneBitVersion,
    /// SHARD: a split takes any barrier for its own, even behind a slot that an insert may still take.
    AnyBarrier,
    /// SHARD: only a frozen slot of the key's own fingerprint tells that a READ has overlapped a split.
    FrozenOfOthers,
    /// SepHash: nobody waits until a slot has landed before the next one is taken, or before the pin ends (N5).
    LateFp2,
    /// SepHash: the directory names a segment before it is written.
    EarlyDirectory,
    /// SepHash: a lookup prefers what it finds in the MainSegment.
    MainFirst,
    /// SepHash: an update changes the entry in the MainSegment, whoever merges that meanwhile.
    UpdateInMain,
    /// Linear: a removal empties its slot, over which lookups of other keys have to go.
    LinearEmptied,
    /// Linear: a record behind its head is believed without a look at the tags of its words.
    LinearTorn,
    /// Linear: a region is moved without its empty slots being sealed, so that who does not know of the next table sees none.
    LinearUnsealed,
    /// Cuckoo: a displacement takes the entry from where it was before it puts it where it goes.
    CuckooEarlyClear,
    /// Cuckoo: a record behind its head is believed without a look at the tags of its words.
    CuckooTorn,
    /// Cuckoo: nobody cares about slots that tell of a newer table than is known.
    CuckooUnseen,
    /// Cuckoo: the latest entry of a key is changed although an earlier one, which it was copied from, is still there.
    CuckooCopyChanged,
    /// Cuckoo: an insert takes no lock.
    CuckooUnlocked,
}

farindex_pool::fault_switch!();
