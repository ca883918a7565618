//! What cuckoo hashing adds to a table of slots: buckets.

use super::Config;
use crate::IndexError;
use crate::recovery::HeldLock;
use crate::root_sync::Pacing;
use crate::slotted::geometry::Segment;
use crate::slotted::table::{self, Plan};
use farindex_fabric::Span;
use farindex_pool::Pin;

/// The shape of a table's buckets.
#[derive(Debug, Clone, Copy)]
pub struct Buckets {
    /// Slots of a bucket.
    pub associativity: u64,
    /// Bytes of a slot.
    pub width: usize,
}

impl Buckets {
    /// Returns the bytes of a bucket.
    pub const fn bucket_bytes(&self) -> usize {
        self.associativity as usize * self.width
    }
}

/// A worker's handle to one table.
pub type Table = table::Table<Buckets>;

impl Config {
    pub(super) fn pacing(&self) -> Pacing {
        Pacing { alpha: self.alpha, threshold: self.threshold }
    }
    pub(super) fn buckets(&self) -> Buckets {
        Buckets { associativity: self.associativity, width: self.width }
    }
}

impl Table {
    /// Creates the next table, twice as large, unless another client does. `full` states that no displacement makes
    /// room for a key. A pool without room for the table is an error only if `full`.
    pub async fn grow(&self, pin: &Pin<'_>, index: u64, full: bool) -> Result<(), IndexError> {
        self.try_grow(pin, index, full).await.map(drop)
    }

    /// Like [`grow`](Self::grow); see [`grow_as`](table::Table::grow_as).
    pub(super) async fn try_grow(&self, pin: &Pin<'_>, index: u64, full: bool) -> Result<Option<HeldLock>, IndexError> {
        let twice = async |_: &Span, now: &Segment| Ok(Plan { regions: now.regions * 2, room: 0 });
        self.grow_as(pin, index, full, twice).await
    }
}
