//! The clocks of runs on real fabrics.
//!
//! Invariants: neither goes backwards; all processes of a machine read the same [`monotonic`] one, so the stamps of
//! histories that several processes recorded can be compared; [`local`] is for durations, and as cheap as the standard
//! library's.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time since some moment of this process.
#[inline]
#[must_use]
pub fn local() -> Duration {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

/// Time since some moment that is the same for every process of this machine: CLOCK_MONOTONIC.
#[must_use]
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither part is ever negative, and the second stays below a thousand millions.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_agrees_with_the_standard_library() {
        let (before, instant) = (super::monotonic(), std::time::Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(5));
        let (after, elapsed) = (super::monotonic(), instant.elapsed());
        assert!(after > before && (after - before) >= std::time::Duration::from_millis(5));
        assert!((after - before).abs_diff(elapsed) < std::time::Duration::from_secs(1));
    }
}
