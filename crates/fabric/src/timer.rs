//! Timers of one endpoint, on its fabric's clock.

use crate::Endpoint;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Wakers by the time at which they are due. Keyed by time and a number, so that equal times wake in the order of
/// asking.
#[derive(Default)]
pub(crate) struct Timers {
    sleepers: BTreeMap<(Duration, u64), Waker>,
    next: u64,
}

impl Timers {
    /// When the next one is to be woken.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.sleepers.first_key_value().map(|((at, _), _)| *at)
    }
    pub(crate) fn due(&mut self, now: Duration) -> Vec<Waker> {
        let later = self.sleepers.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.sleepers, later).into_values().collect()
    }
}

/// Completes at a moment of the fabric's clock. Other coroutines run first, however short the sleep is: a coroutine
/// that polls with short sleeps would otherwise never yield a slow thread. See [`Endpoint::sleep`].
pub struct Sleep {
    endpoint: Endpoint,
    at: Duration,
    polled: bool,
    key: Option<(Duration, u64)>,
}

impl Sleep {
    pub(crate) fn new(endpoint: Endpoint, at: Duration) -> Self {
        Sleep { endpoint, at, polled: false, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let first = !std::mem::replace(&mut self.polled, true);
        if self.endpoint.now() >= self.at {
            if first {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(());
        }
        let at = self.at;
        let key = {
            let mut timers = self.endpoint.timers().borrow_mut();
            let key = self.key.unwrap_or_else(|| {
                timers.next += 1;
                (at, timers.next)
            });
            timers.sleepers.insert(key, cx.waker().clone());
            key
        };
        self.key = Some(key);
        self.endpoint.timer_set();
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.endpoint.timers().borrow_mut().sleepers.remove(&key);
        }
    }
}
