//! Counters of what is posted to the device and polled from it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counters of one endpoint. Only its thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    doorbells: AtomicU64,
    requests: AtomicU64,
    completions: AtomicU64,
}

impl Counts {
    pub(crate) fn posted(&self, requests: usize) {
        self.doorbells.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
    }
    pub(crate) fn doorbells(&self) -> u64 {
        self.doorbells.load(Ordering::Relaxed)
    }
    pub(crate) fn polled(&self, completions: usize) {
        self.completions.fetch_add(completions as u64, Ordering::Relaxed);
    }
}

/// Sums over all endpoints of a fabric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Calls that posted requests: one for all batches to one node that were posted together, however many verbs they
    /// hold.
    pub doorbells: u64,
    /// Requests posted.
    pub requests: u64,
    /// Completions polled, failed ones included: one for each batch to one node that succeeded.
    pub completions: u64,
}

/// The counters of all endpoints of a fabric.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    open: Mutex<(WireCounts, Vec<Arc<Counts>>)>,
}

fn add(sum: &mut WireCounts, counts: &Counts) {
    sum.doorbells += counts.doorbells.load(Ordering::Relaxed);
    sum.requests += counts.requests.load(Ordering::Relaxed);
    sum.completions += counts.completions.load(Ordering::Relaxed);
}

impl Ledger {
    /// Counters for a new endpoint.
    pub(crate) fn open(&self) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (past, present) = &mut *open;
        // Those of endpoints that are gone are added up.
        present.retain(|counts| {
            let alive = Arc::strong_count(counts) > 1;
            if !alive {
                add(past, counts);
            }
            alive
        });
        present.push(Arc::clone(&counts));
        counts
    }
    pub(crate) fn sum(&self) -> WireCounts {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = open.0;
        open.1.iter().for_each(|counts| add(&mut sum, counts));
        sum
    }
}
