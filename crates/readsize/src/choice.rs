//! The cheapest read size.

use crate::{Network, Probes};

/// A read size, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Read {
    /// `R`: slots of one READ.
    pub slots: u64,
    /// `E[X(R)]`: READs of a lookup.
    pub requests: f64,
    /// `E[X(R)] T(R)` in nanoseconds.
    pub cost_ns: f64,
}

impl Read {
    /// What READs of so many slots cost.
    pub fn of(slots: u64, probes: &Probes, network: &Network, width: u64) -> Self {
        let requests = probes.requests(slots);
        Read { slots, requests, cost_ns: requests * network.read_cost(slots, width) }
    }
}

/// `R*` among 1 to `most` slots (formula 1); of several that cost the same, the smallest.
fn cheapest(probes: &Probes, network: &Network, width: u64, most: u64) -> Read {
    let mut best = Read::of(1, probes, network, width);
    for slots in 2..=most.min(probes.longest()) {
        // One READ at least, and larger ones cost more.
        if network.read_cost(slots, width) >= best.cost_ns {
            break;
        }
        let read = Read::of(slots, probes, network, width);
        if read.cost_ns < best.cost_ns {
            best = read;
        }
    }
    best
}

/// `R*` under the bandwidth constraint (formulas 1 and 2), for slots of `width` bytes.
pub fn best_read(probes: &Probes, network: &Network, width: u64) -> Read {
    cheapest(probes, network, width, network.largest_read(width))
}

/// `R*` without the bandwidth constraint ("uncons." in Table 1).
pub fn best_read_unconstrained(probes: &Probes, network: &Network, width: u64) -> Read {
    cheapest(probes, network, width, u64::MAX)
}

/// `R*` for a lookup that begins `distance` slots before a known cluster of `len` filled slots (section 3.4). One that
/// begins inside is certain to find the empty slot behind it, and reads up to there, however far that is: `distance` 0 and
/// the slots that are left.
pub fn read_beside_cluster(probes: &Probes, network: &Network, width: u64, distance: u64, len: u64) -> Read {
    let known = probes.beside_cluster(distance, len);
    if distance == 0 {
        return Read::of(len + 1, &known, network, width);
    }
    best_read(&known, network, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network = Network::CONNECTX5_EDR;

    /// The exact minima, where Table 1 prints 5, 13, 29 (see docs/read-size.md).
    #[test]
    fn exact_minima() {
        for (load, free, bound) in [(0.25, 8, 8), (0.5, 19, 19), (0.65, 36, 23)] {
            let probes = Probes::of_misses(load).expect("a load");
            assert_eq!(best_read_unconstrained(&probes, &NETWORK, 8).slots, free);
            assert_eq!(best_read(&probes, &NETWORK, 8).slots, bound);
        }
    }

    /// The shape of Figure 13: a cluster of 10 slots.
    #[test]
    fn figure_13() {
        for load in [0.25, 0.65] {
            let probes = Probes::of_misses(load).expect("a load");
            let oblivious = best_read(&probes, &NETWORK, 8).slots;
            let at = |distance| read_beside_cluster(&probes, &NETWORK, 8, distance, 10).slots;
            assert_eq!(at(40), oblivious, "too far away");
            assert_eq!(at(4), 15, "up to the empty slot behind the cluster");
            assert_eq!(read_beside_cluster(&probes, &NETWORK, 8, 0, 3).slots, 4, "within it");
        }
        let probes = Probes::of_misses(0.65).expect("a load");
        let oblivious = best_read(&probes, &NETWORK, 8).slots;
        let before = read_beside_cluster(&probes, &NETWORK, 8, 20, 10).slots;
        assert!(before < oblivious, "reads fewer slots than {oblivious}: {before}");
    }
}
