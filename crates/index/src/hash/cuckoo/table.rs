//! What cuckoo hashing adds to a table of slots: buckets.

use super::Config;
use crate::IndexError;
use crate::root_sync::Pacing;
use crate::slotted::geometry::Segment;
use crate::slotted::table::{self, Plan};
use farindex_fabric::Span;
use farindex_pool::Pin;

/// How the slots of a table make buckets.
#[derive(Debug, Clone, Copy)]
pub struct Buckets {
    /// Slots of a bucket.
    pub associativity: u64,
    /// Bytes of a slot.
    pub width: usize,
}

impl Buckets {
    /// Bytes of a bucket.
    pub const fn bucket_bytes(&self) -> usize {
        self.associativity as usize * self.width
    }
}

/// One table, as one worker sees it.
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
    /// Makes the next table, twice as large, unless somebody else is at it. `full` says that no displacement makes room for a key. A
    /// pool without room for it is no error, unless `full`.
    pub async fn grow(&self, pin: &Pin<'_>, index: u64, full: bool) -> Result<(), IndexError> {
        let twice = async |_: &Span, now: &Segment| Ok(Plan { regions: now.regions * 2, room: 0 });
        self.grow_as(pin, index, full, twice).await
    }
}
