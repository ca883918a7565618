//! For how long somebody has waited, the time left out in which this process was stopped.

use crate::Session;
use std::time::Duration;

/// Measures for how long an operation has waited for others, from the first of its looks on. If more than a lease lies between
/// two looks, nobody has waited; or this process was stopped itself, and others that wait for it or work in it had no time
/// either. Then the measurement begins again.
#[derive(Debug, Default)]
pub struct Waited(Option<(Duration, Duration)>);

impl Waited {
    /// Looks at the clock once more; returns the time since the first look.
    pub fn look(&mut self, session: &Session) -> Duration {
        self.look_at(session.endpoint().now(), session.pool().lease())
    }

    fn look_at(&mut self, now: Duration, lease: Duration) -> Duration {
        let lasts = self.0.filter(|(_, latest)| now.saturating_sub(*latest) <= lease);
        let (since, _) = *self.0.insert((lasts.map_or(now, |(since, _)| since), now));
        now.saturating_sub(since)
    }
}

#[cfg(test)]
mod tests {
    use super::Waited;
    use std::time::Duration;

    #[test]
    fn the_time_in_which_the_process_was_stopped_does_not_count() {
        let mut waited = Waited::default();
        let mut look = |at| waited.look_at(Duration::from_millis(at), Duration::from_millis(5)).as_millis();
        assert_eq!([100, 104, 109, 114].map(&mut look), [0, 4, 9, 14]);
        assert_eq!([120, 121, 126].map(&mut look), [0, 1, 6]);
    }
}
