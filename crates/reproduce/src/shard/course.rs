//! Throughput over time: SHARD's Figure 16.

use serde::Serialize;
use std::time::Duration;

/// Where the paper's claims are from.
pub(crate) const FIGURE_16: &str =
    "H. Zha et al., SHARD, PVLDB 19(4), 2025, Figure 16 and section 4.5 (real-time throughput)";
/// What the paper says there.
pub(crate) const CLAIMS_16: [&str; 3] = [
    "throughput is at least 2.8x RACE's, 4.8x SepHash's and 1.4x Outback's",
    "degradation during a resize lasts 0.3 s at worst; SepHash's 0.8 s, RACE's 4.8 s",
    "RDMA-combining improves the worst-case throughput 1.5x (Figure 17b)",
];

/// A share of the mean below which throughput counts as degraded.
pub(crate) const DEGRADED: f64 = 0.5;

/// How throughput went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Course {
    /// Length of a span, in seconds.
    pub(crate) span_seconds: f64,
    /// Operations per second, span by span.
    pub(crate) throughput: Vec<f64>,
    /// Mean over all of them.
    pub(crate) mean: f64,
    /// The slowest span.
    pub(crate) worst: f64,
    /// The longest time in a row below half of the mean, in seconds.
    pub(crate) longest_dip: f64,
}

impl Course {
    /// From operations counted in spans of `width`, put together into at most `spans` longer ones. The last span, which
    /// is not whole, is left out; `None` if no whole one remains.
    #[must_use]
    pub(crate) fn of(counts: &[u64], width: Duration, spans: usize) -> Option<Course> {
        let each = counts.len().div_ceil(spans.max(1)).max(1);
        let span_seconds = width.as_secs_f64() * each as f64;
        let whole = counts.len().saturating_sub(1) / each * each;
        let throughput: Vec<f64> =
            counts.get(..whole)?.chunks(each).map(|span| span.iter().sum::<u64>() as f64 / span_seconds).collect();
        if throughput.is_empty() || span_seconds <= 0.0 {
            return None;
        }
        let mean = throughput.iter().sum::<f64>() / throughput.len() as f64;
        let worst = throughput.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut dip, mut longest) = (0usize, 0usize);
        for &rate in &throughput {
            dip = if rate < mean * DEGRADED { dip + 1 } else { 0 };
            longest = longest.max(dip);
        }
        Some(Course { span_seconds, mean, worst, longest_dip: longest as f64 * span_seconds, throughput })
    }

    /// The slowest span as a share of the mean.
    #[must_use]
    pub(crate) fn worst_share(&self) -> f64 {
        if self.mean > 0.0 { self.worst / self.mean } else { 0.0 }
    }
    /// Moments, in milliseconds, and million operations per second, for a figure.
    #[must_use]
    pub(crate) fn points(&self) -> Vec<(f64, f64)> {
        let at = |i: usize| (i as f64 + 0.5) * self.span_seconds * 1e3;
        self.throughput.iter().enumerate().map(|(i, rate)| (at(i), rate / 1e6)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dips_are_found_and_the_last_span_is_left_out() {
        let counts = [10, 10, 2, 1, 10, 3, 10, 10, 1];
        let course = Course::of(&counts, Duration::from_secs(1), 100).unwrap();
        assert_eq!(course.throughput, [10.0, 10.0, 2.0, 1.0, 10.0, 3.0, 10.0, 10.0]);
        assert_eq!((course.mean, course.worst, course.longest_dip), (7.0, 1.0, 2.0));
        let coarse = Course::of(&counts, Duration::from_secs(1), 4).unwrap();
        assert_eq!((coarse.span_seconds, coarse.throughput.len()), (3.0, 2));
        assert!(Course::of(&[5], Duration::from_secs(1), 4).is_none());
        assert!(Course::of(&[], Duration::from_secs(1), 4).is_none());
    }
}
