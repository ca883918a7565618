//! New keys, and how far their inserts were acknowledged.
//!
//! Invariants: every number is claimed once; all numbers below the frontier were acknowledged (or given up, and then
//! remembered as unknown), so a reader that stays below it never asks for a key whose insert is under way; claims run
//! ahead of the frontier by a bounded distance, so a ring suffices.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const RING: u64 = 1 << 16;
/// Claims stop this far ahead of the frontier. Claimers look before they claim, so each may overshoot by one; a plan
/// has at most [`MAX_CLIENTS`] of them.
const AHEAD: u64 = RING / 2;
/// Clients of one run at most.
pub(crate) const MAX_CLIENTS: usize = (RING - AHEAD) as usize;

/// The edge of the key space.
#[derive(Debug)]
pub struct Frontier {
    next: AtomicU64,
    edge: AtomicU64,
    /// At `number % RING`, `number + 1` once it was acknowledged.
    ring: Box<[AtomicU64]>,
    any_unknown: AtomicBool,
    unknown: Mutex<HashSet<u64>>,
}

impl Frontier {
    /// Keys `0..loaded` are known.
    pub fn new(loaded: u64) -> Self {
        Frontier {
            next: AtomicU64::new(loaded),
            edge: AtomicU64::new(loaded),
            ring: (0..RING).map(|_| AtomicU64::new(0)).collect(),
            any_unknown: AtomicBool::new(false),
            unknown: Mutex::default(),
        }
    }
    /// All numbers below this are known.
    pub fn acknowledged(&self) -> u64 {
        self.edge.load(Ordering::Acquire)
    }
    /// All numbers from here on are unclaimed.
    pub fn claimed(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }
    /// The next number; `None` while the oldest claimed one has been under way for too long.
    pub fn claim(&self) -> Option<u64> {
        let ahead = self.next.load(Ordering::Relaxed).saturating_sub(self.acknowledged());
        (ahead < AHEAD).then(|| self.next.fetch_add(1, Ordering::Relaxed))
    }
    /// The insert of `number` was acknowledged. Numbers below the edge need no mark, and must not take another's place.
    ///
    /// Two that do this at once cannot both stop short: each stores its own mark before it looks for the other's, and
    /// the order of all these is total, so the later of them sees both marks.
    pub fn acknowledge(&self, number: u64) {
        if number < self.acknowledged() {
            return;
        }
        self.ring[(number % RING) as usize].store(number + 1, Ordering::SeqCst);
        loop {
            let edge = self.edge.load(Ordering::SeqCst);
            if self.ring[(edge % RING) as usize].load(Ordering::SeqCst) != edge + 1 {
                return;
            }
            // If this fails, another client has moved the edge on; look again from there.
            let _ = self.edge.compare_exchange(edge, edge + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
    /// The insert of `number` failed and may have taken effect or not.
    pub fn mark_unknown(&self, number: u64) {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        self.any_unknown.store(true, Ordering::SeqCst);
        self.acknowledge(number);
    }
    /// Was this one given up?
    pub fn is_unknown(&self, number: u64) -> bool {
        self.any_unknown.load(Ordering::SeqCst)
            && self.unknown.lock().unwrap_or_else(PoisonError::into_inner).contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_waits_for_the_oldest() {
        let frontier = Frontier::new(100);
        let numbers: Vec<_> = (0..4).map(|_| frontier.claim().unwrap()).collect();
        assert_eq!(numbers, [100, 101, 102, 103]);
        frontier.acknowledge(101);
        frontier.acknowledge(103);
        assert_eq!(frontier.acknowledged(), 100);
        frontier.acknowledge(100);
        assert_eq!(frontier.acknowledged(), 102);
        frontier.mark_unknown(102);
        assert_eq!(frontier.acknowledged(), 104);
        assert!(frontier.is_unknown(102) && !frontier.is_unknown(101));
    }

    #[test]
    fn claims_stop_when_the_oldest_is_stuck() {
        let frontier = Frontier::new(0);
        let stuck = frontier.claim().unwrap();
        while let Some(number) = frontier.claim() {
            frontier.acknowledge(number);
        }
        assert_eq!(frontier.acknowledged(), stuck);
        frontier.acknowledge(stuck);
        assert_eq!(frontier.claim(), Some(AHEAD));
    }

    #[test]
    fn many_threads_leave_no_gap() {
        const EACH: u64 = 100_000;
        let frontier = Frontier::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let number = loop {
                            match frontier.claim() {
                                Some(number) => break number,
                                None => std::thread::yield_now(),
                            }
                        };
                        frontier.acknowledge(number);
                    }
                });
            }
        });
        assert_eq!(frontier.acknowledged(), 4 * EACH);
    }
}
