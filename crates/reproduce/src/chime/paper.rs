//! The tables and figures of CHIME, as far as their numbers are in its text.

/// Where the paper's numbers are from.
pub(super) const SOURCE: &str = "X. Luo et al., CHIME, SOSP 2024";

/// Bytes of a key and of a value in the evaluation (5.1).
pub(super) const SIZES: (usize, usize) = (8, 8);
/// Entries of a node of Sherman and CHIME (5.1).
pub(super) const SPAN: usize = 64;
/// Compute nodes (5.1).
pub(super) const COMPUTE_NODES: usize = 10;

/// Figure 12: workload, and CHIME's throughput over Sherman's (section 5.2).
pub(super) const OVER_SHERMAN: [(&str, f64); 6] =
    [("ycsb-load", 1.6), ("ycsb-a", 2.2), ("ycsb-b", 3.6), ("ycsb-c", 4.3), ("ycsb-d", 4.2), ("ycsb-e", 1.2)];

/// Figure 14: bytes of cache for each of 60 million keys (section 5.2).
pub(super) fn cache_bytes_for_each(kind: &str) -> Option<f64> {
    match kind {
        "sherman" => Some(23.6e6 / 60e6),
        "chime" => Some(27.6e6 / 60e6),
        _ => None,
    }
}

/// Figure 15: the workloads.
pub(super) const STEP_WORKLOADS: [&str; 4] = ["ycsb-load", "ycsb-a", "ycsb-c", "ycsb-e"];

/// Table 1: the round trips of an operation, at least and at most, where all inner nodes are cached. Where none is, `h`
/// levels of inner nodes add `h`.
pub(super) const ROUND_TRIPS: [(&str, [f64; 2]); 5] = [
    ("search", [1.0, 2.0]),
    ("insert", [3.0, 3.0]),
    ("update", [3.0, 4.0]),
    ("delete", [3.0, 4.0]),
    ("scan", [1.0, 1.0]),
];
