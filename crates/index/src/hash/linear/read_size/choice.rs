//! The cheapest read size (sections 3.1 and 3.4).

use super::{Network, Probes};

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
    /// Computes the cost of lookups that READ `slots` slots at a time, of `width` bytes each.
    pub fn of(slots: u64, probes: &Probes, network: &Network, width: u64) -> Self {
        let requests = probes.requests(slots);
        Read { slots, requests, cost_ns: requests * network.read_cost(slots, width) }
    }
}

/// Returns `R*` among 1 to `most` slots (formula 1): the smallest of those that cost least.
fn cheapest(probes: &Probes, network: &Network, width: u64, most: u64) -> Read {
    let mut best = Read::of(1, probes, network, width);
    for slots in 2..=most.min(probes.longest()) {
        // A lookup takes at least one READ, and larger READs cost more.
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

/// Returns `R*` under the bandwidth constraint (formulas 1 and 2), for slots of `width` bytes.
pub fn best_read(probes: &Probes, network: &Network, width: u64) -> Read {
    cheapest(probes, network, width, network.largest_read(width))
}

/// Returns `R*` without the bandwidth constraint ("uncons." in Table 1).
pub fn best_read_unconstrained(probes: &Probes, network: &Network, width: u64) -> Read {
    cheapest(probes, network, width, u64::MAX)
}

/// Returns `R*` for a lookup that begins `distance` slots before a known cluster of `len` filled slots (section 3.4). A
/// lookup that begins inside the cluster has `distance` 0, and `len` is the number of slots that are left: it is
/// certain to find the empty slot behind the cluster, and READs up to there.
pub fn read_near_cluster(probes: &Probes, network: &Network, width: u64, distance: u64, len: u64) -> Read {
    let known = probes.near_cluster(distance, len);
    if distance == 0 {
        return Read::of(len + 1, &known, network, width);
    }
    best_read(&known, network, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network = Network::CONNECTX5_EDR;

    /// Table 1 prints 5, 13 and 29 instead (see docs/read-size.md).
    #[test]
    fn best_read_finds_the_exact_minimum() {
        for (load, free, bound) in [(0.25, 8, 8), (0.5, 19, 19), (0.65, 36, 23)] {
            let probes = Probes::of_misses(load).expect("a load");
            assert_eq!(best_read_unconstrained(&probes, &NETWORK, 8).slots, free);
            assert_eq!(best_read(&probes, &NETWORK, 8).slots, bound);
        }
    }

    /// Figure 13 has a cluster of 10 slots.
    #[test]
    fn best_read_near_a_cluster_has_the_shape_of_figure_13() {
        for load in [0.25, 0.65] {
            let probes = Probes::of_misses(load).expect("a load");
            let oblivious = best_read(&probes, &NETWORK, 8).slots;
            let at = |distance| read_near_cluster(&probes, &NETWORK, 8, distance, 10).slots;
            assert_eq!(at(40), oblivious, "too far away");
            assert_eq!(at(4), 15, "up to the empty slot behind the cluster");
            assert_eq!(read_near_cluster(&probes, &NETWORK, 8, 0, 3).slots, 4, "within it");
        }
        let probes = Probes::of_misses(0.65).expect("a load");
        let oblivious = best_read(&probes, &NETWORK, 8).slots;
        let before = read_near_cluster(&probes, &NETWORK, 8, 20, 10).slots;
        assert!(before < oblivious, "reads fewer slots than {oblivious}: {before}");
    }
}
