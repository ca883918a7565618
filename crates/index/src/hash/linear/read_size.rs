//! How many slots a lookup READs at once.
//!
//! Invariants: one slot at least; a hint, on which nothing but cost depends.

use super::Config;
use farindex_readsize::{Network, Probes, best_read, read_beside_cluster};
use std::cell::RefCell;

/// Loads that are told apart.
const STEPS: usize = 64;
/// Read size of a table that is fuller than the model goes.
const MAX_MODEL_LOAD: f64 = 0.97;

/// What the model says of a load: slots of one READ, and the distribution.
type Answer = (u64, Option<Probes>);

/// Read sizes by load.
pub(super) struct ReadSizes {
    /// Bytes of every READ; 0 for as many as the model says.
    fixed: u32,
    network: Network,
    width: usize,
    hits: f64,
    /// Are clusters remembered? Then the distribution is needed again.
    hints: bool,
    /// By load: what the model says, once it has been asked.
    known: RefCell<Vec<Option<Answer>>>,
}

impl ReadSizes {
    pub(super) fn new(config: &Config, network: Network) -> Self {
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

    /// Slots of one READ at this load, for a lookup that begins so many slots before a known cluster of so many slots.
    pub(super) fn slots(&self, load: f64, cluster: Option<(u64, u64)>) -> u64 {
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
            // Certain to end there; but it may be longer than one READ should be.
            (Some((0, left)), _) => (left + 1).min(network.largest_read(width)),
            (Some((distance, len)), Some(probes)) if distance < *slots => {
                read_beside_cluster(probes, &network, width, distance, len).slots
            }
            _ => *slots,
        }
    }

    /// Bytes that the model's answers take.
    pub(super) fn bytes(&self) -> u64 {
        self.known
            .borrow()
            .iter()
            .flatten()
            .filter_map(|(_, probes)| probes.as_ref())
            .map(|probes| probes.longest() * 8)
            .sum()
    }
}
