//! The executor of one worker thread.
//!
//! Invariants: a task is polled on the thread that made the executor, and only when it was woken; between polls the
//! driver is asked for progress: completions on real fabrics, virtual time in a simulator. The same index code runs on
//! both, unchanged. Tasks run in the order in which they were woken, so a run is as deterministic as its driver.
//!
//! Invariant of collecting: a driver may collect what tasks post, to send it together. While it does, tasks that were
//! woken run first, for a bounded number of rounds; then it is asked for progress, which sends. Before the executor
//! returns to its caller, it asks the driver to send what is left. It also collects between two polls of a future that
//! drives inside of another runtime, if the second poll is already certain; that one sends.
//!
//! Invariant of parking: the thread parks only while no task and no waiting future has been woken, and only if its
//! driver has nothing in flight. A thread that wakes something writes that down first and looks for a parked thread
//! second; the thread says first that it is parked and looks for something woken second. So one of the two sees the
//! other.

mod alarm;
mod drive;
mod queue;
mod task;

pub use task::Task;
pub(crate) use task::is_running;

use crate::apart::{Cold, cold};
use queue::{Queue, Woken};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// What an executor asks for progress when no task can run.
pub trait Driver {
    /// Makes some progress; returns whether anything happened. Sends what was collected first.
    fn progress(&self) -> bool;
    /// Sends what was collected.
    fn flush(&self) {}
    /// Has it collected something to send, with which more can be sent that tasks post now?
    fn collects(&self) -> bool {
        false
    }
    /// Says whether [`progress`](Self::progress) is called soon, although no executor polls futures on this thread. If so,
    /// the driver may collect what is posted until then.
    fn expect_progress(&self, soon: bool) {
        let _ = soon;
    }
    /// Returns how the executor may wait for the next call of [`progress`](Self::progress), after one that returned
    /// `false`.
    fn idle(&self) -> Idle {
        Idle::Poll
    }
    /// Calls `waker`, once, when there is something new to wait for: a verb was posted, or a timer was set.
    fn wake_on_work(&self, waker: &Waker) {
        let _ = waker;
    }
}

/// How an executor may wait for its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Call [`Driver::progress`] again at once: only that notices what comes.
    Poll,
    /// Nothing before this much time has passed: the thread may park until then, or until a waker is called.
    Park(Option<Duration>),
}

/// State that an executor shares with its tasks and wakers.
struct Shared {
    /// Tasks that were woken while this executor did not drive on the waking thread.
    queue: Mutex<Queue>,
    /// The future that `block_on` waits for has been woken.
    woken: AtomicBool,
    /// The thread is parked, or about to.
    parked: AtomicBool,
    thread: Thread,
    /// The task of another runtime that drives the executor and waits for work: see [`Executor::run_until`].
    runtime: Mutex<Option<Waker>>,
    /// `runtime` may hold a waker.
    in_runtime: AtomicBool,
    /// The executor was dropped.
    gone: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn runtime(&self) -> MutexGuard<'_, Option<Waker>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Something has been woken.
    fn rouse(&self) {
        if self.parked.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        self.wake_runtime();
    }

    /// Nothing could run for a while.
    fn rest(&self, idle: Idle) {
        let most = match idle {
            Idle::Park(None) => None,
            Idle::Park(Some(left)) if left > EARLY * 2 => Some(left - EARLY),
            Idle::Park(Some(_)) | Idle::Poll => return std::thread::yield_now(),
        };
        self.parked.store(true, Ordering::SeqCst);
        if !self.woken.load(Ordering::SeqCst) && !self.has_woken() {
            match most {
                None => std::thread::park(),
                Some(most) => std::thread::park_timeout(most),
            }
        }
        self.parked.store(false, Ordering::SeqCst);
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.rouse();
    }
}

/// A thread that parks for some time returns late by about this much (Linux: 50 us of timer slack). So it parks for
/// less, and spends the rest, like any short sleep, on polling: pauses of a few microseconds between looks at a lock
/// stay that short.
const EARLY: Duration = Duration::from_micros(60);

/// Rounds without anything to do: so many spin, and so many more yield the processor, before the thread may park. What
/// is woken by another thread within some 50 us costs neither of the two a system call.
const SPINS: u32 = 64;
const YIELDS: u32 = 128;

/// Rounds of tasks at most for which a driver goes on collecting. A task that wakes itself again and again does not
/// keep others' verbs back.
const TOGETHER: u32 = 16;

/// Runs the coroutines of one worker thread.
pub struct Executor {
    shared: Arc<Shared>,
    /// The tasks of the current round; kept for its allocation.
    running: RefCell<Queue>,
    waker: Waker,
    /// Inside of `block_on`, or of a poll of `run_until`.
    blocking: Cell<bool>,
    turns: RefCell<drive::Turns>,
    /// Makes the type `!Send`.
    _here: PhantomData<Rc<()>>,
}

impl Default for Executor {
    fn default() -> Self {
        Self::new()
    }
}

/// Sets a flag until this is dropped, which also happens in a panic.
struct Blocking<'a>(&'a Cell<bool>);

impl Drop for Blocking<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Executor {
    /// An executor without tasks. It and its tasks stay on this thread.
    pub fn new() -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            woken: AtomicBool::new(true),
            parked: AtomicBool::new(false),
            thread: std::thread::current(),
            runtime: Mutex::default(),
            in_runtime: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&shared));
        Executor {
            shared,
            running: RefCell::default(),
            waker,
            blocking: Cell::new(false),
            turns: RefCell::default(),
            _here: PhantomData,
        }
    }

    /// Starts a coroutine. It first runs inside [`block_on`](Self::block_on) or [`run_ready`](Self::run_ready).
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.spawn_boxed(cold(future))
    }

    /// The same code for all futures of an output: a task is much code.
    #[inline(never)]
    fn spawn_boxed<T: 'static>(&self, future: Cold<'static, T>) -> Task<T> {
        let builder = async_task::Builder::new().metadata(Arc::clone(&self.shared));
        let (woken, task) = builder.spawn_local(|_| future, queue::schedule);
        woken.schedule();
        Task::new(task, Arc::clone(&self.shared))
    }

    /// Polls every task that has been woken, once each; returns how many.
    pub fn run_ready(&self) -> usize {
        // One lock for all of them. A task that drives this executor itself finds an empty deque here, which does as
        // well.
        let mut running = self.running.take();
        self.shared.take_woken(&mut running);
        let ready = running.len();
        if ready > 0 {
            let _driven = self.shared.driven();
            while let Some(woken) = running.pop_front() {
                Woken::run(woken);
            }
        }
        self.running.replace(running);
        ready
    }

    /// Has something been woken that has not run since?
    fn is_ready(&self) -> bool {
        self.shared.woken.load(Ordering::SeqCst) || self.shared.has_woken()
    }

    /// Runs until `future` completes, asking `driver` for progress whenever nothing can run. The thread is parked while
    /// nothing can run and the driver has [nothing in flight](Driver::idle).
    ///
    /// # Panics
    ///
    /// Inside of a future or task that this executor runs. Two coroutines that did so could wait for each other for
    /// ever: the first one goes on only when the second one's call has returned, and that may need what the first one
    /// holds.
    #[track_caller]
    pub fn block_on<T>(&self, driver: &dyn Driver, future: impl Future<Output = T>) -> T {
        assert!(!self.blocking.replace(true), "{NESTED}");
        self.run_blocking(driver, pin!(future))
    }

    /// The same code for all futures of an output.
    #[inline(never)]
    fn run_blocking<T>(&self, driver: &dyn Driver, mut future: Pin<&mut dyn Future<Output = T>>) -> T {
        let _blocking = Blocking(&self.blocking);
        let _driving = self.shared.drive();
        let mut context = Context::from_waker(&self.waker);
        let (mut idle, mut together): (u32, u32) = (0, 0);
        self.shared.woken.store(true, Ordering::SeqCst);
        loop {
            if self.shared.woken.swap(false, Ordering::SeqCst) {
                let _driven = self.shared.driven();
                if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                    driver.flush();
                    return value;
                }
            }
            let busy = self.run_ready() > 0 || self.shared.woken.load(Ordering::SeqCst);
            if busy && together < TOGETHER && driver.collects() && self.is_ready() {
                together += 1;
                continue;
            }
            together = 0;
            if driver.progress() || busy {
                idle = 0;
                continue;
            }
            idle = idle.saturating_add(1);
            match idle {
                0..=SPINS => std::hint::spin_loop(),
                _ if idle <= SPINS + YIELDS => std::thread::yield_now(),
                _ => self.shared.rest(driver.idle()),
            }
        }
    }
}

const NESTED: &str = "a blocking call inside of a coroutine of the same session: only one block_on of an executor can run at a time. \
                      Await the async form instead (`Index::async_handle`), or use another session";

impl Drop for Executor {
    /// Woken tasks and the queue hold each other: without this, what tasks own (endpoints, say) would live for ever.
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Relaxed);
        // Not under the lock: dropping a task may wake another.
        while let Some(woken) = { self.shared.lock().pop_front() } {
            drop(woken);
        }
    }
}

/// Lets the thread's other coroutines, and the endpoint, have a turn.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    struct Nothing;
    impl Driver for Nothing {
        fn progress(&self) -> bool {
            false
        }
    }

    #[test]
    fn tasks_run_in_the_order_they_were_woken() {
        let executor = Executor::new();
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..3)
            .map(|i| {
                let order = Rc::clone(&order);
                executor.spawn(async move { order.borrow_mut().push(i) })
            })
            .collect();
        executor.block_on(&Nothing, async {
            for task in tasks {
                task.await;
            }
        });
        assert_eq!(*order.borrow(), [0, 1, 2]);
    }

    #[test]
    fn what_a_task_owns_goes_with_the_executor() {
        let owned = Rc::new(());
        let executor = Executor::new();
        let task = Rc::clone(&owned);
        executor.spawn(async move { drop(task) }).detach();
        drop(executor);
        assert_eq!(Rc::strong_count(&owned), 1);
    }

    #[test]
    fn what_was_woken_when_an_executor_stops_runs_later() {
        let executor = Executor::new();
        let ran = Rc::new(Cell::new(0));
        let count = Rc::clone(&ran);
        executor.block_on(&Nothing, async {
            executor.spawn(async move { count.set(count.get() + 1) }).detach();
        });
        assert_eq!((ran.get(), executor.run_ready(), ran.get()), (0, 1, 1));
    }

    #[test]
    fn an_executor_inside_of_another_leaves_its_tasks_alone() {
        let (outer, inner) = (Executor::new(), Executor::new());
        let order = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str| {
            let order = Rc::clone(&order);
            async move { order.borrow_mut().push(what) }
        };
        outer.block_on(&Nothing, async {
            let before = outer.spawn(note("before"));
            let mut meanwhile = None;
            inner.block_on(&Nothing, async {
                inner.spawn(note("inner")).await;
                meanwhile = Some(outer.spawn(note("meanwhile")));
            });
            let after = outer.spawn(note("after"));
            for task in [Some(before), meanwhile, Some(after)].into_iter().flatten() {
                task.await;
            }
        });
        let mut order = order.take();
        assert_eq!(order.remove(0), "inner");
        order.sort_unstable();
        assert_eq!(order, ["after", "before", "meanwhile"]);
    }

    #[test]
    fn a_wake_from_another_thread_is_heard() {
        let executor = Executor::new();
        let (tx, rx) = std::sync::mpsc::channel::<Waker>();
        let thread = std::thread::spawn(move || rx.recv().expect("a waker").wake());
        let asked = Cell::new(false);
        executor.block_on(
            &Nothing,
            poll_fn(|cx| {
                if asked.replace(true) {
                    return Poll::Ready(());
                }
                tx.send(cx.waker().clone()).expect("the thread listens");
                Poll::Pending
            }),
        );
        thread.join().expect("no panic");
    }
}
