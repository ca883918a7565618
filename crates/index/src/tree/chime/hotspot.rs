//! The hotspot buffer: where hot entries are, so that a lookup READs one entry and not a neighbourhood (section 4.3).
//!
//! Invariant: a position is a guess. An entry that was READ alone counts only if its check holds under the seed that the
//! parent's copy gives, and if it holds the key (R1); otherwise the neighbourhood is READ.
//!
//! The buffer is keyed by the key's hash, so that finding a spot is one look-up; the paper's is keyed by leaf and
//! position, which takes one for each entry of a neighbourhood. It keeps what is used most often by the policy of its
//! cache (a variant of CLOCK with frequency), not by counters.

use farindex_fabric::RemotePtr;
use foldhash::fast::FixedState;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, UnitWeighter};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a spot: hash, place, and what the cache needs for it.
const SPOT_BYTES: u64 = 16 + 32;
/// Speculations by whose outcome a policy is decided.
const WINDOW: u64 = 256;
/// While speculation does not pay, one lookup in so many tries it, to see whether it does by now.
const TRIAL: u64 = 64;

/// When a lookup READs a hot entry alone before it READs a neighbourhood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speculation {
    /// On a network, while it succeeds often enough. Never in mapped memory: there it saves less than it costs to find
    /// the position.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// How often a hot entry was READ alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpeculationCounts {
    /// READs of one entry.
    pub tried: u64,
    /// Those that found the key.
    pub right: u64,
}

/// The hotspot buffer of a compute node.
pub(super) struct Hotspots {
    spots: Cache<u64, u64, UnitWeighter, FixedState>,
    tried: AtomicU64,
    right: AtomicU64,
    /// Of the window: READs in the low half, right ones in the high half.
    window: AtomicU64,
    /// Right ones of the window before.
    recent: AtomicU64,
    turn: AtomicU64,
}

const POSITION_BITS: u32 = 16;

impl Hotspots {
    pub(super) fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes / SPOT_BYTES).unwrap_or(usize::MAX).clamp(16, 1 << 28);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(items as u64)
            .shards(if items < 4096 { 1 } else { 16 })
            .build();
        let hasher = FixedState::with_seed(0);
        let spots = match options {
            Ok(options) => Cache::with_options(options, UnitWeighter, hasher, Default::default()),
            Err(_) => Cache::with(items, items as u64, UnitWeighter, hasher, Default::default()),
        };
        let zero = || AtomicU64::new(0);
        Hotspots { spots, tried: zero(), right: zero(), window: zero(), recent: AtomicU64::new(WINDOW), turn: zero() }
    }

    /// Returns the position of a key in a leaf, if it is to be READ alone.
    pub(super) fn position(
        &self,
        (policy, mapped): (Speculation, bool),
        saved: Saved,
        hash: u64,
        at: RemotePtr,
    ) -> Option<usize> {
        match policy {
            Speculation::Off => return None,
            Speculation::Auto if mapped => return None,
            Speculation::Auto if !saved.pays(self.recent.load(Ordering::Relaxed)) => {
                if !self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIAL) {
                    return None;
                }
            }
            Speculation::Auto | Speculation::On => {}
        }
        let spot = self.spots.get(&hash)?;
        (spot >> POSITION_BITS == at.to_slot()?).then_some((spot & ((1 << POSITION_BITS) - 1)) as usize)
    }

    /// Remembers where a key was found.
    pub(super) fn found(&self, (policy, mapped): (Speculation, bool), hash: u64, at: RemotePtr, position: usize) {
        if policy == Speculation::Off || policy == Speculation::Auto && mapped {
            return;
        }
        if let Some(slot) = at.to_slot() {
            let spot = slot << POSITION_BITS | position as u64;
            if self.spots.peek(&hash) != Some(spot) {
                self.spots.insert(hash, spot);
            }
        }
    }

    /// Records the outcome of a speculation.
    pub(super) fn record(&self, hash: u64, right: bool) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        self.right.fetch_add(u64::from(right), Ordering::Relaxed);
        if !right {
            self.spots.remove(&hash);
        }
        let window =
            self.window.fetch_add(1 + (u64::from(right) << 32), Ordering::Relaxed) + 1 + (u64::from(right) << 32);
        if window & 0xFFFF_FFFF >= WINDOW {
            self.recent.store((window >> 32) * WINDOW / (window & 0xFFFF_FFFF), Ordering::Relaxed);
            self.window.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> SpeculationCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpeculationCounts { tried: load(&self.tried), right: load(&self.right) }
    }
    pub(super) fn clear(&self) {
        self.spots.clear();
    }
    pub(super) fn bytes(&self) -> u64 {
        self.spots.len() as u64 * SPOT_BYTES
    }
}

/// What a right speculation saves, and what a wrong one costs: bytes on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved {
    /// Bytes of the entry, and of the neighbourhood.
    pub(super) entry: usize,
    pub(super) neighbourhood: usize,
}

/// What the smallest READ costs, in bytes: a NIC that answers 87 million of them a second, or sends 12.5 GB, sends so many
/// bytes meanwhile (the ConnectX-5 of the simulator's presets).
const LEAST: usize = 144;
/// Bytes of a message's header.
const HEADER: usize = 30;

impl Saved {
    /// Does it pay if so many of a window are right? A wrong one costs both READs.
    fn pays(self, right: u64) -> bool {
        let cost = |bytes: usize| (bytes + HEADER).max(LEAST) as u64;
        let (entry, whole) = (cost(self.entry), cost(self.neighbourhood));
        entry * WINDOW + whole * (WINDOW - right.min(WINDOW)) < whole * WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn speculation_stops_while_it_is_wrong_and_begins_again() {
        let (spots, saved) = (Hotspots::new(1 << 16), Saved { entry: 24, neighbourhood: 200 });
        let at = RemotePtr::new(NodeId::new(0), 4096);
        let asked = |count: u64| {
            let one = |_: &u64| {
                spots.found((Speculation::Auto, false), 7, at, 5);
                spots.position((Speculation::Auto, false), saved, 7, at).is_some()
            };
            (0..count).filter(one).count() as u64
        };
        assert_eq!(asked(1000), 1000);
        (0..WINDOW).for_each(|_| spots.record(7, false));
        assert!((10..20).contains(&asked(1000)));
        (0..WINDOW).for_each(|_| spots.record(7, true));
        assert_eq!(asked(1000), 1000);
        assert_eq!(spots.counts(), SpeculationCounts { tried: 2 * WINDOW, right: WINDOW });
    }

    #[test]
    fn mapped_memory_and_other_leaves_are_not_speculated_on() {
        let (spots, saved) = (Hotspots::new(1 << 16), Saved { entry: 24, neighbourhood: 200 });
        let at = RemotePtr::new(NodeId::new(0), 4096);
        spots.found((Speculation::On, true), 7, at, 5);
        assert_eq!(spots.position((Speculation::On, true), saved, 7, at), Some(5));
        assert_eq!(spots.position((Speculation::Auto, true), saved, 7, at), None);
        assert_eq!(spots.position((Speculation::Off, false), saved, 7, at), None);
        assert_eq!(spots.position((Speculation::On, false), saved, 7, at.add(64)), None);
        spots.record(7, false);
        assert_eq!(spots.position((Speculation::On, true), saved, 7, at), None);
    }
}
