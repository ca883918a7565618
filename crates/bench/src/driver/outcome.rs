//! What a run has shown.

use super::shared::{Phase, Shared};
use super::worker::{Latencies, Report};
use super::{Faults, Plan};
use crate::workload::Op;
use farindex_fabric::Meter;
use std::time::Duration;

/// Latencies of one kind of operation, or of several together.
#[derive(Debug, Clone, Default)]
pub struct Latency(Option<Latencies>);

impl Latency {
    fn add(&mut self, other: &Latencies) {
        match &mut self.0 {
            // All have the same bounds, so nothing is out of range.
            Some(mine) => mine.add(other).unwrap_or_default(),
            None => self.0 = Some(other.clone()),
        }
    }
    /// How many were measured.
    pub fn samples(&self) -> u64 {
        self.0.as_ref().map_or(0, |latencies| latencies.len())
    }
    /// The latency that a share `quantile` of the operations does not exceed, in nanoseconds.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.0.as_ref().map_or(0, |latencies| latencies.value_at_quantile(quantile))
    }
    /// The mean, in nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        self.0.as_ref().map_or(0.0, |latencies| latencies.mean())
    }
    /// The longest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.0.as_ref().map_or(0, |latencies| latencies.max())
    }
}

/// The measured phase.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    counts: [u64; Op::COUNT],
    latencies: [Latency; Op::COUNT],
    /// Entries that scans returned.
    pub entries_scanned: u64,
    /// When the first thread began, on the threads' clock.
    pub began: Duration,
    /// From the first thread's beginning to the last one's end.
    pub elapsed: Duration,
    /// For each memory node of a simulated cluster, the share of the time in which the busiest server of its NIC was at work.
    pub nics: Vec<f64>,
    /// Verbs, where there are any: the endpoints' meters at the end less those at the beginning.
    pub meter: Option<Meter>,
}

impl Measured {
    /// Operations carried out.
    pub fn ops(&self) -> u64 {
        self.counts.iter().sum()
    }
    /// Operations of one kind.
    pub fn count(&self, op: Op) -> u64 {
        self.counts[op as usize]
    }
    /// Latencies of one kind.
    pub fn latency(&self, op: Op) -> &Latency {
        &self.latencies[op as usize]
    }
    /// Latencies of all operations.
    pub fn latency_of_all(&self) -> Latency {
        let mut all = Latency::default();
        self.latencies.iter().filter_map(|latency| latency.0.as_ref()).for_each(|latencies| all.add(latencies));
        all
    }
    /// Operations per second; 0 if there were none.
    pub fn throughput(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.ops() as f64 / seconds } else { 0.0 }
    }
}

/// One phase in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseSummary {
    /// `load`, `warm-up`, `measured` or `audit`.
    pub name: &'static str,
    /// Operations carried out.
    pub ops: u64,
    /// How long they took.
    pub elapsed: Duration,
}

/// Far memory in use by the index, where the worker knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FarBytes {
    /// When the measured phase began.
    pub before: Option<u64>,
    /// When it had ended.
    pub after: Option<u64>,
}

/// What a run has shown.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was run.
    pub plan: Plan,
    /// The phases that took place.
    pub phases: Vec<PhaseSummary>,
    /// The measured phase.
    pub measured: Measured,
    /// Wrong answers of all phases. A run that has any has failed.
    pub wrong: Faults,
    /// Failed operations of all phases.
    pub errors: Faults,
    /// Keys that are present at the end.
    pub entries: u64,
    /// Bytes that the compute node caches.
    pub cache_bytes: u64,
    /// Far memory in use.
    pub far_bytes: FarBytes,
    /// The run was ended before it was complete.
    pub interrupted: bool,
    /// By too many failed operations.
    pub gave_up: bool,
}

impl Outcome {
    pub(crate) fn merge(shared: &Shared, reports: Vec<Report>) -> Self {
        let mut measured = Measured::default();
        let (mut wrong, mut errors) = (Faults::default(), Faults::default());
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            let parts = || reports.iter().filter_map(|report| report.phases[phase as usize].as_ref());
            let began = parts().map(|part| part.began).min();
            let ended = parts().map(|part| part.ended).max();
            let elapsed = began.zip(ended).map(|(began, ended)| ended.saturating_sub(began));
            let ops = parts().flat_map(|part| part.tally.counts).sum();
            if let Some(elapsed) = elapsed
                && (ops > 0 || phase == Phase::Measured)
            {
                phases.push(PhaseSummary { name: phase.name(), ops, elapsed });
            }
            if phase == Phase::Measured {
                measured.began = began.unwrap_or_default();
                measured.elapsed = elapsed.unwrap_or_default();
                for part in parts() {
                    measured.counts.iter_mut().zip(part.tally.counts).for_each(|(sum, count)| *sum += count);
                    measured.entries_scanned += part.tally.entries_scanned;
                    if let Some(meter) = &part.meter {
                        *measured.meter.get_or_insert_default() += meter;
                    }
                }
            }
        }
        let mut far_bytes = FarBytes::default();
        // What a handle says it caches includes what it shares with the others.
        let cache_bytes = reports.iter().map(|report| report.cache_bytes).max().unwrap_or_default();
        for report in reports {
            for (sum, latencies) in measured.latencies.iter_mut().zip(&report.latencies) {
                latencies.iter().for_each(|latencies| sum.add(latencies));
            }
            wrong.merge(report.wrong);
            errors.merge(report.errors);
            far_bytes.before = far_bytes.before.or(report.far_before);
            far_bytes.after = far_bytes.after.or(report.far_after);
        }
        Outcome {
            plan: shared.plan.clone(),
            phases,
            measured,
            wrong,
            errors,
            entries: shared.oracle.entries(),
            cache_bytes,
            far_bytes,
            interrupted: shared.interrupted(),
            gave_up: shared.too_many_failures(),
        }
    }
}
