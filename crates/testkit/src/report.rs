//! The report of one seed, and the sum over many.

use farindex_check::History;
use farindex_index::IndexAudit;
use std::collections::BTreeMap;
use std::fmt;

/// How a run got stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    /// All coroutines wait, and nothing will ever happen again.
    Deadlock,
    /// A client retries for ever: the steps or the virtual time of the run are used up.
    Livelock,
}

/// The report of one seed.
#[derive(Debug, Default)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// What was drawn.
    pub settings: String,
    /// What is wrong. Empty if nothing is.
    pub failures: Vec<String>,
    /// The history breaks a promise. One of the failures says how.
    pub violation: bool,
    /// The run did not end.
    pub stuck: Option<Stuck>,
    /// Clients that crashed.
    pub crashes: u64,
    /// Operations in the history.
    pub operations: u64,
    /// Keys or histories that could not be decided.
    pub unknown: u64,
    /// Verbs that were posted.
    pub verbs: u64,
    /// Events that the simulator carried out.
    pub events: u64,
    /// Rare paths that ran, and how often.
    pub marks: BTreeMap<String, u64>,
    /// The index at the end.
    pub audit: IndexAudit,
    /// The history, if there is one.
    pub history: Option<History>,
    /// The simulator's log, if one was kept.
    pub log: String,
}

impl SeedReport {
    /// Was nothing found?
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for SeedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.settings)?;
        writeln!(f, "{} operations, {} verbs, {} events; {:?}", self.operations, self.verbs, self.events, self.marks)?;
        if self.unknown > 0 {
            writeln!(f, "- {} keys of the history are undecided", self.unknown)?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "- {failure}"))
    }
}

/// The sum over many seeds.
#[derive(Debug, Default)]
pub struct Totals {
    /// Seeds that ran.
    pub seeds: u64,
    /// Operations in all histories.
    pub operations: u64,
    /// Undecided keys.
    pub unknown: u64,
    /// Clients that crashed.
    pub crashes: u64,
    /// Seeds whose history breaks a promise.
    pub violations: u64,
    /// Seeds that ended with all coroutines waiting.
    pub deadlocks: u64,
    /// Seeds that did not end.
    pub livelocks: u64,
    /// Seeds that failed otherwise: an operation's error, or something amiss in the index or the pool at the end.
    pub problems: u64,
    /// Verbs.
    pub verbs: u64,
    /// Rare paths: how often, and in how many seeds.
    pub marks: BTreeMap<String, (u64, u64)>,
    /// Seeds with failures, ordered; only the first few are kept.
    pub failures: Vec<SeedReport>,
    /// All seeds with failures.
    pub failed: Vec<u64>,
    /// All seeds with undecided keys.
    pub undecided: Vec<u64>,
}

/// Reports of failures that are kept.
const KEPT: usize = 10;

impl Totals {
    /// Adds one seed.
    pub fn add(&mut self, report: SeedReport) {
        self.seeds += 1;
        self.operations += report.operations;
        self.unknown += report.unknown;
        if report.unknown > 0 {
            self.undecided.push(report.seed);
        }
        self.verbs += report.verbs;
        self.crashes += report.crashes;
        self.violations += u64::from(report.violation);
        self.deadlocks += u64::from(report.stuck == Some(Stuck::Deadlock));
        self.livelocks += u64::from(report.stuck == Some(Stuck::Livelock));
        self.problems += u64::from(!report.is_sound() && !report.violation && report.stuck.is_none());
        for (mark, count) in &report.marks {
            let total = self.marks.entry(mark.clone()).or_default();
            total.0 += count;
            total.1 += 1;
        }
        if !report.is_sound() {
            self.failed.push(report.seed);
            if self.failures.len() < KEPT {
                self.failures.push(report);
            }
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: Totals) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.verbs += other.verbs;
        self.crashes += other.crashes;
        self.violations += other.violations;
        self.deadlocks += other.deadlocks;
        self.livelocks += other.livelocks;
        self.problems += other.problems;
        for (mark, (count, seeds)) in other.marks {
            let total = self.marks.entry(mark).or_default();
            total.0 += count;
            total.1 += seeds;
        }
        self.failed.extend(other.failed);
        self.failed.sort_unstable();
        self.undecided.extend(other.undecided);
        self.undecided.sort_unstable();
        self.failures.extend(other.failures);
        self.failures.sort_by_key(|report| report.seed);
        self.failures.truncate(KEPT);
    }

    /// The smallest seed with a failure, of those that ran.
    pub fn first_failing_seed(&self) -> Option<u64> {
        self.failed.first().copied()
    }

    /// Fails the test unless nothing was found.
    ///
    /// # Panics
    /// If something was.
    #[track_caller]
    pub fn assert_sound(&self) {
        assert!(self.failed.is_empty(), "{self}");
    }

    /// Fails the test unless each of these paths ran.
    ///
    /// # Panics
    /// If one did not.
    #[track_caller]
    pub fn assert_marks<M: AsRef<str>>(&self, wanted: impl IntoIterator<Item = M>) {
        let mut missing: Vec<_> = wanted.into_iter().map(|mark| mark.as_ref().to_owned()).collect();
        missing.retain(|mark| !self.marks.contains_key(mark));
        assert!(missing.is_empty(), "paths that no seed took: {missing:?}\n{self}");
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { seeds, operations, unknown, verbs, .. } = self;
        writeln!(f, "{seeds} seeds, {operations} operations, {verbs} verbs, {unknown} undecided")?;
        for (mark, (count, seeds)) in &self.marks {
            writeln!(f, "{count:>10} in {seeds:>7} seeds  {mark}")?;
        }
        if !self.failed.is_empty() {
            writeln!(f, "{} seeds failed: {:?}", self.failed.len(), &self.failed[..self.failed.len().min(100)])?;
        }
        self.failures.iter().take(3).try_for_each(|report| writeln!(f, "\n{report}"))
    }
}
