//! Benchmarks of indexes on far memory: workloads, the driver, what it measures, and records of it.
//!
//! Invariants: load, warm-up and measurement are apart, and nothing of one is counted for another; operations are
//! counted exactly; every answer is judged while running, and a wrong one is part of the result; all clients share one
//! key space; what a run does is a function of its plan and seed.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`workload`] | operations, mixes, distributions, keys and values |
//! | [`oracle`] | what the answers must be |
//! | [`driver`] | threads, clients, phases; runs any [`PointIndex`](farindex_index::PointIndex) |
//! | [`baseline`] | baselines: bare verbs, local maps, nothing at all |
//! | [`history`] | histories of the clients' operations, for the checker |
//! | [`record`] | one row for each run, as JSON and as a table |
//! | [`scenario`] | runs as data files, with what is expected of them |
//! | [`plot`] | curves as SVG, reports as HTML |
//!
//! A run of an index:
//!
//! ```
//! use farindex_bench::{Control, Identity, Plan, Row, run, baseline::LocalMap};
//!
//! let plan = Plan { keys: 1000, ops: Some(10_000), clients: 4, ..Plan::new("ycsb-a".parse()?) };
//! let outcome = run(&LocalMap::new(), &plan, &Control::default())?;
//! assert_eq!(outcome.measured.ops(), 10_000);
//! assert_eq!(outcome.wrong.total(), 0);
//! let row = Row::new(Identity { index: "dashmap".into(), fabric: "none".into() }, &outcome);
//! assert_eq!(row.operations["get"].count + row.operations["update"].count, 10_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod baseline;
pub mod clock;
pub mod driver;
mod error;
pub mod history;
pub mod oracle;
pub mod plot;
pub mod record;
pub mod scenario;
pub mod size;
pub mod workload;

pub use driver::{Bench, Control, Faults, Measured, Outcome, Plan, Progress, Simulated, Worker, run, simulate};
pub use error::BenchError;
pub use record::{Identity, Row};
pub use scenario::Scenario;
pub use workload::{Distribution, KeyOrder, Mix, Op, SizeRange, ValueSize, Workload};
