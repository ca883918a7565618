//! What linear probing adds to a table of slots: the read size, and the size of the next table.

use super::Config;
use super::clusters::Clusters;
use super::read_size::{Network, ReadSizes};
use crate::IndexError;
use crate::recovery::HeldLock;
use crate::root_sync::Pacing;
use crate::slotted::geometry::{REGION, Segment};
use crate::slotted::slot::DEAD;
use crate::slotted::table::{self, Plan};
use farindex_fabric::Span;
use farindex_pool::Pin;
use std::cell::RefCell;

/// A worker's state for choosing the size of a READ.
pub struct Reading {
    pub(super) sizes: ReadSizes,
    pub(super) clusters: RefCell<Clusters>,
}

/// A worker's handle to one table.
pub type Table = table::Table<Reading>;

impl Config {
    pub(super) fn pacing(&self) -> Pacing {
        Pacing { alpha: self.alpha, threshold: self.threshold }
    }
    pub(super) fn reading(&self, network: Network) -> Reading {
        Reading { sizes: ReadSizes::new(self, network), clusters: RefCell::new(Clusters::new(self.clusters)) }
    }
}

impl Table {
    /// Returns the bytes of local memory that the handle uses.
    pub fn cache_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.own.clusters.borrow().bytes() + self.own.sizes.bytes()
    }

    /// Creates the next table, unless another client does: twice as large, or equally large if most slots in use are
    /// dead. `full` states that an insert has found no empty slot. A pool without room for the table is an error only
    /// if `full`.
    pub async fn grow(&self, pin: &Pin<'_>, index: u64, full: bool) -> Result<(), IndexError> {
        self.try_grow(pin, index, full).await.map(drop)
    }

    /// Like [`grow`](Self::grow); see [`grow_as`](table::Table::grow_as).
    pub(super) async fn try_grow(&self, pin: &Pin<'_>, index: u64, full: bool) -> Result<Option<HeldLock>, IndexError> {
        self.grow_as(pin, index, full, async |span: &Span, now: &Segment| {
            // The moved entries fill at most as many slots as are not dead now. The next table must have room for them,
            // whatever other clients insert into it meanwhile. The count of entries is a hint; dead slots are counted
            // exactly.
            let seems_dead = !full && self.count() as f64 <= self.threshold() / 2.0 * now.slots() as f64;
            let dead = if seems_dead { count_removed(span, now).await? } else { 0 };
            // When half of the slots in use are dead, or nearly: with a low threshold those are few of all slots.
            let least = (self.threshold() * 3.0 / 8.0).min(0.25);
            let doubles = (dead as f64) < least * now.slots() as f64;
            let regions = if doubles { now.regions * 2 } else { now.regions };
            Ok(Plan { regions, room: if doubles { now.slots() } else { dead } })
        })
        .await
    }
}

/// Counts the dead slots of a segment.
async fn count_removed(span: &Span, segment: &Segment) -> Result<u64, IndexError> {
    const AT_ONCE: u64 = 16;
    let mut dead = 0;
    for first in (0..segment.regions).step_by(AT_ONCE as usize) {
        let count = AT_ONCE.min(segment.regions - first) * REGION;
        let slots = span.read(segment.slot(first * REGION), count as usize * segment.width).await?;
        let heads = slots.words().iter().step_by(segment.width / 8);
        dead += heads.filter(|head| **head == DEAD).count() as u64;
    }
    Ok(dead)
}
