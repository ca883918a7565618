//! The numbers of DEX's paper, as far as its text has them: most figures are pictures without numbers.

/// Where the paper's numbers are from.
pub(super) const SOURCE: &str = "B. Lu et al., DEX, PVLDB 17(10), 2024";

/// Bytes of a key and of a value (8.1).
pub(super) const SIZES: (usize, usize) = (8, 8);
/// Entries that a scan asks for (8.1).
pub(super) const SCAN: usize = 100;
/// Keys that are loaded (8.1).
pub(super) const KEYS: u64 = 200_000_000;
/// Cache of a compute node, in percent of the data: 256 MB (8.1).
pub(super) const CACHE: f64 = 8.0;

/// The workloads of Table 1: the paper's name, and ours.
pub(super) const WORKLOADS: [(&str, &str); 5] = [
    ("read-only", "get=100"),
    ("read-intensive", "get=95,update=5"),
    ("write-intensive", "get=50,update=50"),
    ("insert-intensive", "get=50,insert=50"),
    ("scan-intensive", "scan=95,insert=5"),
];

/// A row of Table 2: workload, index, reads, writes, atomics, two-sided calls, bytes; with 144 threads, skewed.
pub(super) type Row = (&'static str, &'static str, [f64; 5]);
/// Table 2, without SMART.
pub(super) const TABLE_2: [Row; 6] = [
    ("read-only", "DEX", [0.33, 0.0, 0.0, 0.0002, 333.9]),
    ("read-only", "Sherman", [3.02, 0.0, 0.0, 0.0, 1064.69]),
    ("read-only", "P-Sherman", [1.0, 0.0, 0.0, 0.0, 1025.04]),
    ("write-intensive", "DEX", [0.33, 0.19, 0.0, 0.0001, 524.1]),
    ("write-intensive", "Sherman", [2.71, 0.99, 0.59, 0.0, 1078.95]),
    ("write-intensive", "P-Sherman", [1.02, 0.5, 0.0, 0.0, 1054.39]),
];

/// Figure 6, skewed, all threads: workload, DEX's throughput over Sherman's, and over P-Sherman's (8.2).
pub(super) const FIGURE_6: [(&str, Option<f64>, Option<f64>); 4] = [
    ("read-only", Some(3.6), Some(2.5)),
    ("read-intensive", Some(3.4), Some(2.5)),
    ("write-intensive", Some(9.6), Some(7.0)),
    ("scan-intensive", Some(2.8), None),
];

/// Figure 8: partitioning over the baseline with two threads, skewed: 0.096 over 0.04 M operations a second (8.3).
pub(super) const PARTITIONED: f64 = 0.096 / 0.04;
/// Figure 8: caching over partitioning, at most (section 8, major results).
pub(super) const CACHED: f64 = 15.0;
/// Figure 8: offloading over caching, skewed, all threads (8.3).
pub(super) const OFFLOADED: f64 = 1.55;

/// Figure 10: seconds for a re-partitioning, at most, with caches of 256 MB to 1 GB (8.3).
pub(super) const REPARTITION_S: f64 = 2.0;
/// Figure 11: DEX on one compute node over a B+ tree in local memory, read-intensive, skewed (8.3: 8 percent less).
pub(super) const OVER_LOCAL: f64 = 0.92;
