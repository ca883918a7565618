//! Checks a whole history and returns a report.
//!
//! Invariants:
//!
//! 1. each key is checked separately, which is exact because linearizability is local;
//! 2. the reads of scans are checked together with the point operations on a key. A violation is attributed to the
//!    scans only if the point operations alone are linearizable or undecided;
//! 3. with step limits alone the report depends on the history only, not on the machine or on hash seeds.

use std::fmt;
use std::time::{Duration, Instant};

use crate::explain::{self, Explanation};
use crate::history::History;
use crate::map::MapModel;
use crate::model::{Entry, Model, Part};
use crate::promise::Promise;
use crate::scan::{self, ScanViolation};
use crate::search::{Answer, Budget, search};
use crate::text;

/// The limits of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Configurations that the search may enter for one key. Each is stored, with roughly 100 bytes. A key without a
    /// violation usually needs about one for each of its writes.
    pub steps_per_key: u64,
    /// Time for the whole check; keys that it does not reach are undecided. `None`: no limit, and the report does not
    /// depend on the machine.
    pub time: Option<Duration>,
    /// Maximum number of keys with violations that get an explanation. Explaining is slower than checking.
    pub explanations: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps_per_key: 5_000_000, time: None, explanations: 4 }
    }
}

/// The verdict on a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The history keeps every promise.
    Ok,
    /// The history certainly breaks a promise.
    Violation,
    /// Neither could be shown within the limits.
    Unknown,
}

/// A key for which a promise is broken.
#[derive(Clone, Debug)]
pub struct KeyViolation {
    /// The key.
    pub key: Vec<u8>,
    /// The broken promise.
    pub promise: Promise,
    /// The explanation; `None` beyond [`Limits::explanations`].
    pub explanation: Option<Explanation>,
}

/// The size of a history and the cost of its check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations in the history.
    pub operations: usize,
    /// Keys with operations.
    pub keys: usize,
    /// Configurations that the search entered, without those of explanations.
    pub steps: u64,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// The verdict: a violation if there is any, otherwise unknown if a key is undecided, otherwise ok.
    pub verdict: Verdict,
    /// Keys with broken promises, ordered.
    pub keys: Vec<KeyViolation>,
    /// Scans with malformed results.
    pub scans: Vec<ScanViolation>,
    /// Keys that could not be decided, ordered.
    pub undecided: Vec<Vec<u8>>,
    /// Size and cost.
    pub stats: Stats,
}

/// Checks a history.
pub fn check(history: &History, limits: &Limits) -> Report {
    let deadline = limits.time.and_then(|time| Instant::now().checked_add(time));
    let budget = Budget { steps: limits.steps_per_key, deadline };
    let parts = MapModel.partition(history);
    let mut report = Report {
        verdict: Verdict::Ok,
        keys: Vec::new(),
        scans: scan::malformed(history),
        undecided: Vec::new(),
        stats: Stats { operations: history.operations().len(), keys: parts.len(), steps: 0 },
    };
    for part in parts {
        check_part(history, part, budget, limits, &mut report);
    }
    report.verdict = if !report.keys.is_empty() || !report.scans.is_empty() {
        Verdict::Violation
    } else if !report.undecided.is_empty() {
        Verdict::Unknown
    } else {
        Verdict::Ok
    };
    report
}

fn check_part(
    history: &History,
    part: Part<<MapModel as Model>::Op>,
    budget: Budget,
    limits: &Limits,
    report: &mut Report,
) {
    let Part { key, mut entries } = part;
    let joint = decide(&entries, budget, report);
    if joint == Verdict::Ok {
        return;
    }
    let mut promise = Promise::Linearizability;
    let mut verdict = joint;
    if entries.iter().any(|entry| entry.from_scan) {
        let mut points = entries.clone();
        points.retain(|entry| !entry.from_scan);
        MapModel.simplify(&mut points);
        match decide(&points, budget, report) {
            Verdict::Violation => {
                verdict = Verdict::Violation;
                entries = points;
            }
            // An order of the point operations exists, but none that the scans could have read. If the point operations
            // alone are undecided, the joint violation is still certain, and it is attributed to the scans.
            Verdict::Ok | Verdict::Unknown => promise = Promise::ScanContent,
        }
    }
    if verdict == Verdict::Unknown {
        report.undecided.push(key);
        return;
    }
    let explained = report.keys.iter().filter(|key| key.explanation.is_some()).count();
    let explanation =
        (explained < limits.explanations).then(|| explain::explain(history, &key, promise, &entries, budget));
    report.keys.push(KeyViolation { key, promise, explanation });
}

/// Decides about one part: first by the cheap proof, and if it proves nothing, by the search.
fn decide(entries: &[Entry<<MapModel as Model>::Op>], budget: Budget, report: &mut Report) -> Verdict {
    if MapModel.refute(entries).is_some() {
        return Verdict::Violation;
    }
    let outcome = search(&MapModel, entries, budget);
    report.stats.steps += outcome.steps;
    match outcome.answer {
        Answer::Linearizable(_) => Verdict::Ok,
        Answer::Violation => Verdict::Violation,
        Answer::Unknown => Verdict::Unknown,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { operations, keys, steps } = self.stats;
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Violation => "VIOLATION",
            Verdict::Unknown => "unknown",
        };
        writeln!(f, "{verdict}: {operations} operations on {keys} keys, {steps} search steps")?;
        for violation in &self.scans {
            writeln!(f, "\nscan, operation {}: {}", violation.operation, violation.fault)?;
        }
        for violation in &self.keys {
            match &violation.explanation {
                Some(explanation) => write!(f, "\n{explanation}")?,
                None => {
                    let key = text::bytes(&violation.key);
                    writeln!(f, "\nkey {key}: {} (not explained)", violation.promise)?;
                }
            }
        }
        for key in &self.undecided {
            writeln!(f, "\nkey {}: undecided within the limits", text::bytes(key))?;
        }
        Ok(())
    }
}
