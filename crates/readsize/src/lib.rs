//! How many slots of a remote hash table with linear probing one READ should fetch.
//!
//! After T. Wang, S. Yang, H. Kimura, G. Swart, S. Blanas: *Efficient Usage of One-Sided RDMA for Linear Probing*, ADMS
//! 2020; sections and formulas below are that paper's. Nothing here needs an index, a fabric or a pool: loads and widths
//! go in, numbers of slots come out.
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`probes`] | how many slots a lookup looks at: `C_k`, `E[X(R)]` | 3.3 |
//! | [`network`] | what a READ costs: `T(R)`, the bandwidth constraint | 3.1, 3.2, 3.5 |
//! | [`choice`] | the cheapest `R`, also beside a known cluster | 3.1, 3.4 |
//!
//! Invariants: probabilities are sums of positive terms, each computed from the one before by `ln_1p`, so no size of table
//! and no load up to [`MAX_LOAD`](probes::MAX_LOAD) needs care; docs/read-size.md has the derivation and the error bounds.
//!
//! ```
//! use farindex_readsize::{Network, Probes, best_read};
//!
//! let network = Network::CONNECTX5_EDR;
//! let probes = Probes::of_misses(0.65).expect("a load");
//! let best = best_read(&probes, &network, 8);
//! assert_eq!(best.slots, 23);
//! ```

pub mod choice;
pub mod network;
pub mod probes;

pub use choice::{Read, best_read, best_read_unconstrained, read_beside_cluster};
pub use network::Network;
pub use probes::Probes;
