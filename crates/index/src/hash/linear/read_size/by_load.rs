//! The read sizes of one table, kept by load.
//!
//! Invariants: a READ fetches at least one slot. The read size is a hint: only the cost of a lookup depends on it.

use super::{Network, Probes, best_read, read_near_cluster};
use crate::hash::linear::Config;
use std::cell::RefCell;

/// Number of steps into which loads are rounded.
const STEPS: usize = 64;
/// Highest load that the model is asked about; a fuller table gets the read size of this load.
const MAX_MODEL_LOAD: f64 = 0.97;

/// The model's answer for one load: slots of one READ, and the distribution if clusters need it.
type Answer = (u64, Option<Probes>);

/// Read sizes by load.
pub(in crate::hash::linear) struct ReadSizes {
    /// Bytes of every READ; 0 if the model chooses.
    fixed: u32,
    network: Network,
    width: usize,
    hits: f64,
    /// Whether the worker remembers clusters, for which the distribution is needed again.
    hints: bool,
    /// The model's answers by load, computed on first use.
    known: RefCell<Vec<Option<Answer>>>,
}

impl ReadSizes {
    /// Prepares the answers for an index with these settings on this network.
    pub(in crate::hash::linear) fn new(config: &Config, network: Network) -> Self {
        let known = RefCell::new(vec![None; STEPS + 1]);
        ReadSizes {
            fixed: config.read_bytes,
            network,
            width: config.width,
            hits: config.hits,
            hints: config.clusters > 0,
            known,
        }
    }

    /// Returns the slots of one READ at this load. `cluster` is the next known cluster: its distance and its length in
    /// slots.
    pub(in crate::hash::linear) fn slots(&self, load: f64, cluster: Option<(u64, u64)>) -> u64 {
        let width = self.width as u64;
        if self.fixed > 0 {
            return (u64::from(self.fixed) / width).max(1);
        }
        let network = self.network;
        let load = if load.is_finite() { load.clamp(0.0, MAX_MODEL_LOAD) } else { MAX_MODEL_LOAD };
        let step = (load * STEPS as f64).round() as usize;
        let mut known = self.known.borrow_mut();
        let Some(entry) = known.get_mut(step) else { return 1 };
        if entry.is_none() {
            let probes = Probes::of_mixture((step as f64 / STEPS as f64).min(MAX_MODEL_LOAD), self.hits);
            *entry = probes.map(|probes| (best_read(&probes, &network, width).slots, self.hints.then_some(probes)));
        }
        let Some((slots, probes)) = entry else { return network.largest_read(width) };
        match (cluster, probes) {
            // The lookup is certain to end behind the cluster, which may be longer than one READ should be.
            (Some((0, left)), _) => (left + 1).min(network.largest_read(width)),
            (Some((distance, len)), Some(probes)) if distance < *slots => {
                read_near_cluster(probes, &network, width, distance, len).slots
            }
            _ => *slots,
        }
    }

    /// Returns the bytes of local memory that the answers use.
    pub(in crate::hash::linear) fn bytes(&self) -> u64 {
        self.known
            .borrow()
            .iter()
            .flatten()
            .filter_map(|(_, probes)| probes.as_ref())
            .map(|probes| probes.longest() * 8)
            .sum()
    }
}
