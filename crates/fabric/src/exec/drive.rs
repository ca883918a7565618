//! Driving an executor inside of a task of another runtime.
//!
//! Invariant: of all futures that [`Executor::run_until`] has made, one drives at a time. If it is dropped or
//! completes, the others are woken and one of them takes its place.
//!
//! Invariant of waiting: a driving future returns `Pending` only after it has arranged to be polled again. Either it
//! has woken itself, or a timer of the [alarm thread](super::alarm) will wake it, or nothing is in flight. In the last
//! two cases its waker is also with the executor (a task was woken) and with the driver (a verb was posted, a timer was
//! set), so new work wakes it at once.
//!
//! Invariant of collecting: the driver expects progress between two polls only if the first one has woken its own task.
//! Then other tasks of the runtime post first, and the second poll sends what all of them have posted. A driving future
//! that is dropped between the two sends it.

use super::alarm::{self, Alarm};
use super::{Blocking, Driver, EARLY, Executor, Idle, SPINS, TOGETHER};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Attempts to make progress in one poll, and steps of one poll, before the runtime gets its thread back.
const ATTEMPTS: u32 = 4;
const STEPS: u32 = 64;
/// How long a driving future wakes itself again and again while verbs are in flight and none completes. After that it
/// backs off: it asks for progress whenever an eighth of the waiting time so far has passed.
const EAGER: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// Which future drives the executor, and the wakers of those that could.
#[derive(Default)]
pub(super) struct Turns {
    taken: bool,
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

/// One future's part in driving. Dropping it passes the turn on.
struct Turn<'e> {
    turns: &'e RefCell<Turns>,
    id: u64,
    drives: bool,
}

impl<'e> Turn<'e> {
    fn new(turns: &'e RefCell<Turns>) -> Self {
        let id = {
            let mut turns = turns.borrow_mut();
            turns.next += 1;
            turns.next
        };
        Turn { turns, id, drives: false }
    }

    /// Takes the turn if it is free. If it is not, `waker` is called when it becomes free.
    fn take(&mut self, waker: &Waker) -> bool {
        if !self.drives {
            let mut turns = self.turns.borrow_mut();
            if turns.taken {
                let replaced = turns.waiting.insert(self.id, waker.clone());
                drop(turns);
                drop(replaced);
                return false;
            }
            turns.taken = true;
            self.drives = true;
        }
        true
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut turns = self.turns.borrow_mut();
            let own = turns.waiting.remove(&self.id);
            if self.drives {
                turns.taken = false;
            }
            // Also if this one did not drive: it may be the one that was just woken to take the turn.
            let others = if turns.taken { BTreeMap::new() } else { std::mem::take(&mut turns.waiting) };
            drop(turns);
            drop(own);
            others
        };
        waiting.into_values().for_each(Waker::wake);
    }
}

/// The waker of the future inside a `run_until`: it notes what it is called for, so that the future is polled for its
/// own sake alone, and not whenever the driver is.
struct Inner {
    woken: AtomicBool,
    /// `run_until` is being polled, and looks at `woken` before it returns.
    polled: AtomicBool,
    task: Mutex<Waker>,
}

impl Inner {
    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn enter(&self, task: &Waker) {
        self.polled.store(true, Ordering::SeqCst);
        let mut mine = self.task();
        if !mine.will_wake(task) {
            let replaced = std::mem::replace(&mut *mine, task.clone());
            drop(mine);
            drop(replaced);
        }
    }
    fn leave(&self) {
        self.polled.store(false, Ordering::SeqCst);
        if self.woken.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }
    fn wake_task(&self) {
        let task = self.task().clone();
        task.wake();
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.polled.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }
}

/// Sends what its driver has collected when it is dropped, however a poll ends.
struct Flush<'d>(&'d dyn Driver);

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// Tells a driver whether the future that drives it is polled soon. Once it is not, nothing stays collected.
struct Expected<'d> {
    driver: &'d dyn Driver,
    soon: bool,
}

impl Expected<'_> {
    fn set(&mut self, soon: bool) {
        if self.soon != soon {
            self.soon = soon;
            self.driver.expect_progress(soon);
        }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if self.soon {
            self.set(false);
            self.driver.flush();
        }
    }
}

/// Verbs are in flight and none has completed since the latest progress.
#[derive(Default)]
struct Quiet {
    since: Option<Instant>,
    polls: u32,
}

/// When a driving future wants to be polled again.
enum Again {
    /// After the other tasks of the runtime have had their turn.
    Soon,
    /// At this time, or when there is new work.
    At(Instant),
    /// When there is new work.
    OnWork,
}

impl Executor {
    /// Runs until `future` completes, inside of a task of another runtime: polls `future` and every woken task of this
    /// executor, and asks `driver` for progress. Unlike [`block_on`](Self::block_on) it never blocks the thread.
    ///
    /// While verbs are in flight it wakes itself after each poll, so the runtime's thread stays busy; if none completes
    /// for a millisecond it asks for progress in growing intervals, of at most 2 ms. With nothing in flight it waits
    /// for its waker or for the next timer and costs no processor time.
    ///
    /// Several such futures of one executor can be in progress at once. One of them drives for all; the turn passes on
    /// when it is dropped. Inside of `block_on` this is `future` alone, because `block_on` drives.
    pub async fn run_until<T>(&self, driver: &dyn Driver, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut turn = Turn::new(&self.turns);
        let inner = Arc::new(Inner {
            woken: AtomicBool::new(true),
            polled: AtomicBool::new(false),
            task: Mutex::new(Waker::noop().clone()),
        });
        let waker = Waker::from(Arc::clone(&inner));
        let mut quiet = Quiet::default();
        let mut expected = Expected { driver, soon: false };
        let mut alarm: Option<(Instant, Alarm)> = None;
        poll_fn(|cx| {
            if self.blocking.get() {
                return future.as_mut().poll(cx);
            }
            self.blocking.set(true);
            let _blocking = Blocking(&self.blocking);
            let _driving = self.shared.drive();
            let _flush = Flush(driver);
            inner.enter(cx.waker());
            if let Some((when, _)) = alarm.take()
                && Instant::now() < when
            {
                // There is new work: an older verb that has no answer does not slow it down.
                quiet = Quiet::default();
            }
            let mut poll = || {
                if !inner.woken.swap(false, Ordering::SeqCst) {
                    return Poll::Pending;
                }
                let _driven = self.shared.driven();
                future.as_mut().poll(&mut Context::from_waker(&waker))
            };
            let drives = turn.take(cx.waker());
            let mut again = if drives { Again::Soon } else { Again::OnWork };
            let (mut attempts, mut together) = (0, 0);
            for _ in 0..STEPS {
                if let Poll::Ready(value) = poll() {
                    return Poll::Ready(value);
                }
                if !drives {
                    break;
                }
                let ran = self.run_ready() > 0;
                let ready = || inner.woken.load(Ordering::SeqCst) || self.shared.has_woken();
                if ran && together < TOGETHER && driver.collects() && ready() {
                    together += 1;
                    continue;
                }
                together = 0;
                let progressed = driver.progress();
                if ran || progressed {
                    quiet = Quiet::default();
                }
                if ran || inner.woken.load(Ordering::SeqCst) {
                    attempts = 0;
                } else if progressed {
                    // What it has woken are tasks of the runtime.
                    break;
                } else {
                    attempts += 1;
                }
                if attempts == ATTEMPTS {
                    again = self.wait(driver, cx.waker(), &mut quiet);
                    break;
                }
            }
            inner.leave();
            if let Again::At(when) = again {
                alarm = alarm::at(when, cx.waker().clone()).map(|alarm| (when, alarm));
            }
            let soon = matches!(again, Again::Soon) || matches!(again, Again::At(_)) && alarm.is_none();
            if soon {
                cx.waker().wake_by_ref();
            }
            if drives {
                expected.set(soon);
            }
            Poll::Pending
        })
        .await
    }

    /// Nothing could run and nothing has completed: when to look again.
    fn wait(&self, driver: &dyn Driver, waker: &Waker, quiet: &mut Quiet) -> Again {
        let now = Instant::now();
        let again = match driver.idle() {
            Idle::Poll => match now - *quiet.since.get_or_insert(now) {
                time if time < EAGER => {
                    quiet.polls += 1;
                    if quiet.polls * ATTEMPTS > SPINS {
                        // Another thread of this machine may need the processor to answer.
                        std::thread::yield_now();
                    }
                    return Again::Soon;
                }
                time => Again::At(now + (time / 8).min(LONGEST_PAUSE)),
            },
            Idle::Park(None) => Again::OnWork,
            Idle::Park(Some(left)) if left > EARLY * 2 => Again::At(now + left - EARLY),
            Idle::Park(Some(_)) => {
                std::thread::yield_now();
                return Again::Soon;
            }
        };
        driver.wake_on_work(waker);
        // First the waker, then a look at the queue; a thread that wakes a task uses the opposite order.
        self.shared.set_runtime(waker);
        if self.shared.has_woken() { Again::Soon } else { again }
    }
}

impl super::Shared {
    /// The task of a runtime to wake when a task of this executor is woken, once.
    fn set_runtime(&self, waker: &Waker) {
        let replaced = self.runtime().replace(waker.clone());
        self.in_runtime.store(true, Ordering::SeqCst);
        drop(replaced);
    }

    /// Wakes the runtime's task that drives, if it waits.
    pub(super) fn wake_runtime(&self) {
        if self.in_runtime.load(Ordering::SeqCst) {
            let waker = {
                let mut runtime = self.runtime();
                self.in_runtime.store(false, Ordering::SeqCst);
                runtime.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests;
