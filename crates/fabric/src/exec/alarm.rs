//! The alarm thread: it wakes futures at given times, for executors that another runtime drives. A library does not
//! know that runtime's own timers.
//!
//! The thread starts with the first alarm, serves the whole process, waits without processor time, and never ends.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

#[derive(Default)]
struct Alarms {
    /// By time, and by a number that makes equal times different.
    due: BTreeMap<(Instant, u64), Waker>,
    next: u64,
}

static ALARMS: Mutex<Alarms> = Mutex::new(Alarms { due: BTreeMap::new(), next: 0 });
static CHANGED: Condvar = Condvar::new();

fn alarms() -> MutexGuard<'static, Alarms> {
    ALARMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wake-up that was asked for. Dropping it cancels it.
pub(super) struct Alarm((Instant, u64));

impl Drop for Alarm {
    fn drop(&mut self) {
        let waker = alarms().due.remove(&self.0);
        drop(waker);
    }
}

/// Wakes `waker` at `when`, or some 60 microseconds later. `None` if the thread cannot be started.
pub(super) fn at(when: Instant, waker: Waker) -> Option<Alarm> {
    static THREAD: OnceLock<bool> = OnceLock::new();
    let start = || std::thread::Builder::new().name("farindex-alarm".to_owned()).spawn(serve).is_ok();
    if !THREAD.get_or_init(start) {
        return None;
    }
    let mut alarms = alarms();
    alarms.next += 1;
    let key = (when, alarms.next);
    alarms.due.insert(key, waker);
    if alarms.due.first_key_value().is_some_and(|(first, _)| *first == key) {
        CHANGED.notify_one();
    }
    Some(Alarm(key))
}

fn serve() {
    let mut locked = alarms();
    loop {
        let now = Instant::now();
        let later = locked.due.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut locked.due, later);
        if !due.is_empty() {
            drop(locked);
            for waker in due.into_values() {
                // A waker is foreign code: its panic must not end this thread.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
            }
            locked = alarms();
            continue;
        }
        let next = locked.due.first_key_value().map(|((at, _), _)| *at);
        locked = match next {
            None => CHANGED.wait(locked).unwrap_or_else(PoisonError::into_inner),
            Some(at) => CHANGED.wait_timeout(locked, at - now).unwrap_or_else(PoisonError::into_inner).0,
        };
    }
}
