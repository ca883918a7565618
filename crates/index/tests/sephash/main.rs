//! SepHash: the model-based suite, what it costs, what the adversary finds, which faults are convicted, and the ends of its widths.

mod adversary;
mod budgets;
#[path = "../common/mod.rs"]
mod common;
mod fault_detection;
mod limits;
mod model;
#[path = "../model/suite.rs"]
#[allow(dead_code)]
mod suite;
#[path = "../common/adversary.rs"]
mod test_runs;
