//! What a run returns, and how it is watched.

use farindex_bench::driver::cluster::{self, Cluster, Simulation};
use farindex_bench::{Bench, BenchError, Control, Outcome, Plan};
use farindex_fabric::FabricError;
use serde::Serialize;
use serde_json::Value;
use std::sync::atomic::Ordering;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments do not go together.
    #[error("{0}")]
    Usage(String),
    /// The run was stopped before its end.
    #[error("interrupted")]
    Interrupted,
    /// Wrong answers or failed operations: what was measured is worth nothing.
    #[error("{0}")]
    Wrong(String),
    /// Something that cannot be.
    #[error("{0}")]
    Bug(String),
    /// The library failed.
    #[error(transparent)]
    Farindex(#[from] farindex::Error),
    /// The driver failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

impl From<FabricError> for Error {
    fn from(error: FabricError) -> Self {
        Error::Farindex(error.into())
    }
}

/// What was measured, next to the paper's numbers.
#[derive(Debug, Clone)]
pub struct Report {
    /// For people.
    pub text: String,
    /// For machines.
    pub json: Value,
    /// Files to write, if the user wants any: ending of the name, and content.
    pub files: Vec<(&'static str, String)>,
    /// Is ours as good as the paper's, where that is a question of counts? `true` where it is none.
    pub holds: bool,
}

impl Report {
    pub(crate) fn new(json: &impl Serialize, text: String, holds: bool) -> Result<Report, Error> {
        let json =
            serde_json::to_value(json).map_err(|error| Error::Bug(format!("a result that is no JSON: {error}")))?;
        Ok(Report { text, json, files: Vec::new(), holds })
    }
}

/// Runs things under the control of the caller; a run that is stopped is [`Error::Interrupted`].
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a>(pub(crate) &'a Control<'a>);

impl Watch<'_> {
    pub(crate) fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::SeqCst)
    }
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.stopped() { Err(Error::Interrupted) } else { Ok(()) }
    }
    pub(crate) fn run<B: Bench>(&self, bench: &B, plan: &Plan) -> Result<Outcome, Error> {
        let outcome = farindex_bench::run(bench, plan, self.0)?;
        self.check()?;
        Ok(outcome)
    }
    pub(crate) fn simulate(&self, cluster: &Cluster, plan: &Plan) -> Result<Simulation, Error> {
        let simulation = cluster::run(cluster, plan, self.0).map_err(|error| match error {
            cluster::Error::Farindex(error) => Error::Farindex(error),
            cluster::Error::Bench(error) => Error::Bench(error),
            other => Error::Bug(other.to_string()),
        })?;
        self.check()?;
        Ok(simulation)
    }
}
