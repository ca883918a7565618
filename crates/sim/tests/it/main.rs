//! The simulator's tests: the contract's promises (G1-G6) and gaps (N1-N7), faults, the model's figures, and replay.

mod common;
mod conformance;
mod faults;
mod model;
mod not_promised;
mod promised;
mod replay;
mod stall;
mod watch;
