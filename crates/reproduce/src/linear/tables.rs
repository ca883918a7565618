//! Tables 1, 3 and 4 of T. Wang et al., *Efficient Usage of One-Sided RDMA for Linear Probing*, ADMS 2020.
//!
//! Table 1 counts READs of a lookup that returns all matches: it begins at a present key's home, and ends at the first
//! empty slot. So does what is measured here, on bare tables of 8-byte slots in far memory. What the index itself takes
//! for a lookup, which may end at its key, is stated apart.

use farindex_index::linear::read_size::{Network, Probes, Read, best_read, best_read_unconstrained};
use serde::Serialize;
use std::fmt::Write;

/// Where the paper's numbers are from.
pub(crate) const TABLE_1: &str = "T. Wang et al., ADMS 2020, Table 1 (RDMA requests per lookup, 8-byte records)";
/// Where the paper's numbers are from.
pub(crate) const TABLE_3: &str = "T. Wang et al., ADMS 2020, Table 3 (slots of one READ, 65 % load)";
/// Where the paper's numbers are from.
pub(crate) const TABLE_4: &str = "T. Wang et al., ADMS 2020, Table 4 (READs for each lookup, out of band, 65 % load)";

/// Records of each of the paper's tables (section 5.1); how many slots they have, their load says.
pub(crate) const PAPER_RECORDS: u64 = 120 << 20;

/// Slots of the paper's table of this load.
pub(crate) fn paper_slots(load: f64) -> u64 {
    (PAPER_RECORDS as f64 / load) as u64
}

/// The fewest slots whose mean can be compared with the paper's: 4096 times as many as a lookup of an absent key looks
/// at, which is (1 + 1/(1 - a)^2) / 2. In smaller tables a few long clusters decide the mean.
pub(crate) fn least_slots(load: f64) -> u64 {
    (4096.0 * (1.0 + 1.0 / (1.0 - load).powi(2)) / 2.0) as u64
}

/// Bytes of a fixed READ.
pub(crate) const FIXED: u64 = 256;
/// Largest difference from the paper's number that counts as the same.
pub(crate) const CLOSE: f64 = 0.05;

/// How a lookup chooses its read size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    /// 32 slots.
    Fixed,
    /// Formula 1 alone.
    Unconstrained,
    /// Formulas 1 and 2.
    Variable,
}

/// A load of Table 1: slots and requests of each policy.
type Requests = (f64, [(Policy, u64, f64); 3]);

/// Table 1.
pub(crate) const REQUESTS: [Requests; 7] = {
    use Policy::{Fixed, Unconstrained, Variable};
    [
        (0.25, [(Fixed, 32, 1.00), (Unconstrained, 5, 1.03), (Variable, 5, 1.03)]),
        (0.50, [(Fixed, 32, 1.00), (Unconstrained, 13, 1.03), (Variable, 13, 1.03)]),
        (0.65, [(Fixed, 32, 1.01), (Unconstrained, 29, 1.02), (Variable, 23, 1.04)]),
        (0.80, [(Fixed, 32, 1.22), (Unconstrained, 96, 1.02), (Variable, 23, 1.39)]),
        (0.85, [(Fixed, 32, 1.53), (Unconstrained, 174, 1.01), (Variable, 23, 1.85)]),
        (0.90, [(Fixed, 32, 2.46), (Unconstrained, 201, 1.08), (Variable, 23, 3.17)]),
        (0.95, [(Fixed, 32, 7.41), (Unconstrained, 547, 1.16), (Variable, 23, 10.05)]),
    ]
};

/// One number of Table 1.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    /// Load of the table.
    pub(crate) load: f64,
    /// Which policy.
    pub(crate) policy: Policy,
    /// The paper's read size, and its requests for each lookup.
    pub(crate) paper: (u64, f64),
    /// Requests that were counted with that read size.
    pub(crate) requests: f64,
    /// Ours over the paper's.
    pub(crate) ratio: f64,
    /// The read size that the model chooses here, and the requests that were counted with it.
    pub(crate) ours: (u64, f64),
    /// Cost `E[X] T` of our read size over that of the paper's, both with counted requests.
    pub(crate) cost: f64,
    /// The table is too small for the number to be compared.
    pub(crate) too_small: bool,
}

impl Line {
    /// From what a policy takes in the paper, and what was counted for two read sizes.
    pub(crate) fn new(
        load: f64,
        (policy, read, paper): (Policy, u64, f64),
        ours: u64,
        counted: impl Fn(u64) -> f64,
    ) -> Self {
        let cost = |slots, requests| requests * Network::CONNECTX5_EDR.read_cost(slots, 8);
        let (requests, mine) = (counted(read), counted(ours));
        let (ratio, cost) = (requests / paper, cost(ours, mine) / cost(read, requests));
        Line { load, policy, paper: (read, paper), requests, ratio, ours: (ours, mine), cost, too_small: false }
    }
    /// The same, counted on tables of so many slots.
    #[must_use]
    pub(crate) fn of_slots(self, slots: u64) -> Self {
        Line { too_small: slots < least_slots(self.load), ..self }
    }
    /// Are the requests the paper's, and is our read size no worse?
    pub(crate) fn holds(&self) -> bool {
        (self.ratio - 1.0).abs() <= CLOSE && self.cost <= 1.0 + 1e-9
    }
}

/// The read size that the model chooses for lookups that return all matches, in slots of 8 bytes.
pub(crate) fn our_read(load: f64, policy: Policy) -> Option<u64> {
    let probes = Probes::of_all_matches(load)?;
    Some(match policy {
        Policy::Fixed => FIXED / 8,
        Policy::Unconstrained => best_read_unconstrained(&probes, &Network::CONNECTX5_EDR, 8).slots,
        Policy::Variable => best_read(&probes, &Network::CONNECTX5_EDR, 8).slots,
    })
}

/// Table 1 as text.
pub(crate) fn table_1(lines: &[Line]) -> String {
    let mut out = String::from(
        "load  policy         R paper  requests  counted  ratio   R ours  counted   cost of ours / the paper's\n",
    );
    for line in lines {
        let policy = format!("{:?}", line.policy).to_lowercase();
        let verdict = if line.holds() { "" } else { "  OFF" };
        let small = if line.too_small { "  TOO SMALL" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:<4}  {policy:<13}  {:>7}  {:>8.2}  {:>7.3}  {:>5.3}   {:>6}  {:>7.3}   {:.4}{verdict}{small}",
            line.load, line.paper.0, line.paper.1, line.requests, line.ratio, line.ours.0, line.ours.1, line.cost
        );
    }
    let _ = writeln!(out, "\ncost:  E[X] (c + alpha R w) of the paper's ConnectX-5, with the counted requests");
    let _ = writeln!(out, "paper: {TABLE_1}");
    out
}

/// Table 3: policy, width of a slot, the paper's slots, ours. Out of band the paper's slots have 5 bytes.
pub(crate) fn read_sizes() -> Vec<(&'static str, u64, u64, u64)> {
    let probes = Probes::of_misses(0.65);
    let variable = |width| probes.as_ref().map_or(0, |probes| best_read(probes, &Network::CONNECTX5_EDR, width).slots);
    let fixed = [(8, 32), (32, 8), (128, 2), (5, 51)];
    let model = [(8, 23), (32, 9), (128, 6), (5, 29)];
    let rows = fixed.map(|(width, paper)| ("fixed", width, paper, FIXED / width));
    rows.into_iter().chain(model.map(|(width, paper)| ("variable", width, paper, variable(width)))).collect()
}

/// Table 3 as text.
pub(crate) fn table_3() -> String {
    let mut out = String::from("policy    slot bytes  R paper  R ours\n");
    for (policy, width, paper, ours) in read_sizes() {
        let _ = writeln!(out, "{policy:<8}  {width:>10}  {paper:>7}  {ours:>6}");
    }
    let _ = writeln!(
        out,
        "\n29 is where 99 % of the lookups end (docs/read-size.md); the exact minimum within the bandwidth is ours"
    );
    let _ = writeln!(out, "cuckoo always reads 4 slots; paper: {TABLE_3}");
    out
}

/// Table 4: policy, slots of one READ, the paper's READs of the table and of the heap.
pub(crate) const OUT_OF_BAND: [(&str, u64, f64, f64); 2] = [("fixed", 51, 1.00, 1.04), ("variable", 29, 1.02, 1.04)];

/// What the model expects of READs of the heap: one for the key, and one for each other key of the path whose one-byte
/// signature is the same.
pub(crate) fn heap_reads(load: f64) -> Option<f64> {
    let probes = Probes::of_all_matches(load)?;
    // All slots but the empty one and the key's own.
    Some(1.0 + (Read::of(1, &probes, &Network::CONNECTX5_EDR, 8).requests - 2.0) / 256.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_limits_are_ours() {
        for (policy, width, paper, ours) in read_sizes().into_iter().filter(|row| (row.0, row.1) != ("variable", 5)) {
            assert_eq!(ours, paper, "{policy}, {width} bytes");
        }
    }

    #[test]
    fn the_model_agrees_with_table_1() {
        for (load, row) in REQUESTS {
            let probes = Probes::of_all_matches(load).expect("a load");
            for policy in row {
                let ours = our_read(load, policy.0).expect("a load");
                let line = Line::new(load, policy, ours, |read| probes.requests(read));
                assert!(line.holds(), "{line:?}");
            }
        }
        assert_eq!([0.25, 0.95].map(|load| paper_slots(load) >> 20), [480, 126], "as section 5.1 says");
        assert!(heap_reads(0.65).is_some_and(|reads| (reads - 1.04).abs() < 0.02));
    }
}
