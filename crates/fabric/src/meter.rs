//! Cost in verbs.
//!
//! Invariants: every verb is counted once, when it is posted, for the operation it serves; a *round trip* is a wait on
//! the operation's critical path, so a batch is one, and batches that were in flight together are one; counts are
//! deterministic, so tests assert them exactly.

use crate::transport::Traffic;
use std::ops::{Add, AddAssign, Sub};

/// Which kind of operation a verb serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
#[non_exhaustive]
pub enum OpKind {
    /// Point lookup.
    Get,
    /// Insert of an absent key.
    Insert,
    /// Update of a present key.
    Update,
    /// Insert or update.
    Upsert,
    /// Removal.
    Remove,
    /// Range scan.
    Scan,
    /// Heartbeats, epochs, returned blocks: work that belongs to no single operation.
    Maintenance,
    /// Everything else.
    Other,
}

impl OpKind {
    /// All of them, in order.
    pub const ALL: [OpKind; 8] = [
        OpKind::Get,
        OpKind::Insert,
        OpKind::Update,
        OpKind::Upsert,
        OpKind::Remove,
        OpKind::Scan,
        OpKind::Maintenance,
        OpKind::Other,
    ];
    /// Lower-case name, as records use it.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Get => "get",
            OpKind::Insert => "insert",
            OpKind::Update => "update",
            OpKind::Upsert => "upsert",
            OpKind::Remove => "remove",
            OpKind::Scan => "scan",
            OpKind::Maintenance => "maintenance",
            OpKind::Other => "other",
        }
    }
}

/// The purpose of a batch: the index itself, or the key-value blocks that its slots point to. Papers often leave out
/// the second, so it is counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// Buckets, nodes, directories.
    #[default]
    Index,
    /// Dereferencing key-value blocks.
    Block,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Verbs, bytes and waits.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign<&Counters> for Counters {
            fn add_assign(&mut self, other: &Counters) { $(self.$name += other.$name;)* }
        }
        impl Sub for Counters {
            type Output = Counters;
            fn sub(self, other: Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(other.$name),)* }
            }
        }
        impl Counters {
            /// Every counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Waits on the critical path, `block_round_trips` included.
    round_trips,
    /// Those of them that only dereferenced key-value blocks.
    block_round_trips,
    /// READs.
    reads,
    /// Those READs that fetched key-value blocks.
    block_reads,
    /// WRITEs.
    writes,
    /// Compare-and-swaps, masked ones included.
    cas,
    /// Fetch-and-adds.
    faa,
    /// Messages to a memory node's CPU.
    calls,
    /// Bytes fetched by READs.
    bytes_read,
    /// Bytes stored by WRITEs.
    bytes_written,
    /// Batches posted. Several may share a message or a doorbell: see [`Meter::traffic`].
    batches,
    /// Batches that were posted without a waiter, by intent.
    detached,
    /// Batches whose future was dropped before they completed.
    abandoned,
}

impl Counters {
    /// Verbs of all kinds.
    pub fn verbs(&self) -> u64 {
        self.reads + self.writes + self.cas + self.faa + self.calls
    }
}

/// Totals of one kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Operations.
    pub ops: u64,
    /// Their total cost.
    pub total: Counters,
}

impl std::ops::Deref for OpStats {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        &self.total
    }
}

/// Totals of every kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meter {
    kinds: [OpStats; OpKind::ALL.len()],
    traffic: Traffic,
}

impl Meter {
    /// Totals of one kind.
    pub fn of(&self, kind: OpKind) -> &OpStats {
        &self.kinds[kind as usize]
    }
    /// Totals of all kinds.
    pub fn total(&self) -> Counters {
        self.kinds.iter().fold(Counters::default(), |mut sum, kind| {
            sum += &kind.total;
            sum
        })
    }
    /// Messages and doorbells of all operations together. Batches of different operations share them, so they are not
    /// counted by kind.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }
    pub(crate) fn set_traffic(&mut self, traffic: Traffic) {
        self.traffic = traffic;
    }
    /// Adds an operation of this kind and its cost.
    #[inline]
    pub(crate) fn record(&mut self, kind: OpKind, cost: &Counters) {
        let stats = &mut self.kinds[kind as usize];
        stats.ops += 1;
        stats.total += cost;
    }
}

impl AddAssign<&Meter> for Meter {
    fn add_assign(&mut self, other: &Meter) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.ops += theirs.ops;
            mine.total += &theirs.total;
        }
        self.traffic.messages += other.traffic.messages;
        self.traffic.answers += other.traffic.answers;
        self.traffic.doorbells += other.traffic.doorbells;
    }
}

impl Add for Meter {
    type Output = Meter;
    fn add(mut self, other: Meter) -> Meter {
        self += &other;
        self
    }
}

impl Sub for Meter {
    type Output = Meter;
    /// The difference of two readings of one meter.
    fn sub(mut self, earlier: Meter) -> Meter {
        for (mine, before) in self.kinds.iter_mut().zip(&earlier.kinds) {
            mine.ops = mine.ops.saturating_sub(before.ops);
            mine.total = mine.total - before.total;
        }
        let (now, before) = (&mut self.traffic, earlier.traffic);
        now.messages = now.messages.saturating_sub(before.messages);
        now.answers = now.answers.saturating_sub(before.answers);
        now.doorbells = now.doorbells.saturating_sub(before.doorbells);
        self
    }
}
