//! Tests of the benchmark crate.

mod driver;
mod scans;
