//! How many slots one READ of a lookup should fetch: the paper's model, and what a worker makes of it.
//!
//! After T. Wang, S. Yang, H. Kimura, G. Swart, S. Blanas: *Efficient Usage of One-Sided RDMA for Linear Probing*, ADMS
//! 2020; sections and formulas below are that paper's. The model needs no index, fabric or pool: it takes loads and
//! widths, and returns numbers of slots.
//!
//! | Module | What it holds | Paper |
//! |---|---|---|
//! | [`probes`] | how many slots a lookup reads: `C_k`, `E[X(R)]` | 3.3 |
//! | [`network`] | what a READ costs: `T(R)`, the bandwidth constraint | 3.1, 3.2, 3.5 |
//! | [`choice`] | the cheapest `R`, also near a known cluster | 3.1, 3.4 |
//! | `by_load` | the model's answers, kept by load | |
//!
//! Invariants: a probability is a sum of positive terms, each computed from the one before by `ln_1p`. So the model is
//! precise for every size of table and every load up to [`MAX_LOAD`](probes::MAX_LOAD); docs/read-size.md has the
//! derivation and the error bounds.
//!
//! ```
//! use farindex_index::linear::read_size::{Network, Probes, best_read};
//!
//! let network = Network::CONNECTX5_EDR;
//! let probes = Probes::of_misses(0.65).expect("a load");
//! let best = best_read(&probes, &network, 8);
//! assert_eq!(best.slots, 23);
//! ```

mod by_load;
pub mod choice;
pub mod network;
pub mod probes;

pub(super) use by_load::ReadSizes;
pub use choice::{Read, best_read, best_read_unconstrained, read_near_cluster};
pub use network::Network;
pub use probes::Probes;
